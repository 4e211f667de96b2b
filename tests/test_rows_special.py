"""Bessel and Airy functions and orthogonal polynomials against PyTorch's CPU kernels."""

import pytest
import torch
from lower_harness import check

pytestmark = pytest.mark.cpu

INF, NAN = float("inf"), float("nan")
# Every piece of the piecewise functions, their borders, zeros and infinities.
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 2.09, -2.09, 5.0, -5.0, 8.0, 8.4, 100.0, 104.0, 1e-6, INF, -INF, NAN]
LINE = torch.cat([torch.linspace(-20, 20, 161, dtype=torch.float64), torch.tensor(EDGES, dtype=torch.float64)])
BESSEL = """airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0""".split()


@pytest.mark.parametrize("name", BESSEL)
def test_bessel(name):
    check(f"special_{name}", LINE.float(), rtol=2e-5, atol=2e-6)
    check(f"special_{name}", LINE, rtol=1e-11, atol=1e-13)
    check(f"special_{name}", torch.arange(-3, 12))


KINDS = [f"{shift}chebyshev_polynomial_{k}" for shift in ("", "shifted_") for k in "tuvw"]
KINDS += ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]


@pytest.mark.parametrize("kind", KINDS)
def test_polynomial(kind):
    name = f"special_{kind}"
    # Not NaN: PyTorch's kernels return what was in memory there.
    x = torch.cat([torch.linspace(-3, 3, 25), torch.tensor([0.0, 1.0, -1.0, 0.5, INF])]).double()
    degrees = torch.tensor([-2, -0.5, 0, 1, 2, 2.7, 3, 6, 7, 8, 9, 12, 30, 600, NAN, INF], dtype=torch.float64)
    check(name, x[:, None], degrees, rtol=1e-9, atol=1e-9)
    check(name, x[:, None].float(), degrees[:-3].float(), rtol=2e-4, atol=2e-4)
    check(f"{name}.n_scalar", x, 5, rtol=1e-9, atol=1e-9)
    check(f"{name}.x_scalar", 0.3, degrees, rtol=1e-9, atol=1e-9)
    check(name, torch.arange(-2, 3), torch.tensor(3), rtol=1e-5, atol=1e-5)
    check(name, torch.tensor(0.25), torch.tensor(2.0))


def test_incomplete_gamma():
    a = torch.tensor([0.01, 0.3, 1, 2.5, 9.9, 10.1, 60, 300, 0, INF, -1, NAN], dtype=torch.float64)
    x = torch.tensor([0.001, 0.2, 0.9, 1, 1.1, 3, 11, 58, 61, 280, 330, 0, INF, -1, NAN], dtype=torch.float64)
    for name in ("igamma", "igammac"):
        check(name, a[:, None], x, rtol=1e-8, atol=1e-11)
        check(name, a[:, None].float(), x.float(), rtol=1e-4, atol=1e-5)
        check(name, a[2].float(), x[3].float())
