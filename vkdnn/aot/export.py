"""vk.aot.export: traces a function, plans its memory, compiles its kernels and writes the bundle.

What it writes must give the bits of the jitted function; where it cannot promise that, it refuses.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn import dtypes, tracing, tree
from vkdnn.aot import manifest as m
from vkdnn.aot.describe import Argument, Described, Traced, describe
from vkdnn.aot.package import package
from vkdnn.aot.target import BuildTarget, target_of
from vkdnn.aot.trees import to_tree
from vkdnn.aot.write import check_free
from vkdnn.array import Array, array, asarray, common_device, host_array, realize
from vkdnn.device import Device, Progress, current_device
from vkdnn.device import device as find_device
from vkdnn.errors import ArgumentError, DeviceError, MemoryLimitError
from vkdnn.ir.arguments import integers, short
from vkdnn.ir.dims import guards, hints, symbol
from vkdnn.ir.node import Node, leaf
from vkdnn.ir.symbolic import alike
from vkdnn.program import Program
from vkdnn.shader.entry import digest
from vkdnn.transform import Jitted, apart, argument_numbers, leaf_numbers, positions


@dataclass(frozen=True)
class Spec:
    """An argument without a value: lengths (ints, or names of symbolic sizes) and a dtype.

    >>> Spec(("batch", 128), "int32")
    Spec(shape=('batch', 128), dtype='int32')
    """

    shape: tuple[int | str, ...]
    dtype: str = "float32"


def export(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    device: Device | str | int | None = None,
    weights: int | Sequence[int] = (),
    ranges: Mapping[str, tuple[int, int]] | None = None,
    overwrite: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
) -> m.Manifest:
    """Write ``function`` as a bundle: a folder, or one file if ``path`` ends in .zip. Gives its manifest.

    ``function`` is a function of arrays, such as vk.jit gives; arguments that it donates are replaced in place.
    ``arguments`` are its positional arguments: trees of Arrays, NumPy arrays or vk.aot.Spec, of which shapes and dtypes
    matter. Names in the shapes of a Spec are sizes that may be chosen at each run, within ``ranges``:
    ``Spec(("batch", 128), "int32")`` with ``ranges={"batch": (1, 8)}``.

    ``weights`` are positions of arguments whose values are written too: those that are not donated become constants and
    are no arguments of the bundle; those that are donated stay arguments, with these values to begin with. Arrays that
    the function captures are always written.

    Without ``device`` the bundle is portable: it runs on every Vulkan device that keeps the numerics contract. With a
    device its kernels are scheduled for that one. The bits are the same.

    ``progress`` is called with (done, total, label) while kernels are compiled. Raises ArgumentError for arguments that
    do not fit, a ``path`` that exists (unless ``overwrite``, which replaces bundles alone), or sizes over whose range
    the function does not have one form; BundleError when the bundle cannot be written; CompileError.

    >>> import tempfile, vkdnn as vk
    >>> double = vk.jit(lambda x: x + x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = vk.aot.export(double, [vk.aot.Spec((2, 3))], f"{folder}/double.zip")
    ...     vk.aot.load(f"{folder}/double.zip")(vk.ones((2, 3))).numpy().tolist()
    [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """
    if not callable(function):
        raise ArgumentError(f"aot.export: got {short(function)}, expected a function")
    if not isinstance(arguments, (list, tuple)):
        raise ArgumentError(f"aot.export: arguments is {short(arguments)}, expected a list of the function's arguments")
    place = check_free(path, overwrite)
    target = target_of(device)
    parts = prepared(function, arguments, target, weights, ranges or {})
    called = name or str(getattr(function, "__name__", "function"))
    return package(place, called, target, *parts, overwrite, progress)


def prepared(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    target: BuildTarget,
    weights: int | Sequence[int],
    ranges: Mapping[str, tuple[int, int]],
) -> tuple[tuple[m.Symbol, ...], Described, dict[str, Array]]:
    """Symbols, the program of a function, and values that its arguments begin with; see export()."""
    symbols = check_ranges(ranges, arguments)
    tracer = _Tracer(function, tuple(arguments), weights)
    return symbols, tracer.described(target, symbols), tracer.initial()


def check_ranges(ranges: Mapping[str, Any], arguments: Sequence[Any]) -> tuple[m.Symbol, ...]:
    """The symbols of the arguments' shapes. Raises ArgumentError for one without a range, or a range that is none."""
    used = sizes_named(arguments)
    for name in ranges:
        if name not in used:
            known = f"the names there are {', '.join(used)}" if used else "all sizes are numbers; leave it out"
            raise ArgumentError(f"ranges: {name!r} is in no shape of the arguments, {known}")
    for name in used:
        if name not in ranges:
            raise ArgumentError(f"ranges: none for {name!r}; give one, as ranges={{{name!r}: (1, 512)}}")
    found = []
    for name, given in ranges.items():
        pair = integers(f"ranges: {name}", given, "(smallest, largest)")
        if len(pair) != 2:
            raise ArgumentError(f"ranges: {name} is {short(given)}, expected (smallest, largest)")
        low, high = pair
        if not 0 < low <= high < 2**31:
            raise ArgumentError(f"ranges: {name!r} is {low} to {high}, expected 1 <= smallest <= largest < 2**31")
        found.append(m.Symbol(name, low, high))
    return tuple(found)


def sizes_named(arguments: Sequence[Any]) -> list[str]:
    """The names in the shapes of the arguments, each once."""
    found = (n for x in tree.flatten(list(arguments))[0] if isinstance(x, Spec) for n in names_of(x))
    return list(dict.fromkeys(found))


def names_of(spec: Spec) -> list[str]:
    """The symbols of a Spec's shape. Raises ArgumentError for what is no shape."""
    if not isinstance(spec.shape, (list, tuple)):
        raise ArgumentError(f"Spec: shape is {short(spec.shape)}, expected a tuple of ints and names")
    for n in spec.shape:
        good = n.isidentifier() if isinstance(n, str) else isinstance(n, (int, np.integer)) and n >= 0
        if not good:
            raise ArgumentError(f"Spec: shape has {short(n)}, expected ints of 0 or more, or names such as 'tokens'")
    return [n for n in spec.shape if isinstance(n, str)]


class _Tracer:
    """A function and its arguments, to be traced for one choice of hints after another."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], weights: Any):
        self.function, self.arguments = function, arguments
        leaves, self.structure = tree.flatten(list(arguments))
        chosen = positions("weights", argument_numbers("weights", weights), len(arguments))
        donate = function.donate if isinstance(function, Jitted) else ()
        self.donated = set(leaf_numbers(arguments, positions("donate_argnums", donate, len(arguments))))
        kept = set(leaf_numbers(arguments, chosen))
        self.names = _names(function, arguments)
        arrays = [x for x in leaves if isinstance(x, Array)]
        realize(arrays)
        self.device = common_device("aot.export", arrays) or some_device()
        self.constants: set[int] = kept - self.donated
        self.with_value = kept & self.donated
        self.leaves = [self.held(i, x) if i in kept else self.checked(i, x) for i, x in enumerate(leaves)]

    def held(self, i: int, x: Any) -> Array:
        if isinstance(x, Spec):
            raise ArgumentError(f"weights: argument {self.names[i]} is a Spec, which has no values; give the array")
        found = array(x, device=self.device) if not isinstance(x, Array) else x
        realize([found])
        return found

    def checked(self, i: int, x: Any) -> Any:
        return x if isinstance(x, (Array, Spec)) else host_array(f"aot.export: argument {self.names[i]}", x)

    def initial(self) -> dict[str, Array]:
        """Values that arguments begin with, by name."""
        return {self.names[i]: self.leaves[i] for i in sorted(self.with_value)}

    def described(self, target: BuildTarget, ranges: tuple[m.Symbol, ...]) -> Described:
        """The program, traced with several values of the symbols, which must all give the same."""
        if not ranges:
            return describe(self.traced(target, {}), target)
        found, texts = [], []
        for picked in zip(*(hints(s.low, s.high) for s in ranges), strict=True):
            sizes = {s.name: symbol(s.name, hint, s.low, s.high) for s, hint in zip(ranges, picked, strict=True)}
            with guards() as decisions:
                described = describe(self.traced(target, sizes), target)
                texts.append([*(r.spec for r in described.requests), *(r.glsl for r in described.requests)])
            decisions.check()
            program = described.program
            texts[-1] += map(str, (*program.dispatches, *program.values, *program.buffers, *program.outputs))
            # Captured arrays, too: they may have been made of a size.
            texts[-1] += [f"{name}: {digest(held.read().tobytes())}" for name, held in described.storages.items()]
            found.append(described)
        alike(texts)
        return found[0]

    def traced(self, target: BuildTarget, sizes: Mapping[str, int]) -> Traced:
        arrays = [x if i in self.constants else Array(_parameter(x, sizes), self.device) for i, x in self.numbered()]
        with self.device, tracing.trace():
            result = self.function(*tree.unflatten(self.structure, list(arrays)))
        outputs, out_structure = tree.flatten(result)
        results = [asarray(o, name="aot.export: result") for o in outputs]
        inputs = [i for i, _ in self.numbered() if i not in self.constants]
        donated = [k for k, i in enumerate(inputs) if i in self.donated]
        program = _planned(target, apart([r.node for r in results]), [arrays[i].node for i in inputs], donated)
        names = ["result" + ("." + p if p else "") for p in tree.paths(result)]
        return Traced(
            program,
            tuple(
                Argument(
                    arrays[i].node, self.names[i], tuple(self.leaves[i].shape), i in self.donated, i in self.with_value
                )
                for i in inputs
            ),
            {arrays[i].node: self.names[i] for i in sorted(self.constants)},
            tuple((n, r.shape, r.dtype) for n, r in zip(names, results, strict=True)),
            (self.tree_of_arguments(), {"dict": {}}, to_tree(out_structure, itertools.count())),
        )

    def numbered(self) -> list[tuple[int, Any]]:
        return list(enumerate(self.leaves))

    def tree_of_arguments(self) -> Any:
        """Without the arguments that are constants."""
        left, first = [], 0
        for argument in self.arguments:
            count = len(tree.flatten(argument)[0])
            if not count or first not in self.constants:
                left.append(argument)
            first += count
        return to_tree(tree.flatten(left)[1], itertools.count())


class _Planned(Device):
    """The device that a Program is planned for; nothing runs there."""

    def __init__(self, max_words: int, software: bool):
        self.name, self.kind, self.max_words, self.software = "target", "planned", max_words, software


def _planned(target: BuildTarget, outputs: Sequence[Node], inputs: Sequence[Node], donated: Sequence[int]) -> Program:
    """The Program with the smallest buffers that its arrays fit in."""
    *smaller, most = target.max_words
    for words in smaller:
        with contextlib.suppress(MemoryLimitError):
            return Program(_Planned(words, target.target.software), outputs, inputs, donated)
    return Program(_Planned(most, target.target.software), outputs, inputs, donated)


def some_device() -> Device:
    """The current device, or the reference where there is no other."""
    try:
        return current_device()
    except DeviceError:
        return find_device("cpu")  # tracing computes nothing


def _parameter(x: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(x, Array):
        return leaf(x.shape, x.dtype, "argument")
    if isinstance(x, Spec):
        shape = tuple(sizes[n] if isinstance(n, str) else int(n) for n in x.shape)
        return leaf(shape, dtypes.as_dtype(x.dtype), "argument")
    return leaf(x.shape, dtypes.of_numpy(x), "argument")


def _names(function: Callable[..., Any], arguments: Sequence[Any]) -> list[str]:
    """A name for each leaf: the parameter's, and the path in it."""
    names = [f"arg{i}" for i in range(len(arguments))]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for i, p in enumerate(parameters[: len(names)]):
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names[i] = p.name
        else:
            break
    found = [path for n, x in zip(names, arguments, strict=True) for path in tree.paths(x, f"{n}.")]
    twice = {n for n in found if found.count(n) > 1} if len(set(found)) < len(found) else set()
    if twice:
        raise ArgumentError(f"aot.export: two arguments are called {min(twice)}; rename a key of the tree")
    return found
