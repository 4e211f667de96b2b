"""sort and topk against PyTorch's CPU kernels."""

import math

import pytest
import torch
from lower_harness import check, check_error, expected, lowered_for, run

pytestmark = pytest.mark.cpu

nan, inf = math.nan, math.inf
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
PLATFORMS = ["cpu", "tpu"]


def make(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if dtype.is_floating_point:  # with ties
        return (torch.randn(shape, generator=g) * 4).round().div(4).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 9, shape, generator=g).to(dtype)


def strange(dtype):
    tiny = torch.finfo(dtype).smallest_normal
    values = [3.0, nan, -0.0, inf, 0.0, -inf, -1.0, nan, 1.0, 0.0, -0.0, tiny, -tiny, -nan]
    if dtype != torch.float16:
        values += [tiny / 4, -tiny / 4, tiny / 2]  # denormals
    return torch.tensor(values, dtype=dtype)


def extremes(dtype):
    info = torch.iinfo(dtype)
    return torch.tensor([0, info.min, info.max, 1, info.max, info.min, 7, info.max - 1, info.min + 1], dtype=dtype)


def check_sort(x, dim, descending):
    """Stable either way, so both overloads equal PyTorch's stable sort."""
    want = expected("sort.stable", x, stable=True, dim=dim, descending=descending)
    for name, args, kwargs in (
        ("sort.stable", (), dict(stable=True, dim=dim, descending=descending)),
        ("sort", (dim, descending), {}),
    ):
        values, _ = check(name, x, *args, want=want, rtol=0, atol=0, **kwargs)
        if x.dtype.is_floating_point:
            assert torch.equal(torch.signbit(values), torch.signbit(want[0]))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
def test_sort(dtype, descending, platform):
    with lowered_for(platform):
        x = make(4, 9, dtype=dtype)
        check_sort(x, 1, descending)
        check_sort(x, 0, descending)
        check_sort(x.t(), -1, descending)
        if dtype.is_floating_point and platform == "cpu":
            check_sort(strange(dtype), 0, descending)
        elif dtype.is_floating_point:  # the plugin flushes denormals in comparisons of floats
            check_sort(strange(dtype)[:11], 0, descending)
        elif dtype != torch.bool:
            check_sort(extremes(dtype), 0, descending)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_sort_more(platform):
    with lowered_for(platform):
        check("sort", torch.tensor(3.0))
        check("sort", torch.zeros(3, 0))
        check("sort", torch.zeros(0, 3), 0)
        check("sort", make(3, 1), 1)
        check("sort", make(4, 5, 6).permute(2, 0, 1), 1)
        check("sort", make(6, 6)[::2, ::2], 1)
        big = torch.randint(-(2**62), 2**62, (2, 500), generator=torch.Generator().manual_seed(1))
        close = torch.cat([big, big + 1, big - 1], 1)  # equal high words
        check_sort(close, 1, False)
        check_sort(close, 1, True)
        check_sort(close.double().mul(1e-3), 1, True)
    check_error("sort", make(3, 4), 2)
    check_error("topk", make(3, 4), 2, 5)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_topk(dtype, largest, platform):
    with lowered_for(platform):
        for x, k, dim in (
            (make(3, 40, dtype=dtype), 5, 1),
            (make(3, 40, dtype=dtype), 30, -1),
            (make(40, 3, dtype=dtype), 4, 0),
            (make(4, 40, 3, dtype=dtype).permute(2, 1, 0), 4, 1),
            (strange(dtype)[:11] if dtype.is_floating_point else extremes(dtype), 6, 0),
            (strange(dtype)[:11] if dtype.is_floating_point else extremes(dtype), 2, 0),
        ):
            # equal values may come in any order: ours is by position, that of a stable sort
            order = expected("sort.stable", x, stable=True, dim=dim, descending=largest)
            want = [t.narrow(dim, 0, k) for t in order]
            got = check("topk", x, k, dim, largest, True, want=want, strides=False)
            assert all(t.is_contiguous() for t in got)
            torch.testing.assert_close(torch.gather(x, dim, got[1]), got[0], rtol=0, atol=0, equal_nan=True)


def test_topk_more():
    check("topk", torch.tensor(3.0), 1)
    check("topk", make(3, 4), 0)
    check("topk", torch.zeros(0, 4), 2)
    rows = torch.full((600, 8), nan)
    values, indices = run("topk", rows, 4)
    assert values.isnan().all() and indices.min() >= 0 and indices.max() < 8
    check_error("topk", make(3, 4), 5)
    check_error("topk", make(3, 4, dtype=torch.bool), 2)
    check_error("topk", torch.tensor(3.0), 2)
