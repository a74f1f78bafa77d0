"""The straight-line program inside a kernel: loads by affine index, op-table rows, and references to reductions.

A body is data (frozen, printable, the ground of cache keys); it must never depend on a device or a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.dtypes import DType
from vkdnn.ir.define import evaluate
from vkdnn.ir.dims import same
from vkdnn.ir.ops import OPS

Array = np.ndarray[Any, Any]
PIECE = 1 << 16  # elements the reference evaluates at a time, so that its temporaries stay in cache


@dataclass(frozen=True)
class Affine:
    """offset + sum of strides[d] * i[d] over the kernel's iteration dims."""

    offset: int
    strides: tuple[int, ...]

    @staticmethod
    def zero(rank: int) -> Affine:
        return Affine(0, (0,) * rank)

    @staticmethod
    def dim(rank: int, axis: int) -> Affine:
        return Affine(0, tuple(int(d == axis) for d in range(rank)))

    def __add__(self, other: Affine) -> Affine:
        return Affine(self.offset + other.offset, tuple(map(sum, zip(self.strides, other.strides, strict=True))))

    def scaled(self, factor: int) -> Affine:
        return Affine(self.offset * factor, tuple(s * factor for s in self.strides))

    def shifted(self, by: int) -> Affine:
        return Affine(self.offset + by, self.strides)

    def __str__(self) -> str:
        terms = [f"{s}*i{d}" for d, s in enumerate(self.strides) if not same(s, 0)]
        return " + ".join(([str(self.offset)] if not same(self.offset, 0) or not terms else []) + terms)


@dataclass(frozen=True)
class Guard:
    """low <= index < high: the load under it is made only where this holds."""

    index: Affine
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low} <= {self.index} < {self.high}"


@dataclass(frozen=True)
class Instr:
    """One instruction.

    kind    args     attrs
    load    () or    (slot, Affine, guards, stride, extent): element of binding ``slot``; with an argument, plus
            (index)  stride times that index, clamped to [0, extent)
    const   ()       (bits,)
    index   ()       (Affine,)
    guard   ()       (Guard,)
    op      values   (row,)
    reduced ()       (k,): result k of the kernel's reductions
    """

    kind: str
    dtype: DType
    args: tuple[int, ...] = ()
    attrs: tuple[Any, ...] = ()

    def __str__(self) -> str:
        parts = [self.kind if self.kind != "op" else self.attrs[0], str(self.dtype)]
        parts += [f"%{a}" for a in self.args]
        if self.kind == "const":
            parts.append(f"0x{self.attrs[0]:08x}")
        elif self.kind == "load":
            slot, index, guards, stride, extent = self.attrs
            parts.append(f"in{slot}[{index}]")
            parts += [f"if {g}" for g in guards]
            if self.args:
                parts.append(f"index * {stride} below {extent}")
        elif self.kind != "op":
            parts += map(str, self.attrs)
        return " ".join(parts)


@dataclass(frozen=True)
class Body:
    """Instructions in order; arguments are positions of earlier ones."""

    instrs: tuple[Instr, ...]

    def text(self) -> str:
        return "\n".join(f"  %{i} = {instr}" for i, instr in enumerate(self.instrs))

    def needed(self, roots: Iterable[int], known: Collection[int] = ()) -> list[int]:
        """Positions that ``roots`` depend on, in order, without what only ``known`` ones depend on."""
        keep: set[int] = set()
        stack = list(roots)
        while stack:
            i = stack.pop()
            if i not in keep:
                keep.add(i)
                stack.extend(() if i in known else self.instrs[i].args)
        return sorted(keep)

    def varying(self, dims: Iterable[int]) -> set[int]:
        """Positions whose value changes along any of the iteration dims ``dims``."""
        dims = tuple(dims)
        found: set[int] = set()
        for i, instr in enumerate(self.instrs):
            affine = [a for a in instr.attrs if isinstance(a, Affine)]
            guards = [a for a in instr.attrs if isinstance(a, Guard)]
            if instr.kind == "load":
                guards = list(instr.attrs[2])
            affine += [g.index for g in guards]
            if any(not same(a.strides[d], 0) for a in affine for d in dims) or found.intersection(instr.args):
                found.add(i)
        return found

    def flops(self) -> int:
        """Float operations of one evaluation, a defined function counted by its cost."""
        return sum(OPS[i.attrs[0]].cost for i in self.instrs if i.kind == "op" and i.dtype.category == "f")


@dataclass
class BodyBuilder:
    """Collects instructions, each kept once."""

    instrs: list[Instr] = field(default_factory=list)
    _known: dict[Instr, int] = field(default_factory=dict)

    def add(self, instr: Instr) -> int:
        found = self._known.get(instr)
        if found is None:
            found = self._known[instr] = len(self.instrs)
            self.instrs.append(instr)
        return found

    def finish(self) -> Body:
        return Body(tuple(self.instrs))


# ---- the reference: a body evaluated in NumPy over a box of the iteration space


@dataclass(frozen=True)
class Box:
    """Part of the iteration space: dims of these extents, of which the first starts at ``start``."""

    extents: tuple[int, ...]
    start: int = 0

    def origin(self, index: Affine) -> int:
        return index.offset + (index.strides[0] * self.start if index.strides else 0)

    def values(self, index: Affine) -> Array:
        """The affine index at every point, dims it does not depend on of length 1."""
        total = np.full((1,) * len(self.extents), self.origin(index), np.int64)
        for d, (stride, extent) in enumerate(zip(index.strides, self.extents, strict=True)):
            if stride:
                shape = tuple(extent if e == d else 1 for e in range(len(self.extents)))
                total = total + (np.arange(extent, dtype=np.int64) * stride).reshape(shape)
        return total


def evaluate_body(
    body: Body, needed: Sequence[int], box: Box, inputs: Sequence[Array], values: dict[int, Array]
) -> dict[int, Array]:
    """Fill ``values`` (position -> array that broadcasts over the box) for all positions in ``needed``."""
    for i in needed:
        if i in values:
            continue
        instr = body.instrs[i]
        if instr.kind == "load":
            values[i] = _load(instr, box, inputs, values)
        elif instr.kind == "const":
            value = dtypes.constant_value(instr.attrs[0], instr.dtype)
            values[i] = np.full((1,) * len(box.extents), value)
        elif instr.kind == "index":
            values[i] = box.values(instr.attrs[0]).astype(np.int32)
        elif instr.kind == "guard":
            guard = instr.attrs[0]
            at = box.values(guard.index)
            values[i] = (at >= guard.low) & (at < guard.high)
        elif instr.kind == "op":
            values[i] = evaluate(instr.attrs[0], *(values[a] for a in instr.args))
        else:
            raise AssertionError(f"{instr.kind} must be given")
    return values


def _load(instr: Instr, box: Box, inputs: Sequence[Array], values: dict[int, Array]) -> Array:
    slot, index, guards, stride, extent = instr.attrs
    data = inputs[slot]
    if not instr.args and not guards:
        return dtypes.load(strided(data, box.origin(index), index.strides, box.extents), instr.dtype)
    at = box.values(index)
    for guard in guards:
        at = at + 0 * box.values(guard.index)  # widen to the dims of the guards
    if instr.args:
        chosen = np.clip(values[instr.args[0]].astype(np.int64), 0, extent - 1)
        at = at + chosen * stride
    inside = np.ones((1,) * len(box.extents), bool)
    for guard in guards:
        where = box.values(guard.index)
        inside = inside & (where >= guard.low) & (where < guard.high)
    loaded = np.where(inside, data[np.where(inside, at, 0)], data.dtype.type(0))
    return dtypes.load(loaded, instr.dtype)


def strided(data: Array, offset: int, strides: Sequence[int], extents: Sequence[int], writeable: bool = False) -> Array:
    """A view of flat ``data``: element offset + strides . i; dims of stride 0 have length 1."""
    shape = tuple(n if s else 1 for s, n in zip(strides, extents, strict=True))
    if math.prod(shape) == 0:
        return np.empty(shape, data.dtype)
    item = data.itemsize
    return np.lib.stride_tricks.as_strided(data[offset:], shape, tuple(s * item for s in strides), writeable=writeable)


def pieces(extents: tuple[int, ...], inner: int = 1) -> Iterable[Box]:
    """The box of ``extents`` cut along its first dim into boxes of about PIECE elements."""
    if not extents:
        yield Box(())
        return
    rest = math.prod(extents[1:]) * inner
    step = max(1, PIECE // max(1, rest))
    for start in range(0, extents[0], step):
        yield Box((min(step, extents[0] - start), *extents[1:]), start)
