"""Attention in NumPy: the oracle of the kernels of vkdnn.kernels.attention, in the same orders.

It must stay plain: sequences and blocks one after the other, heads and rows as axes of arrays, every addition in the
order of the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkdnn.dtypes import load
from vkdnn.ir.body import Affine, Body, Box, Guard, Instr, evaluate_body, strided
from vkdnn.ir.define import evaluate
from vkdnn.kernels.base import Array
from vkdnn.kernels.fold import fold_lanes
from vkdnn.kernels.matmul import BLOCK_K
from vkdnn.numerics import basic

if TYPE_CHECKING:
    from vkdnn.kernels.attention import AttentionSpec

BLOCK = 128
_PIECE = 1 << 19  # pairs at a time, about
NONE = np.float32(-np.inf)


def run_attention(
    spec: AttentionSpec, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]
) -> None:
    """One of the four kernels, by ``spec.role``."""
    roles: dict[str, Callable[[_Sequence, Any], None]] = {
        "forward": _forward, "split": _split, "merge": _merge, "queries": _queries, "keys": _keys, "pairs": _pairs,
    }  # fmt: skip
    results = _Results(spec, sizes, outputs)
    for b in range(sizes[0]):
        one = _Sequence(spec, sizes, inputs, b)
        if one.queries or one.keys:
            roles[spec.role](one, results)


class _Results:
    """Outputs by name, as arrays over tokens or sequences."""

    def __init__(self, spec: AttentionSpec, sizes: tuple[int, ...], outputs: Sequence[Array]):
        from vkdnn.kernels.attention import RESULTS

        self.spec, self.sizes = spec, sizes
        names = [RESULTS[spec.role][r] for r in spec.results]
        self.flat = dict(zip(names, outputs, strict=True))

    def rows(self, name: str, one: _Sequence, heads: int, width: int) -> Array | None:
        """[heads, rows of the sequence, width] of a result laid out [tokens, heads, width]."""
        if name not in self.flat:
            return None
        mine, start = (one.keys, one.start_k) if name in ("dk", "dv") else (one.queries, one.start_q)
        flat = self.flat[name][start * heads * width :][: mine * heads * width]
        return np.moveaxis(flat.reshape(mine, heads, width), 1, 0)

    def line(self, name: str, one: _Sequence) -> Array | None:
        """[H, queries of the sequence] of a result laid out [B, H, Tq], or [H, tokens] if packed."""
        if name not in self.flat:
            return None
        tokens = self.sizes[3]
        if self.spec.packed:
            whole = self.flat[name][: self.spec.heads * tokens].reshape(self.spec.heads, tokens)
            return whole[:, one.start_q : one.start_q + one.queries]
        size = self.spec.heads * one.queries
        return self.flat[name][one.b * size :][:size].reshape(self.spec.heads, one.queries)


class _Sequence:
    """One sequence of the batch: lengths, operands as [heads, rows, width], the body over blocks of its pairs."""

    def __init__(self, spec: AttentionSpec, sizes: tuple[int, ...], inputs: Sequence[Array], b: int):
        self.spec, self.b, self.inputs = spec, b, inputs
        self.operands = {name: (slot, index) for name, slot, index in spec.operands}
        _, self.queries, self.keys, _ = sizes
        self.start_q, self.start_k = b * self.queries, b * self.keys
        shift_q = shift_k = 0
        if spec.packed:
            (slot_q, at_q), (slot_k, at_k) = self.operands["starts_q"], self.operands["starts_k"]
            self.start_q, stop_q = (int(inputs[slot_q][at_q.offset + at_q.strides[0] * n]) for n in (b, b + 1))
            self.start_k, stop_k = (int(inputs[slot_k][at_k.offset + at_k.strides[0] * n]) for n in (b, b + 1))
            self.queries, self.keys = stop_q - self.start_q, stop_k - self.start_k
            shift_q, shift_k = self.start_q, self.start_k
        kv = spec.heads // spec.group
        lines = {
            "q": (spec.heads, self.queries, spec.key_width, shift_q),
            "k": (kv, self.keys, spec.key_width, shift_k),
            "v": (kv, self.keys, spec.value_width, shift_k),
            "do": (spec.heads, self.queries, spec.value_width, shift_q),
        }
        for name, (heads, rows, width, shift) in lines.items():
            if name in self.operands:
                setattr(self, name, self._rows(name, heads, rows, width, shift))
        for name in ("peak", "inverse", "delta"):
            if name in self.operands:
                slot, index = self.operands[name]
                origin = index.offset + index.strides[0] * b + index.strides[2] * shift_q
                setattr(self, name, self._view(slot, origin, index.strides[1:], (spec.heads, self.queries)))

    q: Array
    k: Array
    v: Array
    do: Array
    peak: Array
    inverse: Array
    delta: Array

    def _rows(self, name: str, heads: int, rows: int, width: int, shift: int) -> Array:
        slot, index = self.operands[name]
        origin = index.offset + index.strides[0] * self.b + index.strides[2] * shift
        return self._view(slot, origin, index.strides[1:], (heads, rows, width))

    def _view(self, slot: int, origin: int, strides: tuple[int, ...], extents: tuple[int, ...]) -> Array:
        if 0 in extents:
            return np.empty(extents, np.float32)
        view = np.broadcast_to(strided(self.inputs[slot], origin, strides, extents), extents)
        return np.ascontiguousarray(load(view, self.spec.input_dtypes[slot]))

    def of_heads(self, x: Array) -> Array:
        """[Hk, ...] -> [H, ...]: head h reads key head h // group."""
        return np.repeat(x, self.spec.group, axis=0)

    def body(self, names: Sequence[str], i: slice, j: slice, given: dict[int, Array]) -> dict[str, Array]:
        """Values of the body over [H, rows, keys], those asked for that there are; ``given`` are dot and upstream."""
        at = dict(self.spec.positions)
        extents = (1, self.spec.heads, i.stop - i.start, j.stop - j.start)
        moved = shifted(self.spec.body, (self.b, 0, i.start, j.start))
        values: dict[int, Array] = {
            n: given[instr.attrs[0]][None]
            for n, instr in enumerate(moved.instrs)
            if instr.kind == "reduced" and instr.attrs[0] in given
        }
        wanted = [at[name] for name in names if name in at]
        evaluate_body(moved, moved.needed(wanted), Box(extents), self.inputs, values)
        return {name: np.broadcast_to(values[at[name]], extents)[0] for name in names if name in at}

    def pieces(self, rows: int) -> Iterator[slice]:
        step = max(1, _PIECE // (BLOCK * self.spec.heads))
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def scores(self, i: slice, j: slice) -> tuple[Array, Array, Array]:
        """Dot products, scores and whether a pair is live, [H, rows, keys]."""
        dot = dots(self.q[:, i], self.of_heads(self.k[:, j]))
        found = self.body(("score", "visible"), i, j, {0: dot})
        score = found["score"]
        live = score != NONE
        if "visible" in found:
            live = live & found["visible"]
        return dot, score, live

    def kept(self, i: slice, j: slice, live: Array) -> Array:
        found = self.body(("kept",), i, j, {})
        return live & found["kept"] if found else live

    def backward(self, i: slice, j: slice) -> tuple[Array, Array, Array, Array, Array, Array]:
        """dot, live, live and kept, p, g and ds of pairs."""
        dot, score, live = self.scores(i, j)
        kept = self.kept(i, j, live)
        p = basic.mul(evaluate("exp", basic.sub(score, self.peak[:, i, None])), self.inverse[:, i, None])
        dp = np.where(kept, dots(self.do[:, i], self.of_heads(self.v[:, j])), np.float32(0))
        g = basic.mul(p, basic.sub(dp, self.delta[:, i, None]))
        ds = self.body(("gradient",), i, j, {0: dot, 1: g}).get("gradient", g)
        return dot, live, kept, p, g, ds


def shifted(body: Body, origin: tuple[int, ...]) -> Body:
    """The body with its iteration space moved to start at ``origin``."""

    def moved(attr: Any) -> Any:
        if isinstance(attr, Affine):
            return attr.shifted(sum(s * o for s, o in zip(attr.strides, origin, strict=True)))
        if isinstance(attr, Guard):
            return Guard(moved(attr.index), attr.low, attr.high)
        return tuple(map(moved, attr)) if isinstance(attr, tuple) else attr

    return Body(tuple(Instr(i.kind, i.dtype, i.args, tuple(map(moved, i.attrs))) for i in body.instrs))


def dots(a: Array, b: Array) -> Array:
    """a [H, M, C] and b [H, N, C]: products of rows [H, M, N], in the order of a matrix product."""
    total: Array | None = None
    left, right = (np.ascontiguousarray(np.moveaxis(x, -1, 0)) for x in (a, b))
    for start in range(0, a.shape[-1], BLOCK_K):
        block = np.zeros((a.shape[0], a.shape[1], b.shape[1]), np.float32)
        for c in range(start, min(start + BLOCK_K, a.shape[-1])):
            block = basic.add(block, basic.mul(left[c][:, :, None], right[c][:, None, :]))
        total = block if total is None else basic.add(total, block)
    assert total is not None
    return total


def weighted(weights: Array, rows: Array, use: Array) -> Array:
    """weights [H, M, N] times rows [H, N, C], from +0 in sequence over n where ``use`` [H, M, N]: [H, M, C]."""
    total = np.zeros((*weights.shape[:2], rows.shape[-1]), np.float32)
    for n in range(weights.shape[2]):
        more = basic.add(total, basic.mul(weights[:, :, n, None], rows[:, None, n]))
        total = np.where(use[:, :, n, None], more, total)
    return total


def blocks(length: int) -> Iterator[slice]:
    for start in range(0, length, BLOCK):
        yield slice(start, min(start + BLOCK, length))


def _block(one: _Sequence, i: slice, j: slice) -> tuple[Array, Array, Array]:
    """Of a block of keys the maximum of the scores and the sum of the weights [H, rows], and the weighted values."""
    _, score, live = one.scores(i, j)
    score = np.where(live, score, NONE)
    peak = maxima(score)
    w = np.where(live, evaluate("exp", basic.sub(score, peak[..., None])), np.float32(0))
    part = weighted(w, one.of_heads(one.v[:, j]), one.kept(i, j, live))
    return peak, np.asarray(fold_lanes("add", w)), part


class _Softmax:
    """Blocks merged left to right: the running maximum, sum of weights and weighted sum of values of rows [H, rows]."""

    def __init__(self, rows: tuple[int, int], width: int):
        self.top, self.weight = np.full(rows, NONE), np.zeros(rows, np.float32)
        self.o = np.zeros((*rows, width), np.float32)

    def merge(self, peak: Array, total: Array, part: Array) -> None:
        fresh, empty = self.top == NONE, peak == NONE
        higher = basic.maximum(self.top, peak)
        before, now = evaluate("softmax_rescale", self.top, higher), evaluate("softmax_rescale", peak, higher)
        both = basic.add(basic.mul(self.weight, before), basic.mul(total, now))
        self.weight = np.where(fresh, total, np.where(empty, self.weight, both))
        both = basic.add(basic.mul(self.o, before[..., None]), basic.mul(part, now[..., None]))
        self.o = np.where(fresh[..., None], part, np.where(empty[..., None], self.o, both))
        self.top = higher

    def store(self, one: _Sequence, i: slice, results: _Results) -> None:
        """The sink merged, and what is asked for put into the results."""
        spec, unseen = one.spec, self.top == NONE
        if "sinks" in one.operands:
            slot, index = one.operands["sinks"]
            sink = one._view(slot, index.offset, index.strides, (spec.heads,))[:, None]
            sink = np.broadcast_to(sink, self.top.shape)
            higher = basic.maximum(self.top, sink)
            fade, extra = evaluate("softmax_rescale", self.top, higher), evaluate("softmax_rescale", sink, higher)
            both = basic.add(basic.mul(self.weight, fade), extra)
            self.weight = np.where(unseen, extra, np.where(sink == NONE, self.weight, both))
            self.o = basic.mul(self.o, np.where(sink == NONE, np.float32(1), fade)[..., None])
            self.top = higher
        out = results.rows("out", one, spec.heads, spec.value_width)
        if out is not None:
            value = basic.div(self.o, self.weight[..., None])
            if spec.keep_scale != 1.0:
                value = basic.mul(value, np.full(1, spec.keep_scale, np.float32))
            out[:, i] = np.where(unseen[..., None], np.float32(0), value)
        found = {"lse": basic.add(self.top, evaluate("log", self.weight)), "peak": self.top, "weight": self.weight}
        for name, values in found.items():
            line = results.line(name, one)
            if line is not None:
                line[:, i] = values


def _forward(one: _Sequence, results: _Results) -> None:
    for i in one.pieces(one.queries):
        softmax = _Softmax((one.spec.heads, i.stop - i.start), one.spec.value_width)
        for j in blocks(one.keys):
            softmax.merge(*_block(one, i, j))
        softmax.store(one, i, results)


def _split(one: _Sequence, results: _Results) -> None:
    count = -(-one.keys // BLOCK)
    shape = (one.spec.heads, one.queries, count)
    into = []
    for name, more in (("peaks", ()), ("sums", ()), ("parts", (one.spec.value_width,))):
        size = int(np.prod((*shape, *more)))
        into.append(results.flat[name][one.b * size :][:size].reshape(*shape, *more))
    for n, j in enumerate(blocks(one.keys)):
        for whole, found in zip(into, _block(one, slice(0, one.queries), j), strict=True):
            whole[:, :, n] = found


def _merge(one: _Sequence, results: _Results) -> None:
    spec, count = one.spec, -(-one.keys // BLOCK)
    shape = (spec.heads, one.queries, count)

    def operand(name: str, *more: int) -> Array:
        slot, index = one.operands[name]
        return one._view(slot, index.offset + index.strides[0] * one.b, index.strides[1:], (*shape, *more))

    peaks, sums, parts = operand("peaks"), operand("sums"), operand("parts", spec.value_width)
    softmax = _Softmax(shape[:2], spec.value_width)
    for n in range(count):
        softmax.merge(peaks[:, :, n], sums[:, :, n], parts[:, :, n])
    softmax.store(one, slice(0, one.queries), results)


def maxima(x: Array) -> Array:
    """The maximum over the last axis; NaN if there is one."""
    return np.asarray(fold_lanes("maximum", x))


def _add_blocks(total: Array, fresh: Array, part: Array, some: Array) -> tuple[Array, Array]:
    """A block's sums [H, M, C] added to those before where it has a live pair [H, M]; the first is taken as it is."""
    new = np.where(fresh[..., None], part, basic.add(total, part))
    return np.where(some[..., None], new, total), fresh & ~some


def _queries(one: _Sequence, results: _Results) -> None:
    spec = one.spec
    dq = results.rows("dq", one, spec.heads, spec.key_width)
    assert dq is not None
    for i in one.pieces(one.queries):
        total = np.zeros((spec.heads, i.stop - i.start, spec.key_width), np.float32)
        fresh = np.ones(total.shape[:2], bool)
        for j in blocks(one.keys):
            _, live, _, _, _, ds = one.backward(i, j)
            part = weighted(ds, one.of_heads(one.k[:, j]), live)
            total, fresh = _add_blocks(total, fresh, part, np.any(live, axis=2))
        dq[:, i] = total


def _keys(one: _Sequence, results: _Results) -> None:
    spec = one.spec
    kv = spec.heads // spec.group
    dk, dv = (results.rows(*x) for x in (("dk", one, kv, spec.key_width), ("dv", one, kv, spec.value_width)))
    for j in one.pieces(one.keys):
        rows = (kv, j.stop - j.start)
        widths = {"dk": spec.key_width, "dv": spec.value_width}
        totals = {name: np.zeros((*rows, width), np.float32) for name, width in widths.items()}
        fresh = {name: np.ones(rows, bool) for name in totals}
        for i in blocks(one.queries):
            _, live, kept, p, _, ds = (np.swapaxes(x, 1, 2) for x in one.backward(i, j))
            parts = {
                "dk": (weighted(ds, one.q[:, i], live), np.any(live, axis=2)),
                "dv": (weighted(p, one.do[:, i], kept), np.any(kept, axis=2)),
            }
            for name, (part, some) in parts.items():
                for member in range(spec.group):
                    mine = slice(member, None, spec.group)
                    totals[name], fresh[name] = _add_blocks(totals[name], fresh[name], part[mine], some[mine])
        if dk is not None:
            dk[:, j] = totals["dk"]
        if dv is not None:
            dv[:, j] = totals["dv"]


def _pairs(one: _Sequence, results: _Results) -> None:
    _, queries, keys, _ = results.sizes
    size = one.spec.heads * queries * keys
    dot_out, g_out, live_out = (
        results.flat[name][one.b * size :][:size].reshape(one.spec.heads, queries, keys)
        if name in results.flat
        else None
        for name in ("dot", "g", "live")
    )
    for out in (dot_out, g_out, live_out):
        if out is not None:
            out[:] = 0.0
    for i in one.pieces(one.queries):
        for j in blocks(one.keys):
            dot, live, _, _, g, _ = one.backward(i, j)
            if dot_out is not None:
                dot_out[:, i, j] = np.where(live, dot, np.float32(0))
            if live_out is not None:
                live_out[:, i, j] = live
            if g_out is not None:
                g_out[:, i, j] = np.where(live, g, np.float32(0))
