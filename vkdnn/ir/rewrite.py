"""Rewriting expressions: exchanging nodes, and cutting an elementwise expression loose from the data it captures.

Nothing here changes a value: a rewritten expression computes what the old one did, of what was put in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from vkdnn.dtypes import DType, as_dtype
from vkdnn.ir import build
from vkdnn.ir.dims import never_above
from vkdnn.ir.node import VIEWS, Node, Shape, leaf, make, never_arrays, toposort


def substitute(roots: Sequence[Node], replacements: dict[Node, Node]) -> list[Node]:
    """The expressions with some of their nodes exchanged for others of the same shape and dtype."""
    new: dict[Node, Node] = {}
    for node in toposort(roots, stop=lambda n: n in replacements):
        if node in replacements:
            new[node] = replacements[node]
            continue
        args = tuple(new[a] for a in node.args)
        same = all(a is b for a, b in zip(args, node.args, strict=True))
        new[node] = node if same else make(node.kind, args, node.attrs, node.shape, node.dtype)
    return [new[r] for r in roots]


def placeholder(note: str, shape: Shape, dtype: DType) -> Node:
    """The leaf that stands for something; the same for equal arguments, so that equal expressions stay equal."""
    return _placeholder(note, shape, dtype.name)


@cache
def _placeholder(note: str, shape: Shape, dtype: str) -> Node:
    with never_arrays():
        return leaf(shape, as_dtype(dtype), note)


class NotElementwise(Exception):
    """``node`` uses the variable otherwise than element by element."""

    def __init__(self, node: Node):
        self.node = node


def capture(roots: Sequence[Node], variable: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """(expressions, captured nodes, placeholders): the roots as elementwise expressions of ``variable``, of index
    arrays and of placeholders that stand for the captured nodes.

    Captured is what depends neither on the variable nor on an index and is not widened by broadcasting: data, and
    what is computed from data alone. Views of it stay in the expressions. Raises NotElementwise where the variable
    goes through anything but maps.
    """
    order = toposort(roots, stop=lambda n: n.buffer is not None)
    varies, free = {variable}, set()
    for node in order:
        if node.kind == "iota":
            free.add(node)
        elif varies.intersection(node.args):
            if node.kind != "map":
                raise NotElementwise(node)
            varies.add(node)
        elif free.intersection(node.args):
            free.add(node)
    captured: dict[Node, Node] = {}

    def hold(node: Node) -> Node:
        if node not in captured:
            captured[node] = placeholder(f"captured {len(captured)}", node.shape, node.dtype)
        return captured[node]

    def rebuilt(node: Node, args: tuple[Node, ...]) -> Node:
        return make(node.kind, args, node.attrs, node.shape, node.dtype)

    def table(node: Node) -> Node:
        """What take and gather read from: an array in memory, or a view of one."""
        root = node
        while _is_view(root) and root.kind != "pad":
            root = root.args[0]
        if root is node or root.kind in VIEWS or root.kind in ("const", "iota"):
            return hold(node)  # nothing to look into: the view itself will be put into memory
        return rebuilt(node, (table(node.args[0]),))

    found: dict[Node, Node] = {}

    def visit(node: Node) -> Node:
        if node not in found:
            found[node] = _visit(node)
        return found[node]

    def _visit(node: Node) -> Node:
        if node is variable or node.kind in ("const", "iota"):
            return node
        if node.buffer is not None or node.kind == "leaf":
            return hold(node)
        if _is_view(node):
            return rebuilt(node, (visit(node.args[0]),))
        if node.kind == "map" and (node in varies or node in free or _widened(node)):
            return rebuilt(node, tuple(visit(a) for a in node.args))
        if node.kind in ("take", "gather") and node in free:
            return rebuilt(node, (table(node.args[0]), visit(node.args[1])))
        return hold(node)

    new = [visit(r) for r in roots]
    return new, list(captured), list(captured.values())


def _is_view(node: Node) -> bool:
    """A view whose elements every index finds: of reshapes only those that add and drop axes of length 1."""
    if node.kind == "reshape":
        lengths, before = ([n for n in x.shape if n != 1] for x in (node, node.args[0]))
        return not node.attrs and node.buffer is None and lengths == before
    return node.kind in VIEWS and node.buffer is None


def _widened(node: Node) -> bool:
    """Whether every argument of a map is a broadcast of something smaller."""

    def size(arg: Node) -> int:
        while _is_view(arg) and arg.kind in ("broadcast", "reshape", "permute"):
            arg = arg.args[0]
        return arg.size

    return not any(never_above(node.size, size(a)) for a in node.args)


def spread(node: Node, shape: Shape, known: dict[Node, Node]) -> Node:
    """An elementwise expression with every map at the full ``shape``; what is no map is broadcast to it.

    ``known`` holds what was spread already, and grows.
    """
    if node in known:
        return known[node]
    source = node
    while source.kind in ("broadcast", "reshape") and source.buffer is None and _adds_axes(source):
        source = source.args[0]
    if source.kind == "map" and source.buffer is None:
        lengths = (*(1,) * (len(shape) - source.ndim), *source.shape)
        args = [spread(build.reshape(a, lengths), shape, known) for a in source.args]
        new = make("map", args, source.attrs, shape, source.dtype)
    else:
        new = build.broadcast_to(node, shape)
    known[node] = new
    return new


def _adds_axes(node: Node) -> bool:
    """Whether a broadcast, or a reshape that adds leading axes of length 1."""
    before = node.args[0].shape
    return node.kind == "broadcast" or (not node.attrs and node.shape == (*(1,) * (node.ndim - len(before)), *before))
