"""Packed batches: sequences one after the other on one token axis, and the bounds that cut them out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray
from vkdnn.dtypes import int32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ops.elementwise import clip, where
from vkdnn.ops.index import take
from vkdnn.ops.masks import MaskMod
from vkdnn.ops.order import cummax
from vkdnn.ops.shape import arange_along


@dataclass(frozen=True)
class Packed:
    """Bounds of ``count`` sequences [count + 1] in queries and keys, and the most tokens that one of them has."""

    starts_q: Array
    starts_k: Array
    count: int
    queries: int
    keys: int
    tokens: tuple[int, int]

    @property
    def starts(self) -> tuple[Array, Array]:
        return self.starts_q, self.starts_k

    @property
    def shift(self) -> Array:
        """Keys less queries of each sequence, [count]."""
        return (self.starts_k[1:] - self.starts_k[:-1]) - (self.starts_q[1:] - self.starts_q[:-1])

    def documents(self, ids_q: Any, ids_k: Any) -> MaskMod:
        """The mask of integers [T] of all queries and of all keys."""
        pair = []
        sides = (("queries", ids_q, self.starts_q, self.tokens[0]), ("keys", ids_k, self.starts_k, self.tokens[1]))
        for name, x, starts, tokens in sides:
            ids = asarray(x, name=f"document_ids: {name}")
            if ids.dtype.category not in "iu":
                raise DtypeError(f"document_ids: got {ids.dtype}, expected integers")
            if ids.ndim != 1:
                raise ShapeError(f"document_ids: got shape {ids.shape}, expected [T] with layout 'THD'")
            if ids.size != tokens:
                raise ShapeError(f"document_ids: got {ids.size} of {name}, expected {tokens}, one for each token")
            pair.append((ids, starts[:-1].reshape(-1, 1, 1, 1)))
        (of_queries, from_q), (of_keys, from_k) = pair
        if of_queries.dtype is not of_keys.dtype:
            raise DtypeError(f"document_ids: got {of_queries.dtype} and {of_keys.dtype}, expected one dtype")
        return lambda b, h, q, k: take(of_queries, from_q + q) == take(of_keys, from_k + k)


def packed(layout: str, q: Array, k: Array, cu_q: Any, cu_k: Any) -> Packed | None:
    """The bounds of a packed call, None for other layouts. Raises ArgumentError where they do not belong together."""
    if layout != "THD":
        for name, value in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
            if value is not None:
                raise ArgumentError(f"{name}: got bounds with layout {layout!r}, expected layout='THD'")
        return None
    if cu_q is None:
        raise ArgumentError("cu_seqlens_q: got None with layout 'THD', expected int32 [N + 1]")
    cu_k = cu_q if cu_k is None else cu_k
    starts_q, queries = _bounds("cu_seqlens_q", cu_q, q)
    starts_k, keys = _bounds("cu_seqlens_k", cu_k, k)
    if starts_q.shape != starts_k.shape:
        raise ShapeError(f"cu_seqlens_k: got {starts_k.size} bounds, expected {starts_q.size} as in cu_seqlens_q")
    return Packed(starts_q, starts_k, starts_q.size - 1, queries, keys, (q.shape[0], k.shape[0]))


def _bounds(name: str, value: Any, tokens: Array) -> tuple[Array, int]:
    """Bounds as an Array, and the length of the longest sequence as far as it is known here."""
    total = tokens.shape[0]
    if isinstance(value, Array):
        if value.dtype is not int32:
            raise DtypeError(f"{name}: got {value.dtype}, expected int32")
        if value.ndim != 1 or value.size < 1:
            raise ShapeError(f"{name}: got shape {value.shape}, expected [N + 1]")
        number = arange_along(value.shape, 0)
        inner = where(number == 0, 0, where(number == value.size - 1, total, value))
        return cummax(clip(inner, 0, total)), total
    try:
        host = np.asarray(value)
    except ValueError:
        raise ArgumentError(f"{name}: got nested lists of unequal lengths, expected integers [N + 1]") from None
    if host.dtype.kind not in "iu":
        raise DtypeError(f"{name}: got {host.dtype}, expected integers")
    if host.ndim != 1 or host.size < 1:
        raise ShapeError(f"{name}: got shape {host.shape}, expected [N + 1]")
    if host[0] != 0:
        raise ArgumentError(f"{name}: got {host[0]} as the first bound, expected 0")
    falls = np.flatnonzero(host[1:] < host[:-1])
    if falls.size:
        at = int(falls[0])
        raise ArgumentError(f"{name}: got {host[at]} before {host[at + 1]}, expected bounds that do not decrease")
    if host[-1] != total:
        raise ArgumentError(f"{name}: got {host[-1]} as the last bound, expected {total}, the number of tokens")
    return asarray(host.astype(np.int32), [tokens]), int(np.diff(host).max(initial=0))
