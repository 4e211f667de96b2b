"""Fourier transforms against PyTorch's CPU kernels."""

import pytest
import torch
from lower_harness import RowError, check, check_error, lowered_for, run

pytestmark = pytest.mark.cpu

C64 = dict(rtol=1e-4, atol=1e-4)


def make(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def complex_of(*shape, dtype=torch.complex64):
    return torch.complex(make(*shape, dtype=torch.float64), make(*shape, dtype=torch.float64, seed=1)).to(dtype)


DIMS = [[0], [1], [2], [0, 1], [2, 0], [1, 2], [0, 1, 2]]


@pytest.mark.parametrize("dims,mode", [(d, i % 3) for i, d in enumerate(DIMS)])
def test_all(dims, mode):
    x, z = make(4, 6, 5), complex_of(4, 6, 5)
    p, q = make(6, 5, 4).permute(2, 0, 1), complex_of(6, 5, 4).permute(2, 0, 1)
    for forward in (True, False):
        check("_fft_c2c", z, dims, mode, forward, **C64)
        check("_fft_c2c", q, dims, mode, forward, **C64)
    for onesided in (True, False):
        check("_fft_r2c", x, dims, mode, onesided, **C64)
        check("_fft_r2c", p, dims, mode, onesided, **C64)
    for size in (8, 9):
        shape = [4, 6, 5]
        shape[dims[-1]] = size // 2 + 1
        check("_fft_c2r", complex_of(*shape), dims, mode, size, **C64)
        check("_fft_c2r", complex_of(*shape[1:], shape[0]).permute(2, 0, 1), dims, mode, size, **C64)


def test_more():
    wide = dict(dtype=torch.complex128)
    check("_fft_c2c", complex_of(3, 7, **wide), [1], 0, True)
    check("_fft_r2c", make(3, 7, dtype=torch.float64), [1], 1, True)
    check("_fft_c2r", complex_of(3, 4, **wide), [1], 2, 7)
    check("_fft_c2c", complex_of(3, 4), [], 0, True)
    check("_fft_c2c", complex_of(2, 3, 2, 3, 2), [0, 1, 2, 3, 4], 1, True, **C64)
    check("_fft_r2c", make(2, 3, 2, 3, 4), [0, 1, 2, 3, 4], 0, True, **C64)
    check("_fft_c2r", complex_of(2, 3, 2, 3, 3), [0, 1, 2, 3, 4], 0, 4, **C64)
    for n in (1, 2, 17, 97, 128, 360):
        check("_fft_r2c", make(2, n), [1], 0, True, rtol=1e-3, atol=1e-3)
        check("_fft_c2c", complex_of(2, n), [1], 2, False, **C64)


def test_round_trip():
    x = make(8, 33)
    y = run("_fft_c2r", run("_fft_r2c", x, [0, 1], 0, True), [0, 1], 2, 33)
    torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-5)


def test_errors():
    check_error("_fft_r2c", complex_of(3, 4), [0], 0, True)
    check_error("_fft_c2c", make(3, 4), [0], 0, True)
    check_error("_fft_c2r", make(3, 4), [0], 0, 4)
    with pytest.raises(RowError):
        run("_fft_r2c", make(3, 4, dtype=torch.float16), [0], 0, True)
    with lowered_for("tpu"), pytest.raises(RowError) as e:
        run("_fft_c2c", complex_of(3, 4, dtype=torch.complex128), [0], 0, True)
    assert e.value.kind is NotImplementedError
