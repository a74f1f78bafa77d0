"""The values that a reverse pass reads: as the forward pass made them, or, inside a segment, computed again.

A segment is computed again when the gradient of one of its results is there, and not before. The gradients themselves
are asked for in the order of the graph without segments, so that no addition changes places.
"""

from __future__ import annotations

from collections.abc import Iterable

from vkdnn.ir.memory import Segment, after, copy, flush, is_computed, plain
from vkdnn.ir.node import IDENTITIES, Node, make, toposort


class Values:
    """Of each node, the one that the reverse pass reads in its place."""

    def __init__(self, results: Iterable[Node], targets: set[Node]):
        self.targets = targets
        self._now: dict[Node, Node] = {}
        self._copies: dict[Segment, dict[Node, Node]] = {}
        self._kept: dict[Node, dict[Segment, Node]] = {}  # of a node, the segments it is a result of, and as which node
        self._flushed: set[Node] = set()
        self.order = toposort(
            [self.same(r) for r in results],
            stop=lambda n: n in targets or n.kind == "leaf",
            arguments=lambda n: map(self.same, n.args),
        )

    def same(self, node: Node) -> Node:
        """The node without conditions on when and where it is computed; these are noted."""
        conditions = []
        while node.kind in IDENTITIES and node not in self.targets:
            conditions.append(node)
            node = node.args[0]
        for condition in conditions:
            if condition.kind == "kept":
                self._kept.setdefault(node, {}).setdefault(condition.attrs[0], condition.args[0])
            elif condition.kind == "flush":
                self._flushed.add(node)
        return node

    def reached(self, node: Node, gradient: Node) -> Node:
        """The gradient of a node, of which all contributions are there: segments that end here are computed again
        after it, and it ends a submission if the node did."""
        for segment in sorted(self._kept.get(node, ()), key=lambda s: s.number):  # those around others first
            self._recompute(segment, self._kept[node][segment], gradient)
        return flush(gradient) if node in self._flushed else gradient

    def __getitem__(self, node: Node) -> Node:
        return self._now.get(node, node)

    def _recompute(self, segment: Segment, result: Node, gradient: Node) -> None:
        copies = self._copies.get(segment)
        if copies is None:
            inputs = {x: self[x.args[0]] for x in segment.inputs}
            copies = self._copies[segment] = {x: self._again(y, segment, gradient) for x, y in inputs.items()}
        for node in toposort([result], stop=copies.__contains__):
            if node not in copies:
                args = tuple(copies[a] for a in node.args)
                if node.kind == "kept":
                    copies[node] = args[0]
                elif all(a is b for a, b in zip(args, node.args, strict=True)):
                    copies[node] = self[node]  # from outside the segment
                else:
                    copies[node] = make(node.kind, args, node.attrs, node.shape, node.dtype)
                self._now[node] = copies[node]

    @staticmethod
    def _again(x: Node, segment: Segment, gradient: Node) -> Node:
        """The input x of a segment, once the gradient exists."""
        if segment.offload and is_computed(x):
            return copy(after(copy(plain(x), "host"), [gradient]), "device")
        return after(x, [gradient])
