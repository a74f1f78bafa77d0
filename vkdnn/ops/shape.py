"""Shape work: other views of the same elements. Views cost nothing: kernels index through them.

No function here computes a value; what joins, cuts or picks elements stands in join, diagonal and index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, integers, lengths, normalize_axes, normalize_axis, short
from vkdnn.ir.node import Node

Axes = int | Sequence[int] | None


def like(x: Array, node: Node) -> Array:
    """The array of a node that was built from x alone: it lives where x lives."""
    return Array(node, x._device)


def reshape(x: Any, shape: int | Sequence[int]) -> Array:
    """The elements in row-major order under another shape; one length may be -1.

    Raises ShapeError if the number of elements differs.
    """
    return asarray(x, name="reshape: x").reshape(shape)


def transpose(x: Any, axes: Sequence[int] | None = None) -> Array:
    """Axes reordered: axis i of the result is axis axes[i] of x; without ``axes`` reversed."""
    x = asarray(x, name="transpose: x")
    return x.transpose() if axes is None else x.transpose(axes)


def swapaxes(x: Any, axis1: int, axis2: int) -> Array:
    """x with two axes exchanged."""
    x = asarray(x, name="swapaxes: x")
    order = list(range(x.ndim))
    a, b = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    order[a], order[b] = order[b], order[a]
    return like(x, build.permute(x.node, tuple(order)))


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """x with the axes ``source`` moved to the places ``destination``; the others keep their order.

    >>> import vkdnn as vk
    >>> vk.moveaxis(vk.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = asarray(x, name="moveaxis: x")
    if source is None or destination is None:
        raise ArgumentError("moveaxis: source and destination are None, expected an int or a sequence of ints")
    there = normalize_axes("moveaxis: source", source, x.ndim)
    place = normalize_axes("moveaxis: destination", destination, x.ndim)
    if len(there) != len(place):
        raise ShapeError(f"moveaxis: source has {len(there)} axes and destination {len(place)}, expected equally many")
    rest = iter(a for a in range(x.ndim) if a not in there)
    moved = dict(zip(place, there, strict=True))
    return like(x, build.permute(x.node, tuple(moved[a] if a in moved else next(rest) for a in range(x.ndim))))


def broadcast_to(x: Any, shape: int | Sequence[int]) -> Array:
    """x repeated along axes of length 1 (and missing leading axes) to ``shape``."""
    x = asarray(x, name="broadcast_to: x")
    return like(x, build.broadcast_to(x.node, lengths("broadcast_to", shape)))


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """The arrays, each broadcast to the shape that all of them broadcast to."""
    items = [asarray(a, arrays, "broadcast_arrays") for a in arrays]
    shape = build.broadcast_shapes("broadcast_arrays", *(a.shape for a in items))
    return [like(a, build.broadcast_to(a.node, shape)) for a in items]


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays of a grid, from one vector for each axis; "xy" puts the second vector on the first axis."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing is {short(indexing)}, expected 'xy' or 'ij'")
    items = [asarray(a, arrays, "meshgrid") for a in arrays]
    for item in items:
        if item.ndim > 1:
            raise ShapeError(f"meshgrid: got an array of shape {item.shape}, expected vectors")
    count = len(items)
    place = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    columns = [a.reshape([-1 if i == place[k] else 1 for i in range(count)]) for k, a in enumerate(items)]
    return broadcast_arrays(*columns)


def expand_dims(x: Any, axis: int | Sequence[int]) -> Array:
    """x with an axis of length 1 at each place of ``axis``, places counted in the result."""
    x = asarray(x, name="expand_dims: x")
    if axis is None:
        raise ArgumentError("expand_dims: axis is None, expected an int or a sequence of ints")
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    new = normalize_axes("expand_dims", axis, x.ndim + count)
    rest = iter(x.shape)
    return x.reshape([1 if a in new else next(rest) for a in range(x.ndim + count)])


def squeeze(x: Any, axis: Axes = None) -> Array:
    """x without the given axes, which must have length 1; without ``axis`` all axes of length 1 go."""
    x = asarray(x, name="squeeze: x")
    # A symbolic length is asked whether n - 1 is 0: that must be the same over its whole range.
    ones = tuple(a for a, n in enumerate(x.shape) if n - 1 == 0) if axis is None else ()
    axes = ones if axis is None else normalize_axes("squeeze", axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of shape {x.shape} has length {x.shape[a]}, expected 1")
    return x.reshape([n for a, n in enumerate(x.shape) if a not in axes])


def flip(x: Any, axis: Axes = None) -> Array:
    """x reversed along the given axes, or along all."""
    x = asarray(x, name="flip: x")
    axes = normalize_axes("flip", axis, x.ndim)
    starts = tuple(n - 1 if a in axes else 0 for a, n in enumerate(x.shape))
    if x.size == 0:
        return x
    return like(x, build.slice_(x.node, starts, x.shape, tuple(-1 if a in axes else 1 for a in range(x.ndim))))


def tile(x: Any, repetitions: int | Sequence[int]) -> Array:
    """x laid side by side: ``repetitions`` counts the copies along the last axes.

    >>> import vkdnn as vk
    >>> vk.tile(vk.arange(2), 3).numpy().tolist()
    [0, 1, 0, 1, 0, 1]
    """
    x = asarray(x, name="tile: x")
    counts = _counts("tile: repetitions", repetitions)
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - x.ndim) + x.shape
    split = x.reshape([n for pair in zip((1,) * rank, shape, strict=True) for n in pair])
    whole = broadcast_to(split, [n for pair in zip(counts, shape, strict=True) for n in pair])
    return whole.reshape([c * n for c, n in zip(counts, shape, strict=True)])


def repeat(x: Any, repeats: int | Sequence[int], axis: int | None = None) -> Array:
    """Each slice of x along ``axis`` repeated: ``repeats`` times, or as often as its entry of a sequence of ints says.

    Without ``axis`` the elements of x in row-major order are repeated.

    >>> import vkdnn as vk
    >>> vk.repeat(vk.arange(3), [2, 0, 1]).numpy().tolist()
    [0, 0, 2]
    """
    x = asarray(x, name="repeat: x")
    if axis is None:
        return repeat(x.reshape(-1), repeats, 0)
    axis = normalize_axis("repeat", axis, x.ndim)
    counts = _counts("repeat: repeats", repeats)
    n = x.shape[axis]
    if len(counts) == 1:
        before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
        whole = broadcast_to(x.reshape([*before, 1, *after]), [*before, counts[0], *after])
        return whole.reshape([*x.shape[:axis], n * counts[0], *after])
    if len(counts) != n:
        raise ShapeError(f"repeat: got {len(counts)} repeats, expected one or {n}, the length of axis {axis}")
    from vkdnn.ops.index import take  # which needs this module

    return take(x, np.repeat(np.arange(n), counts), axis)


def _counts(name: str, value: Any) -> tuple[int, ...]:
    """An int or ints of zero or more."""
    expected = "an int or ints of zero or more (not an Array: sizes may not depend on data)"
    if isinstance(value, Array):
        raise ArgumentError(f"{name}: got an Array, expected {expected}")
    several = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    counts = integers(name, value, expected) if several else (integer(name, value, expected),)
    if min(counts, default=0) < 0:
        raise ArgumentError(f"{name}: got {short(value)}, expected {expected}")
    return counts


def arange_along(shape: Sequence[int], axis: int) -> Array:
    """int32 index along one axis of a shape."""
    return Array(build.iota(lengths("arange_along", shape), axis))


__all__ = [
    "reshape",
    "transpose",
    "swapaxes",
    "moveaxis",
    "broadcast_to",
    "broadcast_arrays",
    "meshgrid",
    "expand_dims",
    "squeeze",
    "flip",
    "tile",
    "repeat",
]
