"""Indexing, gather and scatter against PyTorch's CPU kernels."""

import math

import pytest
import torch
from lower_harness import RowError, check, check_error, expected, run, text, zero_dim

pytestmark = pytest.mark.cpu

nan, inf = math.nan, math.inf
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def make(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0 if dtype == torch.uint8 else -9, 9, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g).to(dtype)


def ints(*shape, high, low=0, seed=1, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def L(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def check_sum(name, *args, **kwargs):
    """As check; 16-bit floats against float32 arithmetic rounded once, as here: CPU rounds at each step."""
    dtype = args[0].dtype
    if dtype.itemsize == 2 and dtype.is_floating_point:
        wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype == dtype else a for a in args]
        wanted = {k: v for k, v in kwargs.items() if k not in ("rtol", "atol")}
        kwargs["want"] = [w.to(dtype) for w in expected(name, *wide, **wanted)]
    return check(name, *args, **kwargs)


X = make(5, 4, 3)
P = make(4, 3, 5).permute(2, 0, 1)  # [5, 4, 3], not contiguous
I32 = torch.int32

INDEX = [
    [L(0, 4, 2)],
    [L(-1, 0, -5, 3, 3)],
    [L(1, 3, dtype=I32)],
    [None, L(0, -1)],
    [None, None, L(2, 0, 1, 1)],
    [L(0, 1, 2), L(3, 3, -1)],
    [L(0, 1), None, L(2, -1)],  # separated: the block comes first
    [None, L(0, 3), L(1, 2)],
    [L(0, 1)[:, None], L(3, 2, 1)],  # broadcast
    [ints(2, 3, high=5), None, ints(2, 1, high=3)],
    [ints(2, 3, high=5).t()],
    [torch.tensor(2)],
    [L(2)],
    [None, L(-2)],
    [torch.tensor(1), torch.tensor(-1), torch.tensor(0)],
    [L(0, 1, 2), L(1, 2, 3), L(0, 1, 2)],
    [torch.zeros(0, dtype=torch.int64)],
    [None, torch.zeros(2, 0, dtype=torch.int64)],
    [L(0, 1, dtype=I32), L(2, 3)],
]


@pytest.mark.parametrize("indices", INDEX, ids=range(len(INDEX)))
@pytest.mark.parametrize("x", [X, P], ids=["dense", "permuted"])
def test_index(x, indices):
    check("index.Tensor", x, indices)


def test_index_types():
    for dtype in DTYPES:
        check("index.Tensor", make(4, 3, dtype=dtype), [L(3, 0, 3)])
    check("_unsafe_index.Tensor", P, [None, L(0, 2)])
    check("index.Tensor", torch.empty(0, 3), [None, L(0, 2)])
    check("index.Tensor", torch.empty(3, 0), [L(0, 2)])
    check("index.Tensor", make(2, 3, 4, 5).to(memory_format=torch.channels_last), [L(0, 1, 1)])


def test_index_errors():
    check_error("index.Tensor", X, [make(2)])
    check_error("index.Tensor", X, [L(0, 1), L(0, 1, 2)])
    check_error("index.Tensor", X, [L(0), L(0), L(0), L(0)])
    check_error("index.Tensor", X, [L(0, dtype=torch.int16)])
    check_error("index.Tensor", X, [])
    check_error("index.Tensor", torch.empty(0, 3), [L(0, 1)])
    check_error("index.Tensor", X, [torch.ones(3, dtype=torch.bool)])
    with pytest.raises(RowError) as e:
        run("index.Tensor", X, [X[:, 0, 0] > 0])
    assert e.value.kind is NotImplementedError


@pytest.mark.parametrize("indices", INDEX, ids=range(len(INDEX)))
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(indices, accumulate):
    shape = X[tuple(slice(None) if i is None else i.long() for i in indices)].shape
    values = make(*shape, seed=3)
    if not accumulate:  # positions may repeat: equal values then
        values = torch.full(shape, 7.0)
    check("index_put", X, indices, values, accumulate)
    check("_index_put_impl", P, indices, make(*shape[-1:]) if accumulate and shape else torch.tensor(2.5), accumulate)


def test_index_put_values():
    check("index_put", X, [L(1, 3)], make(2, 4, 3))
    check("index_put", X, [L(1, 3)], make(4, 3))
    check("index_put", X, [L(1, 3)], make(2, 1, 3))
    check("index_put", X, [L(1, 3)], zero_dim(torch.tensor(2.0)))
    check("index_put", X, [L(1, 3)], 2.0, want=[X.index_put((L(1, 3),), torch.tensor(2.0))])
    check("_unsafe_index_put", X, [None, L(0)], make(5, 1, 3))
    check("index_put", X, [None, L(-1)], make(5, 1, 3))
    for dtype in DTYPES:
        x = make(6, 2, dtype=dtype)
        check_sum("index_put", x, [L(1, 1, 1, 4)], make(4, 2, dtype=dtype, seed=2), True)
        check("index_put", x, [L(2, 5)], make(2, 2, dtype=dtype, seed=2))
    check("index_put", torch.zeros(4), [L(0, 0, 0)], torch.tensor(1.0), True)


MASKS = [
    ([make(5, 4, 3, dtype=torch.bool)], torch.tensor(7.0)),
    ([make(5, 4, dtype=torch.bool)], make(3)),
    ([make(5, 4, dtype=torch.bool)], make(1, 3)),
    ([make(5, dtype=torch.bool)], make(4, 3)),
    ([make(5, dtype=torch.bool)], make(1, 1, 1)),
    ([None, make(4, dtype=torch.bool)], make(5, 1, 3)),
    ([None, make(4, 3, dtype=torch.bool)], make(5, 1)),
    ([None, None, make(3, dtype=torch.bool)], torch.tensor([2.0])),
    ([make(5, dtype=torch.uint8).clamp(max=1)], torch.tensor(1.0)),
]


@pytest.mark.parametrize("indices,values", MASKS, ids=range(len(MASKS)))
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_index_put_mask(indices, values, accumulate):
    if any(i is not None and i.dtype == torch.uint8 for i in indices) and not accumulate:
        return  # PyTorch takes its masked_fill there, which refuses bytes
    check("index_put", X, indices, values, accumulate)
    check("index_put", P, indices, values, accumulate)


def test_index_put_errors():
    check_error("index_put", X, [L(0, 1)], make(2, 4, 3).double())
    check_error("index_put", X, [L(0, 1)], make(3, 4, 3))
    check_error("index_put", X, [L(0, 1)], make(1, 2, 4, 3))
    check_error("index_put", X, [make(2)], make(1))
    check_error("index_put", X, [torch.ones(4, dtype=torch.bool)], make(1))
    with pytest.raises(RowError) as e:
        run("index_put", X, [X[:, 0, 0] > 0], make(2, 4, 3))
    assert e.value.kind is NotImplementedError


def test_outside_is_safe():
    """Positions outside give some element, or write nothing; they never fail or disturb others."""
    run("index.Tensor", X, [L(100, -100)])
    run("gather", X, 1, torch.full((5, 1, 3), 99))
    run("embedding", make(3, 2), L(7, -7))
    one = torch.ones(5, 1, 3)
    far = torch.full((5, 1, 3), 4)
    assert torch.equal(run("scatter.src", X, 1, far, one), X)
    assert torch.equal(run("scatter_add", X, 1, -far, one), X)
    assert torch.equal(run("index_add", X, 0, L(5, -1), torch.ones(2, 4, 3)), X)


# ------------------------------------------------------------------------------------------------ along one dim


@pytest.mark.parametrize(
    "index", [L(0, 2, 1), L(3), L(1, 1, dtype=I32), torch.tensor(2), torch.zeros(0, dtype=torch.int64)]
)
def test_index_select(index):
    for x in (X, P):
        check("index_select", x, 1, index)
    check("index_select", X, -2, index)


def test_index_select_more():
    check("index_select", torch.tensor(3.0), 0, L(0))
    check("index_select", make(3, 0), 0, L(1, 2))
    for dtype in DTYPES:
        check("index_select", make(3, 4, dtype=dtype), 1, L(3, 3, 0))
    check_error("index_select", X, 0, ints(2, 2, high=2))
    check_error("index_select", X, 0, make(2))
    check_error("index_select", X, 3, L(0))
    check_error("index_select", make(0, 3), 0, L(0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_add(dtype):
    x, source = make(5, 4, 3, dtype=dtype), make(5, 6, 3, dtype=dtype, seed=2)
    index = L(0, 2, 2, 3, 0, 2)
    check_sum("index_add", x, 1, index, source)
    if dtype != torch.bool:
        check_sum("index_add", x, 1, index, source, alpha=2)
    if dtype.is_floating_point:
        check_sum("index_add", x, 1, index.int(), source, alpha=-0.5)


def test_index_add_more():
    check("index_add", P, 1, L(1, 1), make(5, 2, 3))
    check("index_add", P, 0, L(2), make(1, 4, 3))
    check("index_add", torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(2.0))
    check("index_add", X, 1, torch.zeros(0, dtype=torch.int64), make(5, 0, 3))
    check_error("index_add", X, 0, L(0, 1), make(3, 4, 3))
    check_error("index_add", X, 0, ints(2, 2, high=2), make(3, 4, 3))
    check_error("index_add", X, 0, L(0, 1), make(2, 4, 3).double())
    check_error("index_add", X, 0, make(2), make(2, 4, 3))
    check_error("index_add", X, 0, L(0, 1), make(2, 5, 3))
    check_error("index_add", make(4), 0, torch.tensor(1), torch.tensor(2.0))


def test_index_copy():
    for dtype in DTYPES:
        check("index_copy", make(5, 4, 3, dtype=dtype), 1, L(3, 0), make(5, 2, 3, dtype=dtype, seed=2))
    check("index_copy", P, 1, L(3, 0), make(5, 2, 3))
    check("index_copy", P, 1, L(2), make(5, 1, 3))
    check("index_copy", make(4), 0, L(2), torch.tensor(9.0))
    check("index_copy", torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(2.0))
    check_error("index_copy", X, 0, L(0, 1), make(3, 4, 3))
    check_error("index_copy", X, 0, ints(2, 2, high=2), make(3, 4, 3))
    check_error("index_copy", X, 0, L(0, 1), make(2, 4, 3).double())
    check_error("index_copy", X, 0, L(0, 1).int(), make(2, 4, 3))
    check_error("index_copy", X, 0, L(0, 1), make(2, 5, 3))
    check_error("index_copy", X, 0, L(0, 1), torch.tensor(1.0))
    check_error("index_copy", X, 0, L(0, 1), make(2))


def test_index_copy_of_one_row_is_a_slice():
    program = text("index_copy", make(1, 8, 64, 16), 2, L(5), make(1, 8, 1, 16))
    assert "dynamic_update_slice" in program and "scatter" not in program


def test_index_fill():
    for dtype in DTYPES:
        check("index_fill.int_Scalar", make(5, 4, 3, dtype=dtype), 1, L(3, 0, -1), 1)
    for x in (X, P):
        check("index_fill.int_Scalar", x, 1, L(3, 0), 2.5)
        check("index_fill.int_Scalar", x, 0, L(-2), 2.5)
        check("index_fill.int_Tensor", x, -1, L(2, 2), torch.tensor(-1.0))
    check("index_fill.int_Tensor", X, 0, L(1), zero_dim(torch.tensor(4.0)))
    check("index_fill.int_Scalar", make(3, 4, dtype=torch.int64), 0, L(1, 2), 1.5)
    check("index_fill.int_Scalar", torch.tensor(1.0), 0, torch.tensor(0), 3)
    check("index_fill.int_Scalar", X, 0, torch.zeros(0, dtype=torch.int64), 3)
    check_error("index_fill.int_Scalar", X, 0, ints(2, 2, high=2), 1)
    check_error("index_fill.int_Scalar", X, 0, L(0).int(), 1)
    check_error("index_fill.int_Scalar", X, 0, L(0), 1j)
    check_error("index_fill.int_Tensor", X, 0, L(0), make(2))


REDUCTIONS = ["prod", "mean", "amax", "amin"]


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("include_self", [True, False])
def test_index_reduce(reduce, include_self):
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8):
        x, source = make(5, 4, 3, dtype=dtype), make(5, 6, 3, dtype=dtype, seed=2)
        check_sum("index_reduce", x, 1, L(0, 2, 2, 3, 0, 2), source, reduce, include_self=include_self)
    check("index_reduce", P, 0, L(1, 1), make(2, 4, 3), reduce, include_self=include_self)
    special = torch.tensor([[nan, 1.0, inf], [2.0, -inf, nan]])
    check("index_reduce", make(2, 3), 0, L(1, 1), special, reduce, include_self=include_self)
    check("index_reduce", torch.tensor(3.0), 0, L(0), torch.tensor(2.0), reduce, include_self=include_self)


def test_index_reduce_errors():
    check_error("index_reduce", X, 0, L(0, 1), make(2, 4, 3), "sum")
    check_error("index_reduce", X, 0, L(0, 1), make(2, 5, 3), "prod")
    check_error("index_reduce", X, 0, L(0, 1), make(2, 4, 3).double(), "prod")


# ------------------------------------------------------------------------------------------------ gather, scatter


def along(dim, size=6, rows=None, dtype=torch.int64):
    """An index for X along dim; other dims are smaller than X's by `rows`."""
    shape = list(X.shape)
    shape[dim] = size
    for d in rows or ():
        shape[d] -= 1
    return ints(*shape, high=X.shape[dim], dtype=dtype)


GATHERS = [
    (0, along(0)),
    (1, along(1)),
    (2, along(2)),
    (-1, along(2, 2)),
    (1, along(1, 3, rows=[0, 2])),
    (1, along(1, dtype=I32)),
    (1, ints(5, 2, 1, high=4).expand(5, 2, 3)),  # rows, by stride 0
    (1, ints(1, 2, 1, high=4).expand(5, 2, 3)),
    (0, ints(2, 1, 1, high=5).expand(2, 4, 2)),
    (0, ints(2, 4, 1, high=5).expand(2, 4, 3)),
    (2, ints(1, 4, 2, high=3).expand(5, 4, 2)),
    (1, ints(1, 2, 1, high=4)),
    (1, torch.zeros(5, 0, 3, dtype=torch.int64)),
    (1, along(1).permute(2, 1, 0).contiguous().permute(2, 1, 0)),
]


@pytest.mark.parametrize("dim,index", GATHERS, ids=range(len(GATHERS)))
def test_gather(dim, index):
    check("gather", X, dim, index)
    check("gather", P, dim, index)


def test_gather_more():
    for dtype in DTYPES:
        check("gather", make(4, 3, dtype=dtype), 0, ints(2, 3, high=4))
    check("gather", torch.tensor(2.0), 0, L(0, 0))
    check("gather", make(3), 0, torch.tensor(1))
    check("gather", torch.tensor(2.0), 0, torch.tensor(0))
    check_error("gather", make(3, 4), 0, L(0))
    check_error("gather", make(3, 4), 0, ints(2, 5, high=3))
    check_error("gather", make(3, 4), 0, make(2, 4))
    check_error("gather", make(3, 4), 2, ints(2, 4, high=3))


def unique(dim, index):
    """An index without repeated positions along dim, where it can be."""
    return torch.argsort(torch.rand(X.shape, generator=torch.Generator().manual_seed(5)), dim=dim)[
        : index.shape[0], : index.shape[1], : index.shape[2]
    ]


@pytest.mark.parametrize("dim,index", GATHERS, ids=range(len(GATHERS)))
def test_scatter(dim, index):
    src = make(*[n + 1 for n in index.shape], seed=4)
    check("scatter_add", P, dim, index, src)
    check("scatter.value", X, dim, index, 1.5)
    check("scatter.src", P, dim, unique(dim, index), make(5, 6, 6))
    check("scatter.reduce", X, dim, index, src, reduce="multiply", rtol=1e-5)


def test_scatter_more():
    for dtype in DTYPES:
        x, index, src = make(4, 3, dtype=dtype), ints(5, 3, high=4), make(5, 3, dtype=dtype, seed=2)
        check_sum("scatter_add", x, 0, index, src)
        check("scatter.value", x, 0, index, 1)
        check("scatter.src", x, 0, torch.argsort(make(4, 3), 0), make(4, 3, dtype=dtype, seed=5))
    for reduce in ("add", "multiply"):
        check("scatter.reduce", X, 1, along(1), make(5, 6, 3), reduce=reduce, rtol=1e-5)
        check("scatter.value_reduce", X, 1, along(1), 2, reduce=reduce)
        check("scatter.value_reduce", make(3, 2, dtype=torch.int64), 0, ints(2, 2, high=3), 3, reduce=reduce)
    check("scatter.src", torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(2.0))
    check("scatter_add", make(3), 0, torch.tensor(1), make(2))
    check("scatter.value", make(3, 4, dtype=torch.int64), 0, ints(2, 4, high=3), 1.5)
    check("scatter_add", torch.zeros(3), 0, torch.zeros(1000, dtype=torch.int64), torch.ones(1000))
    y, e = X, torch.zeros(0, dtype=torch.int64)
    check("scatter.src", y, 0, e, make(0))
    check_error("scatter.src", X, 0, ints(6, 4, 4, high=5), make(6, 4, 4))
    check_error("scatter.src", X, 0, ints(6, 4, 3, high=5), make(5, 4, 3))
    check_error("scatter.src", X, 0, ints(6, 4, high=5), make(6, 4, 3))
    check_error("scatter.src", X, 0, ints(2, 4, 3, high=5), make(2, 4, 3).double())
    check_error("scatter.src", X, 0, make(2, 4, 3), make(2, 4, 3))
    check_error("scatter.reduce", X, 0, ints(2, 4, 3, high=5), make(2, 4, 3), reduce="mean")


@pytest.mark.filterwarnings("ignore:scatter_reduce")
@pytest.mark.parametrize("reduce", ["sum", *REDUCTIONS])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce, include_self):
    kwargs = dict(include_self=include_self, rtol=1e-5)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool):
        src = make(5, 6, 3, dtype=dtype, seed=2)
        if dtype != torch.bool or reduce != "mean":
            check_sum(
                "scatter_reduce.two", make(5, 4, 3, dtype=dtype), 1, along(1), src, reduce, include_self=include_self
            )
    check("scatter_reduce.two", P, 0, along(0), make(6, 4, 3), reduce, **kwargs)
    check("scatter_reduce.two", P, 1, ints(5, 2, 1, high=4).expand(5, 2, 3), make(5, 2, 3), reduce, **kwargs)
    special = torch.tensor([[nan, 1.0, inf], [2.0, -inf, nan]])
    check("scatter_reduce.two", make(2, 3), 0, torch.zeros(2, 3, dtype=torch.int64), special, reduce, **kwargs)


def test_scatter_reduce_errors():
    check_error("scatter_reduce.two", X, 0, ints(2, 4, 3, high=5), make(2, 4, 3), "add")
    check_error("scatter_reduce.two", X, 0, ints(2, 4, 3, high=5), make(2, 4, 3).double(), "sum")


def test_take_put():
    for x in (X, P):
        check("take", x, ints(2, 3, high=60, low=-60))
        check("put", x, L(0, 59, -2), make(3))
        check("put", x, L(0, 59, 0, -60), make(2, 2), True)
    check("take", X, ints(2, 3, high=60).t())
    check("take", make(0), torch.zeros(0, 2, dtype=torch.int64))
    check("put", make(3), torch.tensor(1), torch.tensor([5.0]))
    check_error("take", X, make(2))
    check_error("take", make(0), L(0))
    check_error("put", X, L(0, 1), make(3))
    check_error("put", X, L(0, 1).int(), make(2))
    check_error("put", X, L(0, 1), make(2).double())
    check_error("put", make(0), L(0, 1), make(2))


# ------------------------------------------------------------------------------------------------ by counting


def test_masked_scatter():
    mask = make(5, 4, 3, dtype=torch.bool)
    for x in (X, P):
        check("masked_scatter", x, mask, make(60, seed=6))
        check("masked_scatter", x, make(4, 1, dtype=torch.bool), make(60, seed=6))
    check("masked_scatter", make(4, 3), make(5, 4, 3, dtype=torch.bool), make(8, 8))
    check("masked_scatter", X, torch.zeros(5, 4, 3, dtype=torch.bool), make(0))
    check("masked_scatter", make(3, dtype=torch.int8), L(1, 0, 1).bool(), make(2, dtype=torch.int8))
    check("masked_scatter_backward", X, mask, [60])
    check("masked_scatter_backward", X, mask, [40, 2])
    check("masked_scatter_backward", X, make(4, 1, dtype=torch.bool), [6, 10])
    check_error("masked_scatter", X, mask, make(60).double())
    check_error("masked_scatter", X, mask.float(), make(60))


@pytest.mark.parametrize("size", [0, 3, 40, 80])
def test_nonzero_static(size):
    x = X.clamp(min=0)
    check("nonzero_static", x, size=size)
    check("nonzero_static", x.permute(2, 0, 1), size=size, fill_value=7)
    check("nonzero_static", x > 0, size=size)


def test_nonzero_static_more():
    check("nonzero_static", torch.tensor([nan, 0.0, -0.0, inf]), size=3)
    check("nonzero_static", torch.zeros(3, 2), size=2)
    check_error("nonzero_static", X, size=-1)


def test_repeat_interleave():
    for dtype in (torch.int64, torch.int32):
        repeats = torch.tensor([2, 0, 3, 0, 1], dtype=dtype)
        check("repeat_interleave.Tensor", repeats, output_size=6)
    check("repeat_interleave.Tensor", torch.zeros(0, dtype=torch.int64), output_size=0)
    many = ints(4000, high=5)
    check("repeat_interleave.Tensor", many, output_size=int(many.sum()))
    check_error("repeat_interleave.Tensor", ints(2, 2, high=3), output_size=3)
