"""Lowers the nodes of one kernel to a body: views become indices, members become instructions, the rest loads.

It decides nothing about what shares a kernel; where a decision proves impossible it says which node must be apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vkdnn.dtypes import bool_, int32
from vkdnn.fusion.views import Coords, NotAffine, Space, SplitNeeded, address, row_major, through
from vkdnn.ir.body import Affine, Body, BodyBuilder, Guard, Instr
from vkdnn.ir.node import VIEWS, Node


class MustRealise(Exception):
    """The node cannot be computed inside the kernel that wanted it; schedule again with it in a buffer of its own."""

    def __init__(self, node: Node):
        self.node = node


def resolve(node: Node, realised: Callable[[Node], bool]) -> tuple[Node, Affine]:
    """Where an operand lies: a realised node and the affine index of the operand's elements in it, over its own axes.

    Raises MustRealise when no buffer can be indexed so.
    """
    space = Space(node.shape)
    coords = space.coords()
    current = node
    while not realised(current):
        if current.kind == "reshape" and realised(current.args[0]):
            return current.args[0], address(coords, row_major(current.shape), space.rank)
        if current.kind not in VIEWS or current.kind == "pad":
            raise MustRealise(node)
        try:
            coords, _ = through(current, coords, space.extents)
        except (SplitNeeded, NotAffine):
            raise MustRealise(node) from None
        current = current.args[0]
    return current, address(coords, row_major(current.shape), space.rank)


class Lowering:
    """One kernel's body in the making. Raises SplitNeeded when the space must be split; then start again."""

    def __init__(
        self,
        space: Space,
        realised: Callable[[Node], bool],
        reduced: dict[Node, tuple[int, Coords]],
        inputs: Sequence[Node] = (),
    ):
        self.space, self.realised, self.reduced = space, realised, reduced
        self.extents = space.extents
        self.builder = BodyBuilder()
        self.inputs: list[Node] = list(inputs)
        self._slots = {node: i for i, node in enumerate(inputs)}
        self._memo: dict[tuple[Node, Coords, tuple[Guard, ...]], int] = {}

    def slot(self, node: Node) -> int:
        if node not in self._slots:
            self._slots[node] = len(self.inputs)
            self.inputs.append(node)
        return self._slots[node]

    def lower(self, node: Node, coords: Coords, guards: tuple[Guard, ...] = ()) -> int:
        """Position of the instruction that gives the element of ``node`` at ``coords``."""
        key = (node, coords, guards)
        if key not in self._memo:
            self._memo[key] = self._lower(node, coords, guards)
        return self._memo[key]

    def _add(self, kind: str, node: Node, args: tuple[int, ...] = (), attrs: tuple[object, ...] = ()) -> int:
        return self.builder.add(Instr(kind, node.dtype, args, attrs))

    def _load(self, base: Node, at: Affine, guards: tuple[Guard, ...]) -> int:
        return self._add("load", base, (), (self.slot(base), at, guards, 0, 0))

    def _lower(self, node: Node, coords: Coords, guards: tuple[Guard, ...]) -> int:
        rank = len(self.extents)
        if node in self.reduced:
            k, expected = self.reduced[node]
            if any(c != e for c, e, n in zip(coords, expected, node.shape, strict=True) if n != 1):
                raise MustRealise(node)
            return self._add("reduced", node, (), (k,))
        if self.realised(node):
            return self._load(node, address(coords, row_major(node.shape), rank), guards)
        if node.kind == "const":
            return self._add("const", node, (), node.attrs)
        if node.kind == "iota":
            return self.builder.add(Instr("index", int32, (), (coords[node.attrs[0]],)))
        if node.kind == "map":
            return self._add("op", node, tuple(self.lower(a, coords, guards) for a in node.args), (node.op,))
        if node.kind == "copy":
            return self.lower(node.args[0], coords, guards)
        if node.kind == "take":
            table, index = node.args
            chosen = self.lower(index, coords[: index.ndim], guards)
            return self._indexed(table, 0, (Affine.zero(rank), *coords[index.ndim :]), chosen, guards)
        if node.kind == "gather":
            table, index = node.args
            (axis,) = node.attrs
            rest = tuple(Affine.zero(rank) if i == axis else c for i, c in enumerate(coords))
            return self._indexed(table, axis, rest, self.lower(index, coords, guards), guards)
        if node.kind in VIEWS:
            return self._view(node, coords, guards)
        raise MustRealise(node)

    def _indexed(self, table: Node, axis: int, rest: Coords, chosen: int, guards: tuple[Guard, ...]) -> int:
        base, at = resolve(table, self.realised)
        index = address(rest, at.strides, len(self.extents), at.offset)
        attrs = (self.slot(base), index, guards, at.strides[axis], table.shape[axis])
        return self.builder.add(Instr("load", table.dtype, (chosen,), attrs))

    def _view(self, node: Node, coords: Coords, guards: tuple[Guard, ...]) -> int:
        source = node.args[0]
        if node.kind == "reshape" and self.realised(source):
            return self._load(source, address(coords, row_major(node.shape), len(self.extents)), guards)
        try:
            inner, limits = through(node, coords, self.extents)
        except NotAffine:
            raise MustRealise(source) from None
        value = self.lower(source, inner, guards + tuple(g for g in limits if g not in guards))
        if node.kind != "pad":
            return value
        zero = self.builder.add(Instr("const", node.dtype, (), (0,)))
        for limit in limits:
            inside = self.builder.add(Instr("guard", bool_, (), (limit,)))
            value = self._add("op", node, (inside, value, zero), ("where",))
        return value


# ---- fewer dims: drop axes of length 1 and merge neighbours that every index steps through as one


def simplify(
    extents: Sequence[int], parts: Sequence[int], indices: Sequence[Affine]
) -> tuple[list[list[int]], Callable[[Affine], Affine]]:
    """Groups of dims to merge inside each of the ``parts`` (numbers of dims), and the map of affine indices to them."""
    groups: list[list[int]] = []
    bounds: list[int] = []
    first = 0
    for count in parts:
        start = len(groups)
        for d in range(first, first + count):
            if extents[d] == 1:
                continue
            if len(groups) > start and _mergeable(groups[-1][-1], d, extents, indices):
                groups[-1].append(d)
            else:
                groups.append([d])
        if len(groups) == start:
            groups.append([])  # every part keeps a dim: of length 1
        bounds.append(len(groups) - start)
        first += count

    def remap(index: Affine) -> Affine:
        return Affine(index.offset, tuple(index.strides[g[-1]] if g else 0 for g in groups))

    split: list[list[int]] = []
    at = 0
    for count in bounds:
        split.append([math.prod(extents[d] for d in g) for g in groups[at : at + count]])
        at += count
    return split, remap


def _mergeable(outer: int, inner: int, extents: Sequence[int], indices: Sequence[Affine]) -> bool:
    return all(i.strides[outer] == i.strides[inner] * extents[inner] for i in indices)


def indices_of(body: Body) -> list[Affine]:
    """Every affine index a body uses."""
    found = []
    for instr in body.instrs:
        for attr in instr.attrs:
            if isinstance(attr, Affine):
                found.append(attr)
            elif isinstance(attr, Guard):
                found.append(attr.index)
            elif isinstance(attr, tuple):
                found.extend(g.index for g in attr)
    return found


def remap_body(body: Body, remap: Callable[[Affine], Affine]) -> Body:
    """The body with every index passed through ``remap``."""

    def changed(attr: object) -> object:
        if isinstance(attr, Affine):
            return remap(attr)
        if isinstance(attr, Guard):
            return Guard(remap(attr.index), attr.low, attr.high)
        if isinstance(attr, tuple):
            return tuple(changed(a) for a in attr)
        return attr

    return Body(tuple(Instr(i.kind, i.dtype, i.args, tuple(changed(a) for a in i.attrs)) for i in body.instrs))
