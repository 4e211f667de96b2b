"""Embeddings, bags of them, segments and grid samplers against PyTorch's CPU kernels."""

import math

import pytest
import torch
from lower_harness import RowError, check, check_error, expected, lowered_for, run, text

pytestmark = pytest.mark.cpu

nan, inf = math.nan, math.inf
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PLATFORMS = ["cpu", "tpu"]


def make(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
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


I32 = torch.int32


def test_embedding():
    for dtype in DTYPES:
        w = make(7, 5, dtype=dtype)
        check("embedding", w, ints(2, 3, high=7))
    w = make(5, 7).t()
    check("embedding", w, ints(3, 2, high=7).t(), 2, True)
    check("embedding", w, ints(3, high=7, dtype=I32))
    check("embedding", w, torch.tensor(3))
    check("embedding", w, torch.zeros(0, 2, dtype=torch.int64))
    check_error("embedding", w, make(2))
    check_error("embedding", make(3), L(0))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_embedding_backward(platform):
    with lowered_for(platform):
        index = ints(4, 6, high=7)
        for dtype in DTYPES:
            for padding, by_frequency in ((-1, False), (3, False), (-1, True), (3, True)):
                grad = make(4, 6, 5, dtype=dtype)
                # CPU accumulates 16-bit floats in their own precision
                want = [
                    expected("embedding_dense_backward", grad.double(), index, 7, padding, by_frequency)[0].to(dtype)
                ]
                tight = dict(rtol=1e-5, atol=1e-5) if dtype == torch.float32 else {}
                check("embedding_dense_backward", grad, index, 7, padding, by_frequency, want=want, **tight)
        check("embedding_dense_backward", make(3, 5), ints(3, high=7, dtype=I32), 7, -1, False)
        check("embedding_dense_backward", make(0, 5), torch.zeros(0, dtype=torch.int64), 7, -1, False)
    check_error("embedding_dense_backward", make(2, 4), make(2), 3, -1, False)


def test_embedding_backward_forms():
    args = make(64, 8), ints(64, high=16), 16, -1, False
    assert "scatter" in text("embedding_dense_backward", *args)
    with lowered_for("tpu"):
        assert "dot_general" in text("embedding_dense_backward", *args)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, inf])
def test_embedding_renorm(p):
    w = make(6, 5) * 2
    check("embedding_renorm", w, L(0, 3, 3, 5), 1.5, p, rtol=1e-5)
    check("embedding_renorm", make(5, 6).t(), ints(2, 3, high=6), 0.7, p, rtol=1e-5)


OFFSETS = [L(0, 2, 2, 4), L(0), L(0, 0, 0, 8)]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 1])
@pytest.mark.parametrize("include_last", [False, True])
def test_embedding_bag(mode, padding, include_last, platform):
    w, index = make(5, 3), L(1, 1, 4, 0, 2, 3, 1, 4)
    for offsets in OFFSETS if platform == "cpu" else OFFSETS[:1]:
        first = offsets is OFFSETS[0]
        if include_last:
            offsets = torch.cat([offsets, L(8)])
        for weights in (None, make(8, seed=7)) if mode == 0 else (None,):
            args = w, index, offsets, False, mode, False, weights, include_last, padding
            want = expected("_embedding_bag", *args)
            with lowered_for(platform):
                got = run("_embedding_bag", *args)
                only = run("_embedding_bag_forward_only", *args) if first else got
            torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)
            assert torch.equal(got[0], only[0])
            assert got[1].shape == (8,) and got[2].shape == offsets.shape
            if mode:
                assert torch.equal(got[1], want[1])
                assert torch.equal(got[2][: want[2].numel()], want[2])
            if mode == 2:
                assert torch.equal(got[3], want[3])
            meta = torch.ops.aten._embedding_bag(*[a.to("meta") if isinstance(a, torch.Tensor) else a for a in args])
            assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in meta]
            grad = make(*want[0].shape, seed=8)
            for by_frequency in (False, True) if mode < 2 and first else (False,):
                tail = 5, by_frequency, mode
                ref = torch.ops.aten._embedding_bag_backward(
                    grad, index, offsets, *want[1:], 5, False, mode, False, weights, padding
                )
                if by_frequency:  # CPU divides by the counts of other indices
                    ref = ref / torch.bincount(index, minlength=5)[:, None]
                with lowered_for(platform):
                    a = run("_embedding_bag_backward", grad, index, offsets, *got[1:], *tail, False, weights, padding)
                    b = (
                        run("_embedding_bag_dense_backward", grad, index, *got[1:], *tail, weights, padding)
                        if first
                        else a
                    )
                torch.testing.assert_close(a, ref, rtol=1e-5, atol=1e-5)
                assert torch.equal(a, b)
            if weights is not None:
                a = run("_embedding_bag_per_sample_weights_backward", grad, w, index, offsets, got[1], mode, padding)
                ref = torch.ops.aten._embedding_bag_per_sample_weights_backward(
                    grad, w, index, offsets, got[1], mode, padding
                )
                torch.testing.assert_close(a, ref, rtol=1e-5, atol=1e-5)


def test_embedding_bag_more():
    none = torch.zeros(0, dtype=torch.int64)
    for dtype in DTYPES:
        w = make(5, 3, dtype=dtype)
        for mode in (0, 1, 2):
            got = run("_embedding_bag", w, L(1, 2, 2), L(0, 2), False, mode)
            tolerance = {} if dtype.itemsize > 2 else dict(rtol=2e-2, atol=1e-3)
            want = expected("_embedding_bag", w, L(1, 2, 2), L(0, 2), False, mode)[0]
            torch.testing.assert_close(got[0], want, **tolerance)
    for mode in (0, 1, 2):
        assert torch.equal(run("_embedding_bag", make(5, 3), none, L(0, 0), False, mode)[0], torch.zeros(2, 3))
        assert run("_embedding_bag", make(5, 3), L(1), none, False, mode)[0].shape == (0, 3)
        args = none, torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64) if mode == 2 else none
        zero = run("_embedding_bag_dense_backward", make(2, 3), none, *args, 5, False, mode, None)
        assert torch.equal(zero, torch.zeros(5, 3))
    got = run("_embedding_bag", make(5, 3), L(1, 2, dtype=I32), L(0, 1))
    assert got[1].dtype == got[2].dtype == I32
    with pytest.raises(RowError, match="2D"):
        run("_embedding_bag_dense_backward", make(2), L(0, 1), L(0, 1), L(1, 1), none, 5, False, 0, None)
    args = make(5, 3), L(0, 1), L(0, 1)
    check_error("_embedding_bag", make(5, 3), make(2), L(0))
    check_error("_embedding_bag", make(5, 3), L(0, 1), ints(2, 2, high=1))
    check_error("_embedding_bag", *args, False, 1, False, make(2))
    check_error("_embedding_bag", *args, False, 0, False, make(2).double())
    check_error("_embedding_bag", make(5, 3), L(0), torch.zeros(0, dtype=torch.int64), False, 0, False, None, True)


# ------------------------------------------------------------------------------------------------ segments


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 1.5])
def test_segment_reduce(reduce, initial):
    data, lengths = make(6, 3), L(2, 0, 3, 1)
    offsets = torch.cat([L(0), lengths.cumsum(0)])
    data[1, 1] = nan
    data[3, 0] = data[4, 2] = 0.0
    data[2, 0] = 0.0
    batched, batch_lengths = make(2, 5, 3), L([2, 3, 0], [0, 1, 4])
    for kind, x, bounds, axis in (
        ("lengths", data, lengths, 0),
        ("offsets", data, offsets, 0),
        ("lengths", make(6), lengths.int(), 0),
        ("lengths", batched, batch_lengths, 1),
    ):
        kwargs = {kind: bounds, "axis": axis}
        out = check("segment_reduce", x, reduce, initial=initial, rtol=1e-5, unsafe=False, **kwargs)[0]
        grad = make(*out.shape, seed=9)
        check("_segment_reduce_backward", grad, out, x, reduce, initial=initial, rtol=1e-4, **kwargs)


def test_segment_reduce_more():
    for dtype in DTYPES[1:4]:
        check_sum("segment_reduce", make(6, 3, dtype=dtype), "sum", lengths=L(2, 4))
    check("segment_reduce", make(0, 3), "sum", lengths=L(0, 0))
    check_error("segment_reduce", make(3, 4), "sum")


# ------------------------------------------------------------------------------------------------ grid samplers


def grid_for(*shape, seed=3, scale=1.4):
    g = make(*shape, seed=seed).tanh() * scale
    g.view(-1)[:4] = torch.tensor([-1.0, 1.0, 0.0, -1.0])
    return g


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_grid_sampler_2d(mode, padding, align):
    x, grid = make(2, 3, 5, 4), grid_for(2, 3, 6, 2)
    tight = dict(rtol=1e-4, atol=2e-5)
    out = check("grid_sampler_2d", x, grid, mode, padding, align, **tight)[0]
    check("grid_sampler_2d", x.to(memory_format=torch.channels_last), grid, mode, padding, align, **tight)
    grad = make(*out.shape, seed=5)
    for mask in ([True, True], [False, True], [True, False]):
        if mask == [True, False] or mode == 0:
            want = list(torch.ops.aten.grid_sampler_2d_backward(grad, x, grid, mode, padding, align, mask))
            want = [w if m else None for w, m in zip(want, mask, strict=True)]
            check(
                "grid_sampler_2d_backward", grad, x, grid, mode, padding, align, mask, want=want, rtol=1e-3, atol=1e-4
            )
    check("grid_sampler_2d_backward", grad, x, grid, mode, padding, align, [True, True], rtol=1e-3, atol=1e-4)
    check("grid_sampler_2d", make(1, 1, 1, 1), grid_for(1, 2, 2, 2), mode, padding, align, **tight)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1])
def test_grid_sampler_3d(mode, padding, align):
    x, grid = make(2, 3, 5, 4, 3), grid_for(2, 2, 3, 4, 3)
    out = check("grid_sampler_3d", x, grid, mode, padding, align, rtol=1e-4, atol=2e-5)[0]
    grad = make(*out.shape, seed=5)
    check("grid_sampler_3d_backward", grad, x, grid, mode, padding, align, [True, True], rtol=1e-3, atol=1e-4)


def test_grid_sampler_errors():
    x = make(1, 2, 3, 4)
    check_error("grid_sampler_2d", x, make(1, 3, 3, 3), 0, 0, False)
    check_error("grid_sampler_2d", x, make(2, 3, 3, 2), 0, 0, False)
    check_error("grid_sampler_2d", x, make(1, 3, 3, 2).double(), 0, 0, False)
    check_error("grid_sampler_2d", make(1, 2, 0, 4), make(1, 3, 3, 2), 0, 0, False)
    check_error("grid_sampler_3d", make(1, 2, 3, 4, 5), make(1, 2, 3, 3, 3), 2, 0, False)
