"""The rung below the op table: PyTorch's own decompositions, registered when an operator is first missed.

Asking late keeps the import short and lets every row of the table win.
"""

from __future__ import annotations

import torch

_library: torch.library.Library | None = None
# Decompositions that need a value of their operands, or that end at the operator they decompose.
_refused = {"aten::_to_copy", "aten::copy_", "aten::index_put_", "aten::masked_select", "aten::nonzero"}


def _comes_back(base: str, function: object) -> bool:
    """Does a reference implementation only wrap a primitive, whose kernel would be the operator itself?"""
    module = getattr(function, "__module__", "")
    return module.startswith("torch._refs") and hasattr(torch.ops.prims, base.removeprefix("special_"))


def register(name: str, overload: str) -> bool:
    """Registers a decomposition of an operator for the device; False if PyTorch has none."""
    global _library
    namespace, _, base = name.partition("::")
    if name in _refused or namespace != "aten":
        return False
    packet = getattr(torch.ops.aten, base, None)
    op = getattr(packet, overload or "default", None)
    if op is None:
        return False
    function = torch._decomp.decomposition_table.get(op)
    if function is None or _comes_back(base, function):
        return False
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return False
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")
    _library.impl(op.name().removeprefix("aten::"), function, "PrivateUse1")
    return True
