"""Operations that PyTorch has no name for, or other arguments. All are differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from torch_tpu import _C

__all__ = [
    "max_pool1d", "max_pool1d_backward", "max_pool2d", "max_pool2d_backward", "max_pool3d", "max_pool3d_backward",
    "optimization_barrier",
]  # fmt: skip


class _Barrier(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for index in {t.device.index for t in tensors if t.device.type == "tpu"}:
            _C.cut(index)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _Barrier.apply(*grads)


def optimization_barrier(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same tensors; the compiler moves and merges nothing across this point, nor across it in backward.

    What was recorded so far becomes a program of its own.
    """
    return list(_Barrier.apply(*tensors))


def _make(rank: int) -> tuple[Any, Any]:
    pool = getattr(F, f"max_pool{rank}d")

    def forward(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
        return pool(input, kernel_size, stride or None, padding, dilation, ceil_mode)

    def backward(grad_output, input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
        with torch.enable_grad():
            x = input if input.requires_grad else input.detach().requires_grad_()
            y = forward(x, kernel_size, stride, padding, dilation, ceil_mode)
        (gradient,) = torch.autograd.grad(y, x, grad_output, create_graph=torch.is_grad_enabled())
        return gradient

    forward.__name__ = forward.__qualname__ = f"max_pool{rank}d"
    backward.__name__ = backward.__qualname__ = f"max_pool{rank}d_backward"
    spatial = ", ".join("DHW"[3 - rank :])
    forward.__doc__ = f"As `torch.nn.functional.max_pool{rank}d`: [N, C, {spatial}] or [C, {spatial}], pooled."
    backward.__doc__ = f"The gradient of `max_pool{rank}d` by its input, of the input's shape."
    return forward, backward


max_pool1d, max_pool1d_backward = _make(1)
max_pool2d, max_pool2d_backward = _make(2)
max_pool3d, max_pool3d_backward = _make(3)
