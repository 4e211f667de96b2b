"""Loads the native part, finds the plugins that are installed, and makes `torch.tpu` available. Loads no plugin."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import types
import warnings

from torch_tpu import plugins

_loaded = False


def load() -> None:
    """Entry point of group torch.backends. Does its work once; raises ImportError if PyTorch does not fit."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    try:
        _load()
    except BaseException:
        _loaded = False
        raise


def _load() -> None:
    import torch

    _refuse_namesake()
    try:
        from torch_tpu import _C
    except ImportError as error:
        raise ImportError(
            f"torch_tpu's native part cannot be loaded with PyTorch {torch.__version__} "
            f"(it is built for one minor version): {error}"
        ) from error
    if _minor(_C.torch_version) != _minor(torch.__version__):
        raise ImportError(
            f"torch_tpu was built for PyTorch {_C.torch_version}, but PyTorch {torch.__version__} is installed; "
            "reinstall torch-tpu-c"
        )

    _C.configure(
        libtpu=plugins.library("libtpu", "libtpu.so"),
        embedded=plugins.cpu_plugin(),
        cache_dir=_cache_dir(),
        cache_bytes=_int_env("TORCH_TPU_CACHE_BYTES", 0),
        devices=_int_env("TORCH_TPU_CPU_DEVICES", 0),
    )
    torch.utils.rename_privateuse1_backend("tpu")
    _C.register(os.path.dirname(torch.__file__), os.path.dirname(__file__))
    torch._register_device_module("tpu", _public_package())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

    _set_policies(_C)
    from torch_tpu import decompositions, patches

    _C.set_decompose(decompositions.register)
    patches.apply()
    from torch.optim.optimizer import register_optimizer_step_post_hook

    # A step's end is where an iteration is cut into programs.
    register_optimizer_step_post_hook(lambda *_: _C.cut_later())


def _public_package() -> types.ModuleType:
    """The folder `tpu` as package `torch.tpu`, and under no other name."""
    folder = os.path.join(os.path.dirname(__file__), "tpu")
    name = "torch.tpu"
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _refuse_namesake() -> None:
    try:
        importlib.metadata.distribution("torch-tpu")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        "both torch-tpu and torch-tpu-c are installed, and both are imported as torch_tpu; "
        "remove one: pip uninstall torch-tpu"
    )


def _cache_dir() -> str:
    """Folder of compiled programs; "" turns the disk cache off."""
    if os.environ.get("TORCH_TPU_TIER2_COMPILATION_CACHE") == "disabled":
        return ""
    path = os.environ.get("TORCH_TPU_CACHE_DIR")
    if path is not None:
        return path
    shared = os.environ.get("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "")
    if "://" in shared:
        warnings.warn(
            f"TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT={shared!r} is not a local folder and is ignored", stacklevel=2
        )
    elif shared:
        return shared
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "torch_tpu")


def _int_env(name: str, otherwise: int) -> int:
    text = os.environ.get(name)
    if not text:
        return otherwise
    try:
        return int(text)
    except ValueError:
        warnings.warn(f"{name}={text!r} is not a number and is ignored", stacklevel=2)
        return otherwise


def _set_policies(_C) -> None:
    fallback = os.environ.get("TORCH_TPU_CPU_FALLBACK", "warn")
    if fallback in ("warn", "silent", "error"):
        _C.fallback_set(("warn", "silent", "error").index(fallback))
    else:
        warnings.warn(f"TORCH_TPU_CPU_FALLBACK={fallback!r} is none of warn, silent, error", stacklevel=2)
    from torch.tpu import policies  # type: ignore[import-not-found]

    policies._set_environment_options(os.environ.get("TORCH_TPU_INTERNAL_XLA_OPTIONS", ""))
    fuse = os.environ.get("TORCH_TPU_DEFER_AND_FUSE")
    if os.environ.get("TORCH_TPU_LAUNCH_BLOCKING") == "1":
        _C.mode_set(2)
    elif fuse in ("0", "1"):
        _C.mode_set(0 if fuse == "1" else 1)
