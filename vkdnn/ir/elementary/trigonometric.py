"""sin, cos, tan, their inverses and atan2, for every float32 argument.

Large arguments must be reduced in integers: no float of 24 bits holds enough of pi.
"""

from __future__ import annotations

import math

from vkdnn.dtypes import uint32
from vkdnn.ir.elementary.pairs import (
    HALF_PI,
    Pair,
    divide,
    fast_sum,
    keep_nan,
    multiply,
    polynomial,
    product,
    rough_reciprocal,
    sign_bit,
    split,
    with_sign,
)
from vkdnn.ir.node import const
from vkdnn.ir.scalar import Value, bitcast, cast, sqrt, where

_INFINITY = math.inf
_NAN = math.nan
# 2/pi in binary, 32 bits a word, after a word of zeros
_TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
# (sin(r)/r - 1) / r**2 and (cos(r) - 1 + r**2/2) / r**4 in r**2, |r| <= pi/4; relative errors below 2**-32
_SIN = (-0.166666672, 0.00833338033, -0.000198535054, 2.83739519e-06)
_COS = (0.0416666456, -0.00138873013, 2.44306684e-05)
# (atan(t)/t - 1) / t**2 in t**2, |t| <= sqrt(2) - 1; relative error of atan below 2**-33
_ATAN = (-0.333333313, 0.199998021, -0.142791286, 0.110095099, -0.0828258172, 0.0434965082)
# (asin(t)/t - 1) / t**2 in t**2, |t| <= 1/2; relative error of asin below 2**-31
_ASIN = (0.166666597, 0.075005196, 0.0445142128, 0.0318290666, 0.0143628241, 0.0376169384)


# ---- argument reduction


def _high_word(m: Value, w: Value) -> Value:
    """The high 32 bits of m w, m of 24 bits, from halves of 16 bits."""
    m_high, m_low, w_high, w_low = m >> 16, m & 0xFFFF, w >> 16, w & 0xFFFF
    middle = m_low * w_high + ((m_low * w_low) >> 16)
    other = m_high * w_low + (middle & 0xFFFF)
    return m_high * w_high + (middle >> 16) + (other >> 16)


def _window(exponent: Value) -> list[Value]:
    """96 bits of 2/pi for a biased exponent from 126 up: times the mantissa, the top two bits count quadrants."""
    offset = exponent - 120
    word, shift = offset >> 5, offset & 31
    at_least = [word >= i for i in range(1, 5)]
    words = []
    for i in range(4):
        value: Value = const(_TWO_OVER_PI[i], uint32)
        for j, condition in enumerate(at_least, 1):
            value = where(condition, _TWO_OVER_PI[i + j], value)
        words.append(value)
    # The second shift is in two steps: a shift by 32 is undefined.
    return [(words[i] << shift) | ((words[i + 1] >> 1) >> (31 - shift)) for i in range(3)]


def _reduce(x: Value) -> tuple[Value, Value, Value]:
    """|x| = n pi/2 + r with |r| <= pi/4 (or a hair more): n modulo 4 as uint32, and r as a pair (Payne and Hanek 1983).

    The mantissa times 96 bits of 2/pi, from which multiples of 4 fall off at the top, gives 2 bits of quadrant and a
    fraction of which 62 bits are kept. float32 comes no closer to a multiple of pi/2 than 2**-30 of that fraction, so
    32 bits of it always count.
    """
    bits = bitcast(x, "uint32") & 0x7FFFFFFF
    mantissa = (bits & 0x007FFFFF) | 0x00800000
    window = _window(where(bits < 0x3F000000, 126, bits >> 23))
    carry = _high_word(mantissa, window[2])
    middle = mantissa * window[1] + carry
    top = mantissa * window[0] + _high_word(mantissa, window[1])
    top = where(middle < carry, top + 1, top)
    quadrant = (top + 0x20000000) >> 30
    signed = bitcast(top << 2, "int32") >> 2  # the fraction minus the rounded quadrant, in units of 2**-30
    # In three exact floats of at most 24 bits; if the first two cancel, they do so without an error.
    part_1 = cast(signed >> 14, "float32") * 2.0**-16
    part_2 = cast(((bitcast(signed, "uint32") & 0x3FFF) << 10) | (middle >> 22), "float32") * 2.0**-40
    part_3 = cast(middle & 0x3FFFFF, "float32") * 2.0**-62
    head, tail = fast_sum(part_1, part_2)
    r, r_tail = multiply(fast_sum(head, tail + part_3), HALF_PI)
    direct = bits < 0x3F490FDB  # |x| < pi/4 is r itself
    return where(direct, 0, quadrant), where(direct, abs(x), r), where(direct, 0.0, r_tail)


# ---- sine, cosine, tangent


def _sin_pair(r: Value, r_tail: Value) -> Pair:
    square = r * r
    # r**3 as the exact cube of 8 leading bits, and a rest
    leading = bitcast(bitcast(r, "uint32") & 0xFFFF0000, "float32")
    cube = leading * leading * leading
    rest = (r - leading) * (square + leading * (r + leading))
    tail = r * square * square * polynomial(square, _SIN[1:]) + r_tail * (1.0 - 0.5 * square)
    return r, _SIN[0] * cube + (_SIN[0] * rest + tail)


def _cos_pair(r: Value, r_tail: Value) -> Pair:
    square = r * r
    r_head, r_rest = split(r)
    head, tail = fast_sum(1.0, -(0.5 * r_head * r_head))  # r**2/2 without an error: 24 bits, and a rest
    rest = 0.5 * r_rest * (r + r_head) + r * r_tail
    return head, tail + (square * square * polynomial(square, _COS) - rest)


def _sine_of_quadrant(x: Value, quadrant: Value, r: Value, r_tail: Value, sign: Value) -> Value:
    sin_head, sin_tail = _sin_pair(r, r_tail)
    cos_head, cos_tail = _cos_pair(r, r_tail)
    y = where((quadrant & 1) == 0, sin_head + sin_tail, cos_head + cos_tail)
    y = bitcast(bitcast(y, "uint32") ^ sign ^ ((quadrant & 2) << 30), "float32")
    return where((bitcast(x, "uint32") & 0x7FFFFFFF) < 0x7F800000, y, _NAN)


def sin(x: Value) -> Value:
    quadrant, r, r_tail = _reduce(x)
    return _sine_of_quadrant(x, quadrant, r, r_tail, sign_bit(x))


def cos(x: Value) -> Value:
    quadrant, r, r_tail = _reduce(x)
    return _sine_of_quadrant(x, quadrant + 1, r, r_tail, 0)


def tan(x: Value) -> Value:
    quadrant, r, r_tail = _reduce(x)
    negative = sign_bit(r)
    sine = fast_sum(*_sin_pair(r, r_tail))
    cosine = fast_sum(*_cos_pair(r, r_tail))
    # |sine| stands below in odd quadrants: the rough reciprocal wants positive denominators.
    flip = where(sine[0] < 0.0, -1.0, 1.0)
    sine = (sine[0] * flip, sine[1] * flip)
    even = (quadrant & 1) == 0
    head, tail = divide(
        (where(even, sine[0], cosine[0]), where(even, sine[1], cosine[1])),
        (where(even, cosine[0], sine[0]), where(even, cosine[1], sine[1])),
    )
    sign = negative ^ sign_bit(x) ^ ((quadrant & 1) << 31)
    y = bitcast(bitcast(head + tail, "uint32") ^ sign, "float32")
    return where((bitcast(x, "uint32") & 0x7FFFFFFF) < 0x7F800000, y, _NAN)


# ---- inverses


def _atan_octant(a: Value, b: Value) -> tuple[Value, Value, Value]:
    """atan(a / b) for 0 <= a <= b, b not 0, as base + t + rest; |t| <= sqrt(2) - 1 and base 0 or pi/4."""
    diagonal = a > 0.414213568 * b
    less, less_tail = fast_sum(b, -a)
    more, more_tail = fast_sum(b, a)
    t, t_tail = divide(
        (where(diagonal, -less, a), where(diagonal, -less_tail, 0.0)),
        (where(diagonal, more, b), where(diagonal, more_tail, 0.0)),
    )
    square = t * t
    # Of a small quotient only the rounded value counts; parts of its tail may have been flushed.
    rest = where(abs(t) < 2.0**-20, 0.0, t * (square * polynomial(square, _ATAN)) + t_tail)
    base_tail = where(diagonal, 0.5 * HALF_PI[1], 0.0)
    return where(diagonal, 0.5 * HALF_PI[0], 0.0), t, rest + base_tail


def _atan_sum(parts: tuple[Value, Value, Value], complement: Value, of: Pair) -> tuple[Value, Value, Value]:
    """The parts of `of` minus the angle where `complement` holds, else of the angle."""
    base, t, rest = parts
    minus, minus_tail = fast_sum(of[0], -base)
    return (
        where(complement, minus, base),
        where(complement, -t, t),
        where(complement, minus_tail + (of[1] - rest), rest),
    )


def atan(x: Value) -> Value:
    a = abs(x)
    a = where(a > 2.0**30, 2.0**30, a)  # pi/2 to 24 bits
    steep = a > 1.0
    parts = _atan_octant(where(steep, 1.0, a), where(steep, a, 1.0))
    base, t, rest = _atan_sum(parts, steep, HALF_PI)
    head, tail = fast_sum(base, t)
    return keep_nan(x, with_sign(head + (tail + rest), sign_bit(x)))


def atan2(y: Value, x: Value) -> Value:
    """The angle of (x, y), with the special cases of C99."""
    a, b = abs(y), abs(x)
    both_infinite = (a == _INFINITY) & (b == _INFINITY)
    steep = a > b
    small, large = where(steep, b, a), where(steep, a, b)
    small = where(both_infinite, 1.0, where(large == _INFINITY, 0.0, small))
    large = where((large == _INFINITY) | (large == 0.0), 1.0, large)
    # To [2, 4), so that neither sums nor remainders leave the normal range.
    scale = bitcast(0x7F800000 - (bitcast(large, "uint32") & 0x7F800000), "float32")
    parts = _atan_octant(small * scale, large * scale)
    parts = _atan_sum(parts, steep, HALF_PI)
    left = bitcast(x, "uint32") >= 0x80000000
    base, t, rest = _atan_sum(parts, left, (2.0 * HALF_PI[0], 2.0 * HALF_PI[1]))
    head, tail = fast_sum(base, t)
    return keep_nan(x, keep_nan(y, with_sign(head + (tail + rest), sign_bit(y))))


def _asin_parts(x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| > 1/2, and t + rest: asin(|x|), or else asin(sqrt((1 - |x|) / 2)), which is acos(|x|) / 2."""
    a = abs(x)
    outer = a > 0.5
    square = where(outer, 0.5 * (1.0 - a), x * x)  # the first is exact
    root = sqrt(square)
    back, back_tail = product(root, root)
    root_tail = ((square - back) - back_tail) * (0.5 * rough_reciprocal(root))
    t = where(outer, root, a)
    return outer, t, t * (square * polynomial(square, _ASIN)) + where(outer, root_tail, 0.0)


def asin(x: Value) -> Value:
    outer, t, rest = _asin_parts(x)
    head, tail = fast_sum(HALF_PI[0], -2.0 * t)
    y = where(outer, head + (tail + (HALF_PI[1] - 2.0 * rest)), t + rest)
    return keep_nan(x, where(abs(x) <= 1.0, with_sign(y, sign_bit(x)), _NAN))


def acos(x: Value) -> Value:
    outer, t, rest = _asin_parts(x)
    left = x < 0.0
    # pi/2 -+ asin(|x|), or twice the angle of the half, or pi minus that
    t = where(outer, 2.0 * t, t)
    rest = where(outer, 2.0 * rest, rest)
    plus = outer != left
    signed, signed_rest = where(plus, t, -t), where(plus, rest, -rest)
    base = where(outer, where(left, 2.0 * HALF_PI[0], 0.0), HALF_PI[0])
    base_tail = where(outer, where(left, 2.0 * HALF_PI[1], 0.0), HALF_PI[1])
    head, tail = fast_sum(base, signed)
    return keep_nan(x, where(abs(x) <= 1.0, head + (tail + (base_tail + signed_rest)), _NAN))
