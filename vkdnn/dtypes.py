"""The dtypes of vkdnn: four of 32 bits (float32, int32, uint32, bool) and two storage types (float16, bfloat16).

A storage type is computed in float32: loads widen, every op rounds its result once, to nearest even. It is kept two
elements a word. Conversions from NumPy must never guess: 64-bit data is refused or narrowed by name, not silently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from vkdnn.errors import DtypeError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DType:
    """One dtype: its name, its NumPy type, its GLSL type and the category letter of the op table."""

    name: str
    category: str  # f float, i signed, u unsigned, b bool: the letters of the op table's type rules
    glsl: str
    bits: int = 32  # of an element in memory

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(ml_dtypes.bfloat16) if self.name == "bfloat16" else np.dtype(self.name)

    @property
    def half(self) -> bool:
        """Whether this is a storage type of 16 bits."""
        return self.bits == 16

    @property
    def storage(self) -> str:
        """GLSL type of a buffer's word: a bool is kept as a uint, 0 or 1; two elements of 16 bits share one."""
        return "uint" if self.category == "b" or self.half else self.glsl

    def words(self, count: int) -> int:
        """Words of 32 bits that ``count`` elements take."""
        return -(-count * self.bits // 32)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"vkdnn.{self.name}"


float32 = DType("float32", "f", "float")
int32 = DType("int32", "i", "int")
uint32 = DType("uint32", "u", "uint")
bool_ = DType("bool", "b", "bool")
float16 = DType("float16", "f", "float", 16)
bfloat16 = DType("bfloat16", "f", "float", 16)

ALL = (float32, int32, uint32, bool_, float16, bfloat16)
_BY_NAME = {d.name: d for d in ALL}


def as_dtype(value: DType | str | np.dtype[Any] | type) -> DType:
    """The DType that ``value`` names: a DType, a name, or a NumPy dtype.

    Raises DtypeError for anything that vkdnn does not store.
    """
    if isinstance(value, DType):
        return value
    try:
        name = value if isinstance(value, str) else np.dtype(value).name
        return _BY_NAME[name]
    except (TypeError, KeyError, ValueError):
        raise DtypeError(f"dtype: got {value!r}, expected one of {', '.join(_BY_NAME)}") from None


def of_numpy(array: Array) -> DType:
    """The DType in which a NumPy array is stored: float64 and int64, NumPy's defaults, become 32 bits wide.

    Raises DtypeError for complex, string, object and other types, and for integers that do not fit.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if array.dtype.name in ("float16", "bfloat16"):
        return _BY_NAME[array.dtype.name]
    if kind == "f":
        return float32
    if kind == "b":
        return bool_
    if kind == "u" and size <= 4:
        return uint32
    if kind in "iu":
        if size == 8 and array.size:
            low, high = int(array.min()), int(array.max())
            if low < -(2**31) or high >= 2**31:
                raise DtypeError(
                    f"array: integers from {low} to {high} do not fit in int32; give dtype='uint32' if they are from 0 "
                    "to 2**32 - 1, dtype='float32' if they may be rounded, or scale them first"
                )
        return int32
    raise DtypeError(
        f"array: dtype {array.dtype} is not stored by vkdnn; expected floats, integers or bools (cast with .astype)"
    )


# ---- memory: the words in which a device keeps an array


def words(array: Array, dtype: DType) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The flat 32-bit words in which a device keeps ``array``; a spare half of the last word is 0."""
    typed = np.ascontiguousarray(array).ravel()
    if dtype.category == "b":
        return typed.astype(np.uint32)
    typed = typed.astype(dtype.numpy, copy=False)
    if dtype.half:
        padded = np.zeros(2 * dtype.words(typed.size), np.uint16)
        padded[: typed.size] = typed.view(np.uint16)
        return padded.view(np.uint32)
    return typed.view(np.uint32)


def from_words(data: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The inverse of words()."""
    if dtype.category == "b":
        return (data != 0).reshape(shape)
    if dtype.half:
        return data.view(np.uint16)[: math.prod(shape)].view(dtype.numpy).reshape(shape)
    return data.view(dtype.numpy).reshape(shape)


# ---- values: what kernels and constants compute with; a storage type's values are float32


def memory(data: Array, dtype: DType) -> Array:
    """Words of uint32 as an array with one entry an element, as the reference's kernels index it."""
    if dtype.half:
        return data.view(np.uint16)
    return data.view({"float": np.float32, "int": np.int32, "uint": np.uint32}[dtype.storage])


def load(elements: Array, dtype: DType) -> Array:
    """The values of elements of memory()."""
    if dtype.category == "b":
        return np.asarray(elements != 0)
    if dtype is float16:
        return np.asarray(elements).view(np.float16).astype(np.float32)
    if dtype is bfloat16:
        return (np.asarray(elements).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return elements


def store(values: Array, dtype: DType) -> Array:
    """Elements of memory() that hold these values, which a storage type can hold exactly."""
    if dtype is float16:
        return np.asarray(values).astype(np.float16).view(np.uint16)
    if dtype is bfloat16:
        return (np.asarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values


def constant_bits(value: Any, dtype: DType) -> int:
    """The 32 bits by which a scalar constant is known: those of its value."""
    with np.errstate(over="ignore"):
        typed = np.asarray(value).astype(dtype.numpy)
    if dtype.half:
        return int(typed.astype(np.float32).reshape(1).view(np.uint32)[0])
    return int(words(typed, dtype)[0])


def constant_value(bits: int, dtype: DType) -> Any:
    """The NumPy scalar of constant_bits()."""
    kept = np.array([bits], np.uint32)
    return (kept.view(np.float32) if dtype.half else from_words(kept, dtype, (1,)))[0]
