"""Normalisations and softmax against PyTorch's CPU kernels, forward and backward."""

import math

import pytest
import torch
from lower_harness import call, check, check_error, expected, lowered_for, run

pytestmark = pytest.mark.cpu

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *HALVES)
# Half results are rounded once on both sides; float32 sums differ in their order.
TOLERANCE = {
    torch.float32: (2e-5, 2e-5),
    torch.float64: (1e-10, 1e-10),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (3e-3, 3e-3),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def t(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def close(name, *args, dtype=torch.float32, **kwargs):
    rtol, atol = TOLERANCE[dtype]
    return check(name, *args, rtol=rtol, atol=atol, **kwargs)


def in_float32(name, *args, dtype):
    """What PyTorch's CPU gives for the same values in float32, rounded to dtype where a result is not a statistic."""
    wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype in HALVES else a for a in args]
    return [None if w is None else w for w in expected(name, *wide)]


def like_float32(name, *args, dtype, kept=(), **kwargs):
    """Results are of dtype (float32 at the positions in `kept`) and have float32's values, rounded."""
    rtol, atol = TOLERANCE[dtype]
    want = [
        None if w is None else w.to(torch.float32 if i in kept else dtype)
        for i, w in enumerate(in_float32(name, *args, dtype=dtype))
    ]
    return check(name, *args, rtol=rtol, atol=atol, want=want, **kwargs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(name, dtype):
    for shape, dim in (
        ((5, 7), 1),
        ((5, 40), -1),
        ((4, 300), 1),
        ((5, 33), 0),
        ((2, 33, 4), 1),
        ((7,), 0),
        ((3, 0), 1),
        ((2, 3, 4, 5), 2),
    ):
        x = t(*shape, dtype=dtype) * 4
        close(name, x, dim, False, dtype=dtype)
        y = expected(name, x, dim, False)[0]
        g = t(*shape, dtype=dtype)
        close(name + "_backward_data", g, y, dim, dtype, dtype=dtype)
    close(name, torch.tensor(2.0, dtype=dtype), 0, False, dtype=dtype)
    close(name + "_backward_data", *[torch.tensor(2.0, dtype=dtype)] * 2, 0, dtype, dtype=dtype)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax_special(name):
    inf, nan = math.inf, math.nan
    x = torch.tensor([[1.0, inf, 2], [-inf, -inf, -inf], [-inf, 0, 1], [nan, 0, 1], [1e30, -1e30, 0]])
    close(name, x, 1, False)
    close(name, x.repeat(1, 8), 1, False)
    close(name, x, 0, False)
    close(name, t(2, 4, 3, 3).to(memory_format=torch.channels_last), 1, False)
    half = t(4, 40, dtype=torch.float16)
    check(name, half, 1, True, want=expected(name, half.float(), 1, False), rtol=2e-5, atol=2e-5)
    y = expected(name, half.float(), 1, False)[0]
    want = [expected(name + "_backward_data", y, y, 1, torch.float32)[0].half()]
    check(name + "_backward_data", y, y, 1, torch.float16, want=want, rtol=3e-3, atol=1e-3)
    check_error(name, t(2, 3), 2, False)
    check_error(name, t(2, 3).long(), 1, False)


def test_safe_and_masked_softmax():
    inf = math.inf
    x = torch.tensor([[1.0, -inf, 2], [-inf, -inf, -inf], [-inf, 0, 1]])
    close("_safe_softmax", x, 1)
    close("_safe_softmax", x.repeat(1, 8), 1)
    close("_safe_softmax", x.half(), 1, torch.float32)
    for mask, mask_type in (
        (torch.rand(5, 5) > 0.6, 0),
        (torch.rand(2, 5) > 0.6, 1),
        (torch.rand(2, 3, 5, 5) > 0.6, 2),
    ):
        scores = t(2, 3, 5, 5)
        mask[..., 0] = False
        close("_masked_softmax", scores, mask, 3, mask_type)
    y = expected("_masked_softmax", scores, mask, 3, 2)[0]
    close("_masked_softmax_backward", t(2, 3, 5, 5), y, mask, 3)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
def test_layer_norm(dtype, weight_dtype):
    weight_dtype = weight_dtype or dtype
    if dtype == torch.float64 and weight_dtype != dtype:
        return
    for shape, normalized in (
        ((5, 8), (8,)),
        ((2, 3, 40), (40,)),
        ((2, 6, 5, 4), (5, 4)),
        ((3, 50), (3, 50)),
        ((0, 8), (8,)),
    ):
        x, g = t(*shape, dtype=dtype) * 2 + 1, t(*shape, dtype=dtype)
        weight, bias = t(*normalized, dtype=weight_dtype), t(*normalized, dtype=weight_dtype)
        for w, b in ((weight, bias), (None, None), (weight, None)):
            like_float32(
                "native_layer_norm", x, normalized, w, b, 1e-5, dtype=dtype, kept=(1, 2) if dtype in HALVES else ()
            )
        mean, rstd = expected("native_layer_norm", x.double(), normalized, None, None, 1e-5)[1:]
        stats = [s.to(torch.float64 if dtype == torch.float64 else torch.float32) for s in (mean, rstd)]
        args = [g.to(dtype), x, normalized, *stats, weight, bias]
        got, _ = call("native_layer_norm_backward", *args, [True] * 3)
        assert [r.dtype for r in got] == [dtype, weight_dtype, weight_dtype]
        wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
        want = expected("native_layer_norm_backward", *wide, [True] * 3)
        scale = max(1, math.sqrt(x.numel()))
        for r, w in zip(got, want, strict=True):
            rtol, atol = TOLERANCE[r.dtype if r.dtype in HALVES else dtype if dtype == torch.float64 else torch.float32]
            torch.testing.assert_close(r.double(), w, rtol=rtol, atol=atol * scale)
        only = run("native_layer_norm_backward", *args, [False, True, False])
        assert only[0] is None and only[2] is None and torch.equal(only[1], got[1])


def test_layer_norm_far_from_zero():
    x = t(4, 300) + 1000
    close("native_layer_norm", x, (300,), None, None, 1e-5, values=False)
    want = expected("native_layer_norm", x.double(), (300,), None, None, 1e-5)[0].float()
    torch.testing.assert_close(run("native_layer_norm", x, (300,), None, None, 1e-5)[0], want, rtol=1e-3, atol=1e-3)


def test_layer_norm_errors():
    check_error("native_layer_norm", t(2, 8), [], None, None, 1e-5)
    check_error("native_layer_norm", t(2, 8), [7], None, None, 1e-5)
    check_error("native_layer_norm", t(2, 8), [8], t(7), None, 1e-5)
    check_error("native_layer_norm", t(2, 8), [8], t(8), t(7), 1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(dtype):
    for shape, normalized in (((5, 8), (8,)), ((2, 3, 40), (40,)), ((2, 6, 5, 4), (5, 4))):
        x = (t(*shape, dtype=dtype) * 2).requires_grad_()
        weight = t(*normalized, dtype=dtype).requires_grad_()
        for w, eps in ((weight, 1e-5), (None, 1e-5), (weight, None)):
            y, rstd = run("_fused_rms_norm", x, normalized, w, eps)
            want = torch.rms_norm(
                x.double(),
                normalized,
                None if w is None else w.double(),
                eps or torch.finfo(torch.float32 if dtype in HALVES else dtype).eps,
            )
            rtol, atol = TOLERANCE[dtype]
            torch.testing.assert_close(y, want.to(dtype), rtol=rtol, atol=atol)
            assert y.dtype == dtype and rstd.dtype == (torch.float32 if dtype in HALVES else dtype)
            g = t(*shape, dtype=dtype)
            gx, gw = run("_fused_rms_norm_backward", g, x, normalized, rstd, w, [True, True])
            x64 = x.detach().double().requires_grad_()
            w64 = None if w is None else w.detach().double().requires_grad_()
            torch.rms_norm(x64, normalized, w64, eps or torch.finfo(rstd.dtype).eps).backward(g.double())
            torch.testing.assert_close(gx.double(), x64.grad, rtol=rtol, atol=atol * 8)
            assert (gw is None) == (w is None)
            if w is not None:
                torch.testing.assert_close(gw.double(), w64.grad, rtol=rtol, atol=atol * 20)


@pytest.mark.parametrize("dtype", FLOATS)
def test_group_norm(dtype):
    rtol, atol = TOLERANCE[dtype]
    for shape, groups in (((2, 6, 5, 4), 3), ((2, 4, 7), 1), ((3, 8), 4), ((2, 6, 2, 3, 4), 6), ((0, 6, 2), 3)):
        n, c = shape[:2]
        hw = math.prod(shape[2:])
        x, g, weight, bias = (
            t(*shape, dtype=dtype) * 2 + 1,
            t(*shape, dtype=dtype),
            t(c, dtype=dtype),
            t(c, dtype=dtype),
        )
        for w, b in ((weight, bias), (None, None), (weight, None), (None, bias))[: 4 if len(shape) == 4 else 2]:
            like_float32("native_group_norm", x, w, b, n, c, hw, groups, 1e-5, dtype=dtype)
        mean, rstd = expected("native_group_norm", x, None, None, n, c, hw, groups, 1e-5)[1:]
        args = [g, x, mean, rstd, weight, n, c, hw, groups]
        got, _ = call("native_group_norm_backward", *args, [True] * 3)
        want = expected(
            "native_group_norm_backward", *[a.double() if isinstance(a, torch.Tensor) else a for a in args], [True] * 3
        )
        for r, w in zip(got, want, strict=True):
            assert r.dtype == dtype
            torch.testing.assert_close(r.double(), w, rtol=rtol, atol=atol * max(1, math.sqrt(x.numel())))
    x = t(2, 6, 5, 4).to(memory_format=torch.channels_last)
    close("native_group_norm", x, t(6), t(6), 2, 6, 20, 3, 1e-5)
    check_error("native_group_norm", t(2, 6, 4), None, None, 2, 6, 4, 4, 1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, training):
    stats = torch.float32 if dtype in HALVES else dtype
    rtol, atol = TOLERANCE[dtype]
    for shape in ((4, 3), (5, 3, 7), (2, 3, 5, 4), (2, 3, 2, 3, 4), (2, 20, 6, 6)):
        c = shape[1]
        x, g, weight, bias = (
            t(*shape, dtype=dtype) * 2 + 1,
            t(*shape, dtype=dtype),
            t(c, dtype=stats),
            t(c, dtype=stats),
        )
        mean, var = t(c, dtype=stats), t(c, dtype=stats).abs() + 0.5
        for w, b in ((weight, bias), (None, None)):
            args = [x, w, b, mean, var, training, 0.1, 1e-5]
            wide = [a.to(stats) if isinstance(a, torch.Tensor) else a for a in args]
            want = expected("_native_batch_norm_legit_functional", *wide)
            got, _ = call("_native_batch_norm_legit_functional", *args)
            for i, (r, e) in enumerate(zip(got, want, strict=True)):
                assert r.dtype == (dtype if i == 0 else stats)
                if e.numel():
                    torch.testing.assert_close(r, e.to(r.dtype), rtol=rtol, atol=atol)
            plain = run("native_batch_norm", *args)
            assert all(torch.equal(r, e) for r, e in zip(plain, got[:3], strict=True))
        back = [g, x, weight, mean, var, *[s.to(stats) for s in (got[1], got[2])], training, 1e-5]
        grads, _ = call("native_batch_norm_backward", *back, [True] * 3)
        want = expected(
            "native_batch_norm_backward", *[a.double() if isinstance(a, torch.Tensor) else a for a in back], [True] * 3
        )
        for r, e, d in zip(grads, want, (dtype, stats, stats), strict=True):
            assert r.dtype == d
            torch.testing.assert_close(r.double(), e, rtol=rtol, atol=atol * math.sqrt(x.numel()))
        some = run("native_batch_norm_backward", *back, [False, False, True])
        assert some[0] is None and some[1] is None


def test_batch_norm_overloads():
    x, w, m, v = t(2, 3, 5, 4), t(3), t(3), t(3).abs()
    close("_native_batch_norm_legit.no_stats", x, w, w, True, 0.1, 1e-5)
    for name in ("_native_batch_norm_legit_no_training", "_batch_norm_no_update"):
        got = run(name, x, w, w, m, v, 0.1, 1e-5)
        torch.testing.assert_close(
            got[0], torch.batch_norm(x, w, w, m, v, False, 0.1, 1e-5, False), rtol=1e-5, atol=1e-5
        )
    close("_batch_norm_with_update_functional", x, w, w, m, v, 0.1, 1e-5)
    nhwc = x.to(memory_format=torch.channels_last)
    close("native_batch_norm", nhwc, w, w, None, None, True, 0.1, 1e-5)
    saved = expected("native_batch_norm", nhwc, w, w, None, None, True, 0.1, 1e-5)
    close("native_batch_norm_backward", t(2, 3, 5, 4), nhwc, w, None, None, saved[1], saved[2], True, 1e-5, [True] * 3)
    one = t(1, 3)
    got = run("_native_batch_norm_legit_functional", one, w, w, m, v, True, 0.1, 1e-5)
    want = expected("_native_batch_norm_legit_functional", one, w, w, m, v, True, 0.1, 1e-5)
    torch.testing.assert_close(got[0], want[0], equal_nan=True)
    empty = run("native_batch_norm", t(0, 3, 4), w, w, m, v, True, 0.1, 1e-5)
    assert empty[0].shape == (0, 3, 4)
    with lowered_for("tpu"):
        close("native_batch_norm", x, w, w, None, None, True, 0.1, 1e-5)


def test_synchronised_batch_norm():
    """The pieces, over two replicas, give what batch norm gives over both at once."""
    x, g, w, bias = t(4, 3, 5, 2), t(4, 3, 5, 2), t(3), t(3)
    y, mean, invstd = expected("native_batch_norm", x, w, bias, None, None, True, 0.1, 1e-5)
    got = run("batch_norm_stats", x, 1e-5)
    torch.testing.assert_close(got, [mean, invstd], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run("batch_norm_elemt", x, w, bias, mean, invstd, 1e-5), y, rtol=1e-5, atol=1e-5)
    halves = [(g[i : i + 2], x[i : i + 2]) for i in (0, 2)]
    sums = [run("batch_norm_backward_reduce", a, b, mean, invstd, w, True, True, True) for a, b in halves]
    total = [a + b for a, b in zip(*sums, strict=True)]
    want = expected("native_batch_norm_backward", g, x, w, None, None, mean, invstd, True, 1e-5, [True] * 3)
    count = torch.tensor([20, 20], dtype=torch.int32)
    parts = [run("batch_norm_backward_elemt", a, b, mean, invstd, w, total[0], total[1], count) for a, b in halves]
    torch.testing.assert_close(torch.cat(parts), want[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(total[2:], want[1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_weight_norm(dtype):
    for shape, dim in (((6, 3, 4), 0), ((6, 3, 40), 2), ((5, 7), 1), ((9,), 0)):
        dims = [n if d == dim else 1 for d, n in enumerate(shape)]
        v, g, gw = t(*shape, dtype=dtype), t(*dims, dtype=dtype), t(*shape, dtype=dtype)
        if dim not in (0, len(shape) - 1):
            continue
        w, norms = close("_weight_norm_interface", v, g, dim, dtype=dtype)
        close("_weight_norm_interface_backward", gw, v, g, norms, dim, dtype=dtype, strides=False)
