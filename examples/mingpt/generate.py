"""Writes text with a trained character GPT, one token at a time with a key/value cache.

    python examples/mingpt/generate.py --run mingpt-run --prompt "class " --count 500
"""

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from model import GPT, GPTConfig  # noqa: E402


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--run", default="mingpt-run", help="the folder that train.py left")
    p.add_argument("--prompt", default="def ")
    p.add_argument("--count", type=int, default=500, help="characters to write")
    p.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest character")
    p.add_argument("--top-k", type=int, default=40)
    p.add_argument("--device", default="tpu")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args(argv)
    if not args.prompt:
        p.error("--prompt must not be empty")
    path = Path(args.run) / "checkpoint.pt"
    if not path.exists():
        raise SystemExit(f"there is no {path}: train first")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    vocab = saved["vocab"]
    index = {c: i for i, c in enumerate(vocab)}
    model = GPT(GPTConfig(**saved["config"]))
    model.load_state_dict(saved["model"])
    model.to(args.device)
    prompt = torch.tensor([[index.get(c, len(vocab) - 1) for c in args.prompt]]).to(args.device)
    print(args.prompt, end="", flush=True)
    start, n = time.perf_counter(), 0
    for token in model.generate(prompt, args.count, args.temperature, args.top_k, torch.Generator().manual_seed(args.seed)):
        print(vocab[int(token[0])], end="", flush=True)
        n += 1
        if n == 1:
            start = time.perf_counter()  # the first one compiles
    seconds = time.perf_counter() - start
    print(f"\n[{max(0, n - 1) / max(seconds, 1e-9):.0f} characters/s]", file=sys.stderr)


if __name__ == "__main__":
    main()
