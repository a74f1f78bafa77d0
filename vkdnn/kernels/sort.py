"""SortSpec: rows of uint32 keys sorted with the positions they came from, stably, by merges without barriers.

block    every element of a block of 32 counts those before it: that is its place in the block
merge    every element of a sorted run looks up by bisection how many of its sibling run go before it: its place in the
         merged run is that number plus its own position

``keep`` cuts every run to its first elements, for the first k of a row: then runs stop growing and only get fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, int32, uint32
from vkdnn.errors import ArgumentError
from vkdnn.ir import build
from vkdnn.ir.body import Affine, strided
from vkdnn.ir.dims import Dim
from vkdnn.ir.node import Node
from vkdnn.kernels.base import Array, Cost, Groups, KernelSpec, Operand, Results, Target, group_count

FAMILY = "sort"
BLOCK = 32


@dataclass(frozen=True)
class SortPass:
    """One pass over rows: "block" makes sorted runs of neighbours, "merge" one run of every two of ``run`` elements;
    each keeps at most its first ``keep`` elements.
    """

    stage: str
    run: int
    keep: int

    @property
    def span(self) -> int:
        """Elements that become one run."""
        return BLOCK if self.stage == "block" else 2 * self.run

    def kept(self, length: int) -> int:
        """Elements of a row after the pass."""
        whole, rest = divmod(length, self.span)
        return whole * min(self.span, self.keep) + min(rest, self.keep)


@dataclass(frozen=True)
class SortSpec(KernelSpec):
    """One pass. Its numbers come from the sizes, so that all merges of a sort are one shader; only a block pass reads
    keys as they lie, by ``index``. Results: keys and positions, those that are ``wanted``.
    """

    stage: str
    index: tuple[Affine, ...]
    wanted: tuple[int, ...]

    template = "sort.comp.j2"
    size_names = ("rows", "size", "run", "keep", "kept")

    @property
    def inputs(self) -> tuple[DType, ...]:
        return (uint32,) if self.stage == "block" else (uint32, int32)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return tuple((uint32, int32)[k] for k in self.wanted)

    def text(self) -> str:
        keys = "".join(f"\n  in0 [{a}]" for a in self.index)
        return f"sort {self.stage} results {self.wanted}{keys}\n"

    def schedules(self, target: Target) -> tuple[int, ...]:
        return (64, 128)

    def groups(self, sizes: tuple[int, ...], schedule: int) -> Groups:
        return (group_count(sizes[0] * sizes[1], schedule), 1, 1)

    def context(self, schedule: int) -> dict[str, Any]:
        return {
            "local_size": (schedule, 1),
            "stage": self.stage,
            "block_size": BLOCK,
            "key": [f"in0[{glsl.affine(a, ['row', 'at'], 'base_in0')}]" for a in self.index],
            "wanted": self.wanted,
        }

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        rows, length, run, keep, kept = sizes
        span = SortPass(self.stage, run, keep).span
        runs = -(-length // span)
        if self.stage == "block":
            (at,) = self.index
            key = np.broadcast_to(strided(inputs[0], at.offset, at.strides, (rows, length)), (rows, length))
            position = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
        else:
            key, position = (x[: rows * length].reshape(rows, length) for x in inputs)
        # Filled up with the largest key: a stable sort leaves what fills behind what was there.
        filled = np.full((rows, runs * span), 2**32 - 1, np.uint32)
        filled[:, :length] = key
        order = np.argsort(filled.reshape(rows, runs, span), axis=-1, kind="stable")
        order = (order + np.arange(0, runs * span, span)[:, None])[:, :, :keep].reshape(rows, -1)[:, :kept]
        for output, k in zip(outputs, self.wanted, strict=True):
            output[: rows * kept] = np.take_along_axis((key, position)[k], order, axis=1).ravel()

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        rows, length, _, _, kept = sizes
        return Cost(0, 4 * rows * (length * len(self.inputs) + kept * len(self.wanted)))


def build_sort(
    parameters: SortPass, operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a "sort" call (vkdnn.kernels.calls)."""
    rows, length = operands[0].shape
    index = (operands[0].index,) if parameters.stage == "block" else ()
    sizes = (rows, length, parameters.run, parameters.keep, parameters.kept(length))
    return SortSpec(parameters.stage, index, wanted), sizes


def passes(length: int, keep: int) -> list[SortPass]:
    """The passes that leave the first ``keep`` of ``length`` elements in order."""
    if isinstance(length, Dim) or isinstance(keep, Dim):
        raise ArgumentError(
            f"sort: an axis of symbolic length {length}, of which {keep} are kept, expected plain numbers: the length "
            "says how many passes there are; keep that axis concrete"
        )
    found = [SortPass("block", 1, min(BLOCK, keep))]
    length = found[0].kept(length)
    while length > found[-1].keep:
        run = min(found[-1].span, found[-1].keep)
        found.append(SortPass("merge", run, min(2 * run, keep)))
        length = found[-1].kept(length)
    return found


def sorted_rows(key: Node, keep: int) -> tuple[Node, Node]:
    """The ``keep`` smallest keys of each row of ``key``, uint32 [rows, n], ascending, and their positions, int32; equal
    keys by position. All of [rows, keep]; rows, n and keep are at least 1.
    """
    args: tuple[Node, ...] = (key,)
    rows, length = key.shape
    for one in passes(length, keep):
        length = one.kept(length)
        args = tuple(build.call(FAMILY, args, one, (((rows, length), uint32), ((rows, length), int32))))
    return args[0], args[1]


def keys_of(position: Node) -> Node:
    """The keys of which sorted_rows() gave these positions."""
    call = position.args[0]
    while call.attrs[1].stage != "block":
        call = call.args[0].args[0]
    return call.args[0]


def order_key(x: Node, descending: bool = False) -> Node:
    """uint32 keys that ascend with the values of x (or descend): zeros of both signs are equal, NaN is the largest."""
    if x.dtype.category == "f":
        x = build.apply("to_float32", x)
        bits = build.apply("bits_uint32", x)
        negative = build.apply("less", x, 0.0)
        key = build.apply("where", negative, ~bits, bits | 0x80000000)
        key = build.apply("where", build.apply("equal", x, 0.0), build.full(x.shape, 2**31, uint32), key)
        key = build.apply("where", build.apply("isnan", x), build.full(x.shape, 2**32 - 1, uint32), key)
    elif x.dtype is int32:
        key = build.apply("bits_uint32", x) ^ 0x80000000
    else:
        key = build.apply("to_uint32", x)
    return ~key if descending else key


def sort_along(x: Node, axis: int, keep: int, descending: bool) -> Node:
    """int32 positions along an axis of the first ``keep`` elements in order; x has elements and keep is at least 1."""
    others = tuple(a for a in range(x.ndim) if a != axis)
    lengths = tuple(x.shape[a] for a in others)
    key = build.permute(order_key(x, descending), (*others, axis))
    key = build.reshape(key, (math.prod(lengths), x.shape[axis]))
    position = build.reshape(sorted_rows(key, keep)[1], (*lengths, keep))
    back = sorted(range(x.ndim), key=[*others, axis].__getitem__)
    return build.permute(position, tuple(back))
