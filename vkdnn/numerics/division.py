"""Remainders, rounded quotients and integer powers on NumPy arrays: twins of the last part of shaders/numerics.glsl.

Like vkdnn.numerics.basic it takes flushed operands and owes flushed results. Nothing here may depend on how NumPy
treats an integer division by zero or one that overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn.numerics import basic
from vkdnn.numerics.basic import Array
from vkdnn.numerics.flush import flush

__all__ = ["floor_divide", "fmod", "mul_high", "power", "remainder"]

_ONE, _HALF = np.array(1, np.float32), np.array(0.5, np.float32)
_SIGN = np.uint32(0x80000000)


def fmod(a: Array, b: Array) -> Array:
    """a - b trunc(a / b), with the sign of a; exact. NaN for an infinite a or b = 0; integers give 0 for b = 0."""
    if a.dtype.kind == "f":
        return flush(np.fmod(a, b))  # exact by C's definition, in every libm
    return _integers(np.fmod, a, b)


def remainder(a: Array, b: Array) -> Array:
    """a - b floor(a / b), with the sign of b: fmod, and b added once where the signs differ."""
    if a.dtype.kind != "f":
        return _integers(np.remainder, a, b)
    rest = fmod(a, b)
    moved = np.where(np.signbit(rest) != np.signbit(b), basic.add(rest, b), rest)
    return np.where(rest == 0, _zero_of(b), moved)


def floor_divide(a: Array, b: Array) -> Array:
    """floor(a / b) by NumPy's rule: (a - fmod(a, b)) / b, one less where fmod has the other sign, then rounded.

    float32: a / b for b = 0. Integers: 0 for b = 0, and -2**31 // -1 wraps.
    """
    if a.dtype.kind != "f":
        return np.where(b == 0, a.dtype.type(0), _integers(np.floor_divide, a, b))
    rest = fmod(a, b)
    quotient = basic.div(basic.sub(a, rest), b)
    opposite = (np.signbit(rest) != np.signbit(b)) & (rest != 0)
    quotient = np.where(opposite, basic.sub(quotient, _ONE), quotient)
    whole = basic.floor(quotient)
    whole = np.where(basic.sub(quotient, whole) > _HALF, basic.add(whole, _ONE), whole)
    plain = basic.div(a, b)
    return np.where(b == 0, plain, np.where(quotient == 0, _zero_of(plain), whole))


def power(a: Array, b: Array) -> Array:
    """a**b of integers, wrapping; for b < 0 the integer part of it: 0 unless a is 1 or -1 (also for a = 0)."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    result, base = np.ones(shape, a.dtype), np.broadcast_to(a, shape)
    left = np.broadcast_to(basic.bits_uint32(b), shape)
    for _ in range(32):  # by squaring; the bits of a negative b leave the powers of 1 and -1 right
        result = np.where(left & np.uint32(1), result * base, result)
        base, left = base * base, left >> np.uint32(1)
    return np.where((b < 0) & (a != 1) & (a != a.dtype.type(0) - a.dtype.type(1)), a.dtype.type(0), result)


def mul_high(a: Array, b: Array) -> Array:
    """The high 32 bits of the product of two uint32."""
    return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _integers(operation: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """In 64 bits, where nothing overflows, and with 1 for a divisor of 0: its remainder is 0."""
    result: Any = operation(a.astype(np.int64), np.where(b == 0, np.int64(1), b.astype(np.int64)))
    return result.astype(a.dtype)


def _zero_of(x: Array) -> Array:
    """The zero of the sign of x."""
    return (basic.bits_uint32(x) & _SIGN).view(np.float32)
