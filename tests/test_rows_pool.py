"""Pooling and resampling against PyTorch's CPU kernels, forward and backward."""

import math

import pytest
import torch
from lower_harness import check, check_error, expected, lowered_for, run

pytestmark = pytest.mark.cpu

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *HALVES)
TOLERANCE = {
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-11, 1e-11),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (3e-3, 3e-3),
}
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def t(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def close(name, *args, **kwargs):
    rtol, atol = TOLERANCE.get(args[0].dtype, (0, 0))
    return check(name, *args, rtol=rtol, atol=atol, **kwargs)


# shape, kernel, stride, padding, dilation, ceil_mode
MAX_POOLS = [
    ((2, 3, 8, 9), [3, 3], [2, 2], [1, 1], [1, 1], False),
    ((2, 3, 8, 9), [2, 2], [], [0, 0], [1, 1], False),
    ((3, 8, 9), [2, 3], [1, 2], [1, 0], [2, 1], True),
    ((1, 2, 7, 7), [3, 3], [3, 3], [1, 1], [2, 2], True),
    ((1, 2, 17, 16), [7, 6], [1, 2], [3, 2], [1, 1], False),
    ((1, 2, 17, 16), [7, 6], [4, 5], [3, 3], [2, 1], True),
    ((0, 3, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False),
    ((2, 3, 5, 6, 7), [3, 2, 2], [2, 1, 3], [1, 0, 1], [1, 1, 1], False),
    ((3, 5, 6, 7), [2, 2, 2], [], [0, 0, 0], [1, 2, 1], True),
    ((1, 2, 8, 9, 8), [4, 4, 4], [2, 3, 2], [2, 1, 0], [1, 1, 1], True),
]


def max_pool_name(case):
    return f"max_pool{len(case[1])}d_with_indices"


@pytest.mark.parametrize("case", MAX_POOLS, ids=range(len(MAX_POOLS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_pool(case, dtype):
    shape, *window = case
    # Small integers make ties, which the first must win.
    for x in (t(*shape, dtype=dtype), torch.randint(0, 3, shape).to(dtype)):
        _, indices = close(max_pool_name(case), x, *window)
        g = t(*indices.shape, dtype=dtype)
        if not window[1]:
            window = [window[0], window[0], *window[2:]]
        name = max_pool_name(case) + "_backward"
        # PyTorch adds up in bfloat16.
        want = [expected(name, g.float(), x.float(), *window, indices)[0].to(dtype)]
        close(name, g, x, *window, indices, want=want)


def test_max_pool_values():
    inf, nan = math.inf, math.nan
    x = torch.full((1, 1, 6, 6), -inf)
    x[0, 0, 1, 1] = nan
    x[0, 0, 1, 2] = nan
    x[0, 0, 4, 4] = 1
    for kernel, stride, padding in (([3, 3], [1, 1], [1, 1]), ([6, 5], [1, 1], [3, 2]), ([2, 2], [2, 2], [1, 1])):
        close("max_pool2d_with_indices", x, kernel, stride, padding)
    for dtype in (torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8):
        close("max_pool2d_with_indices", (torch.rand(2, 3, 7, 7) * 9).to(dtype), [3, 3], [2, 2], [1, 1])
    low = torch.full((1, 1, 4, 4), torch.iinfo(torch.int64).min)
    close("max_pool2d_with_indices", low, [3, 3], [2, 2], [1, 1])


def test_max_pool_layouts_and_targets():
    x = t(2, 3, 8, 9).to(memory_format=torch.channels_last)
    for window in (([3, 3], [2, 2], [1, 1], [1, 1], False), ([6, 6], [1, 1], [2, 2], [1, 1], False)):
        _, indices = close("max_pool2d_with_indices", x, *window)
        g = t(*indices.shape)
        close("max_pool2d_with_indices_backward", g, x, *window, indices)
        with lowered_for("tpu"):
            close("max_pool2d_with_indices", x, *window)
            close("max_pool2d_with_indices_backward", g, x, *window, indices)
    with lowered_for("tpu"):
        for case in (MAX_POOLS[2], MAX_POOLS[3], MAX_POOLS[7]):
            x = t(*case[0])
            _, indices = close(max_pool_name(case), x, *case[1:])
            close(max_pool_name(case) + "_backward", t(*indices.shape), x, *case[1:], indices)


# shape, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVG_POOLS = [
    ((2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, True, None),
    ((2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, False, None),
    ((2, 3, 8, 9), [3, 3], [2, 2], [1, 1], True, True, None),
    ((2, 3, 8, 9), [3, 3], [2, 2], [1, 1], True, False, 5),
    ((3, 8, 9), [2, 3], [2, 3], [0, 0], False, True, None),
    ((2, 3, 8, 9), [8, 9], [8, 9], [0, 0], False, True, None),
    ((2, 3, 8, 9), [2, 2], [3, 3], [0, 0], True, True, 3),
    ((1, 2, 17, 16), [7, 6], [2, 1], [3, 2], False, False, None),
    ((0, 3, 8, 8), [2, 2], [2, 2], [0, 0], False, True, None),
    ((2, 3, 5, 6, 7), [3, 2, 2], [2, 1, 3], [1, 0, 1], False, True, None),
    ((3, 5, 6, 7), [2, 2, 2], [2, 2, 2], [1, 1, 0], True, False, None),
    ((2, 3, 4, 6, 8), [2, 3, 4], [2, 3, 4], [0, 0, 0], False, True, None),
]


@pytest.mark.parametrize("case", AVG_POOLS, ids=range(len(AVG_POOLS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_avg_pool(case, dtype):
    shape, *window = case
    name = f"avg_pool{len(window[0])}d"
    if dtype == torch.bfloat16 and len(window[0]) == 3:
        return  # PyTorch's CPU has no such kernel
    x = t(*shape, dtype=dtype)
    (y,) = close(name, x, *window)
    close(name + "_backward", t(*y.shape, dtype=dtype), x, *window)


def test_avg_pool_others():
    window = ([3, 3], [2, 2], [1, 1], False, True, None)
    x = t(2, 3, 8, 9)
    close("avg_pool2d", x.double(), *window)
    check("avg_pool2d", torch.randint(-9, 9, (2, 3, 8, 9)), *window)
    nhwc = x.to(memory_format=torch.channels_last)
    (y,) = close("avg_pool2d", nhwc, *window)
    close("avg_pool2d_backward", t(*y.shape).to(memory_format=torch.channels_last), nhwc, *window)
    with lowered_for("tpu"):
        close("avg_pool2d", x, *window)
        close("avg_pool2d_backward", t(*y.shape), x, *window)
    x[0, 0, 3, 3], x[0, 1, 2, 2] = math.nan, math.inf
    close("avg_pool2d", x, *window)


ADAPTIVE = [
    ((2, 3, 8, 9), [2, 3]),
    ((2, 3, 8, 9), [3, 4]),
    ((2, 3, 7, 5), [1, 1]),
    ((3, 7, 5), [9, 6]),
    ((2, 3, 7, 7), [7, 7]),
    ((2, 3, 4, 5), [0, 2]),
    ((0, 3, 7, 7), [2, 2]),
    ((1, 2, 60, 3), [1, 2]),
    ((2, 3, 4, 6, 5), [2, 3, 2]),
    ((3, 5, 6, 7), [5, 1, 3]),
]


@pytest.mark.parametrize("case", ADAPTIVE, ids=range(len(ADAPTIVE)))
def test_adaptive(case):
    shape, size = case
    n = len(size)
    for dtype in (torch.float32, torch.bfloat16):
        x, g = t(*shape, dtype=dtype), t(*shape[:-n], *size, dtype=dtype)
        close(f"_adaptive_avg_pool{n}d", x, size)
        if 0 in size:
            continue
        close(f"_adaptive_avg_pool{n}d_backward", g, x)
        _, indices = close(f"adaptive_max_pool{n}d", x, size)
        close(f"adaptive_max_pool{n}d_backward", g, x, indices)
    with lowered_for("tpu"):
        close(f"_adaptive_avg_pool{n}d", t(*shape), size)


def test_adaptive_values():
    x = torch.randint(0, 2, (2, 3, 7, 5)).float()
    x[0, 0, 3, 3], x[0, 0, 3, 4], x[1, 1, 2, 2] = math.nan, math.nan, math.inf
    for size in ([3, 3], [7, 5], [2, 1]):
        close("adaptive_max_pool2d", x, size)
        close("_adaptive_avg_pool2d", x, size)
    nhwc = t(2, 3, 8, 9).to(memory_format=torch.channels_last)
    for size in ([2, 3], [3, 4]):
        close("_adaptive_avg_pool2d", nhwc, size)
        close("adaptive_max_pool2d", nhwc, size)
        close("_adaptive_avg_pool2d_backward", t(2, 3, *size).to(memory_format=torch.channels_last), nhwc)


def test_max_unpool():
    for shape, n in (((2, 3, 8, 8), 2), ((3, 8, 8), 2), ((2, 3, 4, 6, 8), 3)):
        kernel = [2] * n
        y, indices = expected(f"max_pool{n}d_with_indices", t(*shape), kernel, kernel)
        rest = [] if n == 2 else [kernel, [0] * n]
        check(f"max_unpool{n}d", y, indices, list(shape[-n:]), *rest)


def names(kind):
    return {
        "nearest": ["upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"],
        "exact": ["_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"],
        "linear": ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"],
        "cubic": [None, "upsample_bicubic2d", None],
        "linear_aa": [None, "_upsample_bilinear2d_aa", None],
        "cubic_aa": [None, "_upsample_bicubic2d_aa", None],
    }[kind]


SIZES = [(6, 12), (6, 5), (6, 6), (6, 13), (5, 1), (1, 4), (9, 3), (7, 10)]


@pytest.mark.parametrize("kind", ["nearest", "exact", "linear", "cubic", "linear_aa", "cubic_aa"])
def test_upsample_sizes(kind):
    name = names(kind)[1]
    corners = [()] if kind in ("nearest", "exact") else [(False,), (True,)]
    for (h, oh), (w, ow) in zip(SIZES, SIZES[1:] + SIZES[:1], strict=True):
        if "aa" in kind:
            ow = max(ow, 2)  # PyTorch's own result is wrong for one column
        for flags in corners:
            x = t(2, 3, h, w)
            close(name, x, [oh, ow], *flags)
            close(name + "_backward", t(2, 3, oh, ow), [oh, ow], [2, 3, h, w], *flags)


@pytest.mark.parametrize("kind", ["nearest", "exact", "linear", "cubic"])
def test_upsample_scales(kind):
    name = names(kind)[1]
    flags = () if kind in ("nearest", "exact") else (False,)
    for sh, sw in ((2.0, 1.5), (1.7, 0.6), (3.3, 2.0), (0.35, 4.0)):
        x = t(2, 3, 11, 7)
        size = [int(11 * sh), int(7 * sw)]
        close(name, x, size, *flags, sh, sw)
        close(name + "_backward", t(2, 3, *size), size, [2, 3, 11, 7], *flags, sh, sw)


@pytest.mark.parametrize("kind", ["nearest", "exact", "linear"])
def test_upsample_dims(kind):
    flags = () if kind in ("nearest", "exact") else (False,)
    for n, name in ((1, names(kind)[0]), (3, names(kind)[2])):
        x, size = t(2, 3, *[4, 5, 6][:n]), [7, 10, 4][:n]
        close(name, x, size, *flags)
        close(name + "_backward", t(2, 3, *size), size, list(x.shape), *flags)


@pytest.mark.parametrize("dtype", [torch.float64, *HALVES])
def test_upsample_dtypes(dtype):
    x, g = t(2, 3, 6, 5, dtype=dtype), t(2, 3, 9, 11, dtype=dtype)
    for kind in ("nearest", "exact", "linear", "cubic"):
        flags = () if kind in ("nearest", "exact") else (False,)
        close(names(kind)[1], x, [9, 11], *flags)
        want = [expected(names(kind)[1] + "_backward", g.double(), [9, 11], [2, 3, 6, 5], *flags)[0].to(dtype)]
        close(names(kind)[1] + "_backward", g, [9, 11], [2, 3, 6, 5], *flags, want=want)


def test_upsample_layouts_and_targets():
    x, g = t(2, 3, 6, 5).to(memory_format=torch.channels_last), t(2, 3, 9, 10).to(memory_format=torch.channels_last)
    for kind in ("nearest", "exact", "linear", "cubic"):
        flags = () if kind in ("nearest", "exact") else (True,)
        close(names(kind)[1], x, [9, 10], *flags)
        close(names(kind)[1] + "_backward", g, [9, 10], [2, 3, 6, 5], *flags)
        with lowered_for("tpu"):
            close(names(kind)[1], x, [9, 10], *flags)
            close(names(kind)[1] + "_backward", g, [9, 10], [2, 3, 6, 5], *flags)
    check("upsample_nearest2d", torch.randint(0, 255, (1, 3, 4, 4), dtype=torch.uint8), [8, 6])
    x = t(1, 1, 5, 5)
    x[0, 0, 2, 2] = math.nan
    close("upsample_bilinear2d", x, [9, 10], False)


def test_errors():
    x = t(1, 3, 8, 8)
    pool = "max_pool2d_with_indices"
    check_error(pool, t(3, 8, 8), [3, 3], [2, 2], [2, 2])
    check_error(pool, t(1, 3, 2, 2), [3, 3])
    check_error(pool, x, [3, 3], [0, 0])
    check_error(pool, t(1, 0, 8, 8), [3, 3])
    check_error(pool, t(1, 3, 0, 8), [3, 3])
    check_error(pool, x, [3, 3], [1, 1], [-1, -1])
    check_error("avg_pool2d", t(1, 3, 2, 2), [3, 3])
    check_error("avg_pool2d", x, [3, 3], [2, 2], [0, 0], False, True, 0)
    check_error("_adaptive_avg_pool2d", t(3, 8), [2, 2])
    check_error("_adaptive_avg_pool2d", t(1, 3, 0, 8), [2, 2])
    check_error("adaptive_max_pool2d", t(3, 8), [2, 2])
    check_error("adaptive_max_pool2d", t(1, 3, 0, 8), [2, 2])
    check_error("upsample_bilinear2d", x, [4], False)
    check_error("upsample_bilinear2d", x, [0, 4], False)
    check_error("upsample_nearest2d", t(3, 8, 8), [4, 4])
    assert run(pool, x, [3, 3])[0].shape == (1, 3, 2, 2)
