"""The values that a reverse pass reads: as the forward pass made them, or, inside a segment, computed again.

A segment is computed again when the gradient of one of its results is there, and not before. The pass itself goes over
the graph that would be there without segments and copies, so that gradients are asked for and added in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkdnn.ir.memory import Segment, after, copy, flush, is_computed, is_mark, is_same, without
from vkdnn.ir.node import VIEWS, Node, make, toposort


class Values:
    """The graph below ``results`` that a reverse pass goes over, and of each of its nodes the one to read."""

    def __init__(self, results: Sequence[Node], targets: set[Node]):
        def stop(node: Node) -> bool:
            return node in targets or node.kind == "leaf"

        self._stop = stop
        self._now: dict[Node, Node] = {}
        self._plain: dict[Node, Node] = {}
        self._copies: dict[Segment, dict[Node, Node]] = {}
        self._kept: dict[Node, dict[Segment, Node]] = {}  # of a node, the segments it is a result of, and as which node
        self._flushed: set[Node] = set()
        self.order = toposort(results, stop)
        if any(is_same(n) and not stop(n) for n in self.order):
            self._plain = without(is_same, results, stop)
            self._note_marks()
            self.order = toposort([self.same(r) for r in results], stop)

    def _note_marks(self) -> None:
        for node in self.order:
            same = self._plain[node]
            if not is_same(node) or self._stop(node):
                self._now.setdefault(same, node)
            elif node.kind == "kept":
                self._kept.setdefault(same, {}).setdefault(node.attrs[0], node.args[0])
            elif node.kind == "flush":
                self._flushed.add(same)

    def same(self, node: Node) -> Node:
        """The node of the graph without segments that stands for a result."""
        return self._plain.get(node, node)

    def reached(self, node: Node, gradient: Node) -> Node:
        """The gradient of a node, of which all contributions are there: segments that end here are computed again
        after it, and it ends a submission if the node did."""
        for segment in sorted(self._kept.get(node, ()), key=lambda s: s.number):  # those around others first
            self._recompute(segment, self._kept[node][segment], gradient)
        return flush(gradient) if node in self._flushed else gradient

    def __getitem__(self, node: Node) -> Node:
        """What to read for a node of the graph without segments."""
        return node if node.kind in VIEWS else self._now.get(node, node)  # of views, rules read shapes alone

    def _read(self, node: Node) -> Node:
        return self._now.get(self.same(node), node)

    def _recompute(self, segment: Segment, result: Node, gradient: Node) -> None:
        copies = self._copies.get(segment)
        if copies is None:
            inputs = {x: self._read(x.args[0]) for x in segment.inputs}
            copies = self._copies[segment] = {x: _again(y, segment, gradient) for x, y in inputs.items()}
        for node in toposort([result], stop=lambda n: n in copies or self._stop(n)):
            if node in copies:
                continue
            args = tuple(copies[a] for a in node.args) if not self._stop(node) else node.args
            if is_mark(node) and node.kind != "flush":
                copies[node] = args[0]
            elif all(a is b for a, b in zip(args, node.args, strict=True)):
                copies[node] = self._read(node)  # from outside the segment
            else:
                copies[node] = make(node.kind, args, node.attrs, node.shape, node.dtype)
            if not is_same(node):
                self._now[self.same(node)] = copies[node]


def _again(x: Node, segment: Segment, gradient: Node) -> Node:
    """The input x of a segment, once the gradient exists."""
    if segment.offload and is_computed(x):
        return copy(after(copy(x, "host"), [gradient]), "device")
    return after(x, [gradient])
