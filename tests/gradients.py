"""Gradients of vkdnn against central differences of the same function in float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import vkdnn as vk


def differences(function: Callable[..., Any], arrays: list[Any], weights: Any, step: float = 1e-5) -> list[Any]:
    """d sum(function(*arrays) * weights) / d arrays, by central differences in float64."""
    arrays = [np.array(a, np.float64) for a in arrays]
    found = []
    for array in arrays:
        slope = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            kept = array[at]
            values = []
            for sign in (1, -1):
                array[at] = kept + sign * step
                values.append(float(np.sum(function(*arrays) * weights)))
            array[at] = kept
            slope[at] = (values[0] - values[1]) / (2 * step)
        found.append(slope)
    return found


def check_gradient(function: Any, truth: Any, *arrays: Any, tolerance: float = 2e-5, both: Any = None) -> None:
    """The gradient of ``function`` (vkdnn) agrees with differences of ``truth`` (its float64 twin) on ``arrays``.

    The tolerance is relative to the largest entry. ``both`` compares the gradient's bits on two devices as well.
    """
    arrays = tuple(np.asarray(a, np.float32) for a in arrays)
    shape = np.shape(truth(*(a.astype(np.float64) for a in arrays)))
    weights = np.random.default_rng(7).uniform(0.5, 1.5, shape).astype(np.float32)

    def loss(*values: Any) -> Any:
        return vk.sum(function(*values) * weights)

    slopes = vk.grad(loss, argnums=tuple(range(len(arrays))))
    if both is not None:
        found = both(lambda *xs: slopes(*xs), *arrays)
    else:
        found = [g.numpy() for g in slopes(*map(vk.array, arrays))]
    for k, (got, want) in enumerate(zip(found, differences(truth, list(arrays), weights), strict=True)):
        assert got.shape == want.shape
        scale = max(1e-3, float(np.abs(want).max(initial=0.0)))
        worst = float(np.abs(got - want).max(initial=0.0)) / scale
        assert worst < tolerance, f"argument {k}: off by {worst:.2g} of the largest entry"
