"""ScatterSpec: rows of a table as sums of the source rows that name them, in ascending source index, without atomics.

The source rows are put in the order of their table rows, stably, and every table row finds its own. Either by counting,
four small kernels in sequence:

rank     each block of source rows is walked in order: its count of every table row, and the rank of each source row
         among the block's rows of the same number
offset   along the blocks: how many rows of each number lie in earlier blocks, and the total
start    along the table: where the rows of each number start in the sorted order
place    the sorted order itself

or, where a counter for every block and table row would be too many, by vkdnn.kernels.sort and

find     along the table: where the rows of each number start in the sorted order, and how many there are

Then, after either, with the same bits:

sum      out[v] = +0, or row v of a given table, + source rows of number v in ascending index
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, int32
from vkdnn.ir import build
from vkdnn.ir.body import Affine, strided
from vkdnn.ir.dims import Dim, largest, minimum
from vkdnn.ir.node import Node, Shape
from vkdnn.ir.ops import OPS
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Operand, Results, Target, group_count
from vkdnn.kernels.sort import keys_of, sorted_rows
from vkdnn.numerics import basic

STRIP = 4  # neighbours of the table that an invocation has in the "start" stage
STARTS = 64  # workgroups that share it at most
OFFSETS = 32  # table rows of a workgroup that shares the "offset" stage
STAGED = 4096  # source rows a block that a workgroup holds in shared memory
COUNTERS = 4  # counters an element of the source and the table, up to which rows are ordered by counting


@dataclass(frozen=True)
class ScatterShape:
    """Source rows, source rows a block (of counting), table rows, elements of a row; of each of ``batches`` tables."""

    count: int
    block: int
    rows: int
    width: int
    batches: int = 1

    @property
    def blocks(self) -> int:
        return -(-self.count // self.block)


@dataclass(frozen=True)
class ScatterSchedule:
    """Invocations a workgroup; in the "sum" stage elements of a row for each and source rows under way; whether a
    workgroup shares a block in "rank" and 32 table rows in "offset", and several share the table in "start".
    """

    lanes: int
    columns: int = 1
    ahead: int = 1
    shared: bool = False


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
        if self.stage == "sum":
            return (self.inputs[3],)
        return (int32,) * (2 if self.stage in ("rank", "offset", "find") else 1)

    def text(self) -> str:
        s = self.shape
        inputs = "".join(f"\n  in{i} {d} [{a}]" for i, (a, d) in enumerate(zip(self.index, self.inputs, strict=True)))
        batches = f"batches {s.batches} " if s.batches > 1 else ""
        return f"scatter {self.stage} {batches}count {s.count} block {s.block} rows {s.rows} width {s.width}{inputs}\n"

    def _items(self, schedule: ScatterSchedule) -> int:
        """What the invocations share out, or workgroups in the stages where these work together."""
        s = self.shape
        if self.stage == "start":
            return minimum(STARTS, -(-s.rows // (schedule.lanes * STRIP))) if schedule.shared else 1
        if self.stage == "offset" and schedule.shared:
            return -(-s.rows // OFFSETS)
        return {
            "rank": s.blocks, "offset": s.rows, "place": s.count, "find": s.batches * s.rows,
            "sum": s.batches * s.rows * -(-s.width // schedule.columns),
        }[self.stage]  # fmt: skip

    def schedules(self, target: Target) -> tuple[ScatterSchedule, ...]:
        plain, lanes = ScatterSchedule(64), min(1024, target.max_invocations)
        columns = 4 if largest(self.shape.width) >= 4 else 1
        # Compilers of software devices take long over unrolled loops. Small workgroups spread a row that many name.
        sums = [(128, 4)] if target.software else [(128, 16), (32, 16)]
        found = {
            "rank": [ScatterSchedule(lanes, shared=True)] if largest(self.shape.block) <= STAGED else [],
            "offset": [ScatterSchedule(256, shared=True)],
            "start": [ScatterSchedule(256, shared=True)],
            "sum": [ScatterSchedule(n, columns, ahead) for n, ahead in sums],
        }.get(self.stage, [])
        return (plain, *found) if target.software else (*found, plain)

    def groups(self, sizes: tuple[int, ...], schedule: ScatterSchedule) -> Groups:
        together = self.stage == "start" or schedule.shared
        return (group_count(self._items(schedule), 1 if together else schedule.lanes), 1, 1)

    def context(self, schedule: ScatterSchedule) -> dict[str, Any]:
        at = [glsl.affine(a, ["row", "column"][: len(a.strides)], f"base_in{i}") for i, a in enumerate(self.index)]
        value, width = self.outputs[0], self.shape.width
        return {
            "local_size": (schedule.lanes, 1),
            "lanes": schedule.lanes,
            "stage": self.stage,
            "items": self._items(schedule),
            "shape": self.shape,
            "type": value.glsl,
            "zero": {"f": "ZERO", "u": "0u"}.get(value.category, "0"),
            "plus": OPS["add"].glsl_for(value.category),
            "number": glsl.clamped(f"in0[{at[0]}]", self.inputs[0], self.shape.rows),
            "search_step": 1 << (largest(self.shape.count).bit_length() - 1),
            "offsets": OFFSETS,
            "slice": -(-self.shape.blocks // (schedule.lanes // OFFSETS)) if schedule.lanes >= OFFSETS else 0,
            "strip": STRIP,
            "strips": -(-self.shape.rows // (schedule.lanes * STRIP)),
            "columns": schedule.columns,
            "ragged": schedule.columns > 1 and (isinstance(width, Dim) or bool(width % schedule.columns)),
            "places": -(-self.shape.width // schedule.columns),
            "runs": [n for n in (schedule.ahead, 4, 1) if n <= schedule.ahead],
            "shared_memory": schedule.shared,
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
            "find": ((s.batches * s.count,),),
            "sum": (
                (s.batches * s.count,),
                (s.batches * s.rows,),
                (s.batches * s.rows,),
                (s.batches * s.count, s.width),
                *(((s.batches * s.rows, s.width),) * (len(self.index) - 4)),
            ),
        }[self.stage]
        return [
            np.broadcast_to(strided(x, a.offset, a.strides, shape), shape)
            for x, a, shape in zip(inputs, self.index, shapes, strict=True)
        ]

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        s = self.shape
        if self.stage == "sum":
            added, table = s.batches * s.count * s.width, s.batches * s.rows * s.width
            flops = added if self.outputs[0].category == "f" else 0
            return Cost(flops, 4 * (added + table * (len(self.index) - 3) + s.batches * s.count))
        words = {"rank": 2 * s.count + s.blocks * s.rows, "offset": 2 * s.blocks * s.rows}
        return Cost(0, 4 * words.get(self.stage, 2 * self._items(ScatterSchedule(1))))


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


def _find(s: ScatterShape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    batch = np.repeat(np.arange(s.batches), s.count)
    row = np.minimum(inputs[0].astype(np.int64), s.rows - 1) + batch * s.rows
    total = np.bincount(row, minlength=s.batches * s.rows)
    outputs[0][: total.size] = np.cumsum(total) - total
    outputs[1][: total.size] = total


def _sum(s: ScatterShape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    order, start, total, source, *base = inputs
    out = base[0].copy() if base else np.zeros((s.batches * s.rows, s.width), source.dtype)
    first = np.repeat(np.arange(s.batches) * s.count, s.rows)
    for j in range(int(total.max(initial=0))):
        rows = np.flatnonzero(total > j)
        out[rows] = basic.add(out[rows], source[first[rows] + order[start[rows] + j]])
    outputs[0][: out.size] = out.ravel()


_REFERENCE = {"rank": _rank, "offset": _offset, "start": _start, "place": _place, "find": _find, "sum": _sum}


def build_scatter(
    parameters: tuple[str, ScatterShape], operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a "scatter" call (vkdnn.kernels.calls)."""
    stage, shape = parameters
    return ScatterSpec(stage, shape, tuple(o.index for o in operands), tuple(o.dtype for o in operands)), ()


# ---- graphs


@dataclass(frozen=True, eq=False)
class Segments:
    """The source rows of every table row: ``total`` [batches * rows] of them, at ``order[start + j]`` (positions in
    their batch) in ascending position; all int32.
    """

    shape: ScatterShape
    order: Node
    start: Node
    total: Node

    def sums(self, source: Node, base: Node | None = None) -> Node:
        """[batches, rows, width]: each row of ``base``, or 0, plus its rows of ``source`` [batches, count, width]."""
        s = self.shape
        args = [self.order, self.start, self.total, build.reshape(source, (s.batches * s.count, s.width))]
        if base is not None:
            args.append(build.reshape(base, (s.batches * s.rows, s.width)))
        (out,) = _stage("sum", s, tuple(args), (s.batches * s.rows, s.width), dtype=source.dtype)
        return build.reshape(out, (s.batches, s.rows, s.width))

    def last(self) -> tuple[Node, Node]:
        """For each table row [batches * rows]: whether it has source rows, and the last one's position in its batch."""
        return self.total > 0, build.take(self.order, self.start + self.total - 1)


def segments(index: Node, rows: int, width: int) -> Segments:
    """The source rows [batches, count] by table row; numbers outside count as the first or last. Nothing is empty."""
    batches, count = index.shape
    block = max(64, 1 << math.isqrt(largest(count)).bit_length())
    shape = ScatterShape(count, block, rows, width, batches)
    few = isinstance(count, Dim) or shape.blocks * rows <= COUNTERS * (count + rows) * width
    if batches != 1 or not few:
        below = build.apply("minimum", index, rows - 1)
        key = build.apply("to_uint32", below if index.dtype.category == "u" else build.apply("maximum", below, 0))
        keys, order = sorted_rows(key, count)
        start, total = _stage("find", shape, (build.reshape(keys, (-1,)),), *[(batches * rows,)] * 2)
        return Segments(shape, build.reshape(order, (-1,)), start, total)
    number = build.reshape(index, (count,))
    counts, rank = _stage("rank", shape, (number,), (shape.blocks, rows), (count,))
    offset, total = _stage("offset", shape, (counts,), (shape.blocks, rows), (rows,))
    (start,) = _stage("start", shape, (total,), (rows,))
    (order,) = _stage("place", shape, (number, rank, offset, start), (count,))
    return Segments(shape, order, start, total)


def _stage(name: str, shape: ScatterShape, args: tuple[Node, ...], *shapes: Shape, dtype: DType = int32) -> list[Node]:
    return build.call("scatter", args, (name, shape), tuple((s, dtype) for s in shapes))


def numbers(call: Node) -> Node:
    """The table row, int32 or uint32 [batches * count], that each source row of a "sum" call went to."""
    shape: ScatterShape = call.attrs[1][1]
    order = call.args[0]
    order = order.args[0] if order.kind == "reshape" else order
    if order.args[0].attrs[0] == "scatter":  # from the "place" stage
        return order.args[0].args[0]
    row = build.apply("to_int32", keys_of(order)) + build.iota((shape.batches, shape.count), 0) * shape.rows
    return build.reshape(row, (shape.batches * shape.count,))


def scatter_add_node(index: Node, source: Node, table_shape: Shape, base: Node | None = None) -> Node:
    """A table [V, ...] of sums: row v is +0 (or row v of ``base``) plus the rows of ``source`` (index.shape + row)
    whose index is v, in ascending position. Indices outside the table count as its first or last row.
    """
    rows, width = table_shape[0], math.prod(table_shape[1:])
    count = index.size
    if count == 0 or rows == 0 or width == 0:
        return build.full(table_shape, 0, source.dtype) if base is None else base
    found = segments(build.reshape(index, (1, count)), rows, width)
    return build.reshape(found.sums(build.reshape(source, (1, count, width)), base), table_shape)


def scatter_along_node(index: Node, source: Node, table_shape: Shape, axis: int) -> Node:
    """The sums that are the gradient of build.gather: out[.., index[.., i, ..], ..] adds ``source``[.., i, ..] along
    one axis, from +0, in ascending i; index and source of one shape.
    """
    if source.size == 0 or math.prod(table_shape) == 0:
        return build.full(table_shape, 0, source.dtype)
    batched = _batched(index, axis)
    out = segments(batched, table_shape[axis], 1).sums(_batched(source, axis))
    return _unbatched(out, table_shape, axis)


def put_along_node(table: Node, index: Node, source: Node, axis: int) -> Node:
    """table with out[.., index[.., i, ..], ..] = source[.., i, ..] along one axis, the last i of several; index and
    source of one shape.
    """
    if source.size == 0 or table.size == 0:
        return table
    written, position = segments(_batched(index, axis), table.shape[axis], 1).last()
    values = _batched(source, axis)
    chosen = build.gather(values, build.reshape(position, (values.shape[0], -1)), 1)
    return build.apply("where", _unbatched(written, table.shape, axis), _unbatched(chosen, table.shape, axis), table)


def _batched(x: Node, axis: int) -> Node:
    """x as [batches, length of the axis]."""
    others = tuple(a for a in range(x.ndim) if a != axis)
    return build.reshape(build.permute(x, (*others, axis)), (-1, x.shape[axis]))


def _unbatched(x: Node, shape: Shape, axis: int) -> Node:
    """The inverse of _batched(), for a result of this shape."""
    others = [a for a in range(len(shape)) if a != axis]
    back = sorted(range(len(shape)), key=[*others, axis].__getitem__)
    return build.permute(build.reshape(x, tuple(shape[a] for a in (*others, axis))), tuple(back))
