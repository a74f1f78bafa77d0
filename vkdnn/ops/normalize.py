"""Softmax and the norms, along axes, forward and (through differentiation) backward; fused into single kernels.

Statistics are float32: float16 and bfloat16 data is widened first, and the result rounded once to its dtype.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import build
from vkdnn.ops.elementwise import exp, log, maximum, rsqrt, stop_gradient, where
from vkdnn.ops.reduce import Axes, max, mean, narrow, norm, sum, wide


def logsumexp(x: Any, axis: Axes = -1, keepdims: bool = False, one_pass: bool = False) -> Array:
    """log(sum(exp(x))) over axes, without overflow: the maximum is taken out first. -inf where all are -inf or over
    no elements; NaN where any is.

    ``one_pass`` keeps a running maximum and rescales the sum where it grows (Milakov and Gimelshein 2018): x is read
    once, roundings are others, and the gradient of a row of -inf is 0 instead of NaN.

    >>> import vkdnn as vk
    >>> vk.logsumexp(vk.array([1000.0, 1000.0]), one_pass=True).item()
    1000.6931762695312
    """
    x = asarray(x, name="logsumexp: x")
    data = wide(x)
    axes = build.normalize_axes("logsumexp", axis, x.ndim)
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    shape = kept if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)
    if 0 in x.shape:
        return narrow(Array(build.full(shape, -math.inf), x._device), x)
    if one_pass:
        folded = build.fold_fields("logsumexp", (data.node, build.full(x.shape, 1.0)), axes)
        largest, total = (Array(f, x._device) for f in folded)
        return narrow((log(total) + largest).reshape(shape), x)
    top = stop_gradient(max(data, axes, keepdims=True))
    shift = where((top < math.inf) & (top > -math.inf), top, 0.0)
    result = log(sum(exp(data - shift), axes, keepdims=True)) + shift
    return narrow(result.reshape(shape), x)


def softmax(x: Any, axis: Axes = -1) -> Array:
    """exp(x - max) / sum of the same over axes. x: any shape. A row with NaN or +inf, or all -inf, is NaN.

    >>> import vkdnn as vk
    >>> vk.softmax(vk.array([0.0, 0.0])).numpy().tolist()
    [0.5, 0.5]
    """
    x = asarray(x, name="softmax: x")
    axes = build.normalize_axes("softmax", axis, x.ndim)
    if 0 in x.shape:
        return x if x.dtype.category == "f" else wide(x)
    data = wide(x)
    e = exp(data - stop_gradient(max(data, axes, keepdims=True)))
    return narrow(e / sum(e, axes, keepdims=True), x)


def log_softmax(x: Any, axis: Axes = -1) -> Array:
    """x - logsumexp(x) over axes."""
    x = asarray(x, name="log_softmax: x")
    axes = build.normalize_axes("log_softmax", axis, x.ndim)
    if 0 in x.shape:
        return x if x.dtype.category == "f" else wide(x)
    data = wide(x)
    shifted = data - stop_gradient(max(data, axes, keepdims=True))
    return narrow(shifted - log(sum(exp(shifted), axes, keepdims=True)), x)


def rms_norm(x: Any, weight: Any = None, axis: Axes = -1, eps: float = 1e-6) -> Array:
    """x / sqrt(mean(x²) + eps) over axes, times ``weight`` (Zhang and Sennrich 2019).

    Raises ArgumentError unless eps is finite and positive.
    """
    check_eps(eps)
    x = asarray(x, name="rms_norm: x")
    data, axis = wide(x), build.normalize_axes("rms_norm", axis, x.ndim)
    return _scaled(data * rsqrt(mean(data * data, axis, keepdims=True) + eps), weight, None, x)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, axis: Axes = -1, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps) over axes, times ``weight`` plus ``bias`` (Ba et al. 2016).

    The variance is the mean of squared deviations from the mean (two passes). Raises ArgumentError unless eps is
    finite and positive.
    """
    check_eps(eps)
    x = asarray(x, name="layer_norm: x")
    axes = build.normalize_axes("layer_norm", axis, x.ndim)
    return _scaled(_standardised(wide(x), axes, eps), weight, bias, x)


def l2_norm(x: Any, axis: Axes = -1, eps: float = 1e-12) -> Array:
    """x / max(‖x‖₂, eps) over axes: rows of length 1; zeros stay zeros.

    Raises ArgumentError unless eps is finite and positive.
    """
    check_eps(eps)
    x = asarray(x, name="l2_norm: x")
    data, axis = wide(x), build.normalize_axes("l2_norm", axis, x.ndim)
    return narrow(data / maximum(norm(data, 2, axis, keepdims=True), eps), x)


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Array:
    """Layer norm over each of ``groups`` groups of channels and all positions (Wu and He 2018).

    x: [N, C, ...] with C a multiple of ``groups``; ``weight`` and ``bias`` [C]. Raises ShapeError where they do not
    fit, and ArgumentError unless eps is finite and positive.
    """
    check_eps(eps)
    x = asarray(x, name="group_norm: x")
    if x.ndim < 2:
        raise ShapeError(f"x: got shape {x.shape}, expected [N, C, ...]")
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"groups: got {groups!r}, expected a positive divisor of {x.shape[1]} channels")
    shape = (x.shape[0], int(groups), x.shape[1] // groups, *x.shape[2:])
    grouped = wide(x).reshape(shape)
    result = _standardised(grouped, tuple(range(2, grouped.ndim)), eps).reshape(x.shape)
    return _scaled(result, _channels("weight", weight, x), _channels("bias", bias, x), x)


def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Standardised over the batch and all positions, channel by channel (Ioffe and Szegedy 2015).

    x: [N, C, ...]; the others [C]. In inference the running statistics are used, and the result is one array. In
    training those of the batch are, and the result is (y, running_mean, running_var) with the statistics moved by
    ``momentum`` towards the batch's mean and unbiased variance (None stays None); no gradient flows through them.
    Raises ShapeError where shapes do not fit, and ArgumentError for inference without running statistics, a batch of
    one element a channel in training, or an eps or momentum out of range.

    >>> import vkdnn as vk
    >>> y, mean, var = vk.batch_norm(vk.array([[1.0], [3.0]]), vk.zeros(1), vk.full(1, 1.0), training=True)
    >>> mean.numpy().tolist()
    [0.20000000298023224]
    """
    check_eps(eps)
    x = asarray(x, name="batch_norm: x")
    if x.ndim < 2:
        raise ShapeError(f"x: got shape {x.shape}, expected [N, C, ...]")
    if not (isinstance(momentum, (int, float)) and 0 <= momentum <= 1):
        raise ArgumentError(f"momentum: got {momentum!r}, expected a number from 0 to 1")
    data, gain, shift = wide(x), _channels("weight", weight, x), _channels("bias", bias, x)
    old_mean, old_var = _channels("running_mean", running_mean, x), _channels("running_var", running_var, x)
    if not training:
        if old_mean is None or old_var is None:
            raise ArgumentError("running_mean, running_var: expected arrays for inference; give them, or training=True")
        return _scaled((data - old_mean) * rsqrt(old_var + eps), gain, shift, x)
    axes = (0, *range(2, x.ndim))
    count = x.size // x.shape[1] if x.shape[1] else 0
    if count < 2:
        raise ArgumentError(f"x: shape {x.shape} has {count} elements a channel, expected at least 2 in training")
    centred = data - mean(data, axes, keepdims=True)
    variance = mean(centred * centred, axes, keepdims=True)
    y = _scaled(centred * rsqrt(variance + eps), gain, shift, x)
    moved = []
    for old, batch in ((old_mean, mean(data, axes, keepdims=True)), (old_var, variance * (count / (count - 1)))):
        new = None if old is None else stop_gradient(old + (batch - old) * float(momentum))
        moved.append(None if new is None else new.reshape(x.shape[1]))
    return y, moved[0], moved[1]


def _standardised(data: Array, axis: Axes, eps: float) -> Array:
    centred = data - mean(data, axis, keepdims=True)
    return centred * rsqrt(mean(centred * centred, axis, keepdims=True) + eps)


def _scaled(result: Array, weight: Any, bias: Any, x: Array) -> Array:
    """result times weight plus bias, rounded to the dtype of the data."""
    if weight is not None:
        result = result * _beside("weight", weight, x)
    if bias is not None:
        result = result + _beside("bias", bias, x)
    return narrow(result, x)


def _beside(name: str, value: Any, x: Array) -> Array:
    """A weight or bias in float32 where x lives. Raises ShapeError unless it broadcasts to the shape of x."""
    value = wide(asarray(value, [x], name))
    if build.broadcast_shapes(name, value.shape, x.shape) != x.shape:
        raise ShapeError(f"{name}: got shape {value.shape}, expected one that broadcasts to {x.shape}, the shape of x")
    return value


def _channels(name: str, value: Any, x: Array) -> Array | None:
    """A vector of one value a channel, ready to broadcast against [N, C, ...]."""
    if value is None:
        return None
    value = wide(asarray(value, [x], name))
    if value.shape != (x.shape[1],):
        raise ShapeError(f"{name}: got shape {value.shape}, expected ({x.shape[1]},), one value a channel")
    return value.reshape(x.shape[1], *(1,) * (x.ndim - 2))


def check_eps(eps: float) -> None:
    """Raise ArgumentError unless eps is a finite positive number of float32."""
    valid = isinstance(eps, (int, float, np.floating)) and not isinstance(eps, bool)
    if not (valid and math.isfinite(eps) and 2.0**-126 <= float(eps) < 3.4e38):
        raise ArgumentError(f"eps: got {eps!r}, expected a finite positive number, at least 2**-126")


__all__ = ["batch_norm", "group_norm", "l2_norm", "layer_norm", "log_softmax", "logsumexp", "rms_norm", "softmax"]
