"""Diagonals and triangles of matrices: eye, diag, diagonal, trace, tril, triu.

Element (i, j) lies on diagonal j - i: 0 is the main one, positive ones lie above it.
"""

from __future__ import annotations

from typing import Any

from vkdnn import dtypes
from vkdnn.array import Array, asarray
from vkdnn.dtypes import DType
from vkdnn.errors import ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, lengths, normalize_axis
from vkdnn.ir.node import Node, Shape, const
from vkdnn.ops.reduce import sum as sum_
from vkdnn.ops.shape import like, moveaxis


def eye(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: DType | str = "float32") -> Array:
    """[n_rows, n_cols] of zeros, with ones on diagonal k.

    >>> import vkdnn as vk
    >>> vk.eye(2, 3, k=1).numpy().tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    shape = lengths("eye", (n_rows, n_rows if n_cols is None else n_cols))
    kind = dtypes.as_dtype(dtype)
    on = build.apply("equal", _diagonal_number(shape), integer("eye: k", k))
    return Array(build.apply("where", on, const(1, kind), const(0, kind)))


def _diagonal_number(shape: Shape) -> Node:
    """j - i for the last two axes."""
    return build.apply("sub", build.iota(shape, -1), build.iota(shape, -2))


def tril(x: Any, k: int = 0) -> Array:
    """x [..., M, N] with zeros above diagonal k."""
    return _triangle("tril", x, k, lower=True)


def triu(x: Any, k: int = 0) -> Array:
    """x [..., M, N] with zeros below diagonal k."""
    return _triangle("triu", x, k, lower=False)


def _triangle(name: str, x: Any, k: int, lower: bool) -> Array:
    x = asarray(x, name=f"{name}: x")
    if x.ndim < 2:
        raise ShapeError(f"{name}: got an array of shape {x.shape}, expected two axes or more")
    k = integer(f"{name}: k", k)
    number = _diagonal_number(x.shape)
    kept = build.apply("less_equal", number, k) if lower else build.apply("less_equal", k, number)
    return like(x, build.apply("where", kept, x.node, const(0, x.dtype)))


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The elements of a diagonal of the matrices in axes ``axis1`` and ``axis2``, as a new last axis."""
    x = asarray(x, name="diagonal: x")
    if x.ndim < 2:
        raise ShapeError(f"diagonal: got an array of shape {x.shape}, expected two axes or more")
    offset = integer("diagonal: offset", offset)
    a, b = normalize_axis("diagonal: axis1", axis1, x.ndim), normalize_axis("diagonal: axis2", axis2, x.ndim)
    if a == b:
        raise ShapeError(f"diagonal: axis1 and axis2 are both axis {a}, expected two axes")
    x = moveaxis(x, (a, b), (-2, -1))
    *batch, rows, columns = x.shape
    length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    if length == 0 or x.size == 0:
        return like(x, build.full((*batch, length), 0, x.dtype))
    # Consecutive elements of a diagonal lie columns + 1 apart: in rows of that length they are one column.
    start = max(offset, 0) - min(offset, 0) * columns
    flat = x.reshape([*batch, rows * columns])[(..., slice(start, start + length * (columns + 1)))]
    missing = length * (columns + 1) - flat.shape[-1]
    zeros = (0,) * len(batch)
    padded = build.pad(flat.node, (*zeros, 0), (*zeros, missing))
    return like(x, build.reshape(padded, (*batch, length, columns + 1)))[..., 0]


def diag(x: Any, k: int = 0) -> Array:
    """A square matrix with the vector x on diagonal k and zeros elsewhere; of a matrix x its diagonal k.

    >>> import vkdnn as vk
    >>> vk.diag(vk.array([1, 2])).numpy().tolist()
    [[1, 0], [0, 2]]
    """
    x = asarray(x, name="diag: x")
    k = integer("diag: k", k)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag: got an array of shape {x.shape}, expected one or two axes")
    n = x.shape[0] + abs(k)
    zero = const(0, x.dtype)
    if x.size == 0:
        return like(x, build.broadcast_to(zero, (n, n)))
    rows = build.reshape(build.pad(x.node, (max(-k, 0),), (max(k, 0),)), (n, 1))
    on = build.apply("equal", _diagonal_number((n, n)), k)
    return like(x, build.apply("where", on, rows, zero))


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Sum of a diagonal, in the order of vk.sum."""
    return sum_(diagonal(x, offset, axis1, axis2), axis=-1)


__all__ = ["eye", "tril", "triu", "diagonal", "diag", "trace"]
