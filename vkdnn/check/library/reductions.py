"""Folds along axes: sums, extremes and their positions, moments, norms of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Array, Input, Operator

_X = Input("x", "rows columns")
_APART = Input("x", "rows columns", "distinct")
_FIELDS = {"rows": 3, "columns": 5, "axis": 1, "keepdims": False}
_AXES: dict[str, dict[str, Any]] = {"first": {"axis": 0, "keepdims": True}, "all": {"axis": None}}


def _fold(name: str, golden: Callable[..., Any], x: Input = _X, **settings: Any) -> Operator:
    more = settings.pop("fields", {})
    return Operator(name, "reductions", (x,), getattr(vk, name), golden, {**_FIELDS, **more}, forms=_AXES, **settings)


def _positions(function: Any) -> Callable[..., Array]:
    return lambda x, axis, keepdims: function(x, axis, keepdims=keepdims).astype(np.int32)


def _wrapping(function: Any) -> Callable[..., Array]:
    """Of integers, in 32 bits; bools are counted in int32."""

    def golden(x: Array, axis: Any, keepdims: bool) -> Array:
        return np.asarray(function(x, axis, dtype=np.int32 if x.dtype == bool else x.dtype, keepdims=keepdims))

    return golden


def var(x: Array, axis: Any, keepdims: bool, correction: float) -> Array:
    return np.asarray(x.var(axis, ddof=correction, keepdims=keepdims))


def std(x: Array, axis: Any, keepdims: bool, correction: float) -> Array:
    return np.sqrt(var(x, axis, keepdims, correction))


def moments(x: Array, axis: Any, keepdims: bool, correction: float) -> tuple[Array, Array]:
    return np.asarray(x.mean(axis, keepdims=keepdims)), var(x, axis, keepdims, correction)


def norm(x: Array, ord: float, axis: Any, keepdims: bool) -> Array:
    size = abs(x)
    if math.isinf(ord):
        return np.asarray((size.max if ord > 0 else size.min)(axis, keepdims=keepdims))
    return np.asarray((size**ord).sum(axis, keepdims=keepdims) ** (1 / ord))


def global_norm(*leaves: Array) -> Array:
    return np.asarray(sum((x * x).sum() for x in leaves) ** 0.5)


ROWS = (
    _fold("sum", np.sum),
    _fold("prod", np.prod),
    _fold("mean", np.mean),
    _fold("max", np.max, _APART),
    _fold("min", np.min, _APART),
    # Smooth, though all is tied: what ties share is right only if it adds up.
    Operator("max.tied", "reductions", (_X,), lambda x: vk.max(vk.stack([x, x]), 0), lambda x: x,
             {"rows": 3, "columns": 5}),
    _fold("any", np.any, Input("x", "rows columns", "bools"), gradient=False, halves=False),
    _fold("all", np.all, Input("x", "rows columns", "bools"), gradient=False, halves=False),
    Operator("sum.integers", "reductions", (Input("x", "rows columns", "words"),), vk.sum, _wrapping(np.sum), _FIELDS,
             gradient=False, halves=False),
    Operator("prod.integers", "reductions", (Input("x", "rows columns", "integers"),), vk.prod, _wrapping(np.prod),
             _FIELDS, gradient=False, halves=False),
    Operator("max.integers", "reductions", (Input("x", "rows columns", "integers"),), vk.max, np.max, _FIELDS,
             gradient=False, halves=False),
    Operator("sum.bools", "reductions", (Input("x", "rows columns", "bools"),), vk.sum, _wrapping(np.sum), _FIELDS,
             gradient=False, halves=False),
    Operator("argmax", "reductions", (_X,), vk.argmax, _positions(np.argmax), _FIELDS, gradient=False, forms=_AXES),
    Operator("argmin", "reductions", (_X,), vk.argmin, _positions(np.argmin), _FIELDS, gradient=False, forms=_AXES),
    Operator("argmax.ties", "reductions", (Input("x", "rows columns", "bools"),), vk.argmax, _positions(np.argmax),
             _FIELDS, gradient=False, halves=False),
    _fold("var", var, fields={"correction": 1}),
    _fold("std", std, fields={"correction": 0}),
    _fold("moments", moments, fields={"correction": 0}),
    Operator("norm", "reductions", (_APART,), vk.norm, norm, {**_FIELDS, "ord": 2},
             forms={"ord1": {"ord": 1}, "ord3": {"ord": 3}, "largest": {"ord": math.inf},
                    "smallest": {"ord": -math.inf}, "all": {"axis": None}}),
    Operator("optim.global_norm", "reductions", (_X, Input("y", "columns")),
             lambda *leaves: vk.optim.global_norm(list(leaves)), global_norm, {"rows": 3, "columns": 5}),
    Operator("trace", "reductions", (_X,), vk.trace, np.trace, {"rows": 3, "columns": 5, "offset": 0},
             forms={"above": {"offset": 2}}),
)  # fmt: skip
