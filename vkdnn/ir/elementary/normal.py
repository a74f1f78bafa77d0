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
# constant c, slope s of a few bits, then a polynomial in y - m of what c + s y leaves (below 0.03). Errors < 2**-26.
_ERFC_EDGES = (0.8125, 1.75, 3.375, 5.75)
_ERFC = (
    (0.40625, 1.28125, 2.5625, 4.5625, 7.5),
    (-0.0125125786, -0.28202337, -0.67580092, -1.09709609, -1.63849664),
    (-0.90625, -0.5625, -0.34375, -0.21875, -0.125),
    (-0.0241293181, -0.0150433676, -0.0219809804, -0.017816592, -0.0199708417),
    (0.0272965338, 0.00275560399, -0.00204262603, 0.00902064145, -0.00606191298),
    (0.256645352, 0.126170561, 0.0541202351, 0.0211167149, 0.00844706409),
    (-0.0730899572, -0.0317285731, -0.0103328051, -0.00272764731, -0.000714209105),
    (0.0166300237, 0.00754515501, 0.00203745184, 0.000381385733, 6.67689746e-05),
    (-0.00212585297, -0.0015608567, -0.000392932765, -5.48526659e-05, -6.55510576e-06),
    (-0.000393946189, 0.000239850866, 7.38302551e-05, 8.38039796e-06, 7.06063759e-07),
    (0.000320849009, -1.14030872e-05, -1.21427365e-05, -1.19528147e-06, -7.31395318e-08),
)
_NORMAL_EDGES = (1.125, 2.5, 4.75, 8.125)
_NORMAL = (
    (0.5625, 1.8125, 3.625, 6.4375, 10.6875),
    (-0.716022968, -0.95812881, -1.34795201, -1.7791698, -2.28058958),
    (-0.625, -0.40625, -0.25, -0.15625, -0.09375),
    (-0.0228758287, -0.0166733768, -0.0178499389, -0.0188730508, -0.0140416771),
    (0.00038883352, 0.0105189215, 0.00554600358, 0.00763474032, 0.00175365992),
    (0.129258499, 0.0630671754, 0.0270483177, 0.010601446, 0.00416290527),
    (-0.026041653, -0.0112136621, -0.00365099777, -0.000970059715, -0.00024717889),
    (0.00417958619, 0.00188542937, 0.000508977915, 9.60680773e-05, 1.62282922e-05),
    (-0.000372482056, -0.000275918137, -6.94106129e-05, -9.78515345e-06, -1.11915722e-06),
    (-5.07493023e-05, 3.01104155e-05, 9.22372146e-06, 1.05910203e-06, 8.50856949e-08),
    (2.88859119e-05, -8.81613914e-07, -1.06914547e-06, -1.06929782e-07, -6.20257623e-09),
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
    scaled = x * 2.0**24  # so that no part of a small result is flushed
    small = (scaled + scaled * polynomial(square, _ERF)) * 2.0**-24
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
