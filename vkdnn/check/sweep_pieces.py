"""A sweep's inputs in pieces, the reference's results for one, and the digest by which results are compared.

A piece must be the same on every machine, and so must its digest.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.check.hard import HARD_FLOATS
from vkdnn.check.sweep_truth import error_of
from vkdnn.codegen import glsl
from vkdnn.errors import ArgumentError
from vkdnn.ir.define import CHUNK, evaluate
from vkdnn.ir.ops import OPS
from vkdnn.numerics.basic import exact
from vkdnn.numerics.flush import flush

Array = np.ndarray[Any, Any]
Words = np.ndarray[Any, np.dtype[np.uint32]]
ALL = 2**32
PIECE = 1 << 22  # inputs a piece has at most
UNARY = tuple(name for name, op in OPS.items() if op.arity == 1 and op.types[0] in "fna")
"""Every function of one float32."""
PAIRS = ("add", "sub", "mul", "div", "pow", "atan2", "elu", "leaky_relu")
"""Functions of two that are measured on pairs."""

QUIET_NAN = 0x7FC00000
# Two digests of 32 bits: words mixed (Wellons' lowbias32) with their place in two ways, summed modulo 2**32.
STEPS, MULTIPLIERS, SHIFTS = (0x9E3779B9, 0x85EBCA6B), (0x7FEB352D, 0x846CA68B), (16, 15, 16)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a function: every ``stride``-th bit pattern, or ``pairs`` pairs, in pieces of ``length``."""

    name: str
    stride: int
    total: int
    length: int

    @staticmethod
    def of(name: str, stride: int = 1, pairs: int = 10**8) -> Inputs:
        """Raises ArgumentError for what is no function of one or two floats."""
        if name not in (*UNARY, *PAIRS):
            raise ArgumentError(f"function: no {name!r} to sweep, expected one of {', '.join((*UNARY, *PAIRS))}")
        if not 1 <= stride <= 2**20:
            raise ArgumentError(f"stride: got {stride}, expected 1 to {2**20}")
        if pairs < 1:
            raise ArgumentError(f"pairs: got {pairs}, expected 1 or more")
        total = pairs if name in PAIRS else -(-ALL // stride)
        return Inputs(name, stride, total, min(PIECE, max(1024, 1 << (total // 64).bit_length())))

    @property
    def paired(self) -> bool:
        return self.name in PAIRS

    @property
    def count(self) -> int:
        """Pieces; the last goes on with others, which are compared and not counted."""
        return -(-self.total // self.length)

    def counted(self, piece: int) -> int:
        """How many inputs of a piece are of the sweep."""
        return min(self.length, self.total - piece * self.length)

    def order(self) -> list[int]:
        """Pieces so that the first few already reach every exponent."""
        step = next(s for s in range(int(self.count * 0.618) | 1, self.count + 2) if np.gcd(s, self.count) == 1)
        return [i * step % self.count for i in range(self.count)]

    def start(self, piece: int) -> int:
        """Bits of the first input of a piece."""
        return piece * self.length * self.stride % ALL

    def arrays(self, piece: int) -> list[Array]:
        """The piece's inputs, flushed."""
        if not self.paired:
            bits = np.arange(self.length, dtype=np.uint32) * np.uint32(self.stride) + np.uint32(self.start(piece))
            return [flush(bits.view(np.float32))]
        rng, n = np.random.default_rng(piece), self.length
        x, y = rng.integers(0, 2**32, (2, n), dtype=np.uint32).view(np.float32)
        # A third of all bits; a third near 1 with powers of every size; of the last, half ordinary, half edges.
        near = slice(n // 3, 2 * n // 3)
        x[near] = 1 + rng.uniform(-1, 1, x[near].size) * 2.0 ** rng.uniform(-23, 0, x[near].size)
        with np.errstate(all="ignore"):
            y[near] = rng.uniform(-89, 89, x[near].size) / np.log(x[near].astype(np.float64))
        x[near.stop :], y[near.stop :] = rng.normal(size=(2, n - near.stop)) * 10.0
        edges = slice(near.stop + (n - near.stop) // 2, n)
        x[edges], y[edges] = rng.choice(HARD_FLOATS, (2, n - edges.start))
        return [flush(x), flush(y)]


@dataclass(frozen=True)
class Referred:
    """What the reference gives for a piece: the digest of its results, and the largest error among them."""

    digest: str
    error: float | None = None
    at: tuple[str, ...] = ()
    """Inputs of the largest error, in hex."""


def refer(inputs: Inputs, piece: int) -> Referred:
    """The reference's results for a piece, as its digest and their largest error."""
    measure = error_of(inputs.name)
    sums, worst, start = [0, 0], -1.0, 0
    at: tuple[str, ...] = ()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for values, results in chunks(inputs, piece):
            found = digest_words(words_of(results), start)
            sums = [(a + b) % ALL for a, b in zip(sums, found, strict=True)]
            start += results.size
            if measure is not None:
                errors = np.nan_to_num(measure[1](results, *values), nan=np.inf, posinf=np.inf)
                k = int(errors.argmax())
                if errors[k] > worst:  # the first of equal ones, however the pieces are divided
                    worst, at = float(errors[k]), tuple(hexadecimal(v[k]) for v in values)
    return Referred(digest_text(sums), None if measure is None else worst, at)


def chunks(inputs: Inputs, piece: int) -> Iterator[tuple[list[Array], Array]]:
    """Inputs and the reference's results, in parts that stay in a cache; float16 and bfloat16 by their values."""
    arrays = inputs.arrays(piece)
    for start in range(0, inputs.length, CHUNK):
        values = [a[start : start + CHUNK] for a in arrays]
        with exact():
            results = np.asarray(evaluate(inputs.name, *values))
        yield values, results.astype(np.float32) if results.dtype.kind not in "iub" else results


def words_of(results: Array) -> Words:
    """The bits of results, one NaN for all."""
    if results.dtype == np.bool_:
        return results.astype(np.uint32)
    if results.dtype != np.float32:
        return results.view(np.uint32)
    return np.where(np.isnan(results), np.uint32(QUIET_NAN), results.view(np.uint32))


def digest_words(words: Words, start: int = 0) -> list[int]:
    """Two numbers of 32 bits for words from a place on; those of parts add up, modulo 2**32."""
    place = np.arange(start, start + words.size, dtype=np.uint32)
    return [int(np.sum(_mixed(words ^ (place * np.uint32(step))), dtype=np.uint32)) for step in STEPS]


def _mixed(x: Words) -> Words:
    x ^= x >> np.uint32(SHIFTS[0])
    x *= np.uint32(MULTIPLIERS[0])
    x ^= x >> np.uint32(SHIFTS[1])
    x *= np.uint32(MULTIPLIERS[1])
    x ^= x >> np.uint32(SHIFTS[2])
    return x


def hexadecimal(value: Any) -> str:
    """A float as C and Python read it.

    >>> hexadecimal(np.float32(0.75)), hexadecimal(-2.0)
    ('0x1.8p-1', '-0x1p+1')
    """
    head, mark, exponent = float(value).hex().partition("p")
    return (head.rstrip("0").rstrip(".") if "." in head else head) + mark + exponent


def digest_text(sums: list[int]) -> str:
    return "".join(f"{s:08x}" for s in sums)


def fingerprint(name: str) -> str:
    """What a function's recorded results depend on: its text where it is defined, its results on some inputs."""
    text = "\n".join(glsl.functions([name])) if OPS[name].define else OPS[name].types
    samples = Inputs.of(name, 2**20, 4096)
    found = [digest_words(words_of(r)) for piece in range(samples.count) for _, r in chunks(samples, piece)]
    return hashlib.sha256(f"{PIECE} {CHUNK} {text} {found}".encode()).hexdigest()[:16]
