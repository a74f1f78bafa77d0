"""Random numbers as functions of a key, from the words of Philox as the docstrings of vkdnn.random say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn import nn, random
from vkdnn.check.library.rows import random_bits
from vkdnn.check.operator import Array, Input, Operator

_LAST_BLOCK = 0xFFFFFFFC  # where fold_in reads, beyond what draws reach


def _at(shape: Any) -> Array:
    return np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)


def words(key: Array, index: Array, stream: Any = 0) -> Array:
    return random_bits(index, stream, key[0], key[1])


def fraction(key: Array, index: Array) -> Array:
    """In [0, 1): the high 24 bits."""
    return np.asarray((words(key, index) >> 8) / 2.0**24)


def unit(key: Array, index: Array) -> Array:
    """In (0, 1): (word + 1/2) / 2**32."""
    return np.asarray((words(key, index) + 0.5) / 2.0**32)


def uniform(key: Array, low: Array, high: Array) -> Array:
    """Of bounds in the wrong order all are below ``high``, too."""
    return np.asarray(np.minimum(low + (high - low) * fraction(key, _at(low.shape)), high))


def normal(key: Array, shape: Any) -> Array:
    index = _at(shape)
    return np.asarray(np.sqrt(-2 * np.log(unit(key, 2 * index))) * np.cos(2 * np.pi * fraction(key, 2 * index + 1)))


def exponential(key: Array, shape: Any) -> Array:
    return np.asarray(-np.log1p(-np.minimum(unit(key, _at(shape)), 1 - 2.0**-24)))


def gumbel(key: Array, shape: Any) -> Array:
    return np.asarray(-np.log(exponential(key, shape)))


def randint(key: Array, shape: Any, low: int, high: int) -> Array:
    """64 random bits times the span, without the low 64 bits of the product."""
    index = _at(shape)
    small, large = words(key, 2 * index).astype(object), words(key, 2 * index + 1).astype(object)
    return np.asarray(low + ((large * 2**32 + small) * (high - low) // 2**64), np.int32)


def permutation(key: Array, x: Array) -> Array:
    return np.asarray(x[np.argsort(words(key, _at(x.shape[:1])), kind="stable")])


def dropout(x: Array, key: Array, p: float) -> Array:
    return np.asarray(np.where(fraction(key, _at(x.shape)) < 1 - p, x / (1 - p), 0.0))


_KEY = Input("key", "2", "words")
_X = Input("x", "rows columns")
_SIZES = {"rows": 3, "columns": 5}


def _draw(name: str, run: Callable[..., Any], golden: Callable[..., Any], **fields: Any) -> Operator:
    """A draw of a shape that a field says."""
    return Operator(
        f"random.{name}", "draws", (_KEY,), run, golden, {"shape": (3, 5), **fields}, gradient=False, halves=False
    )


ROWS = (
    Operator("random.key", "draws", (), lambda number: random.key(number),
             lambda number: np.array([number & 0xFFFFFFFF, number >> 32], np.uint32), {"number": 0x123456789ABCDEF0},
             gradient=False, halves=False),
    Operator("random.split", "draws", (_KEY,), random.split, lambda key, n: words(key, _at((n, 2)), 1), {"n": 3},
             gradient=False, halves=False),
    Operator("random.fold_in", "draws", (_KEY, Input("number", "", "words")), random.fold_in,
             lambda key, number: words(key, _at((2,)) + np.uint32(_LAST_BLOCK), number), {}, gradient=False,
             halves=False),
    _draw("bits", random.bits, lambda key, shape: words(key, _at(shape))),
    _draw("normal", random.normal, normal),
    _draw("exponential", random.exponential, exponential),
    _draw("gumbel", random.gumbel, gumbel),
    _draw("randint", random.randint, randint, low=-5, high=1000),
    Operator("random.uniform", "draws", (_KEY, Input("low", "n"), Input("high", "n")),
             lambda key, low, high: random.uniform(key, low.shape, low, high), uniform, {"n": 7}, halves=False),
    Operator("random.bernoulli", "draws", (_KEY, Input("p", "rows columns", "unit")), random.bernoulli,
             lambda key, p: fraction(key, _at(p.shape)) < p, _SIZES, gradient=False),
    Operator("random.categorical", "draws", (_KEY, Input("logits", "rows columns")), random.categorical,
             lambda key, logits, axis: (logits + gumbel(key, logits.shape)).argmax(axis).astype(np.int32),
             {**_SIZES, "axis": -1}, gradient=False, forms={"first": {"axis": 0}}),
    Operator("random.permutation", "draws", (_KEY, _X), random.permutation, permutation, _SIZES),
    Operator("nn.dropout", "draws", (_X, _KEY), lambda x, key, p: nn.dropout(x, p, key), dropout,
             {**_SIZES, "p": 0.3}),
)  # fmt: skip
