"""Nodes that say when and where a value exists, never what it is.

For whoever reads them they are their first argument, and settle() takes away all that a schedule does not need: what is
left is the graph that would be there without them, with copies, and with edges to what must have run before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from vkdnn.ir import build
from vkdnn.ir.node import IDENTITIES, VIEWS, Node, Token, make, toposort

_numbers = itertools.count()


class Segment:
    """What differentiation computes again: the nodes between ``inputs``, made with input_of(), and those made with
    kept(). With ``offload`` inputs that are computed wait for it in the host's memory.
    """

    __slots__ = ("inputs", "number", "offload")

    def __init__(self, inputs: tuple[Node, ...], offload: bool):
        self.inputs, self.offload = inputs, offload
        self.number = next(_numbers)  # a segment inside another has the higher one

    def __repr__(self) -> str:
        return f"segment {self.number}" + (" offload" if self.offload else "")


def input_of(x: Node) -> Node:
    """x under an identity of its own, for a segment to begin with."""
    return make("after", (x,), (Token("input"),), x.shape, x.dtype)


def kept(x: Node, segment: Segment) -> Node:
    """x, a result of a segment."""
    return make("kept", (x,), (segment,), x.shape, x.dtype)


def after(x: Node, others: Iterable[Node]) -> Node:
    """x, but the kernels that read it run after ``others`` exist. Never the same node as x."""
    return make("after", (x, *(o for o in others if o.size)), (), x.shape, x.dtype)


def flush(x: Node) -> Node:
    """x; the submission ends with the kernel that writes it."""
    return make("flush", (x,), (), x.shape, x.dtype)


def copy(x: Node, place: str) -> Node:
    """x once more, in the memory of the "device" or of the "host"."""
    return make("copy", (x,), (place,), x.shape, x.dtype)


def on_host(node: Node) -> bool:
    """Whether a node's value lies in the host's memory."""
    return node.kind == "copy" and node.attrs[0] == "host"


def is_computed(x: Node) -> bool:
    """Whether x takes memory of its own: whether it is other than data that exists, a constant, or a view of these."""
    while x.kind in VIEWS and x.buffer is None:
        x = x.args[0]
    return bool(x.size) and x.buffer is None and x.kind not in ("leaf", "const", "iota")


# ---- the graph without them


def is_mark(node: Node) -> bool:
    """Whether a node is its argument with a mark: an input or a result of a segment, the end of a submission."""
    return node.kind in IDENTITIES and len(node.args) == 1


def is_same(node: Node) -> bool:
    """Whether a node has the value of its first argument by its kind."""
    return node.kind in IDENTITIES or node.kind == "copy"


def without(drop: Callable[[Node], bool], roots: Sequence[Node], stop: Callable[[Node], bool]) -> dict[Node, Node]:
    """Of each node below ``roots``, the one that the same functions build without the nodes that ``drop`` tells; those
    below ``stop`` stay."""
    found: dict[Node, Node] = {}
    for node in toposort(roots, stop):
        if stop(node) or not node.args:
            found[node] = node
        elif drop(node):
            found[node] = found[node.args[0]]
        else:
            found[node] = _rebuilt(node, tuple(found[a] for a in node.args))
    return found


def _rebuilt(node: Node, args: tuple[Node, ...]) -> Node:
    """The node on other arguments, simplified as the builders do."""
    if all(a is b for a, b in zip(args, node.args, strict=True)):
        return node
    if node.kind == "reshape" and not node.attrs:
        return build.reshape(args[0], node.shape)
    if node.kind == "permute":
        return build.permute(args[0], node.attrs[0])
    if node.kind == "map":
        return build.apply(node.op, *args)  # folds constants
    return make(node.kind, args, node.attrs, node.shape, node.dtype)


def settle(outputs: Sequence[Node]) -> tuple[list[Node], set[Node]]:
    """The outputs without marks, and the nodes after which a submission ends."""

    def known(node: Node) -> bool:
        return node.buffer is not None

    order = toposort(outputs, known)
    if not any(map(is_mark, order)):
        return list(outputs), set()
    found = without(is_mark, outputs, known)
    return [found[n] for n in outputs], {found[n] for n in order if n.kind == "flush" and n.buffer is None}
