"""FoldSpec: rows of elements reduced, and what is computed from the results: softmax, norms, losses, sums.

An element is a value or a tuple of them, merged by a monoid (vkdnn.ir.monoids). The order of a reduction (128 lanes,
then a tree; DESIGN "Orders") belongs to the spec; schedules only share it out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vkdnn.codegen import glsl, merges
from vkdnn.dtypes import DType, as_dtype
from vkdnn.ir.body import Affine, Body, evaluate_body, pieces, strided
from vkdnn.ir.dims import largest, same
from vkdnn.ir.monoids import merger
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Target, group_count
from vkdnn.kernels.expr import decompose, dim_names

LANES = 128
ROWS = 32  # that a workgroup folds together, where neighbours in memory belong to neighbouring rows
HELD_REGISTERS = 64  # values of elements that an invocation may hold: with more, too few invocations fit
SPAN = 32_768  # the longest row of one kernel: longer folds are cut into spans before scheduling


@dataclass(frozen=True)
class FoldSchedule:
    """Whether one invocation or one workgroup of 128 folds a row.

    A workgroup may hold what a later stage needs of an earlier one, ``held`` elements a lane, instead of loading and
    computing it again: for memory that is slower than that (graphics cards). Where neighbours in memory belong to
    neighbouring rows (sums over the first axis), a workgroup folds 32 rows together, each by ``groups`` invocations
    that have 128 / groups lanes.
    """

    row_per_workgroup: bool
    invocations: int = 128
    held: int = 0
    groups: int = 0


class _Stage(NamedTuple):
    """What a fold, or the outputs, compute, and what they take of earlier ones: positions."""

    needed: list[int]
    held: set[int]


@dataclass(frozen=True)
class FoldSpec(KernelSpec):
    """Rows (first dim from ``sizes``, then ``outer``) of ``inner`` elements.

    ``folds`` lists (monoid, positions of the element's fields); later ones may use the results of earlier ones (Instr
    kind "reduced", which counts the fields of all folds).
    ``results`` lists (position, per element?, index of the output over all dims): one value an element, or one a row.
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    input_dtypes: tuple[DType, ...]
    body: Body
    folds: tuple[tuple[str, tuple[int, ...]], ...]
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
        folds = "\n".join(
            f"  reduced {', '.join(map(str, range(k, k + len(at))))} = {name} over elements of "
            + ", ".join(f"%{i}" for i in at)
            for k, (name, at) in zip(self.first_fields(), self.folds, strict=True)
        )
        stores = "\n".join(
            f"  out{k}[{at}] = %{r} per {'element' if full else 'row'}" for k, (r, full, at) in enumerate(self.results)
        )
        return f"{dims}\n{self.body.text()}\n{folds}\n{stores}\n"

    def first_fields(self) -> list[int]:
        """Of each fold the number of its first field among the fields of all."""
        return list(itertools.accumulate((len(at) for _, at in self.folds[:-1]), initial=0))[: len(self.folds)]

    def _dtypes(self, at: tuple[int, ...]) -> tuple[DType, ...]:
        return tuple(self.body.instrs[i].dtype for i in at)

    def schedules(self, target: Target) -> tuple[FoldSchedule, ...]:
        by_invocation, by_workgroup = FoldSchedule(False), FoldSchedule(True)
        steps = -(-largest(self.length) // LANES)
        values = sum(len(stage.held) for stage in self._stages(True))
        holding = (FoldSchedule(True, held=steps),) if 0 < steps * values <= HELD_REGISTERS else ()
        if target.software or largest(self.length) < 48:
            # Compilers of software devices take long over unrolled loops.
            return (by_invocation, by_workgroup, *(holding if steps <= 2 else ()))
        together = (FoldSchedule(True, groups=min(32, target.max_invocations // ROWS)),) if self._across() else ()
        return (*together, *holding, by_workgroup, by_invocation)

    def _across(self) -> bool:
        """Whether neighbours in memory belong to neighbouring rows, in every load that changes along a row."""
        last = len(self.outer)
        loads = [self.body.instrs[i] for i in self._varying() if self.body.instrs[i].kind == "load"]
        steps = [load.attrs[1].strides[last] for load in loads if not load.args]
        return any(same(s, 1) for s in steps) and all(same(s, 0) or same(s, 1) for s in steps)

    def groups(self, sizes: tuple[int, ...], schedule: FoldSchedule) -> Groups:
        rows = ROWS if schedule.groups else 1 if schedule.row_per_workgroup else schedule.invocations
        return (group_count(sizes[0], rows), 1, 1)

    # ---- template

    def _varying(self) -> set[int]:
        """Positions that change along the row."""
        rank = 1 + len(self.outer)
        return self.body.varying(range(rank, rank + len(self.inner)))

    def _stages(self, holding: bool) -> list[_Stage]:
        """The folds and, last, the outputs. ``holding``: the first that needs an element's value computes it."""
        stages: list[_Stage] = []
        roots = [at for _, at in self.folds] + [tuple(r for r, _, _ in self.results)]
        varying, computed = self._varying(), set[int]()
        for at in roots:
            held: set[int] = set()
            if holding:
                new = [i for i in self.body.needed(at) if i not in computed]
                used = {*at, *(a for i in new for a in self.body.instrs[i].args)}
                held = {i for i in used & computed & varying if self.body.instrs[i].kind in ("load", "op")}
            needed = [i for i in self.body.needed(at, held) if i not in held]
            stages.append(_Stage(needed, held))
            computed.update(needed)
        return stages

    def context(self, schedule: FoldSchedule) -> dict[str, Any]:
        dims = dim_names(1 + len(self.outer) + len(self.inner))
        outer_dims, inner_dims = dims[: 1 + len(self.outer)], dims[1 + len(self.outer) :]
        varying, stages = self._varying(), self._stages(schedule.held > 0)
        held = set[int]().union(*(stage.held for stage in stages))
        merge = [merges.printed(name, self._dtypes(at)) for name, at in self.folds]
        results = [f"reduced{k}{f and '_'}{f}" for k, m in enumerate(merge) for f in m.fields or ("",)]
        names: dict[int, str] = {}
        blocks = []
        for stage in stages:
            for i in stage.needed:
                instr = self.body.instrs[i]
                if instr.kind == "reduced":
                    names[i] = results[instr.attrs[0]]
            row_part = [i for i in stage.needed if i not in varying]
            row_lines = glsl.statements(self.body, row_part, names, dims)
            inside = names | {i: f"held{i}[step]" for i in stage.held}
            element_lines = glsl.statements(self.body, [i for i in stage.needed if i in varying], inside, dims)
            element_lines += [f"held{i}[step] = {inside[i]};" for i in stage.needed if i in held]
            blocks.append((row_lines, element_lines, inside))
        folds = [
            {
                "k": k,
                "row": row,
                "element": element,
                "value": m.element([inside[i] for i in at]),
                "type": m.type,
                "identity": m.identity,
                "combine": m.format.format,
                "fields": [
                    f"{d.glsl} reduced{k}_{field} = reduced{k}.{field};"
                    for field, d in zip(m.fields, self._dtypes(at), strict=False)
                ],
            }
            for k, (m, (_, at), (row, element, inside)) in enumerate(zip(merge, self.folds, blocks, strict=False))
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
        local_size = ROWS * schedule.groups or (LANES if schedule.row_per_workgroup else schedule.invocations)
        lanes = min(LANES, 1 << max(0, (largest(self.length) - 1).bit_length()))  # some may hold the identity
        return {
            "local_size": (local_size, 1),
            "groups": schedule.groups,
            "row_per_workgroup": schedule.row_per_workgroup,
            "steps": schedule.held,
            "held": [(self.body.instrs[i].dtype.glsl, f"held{i}") for i in sorted(held)],
            "ragged": not same(self.length, schedule.held * LANES),
            "length": self.length,
            "lanes": lanes,
            "lane_bits": lanes.bit_length() - 1,
            "row_coordinates": decompose("row", self.outer, outer_dims),
            "element_coordinates": decompose("e", self.inner[1:], inner_dims) if self.inner else [],
            "merges": sorted({m.text for m in merge if m.text}),
            "folds": folds,
            "lane_types": sorted({f["type"] for f in folds}),
            "final_row": final_row,
            "final_element": final_element,
            "element_stores": text[True],
            "row_stores": text[False],
        }

    def ops(self) -> Sequence[str]:
        used = set(glsl.ops_of(self.body))
        return sorted(used.union(*(merges.ops_of(name, self._dtypes(at)) for name, at in self.folds)))

    # ---- reference

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        extents = (sizes[0] // math.prod(self.outer), *self.outer)
        for row_box in pieces(extents, self.length):
            box = type(row_box)((*row_box.extents, *self.inner), row_box.start)
            row_shape = (*row_box.extents, *(1,) * len(self.inner))
            values: dict[int, Array] = {}
            results: list[Array] = []
            for name, at in self.folds:
                self._evaluate(list(at), box, inputs, values)
                fields = [np.broadcast_to(values[i], box.extents).reshape(*row_box.extents, self.length) for i in at]
                results += [field.reshape(row_shape) for field in fold_field_lanes(name, fields)]
                for i, instr in enumerate(self.body.instrs):
                    if instr.kind == "reduced" and instr.attrs[0] < len(results):
                        values[i] = results[instr.attrs[0]]
            self._evaluate([r for r, _, _ in self.results], box, inputs, values)
            for (result, _, index), out in zip(self.results, outputs, strict=True):
                np.copyto(strided(out, box.origin(index), index.strides, box.extents, writeable=True), values[result])

    def _evaluate(self, roots: list[int], box: Any, inputs: Sequence[Array], values: dict[int, Array]) -> None:
        evaluate_body(self.body, self.body.needed(roots), box, inputs, values)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        elements = sizes[0] * self.length
        full = sum(1 for _, is_full, _ in self.results if is_full)
        read = sum(dtype.words(elements) for dtype in self.inputs)
        merged = sum(merges.flops(name, self._dtypes(at)) for name, at in self.folds)
        return Cost(
            (self.body.flops() + merged) * elements,
            4 * (read + elements * full + sizes[0] * (len(self.results) - full)),
        )


def fold_lanes(name: str, x: Array) -> Array:
    """x [..., n] folded over its last axis by a monoid of one field; see fold_field_lanes()."""
    return fold_field_lanes(name, (x,))[0]


def fold_field_lanes(name: str, fields: Sequence[Array]) -> tuple[Array, ...]:
    """Fields [..., n] folded over the last axis, n at most SPAN: lane j takes elements j, j + 128, ...; then the tree.

    Lanes past the end hold the identity, which changes nothing, so they are left out here.
    """
    merge = merger(name, tuple(as_dtype(x.dtype) for x in fields))
    n = fields[0].shape[-1]
    lanes = _part(fields, 0, min(n, LANES))
    for start in range(LANES, n, LANES):
        width = min(LANES, n - start)
        merged = merge(_part(lanes, 0, width), _part(fields, start, start + width))
        lanes = _joined(merged, _part(lanes, width, LANES))
    width = min(n, LANES)
    while width > 1:
        half = 1 << ((width - 1).bit_length() - 1)
        merged = merge(_part(lanes, 0, width - half), _part(lanes, half, width))
        lanes = _joined(merged, _part(lanes, width - half, half))
        width = half
    return tuple(np.asarray(lane[..., 0]) for lane in lanes)


def _part(fields: Sequence[Array], start: int, stop: int) -> tuple[Array, ...]:
    return tuple(x[..., start:stop] for x in fields)


def _joined(left: Sequence[Array], right: Sequence[Array]) -> tuple[Array, ...]:
    if right[0].shape[-1] == 0:
        return tuple(left)
    return tuple(np.concatenate(pair, axis=-1) for pair in zip(left, right, strict=True))
