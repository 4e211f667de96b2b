"""Bytes of buffers on a device."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import _C

from .devices import _Device, _get_device_index


def memory_allocated(device: _Device = None) -> int:
    """Bytes of live buffers."""
    return _C.memory_info(_get_device_index(device))["allocated"]


def max_memory_allocated(device: _Device = None) -> int:
    """Most bytes of live buffers at one time, since start or `reset_peak_memory_stats`."""
    return _C.memory_info(_get_device_index(device))["peak"]


memory_reserved = memory_cached = memory_allocated  # nothing is reserved beyond what is in use
max_memory_reserved = max_memory_cached = max_memory_allocated


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Lets `max_memory_allocated` start anew."""
    torch.accelerator.reset_peak_memory_stats(_get_device_index(device))


def memory_stats(device: _Device = None) -> dict[str, Any]:
    """As `torch.accelerator.memory_stats`."""
    return torch.accelerator.memory_stats(_get_device_index(device))


def memory_stats_as_nested_dict(device: _Device = None) -> dict[str, Any]:
    """`memory_stats` with a level of dictionaries for each dot in the names."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        at = nested
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return nested


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    """Lets the counts of allocations in `memory_stats` start anew."""
    torch.accelerator.reset_accumulated_memory_stats(_get_device_index(device))


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """Bytes free and in all."""
    _C.initialize()
    return torch.accelerator.get_memory_info(_get_device_index(device))


get_memory_info = mem_get_info


def memory_summary(device: _Device = None, abbreviated: bool = False) -> str:
    """A table of `memory_stats` for people."""
    index = _get_device_index(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    rows: list[tuple[str, ...]] = [("", "current", "peak", "allocated", "freed")]
    shown = [("Bytes in use", "allocated_bytes")] if abbreviated else [
        ("Bytes in use", "allocated_bytes"), ("Bytes requested", "requested_bytes"), ("Buffers", "allocation"),
    ]  # fmt: skip
    for title, name in shown:
        rows.append((title, *(f"{stats.get(f'{name}.all.{kind}', 0):,}" for kind in rows[0][1:])))
    lines = ["".join(f"{cell:>20}" if i else f"{cell:<20}" for i, cell in enumerate(row)) for row in rows]
    return "\n".join([f"tpu:{index} {free:,} of {total:,} bytes free", *lines])


def _hbm_usage_summary(device: _Device = None) -> str:
    return memory_summary(device, abbreviated=True)


def empty_cache() -> None:
    """Does nothing: freed buffers go back to the plugin at once."""


def empty_host_cache() -> None:
    """Does nothing: pinned memory is freed at once."""


def ipc_collect() -> None:
    """Does nothing: device memory is not shared between processes."""
