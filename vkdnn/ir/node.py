"""The expression graph: immutable, typed, hash-consed nodes. Building the same expression twice gives the same node.

A node must never hold data or know a device; the kinds below are all there are.

kind        args            attrs                         meaning
----------  --------------  ----------------------------  ------------------------------------------------------
const       -               (bits,)                       a scalar, by its 32 bits
leaf        -               (token,)                      data that exists: a buffer, or an argument of a Program
iota        -               (axis,)                       int32 index along an axis
map         1 to 4          (op name,)                    a row of the op table, on equal shapes
reshape     1               () or (token,)                same elements in row-major order; a token keeps it apart
permute     1               (axes,)                       axes reordered
broadcast   1               -                             axes of length 1 repeated
slice       1               (starts, steps)               shape says how many
pad         1               (before,)                     zeros around (the zero of the dtype; +0.0)
gather      table, index    (axis,)                       table[..., index, ...]; index has the result's shape
take        table, index    -                             table[index]: rows by number; shape index + row
fold        fields          (monoid, axes, k)             reduction in vkdnn's order; folded axes keep length 1; the
                                                          k-th field of the result
matmul      a, b            -                             [..., M, K] x [..., K, N]; b may be a plain [K, N]
call        any             (family, parameters)          a kernel family with several results (scans, scatter)
result      call            (k,)                          the k-th result of a call
after       x, others       () or (token,)                x; what reads it runs after the others exist
kept        1               (segment,)                    x, which differentiation computes again
flush       1               -                             x; the submission ends with the kernel that computes it
copy        1               (place,)                      x in memory of its own: of the "device" or the "host"
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.dtypes import DType
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir.dims import Dim

MAX_ELEMENTS = 2**31 - 1  # kernels count elements in int32
MAX_AXES = 32  # what NumPy 1.26 has
IDENTITIES = frozenset({"after", "kept", "flush"})  # their first argument, under conditions: see vkdnn.ir.memory
VIEWS = frozenset({"reshape", "permute", "broadcast", "slice", "pad"}) | IDENTITIES
Shape = tuple[int, ...]


class Operators:
    """Python's operators, by NumPy's rules, in terms of ``_map(op name, operands)``."""

    __slots__ = ()
    __array_priority__ = 1000  # so that NumPy arrays on the left let these operators act
    __hash__ = object.__hash__

    def _map(self, op: str, *operands: Any) -> Any:
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return self._map("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._map("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._map("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._map("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._map("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._map("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._map("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._map("div", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._map("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._map("remainder", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._map("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._map("floor_divide", other, self)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __pow__(self, exponent: Any) -> Any:
        """Python integers from 1 to 8 by squaring, 0.5 by the square root, all else by the rows of powers."""
        if isinstance(exponent, (int, np.integer)) and 0 < exponent <= 8:
            half = self ** (int(exponent) // 2) if exponent > 1 else self
            if exponent == 1:
                return self
            return half * half * self if exponent % 2 else half * half
        if isinstance(exponent, float) and exponent == 0.5:
            return self._map("sqrt", self)
        row = _power_row(self, exponent)
        if row == "integer_power" and isinstance(exponent, (int, np.integer)) and exponent < 0:
            raise ArgumentError(f"**: got exponent {exponent} of integers, expected 0 or more (or .astype('float32'))")
        return self._map(row, self, exponent)

    def __rpow__(self, base: Any) -> Any:
        return self._map(_power_row(self, base), base, self)

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return self._map("neg", self)

    def __abs__(self) -> Any:
        return self._map("abs", self)

    def __invert__(self) -> Any:
        return self._map("bitwise_not", self)

    def __and__(self, other: Any) -> Any:
        return self._map("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return self._map("bitwise_and", other, self)

    def __or__(self, other: Any) -> Any:
        return self._map("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return self._map("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return self._map("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return self._map("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return self._map("left_shift", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return self._map("left_shift", other, self)

    def __rshift__(self, other: Any) -> Any:
        return self._map("right_shift", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return self._map("right_shift", other, self)

    def __lt__(self, other: Any) -> Any:
        return self._map("less", self, other)

    def __le__(self, other: Any) -> Any:
        return self._map("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._map("less", other, self)

    def __ge__(self, other: Any) -> Any:
        return self._map("less_equal", other, self)

    def __eq__(self, other: Any) -> Any:
        return self._map("equal", self, other)

    def __ne__(self, other: Any) -> Any:
        return self._map("not_equal", self, other)


def _power_row(*operands: Any) -> str:
    """The row of a power: that of integers if none of the operands is a float."""
    kinds = [getattr(o, "dtype", None) or np.asarray(o).dtype for o in operands]
    floating = any(k.category == "f" if isinstance(k, DType) else k.kind not in "iub" for k in kinds)
    return "pow" if floating else "integer_power"


class Node(Operators):
    """One node of the graph. Nodes are equal when they are the same object; ``==`` builds a comparison."""

    __slots__ = ("__weakref__", "args", "attrs", "buffer", "dtype", "kind", "shape")

    kind: str
    args: tuple[Node, ...]
    attrs: tuple[Any, ...]
    shape: Shape
    dtype: DType
    buffer: Any  # set by the array layer once the node's value exists on a device; no part of its identity

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def words(self) -> int:
        """Words of 32 bits that the value takes in memory."""
        return self.dtype.words(self.size)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def op(self) -> str:
        """The op-table row of a map, the monoid of a fold."""
        return str(self.attrs[0])

    def _map(self, op: str, *operands: Any) -> Node:
        from vkdnn.ir.build import apply  # the builder checks types by the op table, which needs Node

        return apply(op, *operands)

    def __bool__(self) -> bool:
        raise TypeError("a symbolic expression has no truth value: use where(condition, a, b)")

    def __repr__(self) -> str:
        what = f"{self.kind} {' '.join(map(str, self.attrs))}".strip()
        return f"<{what}: {self.dtype}{list(self.shape)}>"


_interned: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()


def make(kind: str, args: Iterable[Node], attrs: tuple[Any, ...], shape: Shape, dtype: DType) -> Node:
    """The node of these parts: the one that exists already, or a new one."""
    args = tuple(args)
    key = (kind, tuple(map(id, args)), attrs, shape, dtype.name)
    node = _interned.get(key)
    if node is None:
        node = _interned.setdefault(key, _new(kind, args, attrs, shape, dtype))
    return node


_expressions = threading.local()


@contextmanager
def never_arrays() -> Iterator[None]:
    """Within, nodes may have more than MAX_ELEMENTS: expressions over pairs that no kernel stores."""
    before = getattr(_expressions, "free", False)
    _expressions.free = True
    try:
        yield
    finally:
        _expressions.free = before


def _new(kind: str, args: tuple[Node, ...], attrs: tuple[Any, ...], shape: Shape, dtype: DType) -> Node:
    if (size := math.prod(shape)) > MAX_ELEMENTS and not getattr(_expressions, "free", False):
        raise ShapeError(f"{kind}: {size} elements of shape {shape}, expected at most {MAX_ELEMENTS}; split the array")
    if len(shape) > MAX_AXES:
        raise ShapeError(f"{kind}: {len(shape)} axes, expected at most {MAX_AXES}; reshape the array")
    node = Node.__new__(Node)
    node.kind, node.args, node.attrs, node.shape, node.dtype = kind, args, attrs, shape, dtype
    node.buffer = None
    return node


class Token:
    """Identity of a leaf; two leaves are the same only if they share their token."""

    __slots__ = ("__weakref__", "note")

    def __init__(self, note: str = ""):
        self.note = note

    def __repr__(self) -> str:
        return self.note or "data"


def leaf(shape: Shape, dtype: DType, note: str = "") -> Node:
    """A node for data that is not an expression."""
    return _new("leaf", (), (Token(note),), shape, dtype)  # its token is its own: no other node can be equal


def const(value: float | int | bool, dtype: DType) -> Node:
    """A scalar constant, kept by its bits (so that NaNs, zeros of both signs and close floats stay apart).

    float16 and bfloat16 constants are kept by the float32 bits of their rounded value.
    """
    if isinstance(value, Dim):
        from vkdnn.ir.build import size_value

        return size_value(value, dtype)
    fits = dtype.category not in "iu" or (math.isfinite(value) and int(value) == value and _fits(int(value), dtype))
    if not fits:
        raise DtypeError(f"constant: {value!r} is not a value of {dtype}")
    bits = dtypes.constant_bits(value, dtype)
    if dtype.category == "f" and bits & 0x7F800000 == 0:
        bits &= 0x80000000  # the contract knows no subnormals
    if dtype.category == "f" and bits & 0x7FFFFFFF > 0x7F800000:
        bits = 0x7FC00000  # nor NaNs of several kinds
    return make("const", (), (bits,), (), dtype)


def _fits(value: int, dtype: DType) -> bool:
    info = np.iinfo(dtype.numpy)
    return bool(info.min <= value <= info.max)


def const_value(node: Node) -> Any:
    """The NumPy scalar of a const node."""
    return dtypes.constant_value(node.attrs[0], node.dtype)


def _arguments(node: Node) -> Iterable[Node]:
    return node.args


def toposort(
    roots: Iterable[Node],
    stop: Callable[[Node], bool] = lambda _: False,
    arguments: Callable[[Node], Iterable[Node]] = _arguments,
) -> list[Node]:
    """All nodes below ``roots``, arguments first, in an order fixed by the graph; not entered below ``stop``."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, Iterator[Node]]] = []

    def enter(node: Node) -> None:
        if node not in seen:
            seen.add(node)
            stack.append((node, iter(() if stop(node) else arguments(node))))

    for root in roots:
        enter(root)
        while stack:
            node, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                order.append(node)
                stack.pop()
            else:
                enter(child)
    return order
