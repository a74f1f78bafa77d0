"""Attention and its gradients in float64, with the whole matrix of scores; see vkdnn.kernels.attention for what they
are. Packed sequences are spread over [B, T], then they are as any others; blocks of keys have no meaning here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vkdnn.check.wide_folds import extreme
from vkdnn.check.wide_rows import divide, log, maximum, softmax_rescale
from vkdnn.check.wide_sums import masked_product
from vkdnn.ir.node import Node
from vkdnn.kernels.attention import BLOCK, RESULTS, AttentionCall

Array = np.ndarray[Any, Any]
Named = dict[str, Array]


def attention(node: Node, prepare: Callable[..., Any]) -> Callable[..., tuple[Array, ...]]:
    """The function of a call's arguments that gives its results, in the role it has."""
    call: AttentionCall = node.attrs[1]
    shapes = [shape for shape, _ in node.attrs[2]]
    mods = call.mods
    roots = {} if call.role == "merge" else {n: r for n, r in mods.roots.items() if n not in ("low", "high")}
    leaves = [n for n in (mods.dot, mods.upstream) if n is not None]
    body = prepare(list(roots.values()), [*leaves, *mods.captured])

    def run(*args: Array) -> tuple[Array, ...]:
        given = dict(zip(call.names, args, strict=False))
        if call.role == "merge":
            found = _finished(call, *_merged(given), given.get("sinks"))
            return _laid_out(call, found, shapes, None, None)
        queries = _Tokens(given.get("starts_q"), call.queries)
        keys = _Tokens(given.get("starts_k"), call.keys)
        captured = args[len(call.names) :]

        def values(dot: Array, upstream: Array | None = None) -> Named:
            """The values of the body's expressions, over all pairs."""
            first = [dot, np.zeros_like(dot) if upstream is None else upstream][: len(leaves)]
            return dict(zip(roots, (np.broadcast_to(x, dot.shape) for x in body(*first, *captured)), strict=True))

        pairs = _Pairs(call, given, queries, keys, values)
        return _laid_out(call, _ROLES[call.role](call, given, pairs), shapes, queries, keys)

    return run


class _Tokens:
    """Where the rows of queries or keys lie: [B, T], or one sequence after the other as ``starts`` [B + 1] say."""

    def __init__(self, starts: Array | None, length: int):
        self.packed = starts is not None
        if starts is not None:
            at = starts[:-1, None] + np.arange(length)
            self.inside = at < starts[1:, None]
            self.at = np.where(self.inside, at, 0)

    def spread(self, x: Array, axis: int) -> Array:
        """An array whose ``axis`` are packed tokens with an axis of sequences in front; what is spare is 0."""
        if not self.packed:
            return x
        if not x.shape[axis]:
            return np.zeros((self.at.shape[0], *x.shape[:axis], self.at.shape[1], *x.shape[axis + 1 :]), x.dtype)
        taken = np.moveaxis(np.take(x, self.at, axis), axis, 0)
        inside = self.inside.reshape(self.at.shape[0], *(1,) * axis, self.at.shape[1], *(1,) * (x.ndim - axis - 1))
        return np.where(inside, taken, 0)

    def packed_again(self, x: Array, axis: int, shape: tuple[int, ...]) -> Array:
        """The inverse of spread()."""
        if not self.packed:
            return x
        out = np.zeros((shape[axis], *(n for a, n in enumerate(shape) if a != axis)), x.dtype)
        out[self.at[self.inside]] = np.moveaxis(x, axis + 1, 1)[self.inside]
        return np.moveaxis(out, 0, axis)


class _Pairs:
    """Operands as [B, H, T, C], the dot products of all pairs, and what the body makes of them."""

    def __init__(
        self,
        call: AttentionCall,
        given: Mapping[str, Array],
        queries: _Tokens,
        keys: _Tokens,
        values: Callable[..., Named],
    ):
        self._values = values
        self.group = call.group
        self.q = np.swapaxes(queries.spread(given["q"], 0), 1, 2)
        self.k, self.v = (self._of_heads(np.swapaxes(keys.spread(given[n], 0), 1, 2)) for n in ("k", "v"))
        self.dot = np.matmul(self.q, np.swapaxes(self.k, 2, 3))
        body = values(self.dot)
        self.score = body["score"]
        self.live = np.real(self.score) != -np.inf
        for tokens, index in ((queries, np.s_[:, None, :, None]), (keys, np.s_[:, None, None, :])):
            if tokens.packed:
                self.live = self.live & tokens.inside[index]
        if "visible" in body:
            self.live = self.live & body["visible"]
        self.kept = self.live & body["kept"] if "kept" in body else self.live
        if "do" in given:
            self.do = np.swapaxes(queries.spread(given["do"], 0), 1, 2)
            self._backward(*(queries.spread(given[n], 1)[..., None] for n in ("peak", "inverse", "delta")))

    def _of_heads(self, x: Array) -> Array:
        return np.repeat(x, self.group, axis=1)

    def of_groups(self, x: Array) -> Array:
        """[B, H, T, C] -> [B, Hk, T, C]: the sum over the heads that share a head of keys."""
        return np.asarray(x.reshape(x.shape[0], -1, self.group, *x.shape[2:]).sum(2))

    def _backward(self, peak: Array, inverse: Array, delta: Array) -> None:
        self.p = np.where(self.live, np.exp(self.score - peak) * inverse, 0.0)
        dp = np.where(self.kept, np.matmul(self.do, np.swapaxes(self.v, 2, 3)), 0.0)
        self.g = np.where(self.live, self.p * (dp - delta), 0.0)
        self.ds = self._values(self.dot, self.g).get("gradient", self.g)


# ---- roles


def _block(pairs: _Pairs, keys: slice) -> tuple[Array, Array, Array]:
    """Of some keys the largest score, the sum of e**(score - that), and the values weighted so."""
    live, kept = pairs.live[..., keys], pairs.kept[..., keys]
    score = np.where(live, pairs.score[..., keys], -np.inf)
    if not score.shape[-1]:
        shape = score.shape[:-1]
        return np.full(shape, -np.inf), np.zeros(shape), np.zeros((*shape, pairs.v.shape[-1]))
    peak = extreme(score, (-1,))
    weight = np.where(live, np.exp(score - np.where(np.real(peak) == -np.inf, 0.0, peak)), 0.0)
    return peak[..., 0], weight.sum(-1), masked_product(weight, kept, pairs.v[..., keys, :])


def _finished(call: AttentionCall, peak: Array, weight: Array, part: Array, sinks: Array | None) -> Named:
    """The results of the forward pass: a sink takes its share, and sums become means."""
    unseen = np.real(peak) == -np.inf
    if sinks is not None:
        sink = np.broadcast_to(sinks[:, None], peak.shape)
        top = maximum(peak, sink)
        fade = np.where(np.real(sink) == -np.inf, 1.0, softmax_rescale(peak, top))
        weight, part = weight * fade + softmax_rescale(sink, top), part * fade[..., None]
        peak = top
    out = divide(part, weight[..., None]) * float(np.float32(call.keep_scale))
    return {
        "out": np.where(unseen[..., None], 0.0, out), "lse": peak + log(weight), "peak": peak, "weight": weight,
    }  # fmt: skip


def _forward(call: AttentionCall, given: Named, pairs: _Pairs) -> Named:
    return _finished(call, *_block(pairs, slice(None)), given.get("sinks"))


def _split(call: AttentionCall, given: Named, pairs: _Pairs) -> Named:
    blocks = [_block(pairs, slice(j, j + BLOCK)) for j in range(0, call.keys, BLOCK)]
    return {name: np.stack(x, 3) for name, x in zip(RESULTS["split"], zip(*blocks, strict=True), strict=True)}


def _merged(given: Named) -> tuple[Array, Array, Array]:
    peaks, sums, parts = (given[name] for name in RESULTS["split"])
    top = extreme(peaks, (-1,))
    share = softmax_rescale(peaks, top)
    return top[..., 0], (sums * share).sum(-1), (parts * share[..., None]).sum(-2)


def _queries(call: AttentionCall, given: Named, pairs: _Pairs) -> Named:
    return {"dq": masked_product(pairs.ds, pairs.live, pairs.k)}


def _keys(call: AttentionCall, given: Named, pairs: _Pairs) -> Named:
    ds, live, p, kept = (np.swapaxes(x, 2, 3) for x in (pairs.ds, pairs.live, pairs.p, pairs.kept))
    dk, dv = masked_product(ds, live, pairs.q), masked_product(p, kept, pairs.do)
    return {"dk": pairs.of_groups(dk), "dv": pairs.of_groups(dv)}


def _of_pairs(call: AttentionCall, given: Named, pairs: _Pairs) -> Named:
    return {"dot": np.where(pairs.live, pairs.dot, 0.0), "g": pairs.g, "live": pairs.live.astype(np.float64)}


_ROLES: dict[str, Callable[[AttentionCall, Named, _Pairs], Named]] = {
    "forward": _forward, "split": _split, "queries": _queries, "keys": _keys, "pairs": _of_pairs,
}  # fmt: skip


def _laid_out(
    call: AttentionCall, found: Named, shapes: list[tuple[int, ...]], queries: _Tokens | None, keys: _Tokens | None
) -> tuple[Array, ...]:
    """Results as the call has them: rows [B, T, H, C] or packed [T, H, C], lines [B, H, T] or [H, T]."""
    results = []
    for name, shape in zip(RESULTS[call.role], shapes, strict=True):
        x = found[name]
        tokens = keys if name in ("dk", "dv") else queries
        if name in ("out", "dq", "dk", "dv"):
            x = np.swapaxes(x, 1, 2)
            x = tokens.packed_again(x, 0, shape) if tokens else x
        elif name in ("lse", "peak", "weight") and tokens:
            x = tokens.packed_again(x, 1, shape)
        results.append(x)
    return tuple(results)
