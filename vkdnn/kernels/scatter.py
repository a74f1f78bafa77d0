"""ScatterSpec: rows of a table as sums of the source rows that name them, in ascending source index, without atomics.

A stable counting sort of the source rows by table row, then one sum a row. Five small kernels in sequence:

rank     each block of source rows is walked in order: its count of every table row, and the rank of each source row
         among the block's rows of the same number
offset   along the blocks: how many rows of each number lie in earlier blocks, and the total
start    along the table: where the rows of each number start in the sorted order
place    the sorted order itself
sum      out[v] = +0 + source rows of number v in ascending index
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, float32, int32
from vkdnn.ir import build
from vkdnn.ir.body import Affine, strided
from vkdnn.ir.node import Node, Shape
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Operand, Results, Target, group_count
from vkdnn.numerics import basic

LANES = 128  # invocations that share the "start" stage


@dataclass(frozen=True)
class ScatterShape:
    """Source rows, source rows a block, table rows, elements of a row."""

    count: int
    block: int
    rows: int
    width: int

    @property
    def blocks(self) -> int:
        return -(-self.count // self.block)


@dataclass(frozen=True)
class ScatterSpec(KernelSpec):
    """One stage of a scatter-add. ``index`` tells where each input's elements lie, over the input's own axes."""

    stage: str
    shape: ScatterShape
    index: tuple[Affine, ...]
    input_dtypes: tuple[DType, ...]

    template = "scatter.comp.j2"
    size_names = ()

    @property
    def outputs(self) -> tuple[DType, ...]:
        return {"rank": (int32, int32), "offset": (int32, int32), "sum": (float32,)}.get(self.stage, (int32,))

    def text(self) -> str:
        s = self.shape
        inputs = "".join(f"\n  in{i} {d} [{a}]" for i, (a, d) in enumerate(zip(self.index, self.inputs, strict=True)))
        return f"scatter {self.stage} count {s.count} block {s.block} rows {s.rows} width {s.width}{inputs}\n"

    def _items(self) -> int:
        s = self.shape
        return {"rank": s.blocks, "offset": s.rows, "start": LANES, "place": s.count, "sum": s.rows * s.width}[
            self.stage
        ]

    def schedules(self, target: Target) -> tuple[int, ...]:
        return (LANES,) if self.stage == "start" else (64, 128)

    def groups(self, sizes: tuple[int, ...], schedule: int) -> Groups:
        return (group_count(self._items(), schedule), 1, 1)

    def context(self, schedule: int) -> dict[str, Any]:
        at = [glsl.affine(a, ["row", "column"][: len(a.strides)], f"base_in{i}") for i, a in enumerate(self.index)]
        return {
            "local_size": (schedule, 1),
            "stage": self.stage,
            "items": self._items(),
            "shape": self.shape,
            "number": glsl.clamped(f"in0[{at[0]}]", self.inputs[0], self.shape.rows),
            "lane_items": -(-self.shape.rows // LANES),
            "at": at,
        }

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _REFERENCE[self.stage](self.shape, self._given(inputs), outputs)

    def _given(self, inputs: Sequence[Array]) -> list[Array]:
        """Inputs as arrays over their own axes."""
        s = self.shape
        shapes = {
            "rank": ((s.count,),),
            "offset": ((s.blocks, s.rows),),
            "start": ((s.rows,),),
            "place": ((s.count,), (s.count,), (s.blocks, s.rows), (s.rows,)),
            "sum": ((s.count,), (s.rows,), (s.rows,), (s.count, s.width)),
        }[self.stage]
        return [
            np.broadcast_to(strided(x, a.offset, a.strides, shape), shape)
            for x, a, shape in zip(inputs, self.index, shapes, strict=True)
        ]

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        s = self.shape
        if self.stage == "sum":
            return Cost(s.count * s.width, 4 * (s.count * s.width + s.rows * s.width + s.count))
        words = {"rank": 2 * s.count + s.blocks * s.rows, "offset": 2 * s.blocks * s.rows}
        return Cost(0, 4 * words.get(self.stage, 2 * self._items()))


def _named_rows(s: ScatterShape, index: Array) -> Array:
    """Table rows that the index names, clamped."""
    return np.asarray(np.clip(index.astype(np.int64), 0, s.rows - 1))


def _rank(s: ScatterShape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    number = _named_rows(s, inputs[0])
    counts = np.zeros((s.blocks, s.rows), np.int32)
    rank = outputs[1]
    for j in range(s.block):
        at = np.arange(j, s.count, s.block)
        blocks = np.arange(at.size)
        rank[at] = counts[blocks, number[at]]
        counts[blocks, number[at]] += 1
    outputs[0][: counts.size] = counts.ravel()


def _offset(s: ScatterShape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    sums = np.cumsum(inputs[0], axis=0, dtype=np.int32)
    outputs[0][: sums.size] = (sums - inputs[0]).ravel()
    outputs[1][: s.rows] = sums[-1]


def _start(s: ScatterShape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    outputs[0][: s.rows] = np.cumsum(inputs[0], dtype=np.int32) - inputs[0]


def _place(s: ScatterShape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    index, rank, offset, start = inputs
    number = _named_rows(s, index)
    source = np.arange(s.count)
    outputs[0][start[number] + offset[source // s.block, number] + rank] = source


def _sum(s: ScatterShape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    order, start, total, source = inputs
    out = np.zeros((s.rows, s.width), np.float32)
    for j in range(int(total.max(initial=0))):
        rows = np.flatnonzero(total > j)
        out[rows] = basic.add(out[rows], source[order[start[rows] + j]])
    outputs[0][: out.size] = out.ravel()


_REFERENCE = {"rank": _rank, "offset": _offset, "start": _start, "place": _place, "sum": _sum}


def build_scatter(
    parameters: tuple[str, ScatterShape], operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a "scatter" call (vkdnn.kernels.calls)."""
    stage, shape = parameters
    return ScatterSpec(stage, shape, tuple(o.index for o in operands), tuple(o.dtype for o in operands)), ()


def scatter_add_node(index: Node, source: Node, table_shape: Shape) -> Node:
    """A table [V, ...] of sums: row v is +0 plus the rows of ``source`` (index.shape + row) whose index is v, in
    ascending position. Indices outside the table count as its first or last row.
    """
    rows, width = table_shape[0], math.prod(table_shape[1:])
    count = index.size
    if count == 0 or rows == 0 or width == 0:
        return build.full(table_shape, 0.0)
    block = max(64, 1 << math.isqrt(count).bit_length())
    shape = ScatterShape(count, block, rows, width)
    number = build.reshape(index, (count,))

    def stage(name: str, args: tuple[Node, ...], *shapes: Shape, dtype: DType = int32) -> list[Node]:
        return build.call("scatter", args, (name, shape), tuple((s, dtype) for s in shapes))

    counts, rank = stage("rank", (number,), (shape.blocks, rows), (count,))
    offset, total = stage("offset", (counts,), (shape.blocks, rows), (rows,))
    (start,) = stage("start", (total,), (rows,))
    (order,) = stage("place", (number, rank, offset, start), (count,))
    flat = build.reshape(source, (count, width))
    (out,) = stage("sum", (order, start, total, flat), (rows, width), dtype=float32)
    return build.reshape(out, table_shape)
