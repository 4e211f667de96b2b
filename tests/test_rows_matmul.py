"""Products of matrices and vectors against PyTorch's CPU kernels: dtypes, shapes, beta and alpha, layouts, errors."""

import math

import pytest
import torch
from lower_harness import check, check_error, lowered_for, run, text

pytestmark = pytest.mark.cpu

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
TOLERANCE = {
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
    torch.complex64: (1e-5, 1e-5),
}


def t(*shape, dtype=torch.float32):
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape, dtype=dtype)


def close(name, *args, **kwargs):
    dtype = next(a.dtype for a in args if isinstance(a, torch.Tensor))
    rtol, atol = TOLERANCE.get(dtype, (None, None))
    return check(name, *args, rtol=rtol, atol=atol, **kwargs)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", FLOATS + INTS + COMPLEX)
def test_products(dtype):
    n = {"dtype": dtype}
    close("mm", t(3, 4, **n), t(4, 5, **n))
    close("mm", t(33, 70, **n), t(70, 17, **n))
    close("bmm", t(2, 3, 4, **n), t(2, 4, 5, **n))
    close("mv", t(3, 4, **n), t(4, **n))
    close("dot", t(7, **n), t(7, **n))
    if dtype not in (torch.bfloat16, torch.float16):
        close("vdot", t(7, **n), t(7, **n))
    close("addmm", t(5, **n), t(3, 4, **n), t(4, 5, **n))
    close("addmm", t(3, 1, **n), t(3, 4, **n), t(4, 5, **n), beta=2, alpha=3)
    close("addmv", t(3, **n), t(3, 4, **n), t(4, **n), beta=2, alpha=3)
    close("addmv", t(1, **n), t(3, 4, **n), t(4, **n))
    close("baddbmm", t(5, **n), t(2, 3, 4, **n), t(2, 4, 5, **n), beta=2, alpha=3)
    close("addbmm", t(3, 5, **n), t(2, 3, 4, **n), t(2, 4, 5, **n), beta=2, alpha=3)
    close("addr", t(3, 5, **n), t(3, **n), t(5, **n), beta=2, alpha=3)
    close("addr", t(1, **n), t(3, **n), t(5, **n))


@pytest.mark.parametrize("dtype", FLOATS)
def test_activation(dtype):
    args = [t(5, dtype=dtype), t(3, 4, dtype=dtype), t(4, 5, dtype=dtype)]
    close("_addmm_activation", *args)
    close("_addmm_activation", *args, use_gelu=True, beta=0.5, alpha=2.0)


def test_fractional_factors():
    close("addmm", t(3, 5), t(3, 4), t(4, 5), beta=0.5, alpha=-1.25)
    close("baddbmm", t(2, 3, 5), t(2, 3, 4), t(2, 4, 5), beta=0.5, alpha=-1.25)
    close("addmm", t(3, 5, dtype=torch.int64), t(3, 4, dtype=torch.int64), t(4, 5, dtype=torch.int64), beta=1.5)
    bools = [torch.tensor([[True, False], [False, False]]), torch.tensor([True, True]), torch.tensor([True, False])]
    check("addr", *bools)
    check("addr", *bools, beta=False)
    check("addr", *bools, alpha=False)
    check("addr", t(2, 3, dtype=torch.int64), t(2), t(3, dtype=torch.int64))


def test_zero_beta_ignores_self():
    self = torch.full((3, 5), math.nan)
    close("addmm", self, t(3, 4), t(4, 5), beta=0)
    close("baddbmm", self, t(2, 3, 4), t(2, 4, 5), beta=0)
    close("addmv", self[:, 0].contiguous(), t(3, 4), t(4), beta=0)
    close("addr", self, t(3), t(5), beta=0)


def test_layouts_and_empty():
    close("mm", t(4, 3).t(), t(5, 4).t())
    close("addmm", t(5), t(4, 3).t(), t(5, 4).t())
    close("bmm", t(2, 4, 3).transpose(1, 2), t(2, 5, 4).transpose(1, 2))
    close("mm", t(3, 0), t(0, 5))
    close("mm", t(0, 4), t(4, 5))
    close("addmm", t(5), t(3, 0), t(0, 5))
    close("bmm", t(2, 3, 0), t(2, 0, 5))
    close("bmm", t(0, 3, 4), t(0, 4, 5))
    close("mv", t(3, 0), t(0))
    close("dot", t(0), t(0))


def test_wider_results():
    x, y = t(2, 3, 4, dtype=torch.bfloat16), t(2, 4, 5, dtype=torch.bfloat16)
    want = [x[0].float() @ y[0].float()]
    check("mm.dtype", x[0], y[0], torch.float32, want=want, rtol=1e-5, atol=1e-5)
    check("bmm.dtype", x, y, torch.float32, want=[x.float() @ y.float()], rtol=1e-5, atol=1e-5)
    for self in (t(5), t(5, dtype=torch.bfloat16)):
        want = [self.float() * 0.5 + 2.0 * (x[0].float() @ y[0].float())]
        check("addmm.dtype", self, x[0], y[0], torch.float32, beta=0.5, alpha=2.0, want=want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_int_mm(dtype):
    x = torch.randint(-128, 128, (17, 33)).to(dtype)
    check("_int_mm", x, torch.randint(-128, 128, (33, 8)).to(torch.int8))


def test_large_ints_are_exact():
    big = torch.tensor([[2**40 + 1, -(2**41)]]), torch.tensor([[2**20 + 3], [7]])
    check("mm", *big)


def test_no_transpose_reaches_the_program():
    weight = torch.randn(5, 4)
    assert "transpose" not in text("mm", torch.randn(3, 4), torch.randn(4, 5))
    assert run("mm", torch.randn(3, 4), weight.t()).shape == (3, 5)


def test_other_targets():
    with lowered_for("tpu"):
        close("addmm", t(5), t(3, 4), t(4, 5), beta=0.5)
        close("mm", t(3, 4, dtype=torch.bfloat16), t(4, 5, dtype=torch.bfloat16))


def test_errors():
    check_error("mm", t(2, 3), t(4, 5))
    check_error("mm", t(3), t(3, 5))
    check_error("mm", t(3, 5), t(5))
    check_error("mm", t(2, 3), t(3, 5).double())
    check_error("bmm", t(2, 3), t(4, 5))
    check_error("bmm", t(2, 3, 4), t(2, 3))
    check_error("bmm", t(2, 3, 4), t(2, 5, 4))
    check_error("bmm", t(2, 3, 4), t(2, 4, 4).double())
    check_error("addmm", t(5), t(2, 3), t(4, 5))
    check_error("addmm", t(5), t(2), t(3, 5))
    check_error("addmm", t(5), t(2, 3), t(3))
    check_error("addmm", t(4), t(2, 3), t(3, 5))
    check_error("addmm", t(2, 3, 4), t(2, 3), t(3, 5))
    check_error("addmm", t(5).double(), t(2, 3), t(3, 5))
    check_error("addmm", t(5), t(2, 3), t(3, 5).double())
    check_error("baddbmm", t(4), t(2, 3, 4), t(2, 4, 5))
    check_error("baddbmm", t(1), t(2, 3, 4), t(2, 3, 5))
    check_error("baddbmm", t(1).double(), t(2, 3, 4), t(2, 4, 5))
    check_error("addbmm", t(3), t(2, 3, 4), t(2, 4, 5))
    check_error("addbmm", t(3, 5), t(2, 3, 4), t(3, 4, 5))
    check_error("addbmm", t(3, 5), t(2, 3, 4), t(2, 3, 5))
    check_error("addbmm", t(3, 5).double(), t(2, 3, 4), t(2, 4, 5))
    check_error("mv", t(3), t(3))
    check_error("mv", t(2, 3), t(4))
    check_error("addmv", t(5), t(2, 3), t(3))
    check_error("addmv", t(2, 2), t(2, 3), t(3))
    check_error("addmv", t(2), t(2, 3), t(3).double())
    check_error("dot", t(3), t(4))
    check_error("dot", t(3, 2), t(4))
    check_error("dot", t(3), t(3).double())
    check_error("addr", t(2, 3), t(2), t(2))
    check_error("addr", t(2, 3), t(2, 2), t(2))
    check_error("addr", t(2, 3, dtype=torch.int64), t(2, dtype=torch.int64), t(3, dtype=torch.int64), beta=1.5)
