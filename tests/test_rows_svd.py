"""Singular values. The vectors' signs are free, so that what is compared is what they must satisfy."""

import pytest
import torch
from lower_harness import check_error, run

pytestmark = pytest.mark.cpu

KINDS = {
    "random": lambda x: x,
    "rank one": lambda x: x[..., :1] @ x[..., :1, :],
    "zero": lambda x: x * 0,
    "equal": torch.ones_like,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape,full", [((1, 1), False), ((5, 3), True), ((2, 4, 7), False), ((2, 3, 6, 6), False)])
def test_svd(shape, full, dtype, kind):
    x = KINDS[kind](torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0)))
    want = torch.ops.aten._linalg_svd(x, full, True)
    got = run("_linalg_svd", x, full, True, driver=None)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype and g.stride() == w.stride()
    u, s, vh = got
    tolerance = dict(atol=3e-5, rtol=0) if s.dtype == torch.float32 else dict(atol=1e-12, rtol=0)
    k = s.shape[-1]
    torch.testing.assert_close(s, want[1], **tolerance)
    torch.testing.assert_close(u[..., :k] * s[..., None, :].to(dtype) @ vh[..., :k, :], x, **tolerance)
    for q in (u.mH @ u, vh @ vh.mH):
        torch.testing.assert_close(q, torch.eye(q.shape[-1], dtype=dtype).expand_as(q), **tolerance)


def test_values_only():
    x = torch.randn(17, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    u, s, vh = run("_linalg_svd", x, False, False, driver=None)
    assert [u.shape, vh.shape] == [v.shape for v in torch.ops.aten._linalg_svd(x, False, False)[::2]]
    torch.testing.assert_close(s, torch.linalg.svdvals(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("full", [False, True])
def test_empty(full):
    for shape in ((0, 3), (3, 0), (2, 0, 0)):
        x = torch.zeros(shape)
        want = torch.ops.aten._linalg_svd(x, full, True)
        for g, w in zip(run("_linalg_svd", x, full, True, driver=None), want, strict=True):
            assert torch.equal(g, w)


def test_errors():
    for x in (torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)):
        check_error("_linalg_svd", x, False, True, driver=None)
