"""Groups the nodes of a graph into kernels and puts the kernels in order.

Nodes are visited from the results back: a node joins the kernel that uses it when one of the RULES lets it. Fusion
never changes a bit (an op's result does not depend on the kernel it sits in), so the rules are about speed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from graphlib import TopologicalSorter

from vkdnn.fusion.kernel import Kernel
from vkdnn.fusion.lower import MustRealise
from vkdnn.fusion.specs import Step, build_step
from vkdnn.ir.dims import never_above
from vkdnn.ir.node import IDENTITIES, VIEWS, Node, Shape, toposort
from vkdnn.ir.ops import OPS

MAX_OUTPUTS = 8  # with specs.MAX_BUFFERS this keeps bindings and push constants within what every device offers
MAX_MEMBERS = 96  # nodes of a kernel: long chains are cut, so that no shader grows without bound
CHEAP = 1  # cost up to which an op is computed again for every element it is broadcast or padded to
MAX_REPEATED = 24  # ops of a kernel that are computed again so


def squeezed(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


# ---- the fusion registry: may this node be computed in this kernel? One rule for each kind of node.


# Elements of 16 bits are stored two a word, which only elementwise kernels do: a kernel that stores such a node
# must stay one.


def _stores_halves(kernel: Kernel) -> bool:
    return any(out.dtype.half for out in kernel.outputs)


def elementwise_rule(node: Node, kernel: Kernel) -> bool:
    """Elementwise work joins any kernel but a call; what is broadcast only if it is cheap to compute again."""
    if kernel.family == "call" or len(kernel.members) >= MAX_MEMBERS:
        return False
    if never_above(math.prod(kernel.shape), node.size):
        return True
    if kernel.family == "fold" and squeezed(node.shape) == squeezed(kernel.row_shape):
        return True
    if kernel.family == "expr" and not _stores_halves(kernel) and _made_of_fold(node, kernel.shape):
        return True  # the fold will follow, and make the node one value a row
    return _cost(node) <= CHEAP and kernel.repeated < MAX_REPEATED


def _cost(node: Node) -> int:
    return OPS[node.op].cost if node.kind == "map" else 2


def _made_of_fold(node: Node, source: Shape) -> bool:
    """Whether the node is computed, at its own size, from a fold of elements of shape ``source``."""
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        if current.kind == "fold":
            if current.args[0].shape == source:
                return True
            continue
        for arg in current.args[:1] if current.kind == "after" else current.args:
            if arg not in seen and arg.buffer is None and squeezed(arg.shape) == squeezed(node.shape):
                seen.add(arg)
                stack.append(arg)
    return False


def fold_rule(node: Node, kernel: Kernel) -> bool:
    """A reduction joins the kernel of its elements' shape (softmax, norms) or of its result's (mean of a sum)."""
    source, axes = node.args[0].shape, node.attrs[1]
    if kernel.family == "fold":
        return (kernel.shape, kernel.axes) == (source, axes)
    if _stores_halves(kernel):
        return False
    return kernel.family == "expr" and (kernel.shape == source or squeezed(kernel.shape) == squeezed(node.shape))


def matmul_rule(node: Node, kernel: Kernel) -> bool:
    """A product takes the elementwise kernel that uses it as its epilogue."""
    return kernel.family == "expr" and kernel.shape == node.shape and not _stores_halves(kernel)


def copy_rule(node: Node, kernel: Kernel) -> bool:
    """A copy is a kernel of its own: memory that nothing else is computed in."""
    return False


RULES: dict[str, Callable[[Node, Kernel], bool]] = {
    "map": elementwise_rule,
    "take": elementwise_rule,
    "gather": elementwise_rule,
    "fold": fold_rule,
    "matmul": matmul_rule,
    "copy": copy_rule,
}


def _stores(node: Node, kernel: Kernel) -> bool:
    """Whether the kernel's iteration can store the node."""
    if node.dtype.half and kernel.family != "expr":
        return False
    if kernel.family == "fold" and squeezed(node.shape) == squeezed(kernel.row_shape):
        return True
    return kernel.shape == node.shape


def _reads_buffer(node: Node, argument: int) -> bool:
    """Whether an argument must lie in a buffer before the node is computed: read there, or waited for."""
    if node.kind in ("matmul", "copy"):
        return True
    return (node.kind in ("take", "gather") and argument == 0) or (node.kind == "after" and argument > 0)


# ---- grouping


class Grouping:
    """One pass over the graph; ``apart`` are the nodes that must be kernels' results and nothing else, ``stored`` those
    that must be results, in whatever kernel."""

    def __init__(self, roots: list[Node], apart: set[Node], stored: set[Node]):
        self.apart = apart
        self.needed: set[Node] = set(roots) | apart | stored
        self.kernels: list[Kernel] = []
        self.home: dict[Node, Kernel] = {}
        self.folded: dict[tuple[object, ...], Kernel] = {}  # where elements are folded, whatever field is wanted
        self.users: dict[Node, dict[Kernel, bool]] = {}  # kernel -> whether it must read the node from a buffer
        for node in reversed(toposort(roots, stop=lambda n: n.buffer is not None)):
            if node.kind != "leaf" and node.buffer is None:
                self._place(node)

    def _place(self, node: Node) -> None:
        users = self.users.get(node, {})
        if node.kind == "result":
            self._call(node, users)
        elif node.kind == "call" or (node.kind in ("const", "iota") and node not in self.needed):
            return
        elif node.kind not in RULES and node not in self.needed:  # a view: its users use what it views
            self._pass_on(node, users)
        else:
            kernel = self._kernel_for(node, users)
            self._join(node, kernel)

    def _pass_on(self, node: Node, users: dict[Kernel, bool]) -> None:
        """Whoever computes the node uses its arguments."""
        for i, arg in enumerate(node.args):
            self._use(arg, dict.fromkeys(users, True) if _reads_buffer(node, i) else users)

    def _use(self, node: Node, users: dict[Kernel, bool]) -> None:
        known = self.users.setdefault(node, {})
        for kernel, hard in users.items():
            known[kernel] = known.get(kernel, False) or hard

    def _kernel_for(self, node: Node, users: dict[Kernel, bool]) -> Kernel:
        """The kernel that computes the node; makes it one of the results where others need it."""
        rule = RULES.get(node.kind, elementwise_rule)
        if node.kind == "fold" and (found := self._with_siblings(node, users)) is not None:
            return found
        soft = [k for k, hard in users.items() if not hard]
        stored = node in self.needed or len(soft) < len(users)
        if node in self.apart:
            soft = []
        if not stored and len(soft) > 1:
            self._merge(soft, users)
            soft = list(users)
        if not stored and len(soft) == 1 and rule(node, soft[0]):
            return soft[0]
        for kernel in soft:
            others = [k for k in users if k is not kernel]
            fits = rule(node, kernel) and (_stores(node, kernel) or node.kind == "fold")
            fits = fits and len(kernel.outputs) < MAX_OUTPUTS
            if fits and not any(kernel.depends_on(k) for k in others):
                for other in others:
                    other.reads.add(kernel)
                kernel.outputs.append(node)
                return kernel
        kernel = self._new(node)
        for other in users:
            other.reads.add(kernel)
        kernel.outputs.append(node)
        return kernel

    def _with_siblings(self, node: Node, users: dict[Kernel, bool]) -> Kernel | None:
        """The kernel that has other fields of the same fold, if this one can be had from it too."""
        kernel = self.folded.get(_folded(node))
        if kernel is None or node in self.apart or users.get(kernel, False):
            return None
        others = [k for k in users if k is not kernel]
        stored = node in self.needed or bool(others)
        if (stored and len(kernel.outputs) >= MAX_OUTPUTS) or any(kernel.depends_on(k) for k in others):
            return None
        for other in others:
            other.reads.add(kernel)
        if stored:
            kernel.outputs.append(node)
        return kernel

    def _new(self, node: Node) -> Kernel:
        if node.kind == "fold":
            kernel = Kernel("fold", node.args[0].shape, node.attrs[1])
        else:
            kernel = Kernel("matmul" if node.kind == "matmul" else "expr", node.shape)
        self.kernels.append(kernel)
        return kernel

    def _join(self, node: Node, kernel: Kernel) -> None:
        if node.kind == "fold":
            kernel.family, kernel.shape, kernel.axes = "fold", node.args[0].shape, node.attrs[1]
            self.folded.setdefault(_folded(node), kernel)
        elif node.kind == "matmul":
            kernel.family = "matmul"
        kernel.members.append(node)
        if (
            node.kind == "map"
            and not never_above(math.prod(kernel.shape), node.size)
            and squeezed(node.shape) != squeezed(kernel.row_shape)
        ):
            kernel.repeated += 1
        self._pass_on(node, {kernel: False})

    def _merge(self, soft: list[Kernel], users: dict[Kernel, bool]) -> None:
        """Make one kernel of elementwise users of one shape that do not wait for each other."""
        first = soft[0]
        for kernel in soft[1:]:
            same = kernel.family == first.family == "expr" and kernel.shape == first.shape
            full = len(kernel.outputs) + len(first.outputs) > MAX_OUTPUTS
            if full or not same or kernel.depends_on(first) or first.depends_on(kernel):
                continue
            first.members += kernel.members
            first.repeated += kernel.repeated
            first.outputs += kernel.outputs
            first.reads |= kernel.reads
            self.kernels.remove(kernel)
            for other in self.kernels:
                if kernel in other.reads:
                    other.reads.discard(kernel)
                    other.reads.add(first)
            for known in self.users.values():
                if kernel in known:
                    hard = known.pop(kernel)
                    known[first] = known.get(first, False) or hard
        assert first in users

    def _call(self, node: Node, users: dict[Kernel, bool]) -> None:
        call = node.args[0]
        kernel = self.home.get(call)
        if kernel is None:
            kernel = self.home[call] = Kernel("call", ())
            kernel.members.append(call)
            self.kernels.append(kernel)
            for arg in call.args:
                self._use(arg, {kernel: True})
        for user in users:
            user.reads.add(kernel)
        kernel.outputs.append(node)


def _folded(node: Node) -> tuple[object, ...]:
    """What a fold has in common with the nodes of its other fields."""
    return (*node.args, *node.attrs[:2])


def _ordered(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Kernels after those they read, in an order fixed by the graph."""
    listed = list(kernels)[::-1]
    position = {k: i for i, k in enumerate(listed)}
    graph = {k: sorted(k.reads, key=position.__getitem__) for k in listed}
    return list(TopologicalSorter(graph).static_order())


def schedule(outputs: list[Node], flushed: Iterable[Node] = ()) -> list[Step]:
    """The kernels that compute ``outputs``, in order. Outputs of size 0, leaves and reshapes of them need none.

    Each of the nodes ``flushed`` below them gets a buffer; the step that writes it is the last of a submission.
    """
    last = {n for n in map(_viewed, flushed) if n.size and n.buffer is None and n.kind not in ("leaf", "const", "iota")}
    apart: set[Node] = set()
    roots = list(dict.fromkeys(base for base in map(storage, outputs) if base.kind != "leaf" and base.size))
    roots = [r for r in roots if r.buffer is None]
    while True:
        grouping = Grouping(roots, apart, last)
        realised = {n for k in grouping.kernels for n in k.outputs}
        try:
            steps = [build_step(k, realised) for k in _ordered(grouping.kernels)]
            return [replace(s, flush=True) if last.intersection(s.outputs) else s for s in steps] if last else steps
        except MustRealise as error:
            assert error.node not in apart, error.node
            apart.add(error.node)


def storage(node: Node) -> Node:
    """The node whose buffer holds the elements of ``node`` in its own order: reshapes share their argument's."""
    while (node.kind == "reshape" or node.kind in IDENTITIES) and node.buffer is None:
        node = node.args[0]
    return node


def _viewed(node: Node) -> Node:
    while node.kind in VIEWS and node.buffer is None:
        node = node.args[0]
    return node
