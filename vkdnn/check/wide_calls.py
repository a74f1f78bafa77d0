"""The kernel families in float64: what each call of vkdnn.kernels means, in plain NumPy, without the orders of kernels.

FAMILIES has for each family a maker: of a call node and a function that prepares expressions, a function of the
arguments' values that gives all results. What an argument is only there for an order (the totals of blocks), it is not
read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn.check.wide_attention import attention
from vkdnn.check.wide_sums import masked_product
from vkdnn.ir.node import Node
from vkdnn.kernels import attention as attention_kernels
from vkdnn.kernels import cumulate, scan, scan_chunk, scan_dot, scan_readout, sort
from vkdnn.kernels.scatter import ScatterShape

Array = np.ndarray[Any, Any]
Results = tuple[Array, ...]
Prepare = Callable[..., Callable[..., list[Array]]]
Maker = Callable[[Node, Prepare], Callable[..., Results]]


# ---- rows in an order


def _sort(node: Node, prepare: Prepare) -> Callable[..., Results]:
    """The pass leaves of each run its first elements in order; equal keys stay as they were."""
    one: sort.SortPass = node.attrs[1]

    def sorted_runs(key: Array, *position: Array) -> Results:
        length = key.shape[1]
        at = position[0] if position else np.broadcast_to(np.arange(length, dtype=np.int32), key.shape)
        runs = []
        for start in range(0, length, one.span):
            run = slice(start, start + one.span)
            runs.append(start + np.argsort(key[:, run], axis=1, kind="stable")[:, : one.keep])
        order = np.concatenate(runs, axis=1)
        return np.take_along_axis(key, order, 1), np.take_along_axis(at, order, 1)

    return sorted_runs


def _scatter(node: Node, prepare: Prepare) -> Callable[..., Results]:
    stage, shape = node.attrs[1]
    return lambda *args: _STAGES[stage](shape, *args)


def _numbers(s: ScatterShape, index: Array) -> Array:
    return np.clip(index.astype(np.int64), 0, s.rows - 1)


def _exclusive(counts: Array, axis: int = 0) -> Array:
    return np.asarray(np.cumsum(counts, axis, dtype=np.int32) - counts)


def _rank(s: ScatterShape, index: Array) -> Results:
    number, source = _numbers(s, index), np.arange(s.count)
    block = source // s.block
    counts = np.zeros((s.blocks, s.rows), np.int32)
    np.add.at(counts, (block, number), 1)
    order = np.lexsort((source, number, block))  # by block, number, position
    rank = np.empty(s.count, np.int32)
    rank[order] = source - _exclusive(counts.ravel())[(block * s.rows + number)[order]]
    return counts, rank


def _offset(s: ScatterShape, counts: Array) -> Results:
    return _exclusive(counts), np.asarray(np.sum(counts, 0, dtype=np.int32))


def _place(s: ScatterShape, index: Array, *_: Array) -> Results:
    return (np.argsort(_numbers(s, index), kind="stable").astype(np.int32),)


def _find(s: ScatterShape, keys: Array) -> Results:
    row = _numbers(s, keys) + np.repeat(np.arange(s.batches) * s.rows, s.count)
    total = np.bincount(row, minlength=s.batches * s.rows).astype(np.int32)
    return _exclusive(total), total


def _sum(s: ScatterShape, order: Array, start: Array, total: Array, source: Array, *base: Array) -> Results:
    dtype = np.result_type(source, *base)
    out = base[0].astype(dtype) if base else np.zeros((s.batches * s.rows, s.width), dtype)
    row = np.repeat(np.arange(total.size), total)
    turn = np.arange(row.size) - np.repeat(np.cumsum(total) - total, total)
    np.add.at(out, row, source[row // s.rows * s.count + order[start[row] + turn]])
    return (out,)


_STAGES: dict[str, Callable[..., Results]] = {
    "rank": _rank, "offset": _offset, "start": lambda s, total: (_exclusive(total),), "place": _place, "find": _find,
    "sum": _sum,
}  # fmt: skip


# ---- cumulations


def _cumulate(node: Node, prepare: Prepare) -> Callable[..., Results]:
    """Cumulated from the first element on, or for the totals in each block but the last; what stands for the blocks
    before is not read.
    """
    form, stage = node.attrs[1].form, node.attrs[1].stage
    pair = form not in cumulate.OPERATIONS

    def whole(*args: Array) -> Results:
        return (_recurrence(*args[:2]) if pair else _running(form, args[0]),)

    def totals(*args: Array) -> Results:
        outer, length, inner = args[0].shape
        blocks = -(-length // cumulate.BLOCK) - 1
        parts = [
            x[:, : blocks * cumulate.BLOCK].reshape(outer * blocks, cumulate.BLOCK, inner) for x in args[: 1 + pair]
        ]
        found = [np.prod(parts[0], axis=1), _recurrence(*parts)] if pair else [_running(form, parts[0])]
        return tuple((x[:, -1] if x.ndim == 3 else x).reshape(outer, blocks, inner) for x in found)

    return whole if stage == "result" else totals


def _running(form: str, x: Array) -> Array:
    """[outer, length, inner] cumulated along the middle axis."""
    if form in ("add", "mul"):
        return np.asarray((np.cumsum if form == "add" else np.cumprod)(x, axis=1, dtype=x.dtype))
    extreme = np.maximum if form == "maximum" else np.minimum
    top = extreme.accumulate(x.real, axis=1)
    fresh = (top[:, 1:] != top[:, :-1]) & ~np.isnan(top[:, :-1])  # where the first element of a new extreme stands
    at = np.zeros(x.shape, np.int64)
    at[:, 1:] = np.where(fresh, np.arange(1, x.shape[1])[:, None], 0)
    return np.take_along_axis(x, np.maximum.accumulate(at, axis=1), 1)


def _recurrence(a: Array, b: Array) -> Array:
    """s_i = a_i s_(i-1) + b_i, s_0 = b_0, along the middle axis."""
    out = np.array(b, np.result_type(a, b))
    for i in range(1, out.shape[1]):
        out[:, i] = a[:, i] * out[:, i - 1] + b[:, i]
    return out


# ---- scans of outer products


def _scan(node: Node, prepare: Prepare) -> Callable[..., Results]:
    p: scan.ScanCall = node.attrs[1]
    decay = float(np.float32(p.decay))

    def scanned(*args: Array) -> Results:
        terms, read, initial, boundary = scan.split_arguments(p, args)
        dtype = np.result_type(np.float64, *(x for x in args if x.dtype.kind in "fc"))
        state = np.zeros((p.batches, p.heads, p.rows, p.columns), dtype)
        if initial is not None:
            state = state + initial
        added = np.zeros((p.batches, p.tokens, *state.shape[1:]), dtype)
        for term in terms:
            added = added + (term[0][..., None] * term[1][..., None, :] if isinstance(term, tuple) else term)
        states = np.empty_like(added)
        tokens = range(p.tokens)
        for t in reversed(tokens) if p.reverse else tokens:
            if not p.reverse or t + 1 < p.tokens:
                state = _crossed(state, boundary, t + p.reverse, decay)
            state = state + added[:, t]
            states[:, t] = state
        final = _crossed(state, boundary, 0, decay) if p.reverse else state
        out = np.zeros(states.shape[:-1], dtype) if read is None else np.einsum("bthrc,bthc->bthr", states, read)
        return out, final, states

    return scanned


def _crossed(state: Array, boundary: Array | None, t: int, decay: float) -> Array:
    """The state where token t begins: nothing if it starts a document, and less by the decay."""
    if boundary is not None:
        state = np.where(boundary[:, t, None, None, None] != 0, 0.0, state)
    return state * decay


def _product(node: Node, prepare: Prepare) -> Callable[..., Results]:
    p: scan_chunk.ProductCall = node.attrs[1]

    def product(scores: Array, u: Array, w: Array, q: Array, *limits: Array) -> Results:
        """[B, C, M, H, R] of scores [B, C, H, M, N] times u [B, C, H, N, R], over what each row sees."""
        t, i = np.arange(scores.shape[3])[:, None], np.arange(scores.shape[4])
        low, high = (x[:, :, None, :, None] for x in limits) if limits else (0, scores.shape[4])
        first = t if p.direction == "reverse" else low
        last = t + 1 if p.direction == "forward" else high
        seen = np.broadcast_to((first <= i) & (i < last), scores.shape)
        return (np.swapaxes(masked_product(scores, seen, u), 2, 3),)

    return product


def _readout(node: Node, prepare: Prepare) -> Callable[..., Results]:
    p: scan_readout.ReadoutCall = node.attrs[1]

    def readout(q: Array, w: Array, u: Array, state: Array, *rest: Array) -> Results:
        """[B, C, M, H, R]: what rows of q [B, C, H, M, K] find in u, by their products with w, and in the state."""
        t, i = np.arange(q.shape[3])[:, None], np.arange(q.shape[3])
        limit = rest[0][:, :, None, :, None] if p.limited else len(t) if p.reverse else 0
        seen = (i >= t) & (i < limit) if p.reverse else (i <= t) & (i >= limit)
        scores = np.matmul(q, np.swapaxes(w, -1, -2))
        inner = masked_product(scores, np.broadcast_to(seen, scores.shape), u)
        inter = np.matmul(q, np.swapaxes(state, -1, -2))
        if p.unreached is not None:
            inter = np.where(rest[-1][:, :, None, :, None] != 0, inter, 0.0)
        return (np.swapaxes(inner + inter, 2, 3),)

    return readout


def _states(node: Node, prepare: Prepare) -> Callable[..., Results]:
    p: scan_chunk.StatesCall = node.attrs[1]

    def states(sums: Array, *given: Array) -> Results:
        rest = list(given)
        dtype = np.result_type(sums, *rest[: int(p.initial)])
        initial = rest.pop(0) if p.initial else 0.0
        state = np.zeros(sums[:, 0].shape, dtype) + initial
        before = np.empty(sums.shape, dtype)
        chunks = range(sums.shape[1])
        for c in reversed(chunks) if p.reverse else chunks:
            before[:, c] = state
            kept = np.where(rest[0][:, c, None, None, None] != 0, 0.0, state) if rest else state
            state = kept + sums[:, c]
        return before, state

    return states


def _row_dot(node: Node, prepare: Prepare) -> Callable[..., Results]:
    return lambda a, b: (np.einsum("...k,...k->...", a, b),)


FAMILIES: dict[str, Maker] = {
    "sort": _sort,
    "scatter": _scatter,
    cumulate.FAMILY: _cumulate,
    scan.FAMILY: _scan,
    scan_chunk.PRODUCT: _product,
    scan_chunk.STATES: _states,
    scan_readout.FAMILY: _readout,
    scan_dot.FAMILY: _row_dot,
    attention_kernels.FAMILY: attention,
}
