"""Rows over lists of tensors, the fused optimizers and loss scaling."""

import copy
import itertools

import pytest
import torch
from lower_harness import check, check_error, overload, rows

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


SHAPES = ((3, 4), (5,), ())


def three(shift=0.5):
    return [torch.rand(s) + shift for s in SHAPES]


def test_unary():
    names = [r for r in rows() if r.startswith("_foreach_") and "." not in r]
    for name in names:
        if name == "_foreach_copy":
            check(name, three(), three())
        elif name == "_foreach_mm":
            check(name, [torch.rand(2, 3)], [torch.rand(3, 4)])
        else:
            check(
                name,
                three(-0.1 if name in ("_foreach_asin", "_foreach_acos") else 0.5),
                rtol=1e-5,
            )


@pytest.mark.parametrize(
    "name",
    ["add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum", "pow"],
)
def test_binary(name):
    check(f"_foreach_{name}.List", three(), three(), rtol=1e-5)
    check(f"_foreach_{name}.Scalar", three(), 0.7, rtol=1e-5)
    check(f"_foreach_{name}.ScalarList", three(), [1, 2.5, -3.0], rtol=1e-5)
    if name in ("add", "mul", "div"):
        check(f"_foreach_{name}.Tensor", three(), torch.tensor(2.5))


def test_others():
    xs, ys, zs = three(), three(0), three()
    check("_foreach_add.List", xs, ys, alpha=0.5)
    check("_foreach_pow.ScalarAndTensor", 2.5, xs, rtol=1e-5)
    for name in ("addcmul", "addcdiv"):
        check(f"_foreach_{name}.Scalar", xs, ys, zs, 0.5)
        check(f"_foreach_{name}.Scalar", xs, ys, zs)
        check(f"_foreach_{name}.ScalarList", xs, ys, zs, [0.5, 1, 2])
        check(f"_foreach_{name}.Tensor", xs, ys, zs, torch.tensor([0.5, 1, 2]))
    check("_foreach_lerp.List", xs, ys, zs)
    check("_foreach_lerp.Scalar", xs, ys, 0.3)
    check("_foreach_lerp.ScalarList", xs, ys, [0.3, 0.1, 0.9])
    for order in (2, 1, float("inf"), 0):
        check("_foreach_norm.Scalar", xs, order)
    check("_foreach_norm.Scalar", [x.bfloat16() for x in xs], 2, torch.float32)
    check(
        "_foreach_add.Scalar",
        [torch.ones(3).int(), torch.ones(2).bfloat16(), torch.ones(2, 3).t()],
        1.5,
    )
    check_error("_foreach_add.List", xs, ys[:2])
    check_error("_foreach_add.ScalarList", xs, [1.0, 2.0])
    check_error("_foreach_exp", [])


def fused(name, n_states, dtype=torch.float32, returns_steps=False, **kwargs):
    """The in-place kernel's effect on its lists is what the functional row returns."""
    torch.manual_seed(0)
    params = [torch.randn(3, 4).to(dtype), torch.randn(5).to(dtype)]
    lists = [params, [torch.randn_like(p) for p in params]]
    lists += [[torch.rand_like(p) for p in params] for _ in range(n_states)]
    if kwargs.get("amsgrad") is False:
        lists[-1] = []
    steps = "sgd" not in name
    if steps:
        lists.append([torch.tensor(3.0), torch.tensor(3.0)])
    base, _, which = name.partition(".")
    results, options = copy.deepcopy(lists), copy.deepcopy(kwargs)
    overload(f"{base}_.{which}" if which else base + "_")(*results, **options)
    want = [t for each in (results if returns_steps or not steps else results[:-1]) for t in each]
    loose = {"rtol": 3e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-2}
    check(name, *lists, want=want, strides=False, **loose, **kwargs)


def rates():
    return (("", 0.01), (".tensor_lr", torch.tensor(0.01)))


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_adam(name, dtype):
    numbers = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
    for amsgrad, maximize in itertools.product((True, False), repeat=2):
        for suffix, lr in rates():
            fused(
                name + suffix,
                3,
                dtype,
                lr=lr,
                amsgrad=amsgrad,
                maximize=maximize,
                **numbers,
            )
    for found in (0.0, 1.0):
        scaled = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found)}
        fused(
            name,
            3,
            dtype,
            lr=0.01,
            amsgrad=True,
            maximize=False,
            **numbers,
            **(scaled if not found else {"found_inf": torch.tensor(1.0)}),
        )


def test_fused_sgd():
    for nesterov, first, maximize in itertools.product((True, False), repeat=3):
        for suffix, lr in rates():
            fused(
                "_fused_sgd" + suffix, 1, lr=lr, weight_decay=0.1, momentum=0.9, dampening=0.0 if nesterov else 0.1,
                nesterov=nesterov, maximize=maximize, is_first_step=first,
            )  # fmt: skip


def test_fused_adagrad():
    for suffix, lr in rates():
        fused(
            "_fused_adagrad" + suffix,
            1,
            returns_steps=not suffix,
            lr=lr,
            lr_decay=0.1,
            weight_decay=0.1,
            eps=1e-8,
            maximize=False,
        )


def test_loss_scaling():
    half, zero, one = torch.tensor([0.5]), torch.tensor([0.0]), torch.tensor([1.0])
    grads = [torch.randn(3), torch.tensor([1.0, float("inf")])]
    name = "_amp_foreach_non_finite_check_and_unscale"
    check(name, grads, zero, half, want=[grads[0] * 0.5, grads[1] * 0.5, one])
    check(name, grads[:1], zero, half, want=[grads[0] * 0.5, zero])
    for tracker, found, scale, count in (
        (1, 0.0, 2.0, 2),
        (2, 0.0, 4.0, 0),
        (1, 1.0, 1.0, 0),
    ):
        tracker = torch.tensor([tracker], dtype=torch.int32)
        want = [torch.tensor([scale]), torch.tensor([count], dtype=torch.int32)]
        check(
            "_amp_update_scale",
            torch.tensor([2.0]),
            tracker,
            torch.tensor([found]),
            2.0,
            0.5,
            3,
            want=want,
        )
