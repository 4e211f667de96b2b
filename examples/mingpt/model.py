"""A small GPT in plain PyTorch: pre-norm blocks, learned positions, tied input and output embeddings.

Nothing here knows what device it runs on.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GPTConfig:
    """Shape of the model: `vocab` symbols, `block` positions, `layers` blocks of `heads` heads and `width` features."""

    vocab: int
    block: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0

    def asdict(self):
        return asdict(self)


class KVCache:
    """Keys and values of all layers for generation: two tensors `[B, heads, block, width / heads]` a layer.

    `length` positions are filled. It never grows, so a step at any position is the same program.
    """

    def __init__(self, config, batch, device, dtype=torch.float32):
        shape = (batch, config.heads, config.block, config.width // config.heads)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self.length = 0


class Attention(nn.Module):
    """Causal self-attention: `[B, T, width] -> [B, T, width]`."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.qkv(x).split(c, dim=2))
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        else:
            keys, values, positions, mask = cache
            keys.index_copy_(2, positions, k)
            values.index_copy_(2, positions, v)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.ln2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x, cache=None):
        x = x + self.drop(self.attention(self.ln1(x), cache))
        return x + self.drop(self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.block, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._init)
        for block in self.blocks:  # the residual stream adds up over the layers
            for layer in (block.attention.proj, block.down):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        """Tokens `[B, T]` -> logits `[B, T, vocab]`, or the mean cross entropy with `targets` `[B, T]`."""
        x = self.tokens(idx) + self.positions(torch.arange(idx.size(1), device=idx.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))

    def step(self, idx, cache):
        """The next tokens `[B, T]` after what `cache` holds -> logits of the last one, `[B, vocab]`; fills the cache."""
        t = idx.size(1)
        if cache.length + t > self.config.block:
            raise ValueError(f"{cache.length} + {t} positions do not fit into the {self.config.block} of the model")
        positions = torch.arange(cache.length, cache.length + t).to(idx.device)
        mask = torch.arange(self.config.block, device=idx.device)[None, :] <= positions[:, None]
        x = self.tokens(idx) + self.positions(positions)
        for block, keys, values in zip(self.blocks, cache.keys, cache.values):
            x = block(x, (keys, values, positions, mask))
        cache.length += t
        return self.head(self.ln(x[:, -1]))

    @torch.no_grad()
    def generate(self, idx, count, temperature=0.8, top_k=40, generator=None):
        """Yields `count` new tokens, each `[B]` on the host, continuing `idx` `[B, T]`.

        temperature 0 takes the likeliest token. When the model's positions are used up the cache starts again from the
        last half of the text.
        """
        self.eval()
        block = self.config.block
        text = idx.cpu()
        cache, fresh = None, None
        for _ in range(count):
            if cache is None or cache.length >= block:
                cache = KVCache(self.config, idx.size(0), idx.device, self.head.weight.dtype)
                fresh = text[:, -(block // 2):]
            logits = self.step(fresh.to(idx.device), cache).float().cpu()
            if temperature == 0:
                fresh = logits.argmax(-1, keepdim=True)
            else:
                if top_k:
                    logits[logits < logits.topk(min(top_k, logits.size(-1))).values[:, -1:]] = -math.inf
                fresh = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            text = torch.cat((text, fresh), dim=1)
            yield fresh[:, 0]
