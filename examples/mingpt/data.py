"""Text for the language model: characters of real files."""

import sysconfig
from pathlib import Path

import torch


def read_text(where=None, limit=4_000_000):
    """The text of a file, or of all text files of a folder in sorted order, at most `limit` characters.

    `where` None takes the Python standard library's own sources. Raises FileNotFoundError if there is nothing, ValueError if it is too short.
    """
    root = Path(where) if where else Path(sysconfig.get_path("stdlib"))
    if not root.exists():
        raise FileNotFoundError(f"no such file or folder: {root}")
    if root.is_file():
        files = [root]
    elif where:
        files = sorted(p for p in root.rglob("*") if p.is_file())
    else:
        files = sorted(root.glob("*.py"))
    parts, size = [], 0
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # not text
        parts.append(text)
        size += len(text)
        if size >= limit:
            break
    text = "".join(parts)[:limit]
    if len(text) < 10_000:
        raise ValueError(f"{root} holds {len(text)} characters of text; at least 10,000 are needed")
    return text


class CharData:
    """Characters as numbers, split into training and evaluation text.

    The rarest characters, beyond `most` kinds, become one placeholder.
    """

    UNKNOWN = "\ufffd"

    def __init__(self, text, vocab=None, most=127, eval_share=0.05):
        if vocab is None:
            counts = {}
            for c in text:
                counts[c] = counts.get(c, 0) + 1
            kept = sorted(sorted(counts, key=lambda c: (-counts[c], c))[:most])
            vocab = "".join(kept) + self.UNKNOWN
        self.vocab = vocab
        self._index = {c: i for i, c in enumerate(vocab)}
        tokens = self.encode(text)
        cut = int(len(tokens) * (1 - eval_share))
        self.train, self.eval = tokens[:cut], tokens[cut:]

    def encode(self, text):
        """Text -> int64 `[len(text)]`."""
        unknown = len(self.vocab) - 1
        return torch.tensor([self._index.get(c, unknown) for c in text], dtype=torch.int64)

    def decode(self, tokens):
        return "".join(self.vocab[int(t)] for t in tokens)

    @staticmethod
    def batch(tokens, batch, block, generator):
        """Random windows: inputs and targets, int64 `[batch, block]` each, on the host."""
        starts = torch.randint(len(tokens) - block - 1, (batch,), generator=generator)
        window = tokens[starts[:, None] + torch.arange(block + 1)]
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()
