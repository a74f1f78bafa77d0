"""Checks of plain arguments: ints, lengths, axes. One message for each kind of mistake, with the function's name.

Nothing here may know arrays or nodes; ``name`` is the public function, and the argument where it has several such.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir.dims import Dim

Shape = tuple[int, ...]


def integer(name: str, value: Any, expected: str = "an int") -> int:
    """The int that ``value`` is (Python's or NumPy's; no bool, no float). Raises ArgumentError otherwise."""
    if isinstance(value, Dim):
        return value
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ArgumentError(f"{name}: got {short(value)}, expected {expected}")


def integers(name: str, values: Any, expected: str = "ints") -> Shape:
    """The ints of a sequence. Raises ArgumentError for anything else, a string or an array of data included."""
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name}: got {short(values)}, expected {expected}")
    return tuple(integer(name, v, expected) for v in values)


def number(name: str, value: Any, expected: str = "a number") -> Any:
    """The Python number that ``value`` is: a bool, an int or a float. Raises ArgumentError otherwise."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, (bool, int, float)):
        return value
    raise ArgumentError(f"{name}: got {short(value)}, expected {expected}")


def lengths(name: str, shape: Any) -> Shape:
    """A shape: an int or a sequence of ints of zero or more. Raises ArgumentError or ShapeError."""
    if isinstance(shape, Dim) or (hasattr(shape, "__index__") and np.ndim(shape) == 0):
        shape = (shape,)
    found = integers(f"{name}: shape", shape, "an int or a sequence of ints")
    if any(n < 0 for n in found):
        raise ShapeError(f"{name}: shape {found} has a negative length, expected zero or more")
    return found


def normalize_axis(name: str, axis: Any, ndim: int) -> int:
    """The axis counted from the first. Raises ArgumentError if it is no int and ShapeError if it does not exist."""
    axis = integer(f"{name}: axis", axis)
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{name}: axis {axis} does not exist in an array of {ndim} axes")
    return axis % ndim


def normalize_axes(name: str, axis: Any, ndim: int) -> Shape:
    """Axes counted from the first: all for None, else an int or a sequence of ints, in the order given.

    Raises ArgumentError for what is no int, ShapeError for an axis that does not exist or is given twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, (list, tuple, range)) else (axis,)
    given = integers(f"{name}: axis", given, "an int, a sequence of ints or None")
    axes = tuple(normalize_axis(name, a, ndim) for a in given)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{name}: axis {given} names an axis of an array of {ndim} axes twice")
    return axes


def function(name: str, value: Any, count: int) -> Any:
    """``value``, a function that can be called with ``count`` arguments. Raises ArgumentError otherwise."""
    if not callable(value):
        raise ArgumentError(f"{name}: got {short(value)}, expected a function of {count} arguments")
    try:
        inspect.signature(value).bind(*range(count))
    except TypeError:
        raise ArgumentError(f"{name}: the function takes other arguments, expected one of {count} arguments") from None
    except ValueError:  # no signature is known
        pass
    return value


def short(value: Any) -> str:
    """A value for a message: its text where that is short, else its type."""
    text = repr(value) if isinstance(value, (str, int, float, complex, tuple, list, type(None), np.generic)) else ""
    return text if 0 < len(text) <= 60 else type(value).__name__


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int, np.integer),
    "float": (int, float, np.integer, np.floating),
    "str": (str,),
    "bool": (bool, np.bool_),
}


def settings(instance: Any) -> None:
    """Raise ArgumentError for a field of a dataclass whose value is not of the plain type that its annotation names."""
    for field in dataclasses.fields(instance):
        value, kinds = getattr(instance, field.name), str(field.type).split(" | ")
        if value is None and "None" in kinds:
            continue
        if kinds[0] == "tuple[float, float]":
            good = isinstance(value, (tuple, list)) and len(value) == 2 and all(_is(v, "float") for v in value)
        else:
            good = kinds[0] not in _KINDS or _is(value, kinds[0])
        if not good:
            raise ArgumentError(f"{field.name}: got {short(value)}, expected {' or '.join(kinds)}")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "bool" or not isinstance(value, (bool, np.bool_)))
