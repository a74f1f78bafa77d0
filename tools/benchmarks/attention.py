"""Attention beside the same values with the matrix of scores in memory, and beside PyTorch where it is installed.

Cases are made here and named in benchmarks.cases.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import vkdnn as vk
from benchmarks.work import Call, Setup, Work, has, jitted, on_device, with_gradients

Sizes = tuple[int, int, int, int, int, int]  # sequences, queries, keys, query heads, key heads, width
MOST_SCORES = 2**28  # of one array, so that the unfused variant fits into a graphics card


def attention(setup: Setup, length: int, causal: bool = False, backward: bool = False) -> Work:
    """Self-attention, forward or with gradients. ``length``: 0 for the shorter sequences, 1 for the longer."""
    batch, tokens, heads, width = setup.pick(
        ((2, 24, 2, 8), (1, 136, 2, 8))[length],
        ((1, 1024, 4, 64), (1, 2048, 4, 64))[length],
        ((4, 4096, 16, 64), (1, 16_384, 4, 64))[length],
    )
    return _work(setup, (batch, tokens, tokens, heads, heads, width), causal, backward)


def decoding(setup: Setup) -> Work:
    """One new token of each sequence, which looks at all keys kept of it."""
    sizes = setup.pick((2, 1, 130, 4, 2, 8), (4, 1, 4096, 8, 2, 64), (64, 1, 8192, 32, 8, 128))
    return _work(setup, sizes, False, False)


def _work(setup: Setup, sizes: Sizes, causal: bool, backward: bool) -> Work:
    batch, queries, keys, heads, key_heads, width = sizes
    rows, columns = (batch, queries, heads, width), (batch, keys, key_heads, width)
    arrays = [setup.normal(*shape) for shape in (rows, columns, columns, rows)]
    used = arrays if backward else arrays[:3]

    def fused(q: Any, k: Any, v: Any) -> Any:
        return vk.attention(q, k, v, causal=causal)

    def unfused(q: Any, k: Any, v: Any) -> Any:
        return _in_pieces(q, k, v, causal, min(MOST_SCORES, setup.device.max_words))

    tokens = f"T{queries}" if queries == keys else f"T{queries} of {keys}"
    shared = f"H{heads}" if heads == key_heads else f"H{heads} of {key_heads}"
    what = f"B{batch} {tokens} {shared} D{width}" + ", causal" * causal + ", forward and backward" * backward
    work = jitted(setup, what, with_gradients(fused, 3) if backward else fused, used)
    peer = with_gradients(unfused, 3) if backward else unfused
    work.variants["vkdnn, unfused"] = on_device(setup.device, peer, used)[0]
    if has("torch"):
        where, call = _torch(setup, arrays, causal, backward)
        work.peers[f"PyTorch SDPA, {where}"] = call
    else:
        work.notes.append("no PyTorch SDPA: torch is not installed")
    return work


def _in_pieces(q: Any, k: Any, v: Any, causal: bool, most: int) -> Any:
    """Unfused attention to halves of the batch, then of the heads, until a piece has ``most`` scores or fewer."""
    batch, queries, heads, _ = q.shape
    if batch * heads * queries * k.shape[1] <= most or batch * k.shape[2] == 1:
        return _unfused(q, k, v, causal)
    axis = 0 if batch > 1 else 2

    def half(x: Any, second: bool) -> Any:
        middle = x.shape[axis] // 2
        cut = slice(middle, None) if second else slice(middle)
        return x[(*(slice(None),) * axis, cut)]

    pieces = [_in_pieces(half(q, s), half(k, s), half(v, s), causal, most) for s in (False, True)]
    return vk.concat(pieces, axis=axis)


def _unfused(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """softmax(q kᵀ / √D) v, each step an operation of its own; heads that share keys are rows of one product."""
    batch, queries, heads, width = q.shape
    keys, key_heads = k.shape[1:3]
    group = heads // key_heads
    rows = q.reshape(batch, queries, key_heads, group, width).transpose(0, 2, 3, 1, 4)
    products = rows.reshape(batch, key_heads, group * queries, width) @ k.transpose(0, 2, 3, 1)
    scores = products.reshape(batch, heads, queries, keys) * (1 / math.sqrt(width))
    if causal:
        seen = vk.arange(keys).reshape(1, keys) <= vk.arange(queries).reshape(queries, 1) + (keys - queries)
        scores = vk.where(seen, scores, -math.inf)
    weights = vk.softmax(scores).reshape(batch, key_heads, group * queries, keys)
    out = (weights @ v.transpose(0, 2, 1, 3)).reshape(batch, key_heads, group, queries, width)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, queries, heads, width)


def _torch(setup: Setup, arrays: list[np.ndarray[Any, Any]], causal: bool, backward: bool) -> tuple[str, Call]:
    """PyTorch's attention in float32, on its graphics card if vkdnn computes on one; and where that is."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    on_card = torch.cuda.is_available() and setup.device.kind not in ("software", "reference")
    where = "cuda" if on_card else "cpu"
    q, k, v, g = (torch.from_numpy(a).to(where).transpose(1, 2) for a in arrays)
    shared = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}  # PyTorch 2.5 and later know it

    def finish() -> None:
        if on_card:
            torch.cuda.synchronize()

    def forward() -> Any:
        with torch.no_grad():
            out = scaled_dot_product_attention(q, k, v, is_causal=causal, **shared)
        finish()
        return out

    def both() -> Any:
        for x in (q, k, v):
            x.requires_grad_(True)
            x.grad = None
        scaled_dot_product_attention(q, k, v, is_causal=causal, **shared).backward(g)
        finish()
        return q.grad, k.grad, v.grad

    return where, both if backward else forward
