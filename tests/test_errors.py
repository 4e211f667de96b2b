"""What a user gets wrong is an exception of PyTorch's class in PyTorch's words, at the call, and everything goes on."""

import contextlib
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

pytestmark = pytest.mark.cpu


def ones(*shape, device, dtype=torch.float32):
    return torch.ones(shape, device=device, dtype=dtype)


def ints(*values, device):
    return torch.tensor(values, device=device)


def overlapping(function):
    """`function` of two views of one storage that share a part of it."""

    def f(d):
        x = torch.arange(6.0, device=d)
        return function(x[1:5], x[:4])

    return f


def leaf(function):
    return lambda d: function(torch.arange(4.0, device=d).requires_grad_())


def changed_after_use(x):
    y = x * 2
    z = y.exp() * y
    y.add_(1)
    z.sum().backward()


def twice(x):
    y = x.exp().sum()
    y.backward()
    y.backward()


SHAPES = {
    "add": lambda d: ones(2, 3, device=d) + ones(2, 2, device=d),
    "add_": lambda d: ones(2, device=d).add_(ones(2, 2, device=d)),
    "addcmul": lambda d: torch.addcmul(ones(2, device=d), ones(3, device=d), ones(2, device=d)),
    "addmm": lambda d: torch.addmm(ones(5, device=d), ones(2, 3, device=d), ones(3, 4, device=d)),
    "baddbmm": lambda d: torch.baddbmm(ones(2, 2, 2, device=d), ones(2, 2, 3, device=d), ones(2, 2, 2, device=d)),
    "batch_norm": lambda d: nn.BatchNorm1d(3).to(d)(ones(2, 4, device=d)),
    "batch_norm of one value": lambda d: nn.BatchNorm1d(3).to(d)(ones(1, 3, device=d)),
    "bmm": lambda d: torch.bmm(ones(2, 2, 3, device=d), ones(2, 2, 3, device=d)),
    "bmm of matrices": lambda d: torch.bmm(ones(2, 3, device=d), ones(3, 2, device=d)),
    "broadcast_to": lambda d: ones(2, 3, device=d).broadcast_to(2, 4),
    "cat": lambda d: torch.cat([ones(2, 3, device=d), ones(2, 2, device=d)]),
    "cat of ranks": lambda d: torch.cat([ones(2, 3, device=d), ones(2, device=d)]),
    "cat of nothing": lambda d: torch.cat([]),
    "cdist": lambda d: torch.cdist(ones(2, 3, device=d), ones(2, 4, device=d)),
    "chunk": lambda d: ones(4, device=d).chunk(0),
    "conv1d": lambda d: F.conv1d(ones(1, 3, 8, device=d), ones(2, 4, 3, device=d)),
    "conv2d": lambda d: F.conv2d(ones(1, 3, 2, 2, device=d), ones(2, 3, 3, 3, device=d)),
    "conv2d, groups": lambda d: F.conv2d(ones(1, 4, 4, 4, device=d), ones(3, 2, 1, 1, device=d), groups=2),
    "conv2d, bias": lambda d: F.conv2d(ones(1, 3, 4, 4, device=d), ones(2, 3, 1, 1, device=d), ones(3, device=d)),
    "copy_": lambda d: ones(2, device=d).copy_(ones(3, device=d)),
    "cross": lambda d: torch.linalg.cross(ones(2, 4, device=d), ones(2, 4, device=d)),
    "cross_entropy": lambda d: F.cross_entropy(ones(2, 3, device=d), ints(0, 1, 2, device=d)),
    "cumsum": lambda d: ones(2, device=d).cumsum(1),
    "diag": lambda d: torch.diag(ones(2, 2, 2, device=d)),
    "dot": lambda d: torch.dot(ones(2, device=d), ones(3, device=d)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", ones(2, 3, device=d), ones(2, 3, device=d)),
    "embedding": lambda d: F.embedding(ints(0, device=d), ones(3, device=d)),
    "empty": lambda d: torch.empty(-1, device=d),
    "expand": lambda d: ones(2, 3, device=d).expand(3, 3),
    "eye": lambda d: torch.eye(-1, device=d),
    "flip": lambda d: ones(2, 3, device=d).flip(0, 0),
    "full": lambda d: torch.full((-2,), 1.0, device=d),
    "gather": lambda d: ones(2, 3, device=d).gather(1, torch.zeros(3, 1, dtype=torch.long, device=d)),
    "gather of ranks": lambda d: ones(2, 3, device=d).gather(1, torch.zeros(2, dtype=torch.long, device=d)),
    "group_norm": lambda d: F.group_norm(ones(2, 5, 3, device=d), 2),
    "index": lambda d: ones(4, 4, device=d)[ints(0, 1, device=d), ints(0, 1, 2, device=d)],
    "index by a mask": lambda d: ones(3, device=d)[ones(2, device=d, dtype=torch.bool)],
    "index_add": lambda d: ones(3, 2, device=d).index_add_(0, ints(0, 1, device=d), ones(3, 2, device=d)),
    "index_copy": lambda d: ones(3, 2, device=d).index_copy_(0, ints(0, 1, device=d), ones(3, 2, device=d)),
    "index_put": lambda d: ones(4, device=d).index_put_((ints(0, 1, device=d),), ones(3, device=d)),
    "index_select": lambda d: ones(3, device=d).index_select(0, torch.zeros(1, 1, dtype=torch.long, device=d)),
    "interpolate": lambda d: F.interpolate(ones(1, 1, 4, 4, device=d), size=(0, 2)),
    "item": lambda d: ones(2, device=d).item(),
    "kthvalue": lambda d: ones(3, device=d).kthvalue(4),
    "layer_norm": lambda d: F.layer_norm(ones(2, 3, device=d), (4,)),
    "lerp": lambda d: torch.lerp(ones(2, device=d), ones(3, device=d), 0.5),
    "linear": lambda d: nn.Linear(3, 2).to(d)(ones(2, 4, device=d)),
    "linspace": lambda d: torch.linspace(0, 1, -1, device=d),
    "masked_fill": lambda d: ones(2, 3, device=d).masked_fill(ones(2, 2, device=d, dtype=torch.bool), 0),
    "masked_scatter": lambda d: ones(4, device=d).masked_scatter(
        ones(3, device=d, dtype=torch.bool), ones(4, device=d)
    ),
    "matmul": lambda d: ones(2, 3, device=d) @ ones(2, 2, device=d),
    "matmul of a number": lambda d: torch.matmul(ones(2, device=d), ones(device=d)),
    "max of nothing": lambda d: torch.empty(0, device=d).max(),
    "max of an empty dim": lambda d: torch.empty(2, 0, device=d).max(1),
    "max_pool2d": lambda d: F.max_pool2d(ones(1, 1, 2, 2, device=d), 3),
    "max_pool2d, padding": lambda d: F.max_pool2d(ones(1, 1, 4, 4, device=d), 2, padding=2),
    "mm": lambda d: torch.mm(ones(2, 3, device=d), ones(2, 3, device=d)),
    "mse_loss": lambda d: F.mse_loss(ones(2, 3, device=d), ones(4, device=d)),
    "mv": lambda d: torch.mv(ones(2, 3, device=d), ones(2, device=d)),
    "movedim": lambda d: ones(2, 3, device=d).movedim((0, 1), (0, 0)),
    "nll_loss": lambda d: F.nll_loss(ones(2, 3, device=d), torch.zeros(2, 1, dtype=torch.long, device=d)),
    "pad": lambda d: F.pad(ones(2, 2, device=d), (-3, 0)),
    "pad, reflected": lambda d: F.pad(ones(1, 1, 3, device=d), (3, 0), mode="reflect"),
    "permute": lambda d: ones(2, 3, device=d).permute(0, 0),
    "permute of fewer": lambda d: ones(2, 3, device=d).permute(0),
    "pixel_shuffle": lambda d: F.pixel_shuffle(ones(1, 3, 2, 2, device=d), 2),
    "repeat": lambda d: ones(2, 3, device=d).repeat(2),
    "repeat_interleave": lambda d: ones(3, device=d).repeat_interleave(ints(1, 2, device=d)),
    "reshape": lambda d: ones(2, 3, device=d).reshape(4, 2),
    "reshape, two inferred": lambda d: ones(2, 3, device=d).reshape(-1, -1),
    "roll": lambda d: ones(2, 3, device=d).roll((1, 2), (0,)),
    "scatter": lambda d: ones(2, 3, device=d).scatter(1, ints(0, device=d), 1.0),
    "scatter_add": lambda d: ones(2, 2, device=d).scatter_add(
        0, torch.zeros(3, 3, dtype=torch.long, device=d), ones(3, 3, device=d)
    ),
    "set_": lambda d: torch.empty(0, device=d).set_(ones(2, device=d).untyped_storage(), 1, (-1,), (1,)),
    "softmax": lambda d: ones(2, device=d).softmax(1),
    "split": lambda d: ones(4, device=d).split([1, 2]),
    "squeeze": lambda d: ones(2, 1, device=d).squeeze(2),
    "stack": lambda d: torch.stack([ones(2, device=d), ones(3, device=d)]),
    "stack of nothing": lambda d: torch.stack([]),
    "sum": lambda d: ones(2, device=d).sum(3),
    "sum of a dim twice": lambda d: ones(2, 3, device=d).sum((0, 0)),
    "take_along_dim": lambda d: ones(2, 3, device=d).take_along_dim(torch.zeros(2, dtype=torch.long, device=d), 1),
    "tensordot": lambda d: torch.tensordot(ones(2, 3, device=d), ones(2, 3, device=d), 1),
    "topk": lambda d: ones(3, device=d).topk(4),
    "trace": lambda d: ones(3, device=d).trace(),
    "transpose": lambda d: ones(2, 3, device=d).transpose(0, 2),
    "tril": lambda d: ones(3, device=d).tril(),
    "unflatten": lambda d: ones(6, device=d).unflatten(0, (4, 2)),
    "unfold": lambda d: ones(3, device=d).unfold(0, 4, 1),
    "unsqueeze": lambda d: ones(2, device=d).unsqueeze(3),
    "view": lambda d: ones(2, 3, device=d).view(4),
    "view of strides": lambda d: ones(2, 3, device=d).t().view(6),
    "view of a dtype": lambda d: ones(3, device=d, dtype=torch.int8).view(torch.int16),
    "where": lambda d: torch.where(ones(2, device=d, dtype=torch.bool), ones(3, device=d), 0.0),
    "arange": lambda d: torch.arange(0, 3, -1, device=d),
    "inverse": lambda d: torch.linalg.inv(ones(2, 3, device=d)),
    "inverse of a singular matrix": lambda d: torch.linalg.inv(ones(2, 2, device=d)),
    "cholesky of an indefinite matrix": lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "solve": lambda d: torch.linalg.solve(torch.zeros(2, 2, device=d), ones(2, device=d)),
    "attention": lambda d: F.scaled_dot_product_attention(
        ones(1, 2, 3, device=d), ones(1, 2, 4, device=d), ones(1, 2, 4, device=d)
    ),
}

DTYPES = {
    "add_ of a float": lambda d: torch.arange(3, device=d).add_(1.5),
    "+= of a float tensor": lambda d: torch.arange(3, device=d).__iadd__(ones(3, device=d)),
    "div_ of integers": lambda d: torch.arange(3, device=d).div_(2),
    "sqrt_ of integers": lambda d: torch.arange(3, device=d).sqrt_(),
    "mul_ of complex": lambda d: ones(3, device=d).mul_(1j),
    "bool add_ integer": lambda d: ones(3, device=d, dtype=torch.bool).add_(2),
    "and of floats": lambda d: ones(3, device=d) & ones(3, device=d),
    "not of floats": lambda d: ~ones(3, device=d),
    "bool - bool": lambda d: ones(3, device=d, dtype=torch.bool) - ones(3, device=d, dtype=torch.bool),
    "-bool": lambda d: -ones(3, device=d, dtype=torch.bool),
    "mean of integers": lambda d: torch.arange(3, device=d).mean(),
    "var of integers": lambda d: torch.arange(3, device=d).var(),
    "norm of integers": lambda d: torch.linalg.vector_norm(torch.arange(3, device=d)),
    "softmax of integers": lambda d: torch.arange(3, device=d).softmax(0),
    "matmul": lambda d: ones(2, 2, device=d) @ ones(2, 2, device=d, dtype=torch.float64),
    "mm of integers and floats": lambda d: torch.mm(ones(2, 2, device=d, dtype=torch.int64), ones(2, 2, device=d)),
    "linear": lambda d: nn.Linear(2, 2).to(d)(ones(2, 2, device=d, dtype=torch.bfloat16)),
    "conv2d": lambda d: F.conv2d(ones(1, 1, 2, 2, device=d), ones(1, 1, 1, 1, device=d, dtype=torch.float64)),
    "complex <": lambda d: ones(2, device=d, dtype=torch.complex64) < 1,
    "complex clamp": lambda d: ones(2, device=d, dtype=torch.complex64).clamp(0),
    "complex floor": lambda d: ones(2, device=d, dtype=torch.complex64).floor(),
    "complex max": lambda d: ones(2, device=d, dtype=torch.complex64).max(),
    "embedding of floats": lambda d: F.embedding(ones(2, device=d), ones(3, 2, device=d)),
    "gather of floats": lambda d: ones(2, device=d).gather(0, ones(2, device=d)),
    "scatter of another dtype": lambda d: ones(2, device=d).scatter(0, ints(0, device=d), ints(1, device=d)),
    "index by floats": lambda d: ones(2, device=d)[ones(1, device=d)],
    "index_add of another dtype": lambda d: ones(2, device=d).index_add_(0, ints(0, device=d), ints(1, device=d)),
    "index_put of another dtype": lambda d: ones(2, device=d).index_put_((ints(0, device=d),), ints(1, device=d)),
    "masked_select": lambda d: ones(2, device=d).masked_select(ones(2, device=d)),
    "masked_fill of integers by a float": lambda d: torch.arange(2, device=d).masked_fill_(
        ones(2, device=d, dtype=torch.int32), 1
    ),
    "where": lambda d: torch.where(ones(2, device=d), 1.0, 0.0),
    "nll_loss": lambda d: F.nll_loss(ones(2, 3, device=d), ones(2, device=d)),
    "cross_entropy": lambda d: F.cross_entropy(ones(2, 3, device=d), ints(0, 1, device=d).int()),
    "bce of targets": lambda d: F.binary_cross_entropy(ones(2, device=d), ones(2, device=d, dtype=torch.float64)),
    "normal_ of integers": lambda d: torch.arange(3, device=d).normal_(),
    "rand of integers": lambda d: torch.rand(3, device=d, dtype=torch.int64),
    "bernoulli of integers": lambda d: torch.arange(3, device=d).bernoulli(),
    "multinomial of integers": lambda d: torch.arange(3, device=d).multinomial(1),
    "out= of integers": lambda d: torch.add(ones(2, device=d), 1, out=torch.ones(2, dtype=torch.long, device=d)),
    "view_as_complex": lambda d: torch.view_as_complex(ones(3, 2, device=d, dtype=torch.int64)),
    "lerp": lambda d: torch.lerp(ones(2, device=d), ones(2, device=d, dtype=torch.float64), 0.5),
    "requires_grad_": lambda d: torch.arange(3, device=d).requires_grad_(),
    "sum of a string": lambda d: ones(2, device=d).sum("a"),
    "add of a string": lambda d: ones(2, device=d) + "a",
    "attention": lambda d: F.scaled_dot_product_attention(
        ones(1, 2, 4, device=d), ones(1, 2, 4, device=d, dtype=torch.bfloat16), ones(1, 2, 4, device=d)
    ),
}

ARGUMENTS = {
    "[5]": lambda d: ones(2, device=d)[5],
    "[-3]": lambda d: ones(2, device=d)[-3],
    "[0, 0]": lambda d: ones(2, device=d)[0, 0],
    "number[0]": lambda d: ones(device=d)[0],
    "[::-1]": lambda d: ones(2, device=d)[::-1],
    "[5] = 1": lambda d: ones(2, device=d).__setitem__(5, 1.0),
    "[:2] = three": lambda d: ones(4, device=d).__setitem__(slice(0, 2), ones(3, device=d)),
    "select": lambda d: ones(2, 3, device=d).select(1, 3),
    "narrow": lambda d: ones(4, device=d).narrow(0, 2, 3),
    "narrow, negative": lambda d: ones(4, device=d).narrow(0, 2, -1),
    "as_strided": lambda d: ones(4, device=d).as_strided((3, 3), (2, 1)).sum().item(),
    "as_strided, negative": lambda d: ones(4, device=d).as_strided((2,), (-1,)),
    "dropout": lambda d: F.dropout(ones(2, device=d), 1.5),
    "clamp": lambda d: ones(2, device=d).clamp(),
    "div": lambda d: torch.div(ones(2, device=d), 2, rounding_mode="up"),
    "gelu": lambda d: F.gelu(ones(2, device=d), approximate="what"),
    "std of one dim too many": lambda d: ones(2, device=d).std(2),
    "unbiased": lambda d: torch.quantile(ones(2, device=d), 1.5),
    "norm": lambda d: torch.linalg.vector_norm(torch.empty(0, device=d), float("inf")),
    "multinomial": lambda d: ones(2, device=d).multinomial(3),
    "randint": lambda d: torch.randint(5, 5, (2,), device=d),
    "randperm": lambda d: torch.randperm(-1, device=d),
    "normal": lambda d: ones(2, device=d).normal_(0, -1),
    "uniform": lambda d: ones(2, device=d).uniform_(1, 0),
    "bernoulli": lambda d: ones(2, device=d).bernoulli_(1.5),
    "exponential": lambda d: ones(2, device=d).exponential_(-1),
    "geometric": lambda d: ones(2, device=d).geometric_(2.0),
    "max_pool2d": lambda d: F.max_pool2d(ones(1, 1, 4, 4, device=d), 2, stride=0),
    "conv2d, stride": lambda d: F.conv2d(ones(1, 1, 4, 4, device=d), ones(1, 1, 1, 1, device=d), stride=0),
    "embedding_bag": lambda d: F.embedding_bag(ints(0, 1, device=d), ones(3, 2, device=d)),
    "resize_": lambda d: ones(2, device=d).resize_(-1),
    "tensor of ragged lists": lambda d: torch.tensor([[1], [1, 2]], device=d),
    "cat into a dim": lambda d: torch.cat([ones(2, device=d)] * 2, 1),
    "pow": lambda d: torch.arange(3, device=d) ** -1,
    "bool of many": lambda d: bool(ones(2, device=d)),
    "int of many": lambda d: int(ones(2, device=d)),
    "len of a number": lambda d: len(ones(device=d)),
    "iterating a number": lambda d: list(ones(device=d)),
}

MEMORY = {
    "add_ to an expanded": lambda d: ones(1, device=d).expand(3).add_(1),
    "copy_ to an expanded": lambda d: ones(1, device=d).expand(3).copy_(ones(3, device=d)),
    "index_put_ to an expanded": lambda d: (
        ones(1, device=d).expand(3).index_put_((ints(0, device=d),), ones(1, device=d))
    ),
    "scatter_ to an expanded": lambda d: ones(1, device=d).expand(3).scatter_(0, ints(0, device=d), 2.0),
    "index_add_ to an expanded": lambda d: (
        ones(1, device=d).expand(3).index_add_(0, ints(0, device=d), ones(1, device=d))
    ),
    "masked_fill_ of an expanded": lambda d: ones(1, device=d).expand(3).masked_fill_(ones(3, device=d).bool(), 2.0),
    "out= expanded": lambda d: torch.add(ones(3, device=d), 1, out=torch.empty(1, device=d).expand(3)),
    "add, out=": overlapping(lambda a, b: torch.add(a, 1, out=b)),
    "exp, out=": overlapping(lambda a, b: torch.exp(a, out=b)),
    "add_": overlapping(lambda a, b: a.add_(b)),
    "mul_": overlapping(lambda a, b: a.mul_(b)),
    "copy_": overlapping(lambda a, b: a.copy_(b)),
    "where, out=": overlapping(lambda a, b: torch.where(a > 0, a, 1.0, out=b)),
    "gather, out=": overlapping(lambda a, b: torch.gather(a, 0, torch.zeros_like(a, dtype=torch.long), out=b)),
    "index_select, out=": overlapping(lambda a, b: torch.index_select(a, 0, torch.arange(4, device=a.device), out=b)),
    "scatter_ of itself": overlapping(lambda a, b: a.scatter_(0, torch.zeros_like(a, dtype=torch.long), b)),
    "take, out=": overlapping(lambda a, b: torch.take(a, torch.arange(4, device=a.device), out=b)),
    "set_ beyond": lambda d: torch.empty(0, device=d).set_(ones(2, device=d).untyped_storage(), 9, (-1,), (1,)),
    "resize_ of gradients": leaf(lambda x: x.resize_(2)),
}

GRADIENTS = {
    "in place on a leaf": leaf(lambda x: x.add_(1)),
    "a view of a leaf": leaf(lambda x: x[0].zero_()),
    "backward of many": leaf(lambda x: (x * 2).backward()),
    "backward of nothing": lambda d: ones(device=d).backward(),
    "backward twice": leaf(twice),
    "changed after use": leaf(changed_after_use),
    "no way from there": leaf(
        lambda x: torch.autograd.grad(x.exp().sum(), torch.ones(1, device=x.device).requires_grad_())
    ),
    "gradient of another shape": leaf(lambda x: setattr(x, "grad", ones(3, device=x.device))),
    "gradient of another dtype": leaf(lambda x: setattr(x, "grad", ones(4, device=x.device, dtype=torch.float64))),
    "numpy": leaf(lambda x: x.cpu().numpy()),
    "deepcopy": leaf(lambda x: __import__("copy").deepcopy(x * 2)),
    "leaf in a no_grad view": leaf(
        lambda x: x.detach().requires_grad_().sum().backward(torch.ones(2, device=x.device))
    ),
}

ALL = {
    f"{kind}: {name}": f
    for kind, table in (
        ("shape", SHAPES), ("dtype", DTYPES), ("argument", ARGUMENTS), ("memory", MEMORY), ("gradient", GRADIENTS),
    )
    for name, f in table.items()
}  # fmt: skip


# The class is PyTorch's, the words say the same.
OWN_WORDS = {
    "shape: masked_scatter": r"The size of tensor a \(4\) must match the size of tensor b \(3\)",
    "dtype: conv2d": r"Input type \(float\) and weight type \(double\) should be the same",
    "dtype: complex floor": "not implemented for 'ComplexFloat'",
    "argument: randperm": "n must be non-negative, got-1",
    "argument: resize_": r"negative dimension -1: \[-1\]",
    "gradient: changed after use": r"\[tpuFloatType \[4\]\], which is output 0 of Add, is at version 1; expected",
}
# What the CPU lets pass: the error, and why.
STRICTER = {
    "memory: index_put_ to an expanded": "more than one element of the written-to tensor",  # deprecated: it warns
    "memory: masked_fill_ of an expanded": "more than one element of the written-to tensor",  # deprecated: it warns
}


def failure(function, device):
    """(class, text): without names of devices and of kernels."""
    with pytest.raises(Exception) as caught:
        function(device)
    text = str(caught.value).replace("tpu:0", "cpu")
    return caught.type, re.sub(r'^"\w+" not implemented', "not implemented", text)


@pytest.mark.parametrize("mode", ["DEFER_AND_FUSE", "DEFER_NEVER_AND_LAUNCH_BLOCKING"])
@pytest.mark.parametrize("name", ALL)
def test_as_on_the_cpu(name, mode):
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode[mode]), torch.tpu.cpu_fallback("error"):
        pending = torch.arange(5.0, device="tpu") * 2
        kind, text = failure(ALL[name], "tpu")
        if name in STRICTER:
            ALL[name]("cpu")
            assert kind is RuntimeError and STRICTER[name] in text
        else:
            wanted = failure(ALL[name], "cpu")
            assert kind is wanted[0]
            if name in OWN_WORDS:
                assert re.search(OWN_WORDS[name], text) and text != wanted[1]
            else:
                assert text == wanted[1]
        assert (pending + 1).tolist() == [1, 3, 5, 7, 9]


def test_what_the_cpu_refuses_and_is_harmless_here():
    """The functional form computes and its result is stored: no element is overwritten before it is read."""
    x = torch.arange(6.0, device="tpu")
    torch.cat([x[1:3], x[3:5]], out=x[:4])
    assert x.tolist() == [1, 2, 3, 4, 4, 5]


def test_dropout_of_integers():
    with pytest.raises(NotImplementedError, match="\"native_dropout\" not implemented for 'Long'"):
        F.dropout(torch.arange(3, device="tpu"), 0.5, True)


# --- devices

TWO = "Expected all tensors to be on the same device, but found at least two devices, "


def host(*shape):
    return torch.ones(shape)


def device(*shape):
    return torch.ones(shape, device="tpu")


@pytest.mark.parametrize(
    "function",
    [
        lambda: host(2) + device(2),
        lambda: device(2) + host(2),
        lambda: device(2).add_(host(2)),
        lambda: host(2).add_(device(2)),
        lambda: torch.cat([device(2), host(2)]),
        lambda: torch.stack([host(2), device(2)]),
        lambda: device(2, 2) @ host(2, 2),
        lambda: host(2, 2) @ device(2, 2),
        lambda: torch.addmm(host(2), device(2, 2), device(2, 2)),
        lambda: nn.Linear(2, 2).to("tpu")(host(1, 2)),
        lambda: nn.Linear(2, 2)(device(1, 2)),
        lambda: nn.Embedding(3, 2).to("tpu")(torch.tensor([1])),
        lambda: F.conv2d(device(1, 1, 2, 2), host(1, 1, 1, 1)),
        lambda: F.layer_norm(device(2, 3), (3,), host(3)),
        lambda: F.batch_norm(device(2, 3), host(3), host(3), training=True),
        lambda: F.cross_entropy(device(2, 3), torch.tensor([0, 1])),
        lambda: F.scaled_dot_product_attention(device(1, 2, 4), host(1, 2, 4), device(1, 2, 4)),
        lambda: torch.where(device(2) > 0, device(2), host(2)),
        lambda: device(2).gather(0, torch.tensor([1])),
        lambda: device(2).scatter(0, torch.tensor([1]), 1.0),
        lambda: device(2).index_select(0, torch.tensor([1])),
        lambda: device(2).masked_fill(host(2) > 0, 1.0),
        lambda: device(2).index_put_((torch.tensor([1]),), host(1).expand(2)),
        lambda: host(2)[torch.tensor([1], device="tpu")],
        lambda: torch.add(device(2), 1, out=host(2)),
        lambda: torch.add(host(2), 1, out=device(2)),
        lambda: torch.sum(device(2), 0, out=host()),
        lambda: torch.max(device(2), 0, out=(device(), torch.zeros((), dtype=torch.long))),
        lambda: torch._foreach_add([device(2)], [host(2)]),
        lambda: torch._foreach_mul_([host(2)], [device(2)]),
        lambda: torch.bucketize(device(2), host(2)),
        lambda: torch.lerp(device(2), host(2), 0.5),
        lambda: nn.LSTM(2, 2).to("tpu")(host(1, 1, 2)),
    ],
)
def test_devices_must_agree(function):
    pending = device(3) * 2
    with pytest.raises(RuntimeError) as caught:
        function()
    text = str(caught.value)
    assert "tpu" in text and "cpu" in text and "device" in text, text
    assert pending.tolist() == [2, 2, 2]


@pytest.mark.parametrize("wrong", ["tpu:1", "tpu:99", "tpu:127"])
def test_devices_that_are_not_there(wrong):
    if torch.tpu.device_count() > 1 and wrong == "tpu:1":
        pytest.skip("there are two devices")
    x, state = device(3) * 2, torch.tpu.get_rng_state()
    tpu = torch.tpu
    for function in (
        lambda: torch.ones(1, device=wrong), lambda: x.to(wrong), lambda: host(1).to(wrong),
        lambda: nn.Linear(1, 1).to(wrong),
        lambda: x.new_ones(2, device=wrong), lambda: torch.Generator(wrong), lambda: tpu.Stream(wrong),
        lambda: tpu.set_device(wrong), lambda: tpu.synchronize(wrong), lambda: tpu.device(wrong).__enter__(),
        lambda: tpu.get_device_properties(wrong), lambda: tpu.get_device_name(wrong), lambda: tpu.mem_get_info(wrong),
        lambda: tpu.memory_allocated(wrong), lambda: tpu.memory_stats(wrong),
        lambda: tpu.reset_peak_memory_stats(wrong),
        lambda: tpu.get_rng_state(wrong), lambda: tpu.set_rng_state(state, wrong), lambda: tpu.seed(wrong),
        lambda: tpu.initial_seed(wrong),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="invalid device ordinal|does not exist"):
            function()
    assert x.tolist() == [2, 2, 2] and torch.tpu.current_device() == 0
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        torch.ones(1, device="tpux")


def test_generators_of_other_devices():
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        torch.rand(2, device="tpu", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator|cpu and tpu:0"):
        torch.rand(2, generator=torch.Generator("tpu"))


# --- memory


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (torch.OutOfMemoryError, lambda: (torch.arange(1 << 44, device="tpu") + 1)[3].item()),
        (torch.OutOfMemoryError, lambda: torch.rand(1 << 44, device="tpu")[0].item()),
        (torch.OutOfMemoryError, lambda: device(3).expand(1 << 22, 1 << 20, 3).contiguous().exp()[0, 0].tolist()),
        (torch.OutOfMemoryError, lambda: torch.empty(1 << 44, device="tpu").fill_(2)[1].item()),
        (RuntimeError, lambda: torch.empty(1 << 62, 4, device="tpu")),
        (RuntimeError, lambda: device(2).expand(1 << 62, 2).contiguous()),
        (RuntimeError, lambda: device(2).repeat(1 << 62, 4)),
        (RuntimeError, lambda: torch.empty(1 << 44, device="tpu").cpu()),  # the host's
    ],
)
def test_more_than_there_is(kind, function):
    x = torch.arange(4.0, device="tpu")
    y = x * 2
    torch.tpu.synchronize()  # what one program makes fails together
    held = torch.tpu.memory_allocated()
    with pytest.raises(kind):
        function()
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.tpu.synchronize()  # tells of each program that failed late, even if a read did
    assert (y + x).tolist() == [0, 3, 6, 9]
    assert torch.tpu.memory_allocated() <= held + 1024
