"""What a case runs: operators of the library or of a user's module, forward or backward, as functions of arrays.

It must never know which backend runs it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import tree
from vkdnn.aot.targets import find_value
from vkdnn.check.operator import Case, Operator, stream_number
from vkdnn.errors import ArgumentError

Array = np.ndarray[Any, Any]
Operators = Mapping[str, Operator]


def find_operator(name: str, operators: Operators) -> Operator:
    """The operator of a name: one of ``operators``, or ``module:name`` of a user's own.

    Raises ArgumentError for a name that fits nothing.
    """
    if name in operators:
        return operators[name]
    if ":" not in name:
        close = difflib.get_close_matches(name, operators, n=3)
        hint = f"; is it {' or '.join(close)}?" if close else ", nor is it module:name of an Operator of your own"
        raise ArgumentError(f"no operator {name!r}{hint}")
    try:
        found = find_value(name)
    except ArgumentError as error:
        raise ArgumentError(f"no operator {name!r} ({error})") from error
    if not isinstance(found, Operator):
        raise ArgumentError(f"{name} is {type(found).__name__}, expected a vkdnn.check.operator.Operator")
    return found


def is_float(array: Any) -> bool:
    """Whether an array (of NumPy or of vkdnn) holds floats, bfloat16 included."""
    name = str(array.dtype)
    return name.startswith(("float", "bfloat"))


def leaf_names(results: Any) -> list[str]:
    """Names of the results: paths in their tree, ``result`` for one alone, ``result 0`` and so on for several."""
    return [f"result {path}" if path[:1].isdigit() else path or "result" for path in tree.paths(results)]


def forward(case: Case, arrays: list[Any]) -> tuple[list[str], list[Any]]:
    """Names and values of the results for arrays of vkdnn; nothing is computed yet."""
    results = case.run(*arrays)
    return leaf_names(results), tree.flatten(results)[0]


def backward(case: Case, arrays: list[Any]) -> tuple[list[str], list[Any]]:
    """Names and values of the gradients, of every input that has one, for upstream gradients of the case."""
    numbers = case.differentiable
    inside = list(arrays)

    def floats(*chosen: Any) -> list[Any]:
        for i, value in zip(numbers, chosen, strict=True):
            inside[i] = value
        return [r for r in tree.flatten(case.run(*inside))[0] if is_float(r)]

    value, pull = vk.vjp(floats, *(arrays[i] for i in numbers))
    given = [vk.array(upstream(case, k, v.shape), device=arrays[numbers[0]].device) for k, v in enumerate(value)]
    return [f"d_{case.operator.inputs[i].name}" for i in numbers], list(pull(given))


def upstream(case: Case, number: int, shape: tuple[int, ...]) -> Array:
    """The gradient given for one of the results, float32: from the seed, the operator's name and its number."""
    rng = np.random.default_rng([int(case.fields["seed"]), stream_number(case.operator.name), number])
    return rng.standard_normal(shape).astype(np.float32)


def subject(gradient: bool) -> Callable[[Case, list[Any]], tuple[list[str], list[Any]]]:
    return backward if gradient else forward
