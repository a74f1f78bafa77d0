"""What a command line names to be checked: operations by name, prefix or group, and functions of a user's own.

It must never leave out a target in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vkdnn.aot.targets import Argument, find_value, parse_argument
from vkdnn.check.library import OPERATORS
from vkdnn.check.operator import Case, Input, Operator
from vkdnn.check.users import bind, check_count, is_torch_thing, refuse_class, wants_tensors
from vkdnn.errors import ArgumentError

_KINDS = {"float32": "normal", "float16": "normal", "bfloat16": "normal", "bool": "bools", "uint32": "words"}


def resolve(names: Sequence[str], shapes: Sequence[str] = (), every: bool = False) -> list[Case]:
    """The cases of targets, each once: ``softmax``, ``nn.`` (a prefix), ``@norms`` (a group), ``my_module:thing``.

    A name alone is its case of defaults (``attention``) or one of its forms (``attention.window``); prefixes and groups
    take the forms along. A group needs no @ where no operation has its name. A thing of a module is a function of
    arrays of vkdnn, an Operator or a Case. ``shapes`` are the arguments of functions, such as ``x=8,128`` (by the
    parameter's name) or ``4:int32`` (by position); ``every`` takes all operations.
    Raises ArgumentError for a name that fits nothing, with what comes near.
    """
    found: dict[str, Case] = {}
    if every:
        found |= _known()
    for name in names:
        if ":" in name:
            found[name] = _module_case(name, find_value(name), shapes)
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
    found = [c for c in known.values() if c.operator.group == plain.removeprefix("@")] or [
        c for n, c in known.items() if n.startswith(plain)
    ]
    if not found:
        groups = dict.fromkeys(f"@{o.group}" for o in OPERATORS.values())
        close = difflib.get_close_matches(plain, list(dict.fromkeys([*known, *groups])), n=3)
        hint = f"is it {' or '.join(close)}? " if close else ""
        raise ArgumentError(f"target: no operation {name!r}; {hint}`vkdnn ops` lists them, groups: {', '.join(groups)}")
    return found


def _module_case(name: str, thing: Any, shapes: Sequence[str]) -> Case:
    """The case of a thing of a user's module. Raises ArgumentError for what is no function of vkdnn's arrays."""
    if (case := own_case(name, thing)) is not None:
        return case
    refuse = f"{name} is %s, expected a function of vkdnn's arrays, an Operator or a Case; `vkdnn gradcheck` takes it"
    if isinstance(thing, (tuple, list)):
        raise ArgumentError(refuse % "a pair of functions, which no device runs")
    if is_torch_thing(thing) or (callable(thing) and not isinstance(thing, type) and wants_tensors(thing)):
        raise ArgumentError(refuse % "PyTorch's, whose kernels are not vkdnn's")
    if not callable(thing):
        raise ArgumentError(f"{name} is {type(thing).__name__}, expected a function of arrays, an Operator or a Case")
    return function_case(name, thing, shapes)


def own_case(name: str, thing: Any) -> Case | None:
    """The case of an Operator or Case of a user's module; None for all else. Raises ArgumentError for a class."""
    refuse_class(name, thing)
    if not isinstance(thing, (Operator, Case)):
        return None
    return replace(thing.case() if isinstance(thing, Operator) else thing, name=name)


def shape_arguments(name: str, function: Any, shapes: Sequence[str]) -> list[Argument]:
    """--shape for a function, in the order of its parameters. Raises ArgumentError where they do not fit."""
    found = bind(name, function, [parse_argument(text) for text in shapes])
    if found:
        check_count(name, function, len(found))
    return found


def function_case(name: str, function: Callable[..., Any], shapes: Sequence[str]) -> Case:
    """The case of a function of arrays of these shapes. Raises ArgumentError where none are given, or with symbols."""
    arguments = shape_arguments(name, function, shapes)
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
