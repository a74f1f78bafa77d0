"""Arithmetic on pairs: a value as the sum of two float32, the second much smaller, for what 24 bits cannot hold.

It must only use exact operations, so that every step of a pair is the same on all devices.
"""

from __future__ import annotations

import numpy as np

from vkdnn.ir.scalar import Value, bitcast, call, where

Pair = tuple[Value, Value]  # head and tail

ONE_BITS = 0x3F800000
SIGN_BIT = 0x80000000
LN2_HIGH = 0.693145752  # 15 bits, so that an integer of 9 bits times it is exact
LN2_LOW = 1.42860677e-06
HALF_PI = (1.57079637, -4.37113883e-08)


def fast_sum(a: Value, b: Value) -> Pair:
    """a + b as a pair, exactly; |a| must not be below |b| unless a is 0 (Dekker 1971)."""
    total = a + b
    return total, b - (total - a)


def two_sum(a: Value, b: Value) -> Pair:
    """a + b as a pair, exactly, in any order (Knuth 1969)."""
    total = a + b
    b_seen = total - a
    return total, (a - (total - b_seen)) + (b - b_seen)


def split(x: Value) -> Pair:
    """x as a sum of two floats of 12 bits each: products of such parts are exact."""
    if isinstance(x, float):
        constant = np.float32(x)
        rounded = (constant.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
        return float(rounded), float(constant - rounded)
    head = bitcast(bitcast(x, "uint32") & 0xFFFFF000, "float32")
    return head, x - head


def product(a: Value, b: Value) -> Pair:
    """a b as a pair, exactly as long as no part of it is flushed."""
    head = a * b
    a_head, a_tail = split(a)
    b_head, b_tail = split(b)
    return head, ((a_head * b_head - head) + a_head * b_tail + a_tail * b_head) + a_tail * b_tail


def half_square(x: Value) -> Pair:
    """x**2 / 2: a head of 24 bits without an error, and a rest."""
    head, tail = split(x)
    return 0.5 * head * head, 0.5 * tail * (x + head)


def multiply(a: Pair, b: Pair) -> Pair:
    """a b for pairs."""
    head, tail = product(a[0], b[0])
    return head, tail + (a[0] * b[1] + a[1] * b[0])


def divide(numerator: Pair, denominator: Pair) -> Pair:
    """Quotient of pairs: the rounded quotient of the heads, and its remainder over a rough denominator."""
    quotient = numerator[0] / denominator[0]
    back, back_tail = product(quotient, denominator[0])
    remainder = (((numerator[0] - back) - back_tail) + numerator[1]) - quotient * denominator[1]
    return quotient, remainder * rough_reciprocal(denominator[0])


def rough_reciprocal(x: Value) -> Value:
    """1 / x to 2 percent, which is enough for a tail; finite for 0. x is not negative."""
    guess = bitcast(0x7EF311C3 - bitcast(x, "int32"), "float32")
    return guess * (2.0 - x * guess)


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    """c0 + x (c1 + x (c2 + ...)), by Horner's rule."""
    result: Value = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


def sign_bit(x: Value) -> Value:
    """The sign bit of x, as uint32."""
    return bitcast(x, "uint32") & SIGN_BIT


def with_sign(x: Value, sign: Value) -> Value:
    """x, not negative, with a sign bit."""
    return bitcast(bitcast(x, "uint32") | sign, "float32")


def keep_nan(x: Value, y: Value) -> Value:
    """y, but NaN where x is NaN: for definitions whose integer steps could lose it."""
    return where(call("isnan", x), x, y)
