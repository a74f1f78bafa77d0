"""erf, erfc and the gelu family: the normal distribution.

The tail must keep its relative accuracy down to 2**-126, so it is one exponential of an exponent kept as a pair.
"""

from __future__ import annotations

from vkdnn.ir.elementary.exponential import exp_scaled, gate, logistic, power_of_two
from vkdnn.ir.elementary.pairs import (
    Pair,
    fast_sum,
    keep_nan,
    multiply,
    polynomial,
    product,
    sign_bit,
    split,
    two_sum,
    with_sign,
)
from vkdnn.ir.scalar import Value, call, where

# Tables of log(erfc(y)) + y**2 and log(Phi(-y)) + y**2/2, one column for each interval between the edges: centre m,
# constant c, slope s of a few bits, then a polynomial in y - m of what c + s y leaves (below 0.05). Errors below 2**-27.
_ERFC_EDGES = (1.25, 2.75, 5.0)
_ERFC = (
    (0.625, 2.0, 3.875, 7.125),
    (-0.0318629071, -0.464825094, -0.970176399, -1.39911711),
    (-0.8125, -0.4375, -0.25, -0.15625),
    (-0.0458488353, -0.0251161717, -0.0188823193, -0.0331939943),
    (0.0360074751, 0.0193391945, 0.00680179102, 0.0185367558),
    (0.213221937, 0.0762492046, 0.0280342419, 0.00931054913),
    (-0.0596114658, -0.0164651237, -0.00409904821, -0.00082451012),
    (0.0141460495, 0.00357035524, 0.000642524625, 8.07192046e-05),
    (-0.00232893787, -0.000732419954, -0.000102245765, -8.24245672e-06),
    (1.31457018e-05, 0.000136446455, 1.61309927e-05, 8.62245827e-07),
    (0.000179337017, -2.05282322e-05, -2.62701019e-06, -1.03533843e-07),
    (-7.33320121e-05, 8.43772227e-07, 3.89912515e-07, 1.13597025e-08),
)
_NORMAL_EDGES = (1.75, 3.75, 7.25)
_NORMAL = (
    (0.875, 2.75, 5.5, 10.25),
    (-0.737526178, -1.15315866, -1.59313655, -2.26663041),
    (-0.5625, -0.3125, -0.1875, -0.09375),
    (-0.0440717265, -0.022127768, -0.0299898032, -0.0279499516),
    (0.0115377195, 0.0107264919, 0.0160896927, -0.00203643646),
    (0.1071743, 0.0395277962, 0.0139308851, 0.00450693443),
    (-0.0212018173, -0.0061094705, -0.00143652037, -0.00027791725),
    (0.00355492206, 0.000945067615, 0.000158843046, 1.89547845e-05),
    (-0.000411802845, -0.000137683543, -1.78213049e-05, -1.34943571e-06),
    (4.70788279e-07, 1.79247654e-05, 1.98436169e-06, 9.8584934e-08),
    (1.62094475e-05, -1.87694923e-06, -2.31667102e-07, -8.23289081e-09),
    (-4.50476591e-06, 1.09496426e-07, 2.42646934e-08, 6.2497435e-10),
)
# erf(x)/x - 1 in x**2, |x| <= 1/4; relative error below 2**-29
_ERF = (0.128379166, -0.376125962, 0.112808049, -0.0261716954)
# 2 sqrt(2/pi) and 0.044715 times it
_TANH_LINEAR = (1.59576917, -4.53406805e-08)
_TANH_CUBIC = (0.0713548139, 2.39883247e-09)
_SQRT_HALF_PI_INVERSE = 0.398942292


def _tail_exponent(y: Value, edges: tuple[float, ...], table: tuple[tuple[float, ...], ...], factor: float) -> Pair:
    """The logarithm of a tail function at y >= 0, by a table: -factor y**2 + c + s y + polynomial(y - m)."""
    conditions = [y >= edge for edge in edges]
    row = []
    for first, *others in table:
        value: Value = first
        for condition, other in zip(conditions, others, strict=True):
            value = where(condition, other, value)
        row.append(value)
    centre, constant, slope, *coefficients = row
    y_head, y_rest = split(y)
    square, square_tail = product(y, y)
    total, error_1 = two_sum(-factor * square, slope * y_head)  # exact products: the slope has few bits
    total, error_2 = two_sum(total, constant)
    rest: Value = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        rest = rest * (y - centre) + c
    return fast_sum(total, rest + (((error_1 + error_2) + slope * y_rest) - factor * square_tail))


def _erfc_tail(y: Value) -> tuple[Value, Value, Value]:
    """erfc(y) for y >= 0 as head, tail and exponent."""
    return exp_scaled(*_tail_exponent(where(y > 9.25, 9.25, y), _ERFC_EDGES, _ERFC, 1.0))


def erf(x: Value) -> Value:
    a = abs(x)
    square = x * x
    small = x + x * polynomial(square, _ERF)
    head, tail, k = _erfc_tail(where(a > 4.0, 4.0, a))
    scale = power_of_two(k)
    one_minus, rest = fast_sum(1.0, -(head * scale))
    large = with_sign(one_minus + (rest - tail * scale), sign_bit(x))
    return keep_nan(x, where(a < 0.25, small, large))


def erfc(x: Value) -> Value:
    head, tail, k = _erfc_tail(abs(x))
    scale = power_of_two(k, 64)
    positive = head * scale * 2.0**-64
    total, rest = fast_sum(2.0, -positive)
    negative = total + (rest - tail * scale * 2.0**-64)
    y = where(x > 9.25, 0.0, where(x < 0.0, negative, positive))
    return keep_nan(x, where(x == 0.0, 1.0, y))


def _normal_tail(a: Value) -> tuple[Value, Value, Value]:
    """Phi(-a) for a >= 0 as head, tail and a factor 2**64 too large."""
    exponent = _tail_exponent(where(a > 13.25, 13.25, a), _NORMAL_EDGES, _NORMAL, 0.5)
    head, tail, k = exp_scaled(*exponent)
    return head, tail, power_of_two(k, 64)


def gelu(x: Value) -> Value:
    y = gate(x, _normal_tail(abs(x)), x < 0.0)
    return where(x > 6.0, x, where(x < -13.25, -0.0, y))


def gelu_slope(x: Value) -> Value:
    """Derivative of gelu: Phi(x) + x phi(x). A composition; no promise of 1 ULP."""
    head, _, scale = _normal_tail(abs(x))
    tail = head * scale * 2.0**-64
    inside = where(abs(x) > 14.0, 14.0, x)  # phi vanishes there, and infinity times zero must not come up
    density = call("exp", -0.5 * (inside * inside)) * _SQRT_HALF_PI_INVERSE
    cumulative = where(x < -13.25, 0.0, where(x < 0.0, tail, 1.0 - tail))
    return keep_nan(x, cumulative + inside * density)


def _tanh_argument(x: Value) -> Pair:
    """2 sqrt(2/pi) (x + 0.044715 x**3) as a pair."""
    cubic = multiply(product(x, x), _TANH_CUBIC)
    head, rest = two_sum(_TANH_LINEAR[0], cubic[0])
    return fast_sum(*multiply((x, 0.0), (head, rest + (_TANH_LINEAR[1] + cubic[1]))))


def gelu_tanh(x: Value) -> Value:
    """x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x**3)."""
    a = abs(x)
    u, u_tail = _tanh_argument(where(a > 10.25, 10.25, a))
    y = gate(x, logistic(-u, -u_tail), x < 0.0)
    return where(x > 6.0, x, where(x < -10.25, -0.0, y))


def gelu_tanh_slope(x: Value) -> Value:
    """Derivative of gelu_tanh: s (1 + x (1 - s) u'), s = sigmoid(u). A composition; no promise of 1 ULP."""
    x = where(x > 20.0, 20.0, where(x < -20.0, -20.0, x))
    square = x * x
    u = x * (_TANH_LINEAR[0] + _TANH_CUBIC[0] * square)
    u_slope = _TANH_LINEAR[0] + (3.0 * _TANH_CUBIC[0]) * square
    return call("sigmoid", u) * (1.0 + x * u_slope * call("sigmoid", -u))
