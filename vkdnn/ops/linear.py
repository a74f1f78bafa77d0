"""Matrix products by NumPy's rules: matmul (``@``), dot, vdot, outer, tensordot.

Sums run in sequence inside blocks of 128 along k, then over the blocks, for every shape and schedule. Where several
axes are summed over, k is their row-major order in the order in which they are named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vkdnn.array import Array, asarray, common_device
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, normalize_axes, short


def matmul(a: Any, b: Any) -> Array:
    """a [..., M, K] @ b [..., K, N] -> [..., M, N], summed in float32; batches broadcast; a vector is a row or column.

    >>> import vkdnn as vk
    >>> (vk.array([[1.0, 2.0]]) @ vk.array([[3.0], [4.0]])).item()
    11.0
    """
    a, b = asarray(a, [b], "matmul: a"), asarray(b, [a], "matmul: b")
    device = common_device("matmul", [a, b])
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape}: expected at least one axis each; use * for scalars")
    left = build.reshape(a.node, (1, a.shape[0])) if a.ndim == 1 else a.node
    right = build.reshape(b.node, (b.shape[0], 1)) if b.ndim == 1 else b.node
    if left.shape[-1] != right.shape[-2]:
        inner = f"{left.shape[-1]} is not {right.shape[-2]}"
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape} do not fit: {inner}")
    if right.ndim > 2:
        batch = build.broadcast_shapes("matmul", left.shape[:-2], right.shape[:-2])
        left = build.broadcast_to(left, batch + left.shape[-2:])
        right = build.broadcast_to(right, batch + right.shape[-2:])
    node = build.matmul(left, right)
    shape = node.shape
    if a.ndim == 1:
        shape = shape[:-2] + shape[-1:]
    if b.ndim == 1:
        shape = shape[:-1]
    return Array(build.reshape(node, shape), device)


def dot(a: Any, b: Any) -> Array:
    """Sum of products over the last axis of a and the second-to-last of b (the only one of a vector), in float32.

    The other axes of a come first, then those of b, as in NumPy; a scalar multiplies.

    >>> import vkdnn as vk
    >>> vk.dot(vk.array([1.0, 2.0]), vk.array([3.0, 4.0])).item()
    11.0
    """
    a, b = asarray(a, [b], "dot: a"), asarray(b, [a], "dot: b")
    if a.ndim == 0 or b.ndim == 0:
        product: Array = a * b
        return product
    return _contract("dot", a, b, (a.ndim - 1,), (max(b.ndim - 2, 0),))


def vdot(a: Any, b: Any) -> Array:
    """Sum of the products of all elements, both arrays in row-major order, in float32."""
    a, b = asarray(a, [b], "vdot: a"), asarray(b, [a], "vdot: b")
    if a.size != b.size:
        raise ShapeError(f"vdot: shapes {a.shape} and {b.shape} differ in size, expected equally many elements")
    return _contract("vdot", a.reshape(-1), b.reshape(-1), (0,), (0,))


def outer(a: Any, b: Any) -> Array:
    """[a.size, b.size] of products of every element of a with every element of b, in row-major order."""
    a, b = asarray(a, [b], "outer: a"), asarray(b, [a], "outer: b")
    product: Array = a.reshape(-1, 1) * b.reshape(1, -1)
    return product


def tensordot(a: Any, b: Any, axes: int | Sequence[Any] = 2) -> Array:
    """Sum of products over pairs of axes, in float32: the last ``axes`` of a and first of b, or (axes of a, axes of b).

    The other axes of a come first, then those of b. k runs over the axes of a in the order in which they are named.

    >>> import vkdnn as vk
    >>> vk.tensordot(vk.ones((2, 3, 4)), vk.ones((4, 3, 5)), ((1, 2), (1, 0))).shape
    (2, 5)
    """
    a, b = asarray(a, [b], "tensordot: a"), asarray(b, [a], "tensordot: b")
    if isinstance(axes, (list, tuple)):
        if len(axes) != 2 or None in axes:
            raise ArgumentError(f"tensordot: axes is {short(axes)}, expected an int or (axes of a, axes of b)")
        left, right = normalize_axes("tensordot: a", axes[0], a.ndim), normalize_axes("tensordot: b", axes[1], b.ndim)
    else:
        count = integer("tensordot: axes", axes, "an int or (axes of a, axes of b)")
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ShapeError(
                f"tensordot: axes is {count}, expected 0 to {min(a.ndim, b.ndim)} for arrays of shapes {a.shape} "
                f"and {b.shape}"
            )
        left, right = tuple(range(a.ndim - count, a.ndim)), tuple(range(count))
    if len(left) != len(right):
        raise ShapeError(f"tensordot: {len(left)} axes of a and {len(right)} of b, expected equally many")
    return _contract("tensordot", a, b, left, right)


def _contract(name: str, a: Array, b: Array, left: Sequence[int], right: Sequence[int]) -> Array:
    """Sum of products over the axes ``left`` of a and ``right`` of b, in pairs."""
    device = common_device(name, [a, b])
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise ShapeError(
            f"{name}: shapes {a.shape} and {b.shape} do not fit: axes {tuple(left)} have lengths "
            f"{[a.shape[i] for i in left]} and axes {tuple(right)} have {[b.shape[i] for i in right]}"
        )
    free_a = [i for i in range(a.ndim) if i not in left]
    free_b = [i for i in range(b.ndim) if i not in right]
    k = math.prod(a.shape[i] for i in left)
    shape = (*(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b))
    rows, columns = math.prod(a.shape[i] for i in free_a), math.prod(b.shape[i] for i in free_b)
    first = build.reshape(build.permute(a.node, (*free_a, *left)), (rows, k))
    second = build.reshape(build.permute(b.node, (*right, *free_b)), (k, columns))
    return Array(build.reshape(build.matmul(first, second), shape), device)


__all__ = ["matmul", "dot", "vdot", "outer", "tensordot"]
