"""Values on which float32 code goes wrong, and equality of bits: shared by all tests.

Comparison here must stay exact; a test that needs a tolerance has to say so itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

# Positive patterns; HARD_FLOATS holds both signs of each.
_HARD_BITS = (
    # zero, subnormals (to be read as zero), the smallest normal numbers
    0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x007FFFFE, 0x007FFFFF,
    0x00800000, 0x00800001, 0x00800002, 0x00FFFFFF, 0x01000000, 0x01000001,
    # where products, halves and reciprocals reach the border of the normal numbers
    0x0C800000, 0x0D000000, 0x1F800000, 0x1FFFFFFF, 0x20000000, 0x20000001,
    # near 2**-24 and 2**-12, where 1 + x and 1 + x*x stop to see x
    0x33000000, 0x33800000, 0x33800001, 0x38FFFFFF, 0x39800000, 0x39800001,
    # around one half, one, and their neighbours; 1 +- 2**-12 and 2**-13
    0x3EFFFFFF, 0x3F000000, 0x3F000001, 0x3F7FF000, 0x3F7FF800, 0x3F7FFFFE, 0x3F7FFFFF, 0x3F800000,
    0x3F800001, 0x3F800002, 0x3F800400, 0x3F800800, 0x3F3504F2, 0x3F3504F3, 0x3F3504F4, 0x3FB504F3, 0x3FB504F4,
    # ties of rounding to integers, small integers
    0x3FC00000, 0x40000000, 0x40200000, 0x40400000, 0x40600000, 0x40900000, 0x41200000, 0x42C80000,
    # pi/4, pi/2, pi, 2 pi and neighbours; 3.14159 * 2**17; ln 2
    0x3F490FDA, 0x3F490FDB, 0x3F490FDC, 0x3FC90FDA, 0x3FC90FDB, 0x3FC90FDC, 0x40490FDB, 0x40C90FDB, 0x48C90FDB,
    0x3F317217, 0x3F317218, 0x3EB17218,
    # hardest cases of trigonometric reduction in float32
    0x6F5D4C3F, 0x5D5AABEB, 0x7908CD73, 0x4B3BD06D,
    # borders of exp (overflow, underflow), of tanh, sigmoid, erf
    0x42B17217, 0x42B17218, 0x42B17219, 0x42AEAC4F, 0x42AEAC50, 0x42AEAC51, 0x42CFF1B4, 0x42CFF1B5,
    0x41102CB4, 0x41B80000, 0x41100000, 0x407AD447, 0x4113B0CA, 0x41200000,
    # 2**22 .. 2**24: where fractions end; 2**31, 2**32: where integers end
    0x4A7FFFFF, 0x4A800000, 0x4A800001, 0x4AFFFFFF, 0x4B000000, 0x4B000001, 0x4B7FFFFF, 0x4B800000, 0x4B800001,
    0x4EFFFFFF, 0x4F000000, 0x4F000001, 0x4F7FFFFF, 0x4F800000, 0x4F800001,
    # huge, infinite, NaN
    0x5F800000, 0x7E7FFFFF, 0x7E800000, 0x7EFFFFFF, 0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000,
    0x7F800001, 0x7FC00000, 0x7FFFFFFF,
)  # fmt: skip

HARD_FLOATS: Float32 = np.concatenate(
    [np.array(_HARD_BITS, np.uint32), np.array(_HARD_BITS, np.uint32) | np.uint32(0x80000000)]
).view(np.float32)

HARD_INTS: NDArray[np.int32] = np.array(
    sorted(
        {s * (2**k + d) for s in (-1, 1) for k in range(31) for d in (-1, 0, 1)}
        | {2**24 + 3, 2**25 + 2, 2**25 + 6, 2**30 + 2**6, 2**30 + 2**6 + 1, -(2**31), 2**31 - 1, 2**31 - 64}
    ),
    np.int32,
)


def bits_equal(a: Any, b: Any) -> NDArray[np.bool_]:
    """Elementwise: the same bits, or NaN on both sides. The two arrays must agree in shape and dtype."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, a.dtype, b.shape, b.dtype)
    if a.dtype == np.bool_:
        return np.asarray(a == b)
    word = np.uint16 if a.dtype.itemsize == 2 else np.uint32
    same = np.ascontiguousarray(a).view(word) == np.ascontiguousarray(b).view(word)
    same = same.reshape(a.shape)
    if a.dtype.name in ("float32", "float16", "bfloat16"):
        same = same | (np.isnan(a) & np.isnan(b))
    return np.asarray(same)


def random_bits(n: int, seed: int) -> Float32:
    """n float32 values with uniformly random bits: every exponent is as likely, subnormals and NaN included."""
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
