"""Functions that vkdnn did not write: their parameters, what --shape means to them, and their errors in one line.

Nothing here may call a function, nor import PyTorch: what is PyTorch's is known once somebody has imported it.
"""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from vkdnn.aot.targets import Argument
from vkdnn.errors import ArgumentError, VkdnnError

_HERE = str(Path(__file__).resolve().parents[1]) + os.sep
_NOT_THEIRS = (_HERE, *(sysconfig.get_path(n) + os.sep for n in ("stdlib", "purelib", "platlib")))
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Parameters:
    """What a function takes by position: names, how many of them it needs, whether any number may follow."""

    names: tuple[str, ...]
    needed: int
    more: bool

    def __str__(self) -> str:
        return f"({', '.join([*self.names, *(['...'] if self.more else [])])})"


def parameters(function: Any) -> Parameters | None:
    """The parameters of a function; of a torch Function or Module those of its forward. None where nobody knows."""
    torch: Any = sys.modules.get("torch")
    skip = 0
    if torch is not None and isinstance(function, torch.nn.Module):
        function = function.forward
    elif is_torch_function(function):
        skip = int(function.setup_context is torch.autograd.Function.setup_context)  # forward(ctx, x)
        function = function.forward
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    plain = [p for p in found if p.kind in _BY_POSITION][skip:]
    needed = sum(p.default is p.empty for p in plain)
    return Parameters(tuple(p.name for p in plain), needed, any(p.kind is p.VAR_POSITIONAL for p in found))


def check_count(name: str, function: Any, count: int) -> None:
    """Raises ArgumentError where a function cannot take so many arguments."""
    known = parameters(function)
    if known is None or (known.needed <= count and (known.more or count <= len(known.names))):
        return
    few = known.needed if known.needed == len(known.names) else f"{known.needed} to {len(known.names)}"
    few = f"{known.needed} or more" if known.more else few
    noun = "argument" if few == 1 else "arguments"
    raise ArgumentError(f"{name} takes {few} {noun}, {known}, and was given {count}")


def bind(name: str, function: Any, given: Sequence[Argument]) -> list[Argument]:
    """The arguments of --shape in the order of the function's parameters; those without a name fill the places left.

    Raises ArgumentError for a name that is no parameter, one given twice, or a place in between that is left out.
    """
    known = parameters(function)
    if known is None or (known.more and not known.names):
        return list(given)
    found: dict[str, Argument] = {}
    for argument in (a for a in given if a.name):
        if argument.name not in known.names:
            listed = ", ".join(known.names) or "none"
            raise ArgumentError(f"--shape: {name} has no parameter {argument.name!r}; its parameters: {listed}")
        if argument.name in found:
            raise ArgumentError(f"--shape: {argument.name!r} of {name} is given twice")
        found[argument.name] = argument
    rest = [a for a in given if not a.name]
    free = [n for n in known.names if n not in found]
    found |= {n: replace(a, name=n) for n, a in zip(free, rest, strict=False)}
    order = [n for n in known.names if n in found]
    left_out = [n for n in known.names[: len(order)] if n not in found]
    if left_out:
        raise ArgumentError(f"--shape: {name} takes {known}; {left_out[0]!r} is left out, give its shape, too")
    return [*(found[n] for n in order), *rest[len(free) :]]


# ---- what is PyTorch's


def is_torch_function(thing: Any) -> bool:
    """Whether it is a torch.autograd.Function."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(thing, type) and issubclass(thing, torch.autograd.Function)


def is_torch_thing(thing: Any) -> bool:
    """Whether it is a torch.autograd.Function or a torch.nn.Module."""
    torch: Any = sys.modules.get("torch")
    return is_torch_function(thing) or (torch is not None and isinstance(thing, torch.nn.Module))


def wants_tensors(function: Any) -> bool:
    """Whether a function is of tensors: an annotation says so, or its module uses PyTorch and no vkdnn."""
    if sys.modules.get("torch") is None:
        return False
    notes = getattr(inspect.unwrap(function), "__annotations__", {})
    if any("Tensor" in str(a) for a in notes.values()):
        return True
    used = _packages(function)
    return "torch" in used and "vkdnn" not in used


def uses_torch(function: Any) -> bool:
    """Whether the module of a function uses PyTorch."""
    return "torch" in _packages(function)


def _packages(function: Any) -> set[str]:
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return {_package(value) for value in list(names.values())}


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name.partition(".")[0] if isinstance(name, str) else ""


def refuse_class(name: str, thing: Any) -> None:
    """Raises ArgumentError for a class that is no torch.autograd.Function: what is checked are functions."""
    if isinstance(thing, type) and not is_torch_function(thing):
        raise ArgumentError(
            f"{name} is a class; name a function or an instance, such as thing = {thing.__name__}(...) in its module"
        )


# ---- errors


def described(error: BaseException) -> str:
    """An error of a user's function in one line: its type, what it says, and the line of theirs that raised it."""
    text = " ".join(str(error).split())
    if not isinstance(error, VkdnnError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    where = _place(error) or (_place(error.__cause__) if error.__cause__ is not None else "")
    return f"{text} ({where})" if where else text


def _place(error: BaseException) -> str:
    """The innermost line that is neither vkdnn's nor of what is installed."""
    found, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(("<", *_NOT_THEIRS)):
            found = f"{os.path.basename(file)}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found
