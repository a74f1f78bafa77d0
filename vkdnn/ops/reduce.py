"""Reductions along axes: sums, extremes, their positions, moments, norms. Orders are those of DESIGN, for any schedule.

Axes are ints, sequences of ints or None for all; ``keepdims`` leaves folded axes with length 1. float16 and bfloat16
data is folded in float32 and the result rounded once to the dtype of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vkdnn.array import Array, asarray
from vkdnn.dtypes import bool_, float32, int32
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import number, short
from vkdnn.ir.dims import Dim
from vkdnn.ops.elementwise import sqrt, stop_gradient, where

Axes = int | Sequence[int] | None


def wide(x: Any) -> Array:
    """x as float32: what folds and norms of floats are computed in."""
    x = asarray(x)
    return Array(build.cast(x.node, float32), x._device)


def narrow(result: Array, like: Array) -> Array:
    """A float32 result rounded to the storage type of the data it was computed from, if that is one."""
    return Array(build.cast(result.node, like.dtype), result._device) if like.dtype.half else result


def _fold(name: str, op: str, x: Array, axis: Axes, keepdims: bool) -> Array:
    axes = build.normalize_axes(name, axis, x.ndim)
    kept = [n for i, n in enumerate(x.shape) if i not in axes]
    if op in ("maximum", "minimum") and x.size == 0 and 0 not in kept:
        raise ShapeError(f"{name}: no elements along axes {axes} of shape {x.shape}, and no elements have no {name}")
    node = build.fold(op, x.node, axes)
    return Array(node if keepdims else build.reshape(node, tuple(kept)), x._device)


def _number(name: str, x: Any) -> Array:
    """x, with bools as int32."""
    x = asarray(x, name=f"{name}: x")
    return Array(build.cast(x.node, int32), x._device) if x.dtype is bool_ else x


def _count(x: Array, axes: Sequence[int]) -> int:
    return math.prod(x.shape[a] for a in axes)


def sum(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Sum over axes, in vkdnn's order; 0 over no elements. Integers wrap around; bools are counted in int32.

    >>> import vkdnn as vk
    >>> vk.sum(vk.array([[1.0, 2.0], [3.0, 4.0]]), axis=0).numpy().tolist()
    [4.0, 6.0]
    """
    return _fold("sum", "add", _number("sum", x), axis, keepdims)


def prod(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Product over axes, in vkdnn's order; 1 over no elements. Integers wrap around.

    The gradient of an element is the product of the others, right where elements are 0.

    >>> import vkdnn as vk
    >>> vk.prod(vk.array([2, 3, 4])).item()
    24
    """
    return _fold("prod", "mul", _number("prod", x), axis, keepdims)


def max(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Maximum over axes; NaN if any element is; raises ShapeError over no elements. At ties the gradient is shared.

    >>> import vkdnn as vk
    >>> vk.max(vk.array([0.0, float("nan")])).item()
    nan
    """
    return _extreme("max", "maximum", x, axis, keepdims)


def min(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Minimum over axes; NaN if any element is; raises ShapeError over no elements. At ties the gradient is shared."""
    return _extreme("min", "minimum", x, axis, keepdims)


def _extreme(name: str, op: str, x: Any, axis: Axes, keepdims: bool) -> Array:
    x = asarray(x, name=f"{name}: x")
    result = _fold(name, op, _number(name, x), axis, keepdims)
    return Array(build.cast(result.node, bool_), x._device) if x.dtype is bool_ else result


def any(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether an element is nonzero (NaN is), over axes: bool; False over no elements."""
    return _truth("any", "add", x, axis, keepdims)


def all(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether every element is nonzero (NaN is), over axes: bool; True over no elements."""
    return _truth("all", "mul", x, axis, keepdims)


def _truth(name: str, op: str, x: Any, axis: Axes, keepdims: bool) -> Array:
    x = asarray(x, name=f"{name}: x")
    truth = build.cast(build.cast(x.node, bool_), int32)
    axes = build.normalize_axes(name, axis, x.ndim)
    if op == "add" and math.prod(x.shape[a] for a in axes):
        op = "maximum"  # a count could wrap around to 0
    result = _fold(name, op, Array(truth, x._device), axis, keepdims)
    return Array(build.cast(result.node, bool_), x._device)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the maximum along an axis (None: in the flattened array), int32; the first at ties, the first NaN
    where there is one. Raises ShapeError over no elements.

    >>> import vkdnn as vk
    >>> vk.argmax(vk.array([1.0, 3.0, 3.0])).item()
    1
    """
    return _position("argmax", x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the minimum along an axis; see argmax()."""
    return _position("argmin", x, axis, keepdims)


def _position(name: str, x: Any, axis: int | None, keepdims: bool) -> Array:
    x = asarray(x, name=f"{name}: x")
    flat = x.reshape(x.size) if axis is None else x
    at = 0 if axis is None else build.normalize_axis(name, axis, x.ndim)
    if flat.shape[at] == 0 and 0 not in flat.shape[:at] + flat.shape[at + 1 :]:
        raise ShapeError(f"{name}: axis {at} of shape {flat.shape} has no elements, and no elements have no {name}")
    _, index = build.fold_fields(name, (_number(name, flat).node, build.iota(flat.shape, at)), (at,))
    result = Array(index, x._device)
    if keepdims:
        return result.reshape((1,) * x.ndim) if axis is None else result
    return result.reshape(flat.shape[:at] + flat.shape[at + 1 :])


# ---- moments


def mean(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Sum over axes divided by the count; NaN over no elements. Integers and bools give float32."""
    x = asarray(x, name="mean: x")
    axes = build.normalize_axes("mean", axis, x.ndim)
    return narrow(sum(wide(x), axes, keepdims) / _real(_count(x, axes)), x)


def var(x: Any, axis: Axes = None, keepdims: bool = False, correction: float = 0) -> Array:
    """Mean of squared deviations from the mean over axes (two passes), the sum divided by count - ``correction``.

    ``correction`` 1 is Bessel's. NaN where count - correction is not positive.
    """
    x = asarray(x, name="var: x")
    return narrow(_var("var", x, axis, keepdims, correction), x)


def _real(count: float) -> float:
    """A count as a float; a symbolic size stays what it is, and the kernel converts it with the same rounding."""
    return count if isinstance(count, Dim) else float(count)


def _freedom(x: Array, axes: Sequence[int], correction: float) -> float:
    """Count - correction, NaN where that is not positive."""
    value = number("correction", correction, "a finite number (0, or 1 for Bessel's)")
    if isinstance(value, bool) or not abs(value) < 2**64:
        raise ArgumentError(f"correction: got {short(correction)}, expected a finite number (0, or 1 for Bessel's)")
    freedom = _count(x, axes) - (int(value) if value == int(value) else value)
    return _real(freedom) if freedom > 0 else math.nan


def _var(name: str, x: Array, axis: Axes, keepdims: bool, correction: float) -> Array:
    data, axes = wide(x), build.normalize_axes(name, axis, x.ndim)
    deviation = data - mean(data, axes, keepdims=True)
    return sum(deviation * deviation, axes, keepdims) / _freedom(x, axes, correction)


def moments(x: Any, axis: Axes = None, keepdims: bool = False, correction: float = 0) -> tuple[Array, Array]:
    """mean() and var() over axes from one pass over x; roundings are others than those of the two functions.

    Counts, means and sums of squared deviations of parts are merged (Chan, Golub and LeVeque 1979). Both float32, or
    of the storage type of x. A row with an infinity has its mean, and variance NaN; NaN over no elements, and where a
    difference of two parts' means, or a square of one, is beyond float32. Raises ArgumentError for a correction that is
    no finite number.

    >>> import vkdnn as vk
    >>> mean, variance = vk.moments(vk.array([1.0, 2.0, 3.0, 6.0]))
    >>> mean.item(), variance.item()
    (3.0, 3.5)
    """
    x = asarray(x, name="moments: x")
    data, axes = wide(x), build.normalize_axes("moments", axis, x.ndim)
    freedom, kept = _freedom(x, axes, correction), tuple(n for i, n in enumerate(x.shape) if i not in axes)
    zero = build.full(x.shape, 0.0)
    elements = (build.full(x.shape, 1.0), data.node, zero, zero)
    _, mean, rest, squares = (Array(f, x._device) for f in build.fold_fields("moments", elements, axes))
    mean = mean + (rest if _count(x, axes) else math.nan)
    squares = squares + stop_gradient(mean - mean)  # 0, but NaN where the mean is not finite
    if not keepdims:
        mean, squares = mean.reshape(kept), squares.reshape(kept)
    return narrow(mean, x), narrow(squares / freedom, x)


def std(x: Any, axis: Axes = None, keepdims: bool = False, correction: float = 0) -> Array:
    """Square root of var(); the gradient where it is 0 is 0."""
    x = asarray(x, name="std: x")
    return narrow(_root(_var("std", x, axis, keepdims, correction)), x)


def _root(x: Array) -> Array:
    """Square root with gradient 0 at 0."""
    zero = x == 0.0
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


def norm(x: Any, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> Array:
    """Vector norm over axes: (sum of abs(x)**ord)**(1/ord); the extreme of abs(x) for ord inf or -inf; the count of
    nonzero elements for ord 0. The gradient of the 2-norm of zeros is 0.

    Raises ArgumentError for an ``ord`` that is no number.
    """
    x = asarray(x, name="norm: x")
    if isinstance(ord, bool) or not isinstance(ord, (int, float)) or math.isnan(ord):
        raise ArgumentError(f"ord: got {ord!r}, expected a number, inf or -inf")
    size, axis = abs(wide(x)), build.normalize_axes("norm", axis, x.ndim)
    if ord in (math.inf, -math.inf):
        return narrow((max if ord > 0 else min)(size, axis, keepdims), x)
    if ord == 0:
        return narrow(sum(wide(size != 0.0), axis, keepdims), x)
    if ord == 1:
        return narrow(sum(size, axis, keepdims), x)
    if ord == 2:
        return narrow(_root(sum(size * size, axis, keepdims)), x)
    return narrow(sum(size ** float(ord), axis, keepdims) ** (1.0 / float(ord)), x)


__all__ = ["all", "any", "argmax", "argmin", "max", "mean", "min", "moments", "norm", "prod", "std", "sum", "var"]
