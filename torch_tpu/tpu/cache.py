"""What was recorded, compiled and run, and the programs that are kept."""

from __future__ import annotations

import dataclasses
import sys

from torch_tpu import _C

from .devices import _Device, _get_device_index


def stats() -> dict[str, int | float]:
    """Counters since start or `reset_stats`: calls recorded, programs compiled and run, cache hits, transfers."""
    return _C.stats()


def reset_stats() -> None:
    """Sets the counters to zero."""
    _C.reset_stats()


def clear_cache() -> None:
    """Forgets compiled programs in memory; those on disk stay."""
    _C.cache_clear()


def pending_text(device: _Device = None) -> str:
    """StableHLO of what this thread has recorded on a device and not launched."""
    return _C.pending_text(_get_device_index(device))


# --- names that notebooks and tests know

_clear_cache = clear_cache


@dataclasses.dataclass(frozen=True)
class _CacheEntry:
    """A compiled program in memory."""

    compilation_duration: float  # seconds, of compiling it or of loading it from disk
    last_read: float  # seconds since the epoch
    read_count: int


@dataclasses.dataclass(frozen=True)
class _CacheStats:
    """Since start or `reset_stats`; the entries are what is in memory now."""

    num_cache_reqs: int
    num_cache_hits: int
    num_compilations: int
    peak_compilation_host_memory_bytes: int  # resident bytes of the process after a compilation, the most so far
    per_entry_stats: list[_CacheEntry]


def _get_cache_stats() -> _CacheStats:
    s = _C.stats()
    return _CacheStats(
        num_cache_reqs=s["cache_requests"],
        num_cache_hits=s["cache_hits"],
        num_compilations=s["compiles"],
        peak_compilation_host_memory_bytes=s["compile_peak_bytes"],
        per_entry_stats=[_CacheEntry(*entry) for entry in _C.cache_entries()],
    )


def _get_cache_requests() -> int:
    return int(_C.stats()["cache_requests"])


def _get_cache_hits() -> int:
    return int(_C.stats()["cache_hits"])


def _get_cache_misses() -> int:
    return _get_cache_requests() - _get_cache_hits()


def _set_allow_cache(allow: bool) -> None:
    """False: every program is compiled each time it runs."""
    _C.cache_policy(allow=bool(allow))


def _set_cache_only(only: bool) -> None:
    """True: a program that is neither in memory nor on disk is an error, which its values carry."""
    _C.cache_policy(only=bool(only))


_dump = False


def _set_dump_on_cache_miss(dump: bool) -> None:
    """True: the StableHLO of each program that gets compiled goes to stderr."""
    global _dump
    _dump = bool(dump)
    _C.set_miss_hook((lambda text: print(text, file=sys.stderr, flush=True)) if _dump else None)


def _get_dump_on_cache_miss() -> bool:
    return _dump


def _shutdown_runtime() -> None:
    """Waits for every device and forgets compiled programs. The process can go on."""
    if _C.is_initialized() and not _C.in_bad_fork():
        for index in range(_C.device_count()):
            _C.synchronize(index)
        _C.cache_clear()
