"""The reverse pass: from gradients of results to gradients of the nodes they were computed from.

Elementwise rules come from the op table, the others from RULES below; contributions are added in an order fixed by
the graph. Nothing here may depend on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkdnn.autodiff import scans
from vkdnn.autodiff.attention import attention_rule
from vkdnn.autodiff.folds import fold_rule
from vkdnn.autodiff.order import ORDER_RULES
from vkdnn.autodiff.remat import Values
from vkdnn.errors import VkdnnError
from vkdnn.ir import build
from vkdnn.ir.node import Node
from vkdnn.ir.ops import OPS
from vkdnn.kernels.attention import FAMILY as ATTENTION
from vkdnn.kernels.scatter import scatter_add_node, scatter_along_node

Rule = Callable[[Node, Node], Sequence[Node | None]]
CALL_RULES = {**scans.CALL_RULES, **ORDER_RULES}


def pullback(results: Sequence[Node], gradients: Sequence[Node], wrt: Sequence[Node]) -> list[Node | None]:
    """Gradient of sum(results . gradients) with respect to each node of ``wrt``; None where it is identically zero.

    Gradients are float32, whatever the storage type of the nodes.
    """
    targets = set(wrt)
    values = Values(results, targets)
    reaches: set[Node] = set()
    for node in values.order:
        if node in targets or reaches.intersection(node.args):
            reaches.add(node)
    total: dict[Node, Node] = {}

    def accumulate(node: Node, gradient: Node | None) -> None:
        if gradient is not None and node in reaches and node.dtype.category == "f":
            total[node] = total[node] + gradient if node in total else gradient

    for result, gradient in zip(results, gradients, strict=True):
        accumulate(values.same(result), gradient)
    call_gradients: dict[Node, dict[int, Node]] = {}
    call_results: dict[Node, dict[int, Node]] = {}
    for node in reversed(values.order):
        if node in targets:
            continue
        if node.kind == "call":
            if node in call_gradients:
                wanted = [a in reaches for a in node.args]
                found = _call_rule(values[node], call_results[node], call_gradients[node], wanted)
                for arg, contribution in zip(node.args, found, strict=True):
                    accumulate(arg, contribution)
            continue
        if node not in total or not node.args:
            continue
        gradient = values.reached(node, total[node])
        if node.kind == "result":
            call_gradients.setdefault(node.args[0], {})[node.attrs[0]] = gradient
            call_results.setdefault(node.args[0], {})[node.attrs[0]] = values[node]
            continue
        rule = _map_rule if node.kind == "map" else RULES[node.kind]
        for arg, contribution in zip(node.args, rule(values[node], gradient), strict=True):
            accumulate(arg, contribution)
    return [total.get(node) for node in wrt]


def _call_rule(
    call: Node, results: dict[int, Node], gradients: dict[int, Node], wanted: Sequence[bool]
) -> Sequence[Node | None]:
    family = call.attrs[0]
    if family == ATTENTION:
        return attention_rule(call, gradients, wanted, pullback)
    if family not in CALL_RULES:
        raise VkdnnError(f"grad: {family} has no derivative")
    return CALL_RULES[family](call, results, gradients)


def _map_rule(node: Node, g: Node) -> Sequence[Node | None]:
    derivative = OPS[node.op].derivative
    if derivative is None:
        raise VkdnnError(f"grad: {node.op} has no derivative; put vk.stop_gradient around it to take it as a constant")
    found = derivative(g, node, *node.args)
    return [None if d is None else build.broadcast_to(build.as_node(d), node.shape) for d in found]


def _reshape(node: Node, g: Node) -> Sequence[Node | None]:
    return (build.reshape(g, node.args[0].shape),)


def _permute(node: Node, g: Node) -> Sequence[Node | None]:
    (axes,) = node.attrs
    return (build.permute(g, tuple(axes.index(i) for i in range(len(axes)))),)


def _broadcast(node: Node, g: Node) -> Sequence[Node | None]:
    shape = node.args[0].shape
    return (build.fold("add", g, tuple(i for i, n in enumerate(shape) if n == 1 and node.shape[i] != 1)),)


def _slice(node: Node, g: Node) -> Sequence[Node | None]:
    starts, steps = node.attrs
    shape = node.args[0].shape
    if any(t != 1 for t in steps):
        flipped = tuple(n - 1 if t < 0 else 0 for n, t in zip(node.shape, steps, strict=True))
        if all(abs(t) == 1 for t in steps):
            g = build.slice_(g, flipped, node.shape, tuple(1 if t > 0 else -1 for t in steps))
            starts = tuple(s - (n - 1) if t < 0 else s for s, n, t in zip(starts, node.shape, steps, strict=True))
        else:
            return (_spread(node, g),)
    return (build.pad(g, starts, tuple(n - s - m for n, s, m in zip(shape, starts, node.shape, strict=True))),)


def _spread(node: Node, g: Node) -> Node:
    """The gradient of a slice with steps, put back axis by axis: each element looks up its place in g."""
    starts, steps = node.attrs
    for axis, (start, step) in enumerate(zip(starts, steps, strict=True)):
        length = node.args[0].shape[axis]
        if length == g.shape[axis] and step == 1 and start == 0:
            continue
        shape = (*g.shape[:axis], length, *g.shape[axis + 1 :])
        away = (build.iota(shape, axis) - start) * (1 if step > 0 else -1)
        size = abs(step)
        at = away // size
        hit = (at * size == away) & (at >= 0) & (at < g.shape[axis])
        g = build.apply("where", hit, build.gather(g, at, axis), 0.0)
    return g


def _pad(node: Node, g: Node) -> Sequence[Node | None]:
    (before,) = node.attrs
    shape = node.args[0].shape
    return (build.slice_(g, before, shape, (1,) * len(shape)),)


def _take(node: Node, g: Node) -> Sequence[Node | None]:
    table, index = node.args
    return (scatter_add_node(index, g, table.shape), None)


def _gather(node: Node, g: Node) -> Sequence[Node | None]:
    table, index = node.args
    (axis,) = node.attrs
    if index.shape[axis] < 1 or index.shape[axis] > 1:  # other bits for -0.0: not to be left open for symbolic sizes
        return (scatter_along_node(index, g, table.shape, axis), None)
    hit = build.apply("equal", build.iota(table.shape, axis), build.broadcast_to(index, table.shape))
    return (build.apply("where", hit, build.broadcast_to(g, table.shape), 0.0), None)


def _matmul(node: Node, g: Node) -> Sequence[Node | None]:
    a, b = node.args

    def transposed(x: Node) -> Node:
        return build.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))

    da = build.matmul(g, transposed(b))
    if b.ndim == 2 and a.ndim > 2:
        a, g = build.reshape(a, (-1, a.shape[-1])), build.reshape(g, (-1, g.shape[-1]))
    return (da, build.matmul(transposed(a), g))


RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "permute": _permute,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "take": _take,
    "gather": _gather,
    "fold": fold_rule,
    "matmul": _matmul,
}
