"""Order: streams, events, waiting."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import _C

from .devices import _Device, _get_device_index, device


def synchronize(device: _Device = None) -> None:
    """Launches everything pending on a device, of all threads, and waits until it has run."""
    _C.synchronize(_get_device_index(device))


def _on(device: _Device) -> torch.device:
    return torch.device("tpu", _get_device_index(device))


class _OfDevice(type):
    """PyTorch's methods take no subclasses of its streams and events, so the constructors below make plain ones."""

    def __instancecheck__(cls, obj: Any) -> bool:
        return issubclass(type(obj), cls.__mro__[1]) and obj.device.type == "tpu"


class Stream(torch.Stream, metaclass=_OfDevice):
    """A device has one stream; work is ordered by the data it needs. Exists so that programs for CUDA run."""

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> Any:
        kwargs.pop("pinned", None)
        if "stream_id" in kwargs:
            return torch.Stream(**kwargs)
        return torch.Stream(device=_on(device), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority: there is one."""
        return 0, 0


class Event(torch.Event, metaclass=_OfDevice):
    """A point in a device's work. With `enable_timing`, recording it waits for the work before it."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False,
        device: _Device = None,
    ) -> Any:  # fmt: skip
        return torch.Event(_on(device), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def current_stream(device: _Device = None) -> torch.Stream:
    """The device's stream."""
    return torch.accelerator.current_stream(_on(device))


def default_stream(device: _Device = None) -> torch.Stream:
    """The device's stream."""
    return current_stream(device)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes the stream's device the current one."""
    if stream is not None:
        _C.set_device(stream.device_index)


class StreamContext:
    """Context manager: makes a stream's device the current one. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._device = device(None if stream is None else stream.device_index)

    def __enter__(self) -> None:
        self._device.__enter__()

    def __exit__(self, *error: object) -> None:
        self._device.__exit__(*error)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Makes the stream's device the current one for a block."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Never: programs are recorded by themselves."""
    return False
