"""Rows of linear algebra against PyTorch's CPU kernels."""

import pytest
import torch
from lower_harness import check, check_error, expected, run
from test_rows_reduce import cases, make

pytestmark = pytest.mark.cpu

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
TOLERANCE = {torch.float32: 1e-4, torch.complex64: 1e-4, torch.float64: 1e-10, torch.complex128: 1e-10}


def close(dtype):
    return {"rtol": TOLERANCE[dtype] * 10, "atol": TOLERANCE[dtype]}


def positive(*shape, dtype):
    x = make(*shape, dtype=dtype)
    return x @ x.mH + torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype, upper):
    for shape in ((4, 4), (2, 3, 5, 5), (1, 1), (0, 0), (0, 3, 3)):
        x = positive(*shape, dtype=dtype)
        check("linalg_cholesky_ex", x, upper=upper, **close(dtype))
        if 0 not in shape:
            factor = expected("linalg_cholesky_ex", x, upper=upper)[0]
            check("_cholesky_solve_helper", make(*shape[:-1], 3, dtype=dtype), factor, upper, **close(dtype))
            check("cholesky_inverse", factor, upper, **close(dtype))
    one = positive(4, 4, dtype=dtype)
    check("linalg_cholesky_ex", one.tril() if not upper else one.triu(), upper=upper, **close(dtype))


def test_cholesky_of_indefinite():
    x = torch.eye(4).repeat(3, 1, 1)
    x[1, 2, 2] = -1
    x[2, 0, 0] = -1
    for upper in (False, True):
        factor, info = run("linalg_cholesky_ex", x, upper=upper)
        assert info.tolist() == [0, 3, 1]
    y = positive(5, 5, dtype=torch.complex64)
    y[3, 3] = -2
    assert run("linalg_cholesky_ex", y)[1].item() == expected("linalg_cholesky_ex", y)[1].item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_triangular(dtype, upper):
    x = make(2, 4, 4, dtype=dtype) + 4 * torch.eye(4, dtype=dtype)
    for unit in (False, True):
        a = x / 4 if unit else x
        check("linalg_solve_triangular", a, make(2, 4, 3, dtype=dtype), upper=upper, unitriangular=unit, **close(dtype))
        check(
            "linalg_solve_triangular",
            a,
            make(3, 4, dtype=dtype),
            upper=upper,
            left=False,
            unitriangular=unit,
            **close(dtype),
        )
        for transpose in (False, True):
            check("triangular_solve", make(4, 3, dtype=dtype), a, upper, transpose, unit, **close(dtype))
    check("linalg_solve_triangular", make(0, 0, dtype=dtype), make(0, 3, dtype=dtype), upper=upper)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(dtype, mode):
    for shape in ((5, 3), (3, 5), (2, 4, 4), (1, 1), (0, 3), (3, 0), (2, 70, 40)):
        check("linalg_qr", make(*shape, dtype=dtype), mode, rtol=1e-3, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_householder(dtype):
    for m, n, k in ((5, 3, 3), (5, 3, 2), (4, 4, 4), (4, 2, 0)):
        a, tau = torch.geqrf(make(m, n, dtype=dtype))
        check("linalg_householder_product", a, tau[:k], **close(dtype))
        check("linalg_householder_product", a.expand(2, m, n), tau[:k].expand(2, k), **close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(dtype, uplo):
    for shape in ((4, 4), (2, 3, 5, 5), (1, 1), (0, 0), (33, 33)):
        x = make(*shape, dtype=dtype)
        values, vectors = run("_linalg_eigh", x, uplo, True)
        want = expected("_linalg_eigh", x, uplo, True)
        torch.testing.assert_close(values, want[0], rtol=1e-3, atol=TOLERANCE[dtype])
        assert vectors.stride() == want[1].stride()
        full = x.tril() + x.tril(-1).mH if uplo == "L" else x.triu() + x.triu(1).mH
        if dtype.is_complex:
            torch.diagonal(full, dim1=-2, dim2=-1).imag.zero_()
        scale = 10 * TOLERANCE[dtype]
        torch.testing.assert_close(vectors @ torch.diag_embed(values).to(dtype), full @ vectors, rtol=1e-3, atol=scale)
        eye = torch.eye(shape[-1], dtype=dtype).expand(shape)
        torch.testing.assert_close(vectors.mH @ vectors, eye, rtol=1e-3, atol=scale)
        values, vectors = run("_linalg_eigh", x, uplo, False)
        assert vectors.shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu(dtype):
    shapes = ((4, 4), (5, 3), (3, 5), (2, 3, 4, 4), (0, 0), (0, 3), (20, 20))
    for shape in shapes if dtype == torch.float32 else shapes[:2]:
        x = make(*shape, dtype=dtype)
        check("linalg_lu_factor_ex", x, **close(dtype))
        check("linalg_lu", x, **close(dtype))
        factors, pivots, _ = expected("linalg_lu_factor_ex", x)
        check("lu_unpack", factors, pivots, **close(dtype))
        check("lu_unpack", factors, pivots, True, False, **close(dtype))
        check("lu_unpack", factors, pivots, False, True, **close(dtype))
        if shape[-1] != shape[-2]:
            continue
        for y in (x, x.mT):
            check("_linalg_det", y, rtol=1e-3, atol=1e-4)
            check("_linalg_slogdet", y, rtol=1e-3, atol=1e-4)
        check("linalg_inv_ex", x, rtol=1e-2, atol=1e-3)
        for left in (True, False):
            y = make(*shape[:-1], 3, dtype=dtype) if left else make(*shape[:-2], 3, shape[-1], dtype=dtype)
            check("_linalg_solve_ex", x, y, left=left, rtol=1e-2, atol=1e-3)
            check("_linalg_solve_ex", x.mT, y, left=left, rtol=1e-2, atol=1e-3)
            for adjoint in (True, False):
                check("linalg_lu_solve", factors, pivots, y, left=left, adjoint=adjoint, rtol=1e-2, atol=1e-3)


def test_solve_broadcasts():
    a, y = make(2, 4, 4), make(3, 1, 4, 2)
    check("_linalg_solve_ex", a, y, rtol=1e-3, atol=1e-4)
    check("_linalg_solve_ex", a, make(2, 4), rtol=1e-3, atol=1e-4)
    check("_linalg_solve_ex", a[0], make(4), rtol=1e-3, atol=1e-4)
    check("_linalg_solve_ex", a[0], y, rtol=1e-3, atol=1e-4)
    factors, pivots, _ = expected("linalg_lu_factor_ex", a)
    check("linalg_lu_solve", factors, pivots, y, rtol=1e-3, atol=1e-4)


def test_singular():
    x = torch.tensor([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 1.0]]])
    check("linalg_lu_factor_ex", x)
    check("_linalg_det", x)
    check("_linalg_slogdet", x)
    assert run("linalg_inv_ex", x)[1].tolist() == expected("linalg_inv_ex", x)[1].tolist()


@cases(
    ("linalg_cross", make(4, 3), make(4, 3, seed=1)),
    ("linalg_cross", make(3, 4), make(3, 1, seed=1), {"dim": 0}),
    ("linalg_cross", make(4, 3, dtype=torch.int64), make(4, 3, dtype=torch.int64, seed=1)),
    ("linalg_cross", make(2, 3, 4, dtype=torch.complex64), make(2, 3, 4, dtype=torch.complex64, seed=1), {"dim": 1}),
)
def test_cross(name, args, kwargs):
    check(name, *args, **kwargs)


@cases(
    ("linalg_cholesky_ex", make(2, 3)),
    ("linalg_cholesky_ex", make(3)),
    ("linalg_cholesky_ex", make(3, 3, dtype=torch.int64)),
    ("linalg_inv_ex", make(2, 3)),
    ("linalg_inv_ex", make(3, 3, dtype=torch.float16)),
    ("linalg_qr", make(3)),
    ("_linalg_det", make(2, 3)),
    ("_linalg_eigh", make(2, 3)),
    ("_linalg_solve_ex", make(3, 3), make(2, 2)),
    ("linalg_solve_triangular", make(3, 3), make(2, 2), {"upper": True}),
    ("linalg_cross", make(4, 2), make(4, 2)),
    ("linalg_cross", make(3), make(2, 3)),
)
def test_errors(name, args, kwargs):
    check_error(name, *args, **kwargs)
