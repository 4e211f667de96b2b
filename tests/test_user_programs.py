"""Whole programs as users write them: what they compute is what the CPU computes, bit for bit where a run is repeated, and what repeats is
compiled once."""

import copy
import io

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64])
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
