"""Random numbers on the host, as NumPy arrays: named streams for initial weights, batches and sampled bytes.

Philox 4x32-10 like vkdnn.random, which draws on the device. It must never use libm or a state: number i of a stream
depends on the seed, the stream and i alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.errors import ArgumentError
from vkdnn.ir.elementary.counter import KEY_STEPS, MULTIPLIERS, ROUNDS
from vkdnn.numerics.flush import flush

Words = np.ndarray[Any, np.dtype[np.uint32]]
Float32 = np.ndarray[Any, np.dtype[np.float32]]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: Words, key: Sequence[int]) -> Words:
    """Philox 4x32-10: counters [N, 4] uint32 and a key of two 32-bit numbers -> blocks [N, 4] uint32."""
    if counter.ndim != 2 or counter.shape[1] != 4 or counter.dtype != np.uint32:
        raise ArgumentError(f"counter: got {counter.dtype} of shape {counter.shape}, expected uint32 [N, 4]")
    x0, x1, x2, x3 = (counter[:, i].astype(np.uint64) for i in range(4))
    for i in range(ROUNDS):
        k0, k1 = (np.uint64((k + i * step) & 0xFFFFFFFF) for k, step in zip(key, KEY_STEPS, strict=True))
        # below 2**64: both factors have 32 bits
        first, second = x0 * np.uint64(MULTIPLIERS[0]), x2 * np.uint64(MULTIPLIERS[1])
        x0, x1, x2, x3 = (
            (second >> _SHIFT) ^ x1 ^ k0,
            second & _LOW,
            (first >> _SHIFT) ^ x3 ^ k1,
            first & _LOW,
        )
    return np.stack([x0, x1, x2, x3], axis=1).astype(np.uint32)


def bits(seed: int, stream: int | str, count: int) -> Words:
    """The first ``count`` words of a stream: uint32 [count]. The seed is the key, the stream half of the
    counter."""
    number = _stream_number(stream)
    if not 0 <= seed < 2**64:
        raise ArgumentError(f"seed: got {seed}, expected 0 to 2**64 - 1")
    blocks = -(-count // 4)
    counter = np.empty((blocks, 4), np.uint32)
    index = np.arange(blocks, dtype=np.uint64)
    counter[:, 0], counter[:, 1] = index & _LOW, index >> _SHIFT
    counter[:, 2], counter[:, 3] = number & 0xFFFFFFFF, number >> 32
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:count]


def uniform(seed: int, stream: int | str, shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> Float32:
    """float32 numbers of ``shape``: low + (high - low) k / 2**24, k uniform below 2**24, rounded to float32
    once.

    The sum is formed in float64; no function but + and x is used, so that every machine gives the same bits.
    Raises ArgumentError unless low <= high, both finite.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ArgumentError(f"low, high: got {low} and {high}, expected finite numbers in this order")
    fraction = (bits(seed, stream, math.prod(shape)) >> np.uint32(8)).astype(np.float64) * 2.0**-24
    return flush((low + (high - low) * fraction).astype(np.float32)).reshape(tuple(shape))


def integers(seed: int, stream: int | str, shape: Sequence[int], high: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 numbers of ``shape`` from 0 to high - 1: the product of 64 random bits with ``high``, without
    its low 64 bits.

    Each number's probability is off by less than 2**-64 of the whole. Raises ArgumentError unless 1 <= high
    <= 2**31.
    """
    if not 1 <= high <= 2**31:
        raise ArgumentError(f"high: got {high}, expected 1 to 2**31")
    words = bits(seed, stream, 2 * math.prod(shape)).reshape(-1, 2).astype(np.uint64)
    factor = np.uint64(high)
    carry = (words[:, 0] * factor) >> _SHIFT
    return ((words[:, 1] * factor + carry) >> _SHIFT).astype(np.int64).reshape(tuple(shape))


@dataclass(frozen=True)
class Stream:
    """A seed and a dotted name: every parameter has a stream of its own, so that none depends on what else
    exists."""

    seed: int
    name: str = ""

    def child(self, name: str | int) -> Stream:
        """The stream of a part."""
        return Stream(self.seed, f"{self.name}.{name}" if self.name else str(name))

    def uniform(self, shape: Sequence[int], low: float, high: float) -> Float32:
        """See uniform()."""
        return uniform(self.seed, self.name, shape, low, high)


def _stream_number(stream: int | str) -> int:
    """A stream's number; names are hashed, so that two names meet with probability 2**-64."""
    if isinstance(stream, str):
        return int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little")
    if not 0 <= stream < 2**64:
        raise ArgumentError(f"stream: got {stream}, expected a name or a number from 0 to 2**64 - 1")
    return stream
