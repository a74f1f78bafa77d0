"""What a kernel does, in numbers: float operations and the bytes that must move, and a name that people can read."""

from __future__ import annotations

from collections.abc import Sequence

from vkdnn.ir.body import Body
from vkdnn.ir.ops import OPS
from vkdnn.kernels.base import Cost, KernelSpec
from vkdnn.program import Program

_NAMED = 4  # rows of the op table that a title names


def kernel_work(spec: KernelSpec, sizes: Sequence[int], words: int) -> Cost:
    """Of one launch that reads and writes ``words`` words of distinct arrays.

    A spec does not know that an input is broadcast, nor an array that only a part of it is read: the lesser counts.
    """
    cost = spec.cost(tuple(sizes))
    return Cost(cost.flops, min(cost.bytes, 4 * words))


def work(program: Program) -> tuple[int, int]:
    """Float operations of one run of a Program, and the bytes that must move."""
    costs = [
        kernel_work(step.spec, step.sizes, sum(node.words for node in {*step.inputs, *step.outputs}))
        for step in program.steps
    ]
    return sum(c.flops for c in costs), sum(c.bytes for c in costs)


def title(spec: KernelSpec, sizes: Sequence[int]) -> str:
    """The first line of the spec's text with its sizes, and what its body computes.

    >>> import vkdnn as vk
    >>> with vk.device("cpu"):
    ...     step = vk.jit(lambda x: vk.exp(x) + 1.0).program(vk.array([1.0, 2.0])).steps[0]
    >>> title(step.spec, step.sizes)
    'expr dims (count, ), count 2: exp add'
    """
    named = [f"{name} {size}" for name, size in zip(spec.size_names, sizes, strict=True)]
    body = getattr(spec, "body", Body(()))
    distinct = list(dict.fromkeys(i.attrs[0] for i in body.instrs if i.kind == "op" and OPS[i.attrs[0]].cost))
    found = ": " + " ".join(distinct[:_NAMED]) + (" ..." if len(distinct) > _NAMED else "") if distinct else ""
    return ", ".join([spec.text().split("\n", 1)[0], *named]) + found
