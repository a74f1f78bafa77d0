"""Derivative of attention: probabilities are computed again from what the forward pass kept of each row.

It must give nothing to pairs that were not seen, and add in the order written in vkdnn.kernels.attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from vkdnn.dtypes import float32
from vkdnn.errors import ShapeError, VkdnnError
from vkdnn.ir import build
from vkdnn.ir.node import MAX_ELEMENTS, Node, make, never_arrays
from vkdnn.ir.rewrite import placeholder, spread, substitute
from vkdnn.kernels.attention import FAMILY, LSE, OUT, PEAK, WEIGHT, AttentionCall
from vkdnn.kernels.scan_dot import row_dot

Pullback = Callable[[Sequence[Node], Sequence[Node], Sequence[Node]], "list[Node | None]"]


def attention_rule(
    call: Node, gradients: dict[int, Node], wanted: Sequence[bool], pullback: Pullback
) -> Sequence[Node | None]:
    """Gradients of the arguments of a forward call, as far as ``wanted``; ``pullback`` is that of vkdnn.autodiff.vjp.

    Raises ShapeError where what mods capture wants a gradient and there are too many pairs for it.
    """
    forward: AttentionCall = call.attrs[1]
    if forward.role != "forward":
        raise VkdnnError("grad: the gradient of attention has no derivative; take first derivatives of attention only")
    shapes = call.attrs[2]

    def result(k: int) -> Node:
        return make("result", (call,), (k,), *shapes[k])

    given = dict(zip(forward.names, call.args, strict=False))
    captured = call.args[len(forward.names) :]
    do = gradients.get(OUT, build.full(shapes[OUT][0], 0.0))
    delta = _of_heads(row_dot(do, result(OUT)))
    if LSE in gradients:
        delta = delta - gradients[LSE]
    weight = result(WEIGHT)
    inverse = build.apply("where", build.apply("equal", weight, 0.0), 0.0, 1.0 / weight)
    if forward.keep_scale != 1.0:
        do = do * forward.keep_scale
    mods = forward.mods
    upstream = placeholder("upstream", forward.space, float32)
    with never_arrays():
        (slope,) = pullback([mods.score], [upstream], [mods.dot])
        mods = replace(mods, upstream=upstream, gradient=build.full(forward.space, 0.0) if slope is None else slope)
    fixed = [n for n in ("q", "k", "v", "starts_q", "starts_k") if n in given]
    rows = {"do": do, "peak": result(PEAK), "inverse": inverse, "delta": delta}
    names = (*fixed, *rows)
    args = (*(given[n] for n in fixed), *rows.values(), *captured)

    def backward(role: str, *results: Node | tuple[int, ...]) -> list[Node]:
        shapes = tuple((r.shape if isinstance(r, Node) else r, float32) for r in results)
        return build.call(FAMILY, args, replace(forward, role=role, names=names, mods=mods), shapes)

    (dq,) = backward("queries", given["q"])
    found: dict[str, Node | None] = {"q": dq}
    found["k"], found["v"] = backward("keys", given["k"], given["v"])
    if "sinks" in given:
        found["sinks"] = _sinks(given["sinks"], result(PEAK), inverse, delta)
    asked = [n for n, want in zip(mods.captured, wanted[len(forward.names) :], strict=True) if want]
    asked = [n for n in asked if n.dtype.category == "f"]
    of_captured: dict[Node, Node | None] = {}
    if asked:
        if (pairs := math.prod(forward.space)) > MAX_ELEMENTS:
            raise ShapeError(
                f"attention: {pairs} pairs of queries and keys, expected at most {MAX_ELEMENTS} for gradients of bias, "
                "alibi_slopes and what mods capture; put vk.stop_gradient around these, or split the batch or the heads"
            )
        dot, g, live = backward("pairs", *(forward.space,) * 3)
        actual = dict(zip(mods.captured, captured, strict=True))
        # Aliases keep what is captured apart from the same arrays elsewhere in the expression.
        apart = {n: build.alias(actual[n]) for n in mods.captured}
        (score,) = substitute([mods.score], {mods.dot: dot, **apart})
        wrt = [apart[n] for n in asked]
        of_captured = dict(zip(asked, _of_seen_pairs(score, dot, g, live, wrt, pullback), strict=True))
    return [*(found.get(n) for n in forward.names), *(of_captured.get(n) for n in mods.captured)]


def _of_seen_pairs(
    score: Node, dot: Node, g: Node, live: Node, wrt: Sequence[Node], pullback: Pullback
) -> list[Node | None]:
    """Gradients of the nodes ``wrt`` in an elementwise ``score`` of ``dot``.

    Where a pair is not live g is 0, but its products with what is infinite or NaN there are not: contributions are
    chosen pair by pair before any of them are added.
    """
    known = {dot: dot}
    whole = spread(score, g.shape, known)
    entries = [n for n in dict.fromkeys(known.values()) if n is not dot and n.kind != "map" and n.dtype.category == "f"]
    slopes = pullback([whole], [g], entries)
    seen = build.apply("not_equal", live, 0.0)
    found = {n: build.apply("where", seen, s, 0.0) for n, s in zip(entries, slopes, strict=True) if s is not None}
    return pullback(list(found), list(found.values()), wrt)


def _of_heads(x: Node) -> Node:
    """[B, T, H] -> [B, H, T]; packed [T, H] -> [H, T]."""
    return build.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _sinks(sinks: Node, peak: Node, inverse: Node, delta: Node) -> Node:
    """A sink takes part of every row of its head and gives no value: its gradient is the sum of -p delta."""
    heads = (*(1,) * (peak.ndim - 2), sinks.shape[0], 1)
    sink = build.broadcast_to(build.reshape(sinks, heads), peak.shape)
    lost = -(build.apply("softmax_rescale", sink, peak) * inverse * delta)
    axes = tuple(a for a in range(peak.ndim) if a != peak.ndim - 2)
    return build.reshape(build.fold("add", lost, axes), sinks.shape)
