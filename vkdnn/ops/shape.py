"""Shape work: views, indexing, joining. Views cost nothing: kernels index through them.

Positions outside an array are an error where the host can know them (ints and slices), and clamped in index arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray, common_device
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.node import Node


def _like(x: Array, node: Node) -> Array:
    return Array(node, x._device)


def reshape(x: Any, shape: int | Sequence[int]) -> Array:
    """The elements in row-major order under another shape; one length may be -1."""
    return asarray(x).reshape(*((shape,) if isinstance(shape, int) else shape))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Array:
    """Axes reordered: axis i of the result is axis axes[i] of x; without ``axes`` reversed."""
    return asarray(x).transpose(*(axes or ()))


def swapaxes(x: Any, a: int, b: int) -> Array:
    """x with two axes exchanged."""
    x = asarray(x)
    order = list(range(x.ndim))
    a, b = build.normalize_axis("swapaxes", a, x.ndim), build.normalize_axis("swapaxes", b, x.ndim)
    order[a], order[b] = order[b], order[a]
    return x.transpose(*order)


def broadcast_to(x: Any, shape: Sequence[int]) -> Array:
    """x repeated along axes of length 1 (and missing leading axes) to ``shape``."""
    x = asarray(x)
    return _like(x, build.broadcast_to(x.node, tuple(shape)))


def expand_dims(x: Any, axis: int) -> Array:
    """x with an axis of length 1 put in at ``axis``."""
    x = asarray(x)
    axis = build.normalize_axis("expand_dims", axis, x.ndim + 1)
    return x.reshape(*x.shape[:axis], 1, *x.shape[axis:])


def squeeze(x: Any, axis: int) -> Array:
    """x without the axis, which must have length 1."""
    x = asarray(x)
    axis = build.normalize_axis("squeeze", axis, x.ndim)
    if x.shape[axis] != 1:
        raise ShapeError(f"squeeze: axis {axis} of shape {x.shape} has length {x.shape[axis]}, expected 1")
    return x.reshape(*x.shape[:axis], *x.shape[axis + 1 :])


def pad(x: Any, widths: Sequence[tuple[int, int]]) -> Array:
    """Zeros around x: (before, after) for each axis."""
    x = asarray(x)
    if len(widths) != x.ndim:
        raise ShapeError(f"pad: got {len(widths)} pairs, expected one for each of {x.ndim} axes")
    if x.size == 0:
        return Array(build.full(tuple(b + n + a for n, (b, a) in zip(x.shape, widths, strict=True)), 0, x.dtype))
    return _like(x, build.pad(x.node, tuple(b for b, _ in widths), tuple(a for _, a in widths)))


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays joined along an axis; all other lengths equal."""
    if not arrays:
        raise ArgumentError("concatenate: got no arrays, expected at least one")
    items = [asarray(a, arrays) for a in arrays]
    first = items[0]
    axis = build.normalize_axis("concatenate", axis, first.ndim)
    for item in items:
        if item.shape[:axis] != first.shape[:axis] or item.shape[axis + 1 :] != first.shape[axis + 1 :]:
            raise ShapeError(f"concatenate: shapes {first.shape} and {item.shape} differ outside axis {axis}")
    total, start, result = sum(i.shape[axis] for i in items), 0, None
    for item in items:
        length = item.shape[axis]
        if length == 0 and len(items) > 1:
            continue
        widths = [(start, total - start - length) if a == axis else (0, 0) for a in range(first.ndim)]
        padded = pad(item, widths)
        if result is None:
            result = padded
        else:
            result = (arange_along(result.shape, axis) < start)._map(
                "where", arange_along(result.shape, axis) < start, result, padded
            )
        start += length
    return Array((result if result is not None else first).node, common_device("concatenate", items))


def arange_along(shape: Sequence[int], axis: int) -> Array:
    """int32 index along one axis of a shape."""
    return Array(build.iota(tuple(shape), axis))


def stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis."""
    return concatenate([expand_dims(asarray(a, arrays), axis) for a in arrays], axis)


def split(x: Any, sections: int, axis: int = -1) -> list[Array]:
    """x cut into equal parts along an axis."""
    x = asarray(x)
    axis = build.normalize_axis("split", axis, x.ndim)
    if sections < 1 or x.shape[axis] % sections:
        raise ShapeError(f"split: axis {axis} of length {x.shape[axis]} does not divide into {sections} parts")
    size = x.shape[axis] // sections
    before = (slice(None),) * axis
    return [x[(*before, slice(i * size, (i + 1) * size))] for i in range(sections)]


def flip(x: Any, axis: int) -> Array:
    """x with one axis reversed."""
    x = asarray(x)
    axis = build.normalize_axis("flip", axis, x.ndim)
    return x[(*(slice(None),) * axis, slice(None, None, -1))]


def take(table: Any, indices: Any, axis: int = 0) -> Array:
    """Slices of ``table`` along ``axis`` by number: an embedding lookup for axis 0.

    Index arrays hold int32 or uint32; numbers outside are clamped to the first or last slice (NumPy arrays are checked
    and raise IndexError-like ArgumentError). Gradient: contributions to a slice are added in order of their position.
    """
    table = asarray(table, [indices])
    axis = build.normalize_axis("take", axis, table.ndim)
    if not isinstance(indices, Array):
        host = np.asarray(indices)
        if host.size and (host.min() < 0 or host.max() >= table.shape[axis]):
            raise ArgumentError(
                f"indices: found {host.min()} to {host.max()}, expected 0 to {table.shape[axis] - 1} (axis {axis})"
            )
    index_array = asarray(indices, [table])
    device = common_device("take", [table, index_array])
    if axis == 0:
        return Array(build.take(table.node, index_array.node), device)
    order = (axis, *(a for a in range(table.ndim) if a != axis))
    rows = Array(build.take(table.transpose(*order).node, index_array.node), device)
    rest = index_array.ndim
    back = (*range(rest, rest + axis), *range(rest), *range(rest + axis, rows.ndim))
    return rows.transpose(*back)


def take_along_axis(x: Any, indices: Any, axis: int) -> Array:
    """x[..., index, ...] along an axis, ``indices`` of the result's shape; clamped. Differentiable for one element."""
    x = asarray(x, [indices])
    index_array = asarray(indices, [x])
    return Array(build.gather(x.node, index_array.node, axis), common_device("take_along_axis", [x, index_array]))


def index(x: Array, key: Any) -> Array:
    """x[key] for ints, slices, None, Ellipsis, and one leading integer array (rows by number)."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if len(keys) == 1 and isinstance(keys[0], (Array, np.ndarray, list)):
        return take(x, keys[0], 0)
    used = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if used > x.ndim:
        raise ShapeError(f"index: {used} positions for an array of {x.ndim} axes")
    if sum(1 for k in keys if k is Ellipsis) > 1:
        raise ArgumentError("index: more than one Ellipsis")
    if Ellipsis not in [k for k in keys if not isinstance(k, (Array, np.ndarray))]:
        keys.append(Ellipsis)
    starts, lengths, steps, shape = [], [], [], []
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        if k is Ellipsis:
            for n in x.shape[axis : axis + x.ndim - used]:
                starts.append(0)
                lengths.append(n)
                steps.append(1)
                shape.append(n)
            axis += x.ndim - used
            continue
        n = x.shape[axis]
        if isinstance(k, slice):
            start, stop, step = k.indices(n)
            length = len(range(start, stop, step))
            shape.append(length)
        elif isinstance(k, (int, np.integer)):
            if not -n <= k < n:
                raise ShapeError(f"index: {k} is outside axis {axis} of length {n}")
            start, step, length = int(k) % n, 1, 1
        else:
            raise ArgumentError(f"index: got {type(k).__name__}, expected ints, slices, None or Ellipsis")
        starts.append(start)
        steps.append(step)
        lengths.append(length)
        axis += 1
    node = build.slice_(x.node, tuple(starts), tuple(lengths), tuple(steps))
    return _like(x, build.reshape(node, tuple(shape)))
