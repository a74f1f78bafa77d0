"""log and the functions made of it: log2, log1p, softplus, log_sigmoid, pow.

A definition here must pass only positive finite values to its logarithm, or discard what comes of the others.
"""

from __future__ import annotations

import math

from vkdnn.ir.elementary.exponential import EXP_LOWEST, exp_scaled, power_of_two
from vkdnn.ir.elementary.pairs import (
    LN2_HIGH,
    LN2_LOW,
    SIGN_BIT,
    Pair,
    fast_sum,
    half_square,
    keep_nan,
    multiply,
    polynomial,
    product,
    two_sum,
)
from vkdnn.ir.scalar import Value, bitcast, call, cast, floor, where

_INFINITY = math.inf
_NAN = math.nan
_LOG2_E = (1.44269502, 1.92596303e-08)

# (log(1 + f) - f + f**2/2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1]; relative error of the logarithm below 2**-30
_LOG = (
    0.333333135, -0.250000089, 0.200020716, -0.166679904, 0.142203629, -0.124062084, 0.118834719, -0.116701841,
    0.0674953833,
)  # fmt: skip
# (log(1 + f) - f + f**2/2 - f**3/3 + f**4/4) / f**5 on |f| <= 1/3; relative error of the logarithm below 2**-37
_LOG_LONG = (
    0.200000092, -0.166666821, 0.142848521, -0.124988049, 0.11139679, -0.100346752, 0.0866028145, -0.078609556,
    0.106429957, -0.101262912,
)  # fmt: skip
_THIRD = (0.333333343, -9.93410776e-09)


def _mantissa(x: Value, lowest: int) -> tuple[Value, Value]:
    """x = 2**k (1 + f), 1 + f from the float with bits `lowest` to its double; k as int32, f exactly."""
    bits = bitcast(x, "int32")
    k = (bits - lowest) >> 23
    return k, bitcast(bits - (k << 23), "float32") - 1.0


def _log_scaled(x: Value) -> tuple[Value, Value, Value, Value]:
    """x = 2**k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)): k, f, and log(1 + f) as head and tail."""
    k, f = _mantissa(x, 0x3F3504F3)
    square, square_tail = half_square(f)
    head, tail = fast_sum(f, -square)
    return k, f, head, tail + (f * f * f * polynomial(f, _LOG) - square_tail)


def _add_ln2(k: Value, head: Value, tail: Value) -> Pair:
    n = cast(k, "float32")
    total, rest = fast_sum(n * LN2_HIGH, head)  # exact product; it is 0 or larger than the head
    return fast_sum(total, rest + (tail + n * LN2_LOW))


def _log_domain(x: Value, y: Value) -> Value:
    """y for positive finite x; the limits of a logarithm elsewhere."""
    y = where(x == _INFINITY, x, where(x > 0.0, y, where(x == 0.0, -_INFINITY, _NAN)))
    return keep_nan(x, y)


def log(x: Value) -> Value:
    k, _, head, tail = _log_scaled(x)
    return _log_domain(x, _add_ln2(k, head, tail)[0])


def log2(x: Value) -> Value:
    k, _, head, tail = _log_scaled(x)
    y, y_tail = multiply((head, tail), _LOG2_E)
    total, rest = fast_sum(cast(k, "float32"), y)
    return _log_domain(x, total + (rest + y_tail))


def _log1p(x: Value, x_tail: Value) -> Pair:
    """log(1 + x + x_tail), x > -1 and finite."""
    small = x_tail - x * x * (0.5 - x * (_THIRD[0] - 0.25 * x))
    u, rest = two_sum(1.0, x)
    k, f, head, tail = _log_scaled(u)
    # What u lost is divided by u; 1 / (1 + f) to a few bits is enough for it. From 2**60 on it counts for nothing.
    rest = (rest + x_tail) * bitcast(0x3F800000 - (k << 23), "float32")
    rest = where(u < 2.0**60, rest * (1.0 - f * (1.0 - f * (1.0 - f * (1.0 - f)))), 0.0)
    head, tail = _add_ln2(k, head, tail + rest)
    tiny = abs(x) < 2.0**-8
    return fast_sum(where(tiny, x, head), where(tiny, small, tail))


def log1p(x: Value) -> Value:
    y = _log1p(x, 0.0)[0]
    y = where(x == _INFINITY, x, where(x > -1.0, y, where(x == -1.0, -_INFINITY, _NAN)))
    return keep_nan(x, where(x == 0.0, x, y))


def softplus(x: Value) -> Value:
    """log(1 + e**x) = max(x, 0) + log(1 + e**-|x|)."""
    a = -abs(x)
    head, tail, k = exp_scaled(where(a < EXP_LOWEST, EXP_LOWEST, a))
    scale = power_of_two(k)
    y, y_tail = _log1p(head * scale, tail * scale)
    total, rest = two_sum(where(x > 0.0, x, 0.0), y)
    y = where(x > 30.0, x, where(x < EXP_LOWEST, 0.0, total + (rest + y_tail)))
    return keep_nan(x, y)


def log_sigmoid(x: Value) -> Value:
    return -softplus(-x)


# ---- powers


def _log_long(x: Value) -> Pair:
    """log(x) as a pair to 2**-33 of itself: the exponent of a power magnifies every error up to 128 times."""
    k, f = _mantissa(x, 0x3F2AAAAB)  # 1 + f in [2/3, 4/3)
    half, half_tail = half_square(f)
    square = product(f, f)
    # log(1 + f) = f - f**2/2 + f**3 (1/3 - f/4 + f**2 (1/5 + ...)), every sum and product as a pair
    fifth = fast_sum(_LOG_LONG[0], f * polynomial(f, _LOG_LONG[1:]))
    series, series_tail = multiply(square, fifth)
    third, third_tail = fast_sum(_THIRD[0], -0.25 * f)
    series, rest = fast_sum(third, series)
    cubic, cubic_tail = multiply(multiply(square, (f, 0.0)), (series, rest + (series_tail + (third_tail + _THIRD[1]))))
    head, tail = fast_sum(f, -half)
    head, rest = fast_sum(head, cubic)
    return _add_ln2(k, head, rest + (tail + (cubic_tail - half_tail)))


def pow(x: Value, y: Value) -> Value:
    """x**y with the special cases of C99."""
    a = abs(x)
    usable = (a > 0.0) & (a < _INFINITY)
    log_x, log_x_tail = _log_long(where(usable, a, 1.0))
    log_a = where(usable, log_x, where(a == 0.0, -_INFINITY, _INFINITY))
    exponent = y * log_a
    inside = abs(exponent) < 100.0  # false for NaN: 0 times infinity, settled below
    e, e_tail = multiply((where(inside, y, 0.0), 0.0), (log_x, log_x_tail))
    e, e_tail = fast_sum(e, e_tail)
    head, _, k = exp_scaled(e, e_tail)
    # 2**k may be below 2**-126 or 2**128: half of it, twice.
    half = bitcast(k, "int32") >> 1
    low = bitcast((half & -0x800000) + 0x3F800000, "float32")
    high = bitcast((bitcast(k, "int32") - (half & -0x800000)) + 0x3F800000, "float32")
    result = where(inside, head * low * high, where(exponent > 0.0, _INFINITY, 0.0))
    # A negative base has a power only for integers y, and keeps its sign for odd ones.
    integer = floor(y) == y
    odd = integer & (floor(0.5 * y) != 0.5 * y)
    negative = bitcast(x, "uint32") >= SIGN_BIT
    sign = where(negative & odd & (abs(y) < _INFINITY), SIGN_BIT, bitcast(x, "uint32") & 0)
    result = bitcast(bitcast(result, "uint32") | sign, "float32")
    result = where((x < 0.0) & (a < _INFINITY) & ~integer, _NAN, result)
    result = where(call("isnan", x) | call("isnan", y), _NAN, result)
    one = (x == 1.0) | (y == 0.0) | ((x == -1.0) & (abs(y) == _INFINITY))
    return where(one, 1.0, result)
