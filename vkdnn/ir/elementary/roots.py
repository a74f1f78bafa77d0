"""rsqrt and reciprocal.

rsqrt must need neither root nor division: both are slow where a device's own are not correctly rounded.
"""

from __future__ import annotations

import math

from vkdnn.ir.elementary.pairs import ONE_BITS, keep_nan, product, sign_bit, split, with_sign
from vkdnn.ir.scalar import Value, bitcast, where


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x): two Newton steps from an integer guess, then one step of third order from its leading 12 bits."""
    bits = bitcast(x, "int32")
    j = (bits - ONE_BITS) >> 24
    m = bitcast(bits - (j << 24), "float32")  # x = m 4**j, m in [1, 4)
    y = bitcast(0x5F375A86 - (bitcast(m, "int32") >> 1), "float32")
    for _ in range(2):
        y = y * (1.5 - 0.5 * m * y * y)
    y, _ = split(y)  # 12 bits: its square is exact
    back, back_tail = product(m, y * y)
    d = (1.0 - back) - back_tail  # below 2**-10
    y = y + y * (d * (0.5 + d * (0.375 + d * 0.3125)))
    y = bitcast(bitcast(y, "int32") - (j << 23), "float32")
    zero = with_sign(where(x == 0.0, math.inf, 0.0), sign_bit(x))
    return keep_nan(x, where(x == math.inf, 0.0, where(x > 0.0, y, where(x == 0.0, zero, math.nan))))


def reciprocal(x: Value) -> Value:
    """1 / x."""
    return 1.0 / x
