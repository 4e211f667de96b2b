"""Numbers that a dtype cannot hold, out= tensors of another dtype or that share memory: as on the CPU."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.cpu


def outcome(function, device):
    """The result on the CPU, or the error's class and first line."""
    try:
        result = function(device)
        return result.cpu() if isinstance(result, torch.Tensor) else result
    except Exception as error:  # noqa: BLE001
        return type(error), str(error).split("\n")[0]


def check(function, words=True):
    got, want = outcome(function, "tpu"), outcome(function, "cpu")
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor), got
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)
    else:
        assert (got if words else got[0]) == (want if words else want[0])


def index(device):
    return torch.tensor([1], device=device)


def mask(device):
    return torch.tensor([True, False], device=device)


FILLS = {
    "fill_": lambda x, v: x.fill_(v),
    "full": lambda x, v: torch.full((2,), v, dtype=x.dtype, device=x.device),
    "full_like": lambda x, v: torch.full_like(x, v),
    "index_fill": lambda x, v: x.index_fill(0, index(x.device), v),
    "masked_fill": lambda x, v: x.masked_fill(mask(x.device), v),
    "masked_fill by a tensor": lambda x, v: x.masked_fill(mask(x.device), torch.tensor(v)),
    "new_full": lambda x, v: x.new_full((2,), v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "scatter": lambda x, v: x.scatter(0, index(x.device), v),
}
NUMBERS = (2j, 1e40, -1e9, 300, -300, -1, -1.0, 2**40, 2**62, 127.5, float("nan"), -float("inf"), True)
DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex64)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", FILLS)
def test_a_number_that_the_dtype_does_not_hold(name, dtype):
    for number in NUMBERS:
        if name == "pad" and isinstance(number, complex):  # the schema wants a float
            continue
        check(lambda d, v=number: FILLS[name](torch.zeros(2, dtype=dtype, device=d), v))


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.uint8), ids=lambda dtype: str(dtype)[6:])
def test_limits_that_the_dtype_does_not_hold(dtype):
    def zeros(device):
        return torch.zeros(2, dtype=dtype, device=device)

    for number in (-1e9, 1e40, 300, 2**40, 2.5):
        check(lambda d, v=number: zeros(d).clamp(max=v), words=dtype != torch.uint8)
        check(lambda d, v=number: zeros(d).clamp(min=v), words=dtype != torch.uint8)
        check(lambda d, v=number: F.threshold(zeros(d), 0, v))


def test_assigning_a_number_to_an_element_of_half_precision():
    for dtype in (torch.float16, torch.bfloat16):
        for number in (-1e9, 1e40, 2**40, 2j):

            def assign(d, dtype=dtype, number=number):
                x = torch.zeros(2, dtype=dtype, device=d)
                x[0] = number
                return x

            check(assign)


def single(d):
    return torch.arange(6.0, device=d).view(2, 3)


def square(d):
    return single(d) @ single(d).t() + torch.eye(2, device=d)


def places(d):
    return torch.zeros(2, 3, dtype=torch.int64, device=d)


# (function, arguments, what `out` must be)
OUTS = {
    "adaptive_avg_pool2d": (torch._C._nn.adaptive_avg_pool2d, lambda d: (single(d)[None], (1, 1)), "any"),
    "addmm": (torch.addmm, lambda d: (square(d), square(d), square(d)), "exact"),
    "amax": (torch.amax, lambda d: (single(d), 1), "exact"),
    "argmax": (torch.argmax, lambda d: (single(d),), "exact"),
    "avg_pool2d": (torch._C._nn.avg_pool2d, lambda d: (single(d)[None], 2), "exact"),
    "bucketize": (torch.bucketize, lambda d: (single(d), single(d)[0]), "exact"),
    "ceil": (torch.ceil, lambda d: (single(d),), "exact"),
    "conj_physical": (torch.conj_physical, lambda d: (single(d),), "exact"),
    "exp": (torch.exp, lambda d: (single(d),), "any"),
    "gather": (torch.gather, lambda d: (single(d), 1, places(d)), "exact"),
    "gelu": (torch._C._nn.gelu, lambda d: (single(d),), "exact"),
    "index_select": (torch.index_select, lambda d: (single(d), 1, places(d)[0]), "exact"),
    "inv": (torch.linalg.inv, lambda d: (square(d),), "exact"),
    "mm": (torch.mm, lambda d: (square(d), square(d)), "exact"),
    "multiply": (torch.mul, lambda d: (single(d), 2), "any"),
    "softmax": (torch.softmax, lambda d: (single(d), 1), "any"),
    "sum": (torch.sum, lambda d: (single(d), 1), "any"),
    "take": (torch.take, lambda d: (single(d), places(d)), "exact"),
    "tril": (torch.tril, lambda d: (single(d),), "exact"),
    "where": (torch.where, lambda d: (single(d) > 2, single(d), single(d)), "exact"),
}


@pytest.mark.parametrize("name", OUTS)
def test_out_of_another_dtype(name):
    function, arguments, kind = OUTS[name]
    want = function(*arguments("cpu"))
    check(lambda d: function(*arguments(d), out=torch.empty_like(want, device=d)))

    def wider(d):
        dtype = torch.complex128 if want.dtype == torch.float64 else torch.float64
        return function(*arguments(d), out=torch.empty(want.shape, dtype=dtype, device=d))

    check(wider, words=False)
    assert isinstance(outcome(wider, "tpu"), tuple) == isinstance(outcome(wider, "cpu"), tuple)
    if kind == "exact":
        with pytest.raises(RuntimeError):
            wider("tpu")


def test_out_of_values_and_indices():
    def maximum(d, values=torch.float32, indices=torch.int64):
        out = torch.empty(2, dtype=values, device=d), torch.empty(2, dtype=indices, device=d)
        return torch.max(single(d), 1, out=out)[1]

    check(maximum)
    check(lambda d: maximum(d, values=torch.float64))
    check(lambda d: maximum(d, indices=torch.int32))


def test_out_that_shares_memory():
    def selected(d, out):
        x = torch.arange(6.0, device=d)
        return torch.masked_select(x, x > 2, out=out(x))

    check(lambda d: selected(d, lambda x: x))
    check(lambda d: selected(d, lambda x: x[1:4]))
    check(lambda d: selected(d, lambda x: torch.zeros(1, device=d).expand(3)))
    check(lambda d: selected(d, lambda x: torch.zeros(3, device=d)))


def test_conj_physical_has_a_kernel():
    x = torch.tensor([1 + 2j, -3j], device="tpu")
    before = torch.tpu.fallback_counts()
    out = torch.conj_physical(x, out=torch.empty_like(x))
    x.conj_physical_()
    assert torch.tpu.fallback_counts() == before
    assert out.tolist() == x.tolist() == [1 - 2j, 3j]


def test_a_complex_number_is_true():
    for number in (2j, 0j, 1 + 0j):
        check(lambda d, v=number: torch.zeros(2, dtype=torch.bool, device=d).fill_(v))
        check(lambda d, v=number: torch.zeros(2, dtype=torch.bool, device=d).masked_fill(mask(d), v))


@pytest.mark.parametrize("dtype", (torch.bool, torch.int64, torch.float32), ids=lambda dtype: str(dtype)[6:])
def test_factors_of_addr(dtype):
    for beta in (3, 0, True, 2.5):
        for alpha in (2, False, 0):

            def addr(d, beta=beta, alpha=alpha):
                x = torch.tensor([[0, 1], [1, 1]], dtype=dtype, device=d)
                return torch.addr(x, x[0], x[1], beta=beta, alpha=alpha)

            check(addr)


def test_zeta_outside_its_domain():
    s, q = torch.tensor([-8, -2, 0, 1, 2, 3]), torch.arange(-3, 4)
    for dtype in (torch.int64, torch.float64):
        check(lambda d, t=dtype: torch.special.zeta(s.to(d, t)[:, None], q.to(d, t)))


def test_what_losses_and_roll_refuse():
    x = {d: torch.ones(3, 4, device=d) for d in ("cpu", "tpu")}
    for dtype in (torch.float32, torch.int32):
        check(lambda d, t=dtype: F.multi_margin_loss(x[d], torch.zeros(3, dtype=t, device=d)))
        check(lambda d, t=dtype: F.multilabel_margin_loss(x[d], torch.zeros(3, 4, dtype=t, device=d)))
    check(lambda d: torch.roll(torch.ones((), device=d), 0, 0))
    check(lambda d: torch.roll(torch.ones((), device=d), 1))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for number in (-0.5, 0.5, 1e39, float("nan")):
            check(lambda d, t=dtype, v=number: F.softshrink(torch.ones(2, dtype=t, device=d), v))
