"""Elementwise rows against PyTorch's CPU kernels: many dtypes, edge values, broadcasting, strides, errors."""

import math

import pytest
import torch
from lower_harness import check, check_error, overload, zero_dim

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
INF, NAN = math.inf, math.nan


def edges(dtype):
    """Values where functions misbehave, as a 1-d tensor."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_complex:
        parts = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0]
        return torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor(
            [v for v in (0, 1, -1, 2, -2, 3, 7, -7, 100, info.min, info.max) if info.min <= v <= info.max],
            dtype=dtype,
        )
    values = [
        0.0,
        -0.0,
        0.25,
        -0.25,
        0.5,
        -0.5,
        1.0,
        -1.0,
        1.5,
        -1.5,
        2.5,
        -2.5,
        3.0,
        -3.0,
        3.7,
        6.2,
        20.5,
        -20.5,
        90.0,
        -90.0,
    ]
    info = torch.finfo(dtype)
    return torch.tensor([*values, INF, -INF, NAN, info.max, info.min], dtype=dtype)


def tame(dtype):
    """Values of moderate size, without infinities."""
    generator = torch.Generator().manual_seed(1)
    if dtype == torch.bool:
        return torch.tensor([True, False, True])
    if dtype.is_complex or dtype.is_floating_point:
        return (
            torch.randn(
                24,
                generator=generator,
                dtype=torch.complex128 if dtype.is_complex else torch.float64,
            )
            * 2
        ).to(dtype)
    low = 0 if dtype == torch.uint8 else -9
    return torch.randint(low, 10, (24,), generator=generator).to(dtype)


def supported(name, *args, **kwargs):
    try:
        overload(name)(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def pairs(x, y):
    return x.repeat_interleave(len(y)), y.repeat(len(x))


# Names and the interval of values, None for all.
UNARY = {
    **dict.fromkeys(
        """
        abs neg sign sgn floor ceil round trunc frac reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt
        sinh cosh tanh asin acos atan asinh acosh atanh erf erfinv sigmoid relu silu mish hardtanh hardswish
        hardsigmoid leaky_relu elu celu softplus hardshrink softshrink isnan isinf isposinf isneginf signbit
        logical_not bitwise_not nan_to_num deg2rad rad2deg special_entr special_ndtri logit angle _conj_physical
        zero frexp.Tensor
        """.split()
    ),
    "sin": (-21, 21),
    "cos": (-21, 21),
    "tan": (-21, 21),
    "erfc": (-4, 4),
    "lgamma": (-21, 100),
    "digamma": (-3.6, 100),
    "gelu": (-100, 100),
    "sinc": (-21, 21),
    "special_log_ndtr": (-21, 21),
    "special_erfcx": (-4, 100),
    "i0": (-21, 21),
    "special_i0e": (-100, 100),
    "special_i1": (-21, 21),
    "special_i1e": (-100, 100),
}
# Single precision functions of two libraries differ in their last bits.
LOOSE = {
    **dict.fromkeys(
        """
        erfinv special_ndtri sin cos erfc exp2 mish gelu acosh logit sinh cosh exp asinh atanh
        """.split(),
        1e-05,
    ),
    **dict.fromkeys(
        """
        digamma special_i0e special_i1e special_i1 i0 special_log_ndtr special_erfcx sinc
        """.split(),
        2e-05,
    ),
    **dict.fromkeys(
        """
        lgamma tan
        """.split(),
        0.0001,
    ),
}


def tolerances(name, dtype, rtol=None):
    """Half types are computed in float32 by both and rounded once; others as LOOSE says."""
    loose = LOOSE.get(name, rtol or 4e-6)
    if dtype in (torch.float32, torch.complex64):
        return {"rtol": loose, "atol": loose}
    if dtype in (torch.float64, torch.complex128):
        return {"rtol": 1e-10 if name not in LOOSE else 1e-8, "atol": 1e-12}
    return {"rtol": 1.6e-2 if dtype == torch.bfloat16 else 2e-3, "atol": 1e-5}


def inside(values, domain):
    if domain is None or not values.dtype.is_floating_point:
        return values
    keep = values.isnan() | ((values >= domain[0]) & (values <= domain[1]))
    return values[keep]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    tried = 0
    for dtype in (*FLOATS, *INTS, torch.bool, *COMPLEX):
        x = torch.cat([inside(edges(dtype), UNARY[name]), tame(dtype)])
        if dtype.is_complex:
            x = tame(dtype)
        if not supported(name, x):
            continue
        tried += 1
        check(name, x, **tolerances(name, dtype))
    assert tried


BINARY = """
    add.Tensor sub.Tensor rsub.Tensor mul.Tensor div.Tensor remainder.Tensor fmod.Tensor floor_divide maximum
    minimum fmax fmin atan2 hypot copysign.Tensor logaddexp logaddexp2 xlogy.Tensor special_xlog1py eq.Tensor
    ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor logical_and logical_or logical_xor bitwise_and.Tensor
    bitwise_or.Tensor bitwise_xor.Tensor heaviside nextafter gcd lcm bitwise_left_shift.Tensor
    bitwise_right_shift.Tensor clamp_min.Tensor clamp_max.Tensor
""".split()
DIVISIONS = {"div.Tensor", "remainder.Tensor", "fmod.Tensor", "floor_divide"}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    tried = 0
    for dtype in (*FLOATS, *INTS, torch.bool, *COMPLEX):
        x, y = pairs(edges(dtype), edges(dtype))
        if dtype.is_complex:
            x, y = pairs(tame(dtype), tame(dtype))
        if not dtype.is_floating_point and not dtype.is_complex and name in DIVISIONS:
            keep = (y != 0) & ~((y == -1) & (x == x.min())) if dtype != torch.bool else y
            x, y = x[keep], y[keep]
        if name in ("gcd", "lcm") and not dtype.is_floating_point:
            x, y = pairs(tame(dtype), tame(dtype))
        if "shift" in name and not dtype.is_floating_point and dtype != torch.bool and not dtype.is_complex:
            y = y.clamp(-1, 70) if dtype != torch.uint8 else y.clamp(0, 70)
        if name in ("remainder.Tensor", "floor_divide", "fmod.Tensor") and dtype.is_floating_point:
            big = torch.finfo(dtype).max  # quotients of the largest by the smallest have no digits left
            keep = (x.abs() < big) & (y.abs() < big)
            x, y = x[keep], y[keep]
        if not supported(name, x, y) or (dtype.is_complex and name == "logaddexp2"):
            continue
        tried += 1
        check(name, x, y, **tolerances(name, dtype, 1e-5))
    assert tried


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_div_modes(mode):
    for dtype in (*FLOATS, *INTS):
        x, y = pairs(edges(dtype), edges(dtype))
        if not dtype.is_floating_point:
            keep = (y != 0) & ~((y == -1) & (x == x.min()))
            x, y = x[keep], y[keep]
        check("div.Tensor_mode", x, y, rounding_mode=mode, **tolerances("div", dtype))
        check("div.Scalar_mode", x, 3, rounding_mode=mode, **tolerances("div", dtype))
        check("div.Scalar_mode", x, -0.75, rounding_mode=mode, **tolerances("div", dtype))


SCALARS = """
    add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar remainder.Scalar fmod.Scalar floor_divide.Scalar
    eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar copysign.Scalar xlogy.Scalar_Other
    special_xlog1py.other_scalar bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar clamp_min clamp_max
    bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar
""".split()


@pytest.mark.parametrize("name", SCALARS)
def test_number_operand(name):
    tried = 0
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
    ):
        x = tame(dtype)
        for number in (2, 2.5, True):
            if not supported(name, x, number):
                continue
            tried += 1
            check(name, x, number, **tolerances(name, dtype, 1e-5))
    assert tried


@pytest.mark.parametrize(
    "name",
    [
        "add.Tensor",
        "mul.Tensor",
        "div.Tensor",
        "maximum",
        "lt.Tensor",
        "where.self",
        "pow.Tensor_Tensor",
    ],
)
def test_promotion(name):
    dtypes = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    )
    for a in dtypes:
        for b in dtypes:
            for shapes in (((3,), (3,)), ((3,), ()), ((), ())):
                args = [torch.ones(shapes[0]).to(a), torch.ones(shapes[1]).to(b)]
                if name == "where.self":
                    args.insert(0, torch.tensor(True))
                if {a, b} != {torch.float16, torch.complex64} and supported(name, *args):  # complex32 is not supported
                    check(
                        name,
                        *args,
                        values=shapes == ((3,), (3,)) and a == torch.float32,
                    )
        for number in (
            2,
            2.5,
            True,
            zero_dim(torch.tensor(2)),
            zero_dim(torch.tensor(2.0, dtype=torch.float64)),
        ):
            plain = number.tensor if isinstance(number, zero_dim) else number
            if name != "where.self" and supported(name, torch.ones(3).to(a), plain):
                check(name, torch.ones(3).to(a), number, values=number == 2.5)


def test_power():
    for dtype in (*FLOATS, torch.int64, torch.int32, torch.uint8):
        x = edges(dtype)
        for n in (0, 1, 2, 3, 5, 0.5, -0.5, -1, -2, 2.5, -3, 1.0, 2.0):
            if dtype == torch.float16 and abs(n) == 0.5:
                x = x[(x != -INF) & (x != 0)]  # PyTorch's CPU kernel takes the power there, others the root
            if supported("pow.Tensor_Scalar", x, n):
                check("pow.Tensor_Scalar", x, n, **tolerances("pow", dtype, 1e-5))
        for base in (0, 1, 2, 2.5, -2):
            if supported("pow.Scalar", base, tame(dtype)):
                check("pow.Scalar", base, tame(dtype), **tolerances("pow", dtype, 1e-5))
        a, b = pairs(tame(dtype), tame(dtype))
        check("pow.Tensor_Tensor", a, b, **tolerances("pow", dtype, 2e-5))
        a, b = pairs(edges(dtype), edges(dtype))
        if dtype in (torch.float32, torch.float64):
            check("pow.Tensor_Tensor", a, b, **tolerances("pow", dtype, 2e-5))
    check("pow.Tensor_Scalar", torch.tensor([True, False]), 2)
    check_class(
        "pow.Tensor_Tensor",
        torch.tensor([True]),
        NotImplementedError,
        torch.tensor([True]),
    )
    check_error("pow.Tensor_Scalar", torch.ones(3, dtype=torch.int64), -1)


def test_alpha():
    x, y = torch.randn(5), torch.randn(5)
    for name in ("add.Tensor", "sub.Tensor", "rsub.Tensor", "add.Scalar", "sub.Scalar"):
        other = 3 if "Scalar" in name else y
        check(name, x, other, alpha=2.5)
        check(name, x, other, alpha=1)
        check(name, x.bfloat16(), 3 if "Scalar" in name else y.bfloat16(), alpha=0.1, atol=1e-2)
    check("add.Tensor", torch.tensor([True]), torch.tensor([True]), alpha=True)
    check("add.Tensor", torch.tensor([1, 2]), torch.tensor([3, 4]), alpha=-2)
    check(
        "add.Tensor",
        torch.randn(3, dtype=torch.complex64),
        torch.randn(3, dtype=torch.complex64),
        alpha=1 + 2j,
    )


def test_errors():
    whole, mask, x = (
        torch.tensor([1, 2]),
        torch.tensor([True, False]),
        torch.randn(2, 3),
    )
    check_error("add.Tensor", whole, whole, alpha=1.5)
    check_error("add.Tensor", x, x, alpha=1j)
    check_error("add.Tensor", whole, whole, alpha=True)
    check_error("sub.Tensor", mask, mask)
    check_error("sub.Tensor", mask, whole)
    check_error("rsub.Tensor", mask, whole)
    check_error("sub.Tensor", x, True)
    check_error("neg", mask)
    check_error("add.Tensor", torch.ones(3), torch.ones(4))
    check_error("add.Tensor", torch.ones(2, 3), torch.ones(3, 2))
    check_error("add.Tensor", torch.ones(2, 3, 4), torch.ones(2, 1))
    check_error(
        "add.Tensor",
        torch.ones(2, dtype=torch.uint16),
        torch.ones(2, dtype=torch.int16),
    )
    check_error("add.Tensor", torch.ones(2, dtype=torch.float8_e5m2), torch.ones(2))
    check_error("div.Tensor_mode", x, x, rounding_mode="up")
    check_error("clamp", x)
    check_error("clamp", torch.randn(2, dtype=torch.complex64), 1)
    check_error(
        "maximum",
        torch.randn(2, dtype=torch.complex64),
        torch.randn(2, dtype=torch.complex64),
    )
    check_error("where.self", x, x, x)
    check_error("masked_fill.Scalar", x, x, 1)
    check_error("masked_fill.Tensor", x, x > 0, torch.ones(2))
    check_error("fill.Tensor", x, torch.ones(2))
    check_error("relu", mask)
    check_error("gelu", x, approximate="fast")
    check_error("glu", x, 1)
    check_error("glu", x, 2)
    check_error("lerp.Tensor", x, x.double(), x)
    check_error("addcdiv", whole, whole, whole)
    check_error("heaviside", x, x.double())
    check_error("sign", torch.randn(2, dtype=torch.complex64))
    check_error("complex", x, x.double())
    check_error("polygamma", -1, x)
    for name in ("gelu", "silu", "elu", "erfinv", "logical_and"):
        if name in ("gelu", "silu", "elu"):
            check_class(name, whole, NotImplementedError)
    check_class("bitwise_and.Tensor", x, NotImplementedError, x)
    check_class(
        "lt.Tensor",
        torch.randn(2, dtype=torch.complex64),
        NotImplementedError,
        torch.randn(2, dtype=torch.complex64),
    )


def check_class(name, x, kind, *others):
    from lower_harness import RowError, run

    with pytest.raises(RowError) as failed:
        run(name, x, *others, execute=False)
    assert failed.value.kind is kind and "not implemented for" in failed.value.message


def test_three_operands():
    for dtype in FLOATS:
        x, y, z = tame(dtype), tame(dtype).flip(0), tame(dtype).roll(3)
        for name in ("addcmul", "addcdiv"):
            check(name, x, y, z)
            check(name, x, y, z, value=0.7)
            check(
                name,
                x.view(4, 6),
                y[:6],
                z.view(4, 6)[:, :1],
                value=2,
                **tolerances(name, dtype, 1e-5),
            )
        check("lerp.Tensor", x, y, z, **tolerances("lerp", dtype, 1e-5))
        check("lerp.Scalar", x, y, 0.3)
        check("lerp.Scalar", x, y, 0.9)
    whole = tame(torch.int64)
    check("addcmul", whole, whole, whole, value=3)


def test_clamp():
    for dtype in (*FLOATS, torch.int64, torch.int32):
        x = edges(dtype)
        check("clamp", x, -1, 2)
        check("clamp", x, None, 2)
        check("clamp", x, -1)
        check("clamp", x, 5, 2)  # max wins
        check("clamp", x, -1.5, 2.5)
        low, high = tame(dtype)[:1], tame(dtype)[1:2]
        check("clamp.Tensor", x, low, high)
        check("clamp.Tensor", x, None, high)
        check("clamp.Tensor", x, low.double(), None)
    check("clamp", edges(torch.float32), NAN, 2)
    check("clamp.Tensor", edges(torch.float32), torch.tensor([NAN]), None)
    check("clamp", torch.tensor([True, False]), 0, 1)
    check("clamp", edges(torch.uint8), 3, 100)


def test_choose():
    condition = torch.tensor([[True], [False], [True]])
    check("where.self", condition, torch.randn(3, 4), torch.randn(4))
    check("where.self", condition.to(torch.uint8), torch.randn(3, 4), torch.randn(4))
    check("where.self", condition, torch.randn(3, 4), zero_dim(torch.tensor(2.0)))
    x = torch.randn(3, 4)
    check("masked_fill.Scalar", x, condition, 2.5)
    check("masked_fill.Scalar", x, condition, -INF)
    check("masked_fill.Scalar", torch.randn(4), condition, 2.5)
    check("masked_fill.Tensor", x, x > 0, torch.tensor(3.0))
    check("masked_fill.Scalar", torch.arange(4), torch.arange(4) > 1, 7)
    check("masked_fill.Scalar", x.bfloat16(), condition, 0.1)
    for value in (2, 2.5, True):
        for dtype in (torch.float32, torch.int64, torch.bool):
            check("fill.Scalar", torch.zeros(2, 3, dtype=dtype).t(), value)
    check("fill.Tensor", torch.zeros(2, 3), torch.tensor(2.5))
    check("nan_to_num", edges(torch.float32), 1.5, 2.5, -3.5)
    check("nan_to_num", edges(torch.float32).to(torch.complex64), 1.0)
    check("isin.Tensor_Tensor", tame(torch.int64).view(4, 6), torch.tensor([1, 2, 3]))
    check("isin.Tensor_Tensor", tame(torch.int64), torch.tensor([1, 2, 3]), invert=True)
    check("isin.Tensor_Scalar", tame(torch.int64), 3)
    check("isin.Tensor_Tensor", tame(torch.float32), torch.tensor([]))
    check("round.decimals", torch.randn(50) * 100, decimals=2)
    check("round.decimals", torch.randn(50) * 1000, decimals=-2)
    check("logit", torch.rand(20), 0.1, rtol=1e-5)


ACTIVATIONS = {
    "gelu": [{"approximate": "none"}, {"approximate": "tanh"}],
    "hardtanh": [(-2, 0.5)], "leaky_relu": [(0.2,), (-0.5,)], "elu": [(0.5, 1.5, 2.0)], "celu": [(0.7,)],
    "softplus": [(2.0, 5.0)],
    "threshold": [(0.5, 7.0)], "hardshrink": [(1.0,)], "softshrink": [(1.0,)],
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_arguments(name):
    for dtype in FLOATS:
        for given in ACTIVATIONS[name]:
            args, kwargs = (given, {}) if isinstance(given, tuple) else ((), given)
            x = inside(edges(dtype), (-100, 100) if name == "gelu" else None)
            check(name, x, *args, **kwargs, **tolerances(name, dtype, 1e-5))


BACKWARD = {
    "gelu_backward": [{"approximate": "none"}, {"approximate": "tanh"}],
    "silu_backward": [()], "mish_backward": [()], "sigmoid_backward": [()], "tanh_backward": [()],
    "hardtanh_backward": [(-1, 1.5)], "hardswish_backward": [()], "hardsigmoid_backward": [()],
    "leaky_relu_backward": [(0.2, False)], "softplus_backward": [(2.0, 5.0)], "threshold_backward": [(0.5,)],
    "hardshrink_backward": [(0.5,)], "softshrink_backward": [(0.5,)], "logit_backward": [(), (0.1,)],
}  # fmt: skip


@pytest.mark.parametrize("name", BACKWARD)
def test_activation_gradients(name):
    for dtype in FLOATS:
        g, x = pairs(tame(dtype)[:5], torch.cat([edges(dtype)[:20], tame(dtype)]))
        for given in BACKWARD[name]:
            args, kwargs = (given, {}) if isinstance(given, tuple) else ((), given)
            tolerance = tolerances(name, dtype, 2e-5)
            if name == "hardsigmoid_backward" and dtype == torch.float64:
                tolerance["rtol"] = 1e-7  # PyTorch's constant 1/6 is a float32
            if dtype in (torch.float16, torch.bfloat16):
                tolerance["atol"] = 4e-2 if dtype == torch.bfloat16 else 4e-3  # PyTorch rounds in between in some
            check(name, g, x, *args, **kwargs, **tolerance)


def test_other_gradients():
    for dtype in FLOATS:
        g, x = tame(dtype), tame(dtype).flip(0)
        t = tolerances("", dtype, 1e-5)
        if dtype in (torch.float16, torch.bfloat16):
            t["atol"] = 3e-2 if dtype == torch.bfloat16 else 4e-3  # PyTorch rounds in between in some
        for is_result in (True, False):
            y = overload("elu")(x, 0.5, 1.5, 1.0) if is_result else x
            check("elu_backward", g, 0.5, 1.5, 1.0, is_result, y, **t)
        check(
            "log_sigmoid_forward",
            x,
            want=[torch.nn.functional.logsigmoid(x), torch.empty(0, dtype=dtype)],
            **t,
        )
        check("log_sigmoid_backward", g, x, overload("log_sigmoid_forward")(x)[1], **t)
        check("glu", x.view(4, 6), 1, **t)
        check("glu", x.view(4, 6), 0, **t)
        check("glu_backward", tame(dtype)[:12].view(4, 3), x.view(4, 6), 1, **t)
        check("_prelu_kernel", x.view(4, 6), tame(dtype)[:6].view(1, 6), **t)
        check(
            "_prelu_kernel_backward",
            g.view(4, 6),
            x.view(4, 6),
            tame(dtype)[:6].view(1, 6),
            **t,
        )
        for training in (True, False):
            check(
                "rrelu_with_noise_backward",
                g,
                x,
                x.abs(),
                0.1,
                0.3,
                training,
                False,
                **t,
            )


def test_complex():
    a, b = torch.randn(3, 4), torch.randn(4)
    check("complex", a, b)
    check("polar", a.abs(), b, rtol=1e-5)
    z = torch.randn(3, 4, dtype=torch.complex64)
    for name in (
        "abs",
        "angle",
        "sgn",
        "_conj_physical",
        "neg",
        "reciprocal",
        "exp",
        "log",
        "sqrt",
        "sin",
        "tanh",
        "sigmoid",
    ):
        check(name, z, rtol=1e-4, atol=1e-5)
    for name in (
        "add.Tensor",
        "sub.Tensor",
        "mul.Tensor",
        "div.Tensor",
        "eq.Tensor",
        "pow.Tensor_Tensor",
    ):
        check(name, z, z.flip(0), rtol=1e-4, atol=1e-5)
    check("mul.Tensor", z, 2 + 3j, rtol=1e-5)
    check("mul.Tensor", a, 2 + 3j, rtol=1e-5)
    check("view_as_real_copy", z, strides=False)
    check("view_as_complex_copy", torch.randn(3, 2))


def views():
    base = torch.randn(2, 3, 4, 5)
    yield base
    yield base.permute(3, 0, 2, 1)
    yield base.to(memory_format=torch.channels_last)
    yield base[:, :, ::2, 1:4]
    yield base[:, :1]
    yield base.permute(0, 2, 3, 1)[:, :, :, :1]
    yield base.transpose(1, 2)
    yield torch.randn(4, 5).expand(2, 3, 4, 5)
    yield torch.randn(2, 1, 4, 1)
    yield torch.randn(1, 3, 1, 5).permute(0, 3, 2, 1).permute(0, 3, 2, 1)
    yield torch.as_strided(torch.randn(200), (2, 1, 4, 5), (20, 7, 5, 1))
    yield torch.as_strided(torch.randn(200), (2, 3, 4, 5), (60, 1, 15, 3))
    yield torch.randn(5, 4).t()[None, None]
    yield torch.randn(0, 3, 4, 5).permute(1, 2, 3, 0)
    yield torch.randn(5)
    yield torch.randn(())


def test_strides():
    """By the meta kernels; broadcasting and ambiguous orders included. Values are not computed."""
    every = list(views())
    for x in every:
        for name in ("exp", "relu", "clone", "neg", "zeros_like", "fill.Scalar"):
            args = (x, 1) if name == "fill.Scalar" else (x,)
            check(name, *args, values=False)
        check("add.Tensor", x, 2.0, values=False)
        check("mul.Scalar", x, 2.0, values=False)
        check("clamp", x, -1, 1, values=False)
        check("_to_copy", x, dtype=torch.float64, values=False)
        for y in every:
            try:
                torch.broadcast_shapes(x.shape, y.shape)
            except RuntimeError:
                continue
            check("add.Tensor", x, y, values=False)
            check("where.self", x > 0, y, x, values=False)
            check("lt.Tensor", y, x.double(), values=False)


def test_empty_and_scalars():
    for shape in ((), (0,), (2, 0, 3), (1,), (1, 1)):
        x = torch.ones(shape)
        check("add.Tensor", x, x)
        check("exp", x)
        check("clamp", x, 0, 1)
        check("where.self", x > 0, x, x)


def test_whole_functions():
    check("ldexp.Tensor", torch.randn(5), torch.tensor([1, 2, -3, 0, 5]))
    check("polygamma", 0, torch.rand(9) + 0.5, rtol=1e-4)
    check("polygamma", 2, torch.rand(9) + 0.5, rtol=1e-4)
    poles = torch.tensor([-7.7, -3.3, -0.5, 0.0, 0.3, 1.0, 5.0, 50.0, NAN])
    for n in (0, 1, 2, 3):
        check("polygamma", n, poles, rtol=1e-4)
    below = torch.tensor([-0.5, -1.25, -2.75, -7.9375, -8.478373, -30.4, -1000.25])
    for s in (2.0, 3.0, 4.0, 2.5, 1.0, 0.5):
        check("special_zeta", torch.full_like(below, s), below, rtol=1e-4, atol=1e-5)
    check("polygamma", 2, below, rtol=1e-4, atol=1e-5)
    check("polygamma", 3, below, rtol=1e-4, atol=1e-5)
    check("polygamma", 1, torch.tensor([INF]))
    for s in (0.5, 1.0, 2.0, 3.5):
        check("special_zeta", torch.full((6,), s), torch.tensor([0.0, -1.0, -2.5, 0.5, 1.0, 30.0]), rtol=1e-4)
    check("mvlgamma", torch.rand(9) + 3, 2, rtol=1e-4, atol=1e-5)
    check("special_zeta", torch.rand(9) + 2, torch.rand(9) + 1, rtol=1e-4)
    check("xlogy.Scalar_Self", 2, torch.rand(5), rtol=1e-5)
    check("bitwise_and.Scalar_Tensor", 6, torch.arange(9))
    check("remainder.Scalar_Tensor", 7, torch.tensor([2, 3, -4]))
    check("_add_relu.Tensor", torch.randn(9), torch.randn(9), alpha=2)
    check("__lshift__.Scalar", torch.arange(9), 2)
    check("__rshift__.Tensor", torch.arange(-9, 9), torch.tensor(1))
