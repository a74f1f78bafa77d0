"""Softmax attention in the forms whose arguments differ; masks that are numbers are fields of the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.library import attention_float64
from vkdnn.check.library.rows import philox_blocks
from vkdnn.check.operator import Array, Input, Operator, Rng
from vkdnn.ops.elementwise import where

SEED = 0x9E3779B97F4A7C15


def kept(space: tuple[int, ...], p: float, seed: int = SEED) -> Array:
    """Which weights dropout leaves: by the first word of the Philox block with counter (k, q, h, b + 2**31)."""
    b, h, i, j = np.indices(space).astype(np.uint64)
    word = philox_blocks((j, i, h, b + np.uint64(1 << 31)), (seed & 0xFFFFFFFF, seed >> 32))[0]
    return np.asarray(word >= np.uint32(round(p * 2**32)))


def away(q: Array, k: Array) -> Array:
    """[Tq, Tk]: how far the key lies before the query; the last query stands at the last key."""
    return np.subtract.outer(np.arange(q.shape[1]) + k.shape[1] - q.shape[1], np.arange(k.shape[1]))


def attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, window: Any = None, softcap: float | None = None,
    scale: float | None = None, dropout: float = 0.0, layout: str = "BTHD", seen: Any = True, added: Any = 0.0,
    sinks: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """(out, lse); arrays are [B, T, H, ...] whatever the layout."""
    space = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    before = away(q, k)
    if causal:
        seen = seen & (before >= 0)
    if window is not None:
        left, right = (np.inf if side is None else side for side in window)
        seen = seen & (before <= left) & (-before <= right)
    if scale is not None:
        q = q * (scale * np.sqrt(q.shape[-1]))
    more: dict[str, Any] = {"kept": kept(space, dropout), "keep_scale": 1 / (1 - dropout)} if dropout else {}
    found = attention_float64.attention(
        q, k, v, seen=seen, added=added, softcap=softcap, sinks=sinks, dtype=q.dtype.type, **more
    )
    return found["out"], found["lse"]


def _run(q: Any, k: Any, v: Any, *, dropout: float = 0.0, layout: str = "BTHD", **options: Any) -> tuple[Any, Any]:
    if layout == "BHTD":
        q, k, v = (vk.swapaxes(x, 1, 2) for x in (q, k, v))
    if dropout:
        options |= {"dropout_p": dropout, "dropout_seed": SEED}
    out, lse = vk.attention(q, k, v, layout=layout, return_lse=True, **options)
    return vk.swapaxes(out, 1, 2) if layout == "BHTD" else out, lse


def _form(
    name: str, extra: Input, run: Callable[..., Any], golden: Callable[..., Any], causal: bool = True
) -> Operator:
    """A further array, which ``run`` and ``golden`` turn into keywords of the two functions above."""

    def function(q: Any, k: Any, v: Any, x: Any, **options: Any) -> Any:
        return _run(q, k, v, **run(vk.asarray(x), q, k), **options)

    def twin(q: Array, k: Array, v: Array, x: Array, **options: Any) -> Any:
        return attention(q, k, v, **golden(x, q, k), **options)

    return Operator(name, "attention", (*_QKV, extra), function, twin, {**_SIZES, "causal": causal})


# ---- masks by arrays


def _some_seen(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    """bools of which every row has a true one but the last, and no column in the middle has any."""
    found = rng.random(shape) < 0.6
    found[..., shape[-1] // 2] = False
    found[..., 0] = True
    found[..., -1, :] = False
    return found


def _run_mask(q: Any, k: Any, v: Any, mask: Any, **options: Any) -> tuple[Any, Any]:
    """The key in the middle, which nobody sees, is NaN, as its value is: between others, as blocks may be skipped."""
    real = np.arange(k.shape[1])[:, None, None] != (k.shape[1] // 2 or -1)
    k, v = (where(real, vk.asarray(x), np.nan) for x in (k, v))
    return _run(q, k, v, mask=mask, **options)


def _documents(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return np.cumsum(rng.random(shape) < 0.3, axis=-1, dtype=np.int32)


def _lengths(rng: Rng, shape: tuple[int, ...], fields: Mapping[str, Any]) -> Array:
    return rng.integers(1, max(2, fields["keys"]), shape, dtype=np.int32)


def _by_documents(ids: Array, q: Array, k: Array) -> dict[str, Any]:
    of_queries = ids[:, k.shape[1] - q.shape[1] :]
    return {"seen": of_queries[:, None, :, None] == ids[:, None, None, :]}


def _document_ids(ids: Any, q: Any, k: Any) -> dict[str, Any]:
    return {"document_ids": (ids[:, k.shape[1] - q.shape[1] :], ids)}


def _prefix(lengths: Any, q: Any, k: Any) -> dict[str, Any]:
    return {"mask_mod": vk.masks.either(vk.masks.causal(), vk.masks.prefix(lengths))}


def _by_prefix(lengths: Array, q: Array, k: Array) -> dict[str, Any]:
    i, j = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    return {"seen": (j <= i) | (j < lengths[:, None, None, None])}


def _by_table(table: Array, q: Array, k: Array) -> dict[str, Any]:
    i, j = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    return {"added": np.abs(table)[:, (i + j) % table.shape[1]]}


def _table(table: Any, q: Any, k: Any) -> dict[str, Any]:
    heads, columns = table.shape
    flat = table.reshape(heads * columns)
    return {"score_mod": lambda s, b, h, q, k: s + abs(vk.take(flat, h * columns + (q + k) % columns))}


def _by_slopes(slopes: Array, q: Array, k: Array) -> dict[str, Any]:
    return {"added": -slopes[:, None, None] * abs(away(q, k))}


# ---- packed


def _cuts(first: int) -> Callable[..., Array]:
    """Bounds of sequences of which one, the number ``first``, is empty."""

    def fill(rng: Rng, shape: tuple[int, ...], fields: Mapping[str, Any]) -> Array:
        total = fields["queries"] if first == 1 else fields["keys"]
        inner = np.sort(rng.integers(0, total + 1, shape[0] - 2))
        found = np.array([0, *inner, total], np.int32)
        found[first + 1] = found[first]
        return np.maximum.accumulate(found)

    return fill


def packed(q: Array, k: Array, v: Array, cuts_q: Array, cuts_k: Array, causal: bool) -> tuple[Array, Array]:
    """Each sequence by itself; one without keys is 0, its lse -inf."""
    out = np.zeros((*q.shape[:2], v.shape[2]), q.dtype)
    lse = np.full((q.shape[1], q.shape[0]), -np.inf, q.dtype)
    for n in range(len(cuts_q) - 1):
        rows, keys = slice(cuts_q[n], cuts_q[n + 1]), slice(cuts_k[n], cuts_k[n + 1])
        if cuts_q[n] < cuts_q[n + 1] and cuts_k[n] < cuts_k[n + 1]:
            part = attention(q[None, rows], k[None, keys], v[None, keys], causal=causal)
            out[rows], lse[:, rows] = part[0][0], part[1][0]
    return out, lse


def _run_packed(q: Any, k: Any, v: Any, cuts_q: Any, cuts_k: Any, causal: bool) -> Any:
    # Bounds as Arrays: how long the longest sequence is must not depend on where they come from.
    bounds: dict[str, Any] = {"cu_seqlens_q": vk.asarray(cuts_q), "cu_seqlens_k": vk.asarray(cuts_k)}
    return vk.attention(q, k, v, causal=causal, layout="THD", return_lse=True, **bounds)


def merged(out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> tuple[Array, Array]:
    """out [B, T, H, V], lse [B, H, T]."""
    lse = np.logaddexp(lse_a, lse_b)
    shares = (np.moveaxis(np.exp(x - lse), 1, 2)[..., None] for x in (lse_a, lse_b))
    return sum(x * share for x, share in zip((out_a, out_b), shares, strict=True)), lse


_SIZES = {"batch": 2, "queries": 3, "keys": 5, "key_heads": 1, "group": 2, "width": 4, "value_width": 3}
_QKV = (
    Input("q", "batch queries key_heads*group width"), Input("k", "batch keys key_heads width"),
    Input("v", "batch keys key_heads value_width"),
)  # fmt: skip
_PACKED = (
    Input("q", "queries key_heads*group width"), Input("k", "keys key_heads width"),
    Input("v", "keys key_heads value_width"),
    Input("cu_seqlens_q", "5", _cuts(1)), Input("cu_seqlens_k", "5", _cuts(2)),
)  # fmt: skip
_PACKED_SIZES = {"queries": 7, "keys": 9, "key_heads": 1, "group": 2, "width": 4, "value_width": 3}
_OUT, _LSE = "batch queries heads value_width", "batch heads queries"

ROWS = (
    Operator("attention", "attention", _QKV, _run, attention,
             {**_SIZES, "causal": True, "window": None, "softcap": None, "scale": None, "dropout": 0.0,
              "layout": "BTHD"},
             forms={"full": {"causal": False}, "window": {"causal": False, "window": (1, 1)},
                    "causal_window": {"window": (1, None)}, "softcap": {"softcap": 1.5}, "scale": {"scale": 0.3},
                    "dropout": {"dropout": 0.3}, "BHTD": {"layout": "BHTD"},
                    "hidden": {"queries": 5, "keys": 3}, "heads": {"key_heads": 2, "group": 1},
                    "blocks": {"batch": 1, "queries": 2, "keys": 129, "group": 1, "width": 2, "value_width": 1}}),
    Operator("attention.mask", "attention", (*_QKV, Input("mask", "batch 1 queries keys", _some_seen)), _run_mask,
             lambda q, k, v, mask, causal: attention(q, k, v, causal=causal, seen=mask), {**_SIZES, "causal": True}),
    _form("attention.bias", Input("bias", "key_heads*group queries keys"), lambda x, q, k: {"bias": x},
          lambda x, q, k: {"added": x}),
    _form("attention.alibi", Input("slopes", "key_heads*group", "positive"), lambda x, q, k: {"alibi_slopes": x},
          _by_slopes),
    _form("attention.sinks", Input("sinks", "key_heads*group"), lambda x, q, k: {"sinks": x},
          lambda x, q, k: {"sinks": x}),
    _form("attention.documents", Input("ids", "batch keys", _documents), _document_ids, _by_documents),
    _form("attention.prefix", Input("lengths", "batch", _lengths), _prefix, _by_prefix, causal=False),
    _form("attention.score_mod", Input("table", "key_heads*group 3"), _table, _by_table),
    Operator("attention.packed", "attention", _PACKED, _run_packed, packed,
             {**_PACKED_SIZES, "causal": True}, forms={"full": {"causal": False}}),
    Operator("merge_attention", "attention",
             (Input("out_a", _OUT), Input("lse_a", _LSE), Input("out_b", _OUT), Input("lse_b", _LSE)),
             vk.merge_attention, merged, {"batch": 2, "queries": 3, "heads": 2, "value_width": 4}),
)  # fmt: skip
