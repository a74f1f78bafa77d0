"""Picking elements: x[...], take, take_along_axis.

Positions outside an array are an error where the host can know them (ints, slices, lists and NumPy arrays); in index
Arrays they are clamped to the nearest position, since their values are not known when the expression is built.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray, common_device
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, normalize_axis, short
from vkdnn.ir.dims import Dim, maximum, minimum
from vkdnn.ir.node import Node


def take(x: Any, indices: Any, axis: int | None = 0) -> Array:
    """Slices of x along ``axis`` by number: an embedding lookup for axis 0. ``axis=None`` numbers the elements of x.

    Result: x's shape with the axis replaced by the shape of ``indices``, int32 or uint32. Numbers from 0; those outside
    raise ArgumentError in lists and NumPy arrays and are clamped to the first or last slice in Arrays. Gradient:
    contributions to a slice are added in order of their position.

    >>> import vkdnn as vk
    >>> vk.take(vk.array([10, 11, 12]), [2, 0, 2]).numpy().tolist()
    [12, 10, 12]
    """
    x = asarray(x, [indices], "take: x")
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = normalize_axis("take", axis, x.ndim)
    number = index_array("take", indices, x.shape[axis], axis, [x])
    device = common_device("take", [x, number])
    if axis == 0:
        return Array(build.take(x.node, number.node), device)
    order = (axis, *(a for a in range(x.ndim) if a != axis))
    rows = Array(build.take(x.transpose(order).node, number.node), device)
    rest = number.ndim
    return rows.transpose((*range(rest, rest + axis), *range(rest), *range(rest + axis, rows.ndim)))


gather = take  # beside scatter()


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Array:
    """x[..., index, ...] along an axis. ``indices`` has x's axes; its other lengths broadcast with x's.

    Numbers from 0; those outside raise ArgumentError in lists and NumPy arrays and are clamped in Arrays.
    """
    x = asarray(x, [indices], "take_along_axis: x")
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    number = index_array("take_along_axis", indices, x.shape[axis], axis, [x])
    if number.ndim != x.ndim:
        raise ShapeError(
            f"take_along_axis: indices have shape {number.shape}, expected {x.ndim} axes as in x of shape {x.shape}"
        )
    rest = (tuple(1 if i == axis else n for i, n in enumerate(shape)) for shape in (x.shape, number.shape))
    shape = build.broadcast_shapes("take_along_axis", *rest)

    def spread(a: Array) -> Node:
        return build.broadcast_to(a.node, tuple(a.shape[i] if i == axis else n for i, n in enumerate(shape)))

    return Array(build.gather(spread(x), spread(number), axis), common_device("take_along_axis", [x, number]))


def index_array(name: str, indices: Any, length: int, axis: int, beside: Sequence[Array]) -> Array:
    """Indices as an Array, host data checked to lie in [0, length)."""
    if not isinstance(indices, Array):
        indices = _host_integers(f"{name}: indices", indices)
        if indices.size and (indices.min() < 0 or indices.max() >= length):
            raise ArgumentError(
                f"{name}: indices: found {indices.min()} to {indices.max()}, "
                f"expected 0 to {length - 1} (axis {axis} of length {length})"
            )
        indices = asarray(indices.astype(np.int32), beside)
    if indices.dtype.category not in "iu":
        raise DtypeError(f"{name}: indices are {indices.dtype}, expected int32 or uint32")
    if length == 0 and indices.size:
        raise ShapeError(f"{name}: axis {axis} of x has length 0: nothing to take")
    found: Array = indices
    return found


def _host_integers(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Host data as an array of integers. Raises DtypeError for other data and ArgumentError for ragged lists."""
    try:
        host = np.asarray(value)
    except ValueError:
        raise ArgumentError(f"{name}: got nested lists of unequal lengths, expected an array of integers") from None
    if host.size == 0 and not isinstance(value, np.ndarray):
        return host.astype(np.int32)
    if host.dtype.kind not in "iu":
        what = host.dtype if host.dtype.kind in "fcb" else short(value)
        raise DtypeError(f"{name}: got {what}, expected integers")
    return host


# ---- x[key]


def index(x: Array, key: Any) -> Array:
    """x[key] by NumPy's rules: ints, slices, None, Ellipsis, integer arrays (which broadcast together) and host masks.

    Negative numbers count from the end, in Arrays too. A mask of bools on a device is refused: the size of its result
    depends on data.
    """
    keys = _expanded(x, key if isinstance(key, tuple) else (key,))
    starts, lengths, steps = [], [], []
    shape: list[int] = []  # after slices, ints as length 1 where arrays are about
    chosen: dict[int, Any] = {}  # axis of that shape -> its index array, or None for an int
    fancy = any(isinstance(k, (Array, np.ndarray)) for k in keys)
    advanced = [i for i, k in enumerate(keys) if isinstance(k, (Array, np.ndarray, int))]
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        if k is Ellipsis:
            continue  # only its place counts: the slices that it stands for follow it
        n = x.shape[axis]
        start, step, length = 0, 1, n
        if isinstance(k, slice):
            start, length, step = _slice_bounds(k, n)
        elif isinstance(k, int):
            if not -n <= k < n:
                raise ShapeError(f"index: {k} is outside axis {axis} of length {n}")
            start, length = (k + n if k < 0 else k), 1
        if isinstance(k, (Array, np.ndarray)):
            chosen[len(shape)] = _wrapped(k, n, axis, x)
        elif isinstance(k, int) and fancy:
            chosen[len(shape)] = None
        if not isinstance(k, int) or fancy:
            shape.append(length)
        starts.append(start)
        steps.append(step)
        lengths.append(length)
        axis += 1
    node = build.reshape(build.slice_(x.node, tuple(starts), tuple(lengths), tuple(steps)), tuple(shape))
    if not fancy:
        return Array(node, x._device)
    together = advanced == list(range(advanced[0], advanced[-1] + 1))
    return _gathered(Array(node, x._device), chosen, together)


def _expanded(x: Array, keys: tuple[Any, ...]) -> list[Any]:
    """The keys with masks as integer arrays, ints as Python's, Ellipsis followed by the slices that it stands for."""
    keys = tuple(_checked(k) for k in keys)
    used = [0 if k is None or k is Ellipsis else k.ndim if _is_mask(k) else 1 for k in keys]
    if sum(1 for k in keys if k is Ellipsis) > 1:
        raise ArgumentError("index: more than one Ellipsis")
    if sum(used) > x.ndim:
        raise ShapeError(f"index: {sum(used)} positions for an array of {x.ndim} axes")
    rest = [slice(None)] * (x.ndim - sum(used))
    if not any(k is Ellipsis for k in keys):
        keys = (*keys, Ellipsis) if rest else keys
        used.append(0)
    found: list[Any] = []
    axis = 0
    for k, count in zip(keys, used, strict=False):
        if k is Ellipsis:
            found += [k, *rest]
            axis += len(rest)
        elif _is_mask(k):
            if k.shape != x.shape[axis : axis + count]:
                raise ShapeError(f"index: a mask of shape {k.shape} from axis {axis} of an array of shape {x.shape}")
            found += k.nonzero()
        else:
            found.append(k)
        axis += count
    return found


def _is_mask(key: Any) -> bool:
    return isinstance(key, np.ndarray) and key.dtype == np.bool_


def _checked(key: Any) -> Any:
    """One part of a key: None, Ellipsis, a slice, an int, an integer Array, a NumPy array of integers or bools."""
    expected = "ints, slices, None, Ellipsis or integer arrays"
    if key is None or key is Ellipsis or isinstance(key, slice):
        return key
    if isinstance(key, Array):
        if key.dtype.category == "b":
            raise ArgumentError(
                "index: got a mask of bools on a device; the size of the result would depend on its values: "
                "use vk.where(mask, x, 0), or a NumPy array of bools"
            )
        if key.dtype.category == "f":
            raise DtypeError(f"index: got an Array of {key.dtype}, expected int32 or uint32")
        return key
    if isinstance(key, (list, np.ndarray)):
        try:
            host = np.asarray(key)
        except ValueError:
            raise ArgumentError("index: got nested lists of unequal lengths, expected an integer array") from None
        return host if _is_mask(host) and host.ndim else _host_integers("index", key)
    return integer("index", key, expected)


def _slice_bounds(key: slice, n: int) -> tuple[int, int, int]:
    """Start, length and step of a slice of an axis of length n."""
    for part, value in (("start", key.start), ("stop", key.stop), ("step", key.step)):
        if value is not None:
            integer(f"index: slice {part}", value, "an int or None")
    if key.step is not None and int(key.step) == 0:
        raise ArgumentError("index: slice step is 0, expected another int")
    if any(isinstance(part, Dim) for part in (key.start, key.stop, n)):
        return _symbolic_bounds(key, n)
    start, stop, step = key.indices(n)
    return start, len(range(start, stop, step)), step


def _symbolic_bounds(key: slice, n: int) -> tuple[int, int, int]:
    """_slice_bounds() where the length or an end is a symbolic size."""
    if key.step is not None and integer("index: slice step", key.step) != 1:
        if key.step == -1 and key.start is None and key.stop is None:
            return n - 1, n, -1
        raise ArgumentError(f"index: slice step is {key.step} on an axis of symbolic length {n}, expected 1, or ::-1")
    start, stop = (
        minimum(maximum(at + n, 0) if at < 0 else at, n)
        for at in (0 if key.start is None else key.start, n if key.stop is None else key.stop)
    )
    return start, maximum(0, stop - start), 1


def _wrapped(key: Any, n: int, axis: int, x: Array) -> Array:
    """An index array with negative numbers counted from the end, checked where the host can, else clamped."""
    if isinstance(key, np.ndarray):
        if key.size and (key.min() < -n or key.max() >= n):
            raise ArgumentError(
                f"index: indices: found {key.min()} to {key.max()}, expected {-n} to {n - 1} (axis {axis})"
            )
        return asarray(np.where(key < 0, key + n, key).astype(np.int32), [x])
    if n == 0 and key.size:
        raise ShapeError(f"index: axis {axis} has length 0: nothing to take")
    if key.dtype.category == "u":
        return Array(build.apply("to_int32", build.apply("minimum", key.node, max(n - 1, 0))), key._device)
    node = build.apply("where", build.apply("less", key.node, 0), build.apply("add", key.node, n), key.node)
    return Array(build.apply("minimum", build.apply("maximum", node, 0), max(n - 1, 0)), key._device)


def _gathered(x: Array, chosen: dict[int, Any], together: bool) -> Array:
    """x at index arrays of several axes (None for an int, done already): their axes become one, taken by number."""
    arrays = [a for a in chosen.values() if a is not None]
    device = common_device("index", [x, *arrays])
    result_shape = build.broadcast_shapes("index", *(a.shape for a in arrays))
    axes = tuple(chosen)
    rest = tuple(a for a in range(x.ndim) if a not in axes)
    number: Node | None = None
    for a, array in chosen.items():
        if array is None:
            continue
        stride = math.prod(x.shape[b] for b in axes if b > a)
        part = array.node if stride == 1 else build.apply("mul", array.node, stride)
        number = part if number is None else build.apply("add", number, part)
    assert number is not None
    table = build.permute(x.node, (*axes, *rest))
    table = build.reshape(table, (math.prod(x.shape[a] for a in axes), *(x.shape[a] for a in rest)))
    node = build.take(table, build.broadcast_to(number, result_shape))
    # The new axes stand where the index arrays stood if these were neighbours, else in front.
    place = sum(1 for a in rest if a < axes[0]) if together else 0
    count = len(result_shape)
    order = (*range(count, count + place), *range(count), *range(count + place, node.ndim))
    return Array(build.permute(node, order), device)
