"""Random numbers as array expressions: functions of a key, the same on every device, fused into what uses them.

Words come from Philox 4x32-10 (Salmon et al. 2011). There is no state: element i of a result depends on the key and i
alone, so a longer draw begins with a shorter one, and two draws from one key are not independent. Take a key from
key(), and a new one for each use from split() or fold_in(); keys may be arguments of jitted functions.

>>> import vkdnn as vk
>>> weights, noise = vk.random.split(vk.random.key(0))
>>> vk.random.uniform(weights, (2, 3)).shape
(2, 3)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkdnn.array import Array, array, asarray
from vkdnn.dtypes import int32, uint32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, lengths, normalize_axis
from vkdnn.ops.elementwise import cos, log, log1p, minimum, negative, nextafter, sqrt, stop_gradient, where
from vkdnn.ops.index import take
from vkdnn.ops.order import argsort
from vkdnn.ops.reduce import argmax

__all__ = [
    "bernoulli", "bits", "categorical", "exponential", "fold_in", "gumbel", "key", "normal", "permutation", "randint",
    "split", "uniform",
]  # fmt: skip

# Which words of a key's streams serve what: no word serves twice.
_DRAWS, _KEYS = 0, 1  # streams of the numbers drawn and of the keys split off
_LAST_BLOCK = 0xFFFFFFFC  # index of a block that draws never reach: fold_in reads it from the stream of its number
_MOST = 2**31 - 2  # elements of a draw
_LARGEST = (2.0 - 2.0**-23) * 2.0**127  # float32

Shape = int | Sequence[int]


# ---- keys


def key(seed: int) -> Array:
    """The key of a seed from 0 to 2**64 - 1: uint32 [2], its low and its high word, on the current device."""
    number = integer("key: seed", seed, "an int from 0 to 2**64 - 1")
    if not 0 <= number < 2**64:
        raise ArgumentError(f"key: seed: got {number}, expected an int from 0 to 2**64 - 1")
    return array(np.array([number & 0xFFFFFFFF, number >> 32], np.uint32))


def split(key: Any, n: int = 2) -> Array:
    """n new keys of a key, uint32 [n, 2]; the first ones do not depend on n. Raises ArgumentError for n below 0.

    >>> import vkdnn as vk
    >>> first, second, third = vk.random.split(vk.random.key(7), 3)
    """
    count = integer("split: n", n, "an int from 0 to 2**30")
    if not 0 <= count <= 2**30:
        raise ArgumentError(f"split: n: got {count}, expected an int from 0 to 2**30")
    return _words(_key("split", key), _index((count, 2)), _KEYS)


def fold_in(key: Any, number: Any) -> Array:
    """The new key of a key and a number, uint32 [2]: an int from 0 to 2**32 - 1 or an integer array without axes.

    For the key of a step: ``fold_in(key, step)``. Raises ArgumentError, ShapeError and DtypeError for other numbers.
    """
    checked = _key("fold_in", key)
    if isinstance(number, Array):
        if number.shape:
            raise ShapeError(f"fold_in: number: got shape {number.shape}, expected an array without axes")
        if number.dtype not in (int32, uint32):
            raise DtypeError(f"fold_in: number: got {number.dtype}, expected int32 or uint32")
        stream = number.astype("uint32")
    else:
        value = integer("fold_in: number", number, "an int from 0 to 2**32 - 1")
        if not 0 <= value < 2**32:
            raise ArgumentError(f"fold_in: number: got {value}, expected an int from 0 to 2**32 - 1")
        stream = Array(build.full((), value, uint32))
    return _words(checked, _index((2,)) + _LAST_BLOCK, stream)


# ---- words


def bits(key: Any, shape: Shape) -> Array:
    """Random words, uint32 of ``shape``: the words of the key's stream 0, in row-major order."""
    return _words(_key("bits", key), _index(lengths("bits", shape)))


# ---- continuous distributions


def uniform(key: Any, shape: Shape = (), low: Any = 0.0, high: Any = 1.0) -> Array:
    """float32 numbers in [low, high): low + (high - low) k / 2**24, k uniform below 2**24.

    The product and the sum are rounded, and what reaches high is moved to the number below it; where low = high that is
    the result. low and high are numbers or arrays that broadcast to ``shape``. Raises ArgumentError unless numbers are
    finite and in order.
    """
    fraction = _fraction(_words(_key("uniform", key), _index(lengths("uniform", shape))))
    if not (_is_array(low) or _is_array(high)):
        low, high = (_number("uniform: low, high", v) for v in (low, high))
        if not low <= high or max(abs(low), abs(high), high - low) > _LARGEST:
            raise ArgumentError(
                f"uniform: low, high: got {low} and {high}, expected float32 numbers in this "
                "order, no further apart than the largest float32"
            )
        if (low, high) == (0.0, 1.0):
            return fraction
    low, high = asarray(low, [fraction]), asarray(high, [fraction])
    below = stop_gradient(nextafter(high, low))
    return _of_shape("uniform", minimum(low + (high - low) * fraction, below), fraction)


def normal(key: Any, shape: Shape = ()) -> Array:
    """float32 numbers of the normal distribution of mean 0 and variance 1, by Box and Muller (1958).

    sqrt(-2 log u) cos(2 pi v) with u = (k + 1/2) / 2**32 of all 32 bits of word 2i and v of 24 bits of word 2i + 1;
    the largest magnitude is 6.76.
    """
    index = _index(lengths("normal", shape))
    checked = _key("normal", key)
    radius = sqrt(log(_unit(_words(checked, index * 2))) * -2.0)
    return radius * cos(_fraction(_words(checked, index * 2 + 1)) * math.tau)


def exponential(key: Any, shape: Shape = ()) -> Array:
    """float32 numbers of the exponential distribution of mean 1: -log(1 - u), u = (k + 1/2) / 2**32, up to 16.6."""
    u = _unit(_words(_key("exponential", key), _index(lengths("exponential", shape))))
    return negative(log1p(negative(minimum(u, 1.0 - 2.0**-24))))


def gumbel(key: Any, shape: Shape = ()) -> Array:
    """float32 numbers of the Gumbel distribution: -log of exponential(); from -2.8 to 22.9."""
    return negative(log(exponential(key, shape)))


# ---- discrete distributions


def randint(key: Any, shape: Shape, low: Any, high: Any) -> Array:
    """int32 numbers from low to high - 1: 64 random bits times high - low, without the low 64 bits of the product.

    Each number's probability is off by less than 2**-64. low and high are ints or int32 arrays that broadcast to
    ``shape``; of arrays, low < high is the caller's to keep. Raises ArgumentError unless ints are in order and fit.
    """
    index = _index(lengths("randint", shape))
    checked = _key("randint", key)
    if not (_is_array(low) or _is_array(high)):
        first, last = (integer(f"randint: {n}", v) for n, v in (("low", low), ("high", high)))
        if not -(2**31) <= first < last <= 2**31:
            raise ArgumentError(f"randint: low, high: got {first} and {last}, expected ints with low < high, of int32")
        start, span = asarray(first), Array(build.full((), (last - first) & 0xFFFFFFFF, uint32))
    else:
        start, end = _bound("low", low, checked), _bound("high", high, checked)
        span = (end - start).astype("uint32")
    small, large = _words(checked, index * 2), _words(checked, index * 2 + 1)
    carry, product = small._map("mul_high", small, span), large * span
    total = product + carry
    drawn = large._map("mul_high", large, span) + where(total < carry, 1, 0).astype("uint32")
    drawn = where(span == 0, large, drawn)  # 2**32 numbers
    return _of_shape("randint", drawn.astype("int32") + start, index)


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None) -> Array:
    """bools that are true with probability p, to 2**-24; never for 0, always for 1. For dropout masks.

    p: a number, or an array that broadcasts to ``shape`` (default: p's shape). Raises ArgumentError for a number
    outside [0, 1].

    >>> import vkdnn as vk
    >>> vk.random.bernoulli(vk.random.key(1), 1.0, (3,)).numpy().tolist()
    [True, True, True]
    """
    if not _is_array(p) and not 0 <= _number("bernoulli: p", p) <= 1:
        raise ArgumentError(f"bernoulli: p: got {p}, expected a number from 0 to 1")
    p = asarray(p, [key], "bernoulli: p")
    u = uniform(key, lengths("bernoulli", p.shape if shape is None else shape))
    return _of_shape("bernoulli", u < p, u)


def categorical(key: Any, logits: Any, axis: int = -1) -> Array:
    """Positions along an axis, int32, drawn with the probabilities softmax(logits): argmax(logits + gumbel()).

    logits: float32, any shape; the result lacks the axis. A logit of -inf is never drawn unless all are. Raises
    ShapeError where the axis does not exist or is empty.

    >>> import vkdnn as vk
    >>> vk.random.categorical(vk.random.key(3), vk.array([0.0, 50.0, 0.0])).item()
    1
    """
    logits = asarray(logits, [key], "categorical: logits")
    axis = normalize_axis("categorical", axis, logits.ndim)
    return argmax(logits + gumbel(key, logits.shape), axis)


def permutation(key: Any, x: Any) -> Array:
    """The numbers below x in random order, int32 [x]; of an array, its slices along the first axis in that order.

    The order is that of random words of 32 bits, equal words by position. Raises ArgumentError for x below 0 and
    ShapeError for an array without axes.

    >>> import vkdnn as vk
    >>> sorted(vk.random.permutation(vk.random.key(2), 5).numpy().tolist())
    [0, 1, 2, 3, 4]
    """
    if not (_is_array(x) or isinstance(x, list)):
        count = integer("permutation: x", x, "an int or an array")
        if count < 0:
            raise ArgumentError(f"permutation: x: got {count}, expected zero or more")
        return argsort(bits(key, (count,)))
    x = asarray(x, [key], "permutation: x")
    if not x.shape:
        raise ShapeError("permutation: x: got an array without axes, expected at least one (or an int)")
    return take(x, argsort(bits(key, x.shape[:1])))


# ---- pieces


def _key(name: str, key: Any) -> Array:
    if not _is_array(key):
        raise ArgumentError(f"{name}: key: got {type(key).__name__}, expected a key from vkdnn.random.key(seed)")
    key = asarray(key)
    if key.dtype is not uint32:
        raise DtypeError(f"{name}: key: got {key.dtype}, expected uint32, a key from vkdnn.random.key(seed)")
    if key.shape != (2,):
        raise ShapeError(f"{name}: key: got shape {key.shape}, expected (2,): one key (a row of what split() gives)")
    return key


def _is_array(value: Any) -> bool:
    return isinstance(value, (Array, np.ndarray))


def _index(shape: tuple[int, ...]) -> Array:
    """uint32 positions in row-major order."""
    size = math.prod(shape)
    if size > _MOST:
        raise ArgumentError(f"shape: got {shape}, expected at most {_MOST} elements")
    return Array(build.reshape(build.iota((size,), 0), shape)).astype("uint32")


def _words(key: Array, index: Array, stream: Any = _DRAWS) -> Array:
    """Words of one of a key's streams."""
    return key._map("random_bits", index, stream, key[0], key[1])


def _fraction(words: Array) -> Array:
    """float32 in [0, 1): the high 24 bits, exactly."""
    return (words >> 8).astype("float32") * 2.0**-24


def _unit(words: Array) -> Array:
    """float32 in (0, 1]: (word + 1/2) / 2**32, rounded, so that small values keep their 24 bits."""
    return (words.astype("float32") + 0.5) * 2.0**-32


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ArgumentError(f"{name}: got {type(value).__name__}, expected a number or an array")
    if not math.isfinite(value):
        raise ArgumentError(f"{name}: got {value}, expected a finite number")
    return float(value)


def _bound(name: str, value: Any, key: Array) -> Array:
    found = asarray(value, [key])
    if found.dtype is not int32:
        raise DtypeError(f"randint: {name}: got {found.dtype}, expected int32")
    return found


def _of_shape(name: str, result: Array, drawn: Array) -> Array:
    """The result, whose shape must be the one asked for. Raises ShapeError where an argument has another one."""
    if result.shape != drawn.shape:
        raise ShapeError(f"{name}: arguments give shape {result.shape}, expected to broadcast to {drawn.shape}")
    return result
