"""Writes docs/ops.md: which ATen overloads have a kernel of their own on device "tpu", and by which row of the op table.

    python docs/build.py          # or: make docs
"""

import collections
from pathlib import Path

import torch  # noqa: F401  (loads the backend)
from torch_tpu import _C


def main():
    rows = collections.defaultdict(list)
    for overload, row in sorted(_C.kernels().items()):
        rows[row].append(overload)
    lines = [
        "# Operators",
        "",
        "One line a row of `core/aten/ops.inc`: the functional overload it lowers, and the overloads derived from it by their schemas. What is",
        "not here runs through PyTorch's composite kernels and decompositions, or on the CPU with a warning. Made by `make docs`.",
        "",
        f"{len(rows)} rows, {sum(map(len, rows.values()))} kernels.",
        "",
        "| row | also |",
        "| --- | --- |",
    ]
    for row in sorted(rows):
        others = ", ".join(f"`{o}`" for o in rows[row] if o != row)
        lines.append(f"| `{row}` | {others} |")
    Path(__file__).with_name("ops.md").write_text("\n".join(lines) + "\n")
    print(f"docs/ops.md: {len(rows)} rows")


if __name__ == "__main__":
    main()
