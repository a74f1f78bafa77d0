"""RAPT and its training step in PyTorch: the twin of vkdnn.nn.RAPTModel with rla2, with AdamW and clipped gradients.

Same layers, same formulas; sums in the order that PyTorch likes. It must never import vkdnn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK = 64
EPS_NORM, EPS_SUM, BASE = 1e-6, 1e-4, 10_000.0
Sizes = dict[str, Any]


def chunked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_i s_i v_i / (sum_i s_i + eps), s_i = q·k_i over tokens i <= t; all [B, T, H, K], in chunks of tokens."""
    batch, tokens, heads, width = q.shape
    parts = [x.reshape(batch, -1, min(CHUNK, tokens), heads, width).permute(0, 3, 1, 2, 4) for x in (q, k, v)]
    q, k, v = parts  # [B, H, chunks, tokens, K]
    states, sums = k.transpose(-1, -2) @ v, k.sum(-2, keepdim=True)
    before, sums_before = states.cumsum(2) - states, sums.cumsum(2) - sums
    scores = (q @ k.transpose(-1, -2)).tril()
    above = scores @ v + q @ before
    below = scores.sum(-1, keepdim=True) + (q * sums_before).sum(-1, keepdim=True)
    return (above / (below + EPS_SUM)).permute(0, 2, 3, 1, 4).reshape(batch, tokens, heads, width)


def fla_chunked() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """chunked() by flash-linear-attention, with its own epsilon."""
    from fla.ops.linear_attn import chunk_linear_attn

    return lambda q, k, v: chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0]


class Attention(nn.Module):
    """ReLU linear attention over ``heads``, with rotary positions."""

    def __init__(self, width: int, heads: int, scan: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.heads, self.scan = heads, scan
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        split = (*x.shape[:2], self.heads, -1)
        q, k = (rotated(functional.rms_norm(y, y.shape[-1:], eps=EPS_NORM)) for y in self._heads(x, split))
        mixed = self.scan(q.relu(), k.relu(), self.value(x).view(split))
        return self.output(mixed.reshape(x.shape))

    def _heads(self, x: Tensor, split: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return self.query(x).view(split), self.key(x).view(split)


def rotated(x: Tensor) -> Tensor:
    """Rotary positions of x [B, T, H, D], halves turned."""
    half = x.shape[-1] // 2
    frequency = torch.exp(torch.arange(half, device=x.device) * (-2.0 / x.shape[-1] * math.log(BASE)))
    angle = (torch.arange(x.shape[1], device=x.device)[:, None] * frequency)[:, None]  # [T, 1, D/2]
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, s: Sizes, scan: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(s["width"], EPS_NORM) for _ in range(2))
        self.attention, self.mlp = Attention(s["width"], s["heads"], scan), SwiGLU(s["width"], s["hidden"])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Twin(nn.Module):
    """Its parameters have the names of RAPTModel's; matrices of linear layers are transposed."""

    def __init__(self, s: Sizes, scan: Callable[[Tensor, Tensor, Tensor], Tensor] = chunked):
        super().__init__()
        self.embedding = nn.Embedding(s["vocab"], s["width"])
        self.layers = nn.ModuleList(Block(s, scan) for _ in range(s["layers"]))
        self.norm = nn.RMSNorm(s["width"], EPS_NORM)
        self.head = nn.Linear(s["width"], s["vocab"], bias=False)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy (nats) of tokens [B, T + 1]."""
        x = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def training_step(s: Sizes, scan: str) -> Callable[[], Any]:
    """A step on random tokens, up to the loss on the host, as vkdnn's Trainer gives it."""
    model = Twin(s, fla_chunked() if scan == "fla" else chunked).to(s["device"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def step() -> float:
        tokens = torch.randint(s["vocab"], (s["batch"], s["tokens"] + 1)).to(s["device"])
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step
