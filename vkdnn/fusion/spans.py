"""Cuts folds longer than a span into folds of spans and a fold of their results, before kernels are chosen.

The order of a long fold is defined by this cut (DESIGN "Orders"), so it must not depend on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkdnn.ir import build
from vkdnn.ir.node import Node, make, toposort
from vkdnn.kernels.fold import SPAN


def cut_folds(outputs: Sequence[Node]) -> list[Node]:
    """The same values, without folds over more than SPAN elements."""
    order = toposort(outputs, stop=lambda n: n.buffer is not None)
    if not any(_is_long(n) for n in order):
        return list(outputs)
    new: dict[Node, Node] = {}
    for node in order:
        if node.buffer is not None or not node.args:
            new[node] = node
            continue
        args = tuple(new[a] for a in node.args)
        if _is_long(node):
            new[node] = _cut(node, args[0])
        elif all(a is b for a, b in zip(args, node.args, strict=True)):
            new[node] = node
        else:
            new[node] = make(node.kind, args, node.attrs, node.shape, node.dtype)
    return [new[n] for n in outputs]


def _is_long(node: Node) -> bool:
    return node.kind == "fold" and node.buffer is None and _length(node) > SPAN


def _length(node: Node) -> int:
    return math.prod(node.args[0].shape[a] for a in node.attrs[1])


def _cut(node: Node, x: Node) -> Node:
    op, axes = node.attrs
    rest = tuple(a for a in range(x.ndim) if a not in axes)
    rows = tuple(x.shape[a] for a in rest)
    return build.reshape(_fold_rows(op, build.reshape(build.permute(x, rest + axes), (*rows, -1))), node.shape)


def _fold_rows(op: str, x: Node) -> Node:
    """x [..., n] folded over its last axis, of any length."""
    rows, n = x.shape[:-1], x.shape[-1]
    last = (x.ndim - 1,)
    if n <= SPAN:
        return build.fold(op, x, last)
    whole = n // SPAN
    ones = (1,) * x.ndim
    start = (0,) * len(rows)
    spans = build.reshape(build.slice_(x, (*start, 0), (*rows, whole * SPAN), ones), (*rows, whole, SPAN))
    folded = build.reshape(build.fold(op, spans, (x.ndim,)), (*rows, whole))
    if n % SPAN:
        tail = build.fold(op, build.slice_(x, (*start, whole * SPAN), (*rows, n % SPAN), ones), last)
        joined = (*rows, whole + 1)
        is_whole = build.iota(joined, len(rows)) < whole
        left = build.pad(folded, (*start, 0), (*start, 1))
        right = build.pad(tail, (*start, whole), (*start, 0))
        folded = build.apply("where", is_whole, left, right)
    return _fold_rows(op, folded)
