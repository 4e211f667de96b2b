"""One workload on one backend in this process; writes {metric: value} as JSON. Started by run.py."""

import json
import sys
import time
from pathlib import Path

START = time.perf_counter()
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "mingpt"))
MODES = {"fused": "DEFER_AND_FUSE", "per-op": "DEFER_NEVER", "blocking": "DEFER_NEVER_AND_LAUNCH_BLOCKING"}


def repeat(run, seconds, least=5):
    """Minimum of (wall, processor, calling thread) seconds of run(), after two runs to warm up."""
    run(), run()
    best, end, n = (float("inf"),) * 3, time.perf_counter() + seconds, 0
    while n < least or time.perf_counter() < end:
        a = time.perf_counter(), time.process_time(), time.thread_time()
        run()
        b = time.perf_counter(), time.process_time(), time.thread_time()
        best = tuple(min(m, y - x) for m, x, y in zip(best, a, b))
        n += 1
    return best


def named(name, unit, best, scale):
    return {f"{name} {kind} ({unit})": v * scale for kind, v in zip(("wall", "cpu", "caller"), best)}


def ops(torch, device, seconds):
    x, y, z = (torch.randn(8, 8).to(device) for _ in range(3))
    out = {}

    def issue(n=1000):
        v = x
        for _ in range(n // 2):
            v = v + y
            v = v * z
        return v

    def recorded():
        nonlocal out
        t = time.thread_time()
        v = issue()
        t = time.thread_time() - t
        key = "issue one 8x8 op, caller (us)"
        out[key] = min(out.get(key, 1e9), t * 1e3)
        v.cpu()

    out.update(named("8x8 op in a chain of 1000,", "us", repeat(recorded, seconds), 1e3))
    return out


def scalars(torch, device, seconds):
    x, count = torch.randn(8, 8).to(device), iter(range(10**9))

    def run():
        v = x
        for _ in range(64):
            v = v * (1.0 + next(count) * 1e-9)
        v.cpu()

    return named("op with a number never seen before,", "us", repeat(run, seconds), 1e6 / 64)


def training(torch, device, seconds, model, optimizer, batch, steps=5):
    model = model.to(device)
    opt = optimizer(model)

    def run():
        for _ in range(steps):
            opt.zero_grad(set_to_none=True)
            loss = model(*(t.to(device) for t in batch))
            loss.backward()
            opt.step()
        return loss.item()

    return named("training step", "ms", repeat(run, seconds), 1e3 / steps)


def mlp(torch, device, seconds):
    nn = torch.nn

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

        def forward(self, x, y):
            return nn.functional.cross_entropy(self.net(x), y)

    batch = torch.randn(128, 784), torch.randint(0, 10, (128,))
    return training(torch, device, seconds, MLP(), lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9), batch, 20)


def gpt(torch, device, seconds):
    from model import GPT, GPTConfig

    tokens = torch.randint(0, 256, (8, 129))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return training(torch, device, seconds, GPT(GPTConfig(256)), lambda m: torch.optim.AdamW(m.parameters(), 1e-3), batch)


def transfers(torch, device, seconds):
    big, tiny = torch.arange(16 * 2**20, dtype=torch.float32), torch.ones(4)
    on_device, small, scalar = big.to(device), tiny.to(device), torch.ones((), device=device)
    copy = (lambda t: t.clone()) if device == "cpu" else None
    up, down = copy or (lambda t: t.to(device)), copy or (lambda t: t.cpu())
    out = {}
    for name, unit, scale, fn in (
        ("64 MB to the device", "ms", 1e3, lambda: up(big)),
        ("64 MB to the host", "ms", 1e3, lambda: down(on_device)),
        ("16 bytes to the device", "us", 1e6, lambda: up(tiny)),
        ("16 bytes to the host", "us", 1e6, lambda: down(small)),
        (".item() of a ready value", "us", 1e6, lambda: scalar.item()),
    ):
        out[f"{name}, wall ({unit})"] = repeat(fn, seconds / 5)[0] * scale
    return out


def start(torch, device, seconds):
    t = time.perf_counter()
    (torch.ones(2, 2, device=device) + 1).cpu()
    return {"import and first result, wall (s)": time.perf_counter() - START, "first result alone, wall (s)": time.perf_counter() - t,
            "import and first result, cpu (s)": time.process_time()}


def jax_training(workload, seconds):
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    normal = lambda *s: jnp.asarray(rng.normal(size=s) * 0.02, jnp.float32)  # noqa: E731
    if workload == "mlp":
        sizes = (784, 512, 512, 10)
        params = [(normal(a, b), normal(b)) for a, b in zip(sizes, sizes[1:])]
        batch = jnp.asarray(rng.normal(size=(128, 784)), jnp.float32), jnp.asarray(rng.integers(0, 10, 128))

        def loss(p, x, y):
            for i, (w, b) in enumerate(p):
                x = x @ w + b
                x = jax.nn.relu(x) if i < len(p) - 1 else x
            return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()
    else:
        width, heads, layers, block, vocab = 128, 4, 4, 128, 256
        one = lambda: dict(qkv=normal(width, 3 * width), qb=normal(3 * width), proj=normal(width, width), pb=normal(width),  # noqa: E731
                           up=normal(width, 4 * width), ub=normal(4 * width), down=normal(4 * width, width), db=normal(width),
                           g1=jnp.ones(width), b1=normal(width), g2=jnp.ones(width), b2=normal(width))
        params = dict(tok=normal(vocab, width), pos=normal(block, width), blocks=[one() for _ in range(layers)],
                      g=jnp.ones(width), b=normal(width))
        tokens = jnp.asarray(rng.integers(0, vocab, (8, block + 1)))
        batch = tokens[:, :-1], tokens[:, 1:]
        mask = jnp.tril(jnp.ones((block, block), bool))

        def norm(x, g, b):
            m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            return (x - m) * jax.lax.rsqrt(v + 1e-5) * g + b

        def loss(p, x, y):
            h = p["tok"][x] + p["pos"]
            for k in p["blocks"]:
                q, key, val = ((norm(h, k["g1"], k["b1"]) @ k["qkv"] + k["qb"]).reshape(8, block, 3, heads, -1).transpose(2, 0, 3, 1, 4))
                a = jnp.where(mask, jnp.einsum("bhqd,bhkd->bhqk", q, key) / (width // heads) ** 0.5, -jnp.inf)
                o = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(a), val).reshape(8, block, width)
                h = h + o @ k["proj"] + k["pb"]
                h = h + jax.nn.gelu(norm(h, k["g2"], k["b2"]) @ k["up"] + k["ub"]) @ k["down"] + k["db"]
            logits = jax.nn.log_softmax(norm(h, p["g"], p["b"]) @ p["tok"].T)
            return -jnp.take_along_axis(logits, y[..., None], -1).mean()

    state = (params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def adam(p, m, v, g):
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        return jax.tree.map(lambda p, m, v: p * (1 - 1e-5) - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v

    def step(p, m, v, x, y):
        value, g = jax.value_and_grad(loss)(p, x, y)
        return value, *adam(p, m, v, g)

    step = jax.jit(step, donate_argnums=(0, 1, 2))
    steps = 20 if workload == "mlp" else 5

    def run():
        nonlocal state
        for _ in range(steps):
            value, *state = step(*state, *batch)
        float(value)

    return named("training step", "ms", repeat(run, seconds), 1e3 / steps)


def main():
    backend, workload, seconds, out = sys.argv[1:]
    if backend == "jax":
        result = jax_training(workload, float(seconds))
    else:
        import torch

        device, _, mode = backend.partition("/")
        if mode:
            torch.tpu.set_eager_mode(getattr(torch.tpu.EagerMode, MODES[mode]))
        result = globals()[workload](torch, device, float(seconds))
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
