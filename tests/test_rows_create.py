"""Rows that make tensors: ranges, constants, copies, random numbers."""

import math

import pytest
import torch
from lower_harness import call, check, check_error, run

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


DTYPES = (None, torch.float32, torch.int64, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranges(dtype):
    for args in ((5,), (5.5,), (0,)):
        check("arange", *args, dtype=dtype)
    for args in ((1, 5), (1.5, 5), (2, 2)):
        check("arange.start", *args, dtype=dtype)
    for args in (
        (1, 10, 3),
        (10, 1, -3),
        (0, 1, 0.1),
        (0.5, 3, 0.25),
        (10**11, 10**11 + 10, 3),
    ):
        if dtype != torch.int64 or args[2] >= 1 or args[2] < 0:
            check("arange.start_step", *args, dtype=dtype)
    check("range", 1, 5, dtype=dtype)
    loose = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    for args in ((0, 1, 5), (0, 1, 1), (0, 1, 0), (-3, 7, 10), (2.5, -1.5, 7)):
        check("linspace", *args, dtype=dtype, **loose)
    for args in ((0, 1, 5), (0, 3, 4)):
        check(
            "logspace",
            *args,
            dtype=dtype,
            rtol=2e-2 if dtype == torch.bfloat16 else 1e-5,
            atol=1e-5,
        )
    check("eye", 4, dtype=dtype)
    check("eye.m", 3, 5, dtype=dtype)
    check("eye", 0, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants(dtype):
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check("zeros", [2, 3], dtype=dtype)
    check("ones", [], dtype=dtype)
    for value in (2, 2.5, True):
        check("full", [2, 3], value, dtype=dtype)
        check("new_full", torch.ones(2).half(), [3], value, dtype=dtype)
        check("scalar_tensor", value, dtype=dtype)
    check("zeros_like", x, dtype=dtype)
    check("ones_like", x[:, :, ::2], dtype=dtype)
    check("full_like", x, 2.5, dtype=dtype)
    check("full_like", x, 2.5, dtype=dtype, memory_format=torch.contiguous_format)
    check("new_zeros", x, [3], dtype=dtype)
    check("new_ones", x, [3], dtype=dtype)
    check("_to_copy", x, dtype=dtype)
    check(
        "_to_copy",
        torch.randn(2, 3, 4, 5),
        dtype=dtype,
        memory_format=torch.channels_last,
    )
    check("copy", x.to(dtype) if dtype else x, torch.randn(5))


def test_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        check("full", [2], 2.5)
        check("arange", 2.5)
        check("div.Tensor", torch.arange(3), torch.tensor([1, 2, 3]))
        check("add.Tensor", torch.arange(3), 0.1)
        check("exp", torch.arange(3))
    finally:
        torch.set_default_dtype(torch.float32)


def test_errors():
    for args in (
        ("arange.start_step", 0, 5, 0), ("arange.start_step", 0, 5, -1), ("arange", math.nan), ("arange", math.inf),
        ("linspace", 0, 1, -1), ("eye", -1), ("full", [-2], 1), ("random.to", torch.ones(2), 0),
        ("random.from", torch.ones(2), 5, 3), ("multinomial", torch.ones(3), 4), ("multinomial", torch.ones(3), 0),
        ("multinomial", torch.ones(3, 2, 2), 1), ("multinomial", torch.ones(3).int(), 1),
        ("exponential", torch.ones(3).int()), ("cauchy", torch.ones(3).int()),
    ):  # fmt: skip
        check_error(*args)


def draw(name, *args, **kwargs):
    """Results that depend on seed and offset and on nothing else."""
    results, reply = call(name, *args, seed=1234, offset=7, **kwargs)
    again, _ = call(name, *args, seed=1234, offset=7, **kwargs)
    assert all(torch.equal(a, b) for a, b in zip(results, again, strict=True))
    after = 7 + reply["random_blocks"]
    assert reply["random_blocks"] > 0
    for seed, offset in ((1234, after), (1235, 7)):
        other, _ = call(name, *args, seed=seed, offset=offset, **kwargs)
        assert not torch.equal(results[0], other[0])
    return results


def moments(x, mean, std, low, high):
    """Within five standard errors, and inside [low, high]."""
    x = x.double()
    assert abs(x.mean() - mean) < 5 * std / math.sqrt(x.numel()) + 2e-3
    assert abs(x.std() - std) < 0.03 * std + 1e-3
    assert x.min() >= low and x.max() <= high


N = 40000
HALF_ULP = {
    torch.float32: 2**-24,
    torch.float64: 2**-53,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
}


@pytest.mark.parametrize("dtype", HALF_ULP)
def test_uniform_and_normal(dtype):
    z = torch.zeros(N, dtype=dtype)
    moments(draw("uniform", z)[0], 0.5, math.sqrt(1 / 12), 0, 1 - HALF_ULP[dtype])
    moments(draw("uniform", z, -2.0, 3.0)[0], 0.5, 5 * math.sqrt(1 / 12), -2, 3)
    moments(draw("normal_functional", z, 1.0, 2.0)[0], 1, 2, -20, 20)


def test_distributions():
    z = torch.zeros(N)
    moments(draw("exponential", z, 2.0)[0], 0.5, 0.5, 1e-10, 20)
    moments(draw("geometric", z, 0.3)[0], 1 / 0.3, math.sqrt(0.7) / 0.3, 1, 100)
    moments(
        draw("log_normal", z, 0.0, 0.5)[0],
        math.exp(0.125),
        math.sqrt((math.exp(0.25) - 1) * math.exp(0.25)),
        0,
        50,
    )
    assert abs(draw("cauchy", z)[0].median()) < 0.05
    for p, args in (
        (0.3, ("bernoulli.p", z, 0.3)),
        (0.7, ("bernoulli", z + 0.7)),
        (0.2, ("bernoulli.Tensor", z, torch.tensor(0.2))),
    ):
        moments(draw(*args)[0], p, math.sqrt(p * (1 - p)), 0, 1)
    moments(draw("normal.Tensor_Tensor", torch.ones(N), torch.ones(1) * 3)[0], 1, 3, -30, 30)
    moments(draw("normal.Tensor_float", torch.ones(N), 3.0)[0], 1, 3, -30, 30)
    moments(draw("normal.float_Tensor", 1.0, torch.ones(N))[0], 1, 1, -30, 30)
    assert torch.equal(run("bernoulli.p", z, 1.0), z + 1) and torch.equal(run("bernoulli.p", z, 0.0), z)


def test_whole_numbers():
    for dtype, top in (
        (torch.int64, 2**63),
        (torch.int32, 2**31),
        (torch.uint8, 256),
        (torch.int8, 128),
        (torch.bool, 2),
        (torch.float32, 2**24 + 1),
    ):
        x = draw("random", torch.zeros(N).to(dtype))[0]
        moments(x, (top - 1) / 2, math.sqrt((top**2 - 1) / 12), 0, top) if top < 2**40 else moments(
            x.double() / top, 0.5, math.sqrt(1 / 12), 0, 1
        )
    z = torch.zeros(N, dtype=torch.int64)
    moments(draw("random.to", z, 10)[0], 4.5, math.sqrt(99 / 12), 0, 9)
    moments(draw("random.from", z, -5, 7)[0], 0.5, math.sqrt(143 / 12), -5, 6)
    assert draw("random.from", z, -5, 2**40)[0].max() > 2**39
    assert draw("random.from", z, -(2**63), None)[0].min() < -(2**62)
    order = draw("randperm", 1000)[0]
    assert torch.equal(order.sort()[0], torch.arange(1000))
    assert run("randperm", 0).shape == (0,) and run("randperm", 5, dtype=torch.int32).dtype == torch.int32


def test_multinomial():
    p = torch.tensor([0.1, 0.0, 0.4, 0.5])
    many = draw("multinomial", p.repeat(2, 1), N, True)[0]
    one = draw("multinomial", p.repeat(N, 1), 1)[0].flatten()
    for sample in (*many, one):
        share = torch.bincount(sample, minlength=4) / N
        assert share[1] == 0 and torch.allclose(share, p, atol=0.015)
    assert sorted(run("multinomial", p, 3, False).tolist()) == [0, 2, 3]


def test_dropout():
    out, mask = draw("native_dropout", torch.ones(N), 0.3, None)
    assert abs(mask.float().mean() - 0.7) < 0.02 and torch.allclose(out, mask / 0.7)
    out, mask = run("native_dropout", torch.ones(4), 0.3, False)
    assert mask.all() and torch.equal(out, torch.ones(4))
    out, mask = run("native_dropout", torch.ones(4).bfloat16(), 1.0, True)
    assert not mask.any() and torch.equal(out, torch.zeros(4).bfloat16())
    kept = torch.tensor([True, False, True, True, False])
    check("native_dropout_backward", torch.randn(5), kept, 1.25)
    check("native_dropout_backward", torch.arange(5), kept, 1.25)
    out, noise = draw("rrelu_with_noise_functional", -torch.ones(N), torch.zeros(N), 0.1, 0.3, True)
    moments(noise, 0.2, 0.2 * math.sqrt(1 / 12), 0.1, 0.3)
    assert torch.equal(out, -noise)
