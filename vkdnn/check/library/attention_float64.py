"""Softmax attention and its gradients in NumPy, straight from the formulas, with the whole matrix of scores.

In float64 it is the oracle of vk.attention; in float32 it is the plain evaluation that vk.attention must not be worse
than. Comparisons with it have a tolerance; it must never be used for bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def in_sequence(a: Array, b: Array) -> Array:
    """The product of matrices by sums of one product after the other; BLAS keeps several sums where one is a row."""
    return np.cumsum(a[..., :, :, None] * b[..., None, :, :], axis=-2)[..., -1, :]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    seen: Any = True,
    softcap: float | None = None,
    added: Any = 0.0,
    sinks: Array | None = None,
    kept: Any = True,
    keep_scale: float = 1.0,
    upstream: tuple[Array, Array] | None = None,
    dtype: Any = np.float64,
    product: Callable[[Array, Array], Array] = np.matmul,
) -> dict[str, Array]:
    """out, lse and, given ``upstream`` gradients (of out, of lse), dq, dk, dv, d_added and d_sinks.

    q [B, Tq, H, K], k [B, Tk, Hk, K], v [B, Tk, Hk, V]; seen, added and kept broadcast over [B, H, Tq, Tk]. The
    gradient of what is added to scores has that whole shape. ``product`` multiplies matrices.
    """
    group = q.shape[2] // k.shape[2]
    q, k, v = (np.moveaxis(np.asarray(x, dtype), 2, 1) for x in (q, k, v))
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scale = dtype(1 / np.sqrt(q.shape[-1]))
    dot = product(q, np.swapaxes(k, 2, 3)) * scale
    bent = dot if softcap is None else dtype(softcap) * np.tanh(dot / dtype(softcap))
    seen = np.broadcast_to(seen, dot.shape)
    kept = np.broadcast_to(kept, dot.shape)
    scores = np.where(seen, bent + np.broadcast_to(np.asarray(added, dtype), dot.shape), dtype(-np.inf))
    parts = [scores]
    if sinks is not None:
        parts.append(np.broadcast_to(np.asarray(sinks, dtype)[:, None, None], (*dot.shape[:3], 1)))
    logits = np.concatenate(parts, axis=-1)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, dtype(0))
    e = np.exp(logits - shift)
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + shift)[..., 0]
    p = np.where(total > 0, e / np.where(total > 0, total, 1), dtype(0))
    dropped = np.where(kept, p[..., : dot.shape[-1]] * dtype(keep_scale), dtype(0))
    out = product(dropped, v)
    found = {"out": np.moveaxis(out, 1, 2), "lse": lse}
    if upstream is None:
        return found
    do, dlse = np.moveaxis(np.asarray(upstream[0], dtype), 2, 1), np.asarray(upstream[1], dtype)
    dp = np.where(kept, product(do, np.swapaxes(v, 2, 3)) * dtype(keep_scale), dtype(0))
    delta = (do * out).sum(axis=-1, keepdims=True) - dlse[..., None]
    g = p[..., : dot.shape[-1]] * (dp - delta)
    slope = g if softcap is None else g * (1 - np.tanh(dot / dtype(softcap)) ** 2)
    ds = slope * scale
    shape = (k.shape[0], k.shape[1] // group, group, *k.shape[2:3])

    def of_groups(x: Array) -> Array:
        return np.moveaxis(x.reshape(*shape, x.shape[-1]).sum(axis=2), 1, 2)

    found |= {
        "dq": np.moveaxis(product(ds, k), 1, 2),
        "dk": of_groups(product(np.swapaxes(ds, 2, 3), q)),
        "dv": of_groups(product(np.swapaxes(dropped, 2, 3), do)),
        "d_added": g,
    }
    if sinks is not None:
        found["d_sinks"] = -(p[..., -1] * delta[..., 0]).sum(axis=(0, 2))
    return found
