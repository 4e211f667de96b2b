"""Trains a character-level GPT on real text and lets it write.

    python examples/mingpt/train.py                          # the standard library's sources, device "tpu"
    python examples/mingpt/train.py --data my.txt --steps 5000 --bf16
    python examples/mingpt/train.py --resume                 # goes on from the last checkpoint in --out

Leaves in --out: checkpoint.pt (model, optimizer, random state; written atomically), losses.csv, loss.png, sample.txt.
"""

import argparse
import csv
import math
import os
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent))
from data import CharData, read_text  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402

MODES = {"fused": "DEFER_AND_FUSE", "per-op": "DEFER_NEVER", "blocking": "DEFER_NEVER_AND_LAUNCH_BLOCKING"}


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", help="text file or folder (default: the Python standard library)")
    p.add_argument("--out", default="mingpt-run", help="folder for the checkpoint, the curve and the sample")
    p.add_argument("--device", default="tpu")
    p.add_argument("--eager-mode", choices=MODES, help="how operations are run (default: torch_tpu's own)")
    p.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    p.add_argument("--steps", type=int, default=1500)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--block", type=int, default=128, help="characters of context")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--eval-every", type=int, default=250)
    p.add_argument("--checkpoint-every", type=int, default=500)
    p.add_argument("--seconds", type=float, help="stop training after this time, whatever --steps says")
    p.add_argument("--sample", type=int, default=400, help="characters to write at the end")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args(argv)
    for name in ("steps", "batch", "block", "layers", "heads", "width", "eval_every", "checkpoint_every"):
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.width % args.heads:
        p.error("--width must be a multiple of --heads")
    return args


def learning_rate(step, args):
    """Linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def make_optimizer(model, lr):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def compiles(device):
    return torch.tpu.stats()["compiles"] if device.type == "tpu" else 0


@torch.no_grad()
def evaluate(model, data, args, device, batches=8):
    """Mean loss on the same windows of the evaluation text each time."""
    model.eval()
    generator = torch.Generator().manual_seed(1234)
    total = 0.0
    for _ in range(batches):
        x, y = (t.to(device) for t in data.batch(data.eval, args.batch, args.block, generator))
        total = total + model(x, y).float()
    model.train()
    return (total / batches).item()


class Run:
    """Everything that a checkpoint holds."""

    def __init__(self, args):
        self.args, self.device = args, torch.device(args.device)
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = self.out / "checkpoint.pt"
        torch.manual_seed(args.seed)
        text = read_text(args.data)
        self.step, self.losses, self.evals = 0, [], []
        self.batches = torch.Generator().manual_seed(args.seed)
        saved = None
        if args.resume:
            if not self.path.exists():
                raise SystemExit(f"--resume: there is no {self.path}")
            saved = torch.load(self.path, map_location="cpu", weights_only=True)
        self.data = CharData(text, vocab=saved["vocab"] if saved else None)
        for name in ("train", "eval"):
            if len(getattr(self.data, name)) <= args.block + 1:
                raise SystemExit(f"the {name} text is shorter than --block {args.block}")
        config = GPTConfig(**saved["config"]) if saved else GPTConfig(
            len(self.data.vocab), args.block, args.layers, args.heads, args.width, args.dropout)
        args.block = config.block
        self.model = GPT(config).to(self.device)
        self.optimizer = make_optimizer(self.model, args.lr)
        if saved:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.losses, self.evals = saved["step"], saved["losses"], saved["evals"]
            self.batches.set_state(saved["batches"])
            torch.set_rng_state(saved["rng"])
            if self.device.type == "tpu":
                torch.tpu.set_rng_state(saved["device_rng"])

    def save(self):
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "config": self.model.config.asdict(), "vocab": self.data.vocab, "step": self.step, "losses": self.losses,
            "evals": self.evals, "batches": self.batches.get_state(), "rng": torch.get_rng_state(),
            "device_rng": torch.tpu.get_rng_state() if self.device.type == "tpu" else None,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)


def train(run):
    args, device, model = run.args, run.device, run.model
    model.train()
    start, shown, pending = time.perf_counter(), time.perf_counter(), []
    bar = tqdm(total=args.steps, initial=run.step, desc="training", unit="step", dynamic_ncols=True, file=sys.stdout)
    while run.step < args.steps:
        if args.seconds and time.perf_counter() - start > args.seconds:
            break
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.step, args)
        x, y = (t.to(device) for t in run.data.batch(run.data.train, args.batch, args.block, run.batches))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
            loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
        pending.append(loss.detach())
        run.step += 1
        last = run.step == args.steps
        if len(pending) == 10 or last:  # a loss that is read makes the host wait: seldom
            run.losses += [v.item() for v in pending]
            if not math.isfinite(run.losses[-1]):
                raise SystemExit(f"the loss is {run.losses[-1]} at step {run.step}")
            now = time.perf_counter()
            speed = len(pending) * args.batch * args.block / (now - shown)
            shown, n = now, len(pending)
            pending = []
            bar.set_postfix(loss=f"{run.losses[-1]:.3f}", tok_s=f"{speed:,.0f}", compiles=compiles(device), refresh=False)
            bar.update(n)
        if run.step % args.eval_every == 0 or last:
            run.evals.append((run.step, evaluate(model, run.data, args, device)))
            bar.write(f"step {run.step}: training loss {run.losses[-1] if run.losses else float('nan'):.3f}, "
                      f"evaluation loss {run.evals[-1][1]:.3f}", file=sys.stdout)
            shown = time.perf_counter()
        if run.step % args.checkpoint_every == 0:
            run.save()
    run.losses += [v.item() for v in pending]
    bar.close()
    if not run.evals or run.evals[-1][0] != run.step:
        run.evals.append((run.step, evaluate(model, run.data, args, device)))
    run.save()


def plot(run):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    fig, ax = plt.subplots(figsize=(7, 4))
    ax.plot(range(1, len(run.losses) + 1), run.losses, lw=0.7, alpha=0.6, label="training")
    ax.plot(*zip(*run.evals), "o-", ms=4, label="evaluation")
    ax.set(xlabel="step", ylabel="cross entropy (nats per character)", title=f"character GPT on {run.device}")
    ax.grid(alpha=0.3)
    ax.legend()
    fig.tight_layout()
    fig.savefig(run.out / "loss.png", dpi=120)


def main(argv=None):
    args = arguments(argv)
    if args.eager_mode:
        torch.tpu.set_eager_mode(getattr(torch.tpu.EagerMode, MODES[args.eager_mode]))
    run = Run(args)
    count = sum(p.numel() for p in run.model.parameters())
    print(f"{len(run.data.train):,} characters to learn from, {len(run.data.vocab)} kinds; {count:,} parameters on {run.device}")
    start = time.perf_counter()
    train(run)
    print(f"trained to step {run.step} in {time.perf_counter() - start:.0f} s; evaluation loss {run.evals[-1][1]:.3f}")
    with open(run.out / "losses.csv", "w", newline="") as f:
        csv.writer(f).writerows([("step", "loss"), *enumerate(run.losses, 1)])
    plot(run)
    if args.sample:
        prompt = "def "
        first = run.data.encode(prompt)[None].to(run.device)
        tokens = run.model.generate(first, args.sample, generator=torch.Generator().manual_seed(args.seed))
        text = prompt + run.data.decode([t[0] for t in tokens])
        (run.out / "sample.txt").write_text(text, encoding="utf-8")
        print(f"--- sample\n{text}\n---")
    print(f"checkpoint, loss curve and sample are in {run.out}/")
    return run


if __name__ == "__main__":
    main()
