"""A kernel in the making: the nodes that will run together, before there is a spec of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from vkdnn.ir.node import Node, Shape


@dataclass(eq=False)
class Kernel:
    """Nodes that run together. ``shape`` is the iteration space; a fold's is that of the elements it reduces."""

    family: str  # expr, fold, matmul or call
    shape: Shape
    axes: Shape = ()
    members: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    reads: set[Kernel] = field(default_factory=set)  # kernels that must have run before
    repeated: int = 0  # members computed again for every element they are broadcast or padded to

    def depends_on(self, other: Kernel) -> bool:
        seen, stack = {self}, [self]
        while stack:
            for kernel in stack.pop().reads:
                if kernel is other:
                    return True
                if kernel not in seen:
                    seen.add(kernel)
                    stack.append(kernel)
        return False

    @property
    def row_shape(self) -> Shape:
        return tuple(1 if i in self.axes else n for i, n in enumerate(self.shape))
