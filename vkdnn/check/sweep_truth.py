"""The error of float32 results against float64, for every function of one argument and some of two.

Elementary functions are measured in units of the last place (vkdnn.check.ulp); exact ones have error 0 or infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from vkdnn.check import ulp

Array = np.ndarray[Any, Any]
Error = Callable[[Array, Array], Array]
"""Of float32 (or int32, uint32, bool) results and of flushed float32 inputs: the error of each."""


@cache
def _library() -> Any:
    return ulp.numpy_library()


def error_of(name: str) -> tuple[str, Callable[..., Array]] | None:
    """The unit in which the results of a row are measured and a function of (results, *inputs); None without truth."""
    if name in SLOPES:
        return NEAR_ONE, lambda got, x: _near_one(got, SLOPES[name](x.astype(np.float64)))
    if name in STORAGE:
        return ULP, lambda got, x: _rounding(got.astype(np.float64), x.astype(np.float64), *STORAGE[name])
    if name in EXACT:
        return ULP, lambda got, x: np.where(got == EXACT[name](x), 0.0, np.inf)
    truth = ulp.TRUTH.get(name) or FLOATS.get(name)
    if truth is None:
        return None

    def error(got: Array, *values: Array) -> Array:
        wide = [v.astype(np.float64) for v in values]
        return np.asarray(ulp.error_in_ulp(_library(), got.astype(np.float64), truth(_library(), *wide)))

    return ULP, error


ULP = "units in the last place"
NEAR_ONE = "units in the last place, below 1 those of 1"
"""For functions that cross zero, where no relative bound can hold."""


def _near_one(got: Array, truth: Array) -> Array:
    wide = got.astype(np.float64)
    _, exponent = np.frexp(np.maximum(np.abs(truth), 1.0))
    error = np.abs(wide - truth) / np.ldexp(1.0, exponent - 24)
    return np.where(np.isnan(truth) | np.isnan(wide), np.where(np.isnan(truth) == np.isnan(wide), 0.0, np.inf), error)


def _rounding(got: Array, x: Array, digits: int, smallest: float, largest: float) -> Array:
    """Error of a storage type's values, in its last place."""
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 1.0))
    unit = np.maximum(np.ldexp(1.0, exponent - digits), smallest)
    error = np.abs(got - x) / unit
    limit = largest + np.ldexp(1.0, int(np.frexp(largest)[1]) - digits) / 2  # from here on the nearest is infinity
    error = np.where(np.abs(x) >= limit, np.where(np.isinf(got), 0.0, np.inf), error)
    error = np.where(np.isnan(x) | np.isnan(got), np.where(np.isnan(x) == np.isnan(got), 0.0, np.inf), error)
    return np.where(~np.isnan(x) & (np.signbit(x) != np.signbit(got)), np.inf, error)


STORAGE = {"to_float16": (11, 2.0**-24, 65504.0), "to_bfloat16": (8, 2.0**-133, (2.0 - 2.0**-7) * 2.0**127)}
"""Digits, smallest step and largest number."""

FLOATS: dict[str, Callable[..., Any]] = {
    "neg": lambda m, x: -x,
    "abs": lambda m, x: m.abs(x),
    "square": lambda m, x: x * x,
    "sign": lambda m, x: np.sign(x),
    "floor": lambda m, x: np.floor(x),
    "ceil": lambda m, x: np.ceil(x),
    "trunc": lambda m, x: np.trunc(x),
    "round": lambda m, x: np.rint(x),
    "stop_gradient": lambda m, x: x,
    "to_float32": lambda m, x: x,
    "bits_float32": lambda m, x: x,
}
"""Truth in float64, as vkdnn.check.ulp.TRUTH has it for the others."""


def _integer(low: float, high: float, dtype: Any) -> Callable[[Array], Array]:
    return lambda x: np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0)), low, high).astype(dtype)


EXACT: dict[str, Callable[[Array], Array]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "logical_not": lambda x: x == 0,
    "to_bool": lambda x: x != 0,
    "to_int32": _integer(-(2.0**31), 2.0**31 - 1, np.int32),
    "to_uint32": _integer(0.0, 2.0**32 - 1, np.uint32),
    "bits_int32": lambda x: x.view(np.int32),
    "bits_uint32": lambda x: x.view(np.uint32),
}
"""Results that are no floats."""


def _logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1.0) / (1.0 + e))


def _between(low: float, high: float, slope: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A slope with its limits: 0 from ``low`` down, 1 from ``high`` up."""
    return lambda x: np.where(x <= low, 0.0, np.where(x >= high, 1.0, slope(np.clip(x, low, high))))


def _silu(x: Array) -> Array:
    s = _logistic(x)
    return np.asarray(s * (1.0 + x * _logistic(-x)))


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * _library().erfc(x * -(0.5**0.5)) + x * np.exp(-0.5 * x * x) * (0.5 / np.pi) ** 0.5)


def _gelu_tanh(x: Array) -> Array:
    c = 2.0 * (2.0 / np.pi) ** 0.5
    s, away = _logistic(c * (x + 0.044715 * x**3)), _logistic(-c * (x + 0.044715 * x**3))
    return np.asarray(s * (1.0 + x * away * c * (1.0 + 3 * 0.044715 * x * x)))


def _mish(x: Array) -> Array:
    t = np.tanh(np.logaddexp(0.0, x))
    return np.asarray(t + x * (1.0 - t * t) * _logistic(x))


SLOPES: dict[str, Callable[[Array], Array]] = {
    "silu_slope": _between(-120.0, 60.0, _silu),
    "gelu_slope": _between(-20.0, 20.0, _gelu),
    "gelu_tanh_slope": _between(-20.0, 20.0, _gelu_tanh),
    "mish_slope": _between(-120.0, 60.0, _mish),
}
"""Derivatives of activations in float64."""
