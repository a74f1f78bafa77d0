"""Derivatives of folds, one rule a monoid: from the gradient of a field of the result to those of the elements.

Each field is differentiated by itself; what several fields contribute is added by the reverse pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vkdnn.errors import VkdnnError
from vkdnn.ir import build
from vkdnn.ir.node import Node, make
from vkdnn.kernels.cumulate import cumulate

Gradients = Sequence[Node | None]


def fold_rule(node: Node, g: Node) -> Gradients:
    """Gradients of the elements' fields."""
    if node.op not in _RULES:
        raise VkdnnError(f"grad: {node.op} has no derivative; put vk.stop_gradient around it to take it as a constant")
    return _RULES[node.op](node, build.broadcast_to(g, node.args[0].shape), g)


def _result(node: Node, k: int) -> Node:
    """Field k of the same fold, repeated for each element."""
    name, axes, _ = node.attrs
    x = node.args[k]
    return build.broadcast_to(make("fold", node.args, (name, axes, k), node.shape, x.dtype), x.shape)


def _add(node: Node, spread: Node, g: Node) -> Gradients:
    return (spread,)


def _mul(node: Node, spread: Node, g: Node) -> Gradients:
    return (spread * _product_of_others(node.args[0], node.attrs[1]),)


def _extreme(node: Node, spread: Node, g: Node) -> Gradients:
    """Shared by all elements that are the extreme."""
    x = node.args[0]
    hit = build.apply("equal", x, build.broadcast_to(node, x.shape))
    ties = build.fold("add", build.apply("to_float32", hit), node.attrs[1])
    return (build.apply("where", hit, build.broadcast_to(g / ties, x.shape), 0.0),)


def _logsumexp(node: Node, spread: Node, g: Node) -> Gradients:
    """The maximum is a shift, taken as a constant: for functions of m + log(total), which it does not change."""
    if node.attrs[2] == 0:
        return (None, None)
    top, total = node.args
    share = build.apply("softmax_rescale", top, _result(node, 0))
    return (spread * (total * share), spread * share)


def _moments(node: Node, spread: Node, g: Node) -> Gradients:
    """Of the mean: count / total; of the squares: 2 count (mean - mean of all) and 1. The rest is constant."""
    count, mean, rest, _ = node.args
    if node.attrs[2] == 1:
        return (None, spread * (count / _result(node, 0)), None, None)
    if node.attrs[2] == 3:
        deviation = (mean - _result(node, 1)) + (rest - _result(node, 2))
        return (None, spread * (2.0 * count * deviation), None, spread)
    return (None,) * 4


_RULES: dict[str, Callable[[Node, Node, Node], Gradients]] = {
    "add": _add,
    "mul": _mul,
    "maximum": _extreme,
    "minimum": _extreme,
    "logsumexp": _logsumexp,
    "moments": _moments,
}


def _product_of_others(x: Node, axes: tuple[int, ...]) -> Node:
    """Of each element the product of all others along the axes: running products from both ends, right with zeros."""
    order = (*(a for a in range(x.ndim) if a not in axes), *axes)
    moved = build.permute(x, order)
    rows = math.prod(n for a, n in enumerate(x.shape) if a not in axes)
    flat = build.reshape(moved, (rows, math.prod(x.shape[a] for a in axes)))
    backwards = build.slice_(flat, (0, flat.shape[1] - 1), flat.shape, (1, -1))
    right = build.slice_(_product_before(backwards), (0, flat.shape[1] - 1), flat.shape, (1, -1))
    others = build.reshape(_product_before(flat) * right, moved.shape)
    return build.permute(others, tuple(order.index(a) for a in range(x.ndim)))


def _product_before(x: Node) -> Node:
    """x [rows, n]: the product of the elements before each; 1 for the first."""
    rows, n = x.shape
    running = build.slice_(cumulate("mul", x, 1), (0, 0), (rows, n - 1), (1, 1))
    return build.apply("where", build.iota(x.shape, 1) == 0, 1.0, build.pad(running, (0, 1), (0, 0)))
