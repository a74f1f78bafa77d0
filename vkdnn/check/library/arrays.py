"""Arrays from numbers and from other arrays, conversions, and elementwise functions that are no row by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Array, Input, Operator
from vkdnn.ops import elementwise

_X = (Input("x", "n"),)
_PAIR = (Input("a", "n"), Input("b", "n"))
_ANY = (Input("x", "rows columns"),)
_SIZES = {"rows": 3, "columns": 5}


def power(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.power(x, y)


def powers(x: Any) -> list[Any]:
    """Exponents that are numbers: products, roots, the row pow."""
    return [x**2, x**5, x**8, x**0.5, x**-1, x**1.7]


def divmod_(a: Array, b: Array) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        return np.floor_divide(a, b), np.remainder(a, b)


def astype(x: Array, to: str) -> Array:
    """Floats are truncated, and are inside int32 here."""
    return np.asarray(x != 0) if to == "bool" else x.astype(to)


def _astype(x: Any, to: str) -> Any:
    return elementwise.astype(x, to)


def _constant(name: str, run: Any, golden: Any, **fields: Any) -> Operator:
    """A function without arrays: the fields are its arguments."""
    return Operator(name, "arrays", (), run, golden, fields, gradient=False, halves=False)


def _like(name: str, golden: Any, **fields: Any) -> Operator:
    return Operator(name, "arrays", _ANY, getattr(vk, name), golden, {**_SIZES, **fields}, gradient=False)


ROWS = (
    Operator("greater", "arrays", _PAIR, elementwise.greater, np.greater, {"n": 7}, gradient=False),
    Operator("greater_equal", "arrays", _PAIR, elementwise.greater_equal, np.greater_equal, {"n": 7}, gradient=False),
    Operator("power", "arrays", (Input("x", "n", "positive"), Input("y", "n")), elementwise.power, power, {"n": 7}),
    Operator("power.numbers", "arrays", (Input("x", "n", "positive"),), lambda x: powers(vk.asarray(x)), powers,
             {"n": 5}),
    Operator("astype", "arrays", (Input("x", "n", "distinct"),), _astype, astype,
             {"n": 7, "to": "float32"}),
    Operator("astype.numbers", "arrays", (Input("x", "n", "integers"),), _astype, astype,
             {"n": 7, "to": "float32"}, gradient=False, halves=False,
             forms={"bool": {"to": "bool"}, "uint32": {"to": "uint32"}}),
    Operator("divmod", "arrays", (Input("a", "n", "distinct"), Input("b", "n", "distinct")), elementwise.divmod,
             divmod_, {"n": 7}),
    Operator("divmod.integers", "arrays", (Input("a", "n", "integers"), Input("b", "n", "integers")),
             elementwise.divmod, divmod_, {"n": 7}, gradient=False, halves=False),
    _like("zeros_like", np.zeros_like),
    _like("ones_like", np.ones_like),
    _like("full_like", np.full_like, fill_value=2.5),
    _constant("zeros", vk.zeros, np.zeros, shape=(2, 3)),
    _constant("ones", vk.ones, np.ones, shape=(2, 3)),
    _constant("full", vk.full, np.full, shape=(2, 3), fill_value=0.1),
    _constant("eye", vk.eye, lambda n_rows, n_cols, k: np.eye(n_rows, n_cols, k), n_rows=3, n_cols=5, k=1),
    _constant("arange", vk.arange, lambda start, stop, step: np.arange(start, stop, step).astype(np.int32),
              start=-3, stop=9, step=2),
    _constant("arange.floats", vk.arange, np.arange, start=-1.0, stop=2.0, step=0.3),
    _constant("linspace", vk.linspace, np.linspace, start=-1.0, stop=2.5, num=7, endpoint=True),
)  # fmt: skip
