"""Turns a kernel's nodes into its spec: one builder a family, and the Step that a Program runs.

A builder must give the same spec for the same graph, whatever else is in the Program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vkdnn.fusion.attention import attention_spec
from vkdnn.fusion.kernel import Kernel
from vkdnn.fusion.lower import Lowering, MustRealise, indices_of, remap_body, resolve, simplify
from vkdnn.fusion.views import Coords, Space, SplitNeeded, address, row_major
from vkdnn.ir.body import Affine
from vkdnn.ir.node import Node, make
from vkdnn.kernels.attention import FAMILY as ATTENTION
from vkdnn.kernels.base import KernelSpec, Operand
from vkdnn.kernels.calls import CALLS
from vkdnn.kernels.expr import ExprSpec
from vkdnn.kernels.fold import FoldSpec
from vkdnn.kernels.matmul import MatmulSpec

Realised = Callable[[Node], bool]
MAX_BUFFERS = 24  # inputs and outputs of a kernel: Vulkan promises 32 push-constant words, some devices 30 bindings


@dataclass(frozen=True)
class Step:
    """One kernel of a Program: its spec, the extents kept out of the spec, and the nodes it reads and writes."""

    spec: KernelSpec
    sizes: tuple[int, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    aligned: tuple[bool, ...]
    """Of each input: every element is read only by the invocation that writes the same element of the outputs, so an
    output may take the input's place."""
    flush: bool = False
    """Whether the submission ends with it."""


def build_step(kernel: Kernel, realised: set[Node]) -> Step:
    """The Step of a kernel. Raises MustRealise when a member cannot be computed in it after all."""
    own = set(kernel.members)

    def is_realised(node: Node) -> bool:
        return node.kind == "leaf" or node.buffer is not None or (node in realised and node not in own)

    step = _BUILDERS[kernel.family](kernel, is_realised)
    if len(step.inputs) + len(step.outputs) > MAX_BUFFERS and kernel.family != "call":
        raise MustRealise(_half(kernel, is_realised))
    return step


def _half(kernel: Kernel, realised: Realised) -> Node:
    """A member that about half of the kernel's inputs go into: apart, it leaves two kernels of fewer buffers."""
    inputs: dict[Node, set[Node]] = {}

    def below(node: Node) -> set[Node]:
        if node not in inputs:
            inputs[node] = {node} if realised(node) else set().union(*(below(a) for a in node.args))
        return inputs[node]

    outputs = set(kernel.outputs)
    members = [n for n in reversed(kernel.members) if n not in outputs and not realised(n)]
    total = set().union(*(below(n) for n in kernel.members))
    return min(members, key=lambda n: abs(len(below(n)) - len(total) // 2))


def _lowered(
    space: Space,
    make: Callable[[Space], tuple[Lowering, list[int]]],
    may_split: Callable[[int], bool] = lambda dim: True,
    otherwise: Node | None = None,
) -> tuple[Lowering, list[int]]:
    """Lower, splitting dims as views ask for it."""
    while True:
        try:
            return make(space)
        except SplitNeeded as split:
            if not may_split(split.dim):
                assert otherwise is not None
                raise MustRealise(otherwise) from None
            space.split(split.dim, split.inner)


def _aligned(lowering: Lowering, stored: Callable[[Node], Affine | None], operands: int = 0) -> tuple[bool, ...]:
    """Inputs that are only loaded at the index an output of their shape is stored at, unguarded."""
    odd = set(range(operands))
    for instr in lowering.builder.instrs:
        if instr.kind == "load":
            slot, at, guards, _, _ = instr.attrs
            if at != stored(lowering.inputs[slot]) or guards or instr.args:
                odd.add(slot)
    return tuple(slot not in odd for slot in range(len(lowering.inputs)))


def _expr(kernel: Kernel, realised: Realised) -> Step:
    def make(space: Space) -> tuple[Lowering, list[int]]:
        lowering = Lowering(space, realised, {})
        return lowering, [lowering.lower(out, space.coords()) for out in kernel.outputs]

    space = Space(kernel.shape)
    lowering, results = _lowered(space, make)
    body = lowering.builder.finish()
    (dims,), remap = simplify(space.extents, [space.rank], indices_of(body))
    dtypes = tuple(n.dtype for n in lowering.inputs)
    spec = ExprSpec(tuple(dims[1:]), dtypes, remap_body(body, remap), tuple(results))
    stored = address(space.coords(), row_major(kernel.shape), space.rank)
    aligned = _aligned(lowering, lambda node: stored)
    return Step(spec, (math.prod(kernel.shape),), tuple(lowering.inputs), tuple(kernel.outputs), aligned)


def _fold(kernel: Kernel, realised: Realised) -> Step:
    shape, axes = kernel.shape, kernel.axes
    outer = [a for a in range(len(shape)) if a not in axes]
    siblings: dict[Any, list[Node]] = {}  # the fields of a fold, by what it folds
    for node in kernel.members[::-1]:  # members are listed users first
        if node.kind == "fold":
            siblings.setdefault((node.args, node.op), []).append(node)
    folds = [(name, args) for args, name in siblings]
    first = [0, *itertools.accumulate(len(args) for _, args in folds)]  # of each fold, its first field among all

    def axis_coords(space: Space) -> Coords:
        placed = dict(zip([*outer, *axes], space.coords(), strict=True))
        return tuple(placed[a] for a in range(len(shape)))

    def row_coords(space: Space, node: Node) -> Coords:
        """Coordinates of a node that has one element a row, whatever axes of length 1 its shape has."""
        lengths = [shape[a] for a in outer]
        steps = [c for c, n in zip(space.coords(), lengths, strict=False) if n != 1]
        zero = Affine.zero(space.rank)
        return tuple(zero if n == 1 else steps.pop(0) for n in node.shape)

    def make(space: Space) -> tuple[Lowering, list[int]]:
        reduced = {
            n: (k + n.attrs[2], row_coords(space, n))
            for k, group in zip(first, siblings.values(), strict=False)
            for n in group
        }
        lowering = Lowering(space, realised, reduced)
        coords = axis_coords(space)
        positions = [lowering.lower(x, coords) for _, args in folds for x in args]
        for out in kernel.outputs:
            positions.append(lowering.lower(out, coords if out.shape == shape else row_coords(space, out)))
        return lowering, positions

    space = Space(tuple(shape[a] for a in [*outer, *axes]))
    lowering, positions = _lowered(space, make)
    body = lowering.builder.finish()
    coords = axis_coords(space)
    at_element = address(coords, row_major(shape), space.rank)
    at_row = address(tuple(coords[a] for a in outer), row_major(tuple(shape[a] for a in outer)), space.rank)
    outer_rank = sum(map(len, space.factors[: len(outer)]))
    parts = [outer_rank, space.rank - outer_rank]
    (rows, elements), remap = simplify(space.extents, parts, [*indices_of(body), at_element, at_row])
    results = tuple(
        (position, out.shape == shape, remap(at_element if out.shape == shape else at_row))
        for position, out in zip(positions[first[-1] :], kernel.outputs, strict=True)
    )
    spec = FoldSpec(
        tuple(rows[1:]),
        tuple(elements),
        tuple(n.dtype for n in lowering.inputs),
        remap_body(body, remap),
        tuple((name, tuple(positions[k : k + len(args)])) for k, (name, args) in zip(first, folds, strict=False)),
        results,
    )
    # A row is read and written by one invocation or one workgroup, which has read it all before it writes.
    aligned = _aligned(lowering, lambda node: at_element if node.shape == shape else at_row)
    rows_total = math.prod(shape[a] for a in outer)
    return Step(spec, (rows_total,), tuple(lowering.inputs), tuple(kernel.outputs), aligned)


def _matmul(kernel: Kernel, realised: Realised) -> Step:
    node = next(n for n in kernel.members if n.kind == "matmul")
    a, b = node.args
    a_base, a_at = resolve(a, realised)
    b_base, b_at = resolve(b, realised)
    last = len(node.shape) - 2

    def make(space: Space) -> tuple[Lowering, list[int]]:
        lowering = Lowering(space, realised, {node: (0, space.coords())}, (a_base, b_base))
        if a_base is b_base:
            lowering.inputs = [a_base, a_base]
        return lowering, [lowering.lower(out, space.coords()) for out in kernel.outputs]

    space = Space(node.shape)
    lowering, results = _lowered(space, make, lambda dim: space.axis_of(dim) < last, node)
    stored = address(space.coords(), row_major(node.shape), space.rank)
    aligned = _aligned(lowering, lambda node: stored, operands=2)
    body = lowering.builder.finish()

    def over_space(index: Affine, final: tuple[int, int]) -> Affine:
        """An operand's index over (batch dims as split, row or k, k or column)."""
        batch = Affine.zero(space.rank)
        if len(index.strides) == len(node.shape):
            batch = address(space.coords()[:last], index.strides[:last], space.rank)
        return Affine(index.offset, batch.strides[: space.rank - 2] + final)

    a_index = over_space(a_at, a_at.strides[-2:])  # type: ignore[arg-type]
    b_index = over_space(b_at, b_at.strides[-2:])  # type: ignore[arg-type]
    extents = list(space.extents)
    # A batch dim over which b does not change is more rows of a, if everything else steps through it as such.
    while len(extents) > 2 and b_index.strides[len(extents) - 3] == 0:
        d = len(extents) - 3
        if extents[d] != 1 and any(
            i.strides[d] != i.strides[d + 1] * extents[d + 1] for i in [a_index, *indices_of(body)]
        ):
            break
        extents[d : d + 2] = [extents[d] * extents[d + 1]]

        def drop(index: Affine, d: int = d) -> Affine:
            return Affine(index.offset, index.strides[:d] + index.strides[d + 1 :])

        a_index, b_index, body = drop(a_index), drop(b_index), remap_body(body, drop)
    # What is left of the batch is simplified; m and n stay two dims whatever their lengths.
    batch_rank = len(extents) - 2
    kept = [Affine(i.offset, i.strides[:batch_rank] + (0, 0)) for i in [a_index, b_index, *indices_of(body)]]
    (batch, _), shorter = simplify([*extents[:batch_rank], 1, 1], [batch_rank, 2], kept)

    def remap(index: Affine) -> Affine:
        return Affine(index.offset, shorter(index).strides[:-1] + index.strides[-2:])

    spec = MatmulSpec(
        tuple(batch[1:]),
        extents[-2],
        extents[-1],
        a.shape[-1],
        remap(a_index),
        remap(b_index),
        tuple(n.dtype for n in lowering.inputs),
        remap_body(body, remap),
        tuple(results),
    )
    return Step(spec, (math.prod(batch),), tuple(lowering.inputs), tuple(kernel.outputs), aligned)


def _call(kernel: Kernel, realised: Realised) -> Step:
    (node,) = kernel.members
    family, parameters, results = node.attrs
    wanted: dict[int, Any] = {n.attrs[0]: n for n in kernel.outputs}
    if family == ATTENTION:
        spec, sizes, inputs = attention_spec(kernel, realised, tuple(sorted(wanted)))
        outputs = tuple(wanted[k] for k in sorted(wanted))
        return Step(spec, sizes, tuple(inputs), outputs, (False,) * len(inputs))
    bases: list[Node] = []
    operands: list[Operand] = []
    for arg in node.args:
        base, index = resolve(arg, realised)
        bases.append(base)
        operands.append(Operand(arg.shape, arg.dtype, index))
    spec, sizes = CALLS[family](parameters, operands, results, tuple(sorted(wanted)))
    outputs = tuple(wanted[k] for k in sorted(wanted))
    if len(spec.outputs) != len(outputs):  # a family that always writes all its results
        outputs = tuple(make("result", (node,), (k,), shape, dtype) for k, (shape, dtype) in enumerate(results))
    assert spec.outputs == tuple(n.dtype for n in outputs), spec.text()
    return Step(spec, sizes, tuple(bases), outputs, (False,) * len(bases))


_BUILDERS: dict[str, Callable[[Kernel, Realised], Step]] = {
    "expr": _expr,
    "fold": _fold,
    "matmul": _matmul,
    "call": _call,
}
