"""The dtypes of vkdnn: what a value is in NumPy, in GLSL and in a buffer of 32-bit words.

It must never guess: 64-bit data is refused or narrowed by name, not silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.errors import DtypeError


@dataclass(frozen=True)
class DType:
    """One dtype: its name, its NumPy type, its GLSL type and the category letter of the op table."""

    name: str
    category: str  # f float, i signed, u unsigned, b bool: the letters of the op table's type rules
    glsl: str

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.name)

    @property
    def storage(self) -> str:
        """GLSL type of a buffer element: a bool is kept as a uint, 0 or 1."""
        return "uint" if self.category == "b" else self.glsl

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"vkdnn.{self.name}"


float32 = DType("float32", "f", "float")
int32 = DType("int32", "i", "int")
uint32 = DType("uint32", "u", "uint")
bool_ = DType("bool", "b", "bool")

ALL = (float32, int32, uint32, bool_)
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
    except (TypeError, KeyError):
        raise DtypeError(f"dtype: got {value!r}, expected one of {', '.join(_BY_NAME)}") from None


def of_numpy(array: np.ndarray[Any, Any]) -> DType:
    """The DType in which a NumPy array is stored: float64 and int64, NumPy's defaults, become 32 bits wide.

    Raises DtypeError for complex, string, object and other types, and for integers that do not fit.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
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
                    f"array: integers from {low} to {high} do not fit in int32; cast them with .astype(np.uint32) "
                    "or scale them first"
                )
        return int32
    raise DtypeError(
        f"array: dtype {array.dtype} is not stored by vkdnn; expected floats, integers or bools (cast with .astype)"
    )


def words(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The flat 32-bit words in which a device keeps ``array``."""
    typed = np.ascontiguousarray(array).ravel()
    if dtype.category == "b":
        return typed.astype(np.uint32)
    return typed.astype(dtype.numpy, copy=False).view(np.uint32)


def from_words(data: np.ndarray[Any, Any], dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The inverse of words()."""
    if dtype.category == "b":
        return (data != 0).reshape(shape)
    return data.view(dtype.numpy).reshape(shape)
