"""FoldSpec: rows of elements reduced, and what is computed from the results: softmax, norms, losses, sums.

The order of a reduction (128 lanes, then a tree; DESIGN "Orders") belongs to the spec; schedules only share it out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, constant_bits
from vkdnn.ir.body import Affine, Body, evaluate_body, pieces, strided
from vkdnn.ir.build import FOLDS
from vkdnn.ir.define import evaluate
from vkdnn.ir.ops import OPS
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Target, group_count
from vkdnn.kernels.expr import decompose, dim_names

LANES = 128
SPAN = 32_768  # the longest row of one kernel: longer folds are cut into spans before scheduling


@dataclass(frozen=True)
class FoldSchedule:
    """Whether one invocation or one workgroup of 128 folds a row."""

    row_per_workgroup: bool
    invocations: int = 128


@dataclass(frozen=True)
class FoldSpec(KernelSpec):
    """Rows (first dim from ``sizes``, then ``outer``) of ``inner`` elements.

    ``folds`` lists (op, position of the element's value); later ones may use earlier ones (Instr kind "reduced").
    ``results`` lists (position, per element?, index of the output over all dims): one value an element, or one a row.
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    input_dtypes: tuple[DType, ...]
    body: Body
    folds: tuple[tuple[str, int], ...]
    results: tuple[tuple[int, bool, Affine], ...]

    template = "fold.comp.j2"
    size_names = ("rows",)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return tuple(self.body.instrs[r].dtype for r, _, _ in self.results)

    @property
    def length(self) -> int:
        """Elements of one row."""
        return math.prod(self.inner)

    def text(self) -> str:
        dims = f"fold rows (rows, {', '.join(map(str, self.outer))}) elements {list(self.inner)}"
        folds = "\n".join(f"  reduced {k} = {op} over elements of %{at}" for k, (op, at) in enumerate(self.folds))
        stores = "\n".join(
            f"  out{k}[{at}] = %{r} per {'element' if full else 'row'}" for k, (r, full, at) in enumerate(self.results)
        )
        return f"{dims}\n{self.body.text()}\n{folds}\n{stores}\n"

    def schedules(self, target: Target) -> tuple[FoldSchedule, ...]:
        by_invocation, by_workgroup = FoldSchedule(False), FoldSchedule(True)
        if target.software or self.length < 48:
            return (by_invocation, by_workgroup)
        return (by_workgroup, by_invocation)

    def groups(self, sizes: tuple[int, ...], schedule: FoldSchedule) -> Groups:
        return (group_count(sizes[0], 1 if schedule.row_per_workgroup else schedule.invocations), 1, 1)

    # ---- template

    def _stages(self) -> tuple[set[int], list[list[int]]]:
        """Positions that change along the row, and for each fold and the outputs the positions they need."""
        rank = 1 + len(self.outer)
        varying = self.body.varying(range(rank, rank + len(self.inner)))
        roots = [[at] for _, at in self.folds] + [[r for r, _, _ in self.results]]
        return varying, [self.body.needed(r) for r in roots]

    def context(self, schedule: FoldSchedule) -> dict[str, Any]:
        dims = dim_names(1 + len(self.outer) + len(self.inner))
        outer_dims, inner_dims = dims[: 1 + len(self.outer)], dims[1 + len(self.outer) :]
        varying, stages = self._stages()
        names: dict[int, str] = {}
        blocks = []
        for needed in stages:
            for i in needed:
                instr = self.body.instrs[i]
                if instr.kind == "reduced":
                    names[i] = f"reduced{instr.attrs[0]}"
            row_part = [i for i in needed if i not in varying]
            row_lines = glsl.statements(self.body, row_part, names, dims)
            inside = dict(names)
            element_lines = glsl.statements(self.body, [i for i in needed if i in varying], inside, dims)
            blocks.append((row_lines, element_lines, inside))
        folds = [
            {
                "k": k,
                "row": row,
                "element": element,
                "value": inside[at],
                "type": self.body.instrs[at].dtype.glsl,
                "identity": identity(op, self.body.instrs[at].dtype),
                "combine": OPS[op].glsl_for(self.body.instrs[at].dtype.category).format,
            }
            for k, ((op, at), (row, element, inside)) in enumerate(zip(self.folds, blocks, strict=False))
        ]
        final_row, final_element, final_names = blocks[-1]
        text = {
            full: [
                f"out{k}[{glsl.affine(at, dims, f'base_out{k}')}] = "
                f"{glsl.stored(final_names[r], self.body.instrs[r].dtype)};"
                for k, (r, is_full, at) in enumerate(self.results)
                if is_full is full
            ]
            for full in (True, False)
        }
        lanes = min(LANES, 1 << max(0, (self.length - 1).bit_length()))
        return {
            "local_size": (LANES if schedule.row_per_workgroup else schedule.invocations, 1),
            "row_per_workgroup": schedule.row_per_workgroup,
            "length": self.length,
            "lanes": lanes,
            "lane_bits": lanes.bit_length() - 1,
            "row_coordinates": decompose("row", self.outer, outer_dims),
            "element_coordinates": decompose("e", self.inner[1:], inner_dims) if self.inner else [],
            "folds": folds,
            "lane_types": sorted({f["type"] for f in folds}),
            "final_row": final_row,
            "final_element": final_element,
            "element_stores": text[True],
            "row_stores": text[False],
        }

    def ops(self) -> Sequence[str]:
        return glsl.ops_of(self.body)

    # ---- reference

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        extents = (sizes[0] // math.prod(self.outer), *self.outer)
        for row_box in pieces(extents, self.length):
            box = type(row_box)((*row_box.extents, *self.inner), row_box.start)
            row_shape = (*row_box.extents, *(1,) * len(self.inner))
            values: dict[int, Array] = {}
            for k, (op, at) in enumerate(self.folds):
                self._evaluate([at], box, inputs, values)
                elements = np.broadcast_to(values[at], box.extents).reshape(*row_box.extents, self.length)
                folded = fold_lanes(op, elements).reshape(row_shape)
                values.update(
                    {
                        i: folded
                        for i, instr in enumerate(self.body.instrs)
                        if instr.kind == "reduced" and instr.attrs[0] == k
                    }
                )
            self._evaluate([r for r, _, _ in self.results], box, inputs, values)
            for (result, _, index), out in zip(self.results, outputs, strict=True):
                np.copyto(strided(out, box.origin(index), index.strides, box.extents, writeable=True), values[result])

    def _evaluate(self, roots: list[int], box: Any, inputs: Sequence[Array], values: dict[int, Array]) -> None:
        evaluate_body(self.body, self.body.needed(roots), box, inputs, values)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        elements = sizes[0] * self.length
        full = sum(1 for _, is_full, _ in self.results if is_full)
        read = sum(dtype.words(elements) for dtype in self.inputs)
        return Cost(
            (self.body.flops() + len(self.folds)) * elements,
            4 * (read + elements * full + sizes[0] * (len(self.results) - full)),
        )


def identity(op: str, dtype: DType) -> str:
    """GLSL of what spare lanes hold."""
    return glsl.literal(constant_bits(FOLDS[op][dtype.category], dtype), dtype)


def fold_lanes(op: str, x: Array) -> Array:
    """x [..., n] folded over its last axis, n at most SPAN: lane j takes elements j, j + 128, ...; then the tree.

    Lanes past the end hold the identity, which changes nothing, so they are left out here.
    """
    n = x.shape[-1]
    lanes = x[..., :LANES]
    for start in range(LANES, n, LANES):
        more = x[..., start : start + LANES]
        width = more.shape[-1]
        if width == LANES:
            lanes = evaluate(op, lanes, more)
        else:
            lanes = np.concatenate([evaluate(op, lanes[..., :width], more), lanes[..., width:]], axis=-1)
    width = lanes.shape[-1]
    while width > 1:
        half = 1 << ((width - 1).bit_length() - 1)
        top = width - half
        folded = evaluate(op, lanes[..., :top], lanes[..., half:width])
        lanes = folded if top == half else np.concatenate([folded, lanes[..., top:half]], axis=-1)
        width = half
    return np.asarray(lanes[..., 0])
