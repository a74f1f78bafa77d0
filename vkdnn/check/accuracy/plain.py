"""A twin written for float64, evaluated in float32: what its formula gives when nobody takes care.

Every operation of NumPy gets float32 operands and so rounds to float32, whatever constants the twin brings along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import tree
from vkdnn.check import wide
from vkdnn.check.operator import Case
from vkdnn.ir.node import Node, toposort

Array = np.ndarray[Any, Any]


class Narrow(np.ndarray[Any, Any]):
    """An array whose operations narrow float64 operands to float32 first."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if options.get("dtype") is not None:
            options["dtype"] = _narrow_type(options["dtype"])
        given = [_narrow(x) for x in inputs]
        if method == "at":  # in place: the first operand is where results go
            return ufunc.at(np.asarray(inputs[0]), *given[1:])
        if ufunc is np.matmul and method == "__call__" and not options:
            result: Any = _product(given[0], given[1])
        else:
            options = {k: _narrow(v) if k == "initial" else v for k, v in options.items()}
            result = getattr(ufunc, method)(*given, **options)
        if out is None:
            return _wrapped(result)
        for target, value in zip(out, result if isinstance(result, tuple) else (result,), strict=True):
            np.asarray(target)[...] = value
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if options.get("dtype") is not None:
            options = options | {"dtype": _narrow_type(options["dtype"])}
        if function in (np.copyto, np.put_along_axis, np.fill_diagonal, np.put, np.place):  # these write into the first
            first, *rest = arguments
            return function(np.asarray(first), *_narrow(rest), **_narrow(options))
        return _wrapped(function(*_narrow(list(arguments)), **_narrow(options)))


def _narrow_type(dtype: Any) -> Any:
    return np.float32 if np.dtype(dtype) == np.float64 else dtype


def _narrow(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        base = value.view(np.ndarray)
        return base.astype(np.float32) if base.dtype == np.float64 else base
    if isinstance(value, np.floating) and value.dtype == np.float64:
        return np.float32(value)
    if isinstance(value, list):
        return list(map(_narrow, value))
    if isinstance(value, tuple):
        return tuple(map(_narrow, value))
    if isinstance(value, dict):
        return {k: _narrow(v) for k, v in value.items()}
    return value


def _wrapped(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_wrapped, value)) if isinstance(value, tuple) else list(map(_wrapped, value))
    if isinstance(value, (np.ndarray, np.floating)):
        array = np.asarray(value)
        return (array.astype(np.float32) if array.dtype == np.float64 else array).view(Narrow)
    return value


def _product(a: Array, b: Array) -> Array:
    """A product; that of a single row or column is added up in sequence: a BLAS uses many sums for those."""
    if a.dtype == np.float32 and b.dtype == np.float32 and a.ndim > 0 and b.ndim > 0 and a.shape[-1] > 1:
        rows = a.shape[-2] if a.ndim > 1 else 1
        columns = b.shape[-1] if b.ndim > 1 else 1
        if min(rows, columns) == 1:
            right = np.swapaxes(b, -1, -2) if b.ndim > 1 else b
            terms = a[..., :, None, :] * right[..., None, :, :] if min(a.ndim, b.ndim) > 1 else a * right
            return np.asarray(np.add.accumulate(terms, axis=-1)[..., -1])
    return np.asarray(np.matmul(a, b))


def plainly_graph(outputs: Sequence[Node]) -> list[Array]:
    """Values of a graph whose leaves have data, each node rounded to float32."""
    leaves = [n for n in toposort(outputs) if n.kind == "leaf"]
    plan = wide.prepare(outputs, leaves)
    plan.after = _wrapped
    return [_narrow(x) for x in plan(*(vk.Array(n).numpy() for n in leaves))]


def plainly(case: Case, arrays: list[Array]) -> list[Array]:
    """The leaves of the twin's results in float32, integers as they are."""
    with np.errstate(all="ignore"):
        given = [
            a.astype(np.float32).view(Narrow) if i.is_float else a
            for i, a in zip(case.operator.inputs, arrays, strict=True)
        ]
        assert case.operator.golden is not None
        leaves = tree.flatten(case.operator.golden(*given, **case.options))[0]
        return [_narrow(np.asarray(x)) for x in leaves]
