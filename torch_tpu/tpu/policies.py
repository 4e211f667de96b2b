"""How eager operations run: when, how exactly, and what those without a kernel do."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Iterator

from torch_tpu import _C


class EagerMode(enum.Enum):
    """When an eager operation runs."""

    DEFER_AND_FUSE = 0  #: recorded; one program for everything up to a value that is asked for
    DEFER_NEVER = 1  #: at once, as a program of its own, asynchronously
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 2  #: likewise, and the call returns when it has run


def _get_eager_mode() -> EagerMode:
    return EagerMode(_C.mode_get())


def _set_eager_mode(mode: EagerMode) -> None:
    _C.mode_set(EagerMode(mode).value)


class set_eager_mode(contextlib.ContextDecorator):
    """`set_eager_mode(mode)` sets this thread's mode; as a context manager it does so for a block."""

    def __init__(self, mode: EagerMode) -> None:
        self._before = _C.mode_get_thread()
        self._mode = EagerMode(mode).value
        _C.mode_set_thread(self._mode)

    def __enter__(self) -> None:
        _C.mode_set_thread(self._mode)

    def __exit__(self, *_: object) -> None:
        _C.mode_set_thread(self._before)

    def _recreate_cm(self) -> set_eager_mode:
        return self


class Precision(enum.Enum):
    """How exactly float32 matrix products and convolutions are computed."""

    DEFAULT = 0  #: one bfloat16 pass on a TPU
    HIGH = 1  #: three
    HIGHEST = 2  #: six: float32


@contextlib.contextmanager
def precision(mode: Precision) -> Iterator[None]:
    """Within the block this overrides `torch.set_float32_matmul_precision` on this thread."""
    before = _C.precision_get()
    _C.precision_set(Precision(mode).value)
    try:
        yield
    finally:
        _C.precision_set(before)


_FALLBACK = ("warn", "silent", "error")


@contextlib.contextmanager
def cpu_fallback(policy: str) -> Iterator[None]:
    """What operators without a kernel do within the block: "warn" and run on the CPU, do so "silent", or "error"."""
    before = _C.fallback_get()
    _C.fallback_set(_FALLBACK.index(policy))
    try:
        yield
    finally:
        _C.fallback_set(before)


def fallback_counts() -> dict[str, int]:
    """Calls that ran on the CPU, by operator."""
    return _C.fallback_counts()


# --- options of the compiler

_environment: dict[str, str] = {}  # TORCH_TPU_INTERNAL_XLA_OPTIONS
_excess = False


def _process_options() -> dict[str, str]:
    return {"xla_allow_excess_precision": "true" if _excess else "false", **_environment}


def _set_environment_options(text: str) -> None:
    """key=value, separated by blanks."""
    for pair in text.split():
        key, equals, value = pair.partition("=")
        if equals:
            _environment[key.lstrip("-")] = value
        else:
            warnings.warn(f"TORCH_TPU_INTERNAL_XLA_OPTIONS: {pair!r} is not key=value and is ignored", stacklevel=2)
    _C.options_set(_process_options())


def _excess_precision() -> bool:
    return _excess


def _set_excess_precision(allow: bool) -> None:
    global _excess
    _excess = bool(allow)
    _C.options_set(_process_options())
