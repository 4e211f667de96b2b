"""Which devices there are, what they are, and which one is current."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from torch_tpu import _C

_Device = Any  # int | str | torch.device | None


def _get_device_index(device: _Device = None, optional: bool = False) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"Expected a tpu device, but got: {device}")
    return _C.current_device() if device.index is None else device.index


def _require(index: int) -> None:
    count = _C.device_count()
    if count == 0:
        _C.initialize()  # raises, and says why there is none
    if not 0 <= index < count:
        raise RuntimeError(f"invalid device ordinal: tpu:{index} does not exist; there are {count} devices")


def _lazy_init() -> None:
    _C.initialize()


def init() -> None:
    """Creates this process' PJRT client now rather than at the first use of a device."""
    _C.initialize()


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def is_available() -> bool:
    """Is there a device: a TPU, or a CPU plugin that stands in for one?"""
    return _C.device_count() > 0


def is_initialized() -> bool:
    """Has this process created its PJRT client?"""
    return _C.is_initialized() and not _C.in_bad_fork()


def device_count() -> int:
    """Number of devices. Does not load a CPU plugin."""
    return _C.device_count()


def current_device() -> int:
    """Index of this thread's device."""
    return _C.current_device()


def set_device(device: _Device) -> None:
    """Makes a device this thread's current one; a negative index changes nothing."""
    index = _get_device_index(device)
    if index >= 0:
        _C.set_device(index)


class device:
    """Context manager: makes a device the current one. None or a negative index changes nothing."""

    def __init__(self, device: _Device) -> None:
        self.idx = -1 if device is None else _get_device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.current_device()
        if self.idx >= 0:
            _C.set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        if self.idx >= 0:
            _C.set_device(self.prev_idx)


class device_of(device):
    """Context manager: makes the device of a tensor the current one, if it is a tpu."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else None)


_KINDS = {  # device kind: name, bytes of a device
    "TPU v2": ("TPU v2", 8 << 30),
    "TPU v3": ("TPU v3", 16 << 30),
    "TPU v4": ("TPU v4", 32 << 30),
    "TPU v5 lite": ("TPU v5e", 16 << 30),
    "TPU v5e": ("TPU v5e", 16 << 30),
    "TPU v5": ("TPU v5p", 95 << 30),
    "TPU v5p": ("TPU v5p", 95 << 30),
    "TPU v6 lite": ("TPU v6e", 32 << 30),
    "TPU v6e": ("TPU v6e", 32 << 30),
    "TPU7x": ("TPU v7", 96 << 30),
}


def get_device_name(device: _Device = None) -> str:
    """The device's kind, such as "TPU v5e"; "cpu" for a CPU plugin."""
    index = _get_device_index(device)
    _require(index)
    kind = _C.client_info()["device_kinds"][index]
    return _KINDS.get(kind, (kind, 0))[0]


@dataclasses.dataclass(frozen=True)
class _DeviceProperties:
    name: str
    total_memory: int  # bytes
    multi_processor_count: int = 1
    platform: str = ""
    platform_version: str = ""
    plugin: str = ""


def get_device_properties(device: _Device = None) -> _DeviceProperties:
    """Name, memory in bytes, and what the plugin says of itself."""
    index = _get_device_index(device)
    _require(index)
    info = _C.client_info()
    known = _KINDS.get(info["device_kinds"][index], ("", 0))[1]
    return _DeviceProperties(
        name=get_device_name(index),
        total_memory=known or torch.accelerator.get_memory_info(index)[1],
        platform=info["platform"],
        platform_version=info["platform_version"],
        plugin=info["plugin"],
    )


def get_device_capability(device: _Device = None) -> dict[str, Any]:
    """As `torch.accelerator.get_device_capability`."""
    return torch.accelerator.get_device_capability(_get_device_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """dtypes that `torch.autocast("tpu", dtype=...)` takes."""
    return [
        torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e4m3fnuz,
        torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.bool, torch.uint8, torch.uint16,
        torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64,
        torch.complex128,
    ]  # fmt: skip


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always."""
    return True


def get_arch_list() -> list[str]:
    """Kinds of the devices there are, such as "TPU v5e"."""
    return sorted({get_device_name(i) for i in range(device_count())})


def can_device_access_peer(device: _Device, peer_device: _Device) -> bool:
    """Can a device's buffers be copied to another one without the host? Between two devices of this process, yes."""
    indices = [_get_device_index(d) for d in (device, peer_device)]
    for index in indices:
        _require(index)
    return indices[0] != indices[1]


def _get_local_device_attributes() -> list[dict[str, Any]]:
    info = _C.client_info()
    return [
        {"index": index, "device_kind": kind, "platform": info["platform"], "name": get_device_name(index)}
        for index, kind in enumerate(info["device_kinds"])
    ]
