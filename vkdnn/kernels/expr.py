"""ExprSpec: fused elementwise kernels over broadcasts and views; several outputs of one iteration space.

Each output element depends on input elements alone, so no schedule can change a result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, store
from vkdnn.ir.body import Body, Box, evaluate_body, pieces
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Target, group_count

SEVERAL = 64  # float operations of an element up to which an invocation computes several at a time


@dataclass(frozen=True)
class ExprSchedule:
    """Invocations a workgroup, and elements that an invocation computes at a time.

    Several keep more loads under way: a graphics card needs that to use its memory's bandwidth.
    """

    invocations: int = 128
    elements: int = 1


@dataclass(frozen=True)
class ExprSpec(KernelSpec):
    """Outputs[k][i] = body at the point i of the iteration space (first dim from ``sizes``, the others ``dims``)."""

    dims: tuple[int, ...]
    input_dtypes: tuple[DType, ...]
    body: Body
    results: tuple[int, ...]  # positions in the body, one an output

    template = "expr.comp.j2"
    size_names = ("count",)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return tuple(self.body.instrs[r].dtype for r in self.results)

    def text(self) -> str:
        stores = "\n".join(f"  out{k} = %{r}" for k, r in enumerate(self.results))
        return f"expr dims (count, {', '.join(map(str, self.dims))})\n{self.body.text()}\n{stores}\n"

    def schedules(self, target: Target) -> tuple[ExprSchedule, ...]:
        # Software devices run a workgroup's vectors in turn and pay for each switch; small groups switch less.
        large, small, several = ExprSchedule(128), ExprSchedule(32), ExprSchedule(128, 4)
        if self.body.flops() > SEVERAL:
            return (small, large) if target.software else (large, small)
        return (small, large, several) if target.software else (several, large, small)

    def context(self, schedule: ExprSchedule) -> dict[str, Any]:
        names: dict[int, str] = {}
        dims = dim_names(len(self.dims) + 1)
        lines = glsl.statements(self.body, self.body.needed(self.results), names, dims)
        values = [
            glsl.stored(names[self._unrounded(r)], dtype) for r, dtype in zip(self.results, self.outputs, strict=True)
        ]
        halves = [k for k, dtype in enumerate(self.outputs) if dtype.half]
        stores = [
            f"pair{k} |= {value} << (16u * half_);" if dtype.half else f"out{k}[base_out{k} + i] = {value};"
            for k, (value, dtype) in enumerate(zip(values, self.outputs, strict=True))
        ]
        return {
            "local_size": (schedule.invocations, 1),
            "halves": halves,
            "elements": schedule.elements,
            "coordinates": decompose("i", self.dims, dims),
            "statements": lines,
            "values": values,
            "types": [dtype.storage for dtype in self.outputs],
            "stores": stores,
        }

    def _unrounded(self, result: int) -> int:
        """Where the result is rounded to its storage type: what is rounded, which storing rounds too."""
        instr = self.body.instrs[result]
        rounds = instr.dtype.half and instr.kind == "op" and instr.attrs[0] == f"to_{instr.dtype}"
        return instr.args[0] if rounds else result

    def groups(self, sizes: tuple[int, ...], schedule: ExprSchedule) -> Groups:
        own = schedule.elements * (2 if any(dtype.half for dtype in self.outputs) else 1)
        return (group_count(-(-sizes[0] // own), schedule.invocations), 1, 1)

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        rest = math.prod(self.dims)
        extents = (sizes[0] // rest, *self.dims)
        needed = self.body.needed(self.results)
        for box in pieces(extents):
            values = evaluate_body(self.body, needed, box, inputs, {})
            for result, out, dtype in zip(self.results, outputs, self.outputs, strict=True):
                np.copyto(box_view(out, box, rest), store(values[result], dtype))

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        moved = sum(dtype.words(sizes[0]) for dtype in (*self.inputs, *self.outputs))
        return Cost(self.body.flops() * sizes[0], 4 * moved)

    def ops(self) -> Sequence[str]:
        return glsl.ops_of(self.body)


def box_view(out: Array, box: Box, rest: int) -> Array:
    """The part of a flat output that a box covers, in the box's shape; ``rest`` elements a step of the first dim."""
    return out[box.start * rest :][: math.prod(box.extents)].reshape(box.extents)


def dim_names(rank: int) -> list[str]:
    return [f"i{d}" for d in range(rank)]


def decompose(flat: str, dims: tuple[int, ...], names: list[str]) -> list[str]:
    """GLSL that splits a flat index over a first dim of any extent and further dims of these extents."""
    lines, rest = [], flat
    for d in range(len(dims), 0, -1):
        lines.append(f"uint {names[d]} = {rest} % {dims[d - 1]}u;")
        rest = f"{flat} / {math.prod(dims[d - 1 :])}u"
    lines.append(f"uint {names[0]} = {rest};")
    return lines
