"""Joining and cutting: concatenate, stack, split, pad, roll. Composed of views and choices by index; nothing rounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray, common_device
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, integers, normalize_axes, normalize_axis, number, short
from vkdnn.ir.node import Node, const
from vkdnn.ops.shape import expand_dims, like


def pad(
    x: Any,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    constant_values: float = 0,
) -> Array:
    """A constant around x. ``pad_width``: (before, after) for each axis, or one pair or one int for all axes.

    ``mode`` must be "constant". Raises ShapeError for another number of pairs and ArgumentError for negative widths.

    >>> import vkdnn as vk
    >>> vk.pad(vk.array([1, 2]), (1, 2), constant_values=7).numpy().tolist()
    [7, 1, 2, 7, 7]
    """
    x = asarray(x, name="pad: x")
    if mode != "constant":
        raise ArgumentError(f"pad: mode is {short(mode)}, expected 'constant'")
    before, after = _widths(pad_width, x.ndim)
    constant = const(number("pad: constant_values", constant_values), x.dtype)
    shape = tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True))
    if x.size == 0:
        return like(x, build.broadcast_to(constant, shape))
    node = build.pad(x.node, before, after)
    if constant is const(0, x.dtype):
        return like(x, node)
    for axis, (b, n) in enumerate(zip(before, x.shape, strict=True)):
        if shape[axis] != n:
            at = build.iota(shape, axis)
            node = build.apply("where", (at >= b) & (at < b + n), node, constant)
    return like(x, node)


def _widths(widths: Any, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Counts before and after each axis, from NumPy's forms."""
    expected = "an int, a pair of ints, or a pair for each axis, all zero or more"
    if isinstance(widths, np.ndarray):
        widths = widths.tolist()
    if not isinstance(widths, (list, tuple)):
        pairs: list[tuple[int, ...]] = [(integer("pad: pad_width", widths, expected),) * 2] * ndim
    elif all(isinstance(w, (list, tuple, np.ndarray)) for w in widths) and len(widths) > 0:
        pairs = [integers("pad: pad_width", w, expected) for w in widths]
        pairs = [w * 2 if len(w) == 1 else w for w in pairs]
        pairs = pairs * ndim if len(pairs) == 1 else pairs
    else:
        one = integers("pad: pad_width", widths, expected)
        pairs = [one * 2 if len(one) == 1 else one] * ndim if one else []
    if any(len(w) != 2 or min(w) < 0 for w in pairs):
        raise ArgumentError(f"pad: pad_width is {short(widths)}, expected {expected}")
    if len(pairs) != ndim:
        raise ShapeError(f"pad: got {len(pairs)} pairs, expected one for each of {ndim} axes")
    return tuple(w[0] for w in pairs), tuple(w[1] for w in pairs)


def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Array:
    """Arrays joined along an axis; all other lengths equal. ``axis=None`` joins their elements in row-major order.

    The dtype is the one in which all of them meet: bool, integer, float32.
    """
    items = _items("concatenate", arrays)
    if axis is None:
        items, axis = [i.reshape(-1) for i in items], 0
    first = items[0]
    if first.ndim == 0:
        raise ShapeError("concatenate: got an array without axes, expected at least one axis; use stack")
    axis = normalize_axis("concatenate", axis, first.ndim)
    for item in items:
        if item.shape[:axis] != first.shape[:axis] or item.shape[axis + 1 :] != first.shape[axis + 1 :]:
            raise ShapeError(f"concatenate: shapes {first.shape} and {item.shape} differ outside axis {axis}")
    nodes = _in_one_dtype("concatenate", items)
    total = sum(n.shape[axis] for n in nodes)
    result, start = None, 0
    for node in nodes:
        length = node.shape[axis]
        if length == 0 or node.size == 0:
            continue
        before = tuple(start if a == axis else 0 for a in range(node.ndim))
        after = tuple(total - start - length if a == axis else 0 for a in range(node.ndim))
        padded = build.pad(node, before, after)
        if result is None:
            result = padded
        else:
            result = build.apply("where", build.iota(result.shape, axis) < start, result, padded)
        start += length
    if result is None:  # no elements at all
        shape = tuple(total if a == axis else n for a, n in enumerate(first.shape))
        result = build.full(shape, 0, nodes[0].dtype)
    return Array(result, common_device("concatenate", items))


concat = concatenate


def stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis."""
    items = _items("stack", arrays)
    for item in items:
        if item.shape != items[0].shape:
            raise ShapeError(f"stack: shapes {items[0].shape} and {item.shape} differ, expected one shape")
    axis = normalize_axis("stack", axis, items[0].ndim + 1)
    return concatenate([expand_dims(i, axis) for i in items], axis)


def _items(name: str, arrays: Any) -> list[Array]:
    """The arrays of a sequence, or the slices of an array along its first axis."""
    if isinstance(arrays, (Array, np.ndarray)) and arrays.ndim:
        arrays = [arrays[i] for i in range(arrays.shape[0])]
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(f"{name}: arrays is {short(arrays)}, expected a sequence of arrays")
    if not arrays:
        raise ArgumentError(f"{name}: got no arrays, expected at least one")
    return [asarray(a, arrays, f"{name}: arrays[{i}]") for i, a in enumerate(arrays)]


def _in_one_dtype(name: str, items: Sequence[Array]) -> list[Node]:
    """The nodes of arrays, converted to the dtype in which all meet."""
    dtype = build._common_dtype(name, "a", [i.node for i in items])
    return [i.node if i.dtype is dtype else build.apply(f"to_{dtype}", i.node) for i in items]


# ---- cutting


def split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """x cut along an axis: into that many equal parts, or before each of the given positions.

    Raises ShapeError if the axis does not divide into equal parts; array_split takes unequal ones.

    >>> import vkdnn as vk
    >>> [part.shape[0] for part in vk.split(vk.arange(6), [1, 4])]
    [1, 3, 2]
    """
    return _split("split", x, indices_or_sections, axis, equal=True)


def array_split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """split() into parts that need not be equal: the first parts are longer by one."""
    return _split("array_split", x, indices_or_sections, axis, equal=False)


def _split(name: str, x: Any, cuts: Any, axis: int, equal: bool) -> list[Array]:
    x = asarray(x, name=f"{name}: x")
    axis = normalize_axis(name, axis, x.ndim)
    n = x.shape[axis]
    expected = "a number of parts or a sequence of positions"
    if not (isinstance(cuts, (list, tuple)) or (isinstance(cuts, np.ndarray) and cuts.ndim)):
        count = integer(f"{name}: indices_or_sections", cuts, expected)
        if not 1 <= count <= max(1, 2 * n, 1 << 16) or (equal and n % count):
            raise ShapeError(f"{name}: axis {axis} of length {n} does not divide into {count} parts")
        sizes = [n // count + (i < n % count) for i in range(count)]
        bounds = [0, *np.cumsum(sizes).tolist()]
        pairs = list(itertools.pairwise(bounds))
    else:
        positions = integers(f"{name}: indices_or_sections", cuts, expected)
        pairs = list(zip((0, *positions), (*positions, n), strict=True))
    before = (slice(None),) * axis
    return [x[(*before, slice(start, stop))] for start, stop in pairs]


def unstack(x: Any, axis: int = 0) -> tuple[Array, ...]:
    """The slices of x along an axis, without that axis."""
    x = asarray(x, name="unstack: x")
    axis = normalize_axis("unstack", axis, x.ndim)
    return tuple(x[(*(slice(None),) * axis, i)] for i in range(x.shape[axis]))


def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array:
    """Elements moved by ``shift`` places along the axes, those that leave at one end coming in at the other.

    Without ``axis`` the elements in row-major order are moved. Shift and axis broadcast, as in NumPy.

    >>> import vkdnn as vk
    >>> vk.roll(vk.arange(4), 1).numpy().tolist()
    [3, 0, 1, 2]
    """
    x = asarray(x, name="roll: x")
    if axis is None:
        flat = roll(x.reshape(-1), sum(_shifts(shift)), 0)
        return flat.reshape(x.shape)
    shifts = _shifts(shift)
    axes = axis if isinstance(axis, (list, tuple)) else (axis,)
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ShapeError(f"roll: got {len(shifts)} shifts and {len(axes)} axes, expected one or equally many")
    count = max(len(shifts), len(axes)) if shifts and axes else 0
    for k in range(count):
        a = normalize_axes("roll", axes[k if len(axes) > 1 else 0], x.ndim)[0]
        n = x.shape[a]
        by = shifts[k if len(shifts) > 1 else 0] % n if n else 0
        if by:
            before = (slice(None),) * a
            x = concatenate([x[(*before, slice(n - by, None))], x[(*before, slice(0, n - by))]], a)
    return x


def _shifts(shift: Any) -> tuple[int, ...]:
    expected = "an int or a sequence of ints"
    if isinstance(shift, (list, tuple)):
        return integers("roll: shift", shift, expected)
    return (integer("roll: shift", shift, expected),)


__all__ = ["pad", "concatenate", "concat", "stack", "split", "array_split", "unstack", "roll"]
