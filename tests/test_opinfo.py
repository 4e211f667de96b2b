"""PyTorch's own samples (OpInfo) on the device and on the CPU, through the dispatcher: one test per operator.

Each compares values, dtypes, shapes and strides of
    float32   three samples           int64, bool, bfloat16   one sample each, where the operator takes them
    grad      gradients of one float32 sample
    inplace   the in-place form of one float32 sample
    out       the out= form of one float32 sample
All are recorded before the first result is read, so that they are mostly one program. Operators that draw random
numbers (two seeds give two results on the CPU) are judged by type, finiteness, and equal results for equal seeds.

KNOWN lists what fails, and why; FALLBACKS what runs on the CPU. An entry that is no longer true fails its test.
"""

import itertools
import os
import warnings

import pytest
import torch
from opinfo_known import FALLBACKS, KNOWN, LOOSE, SKIPPED
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import torch_tpu  # noqa: F401

pytestmark = pytest.mark.cpu

SAMPLES = {torch.float32: 3, torch.int64: 1, torch.bool: 1, torch.bfloat16: 1}
HOST_ARGUMENTS = {"tensor_split"}  # whose arguments beside the first PyTorch wants on the CPU
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
TOLERANCES = {torch.float32: (3e-5, 2e-5), torch.complex64: (3e-5, 2e-5), torch.bfloat16: (2e-2, 1e-2),
              torch.float64: (1e-11, 1e-12), torch.complex128: (1e-11, 1e-12)}  # fmt: skip
OPS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}

# The database's random operators seed themselves; here the trial does.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def moved(tensor, device):
    """A copy with the same strides and offset, whatever they are."""
    if device == "cpu":
        device = None
    new = tensor.detach()
    if new.layout == torch.strided and not new.is_contiguous() and not new.is_conj() and not new.is_neg():
        length = new.untyped_storage().nbytes() // new.element_size()
        base = new.as_strided((length,), (1,), 0)
        base = base.clone() if device is None else base.to(device)
        new = base.as_strided(new.shape, new.stride(), new.storage_offset())
    else:
        new = new.clone() if device is None else new.to(device)
    return new.requires_grad_(tensor.requires_grad)


def place(value, device):
    """Arguments on a device; "cpu" as an argument names the device."""

    def one(leaf):
        if isinstance(leaf, torch.Tensor):
            return moved(leaf, device)
        if isinstance(leaf, torch.device) or leaf == "cpu" and isinstance(leaf, str):
            return device
        return leaf

    return tree_map(one, value)


def key(sample):
    """Samples of equal key differ only in sizes or values."""
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    return str(structure), tuple(
        (v.dim(), v.dtype, v.is_contiguous(), v.numel() == 0) if isinstance(v, torch.Tensor) else repr(v)[:40]
        for v in leaves
    )


def samples(op, dtype, n, requires_grad=False):
    found = {}
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), 12):
        if any(t.layout != torch.strided for t in tensors((sample.input, sample.args, sample.kwargs))):
            continue
        found.setdefault(key(sample), sample)
        if len(found) == n:
            break
    return list(found.values())


def tensors(value):
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


class Trial:
    """One sample in one form: `run(device)` gives its results as a flat list."""

    def __init__(self, name, op, form, sample):
        self.name, self.op, self.form, self.sample = name, op, form, sample
        self.failure = None

    def arguments(self, device):
        s = self.sample
        others = "cpu" if self.name in HOST_ARGUMENTS else device
        return place(s.input, device), place(tuple(s.args), others), place(dict(s.kwargs), others)

    def run(self, device, seed=0):
        torch.manual_seed(seed)
        first, args, kwargs = self.arguments(device)
        if self.form == "inplace":
            out = self.op.inplace_variant(first, *args, **kwargs)
        elif self.form == "out":
            like = self.op(first, *args, **kwargs)
            out = tree_map(lambda t: torch.empty_like(t, memory_format=torch.contiguous_format), like)
            torch.manual_seed(seed)
            self.op(first, *args, **kwargs, out=out)
        else:
            out = self.op(first, *args, **kwargs)
        out = self.sample.output_process_fn_grad(out)
        if self.form != "grad":
            return [t.detach() for t in tensors(out)] or [torch.tensor(v) for v in tree_flatten(out)[0]]
        return self.gradients(tensors(out), tensors((first, args, kwargs)), device)

    @staticmethod
    def gradients(outputs, inputs, device):
        outputs = [t for t in outputs if t.requires_grad]
        generator = torch.Generator().manual_seed(7)
        cotangents = [torch.randn(t.shape, generator=generator, dtype=t.dtype).to(device) for t in outputs]
        inputs = [t for t in inputs if t.requires_grad]
        got = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
        return [t if t is not None else torch.zeros(()) for t in got]


def trials(name, op):
    for dtype, n in SAMPLES.items():
        if dtype in op.dtypes:
            for sample in samples(op, dtype, n):
                yield Trial(name, op, str(dtype)[6:], sample)
    if torch.float32 not in op.dtypes:
        return
    plain = samples(op, torch.float32, 1)
    if plain and op.inplace_variant is not None:
        sample = plain[0]
        if not sample.broadcasts_input and isinstance(sample.input, torch.Tensor):
            yield Trial(name, op, "inplace", sample)
    if plain and op.supports_out:
        yield Trial(name, op, "out", plain[0])
    if op.supports_autograd:
        for sample in samples(op, torch.float32, 1, requires_grad=True):
            yield Trial(name, op, "grad", sample)


def significant(tensor):
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1] if tensor.numel() else []


def differs(a, b, trial, values):
    """What is wrong with result `a` of the device against the CPU's `b`, or None."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
    if trial.form != "grad" and significant(a) != significant(b):
        return f"strides {a.stride()}, not {b.stride()} of {list(a.shape)}"
    if not values:
        return None
    a, b = a.cpu().resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    rtol, atol = LOOSE.get((trial.name, trial.form)) or TOLERANCES.get(b.dtype, (0, 0))
    try:
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None


def equal(a, b):
    return len(a) == len(b) and all(
        torch.equal(x.cpu().nan_to_num(), y.cpu().nan_to_num()) for x, y in zip(a, b, strict=True)
    )


def judge(trial, got, want):
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    random = trial.random
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if wrong := differs(a, b, trial, values=not random and trial.name not in UNDEFINED):
            return f"result {i}: {wrong}"
        if random and b.is_floating_point() and bool(b.isfinite().all()) and not bool(a.cpu().isfinite().all()):
            return f"result {i} is not finite"
    if random and not equal(got, trial.run("tpu")):
        return "equal seeds give different results"
    return None


def said(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def compare(name, op):
    """Runs all trials of an operator; yields those that the CPU can do, with .failure set."""
    ready = []
    for trial in trials(name, op):
        try:
            want = trial.run("cpu")
            trial.random = name not in UNDEFINED and not equal(want, trial.run("cpu", seed=1))
        except Exception:  # noqa: BLE001  (not for the device to do better)
            continue
        got = None
        try:
            got = trial.run("tpu")
        except Exception as error:  # noqa: BLE001
            trial.failure = said(error)
        ready.append((trial, got, want))
    for trial, got, want in ready:
        if got is None:
            continue
        try:
            trial.failure = judge(trial, got, want)
        except Exception:  # noqa: BLE001  (perhaps another trial of the same program: alone, then)
            try:
                trial.failure = judge(trial, trial.run("tpu"), want)
            except Exception as error:  # noqa: BLE001
                trial.failure = said(error)
    return [trial for trial, _, _ in ready]


@pytest.mark.parametrize("name", [n for n in OPS if n not in SKIPPED])
def test_operator(name):
    before = torch.tpu.fallback_counts()
    with warnings.catch_warnings(), torch.tpu.cpu_fallback("silent"):
        warnings.simplefilter("ignore")
        tried = compare(name, OPS[name])
    after = torch.tpu.fallback_counts()
    fallen = {op.removeprefix("aten::") for op, n in after.items() if n != before.get(op, 0)}
    failed = {}
    for trial in tried:
        if trial.failure:
            failed.setdefault(trial.form, trial.failure)
    if path := os.environ.get("TORCH_TPU_OPINFO_LOG"):
        with open(path, "a") as file:
            for form, failure in failed.items():
                print(name, form, failure, sep="\t", file=file)
            for op in sorted(fallen):
                print(name, "fallback", op, sep="\t", file=file)
    known = {form for op, form in KNOWN if op == name}
    new = {form: failure for form, failure in failed.items() if form not in known}
    assert not new, "\n".join(f"{name} {form}: {failure}" for form, failure in new.items())
    passes = known - set(failed)
    assert not passes, f"{name} {passes} is in KNOWN and does not fail: remove the entry"
    listed = set(FALLBACKS.get(name, "").split())
    assert fallen <= listed, f"{name} runs on the CPU: {fallen - listed}"
    assert fallen >= listed, f"{name} does not run on the CPU any more: remove {listed - fallen}"


def test_tables():
    names = {name for name, _ in [*KNOWN, *LOOSE]} | set(SKIPPED) | set(FALLBACKS)
    assert names <= set(OPS), names - set(OPS)
