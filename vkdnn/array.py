"""Array: a lazy array. It holds an expression until its value is asked for; then one Program computes it.

An Array never changes its value; only donation to a jitted function ends its life.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkdnn import dtypes, tracing
from vkdnn.device import Device, Storage, Words, current_device
from vkdnn.device import device as find_device
from vkdnn.dtypes import DType
from vkdnn.errors import ArgumentError, DeviceError, DtypeError, ShapeError, VkdnnError
from vkdnn.ir import build
from vkdnn.ir.arguments import integers, lengths, normalize_axes, number, short
from vkdnn.ir.dims import Dim
from vkdnn.ir.node import Node, Operators, Shape, leaf, toposort
from vkdnn.numerics import basic
from vkdnn.numerics.flush import flush
from vkdnn.program import Program

_NUMPY_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "rint": "round",
                "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift"}  # fmt: skip
"""NumPy's functions that have another name here."""


class Array(Operators):
    """An array of float32, int32, uint32, bool, float16 or bfloat16 on a device, or an expression that will be one."""

    __slots__ = ("_device", "node")

    def __init__(self, node: Node, device: Device | None = None):
        self.node = node
        self._device = device  # None until known: an expression of constants, or inside a traced function

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return self.node.ndim

    @property
    def size(self) -> int:
        return self.node.size

    @property
    def device(self) -> Device:
        """Where the array lives, or will live."""
        return self._device or current_device()

    @property
    def T(self) -> Array:
        """All axes reversed."""
        return self.transpose()

    # ---- values

    def numpy(self) -> npt.NDArray[Any]:
        """The values as a NumPy array; computes them if need be.

        Inside a differentiated function that array is a constant: no gradient flows through it.
        """
        realize([self])
        array = dtypes.from_words(self.storage().read(), self.dtype, self.shape)
        return array.copy() if array.base is not None else array

    def item(self) -> float | int | bool:
        """The value of an array of one element, as a Python number."""
        if self.size != 1:
            raise ShapeError(
                f"item: the array has shape {self.shape}, expected one element; as a condition use vk.any or vk.all, "
                "as a list .tolist()"
            )
        value: float | int | bool = self.numpy().reshape(()).item()
        return value

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def storage(self) -> Storage:
        """The storage of a computed array."""
        buffer = self.node.buffer
        assert buffer is not None
        return buffer

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ArgumentError("asarray: copy is False, but values on a device come to NumPy as a copy; leave it out")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Array:
        """NumPy's functions of an Array are vkdnn's of the same name: NumPy's own would give other bits."""
        from vkdnn.ops import elementwise, linear

        name = _NUMPY_NAMES.get(ufunc.__name__, ufunc.__name__)
        module: Any = linear if name == "matmul" else elementwise
        if method != "__call__" or options or name not in module.__all__:
            what = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise ArgumentError(
                f"np.{what}: has no counterpart for arrays of vkdnn; use functions of vk, or x.numpy() for NumPy's"
            )
        result: Array = getattr(module, name)(*inputs)
        return result

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if _is_traced(self.node):
            raise ArgumentError(
                "a traced array has no truth value: inside vk.jit the value is not known yet; use vk.where"
            )
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len: the array has no axes")
        if isinstance(self.shape[0], Dim):
            raise ShapeError(
                f"len: axis 0 is the symbolic size {self.shape[0]}, of which Python's len() makes one number; use "
                "x.shape[0]"
            )
        return self.shape[0]

    def __str__(self) -> str:
        return f"<traced {self.dtype}{list(self.shape)}>" if _is_traced(self.node) else str(self._printed())

    def __repr__(self) -> str:
        if _is_traced(self.node):
            return f"vk.Array({self})"
        return f"vk.{self._printed()!r}".replace("dtype=float32", f"dtype={self.dtype}")

    def _printed(self) -> npt.NDArray[Any]:
        """The values as they are shown: bfloat16 like the float32 numbers that they are."""
        return self.numpy().astype(np.float32) if self.dtype is dtypes.bfloat16 else self.numpy()

    # ---- expressions

    def _map(self, op: str, *operands: Any) -> Array:
        arrays = [o for o in operands if isinstance(o, Array)]
        device = common_device(op, arrays)
        with_arrays = [asarray(o, arrays, op) if isinstance(o, (np.ndarray, list)) else o for o in operands]
        return Array(build.apply(op, *(o.node if isinstance(o, Array) else o for o in with_arrays)), device)

    def __matmul__(self, other: Any) -> Array:
        from vkdnn.ops.linear import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        from vkdnn.ops.linear import matmul

        return matmul(other, self)

    def __getitem__(self, key: Any) -> Array:
        from vkdnn.ops.index import index

        return index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ArgumentError("x[...] = value: an array never changes; use vk.where, vk.scatter or vk.put_along_axis")

    def __iter__(self) -> Iterator[Array]:
        return iter([self[i] for i in range(len(self))])

    def astype(self, dtype: DType | str) -> Array:
        """The values in another dtype (float to int truncates and saturates, NaN gives 0)."""
        return Array(build.apply(f"to_{dtypes.as_dtype(dtype)}", self.node), self._device)

    def reshape(self, *shape: Any) -> Array:
        """The elements in row-major order under another shape; one length may be -1."""
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        lengths = integers("reshape: shape", given, "an int or a sequence of ints")
        return Array(build.reshape(self.node, lengths), self._device)

    def transpose(self, *axes: Any) -> Array:
        """Axes reordered as given; without arguments reversed."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list, type(None))) else axes
        if given is None or (not given and not axes):
            return Array(build.permute(self.node, tuple(range(self.ndim))[::-1]), self._device)
        order = normalize_axes("transpose", list(given), self.ndim)
        if len(order) != self.ndim:
            raise ShapeError(
                f"transpose: got {len(order)} axes, expected all {self.ndim} of an array of shape {self.shape}"
            )
        return Array(build.permute(self.node, order), self._device)

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
        """Sum over axes; see vk.sum."""
        from vkdnn.ops.reduce import sum as sum_

        return sum_(self, axis, keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
        """Mean over axes; see vk.mean."""
        from vkdnn.ops.reduce import mean

        return mean(self, axis, keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
        """Maximum over axes; see vk.max."""
        from vkdnn.ops.reduce import max as max_

        return max_(self, axis, keepdims)

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
        """Minimum over axes; see vk.min."""
        from vkdnn.ops.reduce import min as min_

        return min_(self, axis, keepdims)


ArrayLike = Array | npt.ArrayLike


def array(values: Any, dtype: DType | str | None = None, device: Device | str | int | None = None) -> Array:
    """An Array of these values (NumPy array, nested lists or a number) on ``device`` (default: the current one).

    Floats become float32 with subnormals as zero, integers int32. ``device`` may be a selector of vk.device. Raises
    DtypeError for what cannot be stored, ArgumentError for lists of unequal lengths and MemoryLimitError for more than
    a buffer of the device holds.

    >>> import vkdnn as vk
    >>> (vk.array([1, 2, 3]) * 2).numpy()
    array([2, 4, 6], dtype=int32)
    """
    place = device if device is None or isinstance(device, Device) else find_device(device)
    if isinstance(values, Array):
        moved = values if dtype is None else values.astype(dtype)
        if place is None or place is moved._device:
            return moved
        if tracing.active():
            raise ArgumentError(
                "array: an array cannot move to another device inside a traced function; move it before"
            )
        values = moved.numpy()
    host = host_array("array", values)
    kind = dtypes.as_dtype(dtype) if dtype is not None else dtypes.of_numpy(host)
    place = place or current_device()
    node = leaf(host.shape, kind)
    place.check_size(node.words)  # before the words are made
    node.buffer = place.upload(host_words(host, kind))
    return Array(node, place)


def host_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Values as a NumPy array of numbers or bools. Raises ArgumentError and DtypeError that name the argument."""
    if isinstance(values, (list, tuple)) and tracing.active() and _holds_arrays(values):
        raise ArgumentError(f"{name}: got a list that holds Arrays, inside a traced function; join them with vk.stack")
    try:
        host = np.asarray(values)
    except VkdnnError:
        raise
    except (ValueError, TypeError, OverflowError):
        raise ArgumentError(f"{name}: got nested lists of unequal lengths, expected equal ones") from None
    if host.dtype.kind not in "fiub" and host.dtype.name != "bfloat16":
        raise DtypeError(f"{name}: got {short(values)} (NumPy dtype {host.dtype}), expected numbers or bools")
    return host


def _holds_arrays(values: Any) -> bool:
    return isinstance(values, Array) or (isinstance(values, (list, tuple)) and any(map(_holds_arrays, values)))


def host_words(host: npt.NDArray[Any], dtype: DType) -> Words:
    """The words that keep host data in a dtype. Raises DtypeError for integers that do not fit."""
    return dtypes.words(_converted(host, dtype), dtype)


def _converted(host: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Host data in a dtype of vkdnn: floats flushed and rounded once, floats to integers as .astype does on arrays."""
    if dtype.category == "f":
        if host.dtype == dtype.numpy and dtype is dtypes.float16:
            return host  # its subnormals are normal numbers of float32
        with np.errstate(over="ignore", invalid="ignore"):
            return flush(host.astype(dtype.numpy).astype(np.float32)).astype(dtype.numpy)
    if dtype is dtypes.bool_:
        return host != 0
    if host.dtype.kind == "f":
        convert = basic.to_int32 if dtype is dtypes.int32 else basic.to_uint32
        with basic.exact():
            return convert(flush(host.astype(np.float32)))
    if host.size:
        info = np.iinfo(dtype.numpy)
        if int(host.min()) < info.min or int(host.max()) > info.max:
            raise DtypeError(f"array: integers from {host.min()} to {host.max()} do not fit in {dtype}")
    return host.astype(dtype.numpy)


def asarray(value: Any, like: Sequence[Any] = (), name: str = "array") -> Array:
    """``value`` as an Array beside the arrays ``like``; Python numbers become constants. ``name`` is for messages."""
    if isinstance(value, Array):
        return value
    if isinstance(value, Node):
        return Array(value)
    if isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        return Array(build.as_node(value))
    return array(host_array(name, value), device=common_device(name, [a for a in like if isinstance(a, Array)]))


def common_device(name: str, arrays: Iterable[Array]) -> Device | None:
    """The one device of these arrays. Raises DeviceError if they live on several."""
    found = list(dict.fromkeys(a._device for a in arrays if a._device is not None))
    if len(found) > 1:
        raise DeviceError(
            f"{name}: arrays live on {found[0].name} and {found[1].name}; move one with vk.array(x, device=...)"
        )
    return found[0] if found else None


def _is_traced(node: Node) -> bool:
    return any(n.kind == "leaf" and n.buffer is None for n in toposort([node], lambda n: n.buffer is not None))


def _has_data(node: Node) -> bool:
    return any(n.kind == "leaf" for n in toposort([node]))


def realize(arrays: Sequence[Array]) -> None:
    """Compute arrays together, in one Program for each device."""
    if not isinstance(arrays, (list, tuple)) or not all(isinstance(a, Array) for a in arrays):
        raise ArgumentError(f"realize: got {short(arrays)}, expected a list of Arrays; for one array, [x]")
    todo = [a for a in arrays if a.node.buffer is None]
    for place in dict.fromkeys(a.device for a in todo):
        group = [a for a in todo if a.device is place]
        for a in group:
            if _is_traced(a.node):
                raise ArgumentError("a traced array has no value yet: inside vk.jit use array operations only")
        nodes = [a.node for a in group]
        for a, storage in zip(group, Program(place, nodes)([]), strict=True):
            if _has_data(a.node):  # the nodes of constants are shared between devices
                a.node.buffer = storage
                storage.memo.append(weakref.ref(a.node))
            if not tracing.active():  # a transformation still needs the expression
                node = leaf(a.shape, a.dtype)
                node.buffer = storage
                a.node, a._device = node, place


def zeros(shape: int | Sequence[int], dtype: DType | str = "float32") -> Array:
    """An array of zeros: a constant, which costs no memory until it is stored."""
    return filled("zeros", shape, 0, dtype)


def full(shape: int | Sequence[int], fill_value: float, dtype: DType | str = "float32") -> Array:
    """An array of one value, a number. Raises DtypeError for a number that the dtype does not have."""
    return filled("full", shape, number("full: fill_value", fill_value, "a number (or vk.broadcast_to)"), dtype)


def filled(name: str, shape: Any, value: Any, dtype: DType | str) -> Array:
    """full() for the function ``name``."""
    return Array(build.full(lengths(name, shape), value, dtypes.as_dtype(dtype)))


def nbytes(arrays: Iterable[Array]) -> int:
    """Bytes that the values of these arrays take."""
    return sum(4 * a.node.words for a in arrays)
