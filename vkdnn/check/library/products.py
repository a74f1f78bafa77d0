"""Matrix products and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Array, Input, Operator


def _pair(a: str, b: str) -> tuple[Input, Input]:
    return Input("a", a), Input("b", b)


def outer(a: Array, b: Array) -> Array:
    return np.asarray(a.reshape(-1, 1) * b.reshape(1, -1))


def _einsum(name: str, subscripts: str, *operands: str, **sizes: Any) -> Operator:
    """Operands are named a, b, c, ..."""
    inputs = tuple(Input(letter, dims) for letter, dims in zip("abc", operands, strict=False))
    return Operator(
        name, "products", inputs, lambda *xs, subscripts: vk.einsum(subscripts, *xs),
        lambda *xs, subscripts: np.asarray(np.einsum(subscripts, *xs)), {**sizes, "subscripts": subscripts},
    )  # fmt: skip


ROWS = (
    Operator("matmul", "products", _pair("batch m k", "batch k n"), vk.matmul, np.matmul,
             {"batch": 2, "m": 3, "k": 4, "n": 5}, forms={"blocks": {"batch": 1, "m": 1, "k": 131, "n": 2}}),
    Operator("matmul.broadcast", "products", _pair("batch 1 m k", "heads k n"), vk.matmul, np.matmul,
             {"batch": 2, "heads": 3, "m": 3, "k": 4, "n": 2}),
    Operator("matmul.vector", "products", _pair("k", "batch k n"), vk.matmul, np.matmul, {"batch": 2, "k": 4, "n": 3}),
    Operator("dot", "products", _pair("m k", "k n"), vk.dot, np.dot, {"m": 3, "k": 5, "n": 4}),
    Operator("vdot", "products", _pair("m k", "m k"), vk.vdot, np.vdot, {"m": 3, "k": 5}),
    Operator("outer", "products", _pair("m", "n"), vk.outer, outer, {"m": 5, "n": 4}),
    Operator("tensordot", "products", _pair("m k j", "j k n"), vk.tensordot, np.tensordot,
             {"m": 2, "k": 3, "j": 4, "n": 3, "axes": ((2, 1), (0, 1))}, forms={"one": {"axes": 1}}),
    _einsum("einsum", "bij,bj->bi", "batch m k", "batch k", batch=2, m=5, k=3),
    _einsum("einsum.product", "bij,bjk->bik", "batch m k", "batch k n", batch=2, m=3, k=4, n=3),
    _einsum("einsum.three", "ij,jk,kl->il", "m k", "k n", "n j", m=3, k=4, n=2, j=3),
    _einsum("einsum.diagonal", "ii...->...i", "m m n", m=3, n=4),
    _einsum("einsum.ellipsis", "...ij,...j->...", "batch m k", "k", batch=2, m=3, k=4),
)  # fmt: skip
