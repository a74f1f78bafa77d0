"""MatmulSpec: batched products of strided operands with a fused elementwise epilogue.

Order along k (DESIGN "Orders"): in sequence from +0 inside blocks of 128, block sums added in sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType
from vkdnn.ir.body import Affine, Body, Box, evaluate_body, strided
from vkdnn.ir.dims import largest, minimum, same
from vkdnn.kernels.base import MAX_GROUPS, Array, Cost, Groups, KernelSpec, Target
from vkdnn.kernels.expr import decompose, dim_names
from vkdnn.kernels.matmul_schedules import BLOCK_K, MatmulSchedule, ThinSchedule, TileSchedule, product_schedules
from vkdnn.numerics import basic

PLAIN = 4  # float operations of an epilogue up to which it is unrolled
_REFERENCE_TILE = 1 << 15  # elements of a result the reference holds at a time: product and sum stay in cache


@dataclass(frozen=True)
class MatmulSpec(KernelSpec):
    """out[batch, m, n] = epilogue(sum over k of a[batch, m, k] b[batch, k, n]).

    Inputs 0 and 1 are the operands; ``a`` and ``b`` index them over (batch dims, m, k) and (batch dims, k, n). The
    first batch dim comes from ``sizes``. In the epilogue ("reduced 0" is the sum) dims are (batch dims, m, n).
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Affine
    b: Affine
    input_dtypes: tuple[DType, ...]
    body: Body
    results: tuple[int, ...]

    template = "matmul.comp.j2"
    size_names = ("batches",)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return tuple(self.body.instrs[r].dtype for r in self.results)

    def text(self) -> str:
        stores = "\n".join(f"  out{k} = %{r}" for k, r in enumerate(self.results))
        head = f"matmul batch (batches, {', '.join(map(str, self.batch))}) m {self.m} n {self.n} k {self.k}"
        return f"{head}\n  a in0[{self.a}]\n  b in1[{self.b}]\n{self.body.text()}\n{stores}\n"

    def schedules(self, target: Target) -> tuple[MatmulSchedule, ...]:
        m, n, k = map(largest, (self.m, self.n, self.k))
        along_k = same(self.a.strides[-1] if n < m else self.b.strides[-2], 1)
        return product_schedules(m, n, k, along_k, target)

    def groups(self, sizes: tuple[int, ...], schedule: MatmulSchedule) -> Groups:
        rows, columns = schedule.tile
        tiles_n, tiles_m = -(-self.n // columns), -(-self.m // rows)
        return (minimum(tiles_n, MAX_GROUPS), minimum(tiles_m, MAX_GROUPS), minimum(sizes[0], MAX_GROUPS))

    def context(self, schedule: MatmulSchedule) -> dict[str, Any]:
        dims = dim_names(1 + len(self.batch)) + ["m", "n"]
        names = {i: "sum" for i, instr in enumerate(self.body.instrs) if instr.kind == "reduced"}
        lines = glsl.statements(self.body, self.body.needed(self.results), names, dims)
        stores = [
            (glsl.stored(names[r], self.body.instrs[r].dtype), self.outputs[k].storage)
            for k, r in enumerate(self.results)
        ]
        batch_dims = dims[:-2]
        context = {
            "tile_m": schedule.tile[0],
            "tile_n": schedule.tile[1],
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "batch_coordinates": decompose("batch", self.batch, batch_dims),
            "epilogue": lines,
            "stores": stores,
            "plain": self.body.flops() <= PLAIN,
        }
        if isinstance(schedule, ThinSchedule):
            return context | self._thin(schedule, batch_dims)
        return context | (
            self._staged(schedule, batch_dims) if schedule.stage_k else self._direct(schedule, batch_dims)
        )

    def _direct(self, schedule: TileSchedule, batch_dims: list[str]) -> dict[str, Any]:
        a_at = glsl.affine(self.a, [*batch_dims, "M", "K"], "base_in0").replace("M", "{m}").replace("K", "{k}")
        b_at = glsl.affine(self.b, [*batch_dims, "K", "N"], "base_in1").replace("N", "{n}").replace("K", "{k}")
        return {
            "form": "direct",
            "local_size": schedule.local,
            "rows": schedule.rows,
            "columns": schedule.columns,
            "a_at": a_at,
            "b_at": b_at,
        }

    def _staged(self, schedule: TileSchedule, batch_dims: list[str]) -> dict[str, Any]:
        invocations = math.prod(schedule.local)
        loads = [tile * schedule.stage_k // invocations for tile in schedule.tile]
        operands = [self._operand_a(batch_dims, loads[0] % 4 == 0), self._operand_b(batch_dims, loads[1] % 4 == 0)]
        store_fours = same(self.n % 4, 0)
        step = schedule.stage_k if schedule.slices == 1 else BLOCK_K * schedule.slices
        return {
            "form": "tiles",
            "local_size": (schedule.local[0], schedule.local[1] * schedule.slices),
            "lanes": schedule.local,
            "rows": schedule.rows,
            "columns": schedule.columns,
            "stage_k": schedule.stage_k,
            "invocations": invocations,
            "unroll": schedule.unroll,
            "slices": schedule.slices,
            "meeting": schedule.meeting,
            "ragged": not same(self.k % step, 0),
            "operands": [
                operand | {"tile": tile, "loads": count // operand["wide"], "spare": not same(extent % tile, 0)}
                for operand, tile, count, extent in zip(operands, schedule.tile, loads, (self.m, self.n), strict=True)
            ],
            "store_fours": store_fours,
            "wide": [f"in{i}" for i, operand in enumerate(operands) if operand["wide"] == 4]
            + [f"out{k}" for k in range(len(self.results)) if store_fours],
        }

    def _thin(self, schedule: ThinSchedule, batch_dims: list[str]) -> dict[str, Any]:
        operands = [self._operand_a, self._operand_b]
        load_few, load_many = reversed(operands) if schedule.mirrored else operands
        few, many = load_few(batch_dims), load_many(batch_dims)
        if not few["along_k"]:  # it is staged by fours along k
            few = load_few(batch_dims, False)
        if not many["along_k"] and schedule.columns < 4:
            many = load_many(batch_dims, False)
        extent = self.n if schedule.mirrored else self.m
        step = schedule.stage_k if schedule.slices == 1 else BLOCK_K * schedule.slices
        return {
            "form": "thin",
            "local_size": (schedule.lanes, schedule.slices),
            "invocations": schedule.invocations,
            "rows": schedule.few,
            "columns": schedule.columns,
            "lanes": schedule.lanes,
            "slices": schedule.slices,
            "stage_k": schedule.stage_k,
            "steps_ahead": schedule.ahead,
            "meeting": schedule.meeting,
            "ragged": not same(self.k % step, 0),
            "few": few | {"spare": not same(extent % schedule.few, 0)},
            "many": many,
            "wide": [f"in{'ab'.index(x['name'])}" for x in (few, many) if x["wide"] == 4],
        }

    def _operand_a(self, batch_dims: list[str], wide: bool = True) -> dict[str, Any]:
        return _loads(0, self.a, [*batch_dims, "m", "k"], (self.m, self.k), wide)

    def _operand_b(self, batch_dims: list[str], wide: bool = True) -> dict[str, Any]:
        *batch, stride_k, stride_n = self.b.strides
        at = Affine(self.b.offset, (*batch, stride_n, stride_k))
        return _loads(1, at, [*batch_dims, "n", "k"], (self.n, self.k), wide)

    def ops(self) -> Sequence[str]:
        return glsl.ops_of(self.body)

    # ---- reference

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        batches = (sizes[0] // math.prod(self.batch), *self.batch)
        a = self._operand(inputs[0], self.a, batches, (self.m, self.k))
        b = self._operand(inputs[1], self.b, batches, (self.k, self.n))
        total = np.empty((sizes[0], self.m, self.n), np.float32)
        rows = max(1, _REFERENCE_TILE // self.n)
        for batch in range(sizes[0]):
            for start in range(0, self.m, rows):
                total[batch, start : start + rows] = product(a[batch, start : start + rows], b[batch])
        box = Box((*batches, self.m, self.n))
        reduced = [i for i, instr in enumerate(self.body.instrs) if instr.kind == "reduced"]
        values = dict.fromkeys(reduced, total.reshape(box.extents))
        evaluate_body(self.body, self.body.needed(self.results), box, inputs, values)
        for result, out in zip(self.results, outputs, strict=True):
            np.copyto(out[: math.prod(box.extents)].reshape(box.extents), values[result])

    @staticmethod
    def _operand(data: Array, index: Affine, batches: tuple[int, ...], last: tuple[int, int]) -> Array:
        extents = (*batches, *last)
        view = strided(data, index.offset, index.strides, extents)
        return np.ascontiguousarray(np.broadcast_to(view, extents)).reshape(-1, *last)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        out = sizes[0] * self.m * self.n
        moved = sizes[0] * (self.m * self.k + self.k * self.n) + out * (len(self.inputs) - 2 + len(self.results))
        return Cost(2 * out * self.k + out * self.body.flops(), 4 * moved)


def _loads(slot: int, at: Affine, dims: list[str], extents: tuple[int, int], wide: bool) -> dict[str, Any]:
    """What templates need of an operand, indexed over (batch dims, row or column, k): the text that loads an element,
    or ``wide`` neighbours where memory has four of them together, and whether these lie along k."""
    along_k = same(at.strides[-1], 1)
    neighbours = len(dims) - (1 if along_k else 2)
    others = [s for d, s in enumerate(at.strides) if d != neighbours]
    wide = wide and same(at.strides[neighbours], 1)
    wide = wide and all(same(x % 4, 0) for x in (at.offset, *others, extents[along_k]))
    name, base, width = f"in{slot}", f"base_in{slot}", 4 if wide else 1
    if wide:
        strides = tuple(1 if d == neighbours else s // 4 for d, s in enumerate(at.strides))
        fours = [f"({dim} / 4u)" if d == neighbours else dim for d, dim in enumerate(dims)]
        text = f"wide_{name}[{glsl.affine(Affine(at.offset // 4, strides), fours, f'{base} / 4u')}]"
    else:
        text = f"{name}[{glsl.affine(at, dims, base)}]"
    return {
        "name": "ab"[slot],
        "index": dims[-2],
        "plural": ("rows", "columns")[slot],
        "along_k": along_k,
        "wide": width,
        "at": text,
        "last": extents[0] - (1 if along_k else width),
        "last_k": extents[1] - (width if along_k else 1),
    }


def product(a: Array, b: Array) -> Array:
    """a [M, K] times b [K, N] in the contract's order."""
    total: Array | None = None
    columns = np.ascontiguousarray(a.T)
    for start in range(0, b.shape[0], BLOCK_K):
        block = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(start, min(start + BLOCK_K, b.shape[0])):
            block = basic.add(block, basic.mul(columns[k][:, None], b[k][None, :]))
        total = block if total is None else basic.add(total, block)
    assert total is not None
    return total
