"""Builders of nodes: every way to make an expression, with its shape and dtype checked.

A builder must name the argument it refuses; it never touches data, except to fold scalar constants.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.dtypes import DType, bfloat16, bool_, float16, float32, int32, uint32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir.arguments import normalize_axes as normalize_axes
from vkdnn.ir.arguments import normalize_axis as normalize_axis
from vkdnn.ir.dims import Dim, same
from vkdnn.ir.monoids import MONOIDS
from vkdnn.ir.node import MAX_AXES, Node, Shape, Token, const, const_value, make
from vkdnn.ir.ops import OPS
from vkdnn.numerics import basic

_ALLOWED = {"f": "f", "i": "iu", "u": "u", "n": "fiu", "x": "iub", "b": "b", "a": "fiub"}
_RANK = {"b": 0, "i": 1, "u": 1, "f": 2}
_EXPLICIT = {"f": float32, "i": int32, "u": uint32, "b": bool_, "h": float16, "e": bfloat16}


# ---- elementwise


def apply(name: str, *operands: Any) -> Node:
    """The op-table row ``name`` on operands: nodes or Python scalars, broadcast by NumPy's rules.

    On float16 or bfloat16 the row is computed in float32 and its result rounded once. Raises DtypeError for dtypes
    that the row does not take and ShapeError where shapes do not broadcast.
    """
    op = OPS[name]
    if len(operands) != op.arity:
        raise ArgumentError(f"{name}: got {len(operands)} arguments, expected {op.arity}")
    letters, result = op.types[: op.arity], op.types[op.arity + 1]
    nodes: list[Any] = list(operands)
    group: DType = float32
    for letter in dict.fromkeys(letters):
        members = [i for i in range(op.arity) if letters[i] == letter]
        common = _common_dtype(name, letter, [nodes[i] for i in members])
        for i in members:
            nodes[i] = _as_dtype(nodes[i], common)
        if letter != "b" or letters.strip("b") == "":
            group = common
    dtype = group if result == "=" else _EXPLICIT[result]
    if name.startswith(("to_", "bits_")) and nodes[0].dtype is dtype:
        return nodes[0]
    if group.half and "a" not in letters:
        wide = apply(name, *(apply("to_float32", n) if n.dtype.half else n for n in nodes))
        return apply(f"to_{group}", wide) if result == "=" else wide
    shape = broadcast_shapes(name, *(n.shape for n in nodes))
    scalars = [_constant(n) for n in nodes]
    if all(s is not None for s in scalars):
        return broadcast_to(_fold_constants(name, scalars, dtype), shape)
    return make("map", (broadcast_to(n, shape) for n in nodes), (name,), shape, dtype)


def as_node(value: Any, name: str = "value") -> Node:
    """A node of a node or a Python scalar (int32 for ints, float32 for floats)."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (bool, np.bool_)):
        return const(bool(value), bool_)
    if isinstance(value, Dim):
        return size_value(value)
    if isinstance(value, (int, np.integer)):
        return const(int(value), int32 if -(2**31) <= value < 2**31 else uint32)
    if isinstance(value, (float, np.floating)):
        return const(float(value), float32)
    raise ArgumentError(f"{name}: got {type(value).__name__}, expected an array or a Python number")


def _common_dtype(name: str, letter: str, values: list[Any]) -> DType:
    """The dtype that operands of one letter meet in: bool < integer < float; Python numbers adapt.

    Different float dtypes meet in float32.
    """
    given = [v.dtype for v in values if isinstance(v, Node)]
    for value in values:
        if not isinstance(value, Node):
            weak = as_node(value, name).dtype
            if not given or _RANK[weak.category] > max(_RANK[d.category] for d in given):
                given.append(weak)
    common = max(given, key=lambda d: _RANK[d.category])
    if len({d for d in given if d.category == "f"}) > 1:
        common = float32
    if {int32, uint32} <= set(given) and common is not float32:
        raise DtypeError(f"{name}: int32 and uint32 do not mix; convert one with .astype")
    allowed = _ALLOWED[letter]
    if common.category not in allowed:
        if allowed == "f" and common.category != "f":
            return float32  # NumPy's rule: functions of real numbers take integers as floats
        if allowed == "fiu" and common is bool_:
            return int32
        names = ", ".join(d.name for d in dtypes.ALL if d.category in allowed and not d.half)
        raise DtypeError(f"{name}: got {common}, expected {names}")
    return common


def _as_dtype(value: Any, dtype: DType) -> Node:
    return cast(value, dtype) if isinstance(value, Node) else const(value, dtype)


def cast(x: Node, dtype: DType) -> Node:
    """x in another dtype, by the rows to_*."""
    return x if x.dtype is dtype else apply(f"to_{dtype}", x)


def _constant(node: Node) -> Node | None:
    """The scalar that every element of a node is, if that is known."""
    while node.kind in ("reshape", "permute", "broadcast", "slice") and not (node.kind == "reshape" and node.attrs):
        node = node.args[0]
    return node if node.kind == "const" else None


def _fold_constants(name: str, nodes: list[Any], dtype: DType) -> Node:
    from vkdnn.ir.define import evaluate

    with basic.exact():
        value = evaluate(name, *(np.atleast_1d(const_value(n)) for n in nodes))
    return const(np.asarray(value).ravel()[0], dtype)


# ---- views


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    if any(isinstance(n, Dim) for shape in shapes for n in shape):
        return _broadcast_sizes(name, shapes)
    try:
        return np.broadcast_shapes(*shapes)
    except (ValueError, RuntimeError):
        if max(map(len, shapes)) > MAX_AXES:
            raise ShapeError(f"{name}: {max(map(len, shapes))} axes, expected at most {MAX_AXES}") from None
        raise ShapeError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast") from None


def _broadcast_sizes(name: str, shapes: tuple[Shape, ...]) -> Shape:
    """broadcast_shapes() where lengths are symbolic: equal ones have the same expression, and only 1 is repeated."""
    result: list[int] = []
    for axis in range(-max(map(len, shapes)), 0):
        lengths = [shape[axis] for shape in shapes if len(shape) >= -axis]
        known = dict.fromkeys(n for n in lengths if not same(n, 1))
        if len(known) > 1:
            raise ShapeError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast")
        result.append(next(iter(known), 1))
    return tuple(result)


def broadcast_to(x: Node, shape: Shape) -> Node:
    """x with axes of length 1 (and missing leading axes) repeated to ``shape``."""
    if x.shape == shape:
        return x
    if broadcast_shapes("broadcast_to", x.shape, shape) != shape:
        raise ShapeError(f"broadcast_to: an array of shape {x.shape} cannot become {shape}")
    x = reshape(x, (1,) * (len(shape) - x.ndim) + x.shape)
    return x if x.shape == shape else make("broadcast", (x,), (), shape, x.dtype)


def reshape(x: Node, shape: Shape) -> Node:
    """The elements of x in row-major order under another shape; one length may be -1."""
    if shape.count(-1) == 1:
        rest = -math.prod(shape)
        if rest == 0 or x.size % rest:
            raise ShapeError(f"reshape: {x.shape} ({x.size} elements) does not fit {shape}")
        shape = tuple(x.size // rest if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) != x.size:
        raise ShapeError(f"reshape: {x.shape} ({x.size} elements) does not fit {shape}")
    if x.kind == "reshape" and not x.attrs:
        x = x.args[0]
    return x if x.shape == shape else make("reshape", (x,), (), shape, x.dtype)


def alias(x: Node) -> Node:
    """x under an identity of its own: a view that hash-consing keeps apart from x and from every other alias."""
    return make("reshape", (x,), (Token("alias"),), x.shape, x.dtype)


def permute(x: Node, axes: Shape) -> Node:
    """x with its axes reordered: result axis i is axis axes[i] of x."""
    axes = tuple(normalize_axis("permute", a, x.ndim) for a in axes)
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(f"permute: axes {axes} are not the axes of an array of shape {x.shape}")
    if x.kind == "permute":
        return permute(x.args[0], tuple(x.attrs[0][a] for a in axes))
    if axes == tuple(range(x.ndim)):
        return x
    return make("permute", (x,), (axes,), tuple(x.shape[a] for a in axes), x.dtype)


def slice_(x: Node, starts: Shape, lengths: Shape, steps: Shape) -> Node:
    """x[start + step i] along each axis, i below the length; steps may be negative. Bounds are the caller's to keep."""
    if lengths == x.shape and all(same(s, 0) for s in starts) and all(s == 1 for s in steps):
        return x
    return make("slice", (x,), (starts, steps), lengths, x.dtype)


def pad(x: Node, before: Shape, after: Shape) -> Node:
    """Zeros around x."""
    if len(before) != x.ndim or len(after) != x.ndim or any(n < 0 for n in before + after):
        raise ShapeError(f"pad: got {before} and {after}, expected {x.ndim} counts of zero or more each")
    if all(same(n, 0) for n in before + after):
        return x
    shape = tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True))
    return make("pad", (x,), (before,), shape, x.dtype)


# ---- generators, gathers, reductions, products


def iota(shape: Shape, axis: int) -> Node:
    """int32 index along one axis."""
    axis = normalize_axis("iota", axis, len(shape))
    return full(shape, 0, int32) if shape[axis] == 1 else make("iota", (), (axis,), shape, int32)


def size_value(size: int, dtype: DType = int32) -> Node:
    """A symbolic size as a scalar: an element of the numbers below size + 1, so that its index is the value."""
    value = reshape(slice_(iota((size + 1,), 0), (size,), (1,), (1,)), ())
    return cast(value, dtype)


def full(shape: Shape, value: Any, dtype: DType = float32) -> Node:
    return broadcast_to(const(value, dtype), shape)


def _index_dtype(name: str, index: Node) -> None:
    if index.dtype.category not in "iu":
        raise DtypeError(f"{name}: index is {index.dtype}, expected int32 or uint32")


def take(table: Node, index: Node) -> Node:
    """Rows of ``table`` [V, ...] by number: shape index.shape + table.shape[1:]. Indices outside are clamped."""
    _index_dtype("take", index)
    if table.ndim < 1 or (table.shape[0] == 0 and index.size):
        raise ShapeError(f"take: table of shape {table.shape} has no rows to take")
    return make("take", (table, index), (), index.shape + table.shape[1:], table.dtype)


def gather(table: Node, index: Node, axis: int) -> Node:
    """table[..., index, ...] along one axis, index of the result's shape. Indices outside are clamped."""
    _index_dtype("gather", index)
    axis = normalize_axis("gather", axis, table.ndim)
    rest = tuple(n for i, n in enumerate(table.shape) if i != axis)
    if index.ndim != table.ndim or tuple(n for i, n in enumerate(index.shape) if i != axis) != rest:
        raise ShapeError(f"gather: index {index.shape} must equal the array's shape {table.shape} outside axis {axis}")
    if table.shape[axis] == 0 and index.size:
        raise ShapeError(f"gather: axis {axis} of an array of shape {table.shape} is empty")
    return make("gather", (table, index), (axis,), index.shape, table.dtype)


def fold(name: str, x: Node, axes: Shape) -> Node:
    """x folded by a monoid of one field over ``axes``, which keep length 1; see fold_fields()."""
    return fold_fields(name, (x,), axes)[0]


def fold_fields(name: str, fields: tuple[Node, ...], axes: Shape) -> tuple[Node, ...]:
    """Fields of elements folded by a monoid (vkdnn.ir.monoids) in vkdnn's order (lanes of 128, a tree, spans of
    32,768); the axes keep length 1. Storage types are folded in float32 and rounded once.
    """
    x, row = fields[0], MONOIDS[name]
    if any(f.shape != x.shape for f in fields):
        raise ShapeError(f"{name}: fields of shapes {', '.join(str(f.shape) for f in fields)}, expected equal shapes")
    if any(f.dtype.half for f in fields):
        folded = fold_fields(name, tuple(cast(f, float32) if f.dtype.half else f for f in fields), axes)
        return tuple(cast(r, f.dtype) for r, f in zip(folded, fields, strict=True))
    for field, given in zip(row.fields, fields, strict=True):
        if given.dtype.category not in _ALLOWED[field.kind]:
            kinds = "float32, int32 or uint32" if field.kind == "n" else "float32" if field.kind == "f" else "int32"
            raise DtypeError(f"{name} over axes: got {given.dtype}, expected {kinds} (convert with .astype)")
    axes = tuple(sorted({normalize_axis(name, a, x.ndim) for a in axes}))
    shape: Shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if math.prod(x.shape[a] for a in axes) == 0:
        if row.of_none is None and 0 not in shape:
            raise ShapeError(
                f"{name}: no elements along axes {axes} of shape {x.shape}, and {name} has no value for none"
            )
        values = row.of_none or (0,) * len(fields)
        return tuple(full(shape, value, f.dtype) for value, f in zip(values, fields, strict=True))
    if shape == x.shape:
        return fields
    return tuple(make("fold", fields, (name, axes, k), shape, f.dtype) for k, f in enumerate(fields))


def matmul(a: Node, b: Node) -> Node:
    """a [..., M, K] times b [..., K, N] (batches equal) or b [K, N]; float32, storage types rounded once."""
    if a.dtype.half or b.dtype.half:
        product = matmul(*(cast(x, float32) if x.dtype.half else x for x in (a, b)))
        return cast(product, a.dtype if a.dtype is b.dtype else float32)
    if a.dtype is not float32 or b.dtype is not float32:
        raise DtypeError(f"matmul: got {a.dtype} and {b.dtype}, expected float32")
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2] or (b.ndim > 2 and b.shape[:-2] != a.shape[:-2]):
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape} do not fit: expected [..., M, K] and [..., K, N]")
    shape = (*a.shape[:-1], b.shape[-1])
    if a.shape[-1] == 0:
        return full(shape, 0.0)
    return make("matmul", (a, b), (), shape, float32)


def call(family: str, args: tuple[Node, ...], parameters: Any, results: tuple[tuple[Shape, DType], ...]) -> list[Node]:
    """A kernel family with several results; one node for each."""
    node = make("call", args, (family, parameters, results), (), float32)
    return [make("result", (node,), (k,), shape, dtype) for k, (shape, dtype) in enumerate(results)]
