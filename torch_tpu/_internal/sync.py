"""Launching and waiting, and the program that is pending."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_tpu import _C


def synchronize(tensors: Iterable[torch.Tensor] | None = None, wait: bool = True) -> None:
    """Launches what this thread has recorded on the tensors' devices (None: on all), and waits unless told not to."""
    on = range(_C.device_count()) if tensors is None else {t.device.index for t in tensors if t.device.type == "tpu"}
    for index in on:
        if wait:
            _C.synchronize(index)
        else:
            _C.cut(index)


def computation_mlir(tensor: torch.Tensor) -> str:
    """StableHLO of what this thread has recorded on the tensor's device; "" if nothing is pending."""
    return _C.pending_text(tensor.device.index)
