"""`torch.tpu`: devices, streams, random state, memory and the policies of eager execution.

Everything here follows `torch.cuda` where it has a counterpart there. Functions that take `device` accept an index, a
string, a `torch.device` or None (the current device). This package is loaded under the name `torch.tpu` only.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from torch_tpu import _C

from .cache import (
    _clear_cache,
    _get_cache_hits,
    _get_cache_misses,
    _get_cache_requests,
    _get_cache_stats,
    _get_dump_on_cache_miss,
    _set_allow_cache,
    _set_cache_only,
    _set_dump_on_cache_miss,
    _shutdown_runtime,
    clear_cache,
    pending_text,
    reset_stats,
    stats,
)
from .devices import (
    _get_device_index,
    _get_local_device_attributes,
    _is_in_bad_fork,
    _lazy_init,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
)
from .memory import (
    _hbm_usage_summary,
    empty_cache,
    empty_host_cache,
    get_memory_info,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
)
from .policies import (
    EagerMode,
    Precision,
    _excess_precision,
    _get_eager_mode,
    _set_eager_mode,
    _set_excess_precision,
    cpu_fallback,
    fallback_counts,
    precision,
    set_eager_mode,
)
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "EagerMode", "Event", "Precision", "Stream", "StreamContext", "allow_excess_precision", "can_device_access_peer",
    "clear_cache", "cpu_fallback", "current_device", "current_stream", "default_generators", "default_stream",
    "device", "device_count", "device_of", "eager_mode", "empty_cache", "empty_host_cache", "fallback_counts",
    "get_amp_supported_dtype", "get_arch_list", "get_device_capability", "get_device_name", "get_device_properties",
    "get_memory_info", "get_rng_state", "get_rng_state_all", "init", "initial_seed", "ipc_collect", "is_available",
    "is_bf16_supported", "is_current_stream_capturing", "is_initialized", "manual_seed", "manual_seed_all",
    "max_memory_allocated", "max_memory_cached", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_cached", "memory_reserved", "memory_stats", "memory_stats_as_nested_dict", "memory_summary",
    "pending_text", "precision", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "reset_max_memory_cached", "reset_peak_memory_stats", "reset_stats", "seed", "seed_all", "set_device",
    "set_eager_mode", "set_rng_state", "set_rng_state_all", "set_stream", "stats", "stream", "synchronize",
]  # fmt: skip

# Imported when first asked for.
_LATER = ("amp", "compiler", "ops")

eager_mode: EagerMode
allow_excess_precision: bool


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "allow_excess_precision", "eager_mode"})


class _DeviceModule(types.ModuleType):
    eager_mode = property(
        lambda self: _get_eager_mode(), lambda self, mode: _set_eager_mode(mode), doc="The process' eager mode."
    )
    allow_excess_precision = property(
        lambda self: _excess_precision(),
        lambda self, allow: _set_excess_precision(allow),
        doc="May the compiler leave out roundings to half precision? False unless set; for what is recorded later.",
    )
    _initialized = property(lambda self: _C.is_initialized())


sys.modules[__name__].__class__ = _DeviceModule
