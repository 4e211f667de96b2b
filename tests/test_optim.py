"""Every optimizer of torch.optim, in each of its forms, and what surrounds a step: scaling, autocast, checkpointing,
hooks, higher derivatives, clipping. All against the CPU."""

import copy
import inspect

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_tpu  # noqa: F401

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
]


def close(device, host, rtol=1e-4, atol=1e-5):
    if isinstance(host, (list, tuple)):
        assert len(device) == len(host)
        for a, b in zip(device, host, strict=True):
            close(a, b, rtol, atol)
    elif isinstance(host, dict):
        assert device.keys() == host.keys()
        for k in host:
            close(device[k], host[k], rtol, atol)
    elif isinstance(host, torch.Tensor):
        assert (device.dtype, device.shape) == (host.dtype, host.shape)
        torch.testing.assert_close(device.detach().cpu(), host.detach(), rtol=rtol, atol=atol, equal_nan=True)
    else:
        assert device == host or device == pytest.approx(host, rel=rtol)


def same(function, rtol=1e-4, atol=1e-5):
    close(function("tpu"), function("cpu"), rtol, atol)


def net(device):
    m = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        for k, p in enumerate(m.parameters()):
            p.copy_(torch.arange(p.numel()).view_as(p).add(k).sin() * 0.5)
    return m.to(device)


def data(device, k=0):
    x = torch.arange(8.0).view(2, 4).mul(0.3).add(k).sin().to(device)
    return x, torch.tensor([0, 1 + k % 2]).to(device)


OPTIONS = {
    "Adadelta": [{}],
    "Adafactor": [{}],
    "Adagrad": [{"lr_decay": 0.1}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}],
    "AdamW": [{}, {"amsgrad": True, "maximize": True}],
    "Adamax": [{}],
    "ASGD": [{"t0": 1}],
    "LBFGS": [{"max_iter": 3, "line_search_fn": "strong_wolfe"}],
    "Muon": [{}],
    "NAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "RAdam": [{}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
    "Rprop": [{}],
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    "SparseAdam": None,  # takes sparse gradients only
}


def forms():
    for name in sorted(n for n in torch.optim.__all__ if n != "Optimizer" and inspect.isclass(getattr(torch.optim, n))):
        known = inspect.signature(getattr(torch.optim, name)).parameters
        for k, options in enumerate(OPTIONS.get(name, [{}]) or []):
            yield pytest.param(name, options, id=f"{name}-{k}")
            if k:
                continue
            for more in ({"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}):
                key = next(iter(more))
                if key in known:
                    yield pytest.param(name, options | more, id=f"{name}-{key}-{more[key]}")


@pytest.mark.parametrize(("name", "options"), list(forms()))
def test_three_steps(name, options):
    dtype = torch.float64 if name == "LBFGS" else torch.float32  # a line search takes its turns on tiny differences

    def run(device):
        m = net(device).to(dtype)
        known = dict(options)
        if device == "cpu":
            known.pop("capturable", None)  # the CPU has no such form
        parameters = [p for p in m.parameters() if p.dim() == 2] if name == "Muon" else m.parameters()
        o = getattr(torch.optim, name)(parameters, lr=0.05, **known)

        def closure():
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            return loss

        losses = []
        for k in range(3):
            x, y = data(device, 0 if name == "LBFGS" else k)  # curvature is of one function
            x = x.to(dtype)
            losses.append(o.step(closure))
        return [p.detach() for p in m.parameters()] + losses

    same(run, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("name", ["SGD", "SparseAdam", "Adagrad"])
def test_sparse_gradients(kind, name):
    def run(device):
        table = kind(7, 3, sparse=True)
        with torch.no_grad():
            table.weight.copy_(torch.arange(21.0).view(7, 3).sin())
        table.to(device)
        o = getattr(torch.optim, name)(table.parameters(), lr=0.05)
        for k in range(3):
            o.zero_grad()
            index = torch.tensor([[1, 4, 1], [5, k, 2]], device=device)
            (table(index) * torch.arange(3.0, device=device)).square().sum().backward()
            assert table.weight.grad.is_sparse
            o.step()
        return [table.weight, *o.state[table.weight].values()]

    with torch.tpu.cpu_fallback("error"):
        same(run)


@pytest.mark.parametrize("scheduler", ["OneCycleLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "LambdaLR"])
def test_schedules(scheduler):
    def run(device):
        m = net(device)
        o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        s = {
            "OneCycleLR": lambda: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=4),
            "CosineAnnealingWarmRestarts": lambda: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
            "ReduceLROnPlateau": lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
            "LambdaLR": lambda: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.5**k),
        }[scheduler]()
        for k in range(4):
            x, y = data(device, k)
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            o.step()
            s.step(loss.detach()) if scheduler == "ReduceLROnPlateau" else s.step()
        return [p.detach() for p in m.parameters()] + [o.param_groups[0]["lr"]]

    same(run)


def test_state_goes_from_device_to_device():
    def steps(m, o, device, ks):
        for k in ks:
            x, y = data(device, k)
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()

    m = net("tpu")
    o = torch.optim.AdamW(m.parameters(), 0.05)
    steps(m, o, "tpu", range(2))
    state, weights = copy.deepcopy(o.state_dict()), {k: v.cpu() for k, v in m.state_dict().items()}
    assert all(v["exp_avg"].device.type == "tpu" for v in state["state"].values())
    for device in ("cpu", "tpu"):
        n = net(device)
        n.load_state_dict(weights)
        p = torch.optim.AdamW(n.parameters(), 0.05)
        p.load_state_dict(copy.deepcopy(state))
        assert {v["exp_avg"].device.type for v in p.state.values()} == {device}
        steps(n, p, device, range(2, 4))
        if device == "cpu":
            expected = [q.detach() for q in n.parameters()]
        else:
            close([q.detach() for q in n.parameters()], expected)


# --- mixed precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    def run(device):
        m, (x, y) = net(device), data(device)
        with torch.autocast(device, dtype=dtype):
            out = m(x)
            loss = F.cross_entropy(out.float(), y)
            assert out.dtype is dtype and torch.is_autocast_enabled(device)
            with torch.autocast(device, enabled=False):
                assert (x @ x.t()).dtype is torch.float32
        loss.backward()
        assert all(p.grad.dtype is torch.float32 for p in m.parameters())
        return out, loss, *[p.grad for p in m.parameters()]

    same(run, rtol=2e-2, atol=1e-2)


def test_autocast_keeps_what_needs_range():
    x = torch.randn(4, 4, device="tpu")
    with torch.autocast("tpu"):
        assert (x @ x).dtype is torch.bfloat16
        for f in (lambda t: t.softmax(-1), lambda t: t.exp(), lambda t: t.sum(), lambda t: F.layer_norm(t, (4,)),
                  lambda t: F.mse_loss(t, t), lambda t: t.norm()):  # fmt: skip
            assert f(x.bfloat16()).dtype is torch.float32
        assert torch.cat((x, x.bfloat16())).dtype is torch.float32
        w = nn.Linear(4, 4).to("tpu")
        assert w(x).dtype is torch.bfloat16 and w.weight.dtype is torch.float32
    decorated = torch.amp.custom_fwd(lambda t: t @ t, device_type="tpu", cast_inputs=torch.float32)
    with torch.autocast("tpu"):
        assert decorated(x).dtype is torch.float32


def test_grad_scaler():
    def run(device):
        m = net(device)
        o = torch.optim.SGD(m.parameters(), 0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        scales = []
        for k in range(5):
            x, y = data(device, k)
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            scaler.scale(loss).backward()
            if k == 2:
                m[0].weight.grad[0, 0] = float("inf")
            scaler.unscale_(o)
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            scaler.step(o)
            scaler.update()
            scales.append(scaler.get_scale())
        assert copy.deepcopy(scaler).get_scale() == scaler.state_dict()["scale"]
        return [p.detach() for p in m.parameters()], scales

    same(run)


# --- autograd around a step


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_dropout_has_the_same_gradients(reentrant):
    def grads(use):
        torch.manual_seed(5)
        m = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.GELU(), nn.Linear(32, 3)).to("tpu")
        torch.manual_seed(6)
        x = torch.linspace(-1, 1, 8, device="tpu").view(2, 4).requires_grad_()
        y = checkpoint(m, x, use_reentrant=reentrant) if use else m(x)
        y = F.dropout(y, 0.3)
        y.square().sum().backward()
        return [x.grad] + [p.grad for p in m.parameters()] + [torch.rand(2, device="tpu")]

    for a, b in zip(grads(True), grads(False), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_hooks():
    def run(device):
        m, (x, y), seen = net(device), data(device), []
        m[0].register_forward_hook(lambda mod, args, out: out * 1.5)
        m[2].register_forward_pre_hook(lambda mod, args: (args[0] + 0.1,))
        m[0].register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].sum()))
        m[2].weight.register_hook(lambda g: g * 2)
        m[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        h = m(x)
        h.register_hook(lambda g: g.clamp(-0.2, 0.2))
        h.retain_grad()
        F.cross_entropy(h, y).backward()
        return [h.grad, *seen] + [p.grad for p in m.parameters()]

    same(run)


def test_optimizer_in_backward():
    def run(device):
        m = net(device)
        os = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in m.parameters()}

        def step(p):
            os[p].step()
            os[p].zero_grad()

        for p in m.parameters():
            p.register_post_accumulate_grad_hook(step)
        for k in range(3):
            x, y = data(device, k)
            F.cross_entropy(m(x), y).backward()
        return [p.detach() for p in m.parameters()]

    same(run)


def test_double_backward():
    def run(device):
        m, (x, _) = net(device), data(device)
        x.requires_grad_()
        (g,) = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        penalty = (g.norm(dim=1) - 1).square().mean()
        penalty.backward()
        w = torch.tensor([0.3, -0.7], device=device, requires_grad=True)
        h = torch.autograd.functional.hessian(lambda t: (t.sin() * t.exp()).prod(), w)
        j = torch.autograd.functional.jacobian(lambda t: torch.stack((t.prod(), t.sum())), w)
        return [x.grad, penalty, h, j] + [p.grad for p in m.parameters()]

    same(run)


def test_functional_transforms():
    from torch.func import functional_call, grad, jacfwd, jvp, vmap

    def run(device):
        m, (x, y) = net(device), data(device)
        p = {k: v.detach() for k, v in m.named_parameters()}

        def loss(p, x, y):
            return F.cross_entropy(functional_call(m, p, (x[None],)), y[None])

        each = vmap(grad(loss), in_dims=(None, 0, 0))(p, x, y)
        return each, jvp(torch.sin, (x,), (x,)), jacfwd(lambda t: t.exp().sum(1))(x)

    same(run)


def test_accumulation_is_the_whole_batch():
    def grads(device, parts):
        m = net(device)
        x = torch.linspace(-1, 1, 32).view(8, 4).to(device)
        y = torch.arange(8).remainder(3).to(device)
        for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (F.cross_entropy(m(a), b) / parts).backward()
        return [p.grad for p in m.parameters()]

    close(grads("tpu", 4), grads("cpu", 1))


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_clipping(foreach, norm):
    def run(device):
        m, (x, y) = net(device), data(device)
        (100 * F.cross_entropy(m(x), y)).backward()
        total = nn.utils.clip_grad_norm_(m.parameters(), 1.0, norm, error_if_nonfinite=True, foreach=foreach)
        first = [p.grad.clone() for p in m.parameters()]
        nn.utils.clip_grad_value_(m.parameters(), 0.05, foreach=foreach)
        flat = nn.utils.parameters_to_vector(m.parameters())
        nn.utils.vector_to_parameters(flat * 0.5, m.parameters())
        return [total, flat, nn.utils.get_total_norm([p.grad for p in m.parameters()])] + first + list(m.parameters())

    same(run)


def test_clipping_refuses_nonfinite():
    m = net("tpu")
    m(torch.full((1, 4), float("nan"), device="tpu")).sum().backward()
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)


def test_anomaly_mode_names_the_function():
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning, match="Traceback of forward call"):
        x = torch.zeros(2, device="tpu", requires_grad=True)
        with pytest.raises(RuntimeError, match="Function 'SqrtBackward0' returned nan values"):
            (x.sqrt() * 0).sum().backward()


def test_averaged_and_parametrized_models():
    def run(device):
        m = net(device)
        mean = torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        nn.utils.parametrizations.weight_norm(m[2])
        o = torch.optim.SGD(m.parameters(), 0.1)
        for k in range(2):
            x, y = data(device, k)
            F.cross_entropy(m(x), y).backward()
            o.step()
            o.zero_grad()
        n = net(device)
        n[0].weight.data.mul_(2)
        mean.update_parameters(n)
        return list(m.parameters()), list(mean.parameters())

    same(run)


def test_threads_train_side_by_side():
    import threading

    results, expected = {}, None

    def work(name, device="tpu"):
        m = net(device)
        o = torch.optim.Adam(m.parameters(), 0.05)
        for k in range(4):
            x, y = data(device, k)
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()
        results[name] = [p.detach() for p in m.parameters()]

    work("cpu", "cpu")
    expected = results.pop("cpu")
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 4
    for r in results.values():
        close(r, expected)
