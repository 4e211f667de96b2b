"""Every public name there is, and the habits of programs written for torch.cuda: each is tried once."""

import contextlib
import copy
import io
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
]
tpu = torch.tpu


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=150,
    )  # fmt: skip


def alike(f, *tensors):
    """f of tensors on the CPU and of their copies there: the same result or the same error."""
    results = []
    for device in ("cpu", "tpu"):
        try:
            results.append(f(*(t.to(device) for t in tensors)))
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
    if isinstance(results[0], torch.Tensor):
        torch.testing.assert_close(results[1], results[0], check_device=False)
    else:
        assert repr(results[1]).replace(", device='tpu:0'", "") == repr(results[0])


# --- torch.tpu


def test_every_public_name_is_there():
    assert sorted(tpu.__all__) == tpu.__all__ and set(tpu.__all__) <= set(dir(tpu))
    for name in tpu.__all__:
        value = getattr(tpu, name)
        assert name in ("eager_mode", "allow_excess_precision", "default_generators") or value.__doc__, name
    with pytest.raises(AttributeError, match="no_such_name"):
        tpu.no_such_name  # noqa: B018


def test_it_is_a_package():
    import torch.tpu.amp
    import torch.tpu.compiler
    import torch.tpu.memory
    import torch.tpu.ops
    import torch.tpu.random

    assert sys.modules["torch.tpu"] is torch.tpu and tpu.__name__ == "torch.tpu"
    assert tpu.memory.memory_allocated is tpu.memory_allocated and tpu.random.manual_seed is tpu.manual_seed
    assert pickle.loads(pickle.dumps(tpu.EagerMode.DEFER_NEVER)) is tpu.EagerMode.DEFER_NEVER
    assert "torch_tpu.tpu" not in sys.modules


def test_devices():
    tpu.init()
    assert tpu.is_initialized() and tpu.get_arch_list() == [tpu.get_device_name()]
    assert tpu.can_device_access_peer(0, 0) is False
    assert tpu._get_local_device_attributes()[0]["index"] == 0
    for f in (tpu.get_device_name, tpu.get_device_properties, tpu.set_device, tpu.synchronize):
        with pytest.raises(RuntimeError, match="device"):
            f(99)
    for f in (tpu.get_device_name, tpu.memory_allocated, torch.Generator, tpu.current_stream):
        with pytest.raises((RuntimeError, ValueError)):
            f("no device")
    with tpu.device("tpu:0"), tpu.device(None), tpu.device_of(torch.ones(1)):
        assert tpu.current_device() == 0
    assert torch.ones(1, device=0).is_tpu and nn.Linear(2, 2).to(0).weight.is_tpu  # an index is the accelerator's
    assert tpu.is_bf16_supported() and torch.bfloat16 in tpu.get_amp_supported_dtype()


def test_memory():
    x = torch.rand(1 << 12, device="tpu")
    tpu.synchronize()
    assert tpu.memory_allocated("tpu:0") == tpu.memory_reserved(0) == tpu.memory_cached(torch.device("tpu")) >= x.nbytes
    nested, flat = tpu.memory_stats_as_nested_dict(), tpu.memory_stats()
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
    tpu.reset_max_memory_allocated()
    assert tpu.max_memory_allocated() == tpu.max_memory_cached() >= tpu.memory_allocated()
    tpu.reset_accumulated_memory_stats()
    assert tpu.memory_stats()["allocation.all.allocated"] == 0
    assert f"{tpu.memory_allocated():,}" in tpu.memory_summary() and "Buffers" not in tpu._hbm_usage_summary()
    assert tpu.get_memory_info() == tpu.mem_get_info() == torch.accelerator.get_memory_info()
    tpu.empty_cache(), tpu.empty_host_cache(), tpu.ipc_collect()


def test_streams():
    s, other = tpu.Stream(), tpu.Stream("tpu:0", priority=-1)
    assert isinstance(s, torch.Stream) and isinstance(s, tpu.Stream) and s == tpu.current_stream()
    assert tpu.Stream.priority_range() == (0, 0) and not tpu.is_current_stream_capturing()
    for context in (tpu.stream(s), tpu.stream(None), tpu.StreamContext(other), s):
        with context:
            y = torch.ones(3, device="tpu") + 1
    event = s.record_event()
    assert isinstance(event, torch.Event) and isinstance(event, tpu.Event)
    other.wait_event(event), other.wait_stream(s), event.wait(), event.wait(other), event.synchronize()
    assert event.query() and tpu.Event().query() and y.tolist() == [2, 2, 2]
    y.record_stream(other), tpu.set_stream(other), tpu.set_stream(None)
    with pytest.raises(RuntimeError):
        tpu.Event(interprocess=True).ipc_handle()


def test_random_state():
    g = torch.Generator("tpu")
    assert g.device == torch.device("tpu:0") and torch.Generator(device="tpu:0").device == g.device
    g.manual_seed(5)
    for draw in (lambda g: torch.randn(3, device="tpu", generator=g),
                 lambda g: torch.randint(9, (3,), device="tpu", generator=g),
                 lambda g: torch.randperm(4, device="tpu", generator=g),
                 lambda g: torch.empty(3, device="tpu").normal_(generator=g).exponential_(generator=g),
                 lambda g: torch.empty(3, device="tpu").geometric_(0.5, generator=g),
                 lambda g: torch.multinomial(torch.ones(3, device="tpu"), 2, generator=g)):  # fmt: skip
        twin = g.clone_state()
        assert torch.equal(draw(g), draw(twin)) and torch.equal(g.get_state(), twin.get_state())
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        torch.randn(3, device="tpu", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="device"):
        torch.randn(3, generator=g)
    state = tpu.get_rng_state()
    for device in (0, "tpu", "tpu:0", torch.device("tpu")):
        tpu.set_rng_state(state, device)
    with torch.random.fork_rng(devices=["tpu:0"], device_type="tpu"):
        torch.manual_seed(-1)
        assert tpu.initial_seed() == torch.initial_seed()
        tpu.manual_seed_all(1), tpu.seed_all()
    assert torch.equal(state, tpu.get_rng_state())


# --- programs and their cache


def counted(f):
    before = tpu.stats()
    f()
    return {key: value - before[key] for key, value in tpu.stats().items()}


def test_cache_names(capfd):
    x = torch.arange(7.0, device="tpu")
    f = lambda: (x * 3.5 + 1).tolist()  # noqa: E731
    f(), f()
    s = tpu._get_cache_stats()
    assert s.num_cache_reqs == tpu._get_cache_requests() and s.num_cache_hits == tpu._get_cache_hits()
    assert s.num_cache_reqs - s.num_cache_hits == tpu._get_cache_misses() and s.per_entry_stats
    assert all(e.read_count >= 1 and e.compilation_duration >= 0 for e in s.per_entry_stats)
    assert s.num_compilations == tpu.stats()["compiles"]
    assert counted(f)["cache_hits"] == 1
    tpu._set_allow_cache(False)
    try:
        assert counted(f)["compiles"] == counted(f)["compiles"] == 1
    finally:
        tpu._set_allow_cache(True)
    assert counted(f)["compiles"] == 0
    tpu._set_cache_only(True)
    try:
        f()
        y = x.sin().cos().atan() * 17
        with pytest.raises(RuntimeError, match="only cached programs are allowed"):
            y.tolist()
    finally:
        tpu._set_cache_only(False)
    capfd.readouterr()
    tpu._set_dump_on_cache_miss(True)
    assert tpu._get_dump_on_cache_miss()
    try:
        (x.cos() + x.sin()).tolist()
    finally:
        tpu._set_dump_on_cache_miss(False)
    assert "stablehlo.cosine" in capfd.readouterr().err
    (x.cos() - x.sin()).tolist()
    assert capfd.readouterr().err == ""
    tpu._shutdown_runtime()
    assert tpu._get_cache_stats().per_entry_stats == [] and f()[0] == 1


def test_compiler_options():
    x = torch.arange(5.0, device="tpu")
    f = lambda: (x * 2.5 - 1).tolist()  # noqa: E731
    options = tpu.compiler.custom_compiler_options
    f(), f()
    with options({"xla_cpu_enable_fast_math": "false"}):
        first = counted(f)
        with options({"xla_optimization_level": "O1", "xla_memory_fitting_level": "O2"}):
            second = counted(f)
        again = counted(f)
    assert [c["compiles"] + c["disk_hits"] for c in (first, second, again, counted(f))] == [1, 1, 0, 0]
    tpu.clear_cache()
    with options({"xla_cpu_enable_fast_math": "false"}):  # other options: another file
        c = counted(f)
    assert c["compiles"] == 0 and c["disk_hits"] == 1
    for wrong in ({"xla_optimization_level": "O4"}, {"xla_memory_fitting_level": "2"}):
        with pytest.raises(RuntimeError, match="must be one of O0, O1, O2, O3"), options(wrong):
            pass
    with options({"no_such_option": "1"}):  # nor does a call by itself compile
        y, z = x * 2.5 - 1, x * 3
    for t in (y, z):
        with pytest.raises(RuntimeError, match="no_such_option"):
            t.tolist()
    assert f()[0] == -1  # the block's options ended with it
    w = nn.Parameter(x.clone())
    with options({"xla_cpu_enable_fast_math": "true"}):  # autograd's thread too
        (w * w).sum().backward()
        assert counted(lambda: w.grad.tolist())["executes"] == 1


def test_excess_precision():
    assert tpu.allow_excess_precision is False
    x = torch.arange(5.0, device="tpu").bfloat16()
    f = lambda: (x * 1.1 + 0.3).tolist()  # noqa: E731
    want = f()
    tpu.allow_excess_precision = True
    try:
        assert tpu.allow_excess_precision and counted(f)["cache_hits"] == 0
    finally:
        tpu.allow_excess_precision = False
    assert f() == want and counted(f)["cache_hits"] == 1


@pytest.mark.parametrize("text, warned", [("--no_such_option=1", False), ("nonsense", True)])
def test_options_of_the_environment(text, warned):
    code = "import torch; print(torch.ones(3, device='tpu').sin().tolist())"
    done = run(code, TORCH_TPU_INTERNAL_XLA_OPTIONS=text)
    assert (done.returncode != 0 and "no_such_option" in done.stderr) != warned
    assert ("is not key=value" in done.stderr) == warned


def test_eager_mode_property():
    assert tpu.eager_mode is tpu.EagerMode.DEFER_AND_FUSE
    tpu.eager_mode = tpu.EagerMode.DEFER_NEVER
    try:
        assert tpu.eager_mode is tpu.EagerMode.DEFER_NEVER
    finally:
        tpu.eager_mode = tpu.EagerMode.DEFER_AND_FUSE
    with pytest.raises(ValueError):
        tpu.eager_mode = 7


def test_names_other_backends_have():
    from torch_tpu._internal import execution_mode, sync

    assert execution_mode.eager_mode is tpu.eager_mode and execution_mode.EagerMode is tpu.EagerMode
    enabled = execution_mode.enable_cpu_fallback
    execution_mode.enable_cpu_fallback = False
    try:
        with pytest.raises(NotImplementedError, match="not implemented for the tpu device"):
            torch.geqrf(torch.eye(2, device="tpu"))
    finally:
        execution_mode.enable_cpu_fallback = True
    assert execution_mode.enable_cpu_fallback and enabled
    assert torch.geqrf(torch.eye(2, device="tpu"))[0].shape == (2, 2)
    x = torch.arange(3.0, device="tpu")
    sync.synchronize()
    y = x.tan()
    assert "stablehlo.tan" in sync.computation_mlir(y)
    before = tpu.stats()["executes"]
    sync.synchronize([y], wait=False)
    assert sync.computation_mlir(y) == "" and tpu.stats()["executes"] == before + 1


@pytest.mark.parametrize("root, used", [("{}", True), ("gs://bucket/folder", False)])
def test_a_shared_cache_folder(tmp_path, root, used):
    code = (
        "import os; os.environ.pop('TORCH_TPU_CACHE_DIR', None); import torch;"
        "print(torch.ones(3, device='tpu').tan().tolist())"
    )
    done = run(code, TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT=root.format(tmp_path / "c"), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0 and ("is not a local folder" in done.stderr) != used
    assert (tmp_path / "c").exists() == used != (tmp_path / "torch_tpu").exists()


# --- torch.tpu.ops


def test_pools():
    x = torch.randn(2, 3, 9, 8, 7)
    for rank in (1, 2, 3):
        pool, backward = (getattr(tpu.ops, f"max_pool{rank}d{end}") for end in ("", "_backward"))
        args = (3, 2, 1, 1, True)
        h = x.flatten(2)[..., :20] if rank == 1 else x[:, :, 0] if rank == 2 else x
        h = h.clone().requires_grad_()
        d = h.detach().to("tpu").requires_grad_()
        want, got = getattr(F, f"max_pool{rank}d")(h, *args), pool(d, *args)
        g = torch.randn_like(want)
        want.backward(g), got.backward(g.to("tpu"))
        torch.testing.assert_close(got.cpu(), want)
        torch.testing.assert_close(d.grad.cpu(), h.grad)
        torch.testing.assert_close(backward(g.to("tpu"), d.detach(), *args).cpu(), h.grad)
        (twice,) = torch.autograd.grad(pool(d, *args).square().sum(), d, create_graph=True)
        twice.sum().backward()
        assert d.grad.isfinite().all()


def test_optimization_barrier():
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x * 2
    before = tpu.stats()["executes"]
    a, b = tpu.ops.optimization_barrier([y, x])
    assert tpu.stats()["executes"] == before + 1  # what was recorded is a program of its own
    assert torch.equal(a, y) and torch.equal(b, x)
    (a * b).sum().backward()
    assert x.grad.tolist() == [4, 4, 4]


# --- torch.amp


def test_autocast_forms():
    x, w = torch.randn(4, 4, device="tpu"), torch.randn(4, 4, device="tpu", requires_grad=True)
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu") and (x @ w).dtype is torch.bfloat16
        with torch.autocast("tpu", enabled=False):
            assert (x @ w).dtype is torch.float32
        assert (x @ w).softmax(0).dtype is torch.float32
        (x @ w).sum().backward()
    assert w.grad.dtype is torch.float32 and not torch.is_autocast_enabled("tpu")
    assert torch.get_autocast_dtype("tpu") is torch.bfloat16 and torch.amp.is_autocast_available("tpu")
    with torch.amp.autocast("tpu", dtype=torch.float16, cache_enabled=False):
        assert (x @ w).dtype is torch.float16
    with tpu.amp.autocast():
        assert (x @ w).dtype is torch.bfloat16
    assert torch.autocast("tpu")(lambda a: a @ a)(x).dtype is torch.bfloat16


@pytest.mark.parametrize("forms", ["torch.amp", "torch.tpu.amp"])
def test_custom_functions_under_autocast(forms):
    import functools

    fwd, bwd = tpu.amp.custom_fwd, tpu.amp.custom_bwd
    if forms == "torch.amp":
        fwd, bwd = (functools.partial(f, device_type="tpu") for f in (torch.amp.custom_fwd, torch.amp.custom_bwd))

    class Full(torch.autograd.Function):
        @staticmethod
        @fwd(cast_inputs=torch.float32)
        def forward(ctx, a):
            assert a.dtype is torch.float32 and not torch.is_autocast_enabled("tpu")
            return a @ a

        @staticmethod
        @bwd
        def backward(ctx, g):
            assert not torch.is_autocast_enabled("tpu")
            return g

    class Half(torch.autograd.Function):
        @staticmethod
        @fwd
        def forward(ctx, a):
            return a @ a

        @staticmethod
        @bwd
        def backward(ctx, g):
            assert torch.is_autocast_enabled("tpu")
            return g.float()

    a = torch.ones(2, 2, device="tpu", requires_grad=True)
    with torch.autocast("tpu"):
        full, half = Full.apply(a.bfloat16()), Half.apply(a)
    assert full.dtype is torch.float32 and half.dtype is torch.bfloat16
    (full.sum() + half.sum()).backward()
    assert a.grad.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
def test_grad_scaler_forms(how):
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=2)
    p = nn.Parameter(torch.ones(3, device="tpu"))
    optimizer = torch.optim.Adam([p], 0.1, **how)
    kept = []
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale((p * 2).sum()).backward()
        if step == 1:
            p.grad[0] = float("inf")
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([p], 1.0)
        scaler.step(optimizer), scaler.update()
        kept.append(p.tolist())
    assert kept[0] == kept[1] != kept[2] and scaler.get_scale() == 4.0  # halved once, then two good steps
    other = tpu.amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == pickle.loads(pickle.dumps(scaler)).get_scale() == 4.0
    assert torch.amp.GradScaler("tpu", enabled=False).scale(p.sum()).item() == p.sum().item()


# --- tensors as Python values, numpy, DLPack


def test_numbers():
    for x in (
        torch.tensor(3),
        torch.tensor(2.5),
        torch.tensor(True),
        torch.tensor(1 + 2j),
        torch.ones(2),
        torch.ones(0),
    ):
        for f in (bool, int, float, complex, len, list, str.format, lambda t: [1, 2, 3, 4][t], lambda t: t.item(),
                  lambda t: f"{t:.2f}", lambda t: f"{t:05d}", lambda t: t.tolist(), lambda t: list(range(9))[t:5],
                  lambda t: round(t, 1), lambda t: 2 in t, lambda t: t[5], lambda t: t[0, 0], lambda t: t.__index__(),
                  lambda t: list(reversed(t)), lambda t: -t, lambda t: 2 ** t):  # fmt: skip
            alike(f, x)
    x = torch.ones(3, device="tpu")
    assert (x * torch.tensor(2.0)).is_tpu and (torch.tensor(2.0) * x).is_tpu
    x += torch.tensor(1.0)
    x[torch.tensor([0, 1])] = 5.0
    assert x[torch.tensor([True, False, True])].tolist() == [5, 2]
    h, w = torch.ones(3), torch.eye(3, device="tpu")
    for f in (lambda: h + x, lambda: F.linear(h, w), lambda: F.embedding(h.long(), w), lambda: torch.cat((h, x))):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            f()


def test_numpy():
    x = torch.ones(2, device="tpu")
    for f in (x.numpy, x.__array__, lambda: np.asarray(x), lambda: np.array(x), lambda: np.sin(x)):
        with (
            warnings.catch_warnings(),
            pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"),
        ):
            warnings.simplefilter("ignore", DeprecationWarning)
            f()
    assert (x * np.float32(2)).is_tpu and torch.tensor(np.ones(2), device="tpu").dtype is torch.float64


def test_dlpack():
    from torch.utils.dlpack import DLDeviceType

    for x in (torch.arange(6.0, device="tpu").view(2, 3).t(), nn.Parameter(torch.ones(2, device="tpu"))):
        assert x.__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
        for f in (x.__dlpack__, lambda x=x: torch.to_dlpack(x), lambda x=x: torch.utils.dlpack.to_dlpack(x),
                  lambda x=x: torch.from_dlpack(x), lambda x=x: np.from_dlpack(x.detach()),
                  lambda x=x: x.__dlpack__(dl_device=(1, 0), copy=False)):  # fmt: skip
            with pytest.raises(BufferError, match="cannot be shared|require gradient"):
                f()
        host = np.from_dlpack(x.detach(), device="cpu")
        assert host.shape == tuple(x.shape) and host.tolist() == x.tolist()
        assert torch._C._from_dlpack(x.detach().__dlpack__(max_version=(1, 0), dl_device=(1, 0))).tolist() == x.tolist()
    for refused in (nn.Parameter(torch.ones(2, device="tpu")), torch.ones(2, dtype=torch.cfloat, device="tpu").conj()):
        with pytest.raises(BufferError):
            refused.__dlpack__(dl_device=(1, 0))
    assert torch.from_dlpack(np.arange(3), device="tpu").is_tpu
    y = torch.arange(3)  # other devices as ever
    assert torch.from_dlpack(torch.to_dlpack(y)).data_ptr() == y.data_ptr()
    assert torch.from_dlpack(y).data_ptr() == y.data_ptr() and y.__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    with pytest.raises(AttributeError, match="__cuda_array_interface__"):
        torch.ones(2, device="tpu").__cuda_array_interface__  # noqa: B018


# --- copies, files, processes


def test_copies():
    base = torch.arange(6.0, device="tpu")
    a, part, turned = copy.deepcopy([base, base[2:], base.view(2, 3).t()])
    a[2] = 9
    assert part[0].item() == turned[2, 0].item() == 9 and base[2].item() == 2 and turned.stride() == (1, 3)
    x = torch.randn(3, device="tpu", requires_grad=True)
    x.grad = torch.ones(3, device="tpu")
    y = copy.deepcopy(x)
    assert y.requires_grad and y.is_leaf and torch.equal(y.grad, x.grad) and copy.copy(x) is not x
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_files_of_the_old_format(dtype):
    x = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    for source in ("cpu", "tpu"):
        file = io.BytesIO()
        y = x.to(source)
        torch.save({"x": y, "row": y[1], "t": y.t()}, file, _use_new_zipfile_serialization=False)
        for target in (None, "cpu", "tpu", {"tpu:0": "cpu"}):
            file.seek(0)
            got = torch.load(file, map_location=target)
            assert (
                torch.equal(got["x"].cpu(), x)
                and torch.equal(got["row"].cpu(), x[1])
                and torch.equal(got["t"].cpu(), x.t())
            )
            device = {"cpu": "cpu", "tpu": "tpu", "None": source}.get(str(target), "cpu")
            assert got["x"].device.type == device and got["row"].data_ptr() == got["x"][1].data_ptr()


def test_through_multiprocessing():
    """What a queue sends is pickled so; it travels through shared memory of the host."""
    from multiprocessing.reduction import ForkingPickler

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).tpu()
    x = torch.arange(6.0, device="tpu").view(2, 3).t()
    for sent in (x, nn.Parameter(x.detach()), torch.arange(3), torch.empty(0, device="tpu")):
        got = pickle.loads(ForkingPickler.dumps(sent))
        assert type(got) is type(sent) and got.device == sent.device and torch.equal(got.cpu(), sent.cpu())
        assert got.stride() == sent.stride()
    twin = pickle.loads(ForkingPickler.dumps(model))
    assert twin[0].weight.is_tpu and torch.equal(twin[0].weight, model[0].weight)
    assert x.is_shared() and x.share_memory_() is x and model.share_memory() is model  # as for CUDA


def test_safetensors(tmp_path):
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).tpu()
    model[1].weight = model[0].weight
    files.save_model(model, tmp_path / "m")
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).tpu()
    other[1].weight = other[0].weight
    files.load_model(other, tmp_path / "m")
    assert all(torch.equal(p, q) and q.is_tpu for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_pinned_memory_and_workers():
    x = torch.randn(16, 3)
    for options in ({}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
        seen = [a.to("tpu", non_blocking=True) for (a,) in DataLoader(TensorDataset(x), 4, pin_memory=True, **options)]
        assert torch.equal(torch.cat(seen).cpu(), x)
    loaded = list(DataLoader(TensorDataset(x.to("tpu")), 4))
    assert torch.equal(torch.cat([a for (a,) in loaded]).cpu(), x)
    with pytest.raises(RuntimeError, match="fork"):
        list(DataLoader(TensorDataset(x.to("tpu")), 4, num_workers=1))
    pinned = x.pin_memory()
    assert pinned[1:].is_pinned() and not pinned.clone().is_pinned() and pinned.untyped_storage().is_pinned()
    assert torch.tensor([1], pin_memory=True).is_pinned() and not torch.ones(1, device="tpu").is_pinned()
    for f in (torch.ones(1, device="tpu").pin_memory, lambda: torch.empty(1, device="tpu", pin_memory=True)):
        with pytest.raises(RuntimeError, match="pin"):
            f()
    on_device = pinned.to("tpu", non_blocking=True)
    pinned.zero_()
    assert torch.equal(on_device.cpu(), x)
    back, event = torch.empty(16, 3, pin_memory=True), tpu.Event()
    back.copy_(on_device * 2, non_blocking=True)
    event.record(), event.synchronize()
    assert torch.equal(back, x * 2)


# --- modules, transforms, hooks


def test_modules():
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).tpu()
    assert lazy(torch.ones(2, 4, device="tpu")).is_tpu and lazy[0].weight.is_tpu
    p = nn.Parameter(torch.ones(3))
    p.data = p.data.to("tpu")
    assert p.is_tpu
    with pytest.raises(RuntimeError, match="same device"):
        p.grad = torch.ones(3)
    y = torch.randn(2, 3, 4, 5).to("tpu", memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    conv = nn.Conv2d(4, 4, 3).to("tpu", memory_format=torch.channels_last)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert nn.utils.skip_init(nn.Linear, 2, 2, device="tpu").weight.is_tpu
    assert nn.ParameterList([nn.Parameter(torch.ones(1))]).tpu()[0].is_tpu
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
    assert packed.tpu().data.is_tpu and packed.to("tpu").data.is_tpu
    with torch.no_grad():
        script = torch.jit.trace(nn.Linear(2, 2).tpu(), torch.ones(1, 2, device="tpu"))
    file = io.BytesIO()
    torch.jit.save(script, file)
    for where in (None, "cpu", "tpu"):
        file.seek(0)
        weight = torch.jit.load(file, map_location=where).weight
        assert weight.device.type == (where or "tpu") and torch.equal(weight.cpu(), script.weight.cpu())


def test_default_device():
    torch.set_default_device("tpu")
    try:
        assert torch.get_default_device().type == "tpu"
        for t in (torch.ones(2), torch.tensor([1]), torch.arange(3), torch.rand(2), torch.eye(2), torch.randperm(3),
                  torch.linspace(0, 1, 3), torch.tril_indices(2, 2), torch.hann_window(3), torch.as_tensor([1]),
                  torch.fft.fftfreq(3), torch.empty_strided((2,), (1,)), nn.Linear(2, 2).weight,
                  nn.LSTM(2, 2).bias_hh_l0,
                  torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=False)):  # fmt: skip
            assert t.is_tpu
        assert torch.from_numpy(np.ones(2)).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    with torch.device("tpu:0"), torch.device("cpu"):
        assert not torch.ones(1).is_tpu


def test_profilers(tmp_path, capfd):
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    x = torch.ones(4, 4, device="tpu", requires_grad=True)
    both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    more = {"record_shapes": True, "profile_memory": True, "with_flops": True}
    for options in ({"activities": [ProfilerActivity.CPU], **more}, {"activities": both, "with_stack": True}):
        with profile(**options) as p, record_function("mine"):
            (x @ x).sum().backward()
        assert {"mine", "aten::mm"} <= {e.key for e in p.key_averages()} and p.key_averages().table()
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    with profile(schedule=schedule(wait=0, warmup=1, active=1)) as p:
        for _ in range(2):
            x.sum().item()
            p.step()
    for options in ({}, {"use_kineto": False}):
        with torch.autograd.profiler.profile(use_device="tpu", **options) as p:
            (x @ x).sum().backward()
        assert sum(e.self_device_time_total for e in p.key_averages()) > 0
    assert "Exception in RecordFunction" not in capfd.readouterr().err


def test_transforms_and_hooks():
    from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vjp, vmap

    f = lambda x: (x.sin() * x).prod()  # noqa: E731
    for transform in (grad, jacrev, jacfwd, hessian, lambda f: lambda x: vjp(f, x)[1](x[0])):
        alike(lambda x, t=transform: t(f)(x), torch.randn(3))
    model = nn.Linear(3, 2).tpu()
    loss = lambda p, x: functional_call(model, p, (x,)).square().sum()  # noqa: E731
    each = vmap(grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), torch.randn(5, 3, device="tpu"))
    assert each["weight"].shape == (5, 2, 3)
    x = torch.randn(3, device="tpu", dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(f, x) and torch.autograd.gradgradcheck(f, x)
    for hooks in (torch.autograd.graph.save_on_cpu(pin_memory=True), torch.autograd.graph.save_on_cpu(),
                  torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.tpu()),
                  torch.autograd.set_detect_anomaly(True), contextlib.nullcontext()):  # fmt: skip
        x.grad = None
        with warnings.catch_warnings(), hooks:
            warnings.simplefilter("ignore")
            (x * x).sum().backward()
        assert torch.equal(x.grad, 2 * x.detach())


def test_custom_operators():
    @torch.library.custom_op("surface::plus", mutates_args=())
    def plus(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x = torch.ones(2, device="tpu")
    torch.testing.assert_close(plus(x).cpu(), plus(x.cpu()))

    @plus.register_kernel("tpu")
    def _(x):
        return x * 5

    @torch.library.custom_op("surface::count", mutates_args=("x",), device_types="tpu")
    def count(x: torch.Tensor) -> None:
        x.add_(1)

    count(x)
    assert plus(x).tolist() == [10, 10] and plus(x.cpu()).tolist() != [10, 10]


def test_comparing():
    x = torch.ones(2, device="tpu")
    torch.testing.assert_close(x, torch.ones(2, device="tpu"))
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(x, torch.ones(2))
    with pytest.raises(AssertionError, match="Mismatched elements: 2 / 2"):
        torch.testing.assert_close(x, torch.zeros(2, device="tpu"))
    assert torch.equal(x, x.clone()) and torch.allclose(x, x + 1e-9) and {x: 1}[x] == 1
    assert torch.testing.make_tensor(3, device="tpu", dtype=torch.float32).is_tpu


# --- a second device


def test_everything_is_where_it_was_asked_for():
    done = run(SECOND_DEVICE, TORCH_TPU_CPU_DEVICES="2")
    assert done.returncode == 0 and done.stdout.split() == ["done"], done.stderr


SECOND_DEVICE = """
import copy, io, pickle
import torch
import torch.nn as nn
from multiprocessing.reduction import ForkingPickler
from torch.utils.checkpoint import checkpoint

here = torch.device("tpu:1")
x = torch.arange(6.0, device=here).view(2, 3)
model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.LazyLinear(2)).tpu(1)
model(x).sum().backward()
file = io.BytesIO()
torch.save(x, file, _use_new_zipfile_serialization=False)
file.seek(0)
for t in (x.tpu(1), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), pickle.loads(ForkingPickler.dumps(x)),
          torch.load(file), x.untyped_storage().clone(), model[2].weight.grad, torch.rand_like(x), x.new_ones(1),
          torch.zeros(3).to(x), torch.tpu.ops.optimization_barrier([x])[0], nn.Parameter(x), x.cpu().to(1)):
    assert t.device == here, t
with torch.device(here), torch.autocast("tpu"):
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).device == here
assert "device='tpu:1'" in repr(x) and x.__dlpack_device__()[1] == 1
try:
    x.numpy()
except TypeError as error:
    assert "tpu:1" in str(error)
for reentrant in (True, False):
    grads = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
        torch.manual_seed(0)
        y = x.clone().requires_grad_()
        run(y).sum().backward()
        grads.append(y.grad)
    assert torch.equal(*grads)

for d in (here, torch.device("tpu:0")):
    s = torch.sparse_coo_tensor([[0, 1, 0], [1, 0, 1]], [1.0, 2.0, 3.0], (2, 2), device=d, check_invariants=True)
    h = s.cpu()
    for f in (lambda t: t, lambda t: t.coalesce(), lambda t: t.clone(), lambda t: t + t, lambda t: t * 2, lambda t: -t,
              lambda t: t.to_dense().to_sparse(), torch.zeros_like, lambda t: t.t(), copy.deepcopy,
              lambda t: torch.sparse.mm(t, t.to_dense()), lambda t: t.sparse_mask(t.coalesce()),
              lambda t: torch.sparse_coo_tensor((2, 2), device=t.device), lambda t: t.cpu().to(t.device)):
        got, want = f(s), f(h)
        assert got.device == d
        assert torch.equal(got.to_dense().cpu(), want.to_dense())
    assert torch.empty(2, 2, layout=torch.sparse_coo, device=d).device == d
    e = nn.Embedding(5, 3, sparse=True).to(d)
    e(torch.tensor([1, 1, 2], device=d)).sum().backward()
    torch.optim.SparseAdam(list(e.parameters())).step()
    assert e.weight.grad.device == d and e.weight.isfinite().all()
print("done")
"""
