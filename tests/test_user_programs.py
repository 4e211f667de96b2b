"""Whole programs as users write them: what they compute is what the CPU computes, bit for bit where a run is repeated,
and what repeats is compiled once."""

import copy
import io
from functools import partial

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_tpu  # noqa: F401

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
]


def numbers(*size, seed=1):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to("tpu")


def compiles_of(run):
    torch.tpu.synchronize()
    before = torch.tpu.stats()["compiles"]
    out = run()
    torch.tpu.synchronize()
    return torch.tpu.stats()["compiles"] - before, out


def outcome(run, device):
    try:
        return run(device).cpu()
    except Exception as e:
        return type(e)


def assert_same(run):
    want, got = outcome(run, "cpu"), outcome(run, "tpu")
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got is want


class Run:
    """A model with dropout and batch norm, its optimizer and schedule."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("tpu")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, first, last):
        for step in range(first, last):
            loss = F.mse_loss(self.model(numbers(16, 6, seed=step)), numbers(16, 2, seed=99))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()

    def save(self):
        file = io.BytesIO()
        torch.save({k: v.state_dict() for k, v in self.parts().items()} | {"random": torch.tpu.get_rng_state()}, file)
        return file.getvalue()

    def load(self, data):
        saved = torch.load(io.BytesIO(data))
        torch.tpu.set_rng_state(saved["random"].cpu())
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])


def test_a_loaded_run_goes_on_bit_for_bit_and_compiles_nothing():
    straight = Run()
    straight.train(0, 5)
    data = straight.save()
    straight.train(5, 10)
    resumed = Run()
    resumed.load(data)
    compiles, _ = compiles_of(lambda: resumed.train(5, 10))
    assert compiles == 0
    want, got = straight.model.state_dict(), resumed.model.state_dict()
    assert [name for name in want if not torch.equal(want[name], got[name])] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.cfloat])
@pytest.mark.parametrize("dense", ["row-major", "transposed"])
def test_copies_of_storages_keep_the_type_of_their_contents(dtype, dense):
    strides = (6, 1) if dense == "row-major" else (1, 4)
    x = torch.empty_strided((4, 6), strides, dtype=dtype, device="tpu")
    x.copy_(torch.arange(24).reshape(4, 6).to(dtype))
    want = x.cpu()
    compiles_of(lambda: torch.cat([x, x]))
    file = io.BytesIO()
    torch.save(x, file)
    for twin in (lambda: copy.deepcopy(x), lambda: torch.load(io.BytesIO(file.getvalue()))):
        made, z = compiles_of(twin)
        used, _ = compiles_of(lambda z=z: torch.cat([z, z]))
        assert (made, used) == (0, 0)
        assert z.stride() == want.stride() and torch.equal(z.cpu(), want)
        z[0] = 0
        assert torch.equal(x.cpu(), want)


def test_positions_that_move_on_compile_nothing():
    def step(i):
        return [
            x.cpu()
            for x in (
                torch.arange(i, i + 8, device="tpu"),
                torch.arange(i, i + 8, 2, dtype=torch.float32, device="tpu"),
                torch.randint(0, 100 + i, (64,), device="tpu"),
                torch.randint(-i, 7, (64,), device="tpu"),
            )
        ]

    step(3)
    for i in range(4, 9):
        compiles, (whole, spaced, below, between) = compiles_of(partial(step, i))
        assert compiles == 0
        assert whole.tolist() == list(range(i, i + 8)) and spaced.tolist() == [i, i + 2, i + 4, i + 6]
        assert 0 <= below.min() and below.max() < 100 + i and -i <= between.min() and between.max() < 7


RANGES = [(0, 7), (1, 0, 2), (5, 1, -2), (2.5, 3.0, -1), (-3, 9.5, 2), (1, 7, 0.5), (-0.5, 7, 1.5), (True, 4)]


@pytest.mark.parametrize("bounds", RANGES, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.int64, torch.int32, torch.float32, torch.bfloat16], ids=str)
def test_ranges(bounds, dtype):
    assert_same(lambda device: torch.arange(*bounds, dtype=dtype, device=device))


BOUNDS = [(0, 2), (0, 1000), (-5, 3), (0, 70000), (-3, -1), (1 << 40, (1 << 40) + 5), (3, 3)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.float16, torch.int32, torch.uint16])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_bounds_of_draws(bounds, dtype):
    def draw(device):
        x = torch.empty(512, dtype=dtype, device=device).random_(*bounds).double().cpu()
        return ((x >= bounds[0]) & (x <= bounds[1])).all()

    assert_same(draw)


@pytest.mark.parametrize("repeats", [[1, 2, 0, 3], [0, 0], [], [-1, 2], [[1, 2]], [1.5]], ids=str)
def test_repeats_counted_by_the_host(repeats):
    counts = torch.tensor(repeats, dtype=None if repeats else torch.int64)
    assert_same(lambda device: torch.repeat_interleave(counts.to(device)))
    with pytest.raises(IndexError):
        torch.repeat_interleave(torch.tensor([1, 2], device="tpu"), output_size=5).cpu()


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_with_a_rate_that_is_a_cpu_tensor(optimizer):
    def train(device):
        w = torch.arange(4.0, device=device).requires_grad_()
        o = optimizer([w], lr=torch.tensor(0.1), fused=True)
        for _ in range(3):
            (w * w).sum().backward()
            o.step()
        return w.detach()

    assert_same(train)
