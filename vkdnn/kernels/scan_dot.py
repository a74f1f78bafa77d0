"""DotSpec: one dot product a row, in the order of a matrix product.

Sums run in sequence from +0 inside blocks of 128 elements, block sums added in sequence; no schedule may
change that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, float32
from vkdnn.ir import build
from vkdnn.ir.body import Affine
from vkdnn.ir.node import Node
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Operand, Results, Target, group_count
from vkdnn.kernels.expr import decompose, dim_names
from vkdnn.kernels.scan_reference import operand, row_sums
from vkdnn.numerics import basic

FAMILY = "row_dot"


def row_dot(a: Node, b: Node) -> Node:
    """Dot products of the rows of a and b, float32 [..., K]: [...]."""
    return build.call(FAMILY, (a, b), None, ((a.shape[:-1], float32),))[0]


@dataclass(frozen=True)
class DotSchedule:
    """Invocations a workgroup; each has one row."""

    invocations: int


@dataclass(frozen=True)
class DotSpec(KernelSpec):
    """Rows over (first dim from ``sizes``, then ``outer``) of ``length`` elements; indices over rows' dims
    and element.
    """

    outer: tuple[int, ...]
    length: int
    a: Affine
    b: Affine

    template = "scan_dot.comp.j2"
    size_names = ("rows",)

    @property
    def inputs(self) -> tuple[DType, ...]:
        return (float32, float32)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return (float32,)

    def text(self) -> str:
        rows = ", ".join(["rows", *map(str, self.outer)])
        return f"row dot ({rows}) length {self.length}\n  a in0[{self.a}] b in1[{self.b}]\n"

    def schedules(self, target: Target) -> tuple[DotSchedule, ...]:
        return (DotSchedule(64), DotSchedule(128))

    def groups(self, sizes: tuple[int, ...], schedule: DotSchedule) -> Groups:
        return (group_count(sizes[0], schedule.invocations), 1, 1)

    def context(self, schedule: DotSchedule) -> dict[str, Any]:
        dims = dim_names(1 + len(self.outer))
        return {
            "local_size": (schedule.invocations, 1),
            "coordinates": decompose("row", self.outer, dims),
            "length": self.length,
            "a": f"in0[{glsl.affine(self.a, [*dims, 'k'], 'base_in0')}]",
            "b": f"in1[{glsl.affine(self.b, [*dims, 'k'], 'base_in1')}]",
        }

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        extents = (sizes[0] // math.prod(self.outer), *self.outer, self.length)
        a, b = operand(inputs, (0, self.a), extents), operand(inputs, (1, self.b), extents)
        outputs[0][: sizes[0]] = row_sums(np.moveaxis(basic.mul(a, b), -1, 0)).ravel()

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        return Cost(2 * sizes[0] * self.length, 4 * sizes[0] * (2 * self.length + 1))


def build_dot(
    parameters: Any, operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a call; see vkdnn.kernels.calls."""
    a, b = operands
    return DotSpec(a.shape[1:-1], a.shape[-1], a.index, b.index), (math.prod(a.shape[:-1]),)
