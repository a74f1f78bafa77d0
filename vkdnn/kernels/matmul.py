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
from vkdnn.numerics import basic

BLOCK_K = 128
LARGE = 1 << 21  # elements of a result from which on large tiles are enough for all processors of a graphics card
PLAIN = 4  # float operations of an epilogue up to which it is unrolled
_REFERENCE_TILE = 1 << 15  # elements of a result the reference holds at a time: product and sum stay in cache


@dataclass(frozen=True)
class MatmulSchedule:
    """Rows and columns of the result an invocation computes, invocations a workgroup, steps of k in shared memory.

    ``stage_k`` 0 reads operands straight from the buffers: best where shared memory is no faster (software devices).
    Else rows and columns are multiples of 4, and ``local`` has multiples of 8 columns and of 4 rows.
    """

    rows: int
    columns: int
    local: tuple[int, int]
    stage_k: int
    unroll: bool = False


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
        # Wide vector units pay for loads lane by lane, so they want many products a load; compilers of narrow ones
        # cannot hold so many values.
        wide = target.subgroup_size >= 8
        direct = MatmulSchedule(16, 8, (8, 4), 0) if wide else MatmulSchedule(4, 4, (8, 8), 0)
        narrow = MatmulSchedule(1, 1, (64, 1), 0)
        small, large = (MatmulSchedule(*tile, 16, not target.software) for tile in ((4, 4, (16, 16)), (8, 8, (16, 8))))
        staged = (large, small) if largest(self.m) * largest(self.n) >= LARGE else (small, large)
        if largest(self.m) < 4 or largest(self.n) < 4:
            return (narrow, direct)
        return (direct, narrow, small) if target.software else (*staged, direct, narrow)

    def groups(self, sizes: tuple[int, ...], schedule: MatmulSchedule) -> Groups:
        tiles_n = -(-self.n // (schedule.columns * schedule.local[0]))
        tiles_m = -(-self.m // (schedule.rows * schedule.local[1]))
        return (minimum(tiles_n, MAX_GROUPS), minimum(tiles_m, MAX_GROUPS), minimum(sizes[0], MAX_GROUPS))

    def context(self, schedule: MatmulSchedule) -> dict[str, Any]:
        dims = dim_names(1 + len(self.batch)) + ["m", "n"]
        names = {i: "sum" for i, instr in enumerate(self.body.instrs) if instr.kind == "reduced"}
        lines = glsl.statements(self.body, self.body.needed(self.results), names, dims)
        lines += [
            f"out{k}[base_out{k} + at] = {glsl.stored(names[r], self.body.instrs[r].dtype)};"
            for k, r in enumerate(self.results)
        ]
        batch_dims = dims[:-2]
        a_at = glsl.affine(self.a, [*batch_dims, "M", "K"], "base_in0").replace("M", "{m}").replace("K", "{k}")
        b_at = glsl.affine(self.b, [*batch_dims, "K", "N"], "base_in1").replace("N", "{n}").replace("K", "{k}")
        tile_m, tile_n = schedule.rows * schedule.local[1], schedule.columns * schedule.local[0]
        invocations = math.prod(schedule.local)

        def operand(name: str, index: str, stride_k: int, tile: int, at: str, extent: int) -> tuple[Any, ...]:
            """What the template needs of an operand, among it whether neighbours in memory lie along k
            and whether the last tile has rows or columns to spare."""
            loads = tile * schedule.stage_k // invocations
            spare = not same(extent % tile, 0)
            return name, index, same(stride_k, 1), tile, loads, at, extent, self.k, f"past_{name}", spare

        return {
            "local_size": schedule.local,
            "rows": schedule.rows,
            "columns": schedule.columns,
            "stage_k": schedule.stage_k,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "invocations": invocations,
            "unroll": schedule.unroll,
            "plain": self.body.flops() <= PLAIN,
            "ragged": schedule.stage_k and not same(self.k % schedule.stage_k, 0),
            "operands": [
                operand("a", "m", self.a.strides[-1], tile_m, f"in0[{a_at.format(m='m', k='k')}]", self.m),
                operand("b", "n", self.b.strides[-2], tile_n, f"in1[{b_at.format(n='n', k='k')}]", self.n),
            ],
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "batch_coordinates": decompose("batch", self.batch, batch_dims),
            "a_at": a_at,
            "b_at": b_at,
            "epilogue": lines,
        }

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
