"""Decoding with scans: a state that is carried from call to call, for one token or many.

Cutting a sequence anywhere and carrying the state must give the bits of the whole, in both orders.

sequential   the state is B (and A).
chunked      the state is B before the open chunk, the sum over the open chunk so far, and the open chunk's k
             and v in buffers of 64 tokens; ``position`` is how many of them are filled and ``start`` where
             the open chunk's last boundary lies (-1: none). Both are int32 arrays, so shapes never change and
             one vk.jit trace serves every step; sequences of a batch may stand at different positions. A step
             of one token writes its slot, adds to the chunk's sum and folds it into B when the chunk is full.
             Longer pieces are laid out after the open chunk by a gather, run as chunks, and picked out again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vkdnn.array import Array, asarray, common_device
from vkdnn.dtypes import int32
from vkdnn.errors import ArgumentError
from vkdnn.ir import build
from vkdnn.ir.node import Node
from vkdnn.kernels import scan_chunk
from vkdnn.kernels.scan_chunk import CHUNK
from vkdnn.ops.scan import (
    ScanPrefix,
    check_boundary,
    check_decay,
    check_operand,
    check_order,
    check_state,
    prefix_results,
    rounded,
    scan_prefix_outer,
    storage_type,
)
from vkdnn.ops.scan_orders import ChunkedSum, outer, spans, swapped, where


class ScanState(NamedTuple):
    """What scan_step() carries, a tree of arrays; None where the order has no use for it. See the module."""

    b: Array
    """[B, H, V, K]; chunked: before the open chunk"""
    a: Array | None
    """[B, H, K, K], if A is carried"""
    b_open: Array | None = None
    """[B, H, V, K]: the open chunk's part of B"""
    a_open: Array | None = None
    """[B, H, K, K]: the open chunk's part of A"""
    k: Array | None = None
    """[B, 64, H, K]: k of the open chunk"""
    v: Array | None = None
    """[B, 64, H, V]: v of the open chunk"""
    position: Array | None = None
    """int32 [B]: tokens of the open chunk, 0 to 63"""
    start: Array | None = None
    """int32 [B]: position of the open chunk's last boundary, -1 if none"""


def scan_state(
    batches: int,
    heads: int,
    key_width: int,
    value_width: int,
    *,
    order: str = "sequential",
    with_a: bool = False,
    a0: Any = None,
    b0: Any = None,
) -> ScanState:
    """The state before the first token: b0 [B, H, V, K] or [H, V, K] (else zero) and, ``with_a``, a0
    likewise.

    Raises ArgumentError for an unknown order and ShapeError for a0 or b0 that do not fit.
    """
    check_order(order, {"key_width": key_width, "value_width": value_width})
    if a0 is not None and not with_a:
        raise ArgumentError("a0: got an array, but the state holds no A; pass with_a=True")

    def zeros(*shape: int) -> Array:
        return asarray(np.zeros(shape, np.float32), [a0, b0])

    like = zeros(batches, 1, heads, key_width)

    def first(name: str, value: Any, rows: int) -> Array:
        node = check_state(name, value, like, rows, key_width)
        return zeros(batches, heads, rows, key_width) if node is None else Array(node, like.device)

    a = first("a0", a0, key_width) if with_a else None
    b = first("b0", b0, value_width)
    if order == "sequential":
        return ScanState(b, a)
    return ScanState(
        b,
        a,
        zeros(batches, heads, value_width, key_width),
        zeros(batches, heads, key_width, key_width) if with_a else None,
        zeros(batches, CHUNK, heads, key_width),
        zeros(batches, CHUNK, heads, value_width),
        asarray(np.zeros(batches, np.int32), [like]),
        asarray(np.full(batches, -1, np.int32), [like]),
    )


def scan_step(
    state: ScanState, k: Any, v: Any, p: Any, r: Any = None, *, boundary: Any = None, decay: float = 1.0
) -> tuple[ScanPrefix, ScanState]:
    """The next T tokens of a causal scan_prefix_outer() that stands at ``state``: its results, and the state
    after.

    k, p [B, T, H, K], v, r [B, T, H, V] float32, boundary [B, T]; T may be 1. The bits are those of the whole
    sequence in one call with the same ``decay``. The chunked order has no derivative here. Raises ShapeError
    for arguments that do not fit the state.
    """
    batches, heads, value_width, width = state.b.shape
    kept = storage_type(k, v, p, r)
    k = check_operand("k", k, state.b, (batches, -1, heads, width))
    v = check_operand("v", v, k, (*k.shape[:3], value_width))
    p = check_operand("p", p, k, k.shape)
    r = None if r is None else check_operand("r", r, k, v.shape)
    if state.position is None:
        whole = scan_prefix_outer(k, v, p, r, state.a, state.b, boundary=boundary, decay=decay)
        if state.a is None:
            whole = whole._replace(ap=None, pap=None, a=None)
        return rounded(whole, kept), ScanState(whole.b, whole.a)
    check_decay(decay, "chunked", True)
    limits = check_boundary(boundary, k, True)
    step = (_Step if k.shape[1] == 1 else _Piece)(state, k.node, v.node, limits)
    bp = step.out(step.b, p.node)
    btr = None if r is None else step.out(step.b, r.node, transpose=True)
    ap = None if step.a is None else step.out(step.a, p.node)
    device = common_device("scan_step", [x for x in (k, v, p, r, boundary, *state) if isinstance(x, Array)])
    results = prefix_results(
        device, p.node, None if r is None else r.node, bp, ap, btr, step.a and step.a.total, step.b.total
    )
    after = (
        step.b.before, step.a and step.a.before, step.b.open, step.a and step.a.open, step.k, step.v,
        step.position, step.start,
    )  # fmt: skip
    return rounded(results, kept), ScanState(*(None if x is None else Array(x, device) for x in after))  # type: ignore[arg-type]


class _After(NamedTuple):
    """A sum after the step, and what its readout needs."""

    total: Node  # B or A after the last token
    before: Node  # before the chunk that is open after the step
    open: Node  # its part of the sum
    source: Any  # where the readout reads: see the classes


def _node(x: Array | None) -> Node:
    assert x is not None
    return x.node


def _zero_after_boundary(boundary: Node | None, x: Node) -> Node:
    """x [B, ...], or 0 where the one token of the step starts a document."""
    if boundary is None:
        return x
    starts = build.reshape(build.apply("not_equal", boundary, 0), (boundary.shape[0], *(1,) * (x.ndim - 1)))
    return where(starts, 0.0, x)


class _Step:
    """One token after a chunked state."""

    def __init__(self, state: ScanState, k: Node, v: Node, boundary: Node | None):
        batches = k.shape[0]
        self.boundary = boundary
        self.at, start = _node(state.position), _node(state.start)
        if boundary is not None:
            start = where(build.apply("not_equal", build.reshape(boundary, (batches,)), 0), self.at, start)
        self.seen_from = start
        slot = build.apply("equal", build.iota((batches, CHUNK, 1, 1), 1), build.reshape(self.at, (batches, 1, 1, 1)))
        self.k, self.v = where(slot, k, _node(state.k)), where(slot, v, _node(state.v))
        ended = build.apply("equal", self.at, CHUNK - 1)
        self.position, self.start = where(ended, 0, self.at + 1), where(ended, -1, start)
        self.ended = build.reshape(ended, (batches, 1, 1, 1))
        self.dropped = build.reshape(start >= 0, (batches, 1, 1, 1))
        self.b = self._sum(state.b.node, _node(state.b_open), v, k, (self.v, self.k))
        self.a = None
        if state.a is not None:
            self.a = self._sum(state.a.node, _node(state.a_open), k, k, (self.k, self.k))

    def _sum(self, before: Node, opened: Node, u: Node, w: Node, buffers: tuple[Node, Node]) -> _After:
        def token(x: Node) -> Node:
            return build.reshape(x, (x.shape[0], *x.shape[2:]))

        opened = _zero_after_boundary(self.boundary, opened) + outer(token(u), token(w))
        total = where(self.dropped, opened, before + opened)
        return _After(total, where(self.ended, total, before), where(self.ended, 0.0, opened), (before, *buffers))

    def out(self, after: _After, read: Node, transpose: bool = False) -> Node:
        """[B, 1, H, R]: the token's readout."""
        before, u, w = after.source
        if transpose:
            before, u, w = swapped(before), w, u
        batches, _, heads, width = read.shape
        q = build.reshape(read, (batches, 1, heads, 1, width))
        u, w = (build.reshape(build.permute(x, (0, 2, 1, 3)), (batches, 1, heads, CHUNK, x.shape[-1])) for x in (u, w))
        low = build.reshape(build.apply("maximum", self.seen_from, 0), (batches, 1, 1))
        high = build.reshape(self.at + 1, (batches, 1, 1))
        scores = build.matmul(q, swapped(w))
        inner = build.reshape(scan_chunk.product(scores, u, w, q, "range", low, high), (batches, 1, heads, u.shape[-1]))
        inter = build.matmul(build.reshape(read, (batches, heads, 1, width)), swapped(before))
        inter = build.reshape(inter, inner.shape)
        return where(self.dropped, -0.0, inter) + inner  # adding -0 changes nothing


class _Piece:
    """Many tokens after a chunked state: laid out so that slot 0 is the open chunk's first token."""

    def __init__(self, state: ScanState, k: Node, v: Node, boundary: Node | None):
        self.batches, self.tokens = k.shape[:2]
        self.length = CHUNK * -(-(CHUNK - 1 + self.tokens) // CHUNK)
        self.at = _node(state.position)
        self.state, self.end = state, self.at + self.tokens
        self.whole = build.apply("right_shift", self.end, 6)  # complete chunks: CHUNK is 2^6
        rest = build.apply("bitwise_and", self.end, CHUNK - 1)
        k_all, v_all = self._laid_out(k, state.k), self._laid_out(v, state.v)
        limits = spans(self._boundaries(boundary))
        self.b = self._sum(ChunkedSum(v_all, k_all, state.b.node, limits, False))
        self.a = None
        if state.a is not None:
            self.a = self._sum(ChunkedSum(k_all, k_all, state.a.node, limits, False))
        self.k, self.v = self._open(k_all), self._open(v_all)
        self.position = rest
        first = build.reshape(limits.first, (self.batches, self.length))
        start = build.gather(first, build.reshape(self.end - 1, (self.batches, 1)), 1)
        self.start = where(build.apply("equal", rest, 0), -1, build.reshape(start, (self.batches,)))

    def _per_batch(self, x: Node, ndim: int) -> Node:
        return build.reshape(x, (self.batches, *(1,) * (ndim - 1)))

    def _laid_out(self, x: Node, opened: Array | None) -> Node:
        """[B, length, H, K]: the open chunk's tokens, those of x [B, T, H, K], zeros."""
        shape = (self.batches, self.length, *x.shape[2:])
        slot = build.iota(shape, 1)
        at = self._per_batch(self.at, x.ndim)
        given = build.gather(x, build.broadcast_to(slot - at, shape), 1)
        kept = where(slot < self._per_batch(self.end, x.ndim), given, 0 if x.dtype is int32 else 0.0)
        if opened is None:
            return kept
        return where(slot < at, build.gather(opened.node, slot, 1), kept)

    def _boundaries(self, boundary: Node | None) -> Node:
        """int32 [B, length]; of the open chunk the last boundary is all that matters."""
        slot = build.iota((self.batches, self.length), 1)
        start = self._per_batch(_node(self.state.start), 2)
        earlier = build.apply("to_int32", build.apply("equal", slot, start))
        if boundary is None:
            return earlier
        return where(slot < self._per_batch(self.at, 2), earlier, self._laid_out(boundary, None))

    def _open(self, x: Node) -> Node:
        """[B, CHUNK, H, K]: what of x [B, length, H, K] lies in the chunk left open; stale behind its
        tokens.
        """
        shape = (self.batches, CHUNK, *x.shape[2:])
        return build.gather(x, build.iota(shape, 1) + self._per_batch(self.whole * CHUNK, x.ndim), 1)

    def _sum(self, chunked: ChunkedSum) -> _After:
        sums = chunked.sums
        shape = (self.batches, 1, *sums.shape[2:])
        index = build.broadcast_to(self._per_batch(self.whole, 5), shape)
        inside = self._per_batch(self.whole, 4) < sums.shape[1]

        def picked(x: Node) -> Node:
            return build.reshape(build.gather(x, index, 1), (self.batches, *sums.shape[2:]))

        before = where(inside, picked(chunked.states), chunked.final)
        opened = where(inside, picked(sums), 0.0)
        dropped = where(inside, picked(build.broadcast_to(self._drops(chunked), sums.shape)), 0)
        total = where(build.apply("not_equal", dropped, 0), opened, before + opened)
        return _After(total, before, opened, chunked)

    def _drops(self, chunked: ChunkedSum) -> Node:
        assert chunked.spans is not None
        drops = chunked.spans.drops
        return build.reshape(drops, (*drops.shape, 1, 1, 1))

    def out(self, after: _After, read: Node, transpose: bool = False) -> Node:
        """[B, T, H, R]: the readouts of the new tokens."""
        everything = after.source.out(self._laid_out(read, None), transpose)
        shape = (self.batches, self.tokens, *everything.shape[2:])
        return build.gather(everything, build.iota(shape, 1) + self._per_batch(self.at, 4), 1)


__all__ = ["ScanState", "scan_state", "scan_step"]
