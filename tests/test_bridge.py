"""The bridge on a CPU plugin: tests compute on the device and on the CPU and compare values, dtypes and strides."""

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_tpu  # noqa: F401

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
]

MODES = list(torch.tpu.EagerMode)


@pytest.fixture(params=MODES, ids=lambda m: m.name, autouse=True)
def mode(request):
    with torch.tpu.set_eager_mode(request.param):
        yield request.param


def same(function, rtol=1e-4, atol=1e-5):
    compare(function("tpu"), function("cpu"), rtol, atol)


def compare(a, b, rtol, atol):
    if isinstance(b, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            compare(x, y, rtol, atol)
    elif isinstance(b, torch.Tensor):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a.cpu().resolve_conj(), b.resolve_conj(), rtol=rtol, atol=atol, equal_nan=True)
    else:
        assert a == b


def same_error(function):
    """The same exception class and text, but for the device's name."""
    with pytest.raises(Exception) as expected:
        function("cpu")
    with pytest.raises(Exception) as got:
        function("tpu")
    assert got.type is expected.type
    assert str(got.value).replace("tpu:0", "cpu") == str(expected.value)


def test_creation():
    same(
        lambda d: [
            torch.ones(2, 3, device=d), torch.zeros(3, device=d), torch.full((2,), 3.5, device=d),
            torch.arange(10, device=d), torch.arange(0, 1, 0.1, device=d), torch.eye(3, device=d),
            torch.tensor([1, 2, 3], device=d), torch.tensor(3.5, device=d), torch.empty(0, device=d),
            torch.zeros(2, 3, 4, 5, device=d).to(memory_format=torch.channels_last),
            torch.ones_like(torch.zeros(3, 2, device=d).t()), torch.linspace(0, 1, 5, device=d),
        ]
    )  # fmt: skip


def test_views():
    def views(d):
        x = torch.arange(6.0, device=d).view(2, 3)
        return [
            x[1], x[:, 1], x.t(), x.reshape(3, 2), x[..., None], x.expand(2, 2, 3), x.unfold(1, 2, 1), x.diagonal(),
            x.as_strided((2, 2), (1, 2)), x.permute(1, 0), *x.unbind(0), *x.split(1), x.narrow(1, 1, 2),
            x.view(torch.int32), x[::2],
        ]  # fmt: skip

    same(views)


def test_in_place():
    def f(d):
        x = torch.arange(6.0, device=d).view(2, 3)
        y = x.t()
        x.add_(1)
        y[0] = 5
        y.mul_(2)
        x[1, 2] = -1
        x[:, 0].sub_(3)
        x[0].copy_(torch.ones(3))
        x.clamp_(min=0)
        x[1:].fill_(7)
        x += x.clone()
        x *= 0.5
        x.addcmul_(x, x, value=0.1).masked_fill_(x > 100, 0.0)
        return x, y

    same(f)


def test_out():
    def f(d):
        x = torch.arange(6.0, device=d).view(2, 3)
        grown, strided, less = torch.empty(0, device=d), torch.empty(3, 2, device=d), torch.empty(2, device=d)
        values, indices = torch.empty(2, device=d), torch.empty(2, dtype=torch.long, device=d)
        torch.add(x, 1, out=grown)
        torch.mul(x, 2, out=strided.t())
        torch.sum(x, 1, out=less)
        torch.max(x, 1, out=(values, indices))
        compared = torch.eq(x, x, out=torch.empty(2, 3, device=d))
        ints = torch.arange(5, out=torch.empty(0, dtype=torch.int32, device=d))
        places = torch.nonzero(x, out=torch.empty(0, dtype=torch.long, device=d)).clone()
        return grown, strided, less, values, indices, compared, ints, places.contiguous()

    same(f)


def test_out_is_resized_with_a_warning():
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(torch.ones(2, device="tpu"), 1, out=torch.empty(3, device="tpu"))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: torch.arange(3, device=d).add_(1.5),
        lambda d: torch.ones(2, device=d).add_(torch.ones(2, 2, device=d)),
        lambda d: torch.ones(2, 3, device=d) + torch.ones(2, 2, device=d),
        lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 2, device=d),
        lambda d: torch.ones(1, device=d).expand(3).add_(1),
        lambda d: (lambda x: torch.add(x[1:], 1, out=x[:-1]))(torch.ones(4, device=d)),
        lambda d: torch.ones(2, 3, device=d).view(4),
        lambda d: torch.ones(2, device=d).item(),
        lambda d: torch.ones(2, device=d).sum(3),
        lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.ones(2, dtype=torch.long, device=d)),
        lambda d: torch.ones(2, device=d).copy_(torch.ones(3, device=d)),
        lambda d: torch.ones(2, device=d)[5],
        lambda d: torch.ones(3, device=d)[torch.ones(2, dtype=torch.bool, device=d)],
        lambda d: torch.empty(-1, device=d),
    ],
)
def test_errors_are_pytorchs(wrong):
    same_error(wrong)


def test_devices_must_agree():
    x, y = torch.ones(2, device="tpu"), torch.ones(2)
    text = "Expected all tensors to be on the same device, but found at least two devices, "
    with pytest.raises(RuntimeError, match=text + "tpu:0 and cpu!"):
        x + y
    with pytest.raises(RuntimeError, match=text + "cpu and tpu:0!"):
        y + x
    with pytest.raises(RuntimeError, match=text + "tpu:0 and cpu!"):
        torch.add(x, 1, out=y)
    with pytest.raises(RuntimeError):
        y.add_(x)
    with pytest.raises(RuntimeError):
        torch.ones(2, device="tpu:99")
    assert torch.equal((x * torch.tensor(2.0)).cpu(), torch.full((2,), 2.0))
    assert torch.equal(x[torch.tensor([0])].cpu(), torch.ones(1))


def test_copies():
    def f(d):
        x = torch.arange(24.0).view(2, 3, 4)
        on = x.permute(2, 0, 1).to(d)
        half = torch.empty(3, 4, dtype=torch.bfloat16, device=d).copy_(x[1])
        wide = torch.empty(2, 3, 4, device=d).copy_(x[0, 0])
        back = torch.empty(3, 4).t().copy_(on[:, 0])
        last = x.view(1, 2, 3, 4).to(d, memory_format=torch.channels_last)
        return on, half, wide, back, last, on.cpu(), last.cpu(), on.to(torch.float64)

    same(f)


def test_resize_and_set():
    def f(d):
        x = torch.zeros(2, device=d)
        x.resize_(2, 2).fill_(1)
        y = x.clone()
        x.resize_(3).fill_(2)
        z = torch.empty(0, device=d).set_(torch.arange(5.0, device=d))
        w = torch.empty(0, device=d).set_(z.untyped_storage(), 1, (2, 2), (1, 1))
        w[0, 0] = 9
        s = torch.arange(4.0, device=d)
        s.untyped_storage().resize_(0)
        n = s.untyped_storage().nbytes()
        s.untyped_storage().resize_(16)
        return x, y, z, w, n, s.fill_(3)

    same(f)


def test_conjugate_and_negative_views():
    def f(d):
        x = torch.complex(torch.arange(4.0), torch.ones(4)).to(d)
        y = x.conj()
        y2 = torch.complex(torch.arange(4.0), torch.ones(4)).to(d).conj()
        y2.copy_(x)
        return [
            y + 1, y * x, y.imag * 1, y.clone(), y.sum(), torch.view_as_real(x), x.real, y.resolve_conj(),
            torch.empty(4, dtype=torch.complex64, device=d).copy_(y), y.cpu().resolve_conj(), y2.resolve_conj(),
            y.imag.clone(),
        ]  # fmt: skip

    same(f)


def test_masks_and_dynamic_shapes():
    def f(d):
        x = torch.arange(6.0, device=d).view(2, 3)
        y = x.clone()
        y[y > 3] = -1.0
        z = x.clone()
        z[z > 3] = torch.tensor([7.0, 8.0], device=d)
        return x[x > 2], x.nonzero(), x.masked_select(x > 1), y, z, x[:, x[0] > 0]

    same(f)


def test_training_step():
    def f(d):
        m = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        with torch.no_grad():
            for k, p in enumerate(m.parameters()):
                p.copy_(torch.arange(p.numel()).view_as(p).add(k).sin() * 0.5)
        m.to(d)
        optimizers = [torch.optim.SGD(m[0].parameters(), 0.1, momentum=0.9), torch.optim.AdamW(m[2].parameters(), 0.01)]
        losses = []
        for k in range(3):
            x = torch.arange(8.0).view(2, 4).mul(0.1 * k).sin().to(d)
            loss = F.cross_entropy(m(x), torch.tensor([0, k % 3], device=d))
            loss.backward()
            for o in optimizers:
                o.step()
                o.zero_grad()
            losses.append(loss.detach())
        return [p.detach() for p in m.parameters()] + losses

    same(f)


def test_fused_and_foreach_optimizers():
    def f(d):
        out = []
        for kind in ({"foreach": True}, {"fused": True}):
            p = [nn.Parameter(torch.arange(3.0).to(d)), nn.Parameter(torch.ones(2, 2).to(d))]
            o = torch.optim.AdamW(p, 0.1, **kind)
            for _ in range(2):
                sum((q * q).sum() for q in p).backward()
                o.step()
                o.zero_grad()
            out += [q.detach() for q in p]
        return out

    same(f)


def test_batch_norm_updates_its_statistics():
    def f(d):
        m = nn.BatchNorm2d(3).to(d)
        x = torch.arange(24.0).view(2, 3, 2, 2).sin().to(d).requires_grad_()
        y = m(x)
        (y * y * y).sum().backward()
        m.eval()
        return y, x.grad, m.running_mean, m.running_var, m(x), m.weight.grad, m.num_batches_tracked

    same(f)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers(kind):
    def f(d):
        m = getattr(nn, kind)(3, 4, 2, batch_first=True, bidirectional=True)
        with torch.no_grad():
            for k, p in enumerate(m.parameters()):
                p.copy_(torch.arange(p.numel()).view_as(p).add(k).sin() * 0.4)
        m.to(d)
        x = torch.arange(30.0).view(2, 5, 3).cos().to(d).requires_grad_()
        y, h = m(x)
        (y.square().sum() + (h[0] if kind == "LSTM" else h).sum()).backward()
        return [y.contiguous(), x.grad.contiguous()] + [p.grad.contiguous() for p in m.parameters()]

    same(f)


def test_module_to_keeps_parameters():
    a, b = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    b.weight = a.weight
    m = nn.ModuleList([a, b])
    before = a.weight
    m.to("tpu")
    assert before is a.weight is b.weight
    assert before.device.type == "tpu"


def test_data_can_be_replaced():
    def f(d):
        p = nn.Parameter(torch.ones(3, device=d))
        p.data = torch.full((2,), 2.0, device=d)
        (p * p).sum().backward()
        return p.detach(), p.grad

    same(f)


def test_saving_and_copying():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    file = io.BytesIO()
    torch.save({"x": x, "t": x.t()}, file)
    again = torch.load(io.BytesIO(file.getvalue()))
    host = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    assert again["x"].device == x.device and again["t"].stride() == (1, 3)
    assert host["x"].device.type == "cpu"
    twin = copy.deepcopy(x).add_(1)
    pickled = pickle.loads(pickle.dumps(x))
    for t, want in [(again["x"], x), (host["x"], x), (pickled, x), (twin, x + 1)]:
        assert torch.equal(t.cpu(), want.cpu())


def test_numpy_and_dlpack_refuse_as_for_other_devices():
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        torch.ones(2, device="tpu").numpy()


def test_scalars():
    same(
        lambda d: [
            torch.tensor([3.5], device=d).item(), int(torch.tensor(7, device=d)), bool(torch.ones((), device=d)),
            torch.ones(2, 2, device=d).tolist(), torch.tensor(1 + 2j, device=d).item(),
            torch.tensor(2.5, dtype=torch.bfloat16, device=d).item(), torch.equal(*[torch.ones(2, device=d)] * 2),
        ]
    )  # fmt: skip


def test_numbers_do_not_compile(mode):
    if mode is not torch.tpu.EagerMode.DEFER_AND_FUSE:
        pytest.skip("one mode is enough")
    x = torch.ones(4, device="tpu")
    (x * 0.5 + 1).cpu()
    torch.tpu.reset_stats()
    for k in range(5):
        (x * (0.1 * k) + k).cpu()
    assert torch.tpu.stats()["compiles"] <= 1  # k is an int here


def test_random_state():
    torch.manual_seed(3)
    state = torch.tpu.get_rng_state()
    a = torch.rand(5, device="tpu")
    torch.tpu.set_rng_state(state)
    b = torch.rand(5, device="tpu")
    c = torch.rand(5, device="tpu")
    assert torch.equal(a.cpu(), b.cpu()) and not torch.equal(b.cpu(), c.cpu())
    g = torch.Generator(device="tpu").manual_seed(3)
    assert torch.equal(torch.rand(5, device="tpu", generator=g).cpu(), a.cpu())
    a = torch.rand(3, device="tpu", generator=torch.tpu.default_generators[0])
    assert (
        a.device.type == "tpu" and g.get_state().shape == (16,) and torch.tpu.default_generators[0].initial_seed() == 3
    )
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(5, device="tpu")
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        torch.empty(2, device="tpu").normal_(generator=torch.Generator())


def test_checkpointed_dropout():
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="tpu", requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t * 2, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(y.detach().cpu(), 2 * x.grad.cpu() / 2)


def test_autocast():
    def f(d):
        m = nn.Linear(4, 3)
        nn.init.constant_(m.weight, 0.5)
        nn.init.zeros_(m.bias)
        m.to(d)
        with torch.autocast(d, dtype=torch.bfloat16):
            y = m(torch.ones(2, 4, device=d))
            z = y.softmax(-1) if d == "tpu" else y.float().softmax(-1)
        y.float().sum().backward()
        return y, z, m.weight.grad

    same(f)
    assert torch.get_autocast_dtype("tpu") is torch.bfloat16


def test_grad_scaler():
    p = nn.Parameter(torch.ones(3, device="tpu"))
    o, s = torch.optim.SGD([p], 0.1), torch.amp.GradScaler("tpu", init_scale=4.0)
    s.scale((p * 2).sum()).backward()
    s.step(o)
    s.update()
    torch.testing.assert_close(p.detach().cpu(), torch.full((3,), 0.8))


def test_events_streams_memory():
    a, b = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    a.record()
    x = torch.ones(1 << 18, device="tpu")
    torch.tpu.synchronize()
    before = torch.accelerator.memory_allocated()
    y = x + 1
    b.record()
    torch.accelerator.synchronize()
    assert a.elapsed_time(b) >= 0 and b.query()
    assert isinstance(a, torch.tpu.Event) and isinstance(torch.tpu.current_stream(), torch.tpu.Stream)
    torch.tpu.current_stream().wait_event(torch.tpu.Stream().record_event(b))
    assert torch.accelerator.memory_allocated() - before >= y.nbytes
    assert torch.accelerator.max_memory_allocated() >= y.nbytes and torch.accelerator.get_memory_info()[1] > 0
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
    with torch.tpu.stream(torch.tpu.Stream()), torch.tpu.device(0):
        assert torch.tpu.current_device() == 0


def test_pinned_memory():
    x = torch.arange(6.0).pin_memory()
    assert x.is_pinned() and not torch.ones(2).is_pinned()
    y = x.to("tpu", non_blocking=True)
    back = (y + 1).to("cpu", non_blocking=True)
    torch.tpu.synchronize()
    assert torch.equal(back, torch.arange(6.0) + 1)


def test_cpu_fallback():
    with torch.tpu.cpu_fallback("error"), pytest.raises(NotImplementedError, match="aten::"):
        torch.linalg.eig(torch.eye(2, device="tpu"))
    with torch.tpu.cpu_fallback("silent"), warnings.catch_warnings():
        warnings.simplefilter("error")
        values = torch.linalg.eig(torch.eye(2, device="tpu")).eigenvalues
    assert values.device.type == "tpu" and torch.equal(values.cpu(), torch.ones(2, dtype=torch.complex64))
    assert any("linalg_eig" in name for name in torch.tpu.fallback_counts())


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_without_gradients(norm_first):
    """nn.TransformerEncoder and nn.MultiheadAttention take another path in inference: it stays on the device."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()

    def run(device):
        m, a, y, mask = (
            copy.deepcopy(model).to(device),
            copy.deepcopy(attention).to(device),
            x.to(device),
            padding.to(device),
        )
        with torch.no_grad():
            # What stands at padded places is not defined.
            return m(y), m(y, src_key_padding_mask=mask).masked_fill(mask[..., None], 0), a(y, y, y), a(y, y, y, mask)

    with torch.tpu.cpu_fallback("error"):
        got = run("tpu")
    compare(got, run("cpu"), 1e-4, 1e-5)


def test_threads():
    def work(k, out):
        w = torch.arange(9.0).view(3, 3).add(k).sin().to("tpu").requires_grad_()
        for _ in range(5):
            (g,) = torch.autograd.grad(torch.tanh(w @ w).sum(), w)
            with torch.no_grad():
                w -= 0.1 * g
        out[k] = w.detach().cpu()

    together, alone = [None] * 4, [None] * 4
    threads = [threading.Thread(target=work, args=(k, together)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    for k in range(4):
        work(k, alone)
        torch.testing.assert_close(together[k], alone[k])


def test_backward_continues_the_callers_segment(mode):
    if mode is not torch.tpu.EagerMode.DEFER_AND_FUSE:
        pytest.skip("other modes run each call at once")
    x = torch.ones(4, device="tpu", requires_grad=True)
    torch.tpu.synchronize()
    torch.tpu.reset_stats()
    (x * 3).exp().sum().backward()
    (x.grad + 1).cpu()
    assert torch.tpu.stats()["executes"] == 1


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )


def test_backward_before_the_backend_is_loaded(mode):
    if mode is not MODES[0]:
        pytest.skip("one mode is enough")
    code = (
        "import torch; (torch.ones(3, requires_grad=True) * 2).sum().backward(); import torch_tpu\n"
        "w = torch.ones(2, 3).to('tpu').requires_grad_(); (w @ w.t()).sum().backward(); print(w.grad.sum().item())"
    )
    r = run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert r.returncode == 0 and r.stdout.strip() == "24.0", r.stderr


def test_import_is_short_and_loads_no_plugin(mode):
    if mode is not MODES[0]:
        pytest.skip("one mode is enough")
    code = (
        "import time, torch; t = time.perf_counter(); import torch_tpu; t = time.perf_counter() - t\n"
        "print(t, torch.tpu.is_initialized())"
    )
    results = [run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.split() for _ in range(3)]
    assert all(r[1] == "False" for r in results)
    assert min(float(r[0]) for r in results) < 0.5  # 0.15 s on an idle machine
