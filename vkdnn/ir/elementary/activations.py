"""Activations of one formula each: mish, hardswish, elu, leaky_relu. (silu and gelu stand with what they are made of.)

No sum may cancel: each branch is written so that only numbers of one sign are added, or exactly subtracted.
"""

from __future__ import annotations

from vkdnn.ir.elementary.exponential import exp_scaled, gate, power_of_two
from vkdnn.ir.elementary.pairs import divide, fast_sum, multiply
from vkdnn.ir.scalar import Value, call, maximum, minimum, where

_LOWEST = -93.0  # below, x e**x is below 2**-126
_HIGHEST = 15.0  # above, mish(x) is x
_TINY = 2.0**-64  # below, mish is scaled, so that no part of a product of pairs is flushed


def mish(x: Value) -> Value:
    """x tanh(softplus(x)): x p with p = t (1 + t/2) / (1 + t + t**2/2), t = e**x; for x >= 0 1 - p, t = 2 e**-x.

    There the numerator of p is t**2/2.
    """
    negative = x < 0.0
    a = -abs(x)
    head, tail, k = exp_scaled(where(a < _LOWEST, _LOWEST, a))
    scale = where(negative, power_of_two(k, 64), power_of_two(k, 65))  # t 2**64, as e**x may be below 2**-126
    t, t_tail = head * scale * 2.0**-64, tail * scale * 2.0**-64
    inner = fast_sum(1.0, 0.5 * t)
    inner = (inner[0], inner[1] + 0.5 * t_tail)
    total, total_tail = multiply((t, t_tail), inner)
    denominator = where(t > 1.0, total, 1.0), where(t > 1.0, 1.0, total)  # the larger first
    denominator = fast_sum(*denominator)
    factor = where(negative, inner[0], 0.5 * t), where(negative, inner[1], 0.5 * t_tail)
    quotient, rest = divide(multiply((head, tail), factor), (denominator[0], denominator[1] + total_tail))
    small = abs(x) < _TINY
    y = gate(where(small, x * 2.0**64, x), (quotient, rest, scale), negative)
    return where(x > _HIGHEST, x, where(x < _LOWEST, -0.0, where(small, y * 2.0**-64, y)))


def mish_slope(x: Value) -> Value:
    """Derivative of mish: t + x (1 - t**2) sigmoid(x), t = tanh(softplus(x)). A composition; no promise of 1 ULP."""
    x = where(x > 100.0, 100.0, where(x < -100.0, -100.0, x))
    v = call("exp", -abs(x))
    below, above = v * (v + 2.0), 2.0 * v * v
    d, e = below + 2.0, 1.0 + 2.0 * v * (1.0 + v)
    t = where(x < 0.0, below / d, (1.0 + 2.0 * v) / e)
    rest = where(x < 0.0, 2.0 / d, above / e)  # 1 - t
    return t + x * (rest * (1.0 + t)) * call("sigmoid", x)


def hardswish(x: Value) -> Value:
    """x min(max(x + 3, 0), 6) / 6; -0 below -3."""
    return where(x < -3.0, -0.0, x * (minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0))


def elu(x: Value, alpha: Value) -> Value:
    """x above 0, else alpha (e**x - 1)."""
    return where(x > 0.0, x, alpha * call("expm1", x))


def leaky_relu(x: Value, slope: Value) -> Value:
    """x above 0, else slope x."""
    return where(x > 0.0, x, slope * x)
