"""`torch.tpu`: devices, streams, random state, memory and the policies of eager execution.

Everything here follows `torch.cuda` where it has a counterpart there. Functions that take `device` accept an index, a
string, a `torch.device` or None (the current device).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from torch_tpu import _C

__all__ = [
    "EagerMode", "Event", "Precision", "Stream", "clear_cache", "cpu_fallback", "current_device", "current_stream",
    "default_generators", "default_stream", "device", "device_count", "device_of", "eager_mode", "empty_cache",
    "fallback_counts", "get_amp_supported_dtype", "get_device_capability", "get_device_name", "get_device_properties",
    "get_rng_state", "get_rng_state_all", "initial_seed", "is_available", "is_bf16_supported", "is_initialized",
    "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_reserved", "memory_stats", "pending_text", "precision", "reset_peak_memory_stats", "reset_stats", "seed",
    "seed_all", "set_device", "set_eager_mode", "set_rng_state", "set_rng_state_all", "set_stream", "stats", "stream",
    "synchronize",
]  # fmt: skip

_Device = Any  # int | str | torch.device | None


# --- policies


class EagerMode(enum.Enum):
    """When an eager operation runs."""

    DEFER_AND_FUSE = 0  #: recorded; one program for everything up to a value that is asked for
    DEFER_NEVER = 1  #: at once, as a program of its own, asynchronously
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 2  #: likewise, and the call returns when it has run


eager_mode: EagerMode  # a property of the module, below


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


# --- devices


def _get_device_index(device: _Device = None, optional: bool = False) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"Expected a tpu device, but got: {device}")
    return _C.current_device() if device.index is None else device.index


def _lazy_init() -> None:
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
    kinds = _C.client_info()["device_kinds"]
    kind = kinds[_get_device_index(device)]
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
    info = _C.client_info()
    index = _get_device_index(device)
    known = _KINDS.get(info["device_kinds"][index], ("", 0))[1]
    return _DeviceProperties(
        name=get_device_name(index),
        total_memory=known or mem_get_info(index)[1],
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


# --- order


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


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Makes the stream's device the current one for a block."""
    with device(None if stream is None else stream.device_index):
        yield


# --- random state


class _Generators:
    """`default_generators[i]`: the torch.Generator behind operations that are given none."""

    def __len__(self) -> int:
        return _C.device_count()

    def __getitem__(self, index: int) -> torch.Generator:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tpu devices")
        return _C.generator(index % len(self))

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


def _manual_seed_on(seed: int, index: int) -> None:
    seed = int(seed)
    _C.generator_seed(index, seed & 0xFFFF_FFFF_FFFF_FFFF)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _manual_seed_on(seed, _C.current_device())


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator. `torch.manual_seed` calls it."""
    for index in range(max(_C.device_count(), 1)):
        _manual_seed_on(seed, index)


def seed(device: _Device = None) -> int:
    """Seeds the device's generator from the operating system and returns the seed."""
    import secrets

    value = secrets.randbits(63)
    _manual_seed_on(value, _get_device_index(device))
    return value


def seed_all() -> None:
    """Seeds every device's generator from the operating system, all alike."""
    manual_seed_all(seed())


def initial_seed(device: _Device = None) -> int:
    """The seed of the device's generator."""
    return int.from_bytes(_C.generator_get(_get_device_index(device))[:8], sys.byteorder)


def get_rng_state(device: _Device = "tpu") -> torch.Tensor:
    """The generator's seed and offset: 16 bytes, on the CPU. Waits for nothing."""
    return torch.frombuffer(bytearray(_C.generator_get(_get_device_index(device))), dtype=torch.uint8)


def get_rng_state_all() -> list[torch.Tensor]:
    """`get_rng_state` of each device."""
    return [get_rng_state(i) for i in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: _Device = "tpu") -> None:
    """Sets what `get_rng_state` returned. Waits for nothing."""
    if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
        raise TypeError("RNG state must be a torch.ByteTensor")
    _C.generator_set(_get_device_index(device), bytes(new_state.tolist()))


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """`set_rng_state` of each device."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


# --- memory: bytes of buffers on the device


def memory_allocated(device: _Device = None) -> int:
    """Bytes of live buffers."""
    return _C.memory_info(_get_device_index(device))["allocated"]


def max_memory_allocated(device: _Device = None) -> int:
    """Most bytes of live buffers at one time, since start or `reset_peak_memory_stats`."""
    return _C.memory_info(_get_device_index(device))["peak"]


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Lets `max_memory_allocated` start anew."""
    torch.accelerator.reset_peak_memory_stats(_get_device_index(device))


def memory_stats(device: _Device = None) -> dict[str, Any]:
    """As `torch.accelerator.memory_stats`."""
    return torch.accelerator.memory_stats(_get_device_index(device))


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """Bytes free and in all."""
    _C.initialize()
    return torch.accelerator.get_memory_info(_get_device_index(device))


def empty_cache() -> None:
    """Does nothing: freed buffers go back to the plugin at once."""


# --- what happened


def stats() -> dict[str, int | float]:
    """Counters since start or `reset_stats`: calls recorded, programs compiled and run, cache hits, transfers."""
    return _C.stats()


def reset_stats() -> None:
    """Sets the counters to zero."""
    _C.reset_stats()


def clear_cache() -> None:
    """Forgets compiled programs in memory; those on disk stay."""
    _C.cache_clear()


_clear_cache = clear_cache


def _get_cache_requests() -> int:
    return int(_C.stats()["cache_requests"])


def _get_cache_hits() -> int:
    return int(_C.stats()["cache_hits"])


def _get_cache_misses() -> int:
    return _get_cache_requests() - _get_cache_hits()


def _get_cache_stats() -> dict[str, int]:
    return {"requests": _get_cache_requests(), "hits": _get_cache_hits(), "misses": _get_cache_misses()}


def pending_text(device: _Device = None) -> str:
    """StableHLO of what this thread has recorded on a device and not launched."""
    return _C.pending_text(_get_device_index(device))


class _DeviceModule(types.ModuleType):
    eager_mode = property(
        lambda self: _get_eager_mode(), lambda self, mode: _set_eager_mode(mode), doc="The process' eager mode."
    )
    _initialized = property(lambda self: _C.is_initialized())


sys.modules[__name__].__class__ = _DeviceModule
