"""Graphs of the scans in both orders: which kernels a scan is made of, on nodes whose shapes were checked.

Every function here keeps to the orders documented in vkdnn.ops.scan; what nobody asks for is built but never
run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from vkdnn.dtypes import float32
from vkdnn.ir import build
from vkdnn.ir.node import Node, Shape
from vkdnn.kernels import scan_chunk
from vkdnn.kernels.scan import FINAL, OUT, Term, scan
from vkdnn.kernels.scan_chunk import CHUNK


def where(condition: Node, a: Any, b: Any) -> Node:
    return build.apply("where", condition, a, b)


def swapped(x: Node) -> Node:
    """x with its last two axes exchanged."""
    return build.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def with_axes(x: Node, shape: Shape) -> Node:
    """x reshaped to axes that broadcast; only lengths of 1 are added."""
    return build.reshape(x, shape)


# ---- chunks


def to_chunks(x: Node) -> Node:
    """[B, T, H, K] as [B, C, H, CHUNK, K], the last chunk filled with zeros."""
    batches, tokens, heads, width = x.shape
    chunks = -(-tokens // CHUNK)
    x = build.pad(x, (0, 0, 0, 0), (0, chunks * CHUNK - tokens, 0, 0))
    return build.permute(build.reshape(x, (batches, chunks, CHUNK, heads, width)), (0, 1, 3, 2, 4))


class Spans(NamedTuple):
    """What document boundaries say about each token of a chunk."""

    first: Node  # int32 [B, C, CHUNK]: position in the chunk of the last boundary up to the token, -1 if none
    last: Node  # int32 [B, C, CHUNK]: position of the next boundary after the token, CHUNK if none
    drops: Node  # int32 [B, C]: the chunk has a boundary

    @property
    def head(self) -> Node:
        """bool: no boundary lies at or before the token, so the state before the chunk reaches it."""
        return self.first < 0

    @property
    def tail(self) -> Node:
        """bool: no boundary lies after the token, so it reaches the state after the chunk."""
        return build.apply("equal", self.last, CHUNK)


def spans(boundary: Node) -> Spans:
    """Spans of a boundary array int32 [B, T]. Extremes of positions are exact in float32."""
    batches, tokens = boundary.shape
    chunks = -(-tokens // CHUNK)
    flags = build.pad(build.apply("not_equal", boundary, 0), (0, 0), (0, chunks * CHUNK - tokens))
    shape = (batches, chunks, CHUNK, CHUNK)
    starts = build.broadcast_to(build.reshape(flags, (batches, chunks, 1, CHUNK)), shape)
    token, at = build.iota(shape, 2), build.iota(shape, 3)
    position = build.apply("to_float32", at)
    first = build.fold("maximum", where(starts & (at <= token), position, -1.0), (3,))
    last = build.fold("minimum", where(starts & (at > token), position, float(CHUNK)), (3,))
    first, last = (build.reshape(build.apply("to_int32", x), (batches, chunks, CHUNK)) for x in (first, last))
    end = build.slice_(first, (0, 0, CHUNK - 1), (batches, chunks, 1), (1, 1, 1))
    return Spans(first, last, build.apply("to_int32", build.reshape(end >= 0, (batches, chunks))))


@dataclass(frozen=True, eq=False)
class ChunkedSum:
    """The chunked sum of u_i w_i^T: chunk sums, states before chunks, and readouts of them. Transposes share
    the work.
    """

    u: Node  # [B, T, H, R]
    w: Node  # [B, T, H, K]
    initial: Node | None  # [B, H, R, K]
    spans: Spans | None
    reverse: bool

    def _kept(self, x: Node, head: bool) -> Node:
        """x [B, C, H, CHUNK, K] with zeros outside of the head or tail: the others neither reach nor poison
        sums.
        """
        if self.spans is None:
            return x
        kept = self.spans.head if head else self.spans.tail
        batches, chunks, _ = kept.shape
        return where(with_axes(kept, (batches, chunks, 1, CHUNK, 1)), x, 0.0)

    @cached_property
    def sums(self) -> Node:
        """[B, C, H, R, K]: the sum over the tokens of each chunk that reach the state after it."""
        u, w = (self._kept(to_chunks(x), self.reverse) for x in (self.u, self.w))
        return build.matmul(swapped(u), w)

    @cached_property
    def _running(self) -> list[Node]:
        drops = None if self.spans is None else self.spans.drops
        return scan_chunk.states(self.sums, self.initial, drops, self.reverse)

    @property
    def states(self) -> Node:
        """[B, C, H, R, K]: the state before each chunk, in the order visited."""
        return self._running[0]

    @property
    def final(self) -> Node:
        """[B, H, R, K]"""
        return self._running[1]

    def out(self, read: Node, transpose: bool = False) -> Node:
        """[B, T, H, R]: each token's state times ``read`` [B, T, H, K]; of the transposed state, [B, T, H,
        K].
        """
        u, w = (self.w, self.u) if transpose else (self.u, self.w)
        state = self.states if transpose else swapped(self.states)
        u_chunks, w_chunks, q = to_chunks(u), to_chunks(w), to_chunks(read)
        scores = build.matmul(q, swapped(w_chunks))
        direction, limits = ("reverse" if self.reverse else "forward"), ()
        if self.spans is not None:
            limits = (build.apply("maximum", self.spans.first, 0), self.spans.last)  # type: ignore[assignment]
        inner = scan_chunk.product(scores, u_chunks, w_chunks, q, direction, *limits)
        inter = build.permute(build.matmul(self._kept(q, not self.reverse), state), (0, 1, 3, 2, 4))
        if self.spans is not None:
            reached = self.spans.tail if self.reverse else self.spans.head
            # Adding -0 changes nothing: the token has no part in the state before the chunk.
            inter = where(with_axes(reached, (*reached.shape, 1, 1)), inter, -0.0)
        out = inter + inner
        batches, tokens, heads, _ = read.shape
        out = build.reshape(out, (batches, -1, heads, u.shape[-1]))
        return build.slice_(out, (0, 0, 0, 0), (batches, tokens, heads, u.shape[-1]), (1, 1, 1, 1))


# ---- both orders


@dataclass(frozen=True, eq=False)
class SequentialSum:
    """The sequential sum of terms: u_i w_i^T or dense [B, T, H, R, K]."""

    terms: tuple[Term, ...]
    shape: Shape  # B, T, H, R, K
    initial: Node | None
    boundary: Node | None
    reverse: bool
    decay: float = 1.0

    @property
    def final(self) -> Node:
        """[B, H, R, K]"""
        return self._scan(None, False)[FINAL]

    def out(self, read: Node, transpose: bool = False) -> Node:
        """[B, T, H, R]: each token's state times ``read`` [B, T, H, K]; of the transposed state, [B, T, H,
        K].
        """
        return self._scan(read, transpose)[OUT]

    def final_beside(self, read: Node) -> Node:
        """``final``, from the kernel that also computes out(read)."""
        return self._scan(read, False)[FINAL]

    def _scan(self, read: Node | None, transpose: bool) -> list[Node]:
        if not transpose:
            return scan(self.terms, self.shape, read, self.initial, self.boundary, self.reverse, self.decay)
        turned = [swapped(t) if isinstance(t, Node) else (t[1], t[0]) for t in self.terms]
        shape = (*self.shape[:3], self.shape[4], self.shape[3])
        initial = None if self.initial is None else swapped(self.initial)
        return scan(turned, shape, read, initial, self.boundary, self.reverse, self.decay)


def readout(state: Node, read: Node, transpose: bool = False) -> Node:
    """[B, T, H, R]: one state [B, H, R, K] times every token's ``read`` [B, T, H, K]."""
    product = build.matmul(build.permute(read, (0, 2, 1, 3)), state if transpose else swapped(state))
    return build.permute(product, (0, 2, 1, 3))


def outer(u: Node, w: Node) -> Node:
    """[..., R, K]: u [..., R] times w [..., K]."""
    return build.apply("mul", build.reshape(u, (*u.shape, 1)), build.reshape(w, (*w.shape[:-1], 1, w.shape[-1])))


def zeros(shape: Shape) -> Node:
    return build.full(shape, 0.0, float32)
