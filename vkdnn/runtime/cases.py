"""The chosen inputs of the device probe and their one right answer, from float64 and integer arithmetic.

It must never use the arithmetic that it is the judge of: no shader text, nothing of vkdnn.numerics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

# Raised whenever the inputs change: part of the key of stored verdicts.
CASES_VERSION = 2
SMALLEST_NORMAL = 0x00800000
_SIGN = np.uint32(0x80000000)
_EXPONENT = np.uint32(0x7F800000)


class Operation(IntEnum):
    """What the probe shader does to a case; the numbers stand in its switch."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3
    SQUARE_ROOT = 4
    MULTIPLY_ADD = 5
    UINT_TO_FLOAT = 6
    INT_TO_FLOAT = 7
    FLOAT_TO_INT = 8
    FLOAT_TO_UINT = 9
    INTEGER_ADD = 10
    INTEGER_MULTIPLY = 11
    SHIFT_LEFT = 12
    SHIFT_RIGHT = 13
    SHIFT_RIGHT_SIGNED = 14
    FUSED_MULTIPLY_ADD = 15


FLOAT_RESULTS = frozenset({*range(Operation.ADD, Operation.FLOAT_TO_INT), Operation.FUSED_MULTIPLY_ADD})


@dataclass(frozen=True)
class Cases:
    """Inputs and answers as uint32 vectors of one length; floats by their bits."""

    operation: Words
    a: Words
    b: Words
    c: Words
    expected: Words

    @property
    def count(self) -> int:
        """Number of cases."""
        return self.operation.size

    def packed(self) -> Words:
        """Operation, a, b, c of each case in turn: the shader's input."""
        return np.stack([self.operation, self.a, self.b, self.c], axis=1).reshape(-1)

    def of(self, operation: Operation) -> Mask:
        """Which cases are of this operation."""
        return self.operation == operation

    def subnormal_operand(self) -> Mask:
        """Which cases have a subnormal among their float operands."""
        return is_subnormal(self.a) | (is_subnormal(self.b) & (self.operation != Operation.SQUARE_ROOT))


def is_subnormal(words: Words) -> Mask:
    """Whether the bits are those of a nonzero float32 below 2**-126 in magnitude."""
    return ((words & _EXPONENT) == 0) & ((words & ~_SIGN) != 0)


def same_float(a: Words, b: Words) -> Mask:
    """Equal bits, or both NaN whatever their payload and sign."""
    nan = np.uint32(0x7F800000)
    return (a == b) | (((a & ~_SIGN) > nan) & ((b & ~_SIGN) > nan))


def make_cases() -> Cases:
    """All cases, the same ones every time; a few thousand for each float operation."""
    rng = np.random.default_rng(20)
    parts: list[tuple[Operation, Words, Words, Words]] = []

    def add(operation: Operation, a: Words, b: Words | None = None, c: Words | None = None) -> None:
        zeros = np.zeros_like(a)
        parts.append((operation, a, zeros if b is None else b, zeros if c is None else c))

    for operation in (Operation.ADD, Operation.SUBTRACT, Operation.MULTIPLY, Operation.DIVIDE):
        for a, b in (*_common_pairs(rng), _edge_pairs(operation, rng)):
            add(operation, a, b)
    for a in (_special(), _any_bits(rng, 1024), _ordinary(rng, 1024) & ~_SIGN, _root_ties(rng)):
        add(Operation.SQUARE_ROOT, a)
    a, b = _unit(rng, 1024), _unit(rng, 1024)
    add(Operation.MULTIPLY_ADD, a, b, _contract(-(_double(a) * _double(b))))
    small = rng.integers(-(2**24), 2**24, 256, dtype=np.int32)
    small = np.append(small, np.array([0, 1, -1, 2**24, -(2**24)], np.int32))
    add(Operation.INT_TO_FLOAT, small.view(np.uint32))
    add(Operation.UINT_TO_FLOAT, np.abs(small).view(np.uint32))
    signed, unsigned = rng.uniform(-(2.0**30), 2.0**30, 256), rng.uniform(0, 2.0**31, 256)
    add(Operation.FLOAT_TO_INT, _bits(np.append(signed, rng.uniform(-4, 4, 256))))
    add(Operation.FLOAT_TO_UINT, _bits(np.append(unsigned, rng.uniform(0, 4, 256))))
    for operation in (Operation.INTEGER_ADD, Operation.INTEGER_MULTIPLY):
        add(operation, _any_bits(rng, 256), _any_bits(rng, 256))
    for operation in (Operation.SHIFT_LEFT, Operation.SHIFT_RIGHT, Operation.SHIFT_RIGHT_SIGNED):
        add(operation, _any_bits(rng, 256), np.arange(256, dtype=np.uint32) % 32)
    for a, b, c in _fused_triples(rng):
        add(Operation.FUSED_MULTIPLY_ADD, a, b, c)
    return Cases(
        operation=np.concatenate([np.full(a.size, operation, np.uint32) for operation, a, _, _ in parts]),
        a=np.concatenate([a for _, a, _, _ in parts]),
        b=np.concatenate([b for _, _, b, _ in parts]),
        c=np.concatenate([c for _, _, _, c in parts]),
        expected=np.concatenate([_answer(*part) for part in parts]),
    )


# Inputs.


def _special() -> Words:
    magnitudes = [
        0, 1, 0x00400000, 0x007FFFFF, SMALLEST_NORMAL, SMALLEST_NORMAL + 1, 0x01000000, 0x33800000,
        0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x40000000, 0x40400000, 0x4B000000, 0x4B800001,
        0x7F7FFFFF, 0x7F800000, 0x7FC00000,
    ]  # fmt: skip
    positive = np.array(magnitudes, np.uint32)
    return np.concatenate([positive, positive | _SIGN])


def _any_bits(rng: np.random.Generator, count: int) -> Words:
    return rng.integers(0, 2**32, count, dtype=np.uint32)


def _ordinary(rng: np.random.Generator, count: int) -> Words:
    """Floats of both signs between 2**-30 and 2**30: results that have to be rounded, not flushed."""
    exponent = rng.integers(97, 157, count, dtype=np.uint32)
    return (exponent << np.uint32(23)) | (_any_bits(rng, count) & np.uint32(0x807FFFFF))


def _unit(rng: np.random.Generator, count: int) -> Words:
    """Floats from 1 to 2."""
    return (_any_bits(rng, count) & np.uint32(0x007FFFFF)) | np.uint32(0x3F800000)


def _common_pairs(rng: np.random.Generator) -> list[tuple[Words, Words]]:
    special = _special()
    count = special.size
    return [
        (np.repeat(special, count), np.tile(special, count)),
        (_any_bits(rng, 1024), _any_bits(rng, 1024)),
        (_ordinary(rng, 1024), _ordinary(rng, 1024)),
    ]


def _edge_pairs(operation: Operation, rng: np.random.Generator) -> tuple[Words, Words]:
    """Pairs around what goes wrong: results next to 2**-126, ties, quotients next to a tie."""
    count = 1024
    sign = _any_bits(rng, count) & _SIGN
    just_below_one = 1 - rng.uniform(0, 2.0**-22, count)
    if operation is Operation.MULTIPLY:
        a = (_any_bits(rng, count) & np.uint32(0x007FFFFF)) | np.uint32(64 << 23)
        return a, _bits(2.0**-126 * just_below_one / _double(a)) | sign
    if operation is Operation.DIVIDE:
        b = (_any_bits(rng, count) & np.uint32(0x007FFFFF)) | np.uint32(187 << 23)
        tiny = _bits(2.0**-126 * just_below_one * _double(b)) | sign
        divisor = _unit(rng, count)
        midpoint = (2 * rng.integers(2**23, 2**24, count) + 1) / 2.0**24
        return np.append(tiny, _bits(midpoint * _double(divisor))), np.append(b, divisor)
    near = _any_bits(rng, count) % np.uint32(0x02000000) + np.uint32(SMALLEST_NORMAL)
    other = near + rng.integers(0, 2**22, count, dtype=np.uint32)
    large = rng.integers(2**23, 2**24, count).astype(np.float64)
    half = rng.choice([-1.0, -0.5, -0.25, 0.25, 0.5, 1.0], count)
    # The signs make both a sum and a difference cancel.
    return np.append(near | sign, _bits(large)), np.append(other ^ _any_bits(rng, count) & _SIGN, _bits(half))


def _root_ties(rng: np.random.Generator) -> Words:
    """Floats whose square root lies as near as can be to the middle of two floats, and around 2**-126."""
    midpoint = (2 * rng.integers(2**23, 2**24, 1024) + 1) / 2.0**24
    edge = np.arange(-64, 64, dtype=np.int64) + SMALLEST_NORMAL
    return np.concatenate([_bits(midpoint**2), _bits((midpoint / 2) ** 2 * 2), edge.astype(np.uint32)])


def _fused_triples(rng: np.random.Generator) -> list[tuple[Words, Words, Words]]:
    """What division and root by fma() do: exact remainders, sums of any alignment, and sums next to a tie."""
    count = 1024
    a, b, c = _unit(rng, count), _unit(rng, count), _unit(rng, count)
    sign = _any_bits(rng, count) & _SIGN
    quotient = _bits(_double(c) / _double(a) * (1 + rng.integers(-2, 3, count).astype(np.float64) * 2.0**-24))
    scaled = _bits(_double(c) * np.exp2(rng.integers(-50, 27, count).astype(np.float64)))
    half = _bits(2.0**-24 * (1 + rng.integers(-3, 4, count).astype(np.float64) * 2.0**-23))
    nearly_one = _bits(1 + rng.integers(-3, 4, count).astype(np.float64) * 2.0**-23)
    return [
        (a, b, _bits(-(_double(a) * _double(b)))),
        (a ^ _SIGN, quotient, c),
        (a ^ sign, b, scaled),
        (half ^ sign, nearly_one, c),
    ]


# Answers.


def _bits(values: npt.NDArray[np.float64]) -> Words:
    return values.astype(np.float32).view(np.uint32)


def _double(words: Words) -> npt.NDArray[np.float64]:
    """The float32 as float64, with subnormals read as zero of their sign."""
    read = np.where((words & _EXPONENT) == 0, words & _SIGN, words).astype(np.uint32)
    return read.view(np.float32).astype(np.float64)


def _contract(exact: npt.NDArray[np.float64]) -> Words:
    """A float64 result rounded to the contract's float32: zero if below 2**-126 after rounding to 24 bits.

    Rounding + - × ÷ sqrt of float32 first to 53 bits and then to 24 is the same as rounding once; so is a sum that
    was rounded to odd (see _odd_sum).
    """
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        small = np.abs(exact) < 2.0**-120
        unbounded = (np.where(small, exact, 0.0) * 2.0**100).astype(np.float32)  # far from subnormals
        tiny = small & (np.abs(unbounded) < np.float32(2.0**-26))
    return np.where(tiny, np.signbit(exact) * _SIGN, rounded.view(np.uint32)).astype(np.uint32)


def _odd_sum(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """a + b rounded to 53 bits, to the odd neighbour where inexact: rounding that to 24 bits rounds a + b once."""
    total = a + b
    seen = total - a
    error = (a - (total - seen)) + (b - seen)
    beside = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    return np.where((error != 0) & even, beside, total)


def _answer(operation: Operation, a: Words, b: Words, c: Words) -> Words:
    with np.errstate(all="ignore"):
        if operation is Operation.ADD:
            return _contract(_double(a) + _double(b))
        if operation is Operation.SUBTRACT:
            return _contract(_double(a) - _double(b))
        if operation is Operation.MULTIPLY:
            return _contract(_double(a) * _double(b))
        if operation is Operation.DIVIDE:
            return _contract(_double(a) / _double(b))
        if operation is Operation.SQUARE_ROOT:
            return _contract(np.sqrt(_double(a)))
        if operation is Operation.MULTIPLY_ADD:
            return _contract(_double(_contract(_double(a) * _double(b))) + _double(c))
        if operation is Operation.FUSED_MULTIPLY_ADD:
            return _contract(_odd_sum(_double(a) * _double(b), _double(c)))
        if operation is Operation.UINT_TO_FLOAT:
            return _bits(a.astype(np.float64))
        if operation is Operation.INT_TO_FLOAT:
            return _bits(a.view(np.int32).astype(np.float64))
        if operation is Operation.FLOAT_TO_INT:
            return _double(a).astype(np.int64).astype(np.int32).view(np.uint32)
        if operation is Operation.FLOAT_TO_UINT:
            return _double(a).astype(np.int64).astype(np.uint32)
        if operation is Operation.INTEGER_ADD:
            return a + b
        if operation is Operation.INTEGER_MULTIPLY:
            return a * b
        if operation is Operation.SHIFT_LEFT:
            return a << b
        if operation is Operation.SHIFT_RIGHT:
            return a >> b
        return (a.view(np.int32) >> b.view(np.int32)).view(np.uint32)
