"""The op table in float64: what each row of floats means, in plain NumPy, also for complex numbers.

Complex numbers are for derivatives by a complex step: every row is analytic beside its kinks, comparisons and choices
look at real parts, and what is constant between jumps (floor, sign) is real. Nothing here may round to 24 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn.ir.define import evaluate
from vkdnn.ir.node import Node
from vkdnn.numerics import basic

Array = np.ndarray[Any, Any]
Row = Callable[..., Any]
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)

BIT_ROWS = ("bits_int32", "bits_uint32", "nextafter")
"""Rows about the bits of a float32: no function of a real number."""


def row_function(node: Node) -> Row:
    """The function of the arguments' values that a map node is."""
    categories = [a.dtype.category for a in node.args]
    if node.op in ROWS and "f" in (*categories, node.dtype.category):
        return ROWS[node.op]
    return lambda *arrays: evaluate(node.op, *arrays)  # of integers, which need no float64


# ---- parts of complex numbers


def is_complex(*arrays: Any) -> bool:
    return any(np.iscomplexobj(a) for a in arrays)


def joined(real: Any, imaginary: Any) -> Array:
    """real + i imaginary, also where one of them is infinite."""
    result = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), np.complex128)
    result.real, result.imag = real, imaginary
    return result


def negative(x: Any) -> Array:
    return np.asarray(np.real(x) < 0)


def _where_real(inside: Any, y: Any) -> Any:
    """y, NaN where the real function has no value: there a complex one may have."""
    return np.where(inside, y, np.nan)


# ---- arithmetic


def divide(a: Any, b: Any) -> Any:
    """a / b; by real numbers part by part, as NumPy makes NaN of a complex number over 0."""
    if not is_complex(a, b):
        return np.divide(a, b)
    by_parts = joined(np.divide(np.real(a), np.real(b)), np.divide(np.imag(a), np.real(b)))
    return np.where(np.imag(b) == 0, by_parts, np.divide(a, b))


def absolute(x: Any) -> Any:
    return np.where(negative(x), -x, x) if is_complex(x) else np.abs(x)


def maximum(a: Any, b: Any) -> Any:
    """The larger, a at ties; NaN if either is; -0 below +0."""
    x, y = np.real(a), np.real(b)
    return np.where(np.isnan(x) | (x > y) | ((x == y) & (np.signbit(y) | ~np.signbit(x))), a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller, a at ties; NaN if either is; -0 below +0."""
    x, y = np.real(a), np.real(b)
    return np.where(np.isnan(x) | (x < y) | ((x == y) & (np.signbit(x) | ~np.signbit(y))), a, b)


def remainder(a: Any, b: Any) -> Any:
    rest = np.remainder(np.real(a), np.real(b))
    if not is_complex(a, b):
        return rest
    return joined(rest, np.imag(a) - np.floor_divide(np.real(a), np.real(b)) * np.imag(b))


def fmod(a: Any, b: Any) -> Any:
    rest = np.fmod(np.real(a), np.real(b))
    if not is_complex(a, b):
        return rest
    return joined(rest, np.imag(a) - np.rint((np.real(a) - rest) / np.real(b)) * np.imag(b))


def copysign(a: Any, b: Any) -> Any:
    """|a| with the sign of b, of which a NaN counts as positive."""
    below = np.signbit(np.real(b)) & ~np.isnan(np.real(b))
    return np.where(np.signbit(np.real(a)) == below, a, -a)


def _by_parts(function: Row) -> Row:
    """A function that is constant between jumps."""
    return lambda *xs: function(*map(np.real, xs))


# ---- conversion


def to_float(x: Any) -> Array:
    x = np.asarray(x)
    return x if x.dtype.kind in "fc" else x.astype(np.float64)


def _to_integer(low: int, high: int, dtype: Any) -> Row:
    def convert(x: Any) -> Array:
        whole = np.trunc(np.nan_to_num(np.real(x), nan=0.0, posinf=np.inf, neginf=-np.inf))
        return np.asarray(np.clip(whole, low, high)).astype(dtype)

    return convert


# ---- elementary functions


def sqrt(x: Any) -> Any:
    return np.where(x == 0, x, _where_real(~negative(x), np.sqrt(x)))  # that of -0 is -0


def log(x: Any) -> Any:
    return _where_real(~negative(x), np.log(x))


def log1p(x: Any) -> Any:
    if not is_complex(x):
        return np.log1p(x)
    a, b = np.real(x), np.imag(x)
    return _where_real(a >= -1, joined(0.5 * np.log1p(a * (2 + a) + b * b), np.arctan2(b, 1 + a)))


def power(x: Any, y: Any) -> Any:
    """x**y with the special cases of C99."""
    a, b = np.real(x), np.real(y)
    plain = np.power(a, b)
    if not is_complex(x, y):
        return plain
    odd = np.fmod(b, 2) != 0
    sign = np.where(negative(x) & odd, -1.0, 1.0)  # then the base is on the right, away from the branch
    general = sign * np.power(absolute(x) + 0j, y + 0j)
    return np.where(np.isnan(plain) | (a == 0) | np.isinf(a) | np.isinf(b), plain, general)


def atan2(y: Any, x: Any) -> Any:
    """The angle of (x, y): of the real parts, plus what is left once the point is turned by that."""
    angle = np.arctan2(np.real(y), np.real(x))
    if not is_complex(x, y):
        return angle
    c, s = np.cos(angle), np.sin(angle)
    rest = np.arctan((y * c - x * s) / (x * c + y * s))
    return angle + np.where(np.isfinite(rest), rest, 0.0)


def _erf(x: Any) -> Any:
    from scipy import special

    return special.erf(x)


def _erfc(x: Any) -> Any:
    from scipy import special

    return special.erfc(x)


def _normal(x: Any) -> Any:
    """The normal distribution."""
    return 0.5 * _erfc(x * -math.sqrt(0.5))


def sigmoid(x: Any) -> Any:
    e = np.exp(-absolute(x))
    return np.where(negative(x), e, 1.0) / (1 + e)


def softplus(x: Any) -> Any:
    return relu(x) + log1p(np.exp(-absolute(x)))


def relu(x: Any) -> Any:
    return np.where(np.real(x) <= 0, 0.0, x)


def softmax_rescale(part: Any, top: Any) -> Any:
    """e**(part - top), 0 where part is -inf."""
    return np.where(np.real(part) == -np.inf, 0.0, np.exp(part - top))


# ---- activations: each with its limits, beyond which the formula would multiply infinity by 0


def _beyond(x: Any, limit: float, below: float, above: Any, y: Any) -> Any:
    """y, but ``below`` and ``above`` where x is further than the limit from 0."""
    return np.where(np.real(x) < -limit, below, np.where(np.real(x) > limit, above, y))


def _silu_slope(x: Any) -> Any:
    return _beyond(x, 800.0, 0.0, 1.0, sigmoid(x) * (1 + x * sigmoid(-x)))


def _gelu_slope(x: Any) -> Any:
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return _beyond(x, 40.0, 0.0, 1.0, _normal(x) + x * density)


def _tanh_argument(x: Any) -> Any:
    return 2 * SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)


def _gelu_tanh_slope(x: Any) -> Any:
    u, slope = _tanh_argument(x), 2 * SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x)
    return _beyond(x, 30.0, 0.0, 1.0, sigmoid(u) * (1 + x * slope * sigmoid(-u)))


def _mish_slope(x: Any) -> Any:
    s = softplus(x)
    rest = 1 / np.cosh(np.where(np.real(s) > 300, 300.0, s))
    return _beyond(x, 300.0, 0.0, 1.0, np.tanh(s) + x * rest * rest * sigmoid(x))


def _hardswish(x: Any) -> Any:
    return np.where(np.real(x) < -3, -0.0, x * (minimum(maximum(x + 3.0, 0.0), 6.0) / 6))


ROWS: dict[str, Row] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": divide,
    "neg": np.negative,
    "abs": absolute,
    "sqrt": sqrt,
    "square": lambda x: x * x,
    "sign": _by_parts(lambda x: np.sign(x) + 0.0),
    "remainder": remainder,
    "fmod": fmod,
    "floor_divide": _by_parts(np.floor_divide),
    "maximum": maximum,
    "minimum": minimum,
    "clip": lambda x, low, high: minimum(maximum(x, low), high),
    "copysign": copysign,
    "floor": _by_parts(np.floor),
    "ceil": _by_parts(np.ceil),
    "trunc": _by_parts(np.trunc),
    "round": _by_parts(np.rint),
    "stop_gradient": lambda x: x,
    "less": _by_parts(np.less),
    "less_equal": _by_parts(np.less_equal),
    "equal": _by_parts(np.equal),
    "not_equal": _by_parts(np.not_equal),
    "where": np.where,
    "isnan": _by_parts(np.isnan),
    "isinf": _by_parts(np.isinf),
    "isfinite": _by_parts(np.isfinite),
    "logical_and": _by_parts(np.logical_and),
    "logical_or": _by_parts(np.logical_or),
    "logical_xor": _by_parts(np.logical_xor),
    "logical_not": _by_parts(np.logical_not),
    "to_float32": to_float,
    "to_float16": to_float,
    "to_bfloat16": to_float,
    "to_int32": _to_integer(-(2**31), 2**31 - 1, np.int32),
    "to_uint32": _to_integer(0, 2**32 - 1, np.uint32),
    "to_bool": _by_parts(lambda x: x != 0),
    "bits_float32": lambda x: basic.bits_float32(x).astype(np.float64),
    "exp": np.exp,
    "exp2": np.exp2,
    "softmax_rescale": softmax_rescale,
    "expm1": np.expm1,
    "log": log,
    "log2": lambda x: _where_real(~negative(x), np.log2(x)),
    "log1p": log1p,
    "pow": power,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": lambda x: _where_real(np.abs(np.real(x)) <= 1, np.arcsin(x)),
    "acos": lambda x: _where_real(np.abs(np.real(x)) <= 1, np.arccos(x)),
    "atan": np.arctan,
    "atan2": atan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "erf": _erf,
    "erfc": _erfc,
    "rsqrt": lambda x: divide(1.0, sqrt(x)),
    "reciprocal": lambda x: divide(1.0, x),
    "relu": relu,
    "leaky_relu": lambda x, slope: np.where(np.real(x) > 0, x, slope * x),
    "elu": lambda x, alpha: np.where(np.real(x) > 0, x, alpha * np.expm1(x)),
    "hardswish": _hardswish,
    "mish": lambda x: _beyond(x, 800.0, -0.0, x, x * np.tanh(softplus(x))),
    "mish_slope": _mish_slope,
    "sigmoid": sigmoid,
    "log_sigmoid": lambda x: -softplus(-x),
    "softplus": softplus,
    "silu": lambda x: _beyond(x, 800.0, -0.0, x, x * sigmoid(x)),
    "silu_slope": _silu_slope,
    "gelu": lambda x: _beyond(x, 40.0, -0.0, x, x * _normal(x)),
    "gelu_slope": _gelu_slope,
    "gelu_tanh": lambda x: _beyond(x, 40.0, -0.0, x, x * sigmoid(_tanh_argument(x))),
    "gelu_tanh_slope": _gelu_tanh_slope,
}
"""Row of the op table -> function of NumPy arrays, float64 or complex128 where the row takes floats."""
