"""Views, copies, joining and cutting: the functions are NumPy's, so NumPy is the twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Input, Operator

_X = (Input("x", "rows columns"),)
_PAIR = (Input("x", "rows columns"), Input("y", "rows columns"))
_IMAGE = (Input("x", "rows columns depth"),)
_VECTORS = (Input("x", "rows"), Input("y", "columns"))
_SIZES = {"rows": 3, "columns": 5, "depth": 2}


def _same(name: str, inputs: tuple[Input, ...], golden: Callable[..., Any] | None = None, **options: Any) -> Operator:
    """A function that takes its options by keyword; without a golden, NumPy has one of its name and keywords."""
    forms = options.pop("forms", {})
    names = {size for i in inputs for size in i.dims.split()}
    sizes = {k: v for k, v in _SIZES.items() if k in names}
    return Operator(
        name, "shapes", inputs, getattr(vk, name), golden or getattr(np, name), {**sizes, **options}, forms=forms
    )


def _listed(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Of several arrays, or with several results: lists."""
    return lambda *xs, **options: list(function(*xs, **options))


def _joined(name: str) -> Operator:
    """A function of a list of arrays."""
    return Operator(
        name, "shapes", _PAIR, lambda *xs, axis: getattr(vk, name)(list(xs), axis),
        lambda *xs, axis: getattr(np, name)(xs, axis), {"rows": 3, "columns": 5, "axis": 0},
        forms={"second": {"axis": 1}},
    )  # fmt: skip


ROWS = (
    Operator("reshape", "shapes", _X, lambda x, shape: vk.reshape(x, shape), lambda x, shape: np.reshape(x, shape),
             {"rows": 3, "columns": 5, "shape": (5, -1)}),
    _same("transpose", _IMAGE, axes=(2, 0, 1)),
    _same("swapaxes", _IMAGE, lambda x, axis1, axis2: np.swapaxes(x, axis1, axis2), axis1=0, axis2=2),
    _same("moveaxis", _IMAGE, source=0, destination=2),
    Operator("broadcast_to", "shapes", (Input("x", "rows 1"),), vk.broadcast_to, np.broadcast_to,
             {"rows": 3, "shape": (2, 3, 5)}),
    _same("broadcast_arrays", (Input("x", "rows columns"), Input("y", "columns")), _listed(np.broadcast_arrays)),
    _same("meshgrid", _VECTORS, _listed(np.meshgrid), indexing="xy", forms={"ij": {"indexing": "ij"}}),
    _same("expand_dims", _X, axis=1),
    _same("squeeze", (Input("x", "1 columns"),), axis=0),
    _same("flip", _X, axis=0, forms={"both": {"axis": None}}),
    Operator("tile", "shapes", _X, vk.tile, lambda x, repetitions: np.tile(x, repetitions),
             {"rows": 3, "columns": 5, "repetitions": (2, 3)}),
    _same("repeat", _X, repeats=3, axis=1, forms={"each": {"repeats": (2, 0, 1), "axis": 0}}),
    _same("pad", _X, pad_width=((1, 2), (0, 1)), constant_values=0,
          forms={"ones": {"constant_values": 1.0, "pad_width": 1}}),
    _joined("concatenate"),
    _joined("stack"),
    _same("split", _X, indices_or_sections=(2,), axis=1),
    _same("array_split", _X, indices_or_sections=2, axis=1),
    Operator("unstack", "shapes", _X, vk.unstack, lambda x, axis: tuple(np.moveaxis(x, axis, 0)),
             {"rows": 3, "columns": 5, "axis": 0}),
    _same("roll", _X, shift=2, axis=1, forms={"flat": {"shift": -4, "axis": None}}),
    _same("diagonal", _X, offset=0, forms={"below": {"offset": -1}}),
    Operator("diag", "shapes", (Input("x", "columns"),), vk.diag, np.diag, {"columns": 5, "k": 0},
             forms={"above": {"k": 1}}),
    _same("tril", _X, k=0, forms={"above": {"k": 1}}),
    _same("triu", _X, k=0, forms={"above": {"k": 1}}),
)  # fmt: skip
