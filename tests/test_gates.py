"""Rules of the tree that no compiler checks: the op table, who includes whom, sizes, what the core must not call."""

import pathlib
import re
import subprocess

import lower_harness
import pytest
import torch

pytestmark = pytest.mark.host

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = (".c", ".h", ".inc", ".cpp")
# Rows on operators that PyTorch composes of others.
COMPOSITE = {
    "_fused_rms_norm": "one pass over the rows; PyTorch's autograd formula is for it",
    "mish_backward": "called by the formula of mish, and composed of more programs than it is worth",
    "silu_backward": "called by the formula of silu, and composed of more programs than it is worth",
}
# What each room may include beside itself.
ROOMS = {
    "base": set(),
    "pjrt": {"base"},
    "ir": {"base"},
    "aten": {"base", "ir"},
    "rt": {"base", "ir", "aten", "pjrt"},
    "bridge": {"base", "ir", "aten", "pjrt", "rt"},
}


def table():
    """(section, names in order of each)."""
    for path in sorted((ROOT / "core/aten").glob("ops_*.inc")):
        lines = [line for line in path.read_text().splitlines() if re.match(r"[A-Z_0-9]+\(", line)]
        yield path.name, [re.match(r'[A-Z_0-9]+\("([^"]+)"', line).group(1) for line in lines]


ROWS = [name for _, names in table() for name in names]


def files(*folders):
    """Text files of the tree, by path."""
    known = subprocess.run(
        ["git", "-C", ROOT, "ls-files", *folders], capture_output=True, text=True, check=False
    ).stdout.split()  # fmt: skip
    found = [ROOT / name for name in known] or [p for f in folders or ("core", "bridge") for p in (ROOT / f).rglob("*")]
    for path in found:
        if path.is_file() and path.suffix not in (".png", ".so", ".pyc"):
            yield path.relative_to(ROOT).as_posix(), path.read_text(errors="replace")


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def test_sections_are_sorted_and_no_row_is_there_twice():
    for section, names in table():
        assert names == sorted(names), f"{section}: {[b for a, b in zip(names, names[1:], strict=False) if a > b]}"
    assert len(ROWS) == len(set(ROWS)), sorted({name for name in ROWS if ROWS.count(name) > 1})


def test_rows_name_functional_overloads():
    for name in ROWS:
        if name.startswith("tpu::"):  # the backend's own
            continue
        try:
            schema = lower_harness.overload(name)._schema
        except AttributeError:
            pytest.fail(f"PyTorch has no aten::{name}")
        assert not schema.is_mutable, f"{name} writes to an argument"
        assert not any(r.alias_info for r in schema.returns), f"{name} returns a view"


def test_rows_are_not_composites():
    composite = {
        name
        for name in ROWS
        if not name.startswith("tpu::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(
            lower_harness.overload(name).name(), "CompositeImplicitAutograd"
        )
    }
    assert composite == set(COMPOSITE)


def test_includes_go_one_way():
    wrong = []
    for path, text in files("core", "bridge"):
        parts = path.split("/")
        room = parts[1] if parts[0] == "core" else parts[0]
        if room not in ROOMS or not path.endswith(SOURCES):
            continue
        for included in re.findall(r'^\s*#\s*include "([^"/]+)/', text, re.M):
            if included != room and included not in ROOMS[room]:
                wrong.append(f"{path} includes {included}/")
        if parts[0] == "core":
            wrong += [
                f"{path} includes <{name}>"
                for name in re.findall(r'^\s*#\s*include [<"]((?:torch|ATen|c10|Python)[^>"]*)', text, re.M)
            ]
    assert not wrong


def test_python_reaches_the_core_through_the_bridge_only():
    wrong = [path for path, text in files("torch_tpu") if re.search(r"\bctypes\b|\bcffi\b", text)]
    assert not wrong


def test_the_core_does_not_end_the_process_or_print():
    calls = re.compile(r"\b(abort|_?exit|quick_exit|assert|v?printf|v?fprintf|puts|putchar|fputs|perror)\s*\(")
    allowed = {("core/rt/disk.c", "fputs")}  # into a file of its own
    found = {
        (path, call)
        for path, text in files("core")
        if path.endswith(SOURCES) and not re.search(r"_test\.[ch]$|/test\.h$|/fake_", path)
        for call in calls.findall(without_comments(text))
    }
    assert found <= allowed, found - allowed


def test_the_bridge_is_small():
    lines = {
        path: sum(bool(line.strip()) for line in without_comments(text).splitlines())
        for path, text in files("bridge")
        if path.endswith(SOURCES)
    }
    assert sum(lines.values()) < 3000, lines
    assert sum(path.endswith(".cpp") for path in lines) <= 5


def test_no_machine_paths():
    """Nothing in the tree knows the machine it was written on."""
    pattern = re.compile(r"(?<![\w.])/(?:root|home|work|Users|mnt|opt)/[\w.]")
    wrong = [
        f"{path}: {line.strip()[:80]}"
        for path, text in files()
        if path != "tests/test_gates.py"
        for line in text.splitlines()
        if pattern.search(line)
    ]
    assert not wrong
