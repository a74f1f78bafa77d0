"""Functions of the order along an axis: running sums and products, sorting, and scattering by index.

Every order of additions is that of vkdnn.kernels.cumulate and vkdnn.kernels.scatter, whatever the device or the batch;
sorts are stable. For sorting, zeros of both signs are equal and NaN is the largest value.
"""

from __future__ import annotations

import math
from typing import Any

from vkdnn.array import Array, asarray, common_device, zeros
from vkdnn.dtypes import bool_, float32, int32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import integer, normalize_axis
from vkdnn.ir.node import Node, Shape
from vkdnn.kernels import cumulate
from vkdnn.kernels.scatter import put_along_node, scatter_add_node, segments
from vkdnn.kernels.sort import sort_along
from vkdnn.ops.index import index_array, take_along_axis
from vkdnn.ops.shape import flip

# ---- cumulations


def cumsum(x: Any, axis: int | None = None, reverse: bool = False) -> Array:
    """Running sums along an axis (of the flattened array without one), of x's shape; ``reverse`` sums from the end.

    x: any dtype; bool counts as int32, integers wrap, float16 and bfloat16 are cumulated in float32. Blocks of 128
    elements are summed in sequence, the totals of the blocks by the same rule, and each element is (sum of the blocks
    before) + (sum inside its block).
    Gradient: the sum from the other end. Raises ShapeError where there is no such axis.

    >>> import vkdnn as vk
    >>> vk.cumsum(vk.array([1, 2, 3])).numpy()
    array([1, 3, 6], dtype=int32)
    """
    return _cumulated("cumsum", "add", x, axis, reverse)


def cumprod(x: Any, axis: int | None = None, reverse: bool = False) -> Array:
    """Running products, as cumsum() has running sums. The gradient is right where elements are zero."""
    return _cumulated("cumprod", "mul", x, axis, reverse)


def cummax(x: Any, axis: int | None = None, reverse: bool = False) -> Array:
    """Running maxima, as cumsum() has running sums: NaN from the first NaN on, -0 below +0.

    The gradient goes to the element that holds the maximum, the first of equal ones.
    """
    return _cumulated("cummax", "maximum", x, axis, reverse)


def cummin(x: Any, axis: int | None = None, reverse: bool = False) -> Array:
    """Running minima, as cummax() has maxima."""
    return _cumulated("cummin", "minimum", x, axis, reverse)


def linear_recurrence(a: Any, b: Any, axis: int = -1, reverse: bool = False, initial: Any = None) -> Array:
    """s_i = a_i s_(i-1) + b_i along an axis; the core of state-space models (Martin and Cundy 2018).

    a, b: float32, broadcast to the result's shape; ``initial``, the state before the first element, has that shape
    without the axis (default: s_0 = b_0); ``reverse`` runs from the end: s_i = a_i s_(i+1) + b_i. Inside blocks of 128
    elements in sequence, product rounded, then sum; the state before a block comes from the blocks' own recurrences by
    the same rule, so rounding errors of far blocks do not pile up. There, a state of 0 gives 0 even if the product of a
    block's a overflows. Differentiable in all arguments. Raises ShapeError and DtypeError for what does not fit.

    >>> import vkdnn as vk
    >>> vk.linear_recurrence(0.5, vk.array([4.0, 0.0, 1.0])).numpy().tolist()
    [4.0, 2.0, 2.0]
    """
    first = asarray(a, [b, initial], "linear_recurrence: a")
    second = asarray(b, [a, initial], "linear_recurrence: b")
    device = common_device("linear_recurrence", [first, second])
    for argument, given in (("a", first), ("b", second)):
        if given.dtype is not float32:
            raise DtypeError(f"linear_recurrence: {argument}: got {given.dtype}, expected float32 (use .astype)")
    shape = build.broadcast_shapes("linear_recurrence", first.shape, second.shape)
    axis = normalize_axis("linear_recurrence", axis, len(shape))
    factor, term = build.broadcast_to(first.node, shape), build.broadcast_to(second.node, shape)
    if initial is not None:
        state = asarray(initial, [a, b], "linear_recurrence: initial")
        device = common_device("linear_recurrence", [first, second, state])
        without = (*shape[:axis], *shape[axis + 1 :])
        if state.dtype is not float32 or state.shape != without:
            raise ShapeError(
                f"linear_recurrence: initial: got {state.dtype} of shape {state.shape}, expected float32 of shape "
                f"{without}, that of the result without axis {axis}"
            )
        start = build.broadcast_to(build.reshape(state.node, (*shape[:axis], 1, *shape[axis + 1 :])), shape)
        end = shape[axis] - 1 if reverse else 0
        term = build.apply("where", build.apply("equal", build.iota(shape, axis), end), factor * start + term, term)
    if reverse:
        factor, term = (flip(Array(n, device), axis).node for n in (factor, term))
    result = Array(cumulate.recurrence(factor, term, axis), device)
    return flip(result, axis) if reverse else result


def _cumulated(name: str, form: str, x: Any, axis: int | None, reverse: bool) -> Array:
    x = asarray(x, name=f"{name}: x")
    dtype = int32 if x.dtype is bool_ else x.dtype
    x = _wide(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = normalize_axis(name, axis, x.ndim)
    x = flip(x, axis) if reverse else x
    result = Array(cumulate.cumulate(form, x.node, axis), x._device)
    return (flip(result, axis) if reverse else result).astype(dtype)


def _wide(x: Array) -> Array:
    """x in the dtype that it is added in: float32, int32 or uint32."""
    return x.astype(float32) if x.dtype.category == "f" else x.astype(int32) if x.dtype is bool_ else x


# ---- sorting


def sort(x: Any, axis: int = -1, descending: bool = False) -> Array:
    """x in ascending or descending order along an axis, stable: equal values keep their order, so do -0 and +0.

    x: any dtype. NaN is the largest value: last, or first if descending. Gradients go back
    to where the values came from. Raises ShapeError where there is no such axis.

    >>> import vkdnn as vk
    >>> vk.sort(vk.array([3.0, 1.0, 2.0])).numpy().tolist()
    [1.0, 2.0, 3.0]
    """
    x = asarray(x, name="sort: x")
    axis = normalize_axis("sort", axis, x.ndim)
    return take_along_axis(x, _positions(x, axis, x.shape[axis], descending), axis) if x.size else x


def argsort(x: Any, axis: int = -1, descending: bool = False) -> Array:
    """int32 positions along an axis that put x in order, of x's shape; see sort(). Equal values by ascending position.

    >>> import vkdnn as vk
    >>> vk.argsort(vk.array([3, 1, 3]), descending=True).numpy().tolist()
    [0, 2, 1]
    """
    x = asarray(x, name="argsort: x")
    axis = normalize_axis("argsort", axis, x.ndim)
    return _positions(x, axis, x.shape[axis], descending)


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Array, Array]:
    """The k largest values along an axis in descending order, and their int32 positions; of equal ones the first.

    x: any dtype; the axis gets length k. NaN is the largest value. Gradients go to the positions.
    Raises ArgumentError unless k is an int from 0 to the axis' length.

    >>> import vkdnn as vk
    >>> values, indices = vk.top_k(vk.array([1, 2, 5, 4, 5]), 3)
    >>> values.numpy().tolist(), indices.numpy().tolist()
    ([5, 5, 4], [2, 4, 3])
    """
    x = asarray(x, name="top_k: x")
    axis = normalize_axis("top_k", axis, x.ndim)
    expected = f"an int from 0 to {x.shape[axis]}, the length of axis {axis}"
    k = integer("top_k: k", k, expected)
    if not 0 <= k <= x.shape[axis]:
        raise ArgumentError(f"top_k: k: got {k}, expected {expected}")
    indices = _positions(x, axis, k, True)
    if indices.size == 0:
        return Array(build.full(indices.shape, 0, x.dtype), x._device), indices
    return take_along_axis(x, indices, axis), indices


def _positions(x: Array, axis: int, keep: int, descending: bool) -> Array:
    shape = (*x.shape[:axis], keep, *x.shape[axis + 1 :])
    if math.prod(shape) == 0 or x.shape[axis] == 1:
        return Array(build.full(shape, 0, int32), x._device)
    return Array(sort_along(x.node, axis, keep, descending), x._device)


# ---- scattering


def scatter_add(x: Any, indices: Any, updates: Any, axis: int = 0) -> Array:
    """x plus ``updates`` at ``indices`` along an axis: np.add.at(x, indices, updates) as a new array.

    x: any dtype but bool; updates: of x's dtype, broadcast to the shape of vk.take(x, indices, axis). Updates of one
    place are added to x in ascending position, for float16 and bfloat16 in float32 and rounded at the end. Indices as
    in vk.take: lists and NumPy arrays must be inside, Arrays are clamped. Differentiable in x and updates. Raises
    ArgumentError, ShapeError or DtypeError.

    >>> import vkdnn as vk
    >>> vk.scatter_add(vk.zeros(3), [0, 2, 0], vk.array([1.0, 2.0, 3.0])).numpy().tolist()
    [4.0, 0.0, 2.0]
    """
    given = _Scattered("scatter_add", x, indices, updates, axis)
    dtype = given.table.dtype
    if dtype is bool_:
        raise DtypeError("scatter_add: x: got bool, expected a dtype of numbers (convert with .astype)")
    if given.nothing:
        return given.result(given.table)
    table, source = (_wide(Array(n, given.device)).node for n in (given.table, given.source))
    return given.result(scatter_add_node(given.index, source, table.shape, table)).astype(dtype)


def scatter(x: Any, indices: Any, updates: Any, axis: int = 0) -> Array:
    """x with ``updates`` put at ``indices`` along an axis: x[indices] = updates as a new array.

    x: any dtype; updates: of x's dtype, broadcast to the shape of vk.take(x, indices, axis). Of several updates of one
    place the last wins. Indices as in scatter_add(). Differentiable in x and updates: what was overwritten gets 0.

    >>> import vkdnn as vk
    >>> vk.scatter(vk.zeros(3), [0, 2, 0], vk.array([1.0, 2.0, 3.0])).numpy().tolist()
    [3.0, 0.0, 2.0]
    """
    given = _Scattered("scatter", x, indices, updates, axis)
    if given.nothing:
        return given.result(given.table)
    rows, rest = given.table.shape[0], given.table.shape[1:]
    count = given.index.size
    found = segments(build.reshape(given.index, (1, count)), rows, math.prod(rest))
    written, last = found.last()
    chosen = build.take(build.reshape(given.source, (count, *rest)), last)
    written = build.broadcast_to(build.reshape(written, (rows, *(1 for _ in rest))), given.table.shape)
    return given.result(build.apply("where", written, chosen, given.table))


def put_along_axis(x: Any, indices: Any, values: Any, axis: int = -1) -> Array:
    """x with ``values`` put at ``indices`` along an axis, as a new array: the counterpart of vk.take_along_axis.

    x: any dtype; indices has x's axes, its lengths outside of ``axis`` broadcast to x's; values: of x's dtype,
    broadcast to that shape. Of several values of one place the last wins. Indices and gradients as in scatter().

    >>> import vkdnn as vk
    >>> vk.put_along_axis(vk.zeros((2, 3)), [[0], [2]], 1.0).numpy().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    x = asarray(x, [indices, values], "put_along_axis: x")
    axis = normalize_axis("put_along_axis", axis, x.ndim)
    at = index_array("put_along_axis", indices, x.shape[axis], axis, [x, values])
    shape = tuple(at.shape[axis] if a == axis else n for a, n in enumerate(x.shape)) if at.ndim == x.ndim else ()
    if at.ndim != x.ndim or build.broadcast_shapes("put_along_axis", at.shape, shape) != shape:
        raise ShapeError(
            f"put_along_axis: indices: got shape {at.shape}, expected the axes of x, of shape {x.shape}, or of length 1"
        )
    source = _updates("put_along_axis", x, values, shape, "values")
    device = common_device("put_along_axis", [x, at, source])
    return Array(put_along_node(x.node, build.broadcast_to(at.node, shape), source.node, axis), device)


def bincount(indices: Any, length: int) -> Array:
    """How often each number from 0 to length - 1 occurs in ``indices``, int32 [length].

    Indices as in scatter_add(): arrays on a device are clamped. Raises ArgumentError unless length is an int of 0 or
    more (1 or more if there are indices).

    >>> import vkdnn as vk
    >>> vk.bincount([0, 2, 2], 4).numpy().tolist()
    [1, 0, 2, 0]
    """
    length = integer("bincount: length", length, "an int of 0 or more")
    if length < 0:
        raise ArgumentError(f"bincount: length: got {length}, expected an int of 0 or more")
    return scatter_add(zeros(length, int32), index_array("bincount", indices, length, 0, []), 1)


class _Scattered:
    """Checked arguments of a scatter, with the axis first."""

    def __init__(self, name: str, x: Any, indices: Any, updates: Any, axis: int):
        x = asarray(x, [indices, updates], f"{name}: x")
        axis = normalize_axis(name, axis, x.ndim)
        at = index_array(name, indices, x.shape[axis], axis, [x, updates])
        shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
        source = _updates(name, x, updates, shape)
        self.device = common_device(name, [x, at, source])
        self.axis = axis
        self.index = at.node
        self.table = build.permute(x.node, (axis, *(a for a in range(x.ndim) if a != axis)))
        inside = tuple(range(axis, axis + at.ndim))
        self.source = build.permute(source.node, (*inside, *(a for a in range(len(shape)) if a not in inside)))
        self.nothing = source.size == 0

    def result(self, table: Node) -> Array:
        """The table with its axes back in place."""
        order = (*range(1, self.axis + 1), 0, *range(self.axis + 1, table.ndim))
        return Array(build.permute(table, order), self.device)


def _updates(name: str, x: Array, updates: Any, shape: Shape, argument: str = "updates") -> Array:
    if not isinstance(updates, Array):
        updates = asarray(updates, [x], f"{name}: {argument}")
        if (updates.dtype.category in "iu" and x.dtype is not bool_) or updates.dtype.category == x.dtype.category:
            updates = updates.astype(x.dtype)  # host numbers adapt, as in arithmetic
    if updates.dtype is not x.dtype:
        raise DtypeError(f"{name}: {argument}: got {updates.dtype}, expected {x.dtype} as x (convert with .astype)")
    if build.broadcast_shapes(name, updates.shape, shape) != shape:
        raise ShapeError(f"{name}: {argument}: got shape {updates.shape}, expected one that broadcasts to {shape}")
    return Array(build.broadcast_to(updates.node, shape), updates._device)


__all__ = [
    "argsort",
    "bincount",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "linear_recurrence",
    "put_along_axis",
    "scatter",
    "scatter_add",
    "sort",
    "top_k",
]
