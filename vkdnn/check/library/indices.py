"""Picking by index and putting back."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Array, Input, Operator, index, unique

_X = Input("x", "rows columns")
_ROWS = Input("indices", "picks", index("rows"))
_PLACES = Input("indices", "rows picks", index("columns"))
_ONCE = Input("indices", "rows picks", unique("columns"))
_SIZES = {"rows": 3, "columns": 5, "picks": 4}


def take(x: Array, indices: Array, axis: int | None) -> Array:
    return np.take(x, indices, axis)


def put_along_axis(x: Array, indices: Array, values: Array) -> Array:
    x = x.copy()
    np.put_along_axis(x, indices, values, -1)
    return x


def scatter(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array:
    x = x.copy()
    target = np.moveaxis(x, axis, 0)
    for i, row in enumerate(indices):
        target[row] = np.moveaxis(updates, axis, 0)[i]
    return x


def scatter_add(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array:
    x = x.copy()
    np.add.at(np.moveaxis(x, axis, 0), indices, np.moveaxis(updates, axis, 0))
    return x


def one_hot(indices: Array, n: int) -> Array:
    return np.asarray(indices[..., None] == np.arange(n), np.float64)


def bincount(indices: Array, length: int) -> Array:
    return np.bincount(indices, minlength=length).astype(np.int32)


def _index(x: Any, indices: Any) -> list[Any]:
    return [x[1:, ::-2], x[indices, 1], x[-1]]


ROWS = (
    Operator("take", "indices", (_X, _ROWS), vk.take, take, {**_SIZES, "axis": 0}),
    Operator("take.second", "indices", (_X, Input("indices", "picks", index("columns"))), vk.take, take,
             {**_SIZES, "axis": 1}, forms={"flat": {"axis": None}}),
    Operator("take_along_axis", "indices", (_X, _PLACES), vk.take_along_axis, np.take_along_axis,
             {**_SIZES, "axis": 1}),
    Operator("put_along_axis", "indices", (_X, _ONCE, Input("values", "rows picks")), vk.put_along_axis,
             put_along_axis, {**_SIZES, "picks": 2}),
    Operator("scatter", "indices", (_X, _ROWS, Input("updates", "picks columns")), vk.scatter, scatter, _SIZES),
    Operator("scatter_add", "indices", (_X, _ROWS, Input("updates", "picks columns")), vk.scatter_add, scatter_add,
             _SIZES),
    Operator("scatter_add.second", "indices",
             (_X, Input("indices", "picks", index("columns")), Input("updates", "rows picks")), vk.scatter_add,
             scatter_add, {**_SIZES, "axis": 1}),
    Operator("index", "indices", (_X, _ROWS), lambda x, indices: _index(vk.asarray(x), indices), _index, _SIZES),
    Operator("one_hot", "indices", (Input("indices", "picks", index("n")),), vk.one_hot, one_hot, {"picks": 4, "n": 5},
             gradient=False, halves=False),
    Operator("bincount", "indices", (Input("indices", "picks", index("length")),), vk.bincount, bincount,
             {"picks": 9, "length": 5}, gradient=False, halves=False),
)  # fmt: skip
