"""Options of XLA's compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch_tpu import _C

from .policies import _process_options

__all__ = ["custom_compiler_options"]

_LEVELS = ("xla_optimization_level", "xla_memory_fitting_level")


@contextlib.contextmanager
def custom_compiler_options(options: Mapping[str, str]) -> Iterator[None]:
    """Programs that this thread records within the block are compiled with these options of XLA.

    Blocks nest: the inner one's values win. `xla_optimization_level` and `xla_memory_fitting_level` take O0 to O3;
    another value raises RuntimeError. The compiler itself refuses options it does not know, when a program compiles.
    """
    given = {str(key).lstrip("-"): str(value) for key, value in options.items()}
    for key in _LEVELS:
        if given.get(key, "O0") not in ("O0", "O1", "O2", "O3"):
            raise RuntimeError(f"{key} must be one of O0, O1, O2, O3, not {given[key]!r}")
    before = _C.options_get_thread()
    _C.options_set_thread({**(_process_options() if before is None else before), **given})
    try:
        yield
    finally:
        _C.options_set_thread(before)
