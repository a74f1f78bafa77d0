"""Attention from plain products and a softmax, until vkdnn.ops has it as one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vkdnn.array import Array
from vkdnn.dtypes import float32
from vkdnn.ops.elementwise import tanh, where
from vkdnn.ops.linear import matmul
from vkdnn.ops.normalize import softmax
from vkdnn.ops.shape import arange_along, repeat


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    mask_mod: Callable[..., Array] | None = None,
    score_mod: Callable[..., Array] | None = None,
    alibi_slopes: Any = None,
    document_ids: Any = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Array:
    """q [B, Tq, H, K], k [B, Tk, Hk, K], v [B, Tk, Hk, V] -> [B, Tq, H, V]."""
    queries, keys, heads, group = q.shape[1], k.shape[1], q.shape[2], q.shape[2] // k.shape[2]
    q, k, v = (x.transpose((0, 2, 1, 3)) for x in (q, repeat(k, group, axis=2), repeat(v, group, axis=2)))
    s = matmul(q, k.transpose((0, 1, 3, 2))) * (1.0 / math.sqrt(q.shape[3]))
    if softcap is not None:
        s = tanh(s / softcap) * softcap
    at_b, at_h, at_q, at_k = (arange_along((q.shape[0], heads, queries, keys), axis) for axis in range(4))
    offset = keys - queries
    if alibi_slopes is not None:
        s = s + alibi_slopes.reshape(1, heads, 1, 1) * (at_k - (at_q + offset)).astype(float32)
    if score_mod is not None:
        s = score_mod(s, at_b, at_h, at_q, at_k)
    seen = at_k >= 0
    if causal:
        seen = seen & (at_k <= at_q + offset)
        if window is not None:
            seen = seen & (at_k > at_q + offset - window)
    if document_ids is not None:
        seen = seen & (document_ids.reshape(q.shape[0], 1, queries, 1) == document_ids.reshape(q.shape[0], 1, 1, keys))
    if mask_mod is not None:
        seen = seen & mask_mod(at_b, at_h, at_q, at_k)
    return matmul(softmax(where(seen, s, -math.inf)), v).transpose((0, 2, 1, 3))
