"""Monoids: what a fold reduces with. An element is a tuple of fields; a merge makes one of two, the earlier first.

Each merge is written once, in the vocabulary of vkdnn.ir.scalar, and traced: vkdnn.codegen.merges prints it, NumPy
interprets it. Merging with the identity on either side must give the other operand bit for bit: spare lanes hold it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vkdnn.dtypes import DType
from vkdnn.ir.define import interpret, plan
from vkdnn.ir.elementary.pairs import two_sum
from vkdnn.ir.node import Node, leaf
from vkdnn.ir.scalar import Value, call, maximum, minimum, where

Fields = tuple[Value, ...]
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Field:
    """One value of an element: its name, its kind as in the op table (n, f, i), its identity by dtype category."""

    name: str
    kind: str
    identity: dict[str, float]


@dataclass(frozen=True)
class Monoid:
    """One row: the fields of an element, the merge (fields of a, then of b, to fields), the fold of no elements."""

    fields: tuple[Field, ...]
    merge: Callable[..., Fields]
    doc: str
    of_none: tuple[float, ...] | None = None


def _number(f: float, i: float, u: float) -> tuple[Field, ...]:
    return (Field("value", "n", {"f": f, "i": i, "u": u}),)


# ---- positions of extremes


def _position(a: Value, i: Value, b: Value, j: Value, beyond: Value) -> Fields:
    """(b, j) where b lies beyond a, or ties with it and comes first; NaN is beyond all numbers."""
    tie = a == b
    if a.dtype.category == "f":
        a_nan, b_nan = call("isnan", a), call("isnan", b)
        beyond, tie = beyond | (b_nan & ~a_nan), tie | (a_nan & b_nan)
    take = beyond | (tie & (j < i))
    return where(take, b, a), where(take, j, i)


def argmax(a: Value, i: Value, b: Value, j: Value) -> Fields:
    """The larger value and its index; the lower index at ties, and of NaNs, which are beyond all numbers."""
    return _position(a, i, b, j, a < b)


def argmin(a: Value, i: Value, b: Value, j: Value) -> Fields:
    """The smaller value and its index; otherwise as argmax."""
    return _position(a, i, b, j, b < a)


# ---- sums of exponentials


def logsumexp(a: Value, s: Value, b: Value, t: Value) -> Fields:
    """m = max(a, b), s e**(a - m) + t e**(b - m), of which one factor is 1 (Milakov and Gimelshein 2018).

    At equal maxima both are 1: infinite ones have no difference. From a = -inf nothing is taken but where b is too.
    """
    m = maximum(a, b)
    a_is_low = (a == -math.inf) | (a < b)  # so an identity is, whatever it meets
    low = where(a_is_low, a, b)
    scale = where(low == m, 1.0, call("softmax_rescale", low, m))
    return m, where(a_is_low, t, s) + where(a_is_low, s, t) * scale


# ---- moments


def moments(m: Value, a: Value, r: Value, v: Value, n: Value, b: Value, s: Value, w: Value) -> Fields:
    """Counts, means and sums of squared deviations of two sets, of the two together (Chan, Golub and LeVeque 1979).

    m + n; a + d n / (m + n); v + w + d**2 m n / (m + n), d = b - a. A mean is a + r, r what rounding a has lost, which
    would count in d where the mean is large. Where one is not finite the mean is a + b.
    """
    finite = call("isfinite", a) & call("isfinite", b)
    step, total = (b - a) + (s - r), m + n
    share = n / total
    mean, rest = two_sum(a, step * share)
    squares = (v + w) + step * step * (m * share)
    merged = where(finite, mean, a + b), where(finite, rest + r, 0.0), squares
    only_a, only_b = n == 0.0, m == 0.0
    given = zip((a, r, v), (b, s, w), merged, strict=True)
    return total, *(where(only_a, x, where(only_b, y, z)) for x, y, z in given)


_F = "f"
MONOIDS: dict[str, Monoid] = {
    "add": Monoid(_number(-0.0, 0, 0), lambda a, b: (a + b,), "a + b; -0 is the identity, as x + -0 is x", (0,)),
    "mul": Monoid(_number(1.0, 1, 1), lambda a, b: (a * b,), "a b", (1,)),
    "maximum": Monoid(_number(-math.inf, -(2**31), 0), lambda a, b: (maximum(a, b),), "the larger; NaN if either is"),
    "minimum": Monoid(_number(math.inf, _MOST, 2**32 - 1), lambda a, b: (minimum(a, b),), "the smaller; NaN as above"),
    "argmax": Monoid(
        (*_number(-math.inf, -(2**31), 0), Field("index", "i", {"i": _MOST})), argmax, "a value and its index"
    ),
    "argmin": Monoid(
        (*_number(math.inf, _MOST, 2**32 - 1), Field("index", "i", {"i": _MOST})), argmin, "a value and its index"
    ),
    "logsumexp": Monoid(
        (Field("top", _F, {_F: -math.inf}), Field("total", _F, {_F: 0.0})),
        logsumexp,
        "the maximum m of x and the sum of e**(x - m)",
        (-math.inf, 0.0),
    ),
    "moments": Monoid(
        tuple(Field(name, _F, {_F: 0.0}) for name in ("count", "mean", "rest", "squares")),
        moments,
        "count, mean, what rounding the mean has lost, sum of squared deviations",
        (0.0, 0.0, 0.0, 0.0),
    ),
}


@cache
def traced(name: str, dtypes: tuple[DType, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Parameters (fields of a, then of b) and results of a merge of elements of these dtypes; all scalars."""
    row = MONOIDS[name]
    parameters = tuple(
        leaf((), dtype, f"{side}_{field.name}")
        for side in "ab"
        for field, dtype in zip(row.fields, dtypes, strict=True)
    )
    return parameters, row.merge(*parameters)


@cache
def merger(name: str, dtypes: tuple[DType, ...]) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]:
    """The merge of tuples of NumPy arrays of flushed values; call it inside ``numerics.basic.exact()``."""
    steps = plan(*traced(name, dtypes))
    return lambda a, b: interpret(steps, (*a, *b))
