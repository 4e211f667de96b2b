"""Reductions, scans, order statistics, distances and losses against PyTorch's CPU kernels."""

import math

import pytest
import torch
from lower_harness import RowError, check, check_error, expected, run, text

pytestmark = pytest.mark.cpu

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
inf, nan = math.inf, math.nan


def make(*shape, dtype=torch.float32, seed=0, high=9):
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0 if dtype == torch.uint8 else -high, high, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g, dtype=torch.float32 if dtype.itemsize < 4 else dtype).to(dtype)


def strange():
    return torch.tensor([[1.0, nan, 3.0, 3.0], [inf, 2.0, inf, -inf], [-0.0, 0.0, -1.0, nan], [2.0, 2.0, 2.0, 2.0]])


def cases(*rows):
    return pytest.mark.parametrize(
        "name,args,kwargs", [(r[0], r[1:-1], r[-1]) if isinstance(r[-1], dict) else (r[0], r[1:], {}) for r in rows]
    )


X = make(3, 4, 5)
T = make(5, 3, 4).permute(1, 2, 0)
L = make(2, 3, 4, 5).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", FLOATS + INTS + [torch.bool, torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "count_nonzero"])
def test_whole(name, dtype):
    x = make(3, 4, dtype=dtype, high=3)
    check(name, x, rtol=2e-2 if dtype.itemsize == 2 and dtype.is_floating_point else None)
    check(name, x.t())
    check(name, make(dtype=dtype))
    check(name, make(0, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS + INTS + [torch.bool])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes(name, dtype):
    x = make(3, 4, 5, dtype=dtype, high=4)
    check(name, x)
    check("a" + name, x)
    check("a" + name, x, [0, -1], True)
    for dim in (0, 1, -1):
        check(name + ".dim", x, dim)
        check(name + ".dim", x.transpose(0, 2), dim, True)
        if dtype != torch.bool:
            check("arg" + name, x, dim)
    if dtype != torch.bool:
        check("arg" + name, x)
        check("arg" + name, x, None, True)


@cases(
    ("sum.dim_IntList", X, [1]),
    ("sum.dim_IntList", X, [-1, 0], True),
    ("sum.dim_IntList", X, None),
    ("sum.dim_IntList", X, []),
    ("sum.dim_IntList", T, [0]),
    ("sum.dim_IntList", L, [2, 3], True),
    ("sum.dim_IntList", make(3, 0, 2), [1]),
    ("sum.dim_IntList", make(3, 0, 2), [0], True),
    ("sum.dim_IntList", make(), [0]),
    ("sum.dim_IntList", make(), [-1], True),
    ("sum.dim_IntList", make(4, 5, dtype=torch.int32), [0], {"dtype": torch.int32}),
    ("sum.dim_IntList", make(4, 5, dtype=torch.int32), [0], {"dtype": torch.float32}),
    ("sum.dim_IntList", make(4, 5, dtype=torch.bfloat16), [0], {"dtype": torch.float32}),
    ("sum", make(4, 5, dtype=torch.bool)),
    ("sum", make(4, 5), {"dtype": torch.bool}),
    ("sum", strange()),
    ("sum", torch.full((70000,), 1.0, dtype=torch.float16)),
    ("sum", torch.full((5000,), 1.0, dtype=torch.bfloat16)),
    ("mean", X),
    ("mean", make(0)),
    ("mean", make(4, 5, dtype=torch.int32), {"dtype": torch.float32}),
    ("mean.dim", X, [0, 2]),
    ("mean.dim", X, None, True),
    ("mean.dim", L, [2, 3], True),
    ("mean.dim", make(2, 0), [1]),
    ("mean.dim", make(), [0]),
    ("mean.dim", make(4, 5, dtype=torch.float16), [1]),
    ("mean.dim", make(4, 5, dtype=torch.complex64), [1]),
    ("prod.dim_int", X, 1),
    ("prod.dim_int", make(2, 0), 1, True),
    ("prod.dim_int", make(3, 2, dtype=torch.bool), 0),
    ("prod.dim_int", make(), -1),
    ("nansum", strange()),
    ("nansum", strange(), [0], True),
    ("nansum", make(3, dtype=torch.int32)),
    ("nansum", make(3, 4, dtype=torch.float16), [1], {"dtype": torch.float32}),
    ("any.dim", strange(), 1),
    ("any.dim", make(3, 0), 1, True),
    ("any.dim", make(3, 4, dtype=torch.uint8, high=2), 1),
    ("any.dims", X, [0, 2], True),
    ("any.dims", X, None),
    ("any.dims", X, []),
    ("any.dims", make(3, dtype=torch.uint8), []),
    ("all.dim", make(3, 0), 1),
    ("all.dim", make(3, 4, dtype=torch.uint8, high=2), 0, True),
    ("all.dims", X, [0, 2]),
    ("all.dims", X, None, True),
    ("all.dims", X, []),
    ("any.dim", make(), 0),
    ("_is_all_true", make(3, dtype=torch.bool)),
    ("_is_any_true", make(3, dtype=torch.bool)),
    ("count_nonzero", strange(), 1),
    ("count_nonzero.dim_IntList", X, [0, 1]),
    ("trace", make(4, 4)),
    ("trace", make(3, 5)),
    ("trace", make(3, 5, dtype=torch.int32)),
    ("trace", make(5, 3).t()),
    ("trace", make(0, 3)),
    ("trace", make(3, 3, dtype=torch.complex64)),
)
def test_sums(name, args, kwargs):
    check(name, *args, **kwargs)


@cases(
    ("max", strange()),
    ("min", strange()),
    ("max", torch.tensor([1.0, 5.0, 2.0])),
    ("max.dim", strange(), 0),
    ("max.dim", strange(), 1, True),
    ("min.dim", strange(), 0),
    ("min.dim", strange(), 1),
    ("max.dim", make(), 0),
    ("max.dim", make(), -1, True),
    ("max.dim", make(0, 3), 1),
    ("max.dim", torch.full((3, 4), -inf), 1),
    ("min.dim", torch.full((3, 4), inf), 1),
    ("max.dim", torch.zeros(2, 70000), 1),
    ("argmax", strange()),
    ("argmax", strange(), 0),
    ("argmin", strange(), 1, True),
    ("argmin", strange()),
    ("argmax", make()),
    ("argmax", make(), 0, True),
    ("argmax", make(3, 1, 4).expand(3, 2, 4), 1),
    ("amax", strange(), [1]),
    ("amin", strange(), [0, 1]),
    ("amax", make(2, 3, dtype=torch.bool), [1]),
    ("amax", make(), []),
    ("amax", make(0, 3), [1]),
    ("aminmax", X),
    ("aminmax", X, {"dim": 1}),
    ("aminmax", X, {"dim": -1, "keepdim": True}),
    ("aminmax", make(4, dtype=torch.int32)),
    ("aminmax", strange()),
    ("_aminmax", X),
    ("_aminmax.dim", X, 0, True),
)
def test_extreme_values(name, args, kwargs):
    check(name, *args, **kwargs)


@pytest.mark.parametrize("dtype", FLOATS + [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_moments(name, dtype):
    name += ".correction"
    loose = {"rtol": 1e-2, "atol": 1e-2} if dtype in (torch.bfloat16, torch.float16) else {"rtol": 1e-5}
    x = make(3, 4, 5, dtype=dtype)
    check(name, x, **loose)
    check(name, x, [1], **loose)
    check(name, x, [0, -1], correction=0, keepdim=True, **loose)
    check(name, x.transpose(0, 1), None, correction=2.5, **loose)
    check(name, make(2, 1, dtype=dtype), [1])
    check(name, make(2, 0, dtype=dtype), [1])
    check(name, make(2, 3, dtype=dtype), [1], correction=3)
    check(name, make(2, 3, dtype=dtype), [1], correction=7)
    check(name, make(dtype=dtype))


def test_variance_of_large_mean():
    x = make(1000) + 1e4
    got = run("var.correction", x)
    assert abs(got.item() - x.double().var().item()) < 1e-3


@pytest.mark.parametrize("p", [2, 1, 0, 3, 0.5, -1, inf, -inf, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_norms(p, dtype):
    x = make(3, 4, 5, dtype=dtype)
    r = {"rtol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5}
    check("linalg_vector_norm", x, p, **r)
    check("linalg_vector_norm", x, p, [1], **r)
    check("linalg_vector_norm", x, p, [0, -1], True, **r)
    check("linalg_vector_norm", x.transpose(0, 2), p, [], **r)
    check("norm.Scalar", x, p, **r)
    check("norm.ScalarOpt_dim", x, p, [-1], **r)
    check("linalg_vector_norm", make(dtype=dtype), p, **r)
    check("linalg_vector_norm", make(3, 1, dtype=dtype), p, [1], **r)


@cases(
    ("linalg_vector_norm", make(3, 4, dtype=torch.bfloat16), 2, None, False, {"dtype": torch.float32}),
    ("linalg_vector_norm", make(3, 0), 2, [1]),
    ("linalg_vector_norm", make(0), 1),
    ("linalg_vector_norm", strange(), inf, [1]),
    ("linalg_vector_norm", strange(), 2, [1]),
    ("norm.ScalarOpt_dim_dtype", X.bfloat16(), 2, [0], True, {"dtype": torch.float32}),
    ("norm.ScalarOpt_dtype", X.bfloat16(), 2, {"dtype": torch.float32}),
    ("norm.ScalarOpt_dim", X, None, [0]),
    ("logsumexp", X, [1]),
    ("logsumexp", X, [0, 2], True),
    ("logsumexp", strange(), [1]),
    ("logsumexp", torch.full((2, 3), -inf), [1]),
    ("logsumexp", X * 1000, [0]),
    ("logsumexp", make(2, 0), [1]),
    ("logsumexp", make(), [0]),
    ("logsumexp", make(3, 4, dtype=torch.int64), [1]),
    ("logsumexp", make(3, 4, dtype=torch.float64), [1]),
    ("renorm", X, 2, 0, 1.0),
    ("renorm", X, 1.5, -1, 2),
    ("renorm", X, 1, 1, 100.0),
    ("linalg_vector_norm", torch.full((4,), 1e30), inf),
)
def test_norm_cases(name, args, kwargs):
    check(name, *args, rtol=1e-5, **kwargs)


@pytest.mark.parametrize("dtype", FLOATS + INTS)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_scans(name, dtype):
    # Halves are kept in float32 along the scan; PyTorch's CPU rounds each partial result.
    loose = {"rtol": 5e-2, "atol": 5e-2} if dtype in (torch.bfloat16, torch.float16) else {"rtol": 1e-4, "atol": 1e-5}
    x = make(3, 4, 5, dtype=dtype, high=3)
    for dim in (0, 1, -1):
        check(name, x, dim, **loose)
    check(name, x.transpose(0, 2), 1, **loose)
    check(name, make(dtype=dtype), 0)
    check(name, make(2, 0, dtype=dtype), 1)


@cases(
    ("cumsum", make(3, dtype=torch.bool), 0),
    ("cumsum", make(3, 300), 1),
    ("cumsum", make(1000), 0),
    ("cumsum", make(3, 4, dtype=torch.int32), 0, {"dtype": torch.int32}),
    ("cumsum", make(3, 4, dtype=torch.complex64), 0),
    ("cumprod", make(3, 4, dtype=torch.complex64), 1),
    ("cumsum", strange(), 1),
    ("cumprod", strange(), 0),
    ("cummax", strange(), 1),
    ("cummax", strange(), 0),
    ("cummin", strange(), 1),
    ("cummin", strange(), 0),
    ("cummax", torch.tensor([1.0, 1.0, 0.0, 1.0, nan, 5.0, nan, 2.0]), 0),
    ("cummax", make(3, dtype=torch.bool), 0),
    ("cummax", torch.full((5,), -inf), 0),
    ("logcumsumexp", X, 1),
    ("logcumsumexp", X.double() * 100, 2),
    ("_logcumsumexp", make(100), 0),
    ("logcumsumexp", strange(), 1),
    ("logcumsumexp", torch.full((5,), -inf), 0),
    ("logcumsumexp", torch.tensor([inf, 1.0, -inf, inf]), 0),
    ("logcumsumexp", make(), 0),
    ("logcumsumexp", make(3, 0), 1),
    ("logcumsumexp", make(7, dtype=torch.bfloat16), 0),
)
def test_scan_cases(name, args, kwargs):
    check(name, *args, rtol=2e-2 if args[0].dtype == torch.bfloat16 else 2e-5, atol=2e-5, **kwargs)


def check_order(name, x, *args):
    """Values as PyTorch's; indices may name any of equal elements."""
    values, indices = run(name, x, *args)
    want, _ = expected(name, x, *args)
    torch.testing.assert_close(values, want, equal_nan=True)
    assert indices.dtype == torch.int64 and indices.shape == want.shape
    keep = args[-1] is True
    dim = next(a for a in args[name == "kthvalue" :] if a is not True)
    if x.dim():
        picked = x.gather(dim, indices if keep else indices.unsqueeze(dim))
        torch.testing.assert_close(picked if keep else picked.squeeze(dim), want, equal_nan=True)
    else:
        assert indices.item() == 0


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_order_statistics(dtype):
    x = make(4, 5, 6, dtype=dtype, high=3)
    for name in ("median.dim", "nanmedian.dim", "mode"):
        check_order(name, x, 1)
        check_order(name, x, -1, True)
    check_order("kthvalue", x, 2, 0)
    check_order("kthvalue", x, 4, -1, True)
    check("median", x)
    check("nanmedian", x)
    check_order("median.dim", make(dtype=dtype), 0)
    check_order("mode", make(dtype=dtype), -1, True)
    check_order("kthvalue", make(dtype=dtype), 1, 0)


def test_order_statistics_of_nan():
    x = strange()
    for dim in (0, 1):
        check_order("median.dim", x, dim)
        check_order("nanmedian.dim", x, dim)
        check_order("kthvalue", x, 4, dim)
    for y in (
        x,
        x[1:2],
        torch.tensor([nan, nan]),
        torch.tensor([nan, 1.0, 2.0, 5.0]),
        torch.tensor([]),
        torch.tensor([2.0]),
    ):
        check("median", y)
        check("nanmedian", y)
    values, indices = run("median.dim", x, 1)
    assert indices[0] == 1 and indices[2] == 3
    values, indices = run("mode", torch.tensor([3, 1, 3, 1, 2, 1, 3]), 0)
    assert values == 1 and indices == 5


P, R = make(2, 6, 3), make(2, 4, 3, seed=1)


@pytest.mark.parametrize("p", [2.0, 1.0, 0.0, 3.0, 0.7, 1.5, inf])
def test_cdist(p):
    check("_cdist_forward", P, R, p, None, rtol=1e-5)
    check("_cdist_forward", make(30, 3), R[0], p, 0, rtol=1e-4, atol=1e-4)
    check("_cdist_forward", P[:, None], R[None], p, 2, rtol=1e-5)
    check("_cdist_forward", make(3, 0), make(2, 0), p, 2)
    dist = expected("_cdist_forward", P, R, p, 2)[0]
    check("_cdist_backward", make(2, 6, 4), P, R, p, dist, rtol=1e-4, atol=1e-5)
    same = P.clone()
    dist = expected("_cdist_forward", P, same, p, 2)[0]
    if p >= 1:
        check("_cdist_backward", make(2, 6, 6), P, same, p, dist, rtol=1e-4, atol=1e-5)
    x = make(5, 3)
    dist = expected("_pdist_forward", x, p)[0]
    check("_pdist_forward", x, p, rtol=1e-5)
    check("_pdist_forward", make(1, 3), p)
    check("_pdist_backward", make(10), x, p, dist, rtol=1e-4, atol=1e-5)


def test_euclidean():
    check("_euclidean_dist", P, R, rtol=1e-4, atol=1e-4)
    check("_cdist_forward", P, R, 2.0, 1, rtol=1e-4, atol=1e-4)
    check("_cdist_forward", P.double(), R.double(), 2.0, 1, rtol=1e-9)


@cases(
    ("max", make(0)),
    ("min", make(0, 3)),
    ("max.dim", make(0, 3), 0),
    ("max.dim", X, 3),
    ("min.dim", make(3, 0), -1),
    ("argmax", make(0, 3)),
    ("argmax", make(0, 3), 0),
    ("argmin", make(0, 3), -2),
    ("amax", make(0, 3)),
    ("amax", make(0, 3), [0]),
    ("amin", make(0, 3), [-2]),
    ("amax", X, [0, 0]),
    ("sum.dim_IntList", X, [0, 0]),
    ("sum.dim_IntList", X, [3]),
    ("sum.dim_IntList", make(), [1]),
    ("mean", make(3, dtype=torch.int64)),
    ("mean.dim", make(3, dtype=torch.int32), [0]),
    ("mean", X, {"dtype": torch.int64}),
    ("aminmax", make(0)),
    ("aminmax", make(0, 3), {"dim": 0}),
    ("var.correction", make(3, dtype=torch.int64)),
    ("std_mean.correction", make(3, dtype=torch.int64)),
    ("linalg_vector_norm", make(3, dtype=torch.int64)),
    ("linalg_vector_norm", make(0), inf),
    ("linalg_vector_norm", make(3, 0), -inf, [1]),
    ("linalg_vector_norm", make(3, 0), -1, [1]),
    ("linalg_vector_norm", X.double(), 2, None, False, {"dtype": torch.float32}),
    ("linalg_vector_norm", X, 2, None, False, {"dtype": torch.complex64}),
    ("renorm", make(3), 2, 0, 1.0),
    ("renorm", X, -1, 0, 1.0),
    ("cumsum", X, 3),
    ("trace", make(3)),
    ("kthvalue", X, 9, 0),
    ("kthvalue", make(0, 3), 1, 0),
    ("median.dim", make(0, 3), 0),
    ("mode", make(0, 3), 0),
    ("_cdist_forward", make(3, dtype=torch.float32), make(3), 2.0, None),
    ("_cdist_forward", make(3, 2, dtype=torch.int64), make(3, 2), 2.0, None),
    ("_cdist_forward", make(3, 2), make(3, 3), 2.0, None),
    ("logcumsumexp", make(3, dtype=torch.int64), 0),
)
def test_errors(name, args, kwargs):
    check_error(name, *args, **kwargs)


def test_nansum_of_complex():
    with pytest.raises(RowError, match="nansum does not support complex inputs"):
        run("nansum", make(3, dtype=torch.complex64))


def test_argmax_is_two_plain_reductions():
    program = text("argmax", make(8, 16), 1)
    assert program.count("stablehlo.reduce") == 2
