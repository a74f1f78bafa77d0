"""exp and the functions made of it: exp2, expm1, sinh, cosh, sigmoid, silu, tanh.

Exponents of two must be added to bits, or multiplied in steps, so that no intermediate value leaves the normal range.
"""

from __future__ import annotations

import math

from vkdnn.ir.elementary.pairs import (
    LN2_HIGH,
    LN2_LOW,
    ONE_BITS,
    Pair,
    fast_sum,
    half_square,
    keep_nan,
    multiply,
    polynomial,
    product,
    sign_bit,
    two_sum,
    with_sign,
)
from vkdnn.ir.scalar import Value, bitcast, call, where

# A value as head and tail, and its exponent of two in the exponent field of a uint32.
Scaled = tuple[Value, Value, Value]

_INFINITY = math.inf
_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which is then in the low mantissa bits
_LOG2_E = 1.44269504
_LN2 = (0.693147182, -1.90465421e-09)
EXP_LOWEST = -87.3365402  # below, e**x is below 2**-126
_EXP_LOWEST_BITS = 0xC2AEAC4F
_EXP_HIGHEST_BITS = 0x42B17217  # of 88.7228317: above, it is infinite
_UNSCALE = 2.0**-64

# (e**r - 1 - r) / r**2 on |r| <= ln(2)/2; relative error of e**r below 2**-33
_EXP = (0.5, 0.166666657, 0.041666463, 0.00833357126, 0.00139350968, 0.000197395566)
# (tanh(x)/x - 1) / x**2 in x**2, |x| <= 0.2; relative error of tanh below 2**-30
_TANH = (-0.333333075, 0.133294508, -0.0523032881)
# (sinh(x)/x - 1) / x**2 in x**2, |x| <= 0.5; relative error of sinh below 2**-32
_SINH = (0.166666672, 0.00833317451, 0.000199650502)


def _exp_reduced(r: Value, r_tail: Value) -> Pair:
    head, tail = fast_sum(1.0, r)
    return fast_sum(head, tail + (r * r * polynomial(r, _EXP) + r_tail * head))


def _exp_argument(x: Value, x_tail: Value | None = None) -> Scaled:
    """x + x_tail = r + r_tail + k ln(2), |r| <= ln(2)/2."""
    shifted = x * _LOG2_E + _ROUNDER
    n = shifted - _ROUNDER
    high = x - n * LN2_HIGH  # exact
    low = -(n * LN2_LOW) if x_tail is None else x_tail - n * LN2_LOW
    r, r_tail = fast_sum(high, low)
    return r, r_tail, bitcast(shifted, "uint32") << 23


def exp_scaled(x: Value, x_tail: Value | None = None) -> Scaled:
    """e**(x + x_tail) as (head + tail) 2**k, head in [0.7, 1.42]; |x| below 350."""
    r, r_tail, k = _exp_argument(x, x_tail)
    head, tail = _exp_reduced(r, r_tail)
    return head, tail, k


def power_of_two(k: Value, extra: int = 0) -> Value:
    """2**(k + extra) for k in an exponent field; the exponent must be that of a normal number."""
    return bitcast(k + (ONE_BITS + (extra << 23)), "float32")


def _add_exponent(x: Value, k: Value) -> Value:
    return bitcast(bitcast(x, "uint32") + k, "float32")


def exp(x: Value) -> Value:
    head, _, k = exp_scaled(x)
    y = _add_exponent(head, k)
    # By bits, which is cheaper: positive floats ascend as int32, negative ones descend as uint32, NaN is at both ends.
    y = where(bitcast(x, "uint32") > _EXP_LOWEST_BITS, 0.0, y)
    return keep_nan(x, where(bitcast(x, "int32") > _EXP_HIGHEST_BITS, _INFINITY, y))


def softmax_rescale(part: Value, top: Value) -> Value:
    """e**(part - top): what brings sums of e**(x - part) to the maximum top; 0 where part is -inf, a sum of nothing."""
    return where(part == -_INFINITY, 0.0, call("exp", part - top))


def exp2(x: Value) -> Value:
    shifted = x + _ROUNDER
    r, r_tail = multiply((x - (shifted - _ROUNDER), 0.0), _LN2)
    head, _ = _exp_reduced(r, r_tail)
    y = _add_exponent(head, bitcast(shifted, "uint32") << 23)
    return keep_nan(x, where(x >= 128.0, _INFINITY, where(x < -126.0, 0.0, y)))


def expm1(x: Value) -> Value:
    r, r_tail, k = _exp_argument(where(abs(x) < 25.0, x, 0.0))
    # e**r - 1 with r**2/2 free of error: subtracting 1 brings out what the rounding of a sum with 1 hides.
    square, square_tail = half_square(r)
    head, tail = fast_sum(r, square)
    tail = tail + (square_tail + r * r * r * polynomial(r, _EXP[1:]) + r_tail * (1.0 + r))
    scale = power_of_two(k)
    base, base_tail = two_sum(scale, -1.0)
    total, rest = two_sum(base, head * scale)
    y = where(x == 0.0, x, total + (rest + (base_tail + tail * scale)))
    return keep_nan(x, where(x >= 25.0, call("exp", x), where(x <= -25.0, -1.0, y)))


def _exp_both(a: Value) -> tuple[Pair, Pair]:
    """Half of e**a and of e**-a, 0 <= a < 20, as pairs."""
    head, tail, k = exp_scaled(a)
    scale = power_of_two(k, -1)
    head_2, tail_2, k_2 = exp_scaled(-a)
    scale_2 = power_of_two(k_2, -1)
    return (head * scale, tail * scale), (head_2 * scale_2, tail_2 * scale_2)


def _half_exp(a: Value) -> Value:
    """e**a / 2 for a >= 20."""
    head, _, k = exp_scaled(a)
    return where(a > 89.4159851, _INFINITY, _add_exponent(head, k - (1 << 23)))


def sinh(x: Value) -> Value:
    a = abs(x)
    square = x * x
    small = a + a * square * polynomial(square, _SINH)
    grown, shrunk = _exp_both(where(a < 20.0, a, 0.0))
    head, tail = fast_sum(grown[0], -shrunk[0])
    y = where(a < 0.5, small, where(a < 20.0, head + (tail + (grown[1] - shrunk[1])), _half_exp(a)))
    return keep_nan(x, with_sign(y, sign_bit(x)))


def cosh(x: Value) -> Value:
    a = abs(x)
    grown, shrunk = _exp_both(where(a < 20.0, a, 0.0))
    head, tail = fast_sum(grown[0], shrunk[0])
    return keep_nan(x, where(a < 20.0, head + (tail + (grown[1] + shrunk[1])), _half_exp(a)))


# ---- logistic function


def logistic(a: Value, a_tail: Value | None = None) -> Scaled:
    """e**a / (1 + e**a) for -97 <= a <= 0 as (head + tail) s / 2**64: the last part is the float s."""
    numerator, numerator_tail, k = exp_scaled(a, a_tail)
    # In two steps, as 2**k may be below 2**-126: e**a is then flushed, which leaves the sum 1 as it is.
    scale = power_of_two(k, 64)
    denominator, denominator_tail = fast_sum(1.0, numerator * scale * _UNSCALE)
    denominator_tail = denominator_tail + numerator_tail * scale * _UNSCALE
    inverse = 1.0 / denominator
    quotient = numerator * inverse
    back, back_tail = product(quotient, denominator)
    remainder = (((numerator - back) - back_tail) + numerator_tail) - quotient * denominator_tail
    return quotient, remainder * inverse, scale


def gate(x: Value, p: Scaled, negative: Value) -> Value:
    """x p where `negative`, else x (1 - p), p as from logistic(): the form of silu and gelu."""
    head, tail, scale = p
    one_minus, rest = fast_sum(1.0, -(head * scale * _UNSCALE))
    factor = (where(negative, head, one_minus), where(negative, tail, rest - tail * scale * _UNSCALE))
    y_head, y_tail = multiply((x, 0.0), factor)
    y = where(y_head == 0.0, y_head, y_head + y_tail)  # the tail would lose the sign of zero
    # Scaling comes after the rounding to 24 bits, so a result below 2**-126 is flushed by the rule.
    return where(negative, y * scale * _UNSCALE, y)


def sigmoid(x: Value) -> Value:
    a = -abs(x)
    head, tail, scale = logistic(where(a < EXP_LOWEST, EXP_LOWEST, a))
    head, tail = head * scale * _UNSCALE, tail * scale * _UNSCALE
    one_minus, rest = fast_sum(1.0, -head)
    y = where(x < 0.0, head + tail, one_minus + (rest - tail))
    return keep_nan(x, where(x < EXP_LOWEST, 0.0, y))


def silu(x: Value) -> Value:
    a = -abs(x)
    y = gate(x, logistic(where(a < -93.0, -93.0, a)), x < 0.0)
    return where(x > 30.0, x, where(x < -93.0, -0.0, y))


def silu_slope(x: Value) -> Value:
    """Derivative of silu: s (1 + x (1 - s)), s = sigmoid(x). A composition; no promise of 1 ULP."""
    x = where(x > 100.0, 100.0, where(x < -100.0, -100.0, x))
    return call("sigmoid", x) * (1.0 + x * call("sigmoid", -x))


def tanh(x: Value) -> Value:
    a = abs(x)
    square = x * x
    small = a + a * (square * polynomial(square, _TANH))
    head, tail, scale = logistic(where(a > 20.0, -40.0, a * -2.0))  # tanh(a) = 1 - 2 logistic(-2 a)
    head, tail = head * scale * (2.0 * _UNSCALE), tail * scale * (2.0 * _UNSCALE)
    one_minus, rest = fast_sum(1.0, -head)
    return keep_nan(x, with_sign(where(a < 0.2, small, one_minus + (rest - tail)), sign_bit(x)))
