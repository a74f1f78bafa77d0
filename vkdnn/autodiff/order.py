"""Derivatives of cumulations, recurrences and scatter-adds, in terms of the same families.

A cumulation is a chain of calls; the rule of its last one gives the gradient of the whole and nothing to the others, so
it must be called on graphs that vkdnn.kernels.cumulate has built.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkdnn.ir import build
from vkdnn.ir.node import Node
from vkdnn.kernels import cumulate
from vkdnn.kernels.scatter import numbers, scatter_along_node


def _flipped(x: Node) -> Node:
    """x [outer, length, inner] with its middle axis reversed."""
    return build.slice_(x, (0, x.shape[1] - 1, 0), x.shape, (1, -1, 1))


def _later(x: Node) -> Node:
    """x moved on by one along the middle axis, 0 first."""
    outer, length, inner = x.shape
    return build.pad(build.slice_(x, (0, 0, 0), (outer, length - 1, inner), (1, 1, 1)), (0, 1, 0), (0, 0, 0))


def _reversed_recurrence(a: Node, b: Node) -> Node:
    """h_i = b_i + a_(i+1) h_(i+1)."""
    return _flipped(cumulate.recurrence(_later(_flipped(a)), _flipped(b), 1))


def cumulate_rule(call: Node, results: dict[int, Node], gradients: dict[int, Node]) -> Sequence[Node | None]:
    """Sums: the reversed sum. Products p: g_i goes back by h_i = g_i + x_(i+1) h_(i+1), and x_i gets p_(i-1) h_i, which
    is right with zeros among x. Extremes: to the first element that holds the running one. Recurrences: as products.
    """
    form, x, y, g = call.attrs[1].form, call.args[0], results[0], gradients[0]
    carried: list[Node | None] = [None] * (len(call.args) - 1)
    first = build.apply("equal", build.iota(x.shape, 1), 0)
    if form == "add":
        return [_flipped(cumulate.cumulate("add", _flipped(g), 1)), *carried]
    if form == "mul":
        h = _reversed_recurrence(x, g)
        slope = build.apply("where", first, 1.0, _later(y)) * h
        return [build.apply("where", build.apply("equal", h, 0.0), h, slope), *carried]  # p may have overflowed
    if form in cumulate.OPERATIONS:
        before = _later(y)
        beyond = before < x if form == "maximum" else x < before
        beyond = beyond | (build.apply("isnan", x) & ~build.apply("isnan", before))
        start = build.apply("where", build.apply("bitwise_or", first, beyond), build.iota(x.shape, 1), 0)
        return [scatter_along_node(cumulate.cumulate("maximum", start, 1), g, x.shape, 1), *carried]
    h = _reversed_recurrence(x, g)
    return [build.apply("where", first, 0.0, h * _later(y)), h, *carried[1:]]


def scatter_rule(call: Node, results: dict[int, Node], gradients: dict[int, Node]) -> Sequence[Node | None]:
    """Every source row gets the gradient of the table row it went to."""
    found: list[Node | None] = [None, None, None, build.take(gradients[0], numbers(call))]
    return found + [gradients[0]] * (len(call.args) - 4)


ORDER_RULES = {cumulate.FAMILY: cumulate_rule, "scatter": scatter_rule}
