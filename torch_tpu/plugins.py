"""Finds the PJRT plugins that are installed."""

from __future__ import annotations

import importlib.util
import os
import sys


def library(module: str, file: str) -> str | None:
    """Path of a library that an installed package carries; the package is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(folder, file)
        if os.path.exists(path):
            return path
    return None


def cpu_plugin() -> str | None:
    """Path of the embedded CPU plugin, or None if no package that carries one is installed."""
    if path := library("fastatomstruct_xla_cpu", "libpjrt_cpu.so"):
        return path
    for folder in sys.path:
        path = os.path.join(folder, "xla_plugins", "xla_cpu_pjrt", "xla_cpu_pjrt.so")
        if os.path.exists(path):
            return path
    return None
