"""Reductions and what is made of them: sums, means, softmax, norms. Orders are those of DESIGN, for any schedule.

Axes are ints, sequences or None for all; ``keepdims`` leaves folded axes with length 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError
from vkdnn.ir import build
from vkdnn.ops.elementwise import exp, log, rsqrt, stop_gradient, where

Axes = int | Sequence[int] | None


def _fold(op: str, x: Any, axis: Axes, keepdims: bool) -> Array:
    x = asarray(x)
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    axes = tuple(build.normalize_axis(op, a, x.ndim) for a in axes)
    node = build.fold(op, x.node, axes)
    if not keepdims:
        node = build.reshape(node, tuple(n for i, n in enumerate(x.shape) if i not in axes))
    return Array(node, x._device)


def sum(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Sum over axes, in vkdnn's order; 0 over no elements.

    >>> import vkdnn as vk
    >>> vk.sum(vk.array([[1.0, 2.0], [3.0, 4.0]]), axis=0).numpy().tolist()
    [4.0, 6.0]
    """
    return _fold("add", x, axis, keepdims)


def max(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Maximum over axes; NaN if any element is; raises ShapeError over no elements. At ties the gradient is shared."""
    return _fold("maximum", x, axis, keepdims)


def min(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Minimum over axes; NaN if any element is; raises ShapeError over no elements. At ties the gradient is shared."""
    return _fold("minimum", x, axis, keepdims)


def mean(x: Any, axis: Axes = None, keepdims: bool = False) -> Array:
    """Sum over axes divided by the count; NaN over no elements."""
    x = asarray(x)
    total = sum(x, axis, keepdims)
    count = x.size // total.size if total.size else 0
    return total / float(count)


def logsumexp(x: Any, axis: int = -1, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) along an axis, without overflow: the maximum is taken out first. -inf where all are -inf."""
    x = asarray(x)
    top = stop_gradient(max(x, axis, keepdims=True))
    shift = where((top < math.inf) & (top > -math.inf), top, 0.0)
    result = log(sum(exp(x - shift), axis, keepdims=True)) + shift
    return result if keepdims else _without(result, axis)


def softmax(x: Any, axis: int = -1) -> Array:
    """exp(x - max) / sum of the same along an axis. x: any shape, float32. A row with NaN or +inf is NaN.

    >>> import vkdnn as vk
    >>> vk.softmax(vk.array([0.0, 0.0])).numpy().tolist()
    [0.5, 0.5]
    """
    x = asarray(x)
    e = exp(x - stop_gradient(max(x, axis, keepdims=True)))
    return e / sum(e, axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Array:
    """x - logsumexp(x) along an axis."""
    x = asarray(x)
    shifted = x - stop_gradient(max(x, axis, keepdims=True))
    return shifted - log(sum(exp(shifted), axis, keepdims=True))


def rms_norm(x: Any, weight: Any = None, axis: int = -1, eps: float = 1e-6) -> Array:
    """x / sqrt(mean(x²) + eps) along an axis, times ``weight`` (Zhang and Sennrich 2019).

    Raises ArgumentError unless eps is finite and positive.
    """
    _check_eps(eps)
    x = asarray(x)
    result = x * rsqrt(mean(x * x, axis, keepdims=True) + eps)
    return result if weight is None else result * weight


def layer_norm(x: Any, weight: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps) along an axis, times ``weight`` plus ``bias`` (Ba et al. 2016).

    The variance is the mean of squared deviations from the mean (two passes). Raises ArgumentError unless eps is
    finite and positive.
    """
    _check_eps(eps)
    x = asarray(x)
    centred = x - mean(x, axis, keepdims=True)
    result = centred * rsqrt(mean(centred * centred, axis, keepdims=True) + eps)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


def _check_eps(eps: float) -> None:
    if not (isinstance(eps, (int, float)) and eps > 0 and math.isfinite(eps) and np.float32(eps) > 0):
        raise ArgumentError(f"eps: got {eps!r}, expected a finite positive number")


def _without(x: Array, axis: int) -> Array:
    axis = build.normalize_axis("axis", axis, x.ndim)
    return x.reshape(*x.shape[:axis], *x.shape[axis + 1 :])
