"""The exact operations on NumPy arrays: the twins of shaders/numerics.glsl, and the truth for every device.

Operands are flushed (see `flush`) and results must be flushed too; a function must give the same bits inside and
outside of `exact()`, which only makes it faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vkdnn.numerics.flush import exact, flush, hardware_flush_active

__all__ = [
    "abs", "add", "bits_float32", "bits_int32", "bits_uint32", "ceil", "copysign", "div", "equal", "exact", "floor",
    "greater", "greater_equal", "is_finite", "is_inf", "is_nan", "less", "less_equal", "maximum", "minimum", "mul",
    "neg", "nextafter", "not_equal", "round_even", "sign", "sqrt", "sub", "to_bool", "to_float32", "to_int32",
    "to_uint32", "trunc",
]  # fmt: skip

Array = NDArray[Any]

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_2_POW_24 = np.float32(2.0**24)
_2_POW_MINUS_102 = np.float32(2.0**-102)
_TWO_POW_31 = np.uint32(0x4F000000)  # 2.0**31 by its bits
_TWO_POW_32 = np.uint32(0x4F800000)

# Comparisons need no twin: on flushed operands the processor's own are exact in every mode.
less, less_equal, greater, greater_equal = np.less, np.less_equal, np.greater, np.greater_equal
equal, not_equal = np.equal, np.not_equal


# ---- arithmetic


def add(a: Array, b: Array) -> Array:
    """a + b. float32 by the contract; integers wrap."""
    return _flush_sum(np.add(a, b))


def sub(a: Array, b: Array) -> Array:
    """a - b. float32 by the contract; integers wrap."""
    return _flush_sum(np.subtract(a, b))


def mul(a: Array, b: Array) -> Array:
    """a b. float32 by the contract; integers wrap."""
    return _flush_tiny(np.multiply, a, b)


def div(a: Array, b: Array) -> Array:
    """a / b of float32, correctly rounded, flushed."""
    return _flush_tiny(np.divide, a, b)


def sqrt(x: Array) -> Array:
    """Square root of float32, correctly rounded; -0 gives -0, below that NaN."""
    return np.sqrt(x)  # at least 2**-63: there is nothing to flush


def neg(x: Array) -> Array:
    """-x."""
    return np.negative(x)


def abs(x: Array) -> Array:
    """|x|."""
    return np.absolute(x)


def maximum(a: Array, b: Array) -> Array:
    """The larger of a and b; NaN if either is NaN; -0 below +0."""
    return _extreme(np.maximum, np.bitwise_and, a, b)


def minimum(a: Array, b: Array) -> Array:
    """The smaller of a and b; NaN if either is NaN; -0 below +0."""
    return _extreme(np.minimum, np.bitwise_or, a, b)


def floor(x: Array) -> Array:
    """The largest integer not above x; -0 gives -0."""
    return np.floor(x)


def ceil(x: Array) -> Array:
    """The smallest integer not below x; a zero result has the sign of x."""
    return np.ceil(x)


def trunc(x: Array) -> Array:
    """The integer part of x; a zero result has the sign of x."""
    return np.trunc(x)


def round_even(x: Array) -> Array:
    """The nearest integer, halves to the even one; a zero result has the sign of x."""
    return np.rint(x)


# ---- classification, by bits


def is_nan(x: Array) -> NDArray[np.bool_]:
    """x is NaN."""
    return (bits_uint32(x) & _MAGNITUDE) > _INFINITY


def is_inf(x: Array) -> NDArray[np.bool_]:
    """x is +inf or -inf."""
    return (bits_uint32(x) & _MAGNITUDE) == _INFINITY


def is_finite(x: Array) -> NDArray[np.bool_]:
    """x is neither infinite nor NaN."""
    return (bits_uint32(x) & _MAGNITUDE) < _INFINITY


# ---- conversion


def to_float32(x: Array) -> NDArray[np.float32]:
    """The float32 nearest to a bool or an integer of 32 bits, ties to even."""
    return np.asarray(x).astype(np.float32)


def to_int32(x: Array) -> NDArray[np.int32]:
    """float32: truncated, saturated, 0 for NaN. uint32 keeps its bits; a bool gives 0 or 1."""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x.astype(np.int32)
    fits = (bits_uint32(x) & _MAGNITUDE) < _TWO_POW_31
    # NumPy's own cast is undefined outside the range: it only ever sees values inside.
    inside = np.where(fits, x, np.float32(0)).astype(np.int32)
    bound = np.where(np.signbit(x), np.int32(-(2**31)), np.int32(2**31 - 1))
    return np.where(fits, inside, np.where(is_nan(x), np.int32(0), bound))


def to_uint32(x: Array) -> NDArray[np.uint32]:
    """float32: truncated, saturated, 0 for NaN. int32 keeps its bits; a bool gives 0 or 1."""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x.astype(np.uint32)
    fits = bits_uint32(x) < _TWO_POW_32  # a set sign bit is above
    inside = np.where(fits, x, np.float32(0)).astype(np.uint32)
    above = ~(fits | np.signbit(x) | is_nan(x))
    return np.where(above, np.uint32(2**32 - 1), inside)


def to_float16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The float32 value of the float16 nearest to x, ties to even; float16's own subnormals are kept."""
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(np.float16).astype(np.float32)


def to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The float32 value of the bfloat16 nearest to x, ties to even; NaN stays NaN."""
    bits = bits_uint32(x)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(is_nan(x), np.uint32(0x7FC00000), rounded).view(np.float32)


def to_bool(x: Array) -> NDArray[np.bool_]:
    """x != 0; true for NaN."""
    return np.not_equal(x, 0)


def bits_float32(x: Array) -> NDArray[np.float32]:
    """The 32 bits of an integer read as float32; a subnormal pattern becomes the zero of its sign."""
    return flush(np.asarray(x).view(np.float32))


def bits_int32(x: Array) -> NDArray[np.int32]:
    """The 32 bits of x read as int32."""
    return np.asarray(x).view(np.int32)


def bits_uint32(x: Array) -> NDArray[np.uint32]:
    """The 32 bits of x read as uint32."""
    return np.asarray(x).view(np.uint32)


# ---- signs and neighbours


def sign(x: Array) -> Array:
    """-1, 0 or 1; +0 for a zero of either sign, NaN for NaN."""
    return np.sign(x) + x.dtype.type(0)  # -0 + 0 is +0


def copysign(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """|a| with the sign of b; a NaN counts as positive, as its sign is nobody's promise."""
    sign_ = np.where(is_nan(b), np.uint32(0), bits_uint32(b) & ~_MAGNITUDE)
    return ((bits_uint32(a) & _MAGNITUDE) | sign_).view(np.float32)


def nextafter(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """The next float32 after a in the direction of b; next to zero are the smallest normal numbers."""
    outward = np.signbit(a) == np.less(b, a)
    bits = bits_uint32(a)
    following = flush(np.where(outward, bits + np.uint32(1), bits - np.uint32(1)).view(np.float32))
    smallest = (np.uint32(0x00800000) | (bits_uint32(b) & ~_MAGNITUDE)).view(np.float32)
    result = np.where(np.equal(a, b), b, np.where(np.equal(a, 0), smallest, following))
    return np.where(is_nan(a) | is_nan(b), np.float32(np.nan), result)


# ---- the flush rule in software


def _flush_sum(result: Array) -> Array:
    # Operands are multiples of 2**-149, so a sum below 2**-126 is exact: it was not rounded, and flushing the
    # result is the rule.
    if hardware_flush_active() or result.dtype.kind != "f":
        return result
    return flush(result)


def _flush_tiny(operation: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """a * b or a / b, flushed by the rule: below 2**-126 once rounded to 24 bits with unbounded exponent.

    The subnormal grid rounds some results below up to 2**-126, so the decision is made on the operation with `a`
    scaled by 2**24, whose result keeps all of its 24 bits there. Scaling overflows only from |a| >= 2**104, and then
    the true result is at least 2**-24 or exactly zero; an infinite or NaN scaled result decides for keeping, rightly.
    """
    result = operation(a, b)
    if hardware_flush_active() or result.dtype.kind != "f":
        return result
    tiny = np.absolute(operation(np.multiply(a, _2_POW_24), b)) < _2_POW_MINUS_102
    return np.where(tiny, np.copysign(np.float32(0), result), result)


def _extreme(
    pick: Callable[[Array, Array], Array], zeros: Callable[[Array, Array], Array], a: Array, b: Array
) -> Array:
    result = pick(a, b)
    if result.dtype.kind != "f":
        return result
    # Equal values differ at most in the sign of zero, which NumPy leaves open: `and` gives +0 only for two, `or` -0
    # for either.
    same = zeros(bits_uint32(a), bits_uint32(b)).view(np.float32)
    return np.where(np.equal(a, b), same, result)


def left_shift(a: Array, b: Array) -> Array:
    """a << (b mod 32): neither C, GLSL nor NumPy defines other counts alike."""
    return np.left_shift(a, np.bitwise_and(b, 31))


def right_shift(a: Array, b: Array) -> Array:
    """a >> (b mod 32), arithmetic for int32."""
    return np.right_shift(a, np.bitwise_and(b, 31))
