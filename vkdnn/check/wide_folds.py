"""The monoids in float64: what a fold over axes means, in plain NumPy and without an order; complex values as in
vkdnn.check.wide_rows.

FOLDS has a function of (axes from the end, number of the field wanted, fields) for each row of vkdnn.ir.monoids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn.check.wide_rows import divide, is_complex

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def extreme(x: Array, axes: Axes, sign: int = 1) -> Array:
    """The largest (or with sign -1 the smallest) element along the axes, which keep length 1, by its real part; NaN if
    there is one, the first of equals.
    """
    if not is_complex(x):
        return np.asarray((np.max if sign > 0 else np.min)(x, axes, keepdims=True))
    rows = _last(x, axes)
    at = np.argmax(rows.real, -1) if sign > 0 else np.argmin(rows.real, -1)
    return _kept(np.take_along_axis(rows, at[..., None], -1)[..., 0], x, axes)


def _last(x: Array, axes: Axes) -> Array:
    """x with the axes as one, the last."""
    moved = np.moveaxis(x, axes, range(-len(axes), 0))
    return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)


def _kept(result: Array, x: Array, axes: Axes) -> Array:
    """A result of _last() with the axes again, of length 1."""
    at = {a % x.ndim for a in axes}
    return result.reshape([1 if a in at else n for a, n in enumerate(x.shape)])


def _add(axes: Axes, k: int, x: Array) -> Array:
    return np.asarray(np.sum(x, axes, keepdims=True, dtype=x.dtype))


def _mul(axes: Axes, k: int, x: Array) -> Array:
    return np.asarray(np.prod(x, axes, keepdims=True, dtype=x.dtype))


def _position(sign: int) -> Callable[..., Array]:
    def fold(axes: Axes, k: int, x: Array, index: Array) -> Array:
        """The extreme value, and the lowest index of those that have it; NaN is beyond all numbers."""
        value = extreme(x, axes, sign)
        if k == 0:
            return value
        a, b = np.real(x), np.real(value)
        hit = (a == b) | ((a != a) & (b != b))
        return np.asarray(np.min(np.where(hit, index, np.int32(2**31 - 1)), axes, keepdims=True)).astype(np.int32)

    return fold


def _logsumexp(axes: Axes, k: int, top: Array, total: Array) -> Array:
    """m = max(top), sum of total e**(top - m); nothing from a top of -inf, but where all are."""
    m = extreme(top, axes)
    if k == 0:
        return m
    real = np.real(m)
    distance = np.exp(top - np.where(np.isfinite(real), m, 0.0))
    equal = np.where(np.isnan(real), np.nan, np.real(top) == real)  # infinite ones have no difference
    share = np.where(np.isfinite(real), distance, equal)
    return _add(axes, 0, total * share)


def _moments(axes: Axes, k: int, count: Array, mean: Array, rest: Array, squares: Array) -> Array:
    """Counts, the mean of all, 0, and the squares about it: v + n (a - mean)**2 of each element of mean a + rest."""
    total = _add(axes, 0, count)
    if k == 0:
        return total
    some = np.real(count) != 0
    own = np.where(some, mean + rest, 0.0)
    middle = np.where(np.real(total) == 0, 0.0, divide(_add(axes, 0, count * own), total))
    if k == 1:
        return middle
    if k == 2:
        return np.zeros_like(middle)
    return _add(axes, 0, np.where(some, squares + count * (own - middle) ** 2, 0.0))


FOLDS: dict[str, Callable[..., Array]] = {
    "add": _add,
    "mul": _mul,
    "maximum": lambda axes, k, x: extreme(x, axes),
    "minimum": lambda axes, k, x: extreme(x, axes, -1),
    "argmax": _position(1),
    "argmin": _position(-1),
    "logsumexp": _logsumexp,
    "moments": _moments,
}
