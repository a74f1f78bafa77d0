"""How far float32 results are from the truth: true values in float64, and the distance in units of the last place.

Functions take a library (numpy_library()), so that they can run on other arrays; they must use nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

LOWEST = 2.0**-126
_NAMES = (
    "abs", "arccos", "arcsin", "arctan", "arctan2", "clip", "cos", "cosh", "exp", "exp2", "expm1", "frexp", "isinf",
    "isnan", "log", "log1p", "log2", "maximum", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "where",
)  # fmt: skip


def numpy_library() -> SimpleNamespace:
    import scipy.special

    names = {name: getattr(np, name) for name in _NAMES}
    return SimpleNamespace(**names, power=np.power, erf=scipy.special.erf, erfc=scipy.special.erfc)


def error_in_ulp(m: Any, wide: Any, truth: Any) -> Any:
    """Distance of float32 results (given as float64) from true values in units of their last place.

    Infinite where a special value or a sign is wrong. True values below 2**-126 may give zero; next to it also 2**-126.
    A true value that rounds to infinity must.
    """
    size = m.abs(truth)
    mantissa, _ = m.frexp(size)
    unit = m.clip(size / mantissa * 2.0**-24, 2.0**-149, None)  # size / mantissa is the next power of two above
    error = m.abs(wide - truth) / unit
    lowest = (m.abs(wide) == LOWEST) & (size > LOWEST * (1 - 2.0**-20))
    error = m.where(size < LOWEST, m.where((wide == 0) | lowest, 0.0, np.inf), error)
    error = m.where(size >= 2.0**128 * (1 - 2.0**-25), m.where(m.isinf(wide), 0.0, np.inf), error)
    nan, found = m.isnan(truth), m.isnan(wide)
    error = m.where(nan | found, m.where(nan == found, 0.0, np.inf), error)
    return m.where(~nan & (m.signbit(truth) != m.signbit(wide)), np.inf, error)


# ---- true values: limits at the infinities and signs of zero included


def _sigmoid_times(m: Any, x: Any, u: Any) -> Any:
    """x sigmoid(u), with its limits."""
    e = m.exp(u)
    y = m.where(u < 0, x * e / (1 + e), x / (1 + m.exp(-u)))
    return m.where(u < -700, -0.0, m.where(u > 700, x, y))


def _sigmoid(m: Any, x: Any) -> Any:
    e = m.exp(-m.abs(x))
    return m.where(x < 0, e / (1 + e), 1 / (1 + e))


def _softplus(m: Any, x: Any) -> Any:
    return m.clip(x, 0.0, None) + m.log1p(m.exp(-m.abs(x)))


def _mish(m: Any, x: Any) -> Any:
    """x tanh(softplus(x)) without cancellation."""
    t = m.exp(-m.abs(x))
    p = m.where(x < 0, t * (t + 2) / (t * (t + 2) + 2), (1 + 2 * t) / (1 + 2 * t + 2 * t * t))
    return m.where(x < -1e30, -0.0, x * p)


def _gelu(m: Any, x: Any) -> Any:
    return m.where(x < -1e30, -0.0, m.where(x > 1e30, x, x * (0.5 * m.erfc(x * -(0.5**0.5)))))


def _gelu_tanh(m: Any, x: Any) -> Any:
    return _sigmoid_times(m, x, 2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x))


TRUTH: dict[str, Callable[..., Any]] = {
    "exp": lambda m, x: m.exp(x),
    "exp2": lambda m, x: m.exp2(x),
    "expm1": lambda m, x: m.expm1(x),
    "log": lambda m, x: m.log(x),
    "log2": lambda m, x: m.log2(x),
    "log1p": lambda m, x: m.log1p(x),
    "sigmoid": _sigmoid,
    "silu": lambda m, x: _sigmoid_times(m, x, x),
    "softplus": _softplus,
    "log_sigmoid": lambda m, x: -_softplus(m, -x),
    "tanh": lambda m, x: m.tanh(x),
    "sinh": lambda m, x: m.sinh(x),
    "cosh": lambda m, x: m.cosh(x),
    "sin": lambda m, x: m.sin(x),
    "cos": lambda m, x: m.cos(x),
    "tan": lambda m, x: m.tan(x),
    "asin": lambda m, x: m.arcsin(x),
    "acos": lambda m, x: m.arccos(x),
    "atan": lambda m, x: m.arctan(x),
    "erf": lambda m, x: m.erf(x),
    "erfc": lambda m, x: m.erfc(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "mish": _mish,
    "hardswish": lambda m, x: m.where(x < -3, -0.0, x * (m.clip(x + 3, 0.0, 6.0) / 6)),
    "sqrt": lambda m, x: m.sqrt(x),
    "rsqrt": lambda m, x: 1 / m.sqrt(x),
    "reciprocal": lambda m, x: 1 / x,
    "relu": lambda m, x: m.where(x <= 0, 0.0, x),
    "pow": lambda m, x, y: m.power(x, y),
    "atan2": lambda m, y, x: m.arctan2(y, x),
    "elu": lambda m, x, alpha: m.where(x > 0, x, alpha * m.expm1(x)),
    "leaky_relu": lambda m, x, slope: m.where(x > 0, x, slope * x),
    "add": lambda m, a, b: a + b,
    "sub": lambda m, a, b: a - b,
    "mul": lambda m, a, b: a * b,
    "div": lambda m, a, b: a / b,
}
"""Rows of the op table in float64. Those without an entry cross zero or are exact."""
