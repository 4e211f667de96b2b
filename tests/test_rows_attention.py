"""Scaled dot product attention, forward and backward, against the definition computed in float64 by PyTorch's CPU."""

import math

import pytest
import torch
from lower_harness import RowError, call, lowered_for, run

pytestmark = pytest.mark.cpu

FUSED = "_scaled_dot_product_fused_attention_overrideable"
FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"
HALVES = (torch.bfloat16, torch.float16)
TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-10, 1e-10),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float16: (4e-3, 4e-3),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def t(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def definition(q, k, v, bias=None, causal=False, scale=None, keep=None):
    """Output and logsumexp. keep: the dropout mask, scaled."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    s = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
    if bias is not None and bias.dtype == torch.bool:
        s = s.masked_fill(~bias, -math.inf)
    elif bias is not None:
        s = s + bias
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    open_rows = (s > -math.inf).any(-1, keepdim=True)  # a row masked whole gives 0
    s = torch.where(open_rows, s, 0.0)
    lse = s.logsumexp(-1).masked_fill(~open_rows[..., 0], -math.inf)
    p = s.softmax(-1) * open_rows
    return (p if keep is None else p * keep) @ v, lse


def backward(saved, g, q, k, v, bias, causal, scale, dropout=0.0, mask=(True,) * 4):
    out, lse, seed, offset = saved[0], saved[1], saved[6], saved[7]
    return run(
        FUSED + "_backward", g, q, k, v, bias, list(mask), out, lse, None, None, q.shape[-2], k.shape[-2], dropout,
        causal, seed, offset, scale=scale,
    )  # fmt: skip


def compare(q, k, v, bias=None, causal=False, scale=None):
    dtype = q.dtype
    rtol, atol = TOLERANCE[dtype]
    saved, reply = call(FUSED, q, k, v, bias, 0.0, causal, False, scale=scale)
    assert reply["random_blocks"] == 0 and len(saved) == 9
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    learned = bias is not None and bias.dtype != torch.bool
    wide_bias = bias.double().requires_grad_() if learned else bias
    out, lse = definition(*wide, wide_bias, causal, scale)
    assert saved[0].dtype == dtype
    torch.testing.assert_close(saved[0].double(), out, rtol=rtol, atol=atol)
    assert saved[1].dtype == torch.float32
    torch.testing.assert_close(saved[1].double(), lse.view(saved[1].shape), rtol=max(rtol, 1e-4), atol=max(atol, 1e-4))
    g = t(*out.shape, dtype=dtype)
    out.backward(g.double())
    grads = backward(saved, g, q, k, v, bias, causal, scale)
    wants = [w.grad for w in wide] + [wide_bias.grad if learned else None]
    for got, want, like in zip(grads, wants, (q, k, v, bias), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert got.dtype == dtype and got.stride() == torch.empty_like(like).stride()
            torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol * 4)
    return saved


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("causal", [False, True])
def test_shapes(dtype, causal):
    for q, k, v in (
        ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4)),
        ((1, 2, 3, 8), (1, 2, 40, 8), (1, 2, 40, 6)),
        ((2, 4, 19, 8), (2, 2, 17, 8), (2, 2, 17, 8)),
        ((3, 5, 4), (3, 7, 4), (3, 7, 4)),
    ):
        compare(t(*q, dtype=dtype), t(*k, dtype=dtype), t(*v, dtype=dtype), causal=causal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks(dtype):
    q, k, v = (t(2, 3, n, 4, dtype=dtype) for n in (5, 20, 20))
    for shape in ((5, 20), (2, 1, 1, 20), (2, 3, 5, 20), (1, 3, 5, 1), (20,)):
        compare(q, k, v, bias=t(*shape, dtype=dtype))
        compare(q, k, v, bias=torch.rand(shape) > 0.4)
    compare(q, k, v, bias=t(5, 20, dtype=dtype), causal=True, scale=0.7)


def test_rows_that_are_masked_whole():
    q, k, v = (t(1, 2, n, 4) for n in (4, 20, 20))
    bias = torch.rand(4, 20) > 0.4
    bias[1] = False
    saved = compare(q, k, v, bias=bias)
    assert not saved[0][:, :, 1].any()
    added = torch.zeros(4, 20)
    added[2] = -math.inf
    saved = compare(q, k, v, bias=added)
    assert not saved[0][:, :, 2].any()


def test_layouts():
    """Heads taken out of a packed projection: views, whose order in memory the result keeps."""
    q, k, v = (t(2, 5, 3, 4).transpose(1, 2) for _ in range(3))
    saved = compare(q, k, v, causal=True)
    assert saved[0].transpose(1, 2).is_contiguous()
    with lowered_for("tpu"):
        compare(q, k, v, causal=True)
        compare(t(2, 4, 5, 4), t(2, 2, 30, 4), t(2, 2, 30, 4), bias=t(5, 30))


def test_blocks():
    """Long causal sequences are done in blocks of rows, each with the keys it can see."""
    for length, keys in ((512, 512), (517, 300), (600, 700)):
        q, k, v = t(1, 2, length, 4), t(1, 1, keys, 4), t(1, 1, keys, 4)
        compare(q, k, v, causal=True)
        compare(q, k, v, bias=t(length, keys), causal=True)


def test_dropout_in_blocks():
    q, k, g = (t(1, 1, 512, 4) for _ in range(3))
    v = torch.eye(512)[None, None]
    saved = run(FUSED, q, k, v, None, 0.3, True, False, seed=5, offset=2)
    keep = (saved[0] != 0).double() / 0.7
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    out, _ = definition(*wide, causal=True, keep=keep)
    torch.testing.assert_close(saved[0].double(), out, rtol=1e-4, atol=1e-5)
    g = t(1, 1, 512, 512)
    out.backward(g.double())
    for got, want in zip(backward(saved, g, q, k, v, None, True, None, 0.3)[:3], wide, strict=True):
        torch.testing.assert_close(got.double(), want.grad, rtol=1e-4, atol=1e-4)


def test_empty():
    out = run(FUSED, t(2, 3, 0, 4), t(2, 3, 5, 4), t(2, 3, 5, 4))[0]
    assert out.shape == (2, 3, 0, 4)
    assert not run(FUSED, t(2, 3, 5, 4), t(2, 3, 0, 4), t(2, 3, 0, 4))[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype):
    """With unit vectors as values the output is the dropped weights: the mask can be read off."""
    p, length, keys = 0.3, 6, 32
    q, k = t(2, 3, length, 8, dtype=dtype), t(2, 3, keys, 8, dtype=dtype)
    v = torch.eye(keys, dtype=dtype).expand(2, 3, keys, keys).contiguous()
    saved, reply = call(FUSED, q, k, v, None, p, False, False, seed=12345, offset=7)
    assert reply["random_blocks"] == 2 * 3 * length * keys // 4
    assert saved[6].item() == 12345 and saved[7].item() == 7
    keep = (saved[0] != 0).double() / (1 - p)
    assert abs((keep == 0).double().mean().item() - p) < 0.05
    rtol, atol = TOLERANCE[dtype]
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    out, _ = definition(*wide, keep=keep)
    torch.testing.assert_close(saved[0].double(), out, rtol=rtol, atol=atol)
    g = t(*out.shape, dtype=dtype)
    out.backward(g.double())
    for got, want in zip(backward(saved, g, q, k, v, None, False, None, p)[:3], wide, strict=True):
        torch.testing.assert_close(got.double(), want.grad, rtol=rtol, atol=atol * 4)
    other = run(FUSED, q, k, v, None, p, False, False, seed=12345, offset=8)
    assert not torch.equal(other[0], saved[0])
    assert not run(FUSED, q, k, v, None, 1.0, False, False)[0].any()


def test_flash_and_efficient():
    q, k, v, g = (t(2, 3, 5, 4) for _ in range(4))
    fused = run(FUSED, q, k, v, None, 0.2, True, False, seed=3, offset=1)
    flash = run(FLASH, q, k, v, 0.2, True, False, seed=3, offset=1)
    efficient = run(EFFICIENT, q, k, v, None, True, 0.2, True, seed=3, offset=1)
    assert (
        torch.equal(fused[0], flash[0]) and torch.equal(fused[0], efficient[0]) and torch.equal(fused[1], efficient[1])
    )
    want = backward(fused, g, q, k, v, None, True, None, 0.2)[:3]
    got = run(FLASH + "_backward", g, q, k, v, flash[0], flash[1], None, None, 5, 5, 0.2, True, flash[6], flash[7])
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    seed, offset = efficient[2:]
    got = run(EFFICIENT + "_backward", g, q, k, v, None, *efficient[:2], seed, offset, 0.2, [True] * 3 + [False], True)
    assert all(torch.equal(a, b) for a, b in zip(got[:3], want, strict=True)) and got[3] is None


def test_only_some_gradients():
    q, k, v, bias = t(2, 3, 5, 4), t(2, 3, 6, 4), t(2, 3, 6, 4), t(5, 6)
    saved = run(FUSED, q, k, v, bias)
    g = t(2, 3, 5, 4)
    full = backward(saved, g, q, k, v, bias, False, None)
    some = backward(saved, g, q, k, v, bias, False, None, mask=(False, True, False, True))
    assert some[0] is None and some[2] is None
    torch.testing.assert_close(some[1], full[1])
    torch.testing.assert_close(some[3], full[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_rescale_qkv(dtype):
    qkv, bias = t(2, 3, 24, dtype=dtype), t(24, dtype=dtype)
    got = run("_transform_bias_rescale_qkv", qkv, bias, 2)
    for a, b in zip(got, torch.ops.aten._transform_bias_rescale_qkv(qkv, bias, 2), strict=True):
        assert a.shape == b.shape and a.dtype == dtype and a.is_contiguous()
        torch.testing.assert_close(a, b, rtol=TOLERANCE[dtype][0], atol=TOLERANCE[dtype][1])
    with pytest.raises(RowError, match="does not divide"):
        run("_transform_bias_rescale_qkv", qkv, bias, 3)
    with pytest.raises(RowError, match="expected qkv"):
        run("_transform_bias_rescale_qkv", qkv, bias[1:], 2)


def test_errors():
    with pytest.raises(RowError, match="must all be 3D or all be 4D"):
        run(FUSED, t(2, 3), t(2, 3), t(2, 3))
    with pytest.raises(RowError, match="do not fit together"):
        run(FUSED, t(2, 3, 5, 4), t(2, 3, 5, 6), t(2, 3, 5, 4))
    with pytest.raises(RowError, match="to have the same dtype"):
        run(FUSED, t(2, 3, 5, 4), t(2, 3, 5, 4).double(), t(2, 3, 5, 4))
    with pytest.raises(RowError, match="expanded size"):
        run(FUSED, t(2, 3, 5, 4), t(2, 3, 5, 4), t(2, 3, 5, 4), t(5, 6))
