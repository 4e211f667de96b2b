"""Tensors that are saved, loaded, copied, printed, moved; devices, generators, streams, memory as PyTorch has them."""

import copy
import io
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn as nn

import torch_tpu  # noqa: F401

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
]


def run(code, *arguments, **environment):
    """Runs Python code in a process of its own; returns what it printed. Nothing may go to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Embedding(5, 3)
        self.b = nn.Linear(3, 5, bias=False)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(5)

    def forward(self, i):
        return self.norm(self.b(self.a(i)))


# --- saving


def test_save_and_load_in_both_directions(tmp_path):
    x = torch.arange(6.0).view(2, 3)
    y = x.to("tpu")
    torch.save({"x": y, "t": y.t(), "part": y[1], "p": nn.Parameter(y)}, tmp_path / "d")
    torch.save({"x": x, "t": x.t(), "part": x[1], "p": nn.Parameter(x)}, tmp_path / "h")
    for file in ("d", "h"):
        for where in ("cpu", "tpu", "tpu:0", torch.device("tpu"), {"tpu:0": "cpu", "cpu": "tpu"},
                      lambda s, _: s, lambda s, _: s.cpu()):  # fmt: skip
            got = torch.load(tmp_path / file, map_location=where, weights_only=not callable(where))
            device = {"cpu": "cpu", "tpu": "tpu", "tpu:0": "tpu"}.get(str(where))
            if isinstance(where, dict):
                device = "cpu" if file == "d" else "tpu"
            assert device is None or got["x"].device.type == device
            assert torch.equal(got["x"].cpu(), x) and torch.equal(got["t"].cpu(), x.t()) and got["t"].stride() == (1, 3)
            assert isinstance(got["p"], nn.Parameter) and torch.equal(got["p"].detach().cpu(), x)
            got["x"][1, 0] = 9  # views of one storage stay so
            assert got["part"][0].item() == 9 and got["t"][0, 1].item() == 9
    assert torch.load(tmp_path / "d")["x"].device == torch.device("tpu:0")
    mapped = torch.load(tmp_path / "h", mmap=True)["x"].to("tpu")
    assert torch.equal(mapped.cpu(), x)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
     torch.int64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2],
)  # fmt: skip
def test_every_dtype_survives(dtype):
    x = torch.tensor([0, 1, 1, 0, 2, 3]).to(dtype).view(2, 3)
    y = x.to("tpu")
    file = io.BytesIO()
    torch.save(y, file)
    for z in (torch.load(io.BytesIO(file.getvalue())), pickle.loads(pickle.dumps(y)), copy.deepcopy(y)):
        assert z.device == y.device and z.dtype is dtype
        assert torch.equal(z.cpu().view(torch.uint8), x.view(torch.uint8))


def test_a_machine_without_the_backend_loads(tmp_path):
    m = Tied().to("tpu")
    torch.save(m.state_dict(), tmp_path / "m.pt")
    torch.save(m, tmp_path / "whole.pt")
    code = """
import sys, torch
state = torch.load(sys.argv[1] + "/m.pt", map_location="cpu")
print({v.device.type for v in state.values()}, "torch_tpu" in sys.modules, float(state["a.weight"].sum()))
assert state["a.weight"].untyped_storage().data_ptr() == state["b.weight"].untyped_storage().data_ptr()
try:
    torch.load(sys.argv[1] + "/m.pt")
except RuntimeError as error:
    print("tpu" in str(error))
"""
    out = run(code, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    first, second = out.splitlines()
    assert first.startswith("{'cpu'} False ") and float(first.split()[-1]) == pytest.approx(
        m.a.weight.sum().item(), rel=1e-5
    )
    assert second == "True"


def test_safetensors(tmp_path):
    st = pytest.importorskip("safetensors.torch")
    m = Tied().to("tpu")
    st.save_model(m, tmp_path / "m.safetensors")
    st.save_file({"w": m.a.weight.detach(), "t": m.a.weight.detach().t().contiguous()}, tmp_path / "w.safetensors")
    loaded = st.load_file(tmp_path / "w.safetensors")  # it knows no device but its own list's
    assert torch.equal(loaded["t"].to("tpu").cpu(), m.a.weight.detach().cpu().t())
    n = Tied().to("tpu")
    st.load_model(n, tmp_path / "m.safetensors")
    assert n.a.weight is n.b.weight and torch.equal(n.a.weight.cpu(), m.a.weight.cpu())


def test_storages():
    x = torch.arange(6.0, device="tpu")
    s = x.untyped_storage()
    assert s.device == torch.device("tpu:0") and s.nbytes() == 24 and len(s) == 24 and s.is_tpu
    assert s.cpu().tolist() == x.cpu().untyped_storage().tolist()
    assert s.clone().cpu().tolist() == s.cpu().tolist()
    s2 = x.cpu().untyped_storage().tpu()
    assert s2.device.type == "tpu"
    s.copy_(torch.ones(6).untyped_storage())
    assert x.tolist() == [1.0] * 6
    t = torch.TypedStorage(wrap_storage=s, dtype=torch.float32, _internal=True)
    assert pickle.loads(pickle.dumps(t))._untyped_storage.device.type == "tpu"
    assert s.share_memory_() is s  # as for CUDA
    assert pickle.loads(pickle.dumps(s))._untyped_storage.device.type == "tpu"


def test_deepcopy_of_a_model_keeps_ties():
    m = Tied().to("tpu")
    n = copy.deepcopy(m)
    assert n.a.weight is n.b.weight and n.a.weight is not m.a.weight
    with torch.no_grad():
        n.a.weight.zero_()
    assert m.a.weight.abs().sum().item() > 0


def test_what_hangs_on_a_tensor_survives():
    x = torch.arange(6.0, device="tpu").view(2, 3).requires_grad_()
    x.grad, x.note = torch.ones(2, 3, device="tpu"), {"name": "x"}
    base = torch.arange(4.0, device="tpu")
    views = {"whole": base, "part": base[1:3], "across": base.view(2, 2).t()}
    z = torch.complex(base, base + 1)
    held = [x, views, z.conj(), torch._neg_view(base), base.expand(2, 4), base[:0], torch.empty(0, 3, device="tpu")]
    file = io.BytesIO()
    torch.save(held, file)
    saved, pickled = torch.load(io.BytesIO(file.getvalue())), pickle.loads(pickle.dumps(held))
    for got in (copy.deepcopy(held), saved, pickled):
        a, b, *rest = got
        assert a.requires_grad and a.is_leaf and a.device == x.device and a.note == {"name": "x"}
        for new, old in zip(rest, held[2:], strict=True):
            assert new.device == old.device and new.stride() == old.stride()
            assert torch.equal(new.cpu().resolve_conj(), old.cpu().resolve_conj())
        b["whole"][1] = 7
        if got is pickled:  # pickles each tensor with its storage, on any device
            b["part"][0], b["across"][1, 0] = 7, 7
        assert b["part"].tolist() == [7, 2] and b["across"].tolist() == [[0, 2], [7, 3]]
    twin = copy.deepcopy(x)
    assert torch.equal(twin.grad.cpu(), torch.ones(2, 3)) and twin.grad is not x.grad
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)
    assert base.tolist() == [0, 1, 2, 3]


def test_distributed_checkpoint(tmp_path):
    import torch.distributed.checkpoint as dcp

    def made(seed):
        torch.manual_seed(seed)
        m = Tied().to("tpu")
        o = torch.optim.AdamW(m.parameters(), 0.1)
        m(torch.tensor([1, 2, 3], device="tpu")).sum().backward()
        o.step()
        return m, o

    (m, o), (n, p) = made(0), made(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is one process
        dcp.save({"m": m.state_dict(), "o": o.state_dict()}, checkpoint_id=tmp_path)
        state = {"m": n.state_dict(), "o": p.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path)
    n.load_state_dict(state["m"])
    p.load_state_dict(state["o"])
    for a, b in zip(m.state_dict().values(), n.state_dict().values(), strict=True):
        assert b.is_tpu and torch.equal(a.cpu(), b.cpu())
    for a, b in zip(o.state.values(), p.state.values(), strict=True):
        assert torch.equal(a["exp_avg"].cpu(), b["exp_avg"].cpu()) and b["exp_avg"].is_tpu


@pytest.mark.parametrize("layout", [torch.channels_last, torch.channels_last_3d])
def test_memory_formats(layout):
    """Modules, copies and results keep the order of memory that the CPU's have."""
    n = 2 if layout is torch.channels_last else 3

    def run(device):
        torch.manual_seed(0)
        net = nn.Sequential(
            *(getattr(nn, f"{kind}{n}d")(*args) for kind, args in (("Conv", (3, 4, 3)), ("BatchNorm", (4,)))),
            nn.ReLU(),
            getattr(nn, f"MaxPool{n}d")(2),
        )
        net.to(device, memory_format=layout)
        x = torch.arange(2 * 3 * 6**n).view(2, 3, *[6] * n).sin().to(device, memory_format=layout).requires_grad_()
        y = net(x)
        y.square().sum().backward()
        plain = x.detach().contiguous()
        kept = [x.detach(), net[0].weight.detach(), y.detach(), x.grad, net[0].weight.grad]
        copies = [kept[0].clone(), torch.empty_like(kept[0]).copy_(plain), plain.to(memory_format=layout), kept[0] * 2,
                  plain.contiguous(memory_format=layout), kept[0].clone(memory_format=torch.contiguous_format),
                  kept[0].to(torch.float64), kept[0].cpu(), copy.deepcopy(kept[0]), plain.add(kept[0])]  # fmt: skip
        assert plain.to(device).stride() == plain.stride() and kept[0].is_contiguous(memory_format=layout)
        return kept + copies

    for a, b in zip(run("tpu"), run("cpu"), strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


def test_numpy_and_dlpack():
    import numpy as np

    x = torch.ones(2, device="tpu")
    text = (
        "can't convert tpu:0 device type tensor to numpy. Use Tensor.cpu\\(\\) to copy the tensor to host memory first"
    )
    for f in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=text):
            f()
    assert x.numpy(force=True).tolist() == [1, 1]
    assert torch.from_numpy(np.ones(3)).to("tpu").dtype is torch.float64
    assert torch.as_tensor(np.arange(3), device="tpu").tolist() == [0, 1, 2]
    for f in (np.from_dlpack, torch.from_dlpack):
        with pytest.raises((BufferError, RuntimeError, ValueError)):
            f(x)
    with pytest.raises(AttributeError):
        _ = x.__cuda_array_interface__


def bare(text):
    return " ".join(text.replace(", grad_fn=<ToCopyBackward0>", "").replace(", requires_grad=True", "").split())


def test_printing():
    x = torch.tensor([[1.5, -2.25], [float("nan"), 1e8]])
    for t in (x, x.int(), x > 0, x[0, 0], x[:0], x.bfloat16(), torch.complex(x, x), x.requires_grad_(),
              torch.zeros(2000), nn.Parameter(x.detach())):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            host, device = (
                repr(t),
                repr(nn.Parameter(t.detach().to("tpu")) if isinstance(t, nn.Parameter) else t.to("tpu")),
            )
        for extra in (", device='tpu:0'", " device='tpu:0',"):
            device = device.replace(extra, "")
        assert bare(device) == bare(host)
    y = torch.arange(20.0, device="tpu") * 2
    torch.tpu.synchronize()
    torch.tpu.reset_stats()
    assert repr(y) == str(y) == f"{y}"
    stats = torch.tpu.stats()
    assert stats["reads"] == 3 and stats["calls"] == stats["executes"] == 0
    assert f"{y[3]:.2f}" == "6.00" and repr(torch.device("tpu")) == "device(type='tpu')"


# --- modules


def test_module_to():
    m = Tied()
    m.a.weight.grad = torch.ones(5, 3)
    before = {k: p for k, p in m.named_parameters()}
    o = torch.optim.SGD(m.parameters(), 0.1)
    for device in ("tpu", "cpu", "tpu:0"):
        m.to(device)
        assert m.a.weight is m.b.weight is before["a.weight"]
        assert all(p is before[k] for k, p in m.named_parameters())
        assert {t.device.type for t in [*m.parameters(), *m.buffers(), m.a.weight.grad]} == {device[:3]}
    o.step()
    assert m.tpu() is m and m.cpu().a.weight.device.type == "cpu"
    m.to("tpu", torch.bfloat16)
    assert m.a.weight.dtype is torch.bfloat16 and m.norm.num_batches_tracked.dtype is torch.int64
    m.float().double().half()
    assert m.a.weight is before["a.weight"] and m.norm.running_mean.dtype is torch.float16
    with torch.device("tpu"):
        n = Tied()
    assert n.a.weight.is_tpu and torch.ones(1).device.type == "cpu"
    with torch.device("meta"):
        k = Tied()
    k.to_empty(device="tpu").load_state_dict(n.state_dict())
    assert torch.equal(k.a.weight.cpu(), n.a.weight.cpu())
    k = Tied()
    k.load_state_dict(n.state_dict(), assign=True)
    assert k.a.weight.is_tpu


def test_factories_go_where_they_are_told():
    def f(device, other):
        y = torch.ones(2, 3, device=device)
        for t in (torch.zeros_like(y, device=other), torch.ones_like(y, device=other, dtype=torch.int32),
                  torch.full_like(y, 2, device=other), torch.rand_like(y, device=other),
                  torch.empty_like(y, device=other), y.new_zeros(2, device=other), y.new_ones(2, device=other),
                  y.new_full((2,), 3, device=other),
                  y.new_tensor([1.0], device=other), torch.randint_like(y, 5, device=other)):  # fmt: skip
            assert t.device.type == torch.device(other).type
            t.cpu()

    f("tpu", "cpu")
    f("cpu", "tpu")


def test_to_and_pin():
    x = torch.arange(6.0).view(2, 3)
    y = x.to("tpu", non_blocking=True)
    assert y.to("tpu") is y and y.to("tpu:0") is y and y.tpu() is y and y.to("tpu", copy=True) is not y
    assert y.is_tpu and y.device == torch.device("tpu", 0) and y.get_device() == 0 and not x.is_tpu
    pinned = x.pin_memory()
    assert pinned.is_pinned() and torch.equal(pinned.to("tpu", non_blocking=True).cpu(), x)
    back = torch.empty(2, 3, pin_memory=True)
    back.copy_(y * 2, non_blocking=True)
    torch.tpu.synchronize()
    assert torch.equal(back, x * 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 2, pin_memory=True)
    assert all(b.is_pinned() for (b,) in loader)
    x[0, 0] = 7  # the copy took what was there
    assert y[0, 0].item() == 0
    assert y.new_zeros(2).is_tpu and torch.zeros_like(y, device="cpu").device.type == "cpu"
    assert y.type() == "torch.tpu.FloatTensor" and y.float() is y


# --- devices


def test_two_devices():
    out = run(TWO_DEVICES, TORCH_TPU_CPU_DEVICES="2")
    assert out.split() == ["done"]


TWO_DEVICES = """
import copy, io, torch
import torch.nn as nn
assert torch.tpu.device_count() == torch.accelerator.device_count() == 2 and torch.tpu.current_device() == 0
x = torch.arange(6.0).view(2, 3)
a, b = x.to("tpu:0"), x.to("tpu:1")
assert b.device == torch.device("tpu:1") and b.get_device() == 1
for t in (a.to("tpu:1"), b.to("tpu:0"), a.t().to("tpu:1"), b[:, 1].to("tpu:0"), (a + 1).to(b),
          a.to("tpu:1", torch.int32)):
    assert t.device != torch.device("tpu:0") or t is not a
assert torch.equal(a.t().to("tpu:1").cpu(), x.t()) and torch.equal(b[:, 1].to("tpu:0").cpu(), x[:, 1])
assert torch.equal((a * 2).to("tpu:1").add(b).cpu(), x * 3)
b[0].copy_(a[1])
assert torch.equal(b.cpu(), torch.stack((x[1], x[1])))
b[:, ::2].copy_(torch.zeros(2, 2, dtype=torch.int32, device="tpu:0"))
assert b.cpu().tolist() == [[0, 4, 0], [0, 4, 0]]
for f in (lambda: a + b, lambda: torch.cat((a, b)), lambda: torch.add(a, 1, out=torch.empty(0, device="tpu:1")),
          lambda: a.add_(b), lambda: a @ b.t(), lambda: a[torch.tensor([0], device="tpu:1")]):
    try:
        f()
    except RuntimeError as error:
        assert "tpu:0" in str(error) and "tpu:1" in str(error), error
    else:
        assert False
with torch.tpu.device(1):
    assert torch.tpu.current_device() == 1 and torch.ones(1, device="tpu").get_device() == 1
    with torch.tpu.device_of(a):
        assert torch.empty(1, device="tpu").get_device() == 0
    assert torch.tpu.current_stream().device_index == 1
assert torch.tpu.current_device() == 0
torch.accelerator.set_device_index(1)
assert torch.accelerator.current_device_index() == 1
torch.tpu.set_device("tpu:0")
for wrong in ("tpu:2", "tpu:77"):
    for f in (lambda: torch.ones(1, device=wrong), lambda: a.to(wrong), lambda: torch.tpu.set_device(wrong),
              lambda: torch.tpu.synchronize(wrong), lambda: torch.Generator(wrong)):
        try:
            f()
        except (RuntimeError, ValueError, IndexError) as error:
            assert "device" in str(error) or wrong in str(error), error
        else:
            assert False, wrong
torch.manual_seed(3)
p, q = torch.rand(4, device="tpu:0"), torch.rand(4, device="tpu:1")
assert torch.equal(p.cpu(), q.cpu())
states = torch.tpu.get_rng_state_all()
with torch.random.fork_rng(devices=[0, 1], device_type="tpu"):
    torch.rand(4, device="tpu:1"), torch.manual_seed(9)
assert all(torch.equal(s, t) for s, t in zip(states, torch.tpu.get_rng_state_all()))
torch.rand(4, device="tpu:1")
assert torch.equal(torch.tpu.get_rng_state(0), states[0]) and not torch.equal(torch.tpu.get_rng_state(1), states[1])
g = torch.Generator("tpu:1").manual_seed(3)
assert torch.equal(torch.rand(4, device="tpu:1", generator=g).cpu(), p.cpu())
# A model in two parts: autograd's threads, one a device.
m, n = nn.Linear(3, 4).to("tpu:0"), nn.Linear(4, 1).to("tpu:1")
h, k = copy.deepcopy(m).cpu(), copy.deepcopy(n).cpu()
o = torch.optim.AdamW([*m.parameters(), *n.parameters()], 0.1)
for _ in range(3):
    o.zero_grad()
    n(m(a).relu().to("tpu:1")).sum().backward()
    o.step()
r = torch.optim.AdamW([*h.parameters(), *k.parameters()], 0.1)
for _ in range(3):
    r.zero_grad()
    k(h(x).relu()).sum().backward()
    r.step()
for s, t in zip([*m.parameters(), *n.parameters()], [*h.parameters(), *k.parameters()]):
    torch.testing.assert_close(s.detach().cpu(), t.detach(), rtol=1e-4, atol=1e-5)
file = io.BytesIO()
torch.save(torch.ones(2, device="tpu:1"), file)
assert torch.load(io.BytesIO(file.getvalue())).get_device() == 1
assert torch.load(io.BytesIO(file.getvalue()), map_location="tpu:0").get_device() == 0
assert torch.tpu.memory_allocated(1) > 0
torch.tpu.synchronize(1)
y = torch.ones(3, device="tpu:1") * 2
e = torch.Event("tpu:1")
e.record(torch.tpu.current_stream(1))
torch.tpu.current_stream(0).wait_event(e)
e.synchronize()
assert e.query()
from torch.nn.parallel import replicate, parallel_apply
print("done")
"""


def test_a_saved_device_that_is_not_there(tmp_path):
    run(
        "import sys, torch; torch.save(torch.ones(2, device='tpu:1'), sys.argv[1])",
        tmp_path / "x",
        TORCH_TPU_CPU_DEVICES="2",
    )
    with pytest.raises(RuntimeError, match="tpu"):
        torch.load(tmp_path / "x")
    assert torch.load(tmp_path / "x", map_location="tpu").tolist() == [1, 1]
    assert torch.load(tmp_path / "x", map_location="cpu").tolist() == [1, 1]


# --- random state


def test_generators():
    torch.manual_seed(11)
    a = torch.randn(3, device="tpu")
    torch.tpu.manual_seed(11)
    assert torch.equal(torch.randn(3, device="tpu").cpu(), a.cpu())
    assert torch.tpu.initial_seed() == 11 and torch.tpu.default_generators[0].device == torch.device("tpu:0")
    g = torch.Generator("tpu")
    g.manual_seed(4)
    state = g.get_state()
    b = torch.rand(3, generator=g, device="tpu")
    twin = g.clone_state()
    c = torch.rand(3, generator=g, device="tpu")
    assert torch.equal(torch.rand(3, generator=twin, device="tpu").cpu(), c.cpu())
    g.set_state(state)
    assert torch.equal(torch.rand(3, generator=g, device="tpu").cpu(), b.cpu())
    assert not torch.equal(b.cpu(), c.cpu())
    with pytest.raises((RuntimeError, TypeError)):
        g.set_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TypeError):
        torch.tpu.set_rng_state(torch.zeros(16))
    assert g.seed() == g.initial_seed() and torch.tpu.seed() == torch.tpu.initial_seed()
    before = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(3, device="tpu")
        torch.manual_seed(1)
    assert torch.equal(torch.tpu.get_rng_state(), before)
    pickled = pickle.loads(pickle.dumps(g))
    assert torch.equal(pickled.get_state(), g.get_state())


def test_sampling_from_loaders_and_multinomial():
    torch.manual_seed(0)
    w = torch.tensor([0.0, 1.0, 0.0], device="tpu")
    assert torch.multinomial(w, 5, replacement=True).tolist() == [1] * 5
    assert sorted(torch.randperm(20, device="tpu").tolist()) == list(range(20))
    x = torch.randint(0, 10, (1000,), device="tpu")
    assert int(x.min()) == 0 and int(x.max()) == 9
    assert abs(torch.randn(10000, device="tpu").std().item() - 1) < 0.05
    nn.init.trunc_normal_(torch.empty(10, 10, device="tpu"))
    nn.init.orthogonal_(torch.empty(4, 4, device="tpu"))


# --- torch.accelerator


def test_accelerator():
    acc = torch.accelerator
    assert acc.is_available() and acc.device_count() == torch.tpu.device_count()
    assert acc.current_accelerator() == torch.device("tpu") and acc.current_device_index() == 0
    acc.set_device_index(0)
    with acc.device_index(0):
        pass
    s = acc.current_stream()
    acc.set_stream(s)
    acc.synchronize()
    acc.synchronize("tpu:0")
    acc.empty_cache()
    acc.reset_peak_memory_stats()
    acc.reset_accumulated_memory_stats()
    x = torch.ones(1 << 16, device="tpu") + torch.rand(1, device="tpu")
    acc.synchronize()
    assert acc.memory_allocated() >= x.nbytes and acc.max_memory_allocated() >= acc.memory_allocated()
    assert acc.memory_reserved() >= 0 and acc.max_memory_reserved() >= 0
    free, total = acc.get_memory_info()
    assert 0 < free <= total
    assert acc.memory_stats() and torch.tpu.memory_stats()
    peak = acc.max_memory_allocated()
    held = acc.memory_allocated()
    del x
    assert acc.memory_allocated() <= held - (1 << 18) and acc.max_memory_allocated() == peak
    assert torch.tpu.get_device_name() and torch.tpu.get_device_properties().total_memory > 0
    assert torch.get_device_module("tpu") is torch.tpu and torch.get_device_module() is torch.tpu
    assert torch._C._get_privateuse1_backend_name() == "tpu"


def test_streams_and_events():
    s, t = torch.tpu.Stream(), torch.Stream("tpu")
    assert (
        s.device == torch.device("tpu:0")
        and t.device == s.device
        and torch.tpu.default_stream() == torch.tpu.current_stream()
    )
    with torch.tpu.stream(s), t:
        x = torch.ones(4, device="tpu") * 3
    a, b = torch.Event("tpu", enable_timing=True), torch.tpu.Event(enable_timing=True)
    a.record(s)
    y = x.square()
    b.record()
    t.wait_event(a), t.wait_stream(s), s.synchronize(), b.synchronize()
    assert s.query() and a.query() and b.query() and a.elapsed_time(b) >= 0
    x.record_stream(s)
    assert y.sum().item() == 36
    with pytest.raises((RuntimeError, ValueError)):
        torch.Event("tpu").elapsed_time(torch.Event("tpu"))
    with pytest.raises((RuntimeError, ValueError)):
        torch.Event("tpu", enable_timing=True).elapsed_time(b)


def test_other_modules_know_the_device():
    from torch.utils.benchmark import Timer
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.arange(8.0, device="tpu")
    assert sum(float(b.sum()) for (b,) in DataLoader(TensorDataset(x), 3)) == 28
    collated = torch.utils.data.default_collate([torch.ones(2, device="tpu"), torch.zeros(2, device="tpu")])
    assert collated.is_tpu
    from torch.utils import _pytree

    assert _pytree.tree_map(lambda t: t.cpu(), {"a": [x]})["a"][0].tolist() == list(range(8))
    assert Timer("x + 1", globals={"x": x}).timeit(2).mean > 0
    assert Path(torch_tpu.__file__).exists()
    packed = nn.utils.rnn.pack_sequence([x[:3], x[:2]])
    assert packed.data.is_tpu and nn.utils.rnn.pad_packed_sequence(packed)[0].shape == (3, 2)
    assert torch.nn.utils.rnn.pad_sequence([x[:3], x[:1]]).is_tpu
