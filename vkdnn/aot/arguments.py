"""What a bundle is called with: whether arguments are those that its function was traced with, and the sizes they give.

It must never take an argument for another, nor say that one is wrong without saying which and what was expected.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from vkdnn import dtypes, tree
from vkdnn.aot import manifest as m
from vkdnn.aot.export import Spec
from vkdnn.aot.reading import leaves
from vkdnn.aot.trees import alike, build, difference, to_tree
from vkdnn.array import Array, host_array, realize
from vkdnn.device import Device
from vkdnn.errors import ArgumentError, CompileError, DeviceError, DtypeError, ShapeError


def described(array: m.Input | m.Output) -> str:
    """An array as messages name it: int32[batch, 128]."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def names(program: m.Program) -> list[str]:
    """What the positional arguments are called; one that holds no arrays is called by its value, such as None."""
    trees: Any = program.arguments
    found = []
    for part in trees["list"]:
        inside = leaves(part)
        found.append(program.inputs[inside[0]].name.split(".", 1)[0] if inside else str(build(part, ())))
    return found


def checked(manifest: m.Manifest, device: Device, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """The leaves of the arguments, computed Arrays of the device or NumPy arrays, of the right dtypes.

    Raises ArgumentError, DtypeError or DeviceError that names the argument which does not fit.
    """
    program, called = manifest.program, f"bundle {manifest.name}"
    assert program is not None
    numbers = itertools.count()
    parts = [tree.flatten(list(arguments)), tree.flatten(dict(keywords))]
    given = [to_tree(structure, numbers) for _, structure in parts]
    if not (alike(given[0], program.arguments) and alike(given[1], program.keywords)):
        raise ArgumentError(f"{called}: {_problem(program, *given)}")
    found = [x for part, _ in parts for x in part]
    for x, i in zip(found, program.inputs, strict=True):
        if isinstance(x, Array) and x.device is not device:
            raise DeviceError(
                f"{i.name}: lives on {x.device.name}, but the bundle is loaded on {device.name}; move it with "
                "vk.array(x, device=...)"
            )
        if isinstance(x, Spec):
            raise ArgumentError(f"{i.name}: got {x}, which has no values; give an array {described(i)}")
    try:
        realize([x for x in found if isinstance(x, Array)])
    except CompileError as error:
        late = [i.name for x, i in zip(found, program.inputs, strict=True) if _is_due(x)]
        raise ArgumentError(
            f"{called}: argument {late[0]} has not been computed yet, which needs a compiler ({error}); pass NumPy "
            "values, or vk.array(...) of them"
        ) from None
    return [_typed(x, i) for x, i in zip(found, program.inputs, strict=True)]


def _is_due(x: Any) -> bool:
    return isinstance(x, Array) and x.node.buffer is None


def _typed(x: Any, i: m.Input) -> Any:
    host = x if isinstance(x, Array) else host_array(i.name, x)
    try:
        dtype = host.dtype if isinstance(host, Array) else dtypes.of_numpy(host)
    except DtypeError as error:
        raise DtypeError(f"{i.name}: {str(error).removeprefix('array: ')}; expected {described(i)}") from None
    if str(dtype) != i.dtype:
        how = f".astype({i.dtype!r})" if hasattr(x, "astype") else f"vk.array(x, dtype={i.dtype!r})"
        raise DtypeError(f"{i.name}: is {dtype}, expected {described(i)}; convert it with {how}")
    return host


def _problem(program: m.Program, arguments: Any, keywords: Any) -> str:
    """What is wrong with the trees of the arguments, in words."""
    wanted: Any = program.arguments
    known: Any = program.keywords
    called = names(program)
    if keywords["dict"] and not known["dict"]:
        return f"got keywords {sorted(keywords['dict'])}, expected none; give {', '.join(called)} by position"
    count, expected = len(arguments["list"]), len(wanted["list"])
    if count != expected:
        return f"got {count} positional argument{'s' * (count != 1)}, expected {expected}: {', '.join(called)}"
    for a, b, name in zip(arguments["list"], wanted["list"], called, strict=True):
        found = difference(a, b, name, lambda number: described(program.inputs[number]))
        if found is not None:
            return f"argument {found}"
    return f"got keywords {sorted(keywords['dict'])}, expected {sorted(known['dict']) or 'none'}"


def sizes(manifest: m.Manifest, given: Sequence[Any]) -> dict[str, int]:
    """Values of the symbols, from the shapes of the arguments. Raises ShapeError for shapes that do not fit."""
    program = manifest.program
    assert program is not None
    found: dict[str, tuple[int, str]] = {}
    for x, i in zip(given, program.inputs, strict=True):
        shape = f"{i.name}: has shape {x.shape}"
        fits = len(x.shape) == len(i.shape)
        if not fits or any(isinstance(k, int) and n != k for n, k in zip(x.shape, i.shape, strict=True)):
            raise ShapeError(f"{shape}, expected {described(i)}")
        for n, length in zip(x.shape, i.shape, strict=True):
            if isinstance(length, str):
                before = found.setdefault(length, (n, i.name))
                if before[0] != n:
                    raise ShapeError(
                        f"{shape}, so {length} is {n}, but {before[0]} in {before[1]}; expected {described(i)}"
                    )
    values = {}
    for name, (low, high) in manifest.ranges.items():
        n, where = found[name]
        if not low <= n <= high:
            raise ShapeError(f"{where}: {name} is {n}, expected {low} to {high}; build the bundle for a larger range")
        values[name] = n
    return values
