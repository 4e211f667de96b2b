"""The example models train, resume and write text on the device as on the CPU, and a steady step compiles nothing."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_tpu  # noqa: F401

pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")

EXAMPLE = Path(__file__).parents[1] / "examples" / "mingpt"
sys.path.insert(0, str(EXAMPLE))
generate = pytest.importorskip("generate")
model = pytest.importorskip("model")
train = pytest.importorskip("train")

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
]

SMALL = ["--steps", "12", "--batch", "2", "--block", "16", "--layers", "1", "--heads", "2", "--width", "16",
         "--warmup", "3", "--eval-every", "100", "--checkpoint-every", "6", "--sample", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{k} green bottles hanging on the wall, and {k * k % 97} to fall.\n" for k in range(400)))
    return str(path)


@pytest.fixture(autouse=True)
def keep_mode():
    before = torch.tpu.eager_mode
    yield
    torch.tpu.set_eager_mode(before)


@pytest.fixture(scope="module")
def small(text, tmp_path_factory):
    """Runs the example with the small configuration; runs are kept by their arguments."""
    runs = {}

    def run(*more, device="tpu", out=None):
        key = (device, out, *more)
        if key not in runs:
            folder = out or str(tmp_path_factory.mktemp("run"))
            runs[key] = train.main([*SMALL, "--data", text, "--device", device, "--out", folder, *more])
        return runs[key]

    return run


@pytest.mark.parametrize("mode", [None, *train.MODES])
def test_losses_are_the_cpus(small, mode):
    host = small(device="cpu")
    run = small(*(["--eager-mode", mode] if mode else []))
    assert run.step == 12 and len(run.losses) == 12
    torch.testing.assert_close(run.losses, host.losses, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(run.evals, host.evals, rtol=1e-4, atol=1e-4)
    for a, b in zip(run.model.parameters(), host.model.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-2, atol=1e-3)
    for name in ("checkpoint.pt", "losses.csv", "loss.png"):
        assert (run.out / name).stat().st_size


def test_bfloat16(small):
    host, run = small(device="cpu"), small("--bf16")
    torch.testing.assert_close(run.losses, host.losses, rtol=2e-2, atol=2e-2)
    assert run.losses != host.losses
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("mode", ["fused", "per-op"])
def test_resume_goes_on_bit_by_bit(small, tmp_path, mode):
    options = ["--dropout", "0.2", "--eager-mode", mode]
    whole = small(*options)
    out = str(tmp_path / "part")
    small(*options, "--steps", "12", "--seconds", "1e-9", out=out)  # nothing is trained; a checkpoint is left
    part = train.arguments([*SMALL, "--data", str(whole.args.data), "--out", out, *options])
    part.steps = 12
    half = Half(part, 6)
    train.train(half)
    resumed = small(*options, "--resume", out=out)
    assert resumed.step == 12
    assert resumed.losses == whole.losses
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


class Half(train.Run):
    """A run that is stopped after some steps, as by a power cut: the schedule stays that of the whole one."""

    def __init__(self, args, stop):
        super().__init__(args)
        self.stop = stop

    def save(self):
        super().save()
        if self.step == self.stop:
            self.args.seconds = 1e-9


def test_generation_with_a_cache_is_generation_without(small):
    gpt = small().model.eval()
    prompt = torch.tensor([[1, 2, 3]]).to("tpu")
    count = 12  # within the model's 16 positions
    with torch.no_grad():
        cached = torch.stack(list(gpt.generate(prompt, count, temperature=0)), 1)
        text = prompt.cpu()
        for _ in range(count):
            text = torch.cat((text, gpt(text.to("tpu"))[:, -1].argmax(-1, keepdim=True).cpu()), 1)
    assert torch.equal(cached, text[:, 3:])


def test_a_steady_token_compiles_nothing(small):
    gpt = small().model
    prompt = torch.tensor([[1, 2, 3]]).to("tpu")
    tokens = gpt.generate(prompt, 40, temperature=0)  # past the model's 16 positions: the cache starts again
    for _ in range(26):
        next(tokens)
    torch.tpu.reset_stats()
    rest = len(list(tokens))
    stats = torch.tpu.stats()
    assert rest == 14
    assert stats["cache_requests"] == stats["cache_hits"] and stats["executes"] <= 2 * rest


def test_generate_writes(small, capsys):
    out = small().out
    generate.main(["--run", str(out), "--prompt", "7 green", "--count", "20", "--device", "tpu"])
    assert len(capsys.readouterr().out) >= 27
    generate.main(["--run", str(out), "--prompt", "7 green", "--count", "5", "--device", "cpu"])


# --- steady steps


def gpt(dropout=0.0):
    torch.manual_seed(0)
    return model.GPT(model.GPTConfig(31, 16, 1, 2, 16, dropout)).to("tpu")


def batch(k):
    g = torch.Generator().manual_seed(k)
    return [torch.randint(0, 31, (2, 16), generator=g).to("tpu") for _ in range(2)]


def resnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(64, 5),
    ).to("tpu")  # fmt: skip


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "AdamW-fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "AdamW-single": lambda p: torch.optim.AdamW(p, 1e-2, foreach=False),
}


@pytest.mark.parametrize(("optimizer", "keep"), [(o, False) for o in OPTIMIZERS] + [("AdamW", True)])
def test_a_steady_step_is_one_program(optimizer, keep):
    m = gpt(0.1)
    o = OPTIMIZERS[optimizer](m.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(o, 20)
    kept = []

    def step(k):
        x, y = batch(k)
        loss = m(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
        o.zero_grad()
        schedule.step()
        if keep:
            kept.append(loss)

    for rounds in range(2):
        torch.tpu.synchronize()
        torch.tpu.reset_stats()
        for k in range(6 * rounds, 6 * rounds + 6):
            step(k)
    torch.tpu.synchronize()
    stats = torch.tpu.stats()
    assert stats["cache_requests"] == stats["cache_hits"]
    assert stats["executes"] <= 3 * 6
    assert all(torch.isfinite(v.cpu()) for v in kept)


@pytest.mark.parametrize(
    "how", ["amp", "scaler", "item", "accumulate", "accuracy", "lr_tensor", "drop_or_keep", "per_epoch"]
)
def test_steady_loops_of_other_kinds(how):
    m = resnet()
    lr = torch.tensor(1e-2, device="tpu") if how == "lr_tensor" else 1e-2
    o = torch.optim.Adam(m.parameters(), lr, **({"capturable": True, "foreach": True} if how == "lr_tensor" else {}))
    scaler = torch.amp.GradScaler("tpu", enabled=how == "scaler", init_scale=64.0)
    kept, total = [], 0

    def step(k):
        nonlocal total
        g = torch.Generator().manual_seed(k)
        for part in range(2 if how == "accumulate" else 1):
            x = torch.randn(4, 3, 8, 8, generator=g).to("tpu", non_blocking=True)
            y = torch.randint(0, 5, (4,), generator=g).to("tpu")
            with torch.autocast(
                "tpu", torch.bfloat16 if how == "amp" else torch.float16, enabled=how in ("amp", "scaler")
            ):
                out = m(x)
                loss = F.cross_entropy(out, y, label_smoothing=0.1)
            scaler.scale(loss).backward()
            if part == 0 and how == "accumulate":
                continue
            scaler.step(o)
            scaler.update()
            o.zero_grad(set_to_none=k % 2 == 0)
        for group in o.param_groups:
            if how == "lr_tensor":
                group["lr"].mul_(0.9)
            else:
                group["lr"] *= 0.9
        if how == "item":
            total += loss.item()
        if how == "accuracy":
            total += (out.argmax(1) == y).sum().item()
        if how == "drop_or_keep" and k % 3 == 0:
            kept.append(loss)
        if how == "per_epoch" and k % 4 == 3:
            with torch.no_grad():
                m.eval()
                total += F.cross_entropy(m(x), y).item()
                m.train()

    for rounds in range(3):  # a synchronize cuts where the loop does not, so what follows it is a program of its own
        torch.tpu.synchronize()
        torch.tpu.reset_stats()
        for k in range(12 * rounds, 12 * rounds + 12):
            step(k)
    torch.tpu.synchronize()
    stats = torch.tpu.stats()
    assert stats["cache_requests"] == stats["cache_hits"]
    assert stats["executes"] <= (4 if how in ("item", "accuracy", "scaler") else 3) * 12 + 1
