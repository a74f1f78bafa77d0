"""FoldSpec: rows of elements reduced, and what is computed from the results: softmax, norms, losses, sums.

An element is a value or a tuple of them, merged by a monoid (vkdnn.ir.monoids). The order of a reduction (128 lanes,
then a tree; DESIGN "Orders") belongs to the spec; schedules only share it out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vkdnn.codegen import glsl, merges
from vkdnn.dtypes import DType, as_dtype
from vkdnn.ir.body import Affine, Body, evaluate_body, pieces, strided
from vkdnn.ir.dims import largest, same
from vkdnn.ir.monoids import merger
from vkdnn.ir.ops import OPS
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Target, group_count
from vkdnn.kernels.expr import decompose, dim_names

LANES = 128
HELD_REGISTERS = 64  # values of elements that an invocation may hold: with more, too few invocations fit
AHEAD = 16  # loads of an invocation that are under way together: a graphics card needs that to use its memory
COSTLY = 8  # float operations of an op-table row from which on its result is worth holding
SPAN = 32_768  # the longest row of one kernel: longer folds are cut into spans before scheduling


@dataclass(frozen=True)
class FoldSchedule:
    """Invocations that fold a row, and rows of a workgroup.

    One invocation needs no shared memory. Of several, each has every ``threads``-th lane. They may hold what a later
    stage needs of an earlier one instead of loading and computing it again, for memory that is slower than that
    (graphics cards); else ``ahead`` elements of a lane are loaded at a time. Neighbouring invocations have neighbouring
    elements of a row, or with ``across`` neighbouring rows: for sums over the first axis.
    """

    threads: int = 1
    rows: int = 128
    held: bool = False
    ahead: int = 1
    across: bool = False
    unroll: bool = True
    """What is held stays in registers and loads are under way together only where loops over them are unrolled."""


class _Stage(NamedTuple):
    """What folds that are computed together, or the outputs, compute, and what they take of earlier ones: positions."""

    folds: list[int]
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
        by_invocation, by_workgroup = FoldSchedule(), FoldSchedule(LANES, 1, unroll=False)
        if target.software:
            return (by_invocation, by_workgroup)  # their compilers take long over unrolled loops
        length, lanes, values = largest(self.length), self._lanes(), self._most_held()
        if length < 16:
            return (by_invocation, by_workgroup)
        found = []
        # Few rows and many invocations for each: weights have few, and then they fill more of the device.
        for threads, rows in ((128, 8), (32, 32), (32, 8), (8, 32)) if self._across() else ():
            fits = 4 * self._shared_words() * threads * rows <= target.shared_bytes
            if fits and threads <= lanes and threads * rows <= target.max_invocations:
                found.append(FoldSchedule(threads, rows, ahead=max(1, AHEAD * threads // LANES), across=True))
        best = min(lanes, max(8 if length < LANES else 16, 1 << (length // 16).bit_length() - 1))
        for threads in (best, 2 * best, best // 2):
            if 8 <= threads <= lanes:
                each = -(-length // LANES) * (lanes // threads)  # elements of an invocation
                if 0 < values * each <= HELD_REGISTERS:
                    found.append(FoldSchedule(threads, LANES // threads, held=True))
                if threads == best or not values:
                    found.append(FoldSchedule(threads, LANES // threads, ahead=max(1, AHEAD * threads // LANES)))
        return (*found, by_workgroup, by_invocation)

    def _across(self) -> bool:
        """Whether neighbours in memory belong to neighbouring rows, in every load that changes along a row."""
        last = len(self.outer)
        loads = [self.body.instrs[i] for i in self._varying() if self.body.instrs[i].kind == "load"]
        steps = [load.attrs[1].strides[last] for load in loads if not load.args]
        return any(same(s, 1) for s in steps) and all(same(s, 0) or same(s, 1) for s in steps)

    def groups(self, sizes: tuple[int, ...], schedule: FoldSchedule) -> Groups:
        return (group_count(sizes[0], schedule.rows), 1, 1)

    # ---- template

    def _varying(self) -> set[int]:
        """Positions that change along the row."""
        rank = 1 + len(self.outer)
        return self.body.varying(range(rank, rank + len(self.inner)))

    def _lanes(self) -> int:
        """Lanes that can have elements, as a power of two."""
        return min(LANES, 1 << max(0, (largest(self.length) - 1).bit_length()))

    def _levels(self) -> list[list[int]]:
        """Numbers of the folds: those whose elements need no result of each other are computed together."""
        owner = [k for k, (_, at) in enumerate(self.folds) for _ in at]
        level: list[int] = []
        for _, at in self.folds:
            instrs = [self.body.instrs[i] for i in self.body.needed(at)]
            level.append(max((level[owner[i.attrs[0]]] + 1 for i in instrs if i.kind == "reduced"), default=0))
        return [[k for k, own in enumerate(level) if own == n] for n in range(max(level, default=-1) + 1)]

    def _shared_words(self) -> int:
        """Words of shared memory for each invocation."""
        kept = {(place, *self.folds[k]) for level in self._levels() for place, k in enumerate(level)}
        return sum({(place, name, self._dtypes(at)): len(at) for place, name, at in kept}.values())

    def _stages(self, holding: bool) -> list[_Stage]:
        """The folds and, last, the outputs. ``holding``: the first that needs an element's value computes it.

        Held is what a later stage uses directly, or only what costs memory or time to get again, whichever are fewer.
        """
        if not holding:
            return self._staged(lambda i: False)
        direct, costly = self._staged(lambda i: True), self._staged(self._is_costly)
        return min(direct, costly, key=_most_alive)

    def _staged(self, worth: Callable[[int], bool]) -> list[_Stage]:
        stages: list[_Stage] = []
        groups = [(folds, tuple(i for k in folds for i in self.folds[k][1])) for folds in self._levels()]
        varying, computed = self._varying(), set[int]()
        for folds, roots in [*groups, ([], tuple(r for r, _, _ in self.results))]:
            held: set[int] = set()
            stack, seen = list(roots), set[int]()
            while stack:
                i = stack.pop()
                if i in seen:
                    continue
                seen.add(i)
                if i in computed & varying and self.body.instrs[i].kind in ("load", "op") and worth(i):
                    held.add(i)
                else:
                    stack += self.body.instrs[i].args
            needed = [i for i in self.body.needed(roots, held) if i not in held]
            stages.append(_Stage(folds, needed, held))
            computed.update(needed)
        return stages

    def _is_costly(self, i: int) -> bool:
        """Whether a value takes long to get again: a load that other rows do not make too, an op of many steps."""
        instr = self.body.instrs[i]
        if instr.kind == "load":
            own = instr.attrs[1].strides[: 1 + len(self.outer)]
            return bool(instr.args) or not all(same(s, 0) for s in own)
        return OPS[instr.attrs[0]].cost >= COSTLY

    def _most_held(self) -> int:
        """Values of an element that are held at a time, 0 if nothing is."""
        return _most_alive(self._stages(True))

    def context(self, schedule: FoldSchedule) -> dict[str, Any]:
        dims = dim_names(1 + len(self.outer) + len(self.inner))
        outer_dims, inner_dims = dims[: 1 + len(self.outer)], dims[1 + len(self.outer) :]
        varying, stages = self._varying(), self._stages(schedule.held)
        held = set[int]().union(*(stage.held for stage in stages))
        merge = [merges.printed(name, self._dtypes(at)) for name, at in self.folds]
        results = [f"reduced{k}{f and '_'}{f}" for k, m in enumerate(merge) for f, _ in m.fields or (("", ""),)]
        lanes = max(schedule.threads, self._lanes())  # some may hold the identity
        own, steps = lanes // schedule.threads, -(-largest(self.length) // LANES)
        slot = "[i]"
        names: dict[int, str] = {}
        blocks = []
        for stage in stages:
            for i in stage.needed:
                instr = self.body.instrs[i]
                if instr.kind == "reduced":
                    names[i] = results[instr.attrs[0]]
            row_part = [i for i in stage.needed if i not in varying]
            row_lines = glsl.statements(self.body, row_part, names, dims)
            inside = names | {i: f"held{i}{slot}" for i in stage.held}
            element_lines = glsl.statements(self.body, [i for i in stage.needed if i in varying], inside, dims)
            element_lines += [f"held{i}{slot} = {inside[i]};" for i in stage.needed if i in held]
            blocks.append((row_lines, element_lines, inside))
        shared: dict[str, str] = {}
        shown = [
            {
                "row": row,
                "element": element,
                "folds": [self._shown(k, merge[k], inside, shared, place) for place, k in enumerate(stage.folds)],
            }
            for stage, (row, element, inside) in zip(stages[:-1], blocks, strict=False)
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
        ahead = LANES * schedule.ahead if lanes == LANES else SPAN + 1  # elements of a row loaded at a time
        return {
            "local_size": (schedule.rows * schedule.threads, 1),
            "threads": schedule.threads,
            "rows": schedule.rows,
            "across": schedule.across,
            "held": schedule.held,
            "kept": [(self.body.instrs[i].dtype.glsl, f"held{i}") for i in sorted(held)],
            "steps": steps,
            "own": own,
            "ragged": not same(self.length, steps * own * schedule.threads),
            "unroll": "[[unroll]] " if schedule.unroll else "",
            "ahead": schedule.ahead if ahead <= largest(self.length) else 1,
            "chunks": self.length // ahead,
            "tail": schedule.ahead == 1 or not same(self.length % ahead, 0),
            "guarded": not same(self.length % (own * schedule.threads), 0),
            "length": self.length,
            "lanes": lanes,
            "lane_bits": lanes.bit_length() - 1,
            "row_coordinates": decompose("row", self.outer, outer_dims),
            "element_coordinates": decompose("e", self.inner[1:], inner_dims) if self.inner else [],
            "merges": sorted({m.text for m in merge if m.text}),
            "stages": shown,
            "shared": sorted(shared.items()),
            "final_row": final_row,
            "final_element": final_element,
            "element_stores": text[True],
            "row_stores": text[False],
        }

    def _shown(
        self, k: int, merge: merges.Merge, inside: dict[int, str], shared: dict[str, str], place: int
    ) -> dict[str, Any]:
        """Fold k for the template, the ``place``-th of its stage; ``shared`` learns the arrays of shared memory."""
        at = self.folds[k][1]
        name = f"lanes{place}_{merge.type}"
        shared[name] = merge.type
        return {
            "k": k,
            "value": merge.element([inside[i] for i in at]),
            "type": merge.type,
            "shared": name,
            "identity": merge.identity,
            "combine": merge.format.format,
            "fields": [
                f"{d.glsl} reduced{k}_{field} = {part.format(f'reduced{k}')};"
                for (field, part), d in zip(merge.fields, self._dtypes(at), strict=False)
            ],
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


def _most_alive(stages: Sequence[_Stage]) -> int:
    """Values of an element that later stages still need, at the most."""
    return max(
        len({i for stage in stages[k + 1 :] for i in stage.held if i in _before(stages, k)}) for k in range(len(stages))
    )


def _before(stages: Sequence[_Stage], k: int) -> set[int]:
    """What stages up to k have computed."""
    return {i for stage in stages[: k + 1] for i in stage.needed}


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
