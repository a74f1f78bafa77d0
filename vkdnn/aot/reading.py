"""Reads manifests, and checks them whole: numbers that name nothing, or arrays that end outside of their buffers, are
refused, whatever wrote them.
"""

from __future__ import annotations

import math
import os
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from vkdnn.aot.formulas import Formula, evaluate, problem
from vkdnn.aot.manifest import Dispatch, Manifest, Program
from vkdnn.aot.records import RecordError, Tree, from_json
from vkdnn.dtypes import as_dtype
from vkdnn.shader.bundle import MANIFEST, Archive, BundleError


def read_manifest(path: str | os.PathLike[str] | Archive) -> Manifest:
    """The manifest of a bundle, checked. Raises BundleError that says what is wrong and what to do."""
    archive = path if isinstance(path, Archive) else Archive(path)
    data = archive.manifest()
    data.pop("$schema", None)
    try:
        manifest = from_json(Manifest, data, "")
        check(manifest)
    except (RecordError, RecursionError) as error:
        raise BundleError(
            f"bundle {archive.path}: {MANIFEST} is damaged: {str(error).lstrip()}; write the bundle again with "
            "`vkdnn aot build` or vk.aot.export"
        ) from None
    return manifest


# ---- what the types do not say


def check(manifest: Manifest) -> None:
    """Raises RecordError for numbers that do not fit together."""
    for s in manifest.symbols:
        if s.high < s.low:
            raise RecordError(f"symbol {s.name} has the range {s.low} to {s.high}")
    if len(manifest.ranges) < len(manifest.symbols):
        raise RecordError("symbols has a name twice")
    if manifest.probe is not None:
        _number(manifest.probe, manifest.kernels, "probe")
    for i, kernel in enumerate(manifest.kernels):
        for n in kernel.workgroups or ():
            wrong = problem(n, dict.fromkeys(kernel.push))
            if wrong:
                raise RecordError(f"kernels[{i}].workgroups: {wrong}")
    if manifest.program is not None:
        _Checker(manifest, manifest.program).check()


def _number(i: int, items: Any, where: str) -> None:
    if not 0 <= i < len(items):
        raise RecordError(f"{where} is {i}, expected a number below {len(items)}")


class _Checker:
    def __init__(self, manifest: Manifest, program: Program):
        self.manifest, self.program = manifest, program
        # Offsets are fixed and sizes grow with the symbols: what fits at both ends fits everywhere.
        self.ends: tuple[Mapping[str, int], ...] = (
            {s.name: s.low for s in manifest.symbols},
            {s.name: s.high for s in manifest.symbols},
        )

    def check(self) -> None:
        program = self.program
        sizes = [self.positive(b.words, f"buffers[{i}].words") for i, b in enumerate(program.buffers)]
        for i, value in enumerate(program.values):
            where = f"values[{i}]"
            _number(value.buffer, program.buffers, f"{where}.buffer")
            words = self.positive(value.words, f"{where}.words")
            if any(value.offset + n > size for n, size in zip(words, sizes[value.buffer], strict=True)):
                raise RecordError(f"{where} ends outside of its buffer")
            needed = [max(1, as_dtype(value.dtype).words(n)) for n in self.counts(value.shape, where)]
            if words != needed:
                raise RecordError(f"{where}.words is {words[-1]}, but {value.dtype} of its shape takes {needed[-1]}")
        named: tuple[tuple[str, Any], ...] = (
            ("inputs", program.inputs), ("constants", program.constants), ("outputs", program.outputs),
        )  # fmt: skip
        for kind, arrays in named:
            for i, array in enumerate(arrays):
                where = f"{kind}[{i}]"
                _number(array.value, program.values, f"{where}.value")
                value, counts = program.values[array.value], self.counts(array.shape, where)
                if array.dtype != value.dtype or counts != self.counts(value.shape, where):
                    raise RecordError(f"{where} is another array than its value")
            if len({a.name for a in arrays}) < len(arrays):
                raise RecordError(f"{kind} has a name twice")
        lengths = [n for array in program.inputs for n in array.shape]
        if any(isinstance(n, list) for n in lengths) or not set(self.ends[0]) <= {
            n for n in lengths if n in self.ends[0]
        }:
            raise RecordError("inputs do not have each symbol as a length of its own")
        for i, output in enumerate(program.outputs):
            if output.replaces is not None:
                _number(output.replaces, program.inputs, f"outputs[{i}].replaces")
        for what, tree, kind in (("arguments", program.arguments, "list"), ("keywords", program.keywords, "dict")):
            if not isinstance(tree, dict) or list(tree) != [kind]:
                raise RecordError(f"{what} is no {kind}")
        _check_tree(program.arguments, program.keywords, len(program.inputs), "arguments and keywords")
        _check_tree(program.result, None, len(program.outputs), "result")
        for i, dispatch in enumerate(program.dispatches):
            self.dispatch(dispatch, f"dispatches[{i}]")
        ends = [0, *(end for _, end in program.submissions)]
        if any(a != b or a >= end for (a, end), b in zip(program.submissions, ends, strict=False)) or ends[-1] != len(
            program.dispatches
        ):
            raise RecordError("submissions do not cover the dispatches once, in order")

    def dispatch(self, dispatch: Dispatch, where: str) -> None:
        _number(dispatch.kernel, self.manifest.kernels, f"{where}.kernel")
        kernel = self.manifest.kernels[dispatch.kernel]
        for what, found, expected in (
            ("values", dispatch.values, kernel.bindings),
            ("push", dispatch.push, kernel.push),
        ):
            if len(found) != len(expected):
                raise RecordError(f"{where}.{what} has {len(found)} entries, but its kernel {len(expected)}")
        for value in dispatch.values:
            _number(value, self.program.values, f"{where}.values")
        for word in dispatch.push:
            if any(not 0 <= n < 2**32 for n in self.numbers(word, f"{where}.push")):
                raise RecordError(f"{where}.push has a number outside of 32 bits")
        for count in dispatch.groups:
            self.positive(count, f"{where}.groups")
        self.numbers(dispatch.flops, f"{where}.flops")
        self.numbers(dispatch.bytes, f"{where}.bytes")

    def numbers(self, formula: Formula, where: str) -> list[int]:
        """At the lower ends of the ranges and at the upper ones."""
        wrong = problem(formula, self.ends[0])
        if wrong:
            raise RecordError(f"{where}: {wrong}")
        try:
            return [evaluate(formula, values) for values in self.ends]
        except ZeroDivisionError:
            raise RecordError(f"{where} divides by zero") from None

    def positive(self, formula: Formula, where: str) -> list[int]:
        found = self.numbers(formula, where)
        if min(found) < 1:
            raise RecordError(f"{where} is {min(found)}, expected 1 or more")
        return found

    def counts(self, shape: tuple[Formula, ...], where: str) -> list[int]:
        """Elements, as numbers() gives them."""
        found = [self.numbers(length, f"{where}.shape") for length in shape]
        if min((n for ends in found for n in ends), default=0) < 0:
            raise RecordError(f"{where}.shape has a negative length")
        return [math.prod(ends) for ends in zip(*found, strict=True)] if found else [1, 1]


def _check_tree(tree: Tree, more: Tree, count: int, where: str) -> None:
    try:
        _check_node(tree)
        _check_node(more)
        found = leaves(tree) + leaves(more)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise RecordError(f"{where}: no tree of objects with one of list, tuple and dict") from None
    if found != list(range(count)):
        raise RecordError(f"{where} name {found}, expected 0 to {count - 1} in order")


def _check_node(node: Any) -> None:
    """Raises TypeError, ValueError or AttributeError for what is no tree."""
    if node is None or (isinstance(node, int) and not isinstance(node, bool)):
        return
    names = {k: node[k] for k in ("name", "fields") if k in node and "tuple" in node}
    ((kind, children),) = ((k, v) for k, v in node.items() if k not in names)
    if kind not in ("list", "tuple", "dict") or not isinstance(children, dict if kind == "dict" else list):
        raise ValueError
    inner: list[Any] = [*children.values()] if isinstance(children, dict) else children
    if names:
        factory: Any = namedtuple
        if len(factory(names["name"], names["fields"])._fields) != len(inner):
            raise ValueError
    for child in inner:
        _check_node(child)


def leaves(tree: Tree) -> list[int]:
    """The numbers at the leaves of a tree, in order."""
    if tree is None:
        return []
    if isinstance(tree, int):
        return [tree]
    parts: Any = tree
    (children,) = (v for k, v in parts.items() if k not in ("name", "fields"))
    return [leaf for child in (children.values() if isinstance(children, dict) else children) for leaf in leaves(child)]
