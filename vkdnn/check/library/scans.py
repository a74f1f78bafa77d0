"""Scans of outer products, by the T x T matrices of which tokens see which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Array, Input, Operator, Rng


def starts(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    """int32 [B, T], nonzero where a document starts: in the middle of every row, the first token not always."""
    found = (rng.random(shape) < 0.3).astype(np.int32)
    if shape[1] > 1:
        found[:, shape[1] // 2] = 1
    return found


def _seen(tokens: int, causal: bool, boundary: Array | None, batch: int) -> Array:
    """[B, T, T]: whether token i counts for token t of a prefix scan."""
    seen = np.tril(np.ones((tokens, tokens))) if causal else np.ones((tokens, tokens))
    if boundary is None:
        return np.broadcast_to(seen, (batch, tokens, tokens))
    document = np.cumsum(boundary != 0, axis=1)
    return np.asarray(seen * (document[:, :, None] == document[:, None, :]))


def prefix(
    k: Array, v: Array, p: Array, r: Array, a0: Array, b0: Array, boundary: Any = None, *, order: str,
    causal: bool = True, decay: float = 1.0,
) -> list[Array]:  # fmt: skip
    """[B p, A p, Bᵀ r, p·A p, r·B p, A, B] of the states A, B after each token, and of the last."""
    batch, tokens = k.shape[:2]
    weight = _seen(tokens, causal, boundary, batch) * decay ** np.maximum(
        np.subtract.outer(np.arange(tokens), np.arange(tokens)), 0
    )
    begun = np.zeros((batch, tokens)) if boundary is None else np.cumsum(boundary != 0, axis=1)
    first = (begun == 0) * decay ** (np.arange(tokens) + 1.0)
    a = np.einsum("bti,bihr,bihk->bthrk", weight, k, k) + first[..., None, None, None] * a0[:, None]
    b = np.einsum("bti,bihv,bihk->bthvk", weight, v, k) + first[..., None, None, None] * b0[:, None]
    ap, bp = np.einsum("bthrk,bthk->bthr", a, p), np.einsum("bthvk,bthk->bthv", b, p)
    btr = np.einsum("bthvk,bthv->bthk", b, r)
    return [bp, ap, btr, (p * ap).sum(-1), (r * bp).sum(-1), a[:, -1], b[:, -1]]


def suffix(
    p: Array, r: Array, scale: Array, x: Array, y: Array, boundary: Any = None, *, order: str, causal: bool = True
) -> list[Array]:
    """[S x, Sᵀ y, S of the first token] of the sums S of p rᵀ over the tokens from each one on."""
    batch, tokens = p.shape[:2]
    if causal:
        starts = None if boundary is None else boundary * (np.arange(tokens) > 0)
        weight = np.swapaxes(_seen(tokens, True, starts, batch), 1, 2)
    else:
        weight = np.broadcast_to(np.eye(tokens), (batch, tokens, tokens))
    s = np.einsum("bti,bihv,bihk->bthvk", weight, p * scale[..., None], r)
    return [np.einsum("bthvk,bthk->bthv", s, x), np.einsum("bthvk,bthv->bthk", s, y), s[:, 0]]


def _run_prefix(k: Any, v: Any, p: Any, r: Any, a0: Any, b0: Any, boundary: Any = None, **options: Any) -> list[Any]:
    return list(vk.scan_prefix_outer(k, v, p, r, a0, b0, boundary=boundary, **options))


def _run_suffix(p: Any, r: Any, scale: Any, x: Any, y: Any, boundary: Any = None, **options: Any) -> list[Any]:
    found = vk.scan_suffix_outer(vk.outer_col(p, r, scale), x, y, boundary=boundary, **options)
    return [found.sx, found.sty, found.s]


def outer_col(p: Array, r: Array, scale: Array) -> Array:
    return np.asarray((p * scale[..., None])[..., None] * r[..., None, :])


_SIZES = {"batch": 2, "tokens": 4, "heads": 2, "key": 2, "value": 3}  # those of nn.ReLULinearAttention
_KEYS, _VALUES = "batch tokens heads key", "batch tokens heads value"
_PREFIX = (
    Input("k", _KEYS), Input("v", _VALUES), Input("p", _KEYS), Input("r", _VALUES),
    Input("a0", "batch heads key key"), Input("b0", "batch heads value key"),
)  # fmt: skip
_COLUMN = (Input("p", _VALUES), Input("r", _KEYS), Input("scale", "batch tokens heads"))
_SUFFIX = (*_COLUMN, Input("x", _KEYS), Input("y", _VALUES))
_BOUNDARY = Input("boundary", "batch tokens", starts)
_ORDERS: dict[str, dict[str, Any]] = {
    "chunked": {"order": "chunked"}, "whole": {"causal": False},
}  # fmt: skip

ROWS = (
    Operator("scan_prefix_outer", "scans", _PREFIX, _run_prefix, prefix,
             {**_SIZES, "order": "sequential", "causal": True, "decay": 1.0},
             forms={**_ORDERS, "decay": {"decay": 0.75},
                    "chunks": {"order": "chunked", "batch": 1, "tokens": 66, "heads": 1, "key": 1, "value": 1}}),
    Operator("scan_prefix_outer.documents", "scans", (*_PREFIX, _BOUNDARY), _run_prefix, prefix,
             {**_SIZES, "order": "sequential"}, forms={"chunked": {"order": "chunked"}}),
    Operator("scan_suffix_outer", "scans", _SUFFIX, _run_suffix, suffix,
             {**_SIZES, "order": "sequential", "causal": True}, forms=_ORDERS),
    Operator("scan_suffix_outer.documents", "scans", (*_SUFFIX, _BOUNDARY), _run_suffix, suffix,
             {**_SIZES, "order": "sequential"}, forms={"chunked": {"order": "chunked"}}),
    Operator("outer_col", "scans", _COLUMN, lambda *xs: vk.outer_col(*xs).materialize(), outer_col, _SIZES),
)  # fmt: skip
