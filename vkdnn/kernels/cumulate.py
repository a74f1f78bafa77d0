"""CumulateSpec: running sums, products, extremes and linear recurrences along one axis, in blocks of 128.

Inside a block in sequence from its first element; the totals of the blocks are cumulated by the same rule, and what
they give meets each block once. A block's order never depends on how many invocations share the blocks out.

total    of each block but the last: its cumulated value (for a recurrence: the product of a, and the state from 0)
result   every element: (result of the blocks before) op (prefix in the block), the first block as it is; a recurrence
         runs through the block again from the state before it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType
from vkdnn.ir import build
from vkdnn.ir.body import Affine, strided
from vkdnn.ir.define import evaluate
from vkdnn.ir.dims import largest, maximum, same
from vkdnn.ir.node import Node
from vkdnn.ir.ops import OPS
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Operand, Results, Target, group_count
from vkdnn.numerics import basic

FAMILY = "cumulate"
BLOCK = 128
OPERATIONS = ("add", "mul", "maximum", "minimum")
RECURRENCE = "recurrence"  # s_i = a_i s_(i-1) + b_i, s_0 = b_0
OVER_BLOCKS = "recurrence over blocks"  # the same on totals: a state of 0 gives nothing, though a product overflowed


@dataclass(frozen=True)
class CumulateParameters:
    """What a call cumulates ("add", ..., RECURRENCE, OVER_BLOCKS) and its stage ("total" or "result")."""

    form: str
    stage: str


@dataclass(frozen=True)
class CumulateSchedule:
    """Invocations a workgroup, each with a block of its own, and how many blocks it stages in shared memory (0: none).

    Staging is for graphics cards and an axis whose elements are neighbours: those of a block then lie together.
    """

    invocations: int
    staged: int = 0


@dataclass(frozen=True)
class CumulateSpec(KernelSpec):
    """One stage over [outer, length, inner], ``outer`` from the sizes. ``index`` has the operands (x, or a and b), and
    for a result beyond the first block the states before the blocks [outer, blocks - 1, inner].
    """

    form: str
    stage: str
    length: int
    inner: int
    index: tuple[Affine, ...]
    input_dtypes: tuple[DType, ...]
    wanted: tuple[int, ...]

    template = "cumulate.comp.j2"
    size_names = ("outer",)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return (self.inputs[0],) * len(self.wanted)

    @property
    def pair(self) -> bool:
        """Whether the elements are pairs (a, b) of a recurrence."""
        return self.form not in OPERATIONS

    @property
    def blocks(self) -> int:
        """Blocks walked: all, or for totals all but the last."""
        return maximum(-(-self.length // BLOCK) - (self.stage == "total"), 0)

    def text(self) -> str:
        inputs = "".join(f"\n  in{i} {d} [{a}]" for i, (a, d) in enumerate(zip(self.index, self.inputs, strict=True)))
        return f"cumulate {self.form} {self.stage} (outer, {self.length}, {self.inner}) results {self.wanted}{inputs}\n"

    def schedules(self, target: Target) -> tuple[CumulateSchedule, ...]:
        plain = CumulateSchedule(64), CumulateSchedule(128)
        along = same(self.inner, 1) and all(same(a.strides[1], 1) for a in self.index[: 1 + self.pair])
        if target.software or self.stage == "total" or not along:
            return plain
        return (CumulateSchedule(128, 32 >> self.pair), *plain)

    def groups(self, sizes: tuple[int, ...], schedule: CumulateSchedule) -> Groups:
        per_group = schedule.staged or schedule.invocations
        return (group_count(sizes[0] * self.blocks * self.inner, per_group), 1, 1)

    def context(self, schedule: CumulateSchedule) -> dict[str, Any]:
        dtype = self.inputs[0]
        inputs = [f"in{i}[{glsl.affine(a, ['row', 'k', 'column'], f'base_in{i}')}]" for i, a in enumerate(self.index)]
        return {
            "local_size": (schedule.invocations, 1),
            "tiled": schedule.staged,
            "form": self.form,
            "stage": self.stage,
            "pair": self.pair,
            "over_blocks": self.form == OVER_BLOCKS,
            "type": dtype.glsl,
            "combine": "" if self.pair else OPS[self.form].glsl_for(dtype.category),
            "length": self.length,
            "inner": self.inner,
            "block_size": BLOCK,
            "blocks": self.blocks,
            "inputs": inputs,
            "carried": len(inputs) > 1 + self.pair,
            "wanted": self.wanted,
        }

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        shape = (sizes[0], self.length, self.inner)
        given = [
            np.broadcast_to(strided(x, a.offset, a.strides, shape), shape)
            for x, a in zip(inputs[: 1 + self.pair], self.index, strict=False)
        ]
        results = _totals(self, given) if self.stage == "total" else [self._results(sizes, given, inputs)]
        for output, k in zip(outputs, self.wanted, strict=True):
            output[: results[k].size] = results[k].ravel()

    def _results(self, sizes: tuple[int, ...], given: Sequence[Array], inputs: Sequence[Array]) -> Array:
        before = None
        if len(inputs) > len(given):
            shape = (sizes[0], max(self.blocks - 1, 0), self.inner)
            index = self.index[-1]
            before = np.broadcast_to(strided(inputs[-1], index.offset, index.strides, shape), shape)
        return _recurred(self, given, before) if self.pair else _cumulated(self, given[0], before)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        elements = sizes[0] * self.length * self.inner
        totals = sizes[0] * -(-self.length // BLOCK) * self.inner
        per_element = (3 if self.stage == "total" else 2) if self.pair else 1 + (self.stage == "result")
        moved = (1 + self.pair + (self.stage == "result")) * elements + (1 + self.pair) * totals
        return Cost(per_element * elements if self.inputs[0].category == "f" else 0, 4 * moved)


# ---- the reference: each step of all blocks at once


def _step(spec: CumulateSpec, a: Array, state: Array, b: Array) -> Array:
    moved = basic.add(basic.mul(a, state), b)
    if spec.form != OVER_BLOCKS:
        return moved
    return np.where((state == 0) & ~basic.is_nan(a), b, moved)


def _totals(spec: CumulateSpec, given: Sequence[Array]) -> list[Array]:
    stop = spec.blocks * BLOCK
    x = given[0]
    total = x[:, 0:stop:BLOCK]
    if not spec.pair:
        for k in range(1, BLOCK):
            total = evaluate(spec.form, total, x[:, k:stop:BLOCK])
        return [total]
    b = given[1]
    state = b[:, 0:stop:BLOCK]
    for k in range(1, BLOCK):
        a = x[:, k:stop:BLOCK]
        total, state = basic.mul(total, a), _step(spec, a, state, b[:, k:stop:BLOCK])
    return [total, state]


def _cumulated(spec: CumulateSpec, x: Array, before: Array | None) -> Array:
    out = x.copy()
    for k in range(1, min(BLOCK, spec.length)):
        last = out[:, k - 1 :: BLOCK][:, : out[:, k::BLOCK].shape[1]]
        out[:, k::BLOCK] = evaluate(spec.form, last, x[:, k::BLOCK])
    if before is not None:
        spread = np.repeat(before, BLOCK, axis=1)[:, : spec.length - BLOCK]
        out[:, BLOCK:] = evaluate(spec.form, spread, out[:, BLOCK:])
    return out


def _recurred(spec: CumulateSpec, given: Sequence[Array], before: Array | None) -> Array:
    a, b = given
    out = b.copy()
    if before is not None:
        out[:, BLOCK::BLOCK] = _step(spec, a[:, BLOCK::BLOCK], before, b[:, BLOCK::BLOCK])
    for k in range(1, min(BLOCK, spec.length)):
        last = out[:, k - 1 :: BLOCK][:, : out[:, k::BLOCK].shape[1]]
        out[:, k::BLOCK] = _step(spec, a[:, k::BLOCK], last, b[:, k::BLOCK])
    return out


# ---- from graphs


def build_cumulate(
    parameters: CumulateParameters, operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a "cumulate" call (vkdnn.kernels.calls)."""
    outer, length, inner = operands[0].shape
    index, dtypes = tuple(o.index for o in operands), tuple(o.dtype for o in operands)
    return CumulateSpec(parameters.form, parameters.stage, length, inner, index, dtypes, wanted), (outer,)


def cumulate(form: str, x: Node, axis: int) -> Node:
    """x cumulated along an axis by a row of the op table, float32, int32 or uint32."""
    return _along(axis, (x,), lambda args: _cumulate(form, args))


def recurrence(a: Node, b: Node, axis: int) -> Node:
    """s_i = a_i s_(i-1) + b_i along an axis, s_0 = b_0; a and b of one shape, float32."""
    return _along(axis, (a, b), lambda args: _cumulate(RECURRENCE, args))


def _along(axis: int, operands: tuple[Node, ...], function: Any) -> Node:
    """``function`` of the operands as [outer, length, inner]."""
    shape = operands[0].shape
    if math.prod(shape) == 0 or shape[axis] == 1:
        return operands[-1]
    flat = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    result: Node = function(tuple(build.reshape(x, flat) for x in operands))
    return build.reshape(result, shape)


def _cumulate(form: str, args: tuple[Node, ...]) -> Node:
    outer, length, inner = args[0].shape
    if length == 1:
        return args[-1]
    dtype = args[0].dtype
    before: tuple[Node, ...] = ()
    if largest(length) > BLOCK:  # of a symbolic length of one block there are no totals, and nobody meets them
        totals = (outer, maximum(-(-length // BLOCK) - 1, 0), inner)
        found = build.call(FAMILY, args, CumulateParameters(form, "total"), ((totals, dtype),) * len(args))
        before = (_cumulate(OVER_BLOCKS if form == RECURRENCE else form, tuple(found)),)
    (out,) = build.call(FAMILY, args + before, CumulateParameters(form, "result"), ((args[0].shape, dtype),))
    return out
