"""Modes of eager execution, as properties of this module: `eager_mode`, `enable_cpu_fallback`."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from torch_tpu import _C

EagerMode = torch.tpu.EagerMode  # type: ignore[attr-defined]
set_eager_mode = torch.tpu.set_eager_mode  # type: ignore[attr-defined]

_SILENT, _ERROR = 1, 2


class _Module(types.ModuleType):
    @property
    def eager_mode(self) -> Any:
        return torch.tpu.eager_mode  # type: ignore[attr-defined]

    @eager_mode.setter
    def eager_mode(self, mode: Any) -> None:
        torch.tpu.eager_mode = mode  # type: ignore[attr-defined]

    @property
    def enable_cpu_fallback(self) -> bool:
        """False: an operator without a kernel raises."""
        return _C.fallback_get() != _ERROR

    @enable_cpu_fallback.setter
    def enable_cpu_fallback(self, enable: bool) -> None:
        _C.fallback_set(_SILENT if enable else _ERROR)


sys.modules[__name__].__class__ = _Module
