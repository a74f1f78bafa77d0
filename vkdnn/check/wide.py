"""Expression graphs in float64: the same nodes with real numbers instead of float32, as a measure for both passes.

Constants keep their float32 value and storage types their own; beyond that nothing is rounded to 24 bits, sums have no
order, integers and bools stay what they are. With complex values every function is analytic beside its kinks
(vkdnn.check.wide_rows), so that derivatives may be taken by a complex step. Nothing here may run a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.check import wide_folds
from vkdnn.check.wide_rows import BIT_ROWS, row_function
from vkdnn.dtypes import DType
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir.dims import Dim
from vkdnn.ir.node import IDENTITIES, Node, const_value, toposort
from vkdnn.ir.ops import OPS
from vkdnn.kernels.sort import order_key

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def evaluate(outputs: Sequence[Node], values: Mapping[Node, Any]) -> list[Array]:
    """The values of nodes in float64, or complex128, given values of the nodes they depend on; see Plan.

    Nodes must be taken before their arrays are read: an array that was read is its float32 value, and no expression.

    >>> import numpy as np
    >>> import vkdnn as vk
    >>> x = vk.array([1.0, 2.0])
    >>> evaluate([vk.sum(vk.exp(x)).node], {x.node: np.array([0.0, 1.0])})[0].item()
    3.718281828459045
    """
    return prepare(outputs, list(values))(*values.values())


def analytic(outputs: Sequence[Node]) -> bool:
    """Whether nodes have complex values, and so derivatives by a complex step: whether none asks for a float's bits."""
    return not any(_asks_for_bits(n) for n in _differentiated(outputs, set(), _walk(outputs, set())[1]))


def prepare(outputs: Sequence[Node], inputs: Sequence[Node], at: Sequence[Any] | None = None) -> Plan:
    """A plan that computes ``outputs`` from values of ``inputs``; what does not depend on these is computed now.

    Arrays in memory are constants, as far as they do not depend on the inputs. With ``at``, values of the inputs, what
    stands in stop_gradient keeps its value there: its derivative is that of the reverse pass. Raises ArgumentError for
    rows about bits (bits_int32, bits_uint32, nextafter) of floats that are neither data nor in stop_gradient, where
    they are taken of the nearest float32; for arguments that have no value; and for symbolic sizes.
    """
    if at is None:
        return Plan(outputs, inputs, {})
    stopped = [n for n in _walk(outputs, set(inputs))[0] if _stops(n)]
    return Plan(outputs, inputs, dict(zip(stopped, Plan(stopped, inputs, {})(*at), strict=True)))


class Plan:
    """Steps from values of ``inputs`` to those of ``outputs``; made by prepare().

    Called with an array for each input: float64, complex128 or what becomes float64; integers and bools as their dtype.
    Each has the shape of its node or one axis more in front, of the same length for all that have it: the results then
    have it too, one entry for each. ``after`` is done to every value that depends on the inputs: rounding, for one.
    """

    after: Function | None = None

    def __init__(self, outputs: Sequence[Node], inputs: Sequence[Node], known: Mapping[Node, Array]):
        self.inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        order, keys = _walk(outputs, {*inputs, *known})
        varying = set(inputs)
        for node in order:
            if node not in known and varying.intersection(_arguments(node, keys)):
                varying.add(node)
        constant = {*known, *(n for n in order if n not in varying and n.buffer is not None)}
        bits_of = _data(order, varying, constant), _differentiated(outputs, {*inputs, *known}, keys)
        given = set(inputs)
        order = toposort(outputs, lambda n: n in constant or n in given, partial(_arguments, keys=keys))
        self._slots: list[Any] = [None] * len(order)
        slot = {n: k for k, n in enumerate(order)}
        self._given = [slot.get(n) for n in inputs]
        self._results = [slot[n] for n in outputs]
        self._steps: list[tuple[int, Function, tuple[int, ...]]] = []
        with np.errstate(all="ignore"):
            for node in order:
                if node in given:
                    continue
                if node in constant:
                    self._slots[slot[node]] = known[node] if node in known else _held(node)
                    continue
                function = _function(node, keys, *bits_of)
                at = tuple(slot[a] for a in _arguments(node, keys))
                if node in varying:
                    self._steps.append((slot[node], function, at))
                else:
                    self._slots[slot[node]] = function(*(self._slots[a] for a in at))
        self._done = _last_uses([at for _, _, at in self._steps], self._results)
        read = {a for _, _, at in self._steps for a in at}.union(self._results)
        self._slots = [x if k in read else None for k, x in enumerate(self._slots)]

    def __call__(self, *arrays: Any) -> list[Array]:
        """The values of the outputs. Raises ArgumentError or ShapeError for arrays that are not those of the inputs."""
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"plan: got {len(arrays)} arrays, expected {len(self.inputs)}, one for each input")
        values = list(self._slots)
        copies = 0
        for node, at, array in zip(self.inputs, self._given, arrays, strict=True):
            given = _as_value(node, array)
            if given.ndim > node.ndim:
                copies = _same_count(copies, given.shape[0])
            if at is not None:
                values[at] = given if self.after is None else self.after(given)
        with np.errstate(all="ignore"):
            for (at, function, arguments), done in zip(self._steps, self._done, strict=True):
                result = function(*(values[a] for a in arguments))
                values[at] = result if self.after is None else self.after(result)
                for a in done:
                    values[a] = None
        found = [np.asarray(values[k]) for k in self._results]
        if copies:
            found = [
                np.broadcast_to(x, (copies, *n.shape)) if x.ndim == n.ndim else x
                for x, n in zip(found, self._outputs, strict=True)
            ]
        return found


# ---- graphs


def _arguments(node: Node, keys: Mapping[Node, Node]) -> Iterable[Node]:
    """The nodes on which a value depends; ``keys`` are nodes that are keys of floats to sort by."""
    if node in keys:
        return (keys[node],)
    if node.kind in IDENTITIES or node.kind == "copy":
        return node.args[:1]
    return node.args


def _walk(outputs: Sequence[Node], stops: set[Node]) -> tuple[list[Node], dict[Node, Node]]:
    """All nodes that count, arguments first, and those that are keys to sort floats by, with these floats."""
    keys = {}
    for node in toposort(outputs, stops.__contains__):
        if node.kind == "map" and node.op == "bits_uint32" and node.args[0].dtype.category == "f":
            keys[order_key(node.args[0])] = node.args[0]  # equal expressions are one node
    return toposort(outputs, stops.__contains__, partial(_arguments, keys=keys)), keys


def _stops(node: Node) -> bool:
    return node.kind == "map" and node.op == "stop_gradient"


def _differentiated(outputs: Sequence[Node], stops: set[Node], keys: Mapping[Node, Node]) -> set[Node]:
    """The nodes that reach an output not only through stop_gradient."""
    return set(toposort(outputs, lambda n: n in stops or _stops(n), partial(_arguments, keys=keys)))


def _data(order: Sequence[Node], varying: set[Node], constant: set[Node]) -> set[Node]:
    """The nodes whose values are float32 numbers as they stand: arrays in memory, constants, and views of these."""
    data: set[Node] = set()
    for node in order:
        views = ("gather", "take", "copy", "reshape", "permute", "broadcast", "slice", "pad", *IDENTITIES)
        of_data = node.kind in views and node.args[0] in data
        if node not in varying and (node in constant or node.kind == "const" or of_data):
            data.add(node)
    return data


def _asks_for_bits(node: Node) -> bool:
    return node.kind == "map" and node.op in BIT_ROWS and node.args[0].dtype.category == "f"


def _held(node: Node) -> Array:
    """The value of a node in memory."""
    elements = dtypes.memory(node.buffer.read(), node.dtype)[: node.size]
    return _wide(dtypes.load(elements, node.dtype).reshape(node.shape), node.dtype)


def _wide(values: Any, dtype: DType) -> Array:
    return np.asarray(values).astype(np.float64 if dtype.category == "f" else dtype.numpy)


def _as_value(node: Node, array: Any) -> Array:
    """What a caller gives for a node."""
    given = np.asarray(array)
    if given.shape != node.shape and given.shape[1:] != node.shape:
        raise ShapeError(f"plan: got an array of shape {given.shape} for {node!r}, expected {node.shape} or (n, those)")
    if node.dtype.category == "f":
        return given.astype(np.complex128 if given.dtype.kind == "c" else np.float64, copy=False)
    if given.dtype.kind not in "iub":
        raise ArgumentError(f"plan: got {given.dtype} for {node!r}, expected {node.dtype}")
    return given.astype(node.dtype.numpy, copy=False)


def _same_count(before: int, now: int) -> int:
    if before not in (0, now):
        raise ShapeError(f"plan: got {before} and {now} copies of arrays, expected as many of each")
    return now


def _last_uses(uses: Sequence[tuple[int, ...]], kept: Sequence[int]) -> list[tuple[int, ...]]:
    """Of each step, the slots that no later one reads and that are not ``kept``."""
    last = {a: k for k, arguments in enumerate(uses) for a in arguments}
    return [tuple({a for a in uses[k] if last[a] == k and a not in kept}) for k in range(len(uses))]


# ---- one node


def _function(node: Node, keys: Mapping[Node, Node], data: set[Node], differentiated: set[Node]) -> Function:
    """The function of the values of _arguments()."""
    if any(isinstance(n, Dim) for n in node.shape):
        raise ArgumentError(f"float64: {node!r} has symbolic sizes, expected plain ones; trace the function with these")
    if node in keys:
        return float_key
    if node.kind == "map":
        if _asks_for_bits(node):
            if node in differentiated and not data.issuperset(node.args):
                raise ArgumentError(
                    f"float64: {node.op} of a computed float32 has no meaning for real numbers; put it on integers, on "
                    "data or in stop_gradient"
                )
            return _of_bits(node)
        return row_function(node)
    if node.kind == "leaf":
        raise ArgumentError(f"float64: {node!r} has no value; give one for it")
    return _KINDS[node.kind](node)


def _of_bits(node: Node) -> Function:
    """A row about bits, of the float32 nearest to its arguments."""
    row = OPS[node.op].numpy
    assert row is not None
    result = _wide if node.dtype.category == "f" else lambda x, _: x
    return lambda *xs: result(row(*(np.real(x).astype(np.float32) for x in xs)), node.dtype)


def float_key(x: Any) -> Array:
    """uint64 keys that ascend with real parts: zeros of both signs are equal, NaN is the largest."""
    real = np.ascontiguousarray(np.real(x), np.float64) + 0.0
    bits = real.view(np.uint64).reshape(real.shape)
    top = np.uint64(2**63)
    key = np.where(bits >= top, ~bits, bits | top)
    return np.where(np.isnan(real), np.uint64(2**64 - 1), key).reshape(np.shape(x))


def _const(node: Node) -> Function:
    return lambda: _wide(const_value(node), node.dtype)


def _iota(node: Node) -> Function:
    (axis,) = node.attrs
    line = np.arange(node.shape[axis], dtype=np.int32).reshape([-1 if a == axis else 1 for a in range(node.ndim)])
    return lambda: np.broadcast_to(line, node.shape)


def _front(x: Any, of: Node) -> tuple[int, ...]:
    """The axis of copies of a node's value, if it has one."""
    return tuple(x.shape[: x.ndim - of.ndim])


def _reshape(node: Node) -> Function:
    (source,) = node.args
    return lambda x: np.reshape(x, (*_front(x, source), *node.shape))


def _permute(node: Node) -> Function:
    (axes,) = node.attrs
    back = tuple(a - node.ndim for a in axes)
    return lambda x: x.transpose(*range(x.ndim - node.ndim), *(a + x.ndim for a in back))


def _broadcast(node: Node) -> Function:
    return lambda x: np.broadcast_to(x, (*_front(x, node), *node.shape))


def _slice(node: Node) -> Function:
    index: list[Any] = [...]
    for start, step, length in zip(*node.attrs, node.shape, strict=True):
        stop = start + step * length
        index.append(slice(start, stop if stop >= 0 else None, step) if length else slice(0, 0))
    return lambda x: x[tuple(index)]


def _pad(node: Node) -> Function:
    (before,) = node.attrs
    inside: tuple[Any, ...] = (..., *(slice(b, b + n) for b, n in zip(before, node.args[0].shape, strict=True)))

    def padded(x: Array) -> Array:
        out = np.zeros((*_front(x, node), *node.shape), x.dtype)
        out[inside] = x
        return out

    return padded


def _clamped(index: Any, count: int) -> Array:
    return np.clip(np.asarray(index).astype(np.int64), 0, max(0, count - 1))


def _gather(node: Node) -> Function:
    (axis,) = node.attrs
    count = node.args[0].shape[axis]

    def gathered(table: Array, index: Array) -> Array:
        if not node.size:
            return np.zeros((*(_front(table, node) or _front(index, node)), *node.shape), table.dtype)
        if table.ndim != index.ndim:
            table, index = (x if x.ndim > node.ndim else x[None] for x in (table, index))
        return np.take_along_axis(table, _clamped(index, count), axis - node.ndim)

    return gathered


def _take(node: Node) -> Function:
    table_node, index_node = node.args

    def taken(table: Array, index: Array) -> Array:
        at = _clamped(index, table_node.shape[0])
        if not node.size:
            return np.zeros((*(_front(table, table_node) or _front(index, index_node)), *node.shape), table.dtype)
        if table.ndim == table_node.ndim:
            return table[at]
        if index.ndim == index_node.ndim:
            return np.take(table, at, axis=1)
        return np.stack([t[i] for t, i in zip(table, at, strict=True)])

    return taken


def _fold(node: Node) -> Function:
    name, axes, k = node.attrs
    back = tuple(a - node.ndim for a in axes)
    return partial(wide_folds.FOLDS[name], back, k)


def _matmul(node: Node) -> Function:
    a_node, b_node = node.args

    def product(a: Array, b: Array) -> Array:
        if b.ndim > b_node.ndim and b_node.ndim < a_node.ndim:  # copies of a plain matrix
            b = b.reshape(b.shape[0], *(1,) * (a_node.ndim - 2), *b.shape[1:])
        return np.matmul(a, b)

    return product


def _call(node: Node) -> Function:
    from vkdnn.check.wide_calls import FAMILIES

    family = node.attrs[0]
    if family not in FAMILIES:
        raise ArgumentError(
            f"float64: the kernel family {family} has no meaning here; add it to vkdnn.check.wide_calls"
        )
    function = FAMILIES[family](node, prepare)

    def called(*args: Array) -> tuple[Array, ...]:
        copied = [x.ndim > a.ndim for x, a in zip(args, node.args, strict=True)]
        if not any(copied):
            return function(*args)
        count = args[copied.index(True)].shape[0]
        parts = [function(*(x[n] if c else x for x, c in zip(args, copied, strict=True))) for n in range(count)]
        return tuple(np.stack(p) for p in zip(*parts, strict=True))

    return called


def _result(node: Node) -> Function:
    (k,) = node.attrs
    return lambda results: results[k]


def _same(node: Node) -> Function:
    return lambda x: x


_KINDS: dict[str, Callable[[Node], Function]] = {
    "const": _const, "iota": _iota, "reshape": _reshape, "permute": _permute, "broadcast": _broadcast, "slice": _slice,
    "pad": _pad, "gather": _gather, "take": _take, "fold": _fold, "matmul": _matmul, "call": _call, "result": _result,
    "after": _same, "kept": _same, "flush": _same, "copy": _same,
}  # fmt: skip
