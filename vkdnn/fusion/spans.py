"""Cuts what is too long for one kernel before kernels are chosen: folds into spans, attention into its blocks.

The order of a long fold is defined by this cut (DESIGN "Orders"), so it must not depend on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkdnn.fusion.attention import is_long_attention, split_attention
from vkdnn.ir import build
from vkdnn.ir.dims import Dim, largest
from vkdnn.ir.monoids import MONOIDS
from vkdnn.ir.node import Node, const, make, toposort
from vkdnn.kernels.fold import SPAN


def cut_long(outputs: Sequence[Node]) -> list[Node]:
    """The same values, without folds over more than SPAN elements, and with long attention spread over its blocks."""
    order = toposort(outputs, stop=lambda n: n.buffer is not None)
    if not any(_is_long(n) or is_long_attention(n) for n in order):
        return list(outputs)
    new: dict[Node, Node] = {}
    for node in order:
        if node.buffer is not None or not node.args:
            new[node] = node
            continue
        args = tuple(new[a] for a in node.args)
        if _is_long(node):
            new[node] = _cut(node, args)
        elif is_long_attention(node):
            new[node] = split_attention(node, args)
        elif all(a is b for a, b in zip(args, node.args, strict=True)):
            new[node] = node
        else:
            new[node] = make(node.kind, args, node.attrs, node.shape, node.dtype)
    return [new[n] for n in outputs]


def _is_long(node: Node) -> bool:
    return node.kind == "fold" and node.buffer is None and largest(_length(node)) > SPAN


def _length(node: Node) -> int:
    return math.prod(node.args[0].shape[a] for a in node.attrs[1])


def _cut(node: Node, fields: tuple[Node, ...]) -> Node:
    name, axes, k = node.attrs
    x = fields[0]
    rest = tuple(a for a in range(x.ndim) if a not in axes)
    rows = tuple(x.shape[a] for a in rest)
    flat = tuple(build.reshape(build.permute(f, rest + axes), (*rows, -1)) for f in fields)
    return build.reshape(_fold_rows(name, flat)[k], node.shape)


def _fold_rows(name: str, fields: tuple[Node, ...]) -> tuple[Node, ...]:
    """Fields [..., n] folded over their last axis, of any length."""
    rows, n = fields[0].shape[:-1], fields[0].shape[-1]
    if largest(n) <= SPAN:
        return build.fold_fields(name, fields, (len(rows),))
    if isinstance(n, Dim):
        return _fold_filled(name, fields)
    whole = n // SPAN
    ones = (1,) * (len(rows) + 1)
    start = (0,) * len(rows)
    spans = tuple(
        build.reshape(build.slice_(x, (*start, 0), (*rows, whole * SPAN), ones), (*rows, whole, SPAN)) for x in fields
    )
    folded = tuple(build.reshape(x, (*rows, whole)) for x in build.fold_fields(name, spans, (len(rows) + 1,)))
    if n % SPAN:
        rest = tuple(build.slice_(x, (*start, whole * SPAN), (*rows, n % SPAN), ones) for x in fields)
        tail = build.fold_fields(name, rest, (len(rows),))
        is_whole = build.iota((*rows, whole + 1), len(rows)) < whole
        folded = tuple(
            build.apply(
                "where", is_whole, build.pad(x, (*start, 0), (*start, 1)), build.pad(y, (*start, whole), (*start, 0))
            )
            for x, y in zip(folded, tail, strict=True)
        )
    return _fold_rows(name, folded)


def _fold_filled(name: str, fields: tuple[Node, ...]) -> tuple[Node, ...]:
    """_fold_rows() of a symbolic length: the last span is filled up with the identity, which changes no bit, and what
    one span alone gives is folded once more, which changes none either."""
    rows, n = fields[0].shape[:-1], fields[0].shape[-1]
    count = -(-n // SPAN)
    inside = build.iota((*rows, count * SPAN), len(rows)) < n
    none = (0,) * len(rows)
    filled = []
    for x, field in zip(fields, MONOIDS[name].fields, strict=True):
        padded = build.pad(x, (*none, 0), (*none, count * SPAN - n))
        identity = const(field.identity[x.dtype.category], x.dtype)
        filled.append(build.reshape(build.apply("where", inside, padded, identity), (*rows, count, SPAN)))
    folded = build.fold_fields(name, tuple(filled), (len(rows) + 1,))
    return _fold_rows(name, tuple(build.reshape(x, (*rows, count)) for x in folded))
