"""Index arithmetic of views: where an element of a view lies in what it views, as affine functions of kernel dims.

Views are never run: they change the index with which a kernel loads. What cannot be said affinely is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vkdnn.ir.body import Affine, Guard
from vkdnn.ir.dims import largest, never_above, same, smallest
from vkdnn.ir.node import IDENTITIES, Node, Shape

Coords = tuple[Affine, ...]


class SplitNeeded(Exception):
    """The kernel dim must become two (outer, ``inner``) before the view can be indexed."""

    def __init__(self, dim: int, inner: int):
        self.dim, self.inner = dim, inner


class NotAffine(Exception):
    """No affine index reaches this view; the caller realises what it views."""


@dataclass
class Space:
    """Iteration space of a kernel: axes, each made of one or more dims (outer first) once it was split."""

    shape: Shape
    factors: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.factors = self.factors or [[n] for n in self.shape]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(n for axis in self.factors for n in axis)

    @property
    def rank(self) -> int:
        return sum(map(len, self.factors))

    def split(self, dim: int, inner: int) -> None:
        for axis in self.factors:
            if dim < len(axis):
                axis[dim : dim + 1] = [axis[dim] // inner, inner]
                return
            dim -= len(axis)
        raise AssertionError("no such dim")

    def axis_of(self, dim: int) -> int:
        return next(a for a in range(len(self.factors)) if dim < sum(map(len, self.factors[: a + 1])))

    def coords(self) -> Coords:
        """The index along each axis."""
        result, first = [], 0
        for axis in self.factors:
            strides = [0] * self.rank
            for j in range(len(axis)):
                strides[first + j] = math.prod(axis[j + 1 :]) if axis[j] != 1 else 0
            first += len(axis)
            result.append(Affine(0, tuple(strides)))
        return tuple(result)


def row_major(shape: Shape) -> Shape:
    """Element strides of a contiguous array; 0 along axes of length 1."""
    return tuple(math.prod(shape[i + 1 :]) if n != 1 else 0 for i, n in enumerate(shape))


def address(coords: Coords, strides: Sequence[int], rank: int, offset: int = 0) -> Affine:
    """offset + sum of strides . coords."""
    total = Affine.zero(rank).shifted(offset)
    for coord, stride in zip(coords, strides, strict=True):
        if not same(stride, 0):
            total = total + coord.scaled(stride)
    return total


def through(view: Node, coords: Coords, extents: Sequence[int]) -> tuple[Coords, tuple[Guard, ...]]:
    """Coordinates in view.args[0] of the view's element at ``coords``, and the guards under which it exists."""
    source = view.args[0]
    rank = len(extents)
    if view.kind in IDENTITIES:
        return coords, ()
    if view.kind == "permute":
        (axes,) = view.attrs
        placed = dict(zip(axes, coords, strict=True))
        return tuple(placed[a] for a in range(source.ndim)), ()
    if view.kind == "broadcast":
        return tuple(Affine.zero(rank) if n == 1 else c for n, c in zip(source.shape, coords, strict=True)), ()
    if view.kind == "slice":
        starts, steps = view.attrs
        return tuple(c.scaled(t).shifted(s) for c, s, t in zip(coords, starts, steps, strict=True)), ()
    if view.kind == "pad":
        (before,) = view.attrs
        moved = tuple(c.shifted(-b) for c, b in zip(coords, before, strict=True))
        guards = tuple(
            Guard(c, 0, n) for c, n, whole in zip(moved, source.shape, view.shape, strict=True) if n != whole
        )
        return moved, guards
    assert view.kind == "reshape", view.kind
    return _reshaped(coords, view.shape, source.shape, extents), ()


def _reshaped(coords: Coords, shape: Shape, source: Shape, extents: Sequence[int]) -> Coords:
    """Coordinates in ``source`` of the element at ``coords`` in ``shape``: groups of axes of equal product in turn."""
    rank = len(extents)
    result = [Affine.zero(rank)] * len(source)
    i = j = 0
    while i < len(source) or j < len(shape):
        i_stop, j_stop, left, right = i, j, 1, 1
        while i_stop == i or j_stop == j or left != right:
            if i_stop < len(source) and (never_above(left, right) or j_stop == len(shape)):
                left *= source[i_stop]
                i_stop += 1
            elif j_stop < len(shape):
                right *= shape[j_stop]
                j_stop += 1
            else:
                break
        linear = address(coords[j:j_stop], row_major(shape[j:j_stop]), rank)
        for axis in range(i_stop - 1, i - 1, -1):
            if source[axis] == 1:
                continue
            if math.prod(source[i:axis]) == 1:
                result[axis], linear = linear, Affine.zero(rank)
            else:
                linear, result[axis] = _divmod(linear, source[axis], extents)
        i, j = i_stop, j_stop
    return tuple(result)


def _divmod(linear: Affine, size: int, extents: Sequence[int]) -> tuple[Affine, Affine]:
    """linear // size and linear % size, where both are affine."""
    over, rest = divmod(linear.offset, size)
    quotient, remainder = [0] * len(extents), [0] * len(extents)
    for d, stride in enumerate(linear.strides):
        if same(stride % size, 0):
            quotient[d] = stride // size
        else:
            remainder[d] = stride
    highest = lowest = rest
    for stride, extent in zip(remainder, extents, strict=True):
        if never_above(0, stride) or stride > 0:
            highest += stride * (extent - 1)
        else:
            lowest += stride * (extent - 1)
    if never_above(0, lowest) and never_above(highest, size - 1):
        return Affine(over, tuple(quotient)), Affine(rest, tuple(remainder))
    d = max(range(len(extents)), key=lambda e: largest(remainder[e]))
    inner = size // remainder[d] if smallest(remainder[d]) > 0 and same(size % remainder[d], 0) else 0
    if inner > 0 and inner != 1 and extents[d] != inner and same(extents[d] % inner, 0):
        raise SplitNeeded(d, inner)
    raise NotAffine
