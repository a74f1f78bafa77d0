"""Philox 4x32-10: random words as a function of a counter and a key (Salmon et al. 2011, "Parallel random numbers").

It works on any uint32 values with Python's operators: nodes of a definition, or arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkdnn.ir.scalar import Value, call, where

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and sqrt(3) - 1, as fractions of 2**32
ROUNDS = 10


def philox(counter: Sequence[Value], key: Sequence[Value]) -> tuple[Value, Value, Value, Value]:
    """The block of four words that belongs to a counter of four words and a key of two."""
    x0, x1, x2, x3 = counter
    for i in range(ROUNDS):
        k0, k1 = (k + (i * step & 0xFFFFFFFF) if i else k for k, step in zip(key, KEY_STEPS, strict=True))
        first, second = call("mul_high", x0, MULTIPLIERS[0]), call("mul_high", x2, MULTIPLIERS[1])
        x0, x1, x2, x3 = second ^ x1 ^ k0, x2 * MULTIPLIERS[1], first ^ x3 ^ k1, x0 * MULTIPLIERS[0]
    return x0, x1, x2, x3


def random_bits(index: Value, stream: Value, key_0: Value, key_1: Value) -> Value:
    """Word index mod 4 of the block with counter (index / 4, 0, stream, 0)."""
    x0, x1, x2, x3 = philox((index >> 2, 0, stream, 0), (key_0, key_1))
    lane = index & 3
    return where(lane < 2, where(lane == 0, x0, x1), where(lane == 2, x2, x3))


def philox_word(c0: Value, c1: Value, c2: Value, c3: Value, key_0: Value, key_1: Value) -> Value:
    """The first word of the block of a counter."""
    return philox((c0, c1, c2, c3), (key_0, key_1))[0]
