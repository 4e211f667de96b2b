"""Convolutions and their gradients against PyTorch's CPU kernels."""

import math

import pytest
import torch
from lower_harness import RowError, check, check_error, expected, lowered_for, run

pytestmark = pytest.mark.cpu

HALVES = (torch.bfloat16, torch.float16)
TOLERANCE = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-10, 1e-10),
    torch.bfloat16: (2e-2, 5e-2),
    torch.float16: (3e-3, 1e-2),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def t(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


class Case:
    """One convolution: input and weight shapes, then keyword options of aten::convolution."""

    def __init__(self, x, w, stride=1, padding=0, dilation=1, transposed=False, output_padding=0, groups=1):
        n = len(x) - 2
        many = [list(v) if isinstance(v, tuple) else [v] * n for v in (stride, padding, dilation, output_padding)]
        self.x, self.w = x, w
        self.options = [many[0], many[1], many[2], transposed, many[3], groups]
        self.channels = w[1] * groups if transposed else w[0]

    def check(self, dtype=torch.float32, bias=True, memory=None, mask=(True, True, True)):
        rtol, atol = TOLERANCE[dtype]
        x, w, b = t(*self.x, dtype=dtype), t(*self.w, dtype=dtype), t(self.channels, dtype=dtype) if bias else None
        if memory:
            x = x.to(memory_format=memory)
        wide = [None if v is None else v.double() for v in (x, w, b)]
        y = expected("convolution", *wide, *self.options)[0]
        atol *= math.sqrt(max(1, w[0].numel()))
        got = run("convolution", x, w, b, *self.options)
        assert got.dtype == dtype and got.stride() == expected("convolution", x, w, b, *self.options)[0].stride()
        torch.testing.assert_close(got.double(), y, rtol=rtol, atol=atol)
        g = t(*y.shape, dtype=dtype)
        if memory:
            g = g.to(memory_format=memory)
        sizes = [self.channels] if bias else None
        if bias:
            want = expected("convolution_backward", g.double(), *wide[:2], sizes, *self.options, list(mask))
        else:
            want = expected(
                "convolution_backward", g.double(), *wide[:2], None, *self.options, [mask[0], mask[1], False]
            )
            mask = (mask[0], mask[1], False)
        got = run("convolution_backward", g, x, w, sizes, *self.options, list(mask))
        scale = math.sqrt(max(1, y.numel() / max(1, y.shape[1])))
        for i, (r, e) in enumerate(zip(got, want, strict=True)):
            assert (r is None) == (not mask[i])
            if r is not None:
                assert r.dtype == dtype
                torch.testing.assert_close(
                    r.double(), e, rtol=rtol, atol=atol * (scale if i else 1), msg=lambda m, i=i: f"gradient {i}: {m}"
                )


DENSE = [
    Case((2, 3, 9), (4, 3, 3), padding=1),
    Case((2, 3, 10), (4, 3, 3), stride=2, dilation=2),
    Case((2, 3, 8, 9), (5, 3, 3, 3), padding=1),
    Case((2, 3, 8, 9), (5, 3, 3, 2), stride=(2, 3), padding=(1, 0), dilation=(1, 2)),
    Case((1, 3, 7, 7), (2, 3, 5, 5), stride=2, padding=3),
    Case((2, 3, 9, 9), (4, 3, 1, 1), padding=1),
    Case((2, 2, 5, 6, 4), (3, 2, 3, 2, 1), stride=(1, 2, 1), padding=(1, 0, 1)),
    Case((2, 6, 8, 8), (4, 3, 3, 3), padding=1, groups=2),
    Case((2, 6, 9), (9, 2, 3), stride=2, groups=3),
    Case((2, 8, 7, 7), (8, 2, 3, 3), stride=2, padding=1, dilation=2, groups=4),
    Case((2, 24, 6, 6), (36, 2, 3, 3), padding=1, groups=12),
]
POINTWISE = [
    Case((2, 3, 8, 9), (5, 3, 1, 1)),
    Case((1, 3, 8, 9), (5, 3, 1, 1), stride=2),
    Case((3, 6, 7), (4, 6, 1), stride=3),
    Case((3, 6, 1, 1), (4, 6, 1, 1)),
    Case((2, 6, 5, 4), (4, 3, 1, 1), groups=2),
    Case((2, 6, 1, 1), (4, 3, 1, 1), groups=2),
    Case((2, 40, 2, 2), (50, 40, 1, 1)),
    Case((2, 3, 3, 4, 5), (5, 3, 1, 1, 1), stride=(1, 2, 3)),
    Case((2, 4, 6, 6), (4, 1, 1, 1), groups=4),
]
DEPTHWISE = [
    Case((2, 4, 8, 9), (4, 1, 3, 3), padding=1, groups=4),
    Case((2, 4, 9, 9), (8, 1, 3, 3), stride=2, padding=1, groups=4),
    Case((2, 4, 10), (12, 1, 3), stride=2, dilation=2, padding=2, groups=4),
    Case((2, 3, 9, 10), (3, 1, 7, 7), padding=3, groups=3),
    Case((2, 3, 5, 6, 4), (3, 1, 3, 2, 1), padding=(1, 1, 0), stride=(1, 2, 1), groups=3),
    Case((1, 3, 12, 12), (3, 1, 9, 9), padding=4, groups=3),
]
TRANSPOSED = [
    Case((2, 3, 5), (3, 4, 3), stride=2, padding=1, output_padding=1, transposed=True),
    Case((2, 3, 5, 6), (3, 4, 3, 3), transposed=True),
    Case((2, 3, 5, 6), (3, 4, 4, 3), stride=(2, 3), padding=(1, 2), output_padding=(1, 0), transposed=True),
    Case((2, 4, 5, 6), (4, 3, 3, 3), stride=2, padding=1, dilation=2, groups=2, transposed=True),
    Case((2, 4, 5, 5), (4, 1, 3, 3), stride=2, padding=1, output_padding=1, groups=4, transposed=True),
    Case((2, 4, 5, 5), (4, 3, 1, 1), stride=2, output_padding=1, transposed=True),
    Case((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), stride=2, transposed=True),
    Case((1, 3, 2, 2), (3, 2, 2, 2), padding=1, stride=2, transposed=True),
]
ALL = DENSE + POINTWISE + DEPTHWISE + TRANSPOSED


@pytest.mark.parametrize("case", ALL, ids=range(len(ALL)))
def test_float32(case):
    case.check()


@pytest.mark.parametrize("case", ALL, ids=range(len(ALL)))
def test_form_for_tpu(case):
    with lowered_for("tpu"):
        case.check(bias=False)


@pytest.mark.parametrize("dtype", [torch.float64, *HALVES])
@pytest.mark.parametrize("case", [DENSE[3], DENSE[7], POINTWISE[1], DEPTHWISE[1], TRANSPOSED[2]], ids=range(5))
def test_other_floats(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize(
    "case", [DENSE[2], DENSE[3], POINTWISE[0], POINTWISE[1], DEPTHWISE[0], DEPTHWISE[1], TRANSPOSED[1]], ids=range(7)
)
def test_channels_last(case):
    case.check(memory=torch.channels_last)


def test_channels_last_3d():
    DENSE[6].check(memory=torch.channels_last_3d)


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_some_gradients(mask):
    DENSE[2].check(mask=mask)


def test_int64():
    x, w = torch.randint(-9, 9, (2, 3, 6, 6)), torch.randint(-9, 9, (4, 3, 3, 3))
    check("convolution", x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def test_empty():
    conv = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    check("convolution", t(0, 3, 6, 6), t(4, 3, 3, 3), t(4), *conv)
    got = run("convolution_backward", t(0, 4, 4, 4), t(0, 3, 6, 6), t(4, 3, 3, 3), [4], *conv, [True] * 3)
    assert got[0].shape == (0, 3, 6, 6) and not got[1].any() and not got[2].any()


def test_overrideable():
    x, w, b = t(2, 3, 6, 6), t(4, 3, 3, 3), t(4)
    conv = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    want = expected("convolution", x, w, b, *conv)
    check("convolution_overrideable", x, w, b, *conv, want=want, rtol=1e-4, atol=1e-5)
    g = t(2, 4, 6, 6)
    want = expected("convolution_backward", g, x, w, [4], *conv, [True] * 3)
    check("convolution_backward_overrideable", g, x, w, *conv, [True] * 3, want=want, rtol=1e-4, atol=1e-4)


def test_errors():
    def conv(
        x, w, b=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1
    ):
        lists = [list(v) for v in (stride, padding, dilation, output_padding)]
        check_error("convolution", x, w, b, *lists[:3], transposed, lists[3], groups)

    x, w = t(1, 3, 8, 8), t(4, 3, 3, 3)
    conv(t(1, 4, 8, 8), w)
    conv(t(1, 3, 2, 2), w)
    conv(x, w, t(3))
    conv(x, w, stride=(0, 0))
    conv(x, w, padding=(-1, 0))
    conv(x, w, dilation=(0, 0))
    conv(x, w, groups=2)
    conv(x, w, groups=0)
    conv(t(1, 4, 8, 8), t(3, 2, 3, 3), groups=2)
    conv(x, w, stride=(1, 1, 1))
    conv(x, w, padding=(0, 0, 0))
    conv(x, w, dilation=(1, 1, 1))
    conv(x, t(0, 3, 3, 3))
    y = t(1, 4, 8, 8)
    conv(y, t(3, 4, 3, 3), transposed=True)
    conv(y, t(4, 3, 3, 3), t(4), transposed=True)
    conv(y, t(4, 3, 3, 3), transposed=True, output_padding=(2, 2))
    conv(y, t(4, 3, 3, 3), transposed=True, stride=(2, 2), output_padding=(-1, -1))
    conv(t(1, 4, 1, 1), t(4, 3, 3, 3), transposed=True, padding=(2, 2))
    for operands in ((x, w, t(4).double()), (x.double(), w, t(4))):
        with pytest.raises(
            RowError,
            match=r"Input type \((float|double)\) and (weight|bias) type \((float|double)\) should be the same",
        ):
            run("convolution", *operands, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
