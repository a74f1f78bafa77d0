"""What a command line names to be checked: operations by name, prefix or group, and functions of a user's own.

It must never leave out a target in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from vkdnn.aot.targets import find_function, parse_argument
from vkdnn.check.library import OPERATORS
from vkdnn.check.operator import Case, Input, Operator
from vkdnn.errors import ArgumentError

_KINDS = {"float32": "normal", "float16": "normal", "bfloat16": "normal", "bool": "bools", "uint32": "words"}


def resolve(names: Sequence[str], shapes: Sequence[str] = (), every: bool = False) -> list[Case]:
    """The cases of targets, each once: ``softmax``, ``nn.`` (a prefix), ``norms`` (a group), ``my_module:function``.

    A name alone is its case of defaults (``attention``) or one of its forms (``attention.window``); prefixes and groups
    take the forms along. ``shapes`` are the arguments of functions, such as ``x=8,128`` or ``4:int32``; ``every`` takes
    all operations.
    Raises ArgumentError for a name that fits nothing, with what comes near.
    """
    found: dict[str, Case] = {}
    if every:
        found |= _known()
    for name in names:
        if ":" in name:
            found[name] = function_case(name, find_function(name), shapes)
        else:
            found |= {case.name: case for case in _cases(name)}
    if not found:
        raise ArgumentError("target: none is named; name operations or module:function, or take --all")
    return list(found.values())


def _known() -> dict[str, Case]:
    return {case.name: case for operator in OPERATORS.values() for case in operator.cases()}


def _cases(name: str) -> list[Case]:
    plain, known = name.removeprefix("vk."), _known()
    if plain in known:
        return [known[plain]]
    found = [c for c in known.values() if c.operator.group == plain] or [
        c for n, c in known.items() if n.startswith(plain)
    ]
    if not found:
        groups = dict.fromkeys(o.group for o in OPERATORS.values())
        close = difflib.get_close_matches(plain, [*known, *groups], n=3)
        hint = f"is it {' or '.join(close)}? " if close else ""
        raise ArgumentError(f"target: no operation {name!r}; {hint}`vkdnn ops` lists them, groups: {', '.join(groups)}")
    return found


def function_case(name: str, function: Callable[..., Any], shapes: Sequence[str]) -> Case:
    """The case of a function of arrays of these shapes. Raises ArgumentError where none are given, or with symbols."""
    arguments = [parse_argument(text) for text in shapes]
    if not arguments:
        raise ArgumentError(f"{name}: the shapes of its arguments are not known; give each with --shape, as x=8,128")
    inputs = []
    for k, argument in enumerate(arguments):
        if symbols := [s for s in argument.sizes if isinstance(s, str)]:
            raise ArgumentError(f"--shape: {symbols[0]!r} is no size, expected a number such as 128")
        dims = " ".join(str(s) for s in argument.sizes)
        inputs.append(Input(argument.name or f"argument {k}", dims, _KINDS.get(argument.dtype, "integers")))
    floats = {a.dtype for a in arguments} & {"float16", "bfloat16"}
    return Operator(name, "functions", tuple(inputs), function).case(dtype=floats.pop() if floats else "float32")
