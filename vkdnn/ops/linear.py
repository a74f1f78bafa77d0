"""Matrix products by NumPy's rules for ``@``.

Sums run in sequence inside blocks of 128 along k, then over the blocks, for every shape and schedule.
"""

from __future__ import annotations

from typing import Any

from vkdnn.array import Array, asarray, common_device
from vkdnn.errors import ShapeError
from vkdnn.ir import build


def matmul(a: Any, b: Any) -> Array:
    """a [..., M, K] @ b [..., K, N] -> [..., M, N], float32; batches broadcast; a vector is a row or a column.

    >>> import vkdnn as vk
    >>> (vk.array([[1.0, 2.0]]) @ vk.array([[3.0], [4.0]])).item()
    11.0
    """
    a, b = asarray(a, [b]), asarray(b, [a])
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
