"""Arrays from plain numbers: ones, ranges, one-hot vectors. Expressions of constants and indices cost no memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.array import Array, asarray, filled
from vkdnn.dtypes import DType
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, number, short
from vkdnn.ir.dims import Dim
from vkdnn.ir.node import Node, const

MAX_LENGTH = 2**31 - 1  # indices are int32


def ones(shape: int | Any, dtype: DType | str = "float32") -> Array:
    """An array of ones."""
    return filled("ones", shape, 1, dtype)


def zeros_like(x: Any, dtype: DType | str | None = None) -> Array:
    """Zeros of x's shape, and of its dtype unless another is given."""
    return _like("zeros_like", x, 0, dtype)


def ones_like(x: Any, dtype: DType | str | None = None) -> Array:
    """Ones of x's shape, and of its dtype unless another is given."""
    return _like("ones_like", x, 1, dtype)


def full_like(x: Any, fill_value: float, dtype: DType | str | None = None) -> Array:
    """One value in x's shape, and in its dtype unless another is given."""
    return _like("full_like", x, number("full_like: fill_value", fill_value), dtype)


def _like(name: str, x: Any, value: Any, dtype: DType | str | None) -> Array:
    x = asarray(x, name=f"{name}: x")
    return Array(filled(name, x.shape, value, x.dtype if dtype is None else dtype).node, x._device)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: DType | str | None = None) -> Array:
    """start, start + step, ... below ``stop`` (above it for a negative step); arange(n) counts from 0.

    int32 if all three are ints, else float32: element i is start + i step, each operation rounded once. The length is
    ceil((stop - start) / step), computed in float64.

    >>> import vkdnn as vk
    >>> vk.arange(3).numpy().tolist(), vk.arange(5, 0, -2).numpy().tolist()
    ([0, 1, 2], [5, 3, 1])
    """
    if stop is None:
        start, stop = 0, start
    first, last, by = (_real(f"arange: {name}", v) for name, v in (("start", start), ("stop", stop), ("step", step)))
    if by == 0:
        raise ArgumentError("arange: step is 0, expected another number")
    whole = all(isinstance(v, int) for v in (first, last, by))
    count: int = max(0, -(-(last - first) // by) if whole else math.ceil((last - first) / by))  # type: ignore[assignment]
    if count > MAX_LENGTH:
        raise ShapeError(f"arange: {count} elements, expected at most {MAX_LENGTH}")
    kind = dtypes.as_dtype(dtype) if dtype is not None else dtypes.int32 if whole else dtypes.float32
    index = build.iota((count,), 0)
    if not whole:
        values = build.apply("add", build.apply("mul", _cast(index, dtypes.float32), by), float(first))
        return Array(_cast(values, kind))
    end = first + (count - 1) * by if count else first
    for value in (first, end):
        if not -(2**31) <= value < 2**31:
            raise DtypeError(f"arange: {value} does not fit in int32; give start or step as a float for float32")
    values = index if by == 1 else build.apply("mul", index, by)
    return Array(_cast(values if first == 0 else build.apply("add", values, first), kind))


def linspace(start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType | str = "float32") -> Array:
    """``num`` numbers from ``start`` to ``stop`` in equal steps; ``stop`` is left out without ``endpoint``.

    step = (stop - start) / (num - 1), computed in float64 and rounded to float32 (/ num without ``endpoint``).
    Element i is start + i step in the first half and stop - (m - i) step in the second, m the index of ``stop``:
    both ends are exact. start and stop must be finite, and the dtype a float.

    >>> import vkdnn as vk
    >>> vk.linspace(0, 1, 5).numpy().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    first, last = float(_real("linspace: start", start)), float(_real("linspace: stop", stop))
    count = integer("linspace: num", num)
    if not 0 <= count <= MAX_LENGTH:
        raise ShapeError(f"linspace: num is {count}, expected 0 to {MAX_LENGTH}")
    kind = dtypes.as_dtype(dtype)
    if kind.category != "f":
        raise DtypeError(f"linspace: dtype is {kind}, expected a float dtype; round with .astype")
    whole = count - 1 if endpoint else count  # index of stop
    if count <= 1 or (endpoint and count == 2):  # ends only: a step could overflow
        ends = [first, last][:count]
        nodes = [const(v, dtypes.float32) for v in ends]
        shape = (count,)
        if not nodes:
            return Array(build.full(shape, 0, kind))
        is_first = build.apply("less", build.iota(shape, 0), 1)
        return Array(_cast(build.apply("where", is_first, nodes[0], nodes[-1]), kind))
    step = (last - first) / whole
    index = build.iota((count,), 0)
    behind = build.apply("sub", whole, index)

    def times_step(steps: Node) -> Node:
        return build.apply("mul", _cast(steps, dtypes.float32), step)

    left = build.apply("add", first, times_step(index))
    right = build.apply("sub", last, times_step(behind))
    return Array(_cast(build.apply("where", build.apply("less", index, behind), left, right), kind))


def one_hot(indices: Any, n: int, dtype: DType | str = "float32") -> Array:
    """[..., n]: 1 at the place that the index [...] names, 0 elsewhere; all 0 where it lies outside 0 to n - 1.

    Raises DtypeError unless the indices are int32 or uint32.

    >>> import vkdnn as vk
    >>> vk.one_hot(vk.array([1, 0]), 3).numpy().tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    index = asarray(indices, name="one_hot: indices")
    if index.dtype.category not in "iu":
        raise DtypeError(f"one_hot: indices are {index.dtype}, expected int32 or uint32")
    count = integer("one_hot: n", n)
    if count < 0:
        raise ShapeError(f"one_hot: n is {count}, expected zero or more")
    kind = dtypes.as_dtype(dtype)
    shape = (*index.shape, count)
    place = _cast(build.iota(shape, -1), index.dtype)
    hit = build.apply("equal", build.broadcast_to(build.reshape(index.node, (*index.shape, 1)), shape), place)
    return Array(build.apply("where", hit, const(1, kind), const(0, kind)), index._device)


def _cast(node: Node, dtype: DType) -> Node:
    return node if node.dtype is dtype else build.apply(f"to_{dtype}", node)


def _real(name: str, value: Any) -> int | float:
    """A finite number; a bool is none."""
    found = number(name, value, "a finite number")
    if isinstance(found, Dim):
        return found
    if isinstance(found, bool) or not math.isfinite(found) or abs(found) > float(np.finfo(np.float32).max):
        raise ArgumentError(f"{name}: got {short(value)}, expected a finite number")
    return int(found) if isinstance(found, int) else float(found)


__all__ = ["ones", "zeros_like", "ones_like", "full_like", "arange", "linspace", "one_hot"]
