"""Softmax and norms."""

from __future__ import annotations

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Array, Input, Operator


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


_X = Input("x", "rows columns")
_SIZES = {"rows": 3, "columns": 5}

ROWS = (Operator("softmax", "norms", (_X,), vk.softmax, softmax, {**_SIZES, "axis": -1}),)
