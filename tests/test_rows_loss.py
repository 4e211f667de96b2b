"""Losses and their gradients against PyTorch's CPU kernels."""

import itertools
import math

import pytest
import torch
from lower_harness import RowError, check, check_error, expected, run, text
from test_rows_reduce import cases, make

pytestmark = pytest.mark.cpu

NONE, MEAN, SUM = 0, 1, 2
REDUCTIONS = [NONE, MEAN, SUM]
X, Y, W = make(4, 5), make(4, 5, seed=1), make(4, 5, seed=2).abs()


def half_tolerance(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype in (torch.bfloat16, torch.float16) else {"rtol": 1e-5}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_elementwise(reduction, dtype):
    x, y, r = X.to(dtype), Y.to(dtype), half_tolerance(dtype)
    g = make(4, 5, seed=3).to(dtype) if reduction == NONE else make(seed=3).to(dtype)
    for name, extra in (
        ("mse_loss", ()),
        ("smooth_l1_loss", (0.7,)),
        ("smooth_l1_loss", (0.0,)),
        ("huber_loss", (0.7,)),
        ("soft_margin_loss", ()),
    ):
        check(name, x, y, reduction, *extra, **r)
        check(name, x.t(), y.t(), reduction, *extra, **r)
        check(name + "_backward", g, x, y, reduction, *extra, **r)
    p, t = X.sigmoid().to(dtype), Y.sigmoid().to(dtype)
    for weight in (None, W.to(dtype)):
        check("binary_cross_entropy", p, t, weight, reduction, **r)
        check("binary_cross_entropy_backward", g, p, t, weight, reduction, **r)
        for pos in (None, W[0].to(dtype)):
            check("binary_cross_entropy_with_logits", x, t, weight, pos, reduction, **r)


@cases(
    ("mse_loss", X, Y[0], MEAN),
    ("mse_loss", make(0), make(0), MEAN),
    ("mse_loss", X, Y.double(), NONE),
    ("mse_loss", make(2, 3, 4, 5).to(memory_format=torch.channels_last), make(2, 3, 4, 5), NONE),
    ("binary_cross_entropy", torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0]), None, NONE),
    (
        "binary_cross_entropy_with_logits",
        torch.tensor([1000.0, -1000.0, 0.0]),
        torch.tensor([0.0, 1.0, 1.0]),
        None,
        None,
        NONE,
    ),
    ("mse_loss", make(), make(), MEAN),
)
def test_elementwise_cases(name, args, kwargs):
    check(name, *args, rtol=1e-5, **kwargs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll(reduction, dtype, weighted):
    weight = make(7, seed=4).abs().to(dtype) if weighted else None
    r = half_tolerance(dtype)
    shapes = [((6, 7), (6,), ""), ((7,), (), ""), ((0, 7), (0,), ""), ((2, 7, 3, 4), (2, 3, 4), "2d")]
    for shape, target_shape, kind in shapes:
        x = make(*shape).to(dtype)
        target = torch.randint(0, 7, target_shape, generator=torch.Generator().manual_seed(1))
        if target.numel() > 2:
            target.view(-1)[1] = -100
        for ignore in (-100, 3):
            if ignore == 3:
                target = target.abs().clamp(max=6)
            name = f"nll_loss{kind}_forward"
            out, total = run(name, x, target, weight, reduction, ignore)
            want, want_total = expected(name, x, target, weight, reduction, ignore)
            torch.testing.assert_close(
                out, want, equal_nan=True, **({"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {})
            )
            if reduction != NONE:
                torch.testing.assert_close(
                    total, want_total, **({"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {})
                )
            grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
            check(f"nll_loss{kind}_backward", grad, x, target, weight, reduction, ignore, want_total, **r)


def test_nll_reads_only_its_class():
    x = torch.full((2, 3), math.nan)
    x[0, 1] = 1.0
    out, _ = run("nll_loss_forward", x, torch.tensor([1, -100]), None, MEAN, -100)
    assert out.item() == -1.0
    assert "gather" not in text("nll_loss_forward", X, torch.zeros(4, dtype=torch.int64), None, MEAN, -100)


def test_nll_target_out_of_range_is_no_crash():
    out, _ = run("nll_loss_forward", X, torch.tensor([0, 1, 2**32 + 1, -7]), None, NONE, -100)
    assert out[2] == 0 and out[3] == 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_margins(reduction, dtype):
    r = {"rtol": 1e-5, "atol": 1e-6}
    for shape in ((4, 5), (5,)):
        x = make(*shape, dtype=dtype)
        classes = torch.tensor([0, 4, 2, 2]) if len(shape) == 2 else torch.tensor(3)
        g = make(4, dtype=dtype) if reduction == NONE and len(shape) == 2 else make(dtype=dtype)
        for p in (1, 2):
            for weight in (None, make(5, dtype=dtype).abs()):
                check("multi_margin_loss", x, classes, p, 0.8, weight, reduction, **r)
                check("multi_margin_loss_backward", g, x, classes, p, 0.8, weight, reduction, **r)
        labels = torch.tensor([[3, 0, -1, 1, 2], [-1, 0, 1, 2, 3], [0, 1, 2, 3, 4], [2, 2, 1, -1, -1]])
        labels = labels if len(shape) == 2 else labels[0]
        check("multilabel_margin_loss_forward", x, labels, reduction, **r)
        is_target = expected("multilabel_margin_loss_forward", x, labels, reduction)[1]
        check("multilabel_margin_loss_backward", g, x, labels, reduction, is_target, **r)


@pytest.mark.parametrize(
    "dtype,zero_infinity,joined,on_device",
    [*itertools.product([torch.float32], *[[False, True]] * 3), (torch.float64, True, False, True)],
)
def test_ctc(dtype, zero_infinity, joined, on_device):
    log_probs = make(12, 4, 6, dtype=dtype).log_softmax(2)
    targets = torch.tensor([[1, 2, 2, 5, 3], [3, 3, 3, 1, 1], [4, 1, 1, 1, 1], [5, 5, 5, 5, 5]])
    inputs, lengths = [12, 9, 12, 5], [5, 3, 0, 5]  # the last has no alignment: 5 equal labels need 9 steps
    if joined:
        targets = torch.cat([t[:n] for t, n in zip(targets, lengths, strict=True)])
    ours = [torch.tensor(v) if on_device else v for v in (inputs, lengths)]
    suffix = ".Tensor" if on_device else ""
    loss, alpha = run("_ctc_loss" + suffix, log_probs, targets, *ours, 0, zero_infinity)
    want, want_alpha = expected("_ctc_loss", log_probs, targets, inputs, lengths, 0, zero_infinity)
    torch.testing.assert_close(loss, want)
    grad = make(4, dtype=dtype)
    got = run("_ctc_loss_backward" + suffix, grad, log_probs, targets, *ours, loss, alpha, 0, zero_infinity)
    expect = expected(
        "_ctc_loss_backward", grad, log_probs, targets, inputs, lengths, want, want_alpha, 0, zero_infinity
    )[0]
    torch.testing.assert_close(got, expect, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_ctc_other_blank_and_no_labels():
    log_probs = make(5, 2, 4).log_softmax(2)
    for targets, lengths in ((torch.zeros(2, 0, dtype=torch.int64), [0, 0]), (torch.tensor([[0, 1], [2, 0]]), [2, 1])):
        args = (log_probs, targets, [5, 4], lengths, 3, False)
        loss, alpha = run("_ctc_loss", *args)
        want, want_alpha = expected("_ctc_loss", *args)
        torch.testing.assert_close(loss, want)
        tail = args[1:4]
        got = run("_ctc_loss_backward", make(2), log_probs, *tail, loss, alpha, 3)
        expect = expected("_ctc_loss_backward", make(2), log_probs, *tail, want, want_alpha, 3)[0]
        torch.testing.assert_close(got, expect, rtol=1e-4, atol=1e-5)


@cases(
    ("mse_loss", make(2, 3), make(2, 4), MEAN),
    ("huber_loss", X, Y, MEAN, 0.0),
    ("smooth_l1_loss", X, Y, MEAN, -1.0),
    ("nll_loss_forward", X, torch.zeros(3, dtype=torch.int64), None, MEAN, -100),
    ("nll_loss_forward", make(2, 3, 4), torch.zeros(2, dtype=torch.int64), None, MEAN, -100),
    ("nll_loss_forward", X, torch.zeros(4, 2, dtype=torch.int64), None, MEAN, -100),
    ("nll_loss_forward", X, torch.zeros(4, dtype=torch.int64), make(3), MEAN, -100),
    ("nll_loss2d_forward", X, torch.zeros(4, dtype=torch.int64), None, MEAN, -100),
    ("nll_loss2d_forward", make(2, 3, 4, 5), torch.zeros(2, 5, 4, dtype=torch.int64), None, MEAN, -100),
    ("multi_margin_loss", X, torch.zeros(4, dtype=torch.int64), 3, 1.0, None, MEAN),
    ("_ctc_loss", make(5, 2, 4), torch.ones(2, 3, dtype=torch.int64), [5], [3, 3], 0, False),
    ("_ctc_loss", make(5, 2, 4), torch.ones(2, 3, dtype=torch.int64), [6, 5], [3, 3], 0, False),
    ("_ctc_loss", make(5, 2, 4), torch.ones(2, 3, dtype=torch.int64), [5, 5], [3, 3], 4, False),
)
def test_errors(name, args, kwargs):
    check_error(name, *args, **kwargs)


def test_integers_have_no_loss():
    with pytest.raises(RowError, match="not implemented for 'Long'"):
        run("mse_loss", make(3, dtype=torch.int64), make(3, dtype=torch.int64), MEAN)
