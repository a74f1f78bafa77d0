"""Running folds, recurrences and sorts along an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Array, Input, Operator, Rng

_APART = Input("x", "rows columns", "distinct")
_SIZES = {"rows": 3, "columns": 5}


def few_values(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    """Integers among which there are ties."""
    return rng.integers(-2, 3, shape, dtype=np.int32)


def running(function: Any) -> Callable[..., Array]:
    def golden(x: Array, axis: int | None, reverse: bool) -> Array:
        if axis is None:
            x, axis = x.ravel(), 0
        x = np.flip(x, axis) if reverse else x
        result = function(x, axis=axis, dtype=x.dtype)
        return np.asarray(np.flip(result, axis) if reverse else result)

    return golden


def recurrence(a: Array, b: Array, initial: Array, axis: int, reverse: bool) -> Array:
    """s_i = a_i s_(i-1) + b_i; initial is without the axis."""
    a, b = (np.moveaxis(x, axis, 0) for x in (a, b))
    a, b = (x[::-1] if reverse else x for x in (a, b))
    state, found = initial, []
    for factor, term in zip(a, b, strict=True):
        state = factor * state + term
        found.append(state)
    return np.moveaxis(np.array(found[::-1] if reverse else found), 0, axis)


def sort(x: Array, axis: int = -1, descending: bool = False) -> Array:
    return np.take_along_axis(x, argsort(x, axis, descending), axis)


def argsort(x: Array, axis: int = -1, descending: bool = False) -> Array:
    """Stable; descending too."""
    if not descending:
        return np.argsort(x, axis, kind="stable").astype(np.int32)
    backwards = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return (x.shape[axis] - 1 - backwards).astype(np.int32)


def top_k(x: Array, k: int, axis: int = -1) -> tuple[Array, Array]:
    at = np.take(argsort(x, axis, True), range(k), axis)
    return np.take_along_axis(x, at, axis), at


def _cumulation(name: str, function: Any, x: Input) -> Operator:
    return Operator(
        name, "orders", (x,), getattr(vk, name), running(function), {**_SIZES, "axis": 1, "reverse": False},
        forms={"reverse": {"reverse": True, "axis": 0}} | ({"flat": {"axis": None}} if name == "cumsum" else {}),
    )  # fmt: skip


def _integers(name: str, golden: Any, **fields: Any) -> Operator:
    return Operator(
        name, "orders", (Input("x", "rows columns", few_values),), getattr(vk, name.split(".")[0]), golden,
        {**_SIZES, **fields}, gradient=False, halves=False,
    )  # fmt: skip


_DESCENDING: dict[str, dict[str, Any]] = {"descending": {"descending": True}, "first": {"axis": 0}}

ROWS = (
    _cumulation("cumsum", np.add.accumulate, Input("x", "rows columns")),
    _cumulation("cumprod", np.multiply.accumulate, Input("x", "rows columns")),
    _cumulation("cummax", np.maximum.accumulate, _APART),
    _cumulation("cummin", np.minimum.accumulate, _APART),
    _integers("cumsum.integers", running(np.add.accumulate), axis=1, reverse=False),
    Operator("linear_recurrence", "orders",
             (Input("a", "rows columns"), Input("b", "rows columns"), Input("initial", "rows")),
             lambda a, b, initial, axis, reverse: vk.linear_recurrence(a, b, axis, reverse, initial), recurrence,
             {**_SIZES, "axis": 1, "reverse": False}, halves=False, forms={"reverse": {"reverse": True}}),
    Operator("sort", "orders", (_APART,), vk.sort, sort, {**_SIZES, "axis": -1, "descending": False},
             forms=_DESCENDING),
    Operator("argsort", "orders", (_APART,), vk.argsort, argsort, {**_SIZES, "axis": -1, "descending": False},
             gradient=False, forms=_DESCENDING),
    _integers("argsort.ties", argsort, axis=-1, descending=True),
    Operator("top_k", "orders", (_APART,), vk.top_k, top_k, {**_SIZES, "k": 3, "axis": -1}),
    _integers("top_k.ties", top_k, k=4, axis=-1),
)  # fmt: skip
