"""Side-by-side benchmarks: device "tpu" in each eager mode against PyTorch on the CPU, and JAX where it is installed.

    python benchmarks/run.py [workload ...] [--rounds 3] [--json out.json]

Each (backend, workload) runs in a fresh process; rounds alternate between backends, so that what else the machine does hits all
alike. The table shows minima over all rounds: `cpu` is processor time of all threads, `caller` that of the calling thread alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
BACKENDS = ("cpu", "tpu/fused", "tpu/per-op", "tpu/blocking", "jax")
WORKLOADS = ("ops", "scalars", "mlp", "gpt", "transfers", "start")


def run_one(backend, workload, seconds):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TORCH_TPU_CACHE_DIR": str(Path(folder) / "cache")}
        command = [sys.executable, str(HERE / "worker.py"), backend, workload, str(seconds), str(out)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no output"]
            raise RuntimeError(f"{workload} on {backend}: {lines[-1]}")
        return json.loads(out.read_text())


def has_jax():
    probe = subprocess.run([sys.executable, "-c", "import jax"], capture_output=True)
    return probe.returncode == 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("workloads", nargs="*", default=WORKLOADS, help=", ".join(WORKLOADS))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2.0, help="time for the repetitions of a workload in one process")
    p.add_argument("--json")
    args = p.parse_args()
    for name in args.workloads:
        if name not in WORKLOADS:
            p.error(f"no workload {name!r}")
    backends = [b for b in BACKENDS if b != "jax" or has_jax()]
    report = {}
    for workload in args.workloads:
        best = {}
        for r in range(args.rounds):
            for backend in backends[r % len(backends):] + backends[: r % len(backends)]:
                if backend == "jax" and workload not in ("mlp", "gpt"):
                    continue
                for name, value in run_one(backend, workload, args.seconds).items():
                    cell = best.setdefault(name, {})
                    cell[backend] = min(value, cell.get(backend, value))
        report[workload] = best
        width = max(len(n) for n in best)
        print(f"== {workload}\n{'':{width}}  " + "  ".join(f"{b:>12}" for b in backends))
        for name, row in best.items():
            print(f"{name:{width}}  " + "  ".join(f"{row[b]:12.3f}" if b in row else " " * 12 for b in backends), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
