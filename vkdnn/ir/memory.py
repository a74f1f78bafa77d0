"""Nodes that say when and where a value exists, never what it is: identities for whoever reads the value.

They must never be made unless memory or submissions are asked about: a graph without them is scheduled as if there were
none of this.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from vkdnn.ir.node import IDENTITIES, VIEWS, Node, Token, make

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
    """x, in a buffer; the submission ends with the kernel that writes it."""
    return make("flush", (x,), (), x.shape, x.dtype)


def copy(x: Node, place: str) -> Node:
    """x once more, in the memory of the "device" or of the "host"."""
    return make("copy", (x,), (place,), x.shape, x.dtype)


def on_host(node: Node) -> bool:
    """Whether a node's value lies in the host's memory."""
    return node.kind == "copy" and node.attrs[0] == "host"


def plain(x: Node) -> Node:
    """What x is the same as."""
    while x.kind in IDENTITIES and x.buffer is None:
        x = x.args[0]
    return x


def is_computed(x: Node) -> bool:
    """Whether x takes memory of its own: whether it is other than data that exists, a constant, or a view of these."""
    while x.kind in VIEWS and x.buffer is None:
        x = x.args[0]
    return bool(x.size) and x.buffer is None and x.kind not in ("leaf", "const", "iota")
