"""What gradcheck works on, in one form: a function with values in float64 and gradients that somebody claims.

Here are functions of vkdnn, by their graphs, and pairs of NumPy functions; vkdnn.check.subjects_torch has PyTorch's.
A subject must never judge, nor keep an array that the user's code could change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from vkdnn import dtypes, tracing, tree
from vkdnn.array import Array as VkArray
from vkdnn.array import asarray, host_array, host_words
from vkdnn.autodiff.vjp import pullback
from vkdnn.check import wide
from vkdnn.check.users import check_count, parameters
from vkdnn.device import Device, current_device
from vkdnn.errors import ArgumentError, DtypeError, ShapeError, VkdnnError
from vkdnn.ir import build
from vkdnn.ir.arguments import short
from vkdnn.ir.node import Node, leaf
from vkdnn.program import Program
from vkdnn.schedules import Choice, scheduled

Array = np.ndarray[Any, Any]


class Subject(Protocol):
    """A function of arrays, flat: ``inputs`` are its arguments, float ones in float64; ``floats`` those to check."""

    name: str
    names: list[str]
    inputs: list[Array]
    floats: list[int]
    analytic: bool  # whether values() takes complex arrays
    note: str  # what a report has to say of it

    def values(self, arrays: Sequence[Array], copies: int) -> list[Array]:
        """The float results, each with an axis of ``copies`` in front, as some of the arrays have it."""

    def gradients(self, cotangents: Sequence[Array]) -> list[Array]:
        """The claimed gradients of sum(results . cotangents), one for each of ``floats``."""

    def second(self, cotangents: Sequence[Array]) -> Subject:
        """The gradients as a function of inputs and cotangents. Raises VkdnnError where these have no gradient."""


# ---- functions of vkdnn


class GraphSubject:
    """A function of vkdnn: values and gradients are its graphs in float64; device_gradients() runs the second."""

    note = ""

    def __init__(
        self,
        name: str,
        names: list[str],
        nodes: list[Node],
        inputs: list[Array],
        floats: list[int],
        results: list[Node],
    ):
        self.name, self.names, self.nodes, self.floats = name, names, nodes, floats
        self.given = inputs  # in their own dtypes
        self.inputs = [_wide(x, n) for x, n in zip(inputs, nodes, strict=True)]
        self.results = [r for r in results if r.dtype.category == "f"]
        if not self.results:
            raise DtypeError(f"gradcheck: {name} gives no result of a float dtype, so there is no gradient to check")
        self.cotangents = [leaf(r.shape, dtypes.float32, f"cotangent {k}") for k, r in enumerate(self.results)]
        wrt = [nodes[k] for k in floats]
        found = pullback(self.results, self.cotangents, wrt)
        self.gradient_nodes = [
            build.full(n.shape, 0.0, n.dtype) if g is None else build.cast(g, n.dtype)
            for n, g in zip(wrt, found, strict=True)
        ]
        self.analytic = wide.analytic(self.results)
        self._forward: wide.Plan | None = None

    def values(self, arrays: Sequence[Array], copies: int) -> list[Array]:
        if self._forward is None:
            self._forward = wide.prepare(self.results, self.nodes, self.inputs)
        found = self._forward(*arrays)
        shapes = [r.shape for r in self.results]
        return [np.broadcast_to(x, (copies, *s)) if x.shape == s else x for x, s in zip(found, shapes, strict=True)]

    def gradients(self, cotangents: Sequence[Array]) -> list[Array]:
        given = [*self.inputs, *cotangents]
        return wide.prepare(self.gradient_nodes, [*self.nodes, *self.cotangents], given)(*given)

    def second(self, cotangents: Sequence[Array]) -> GraphSubject:
        names = [*self.names, *(f"cotangent {k}" if k else "cotangent" for k in range(len(self.cotangents)))]
        nodes, given = [*self.nodes, *self.cotangents], [*self.given, *(np.asarray(c, np.float32) for c in cotangents)]
        floats = [*self.floats, *range(len(self.nodes), len(nodes))]
        return GraphSubject(f"gradient of {self.name}", names, nodes, given, floats, self.gradient_nodes)


def graph_subject(function: Callable[..., Any], inputs: Any, name: str = "", wrt: Sequence[int] | None = None) -> Any:
    """The subject of a function of vkdnn on the current device; ``inputs`` are its arguments, trees of arrays.

    ``wrt`` are numbers of leaves to differentiate with respect to, by default all floats. Raises ArgumentError where
    there is none, and what the function raises for its arguments.
    """
    leaves, structure = tree.flatten(list(inputs))
    given = [_host(x) for x in leaves]
    kinds = [x.dtype if isinstance(x, VkArray) else dtypes.of_numpy(g) for x, g in zip(leaves, given, strict=True)]
    names = input_names(function, inputs)
    floats = [k for k, d in enumerate(kinds) if d.category == "f"]
    floats = floats if wrt is None else [k for k in wrt if k in floats]
    name = name or name_of(function)
    if not floats:
        raise ArgumentError(f"gradcheck: {name} has no input of a float dtype, expected one to differentiate by")
    check_count(name, function, len(inputs))
    device = current_device()
    nodes = [leaf(g.shape, d, n) for g, d, n in zip(given, kinds, names, strict=True)]
    with device, tracing.trace():
        value = function(*tree.unflatten(structure, [VkArray(n, device) for n in nodes]))
        results = [asarray(r, name=f"{name}: result").node for r in tree.flatten(value)[0]]
    return GraphSubject(name, names, nodes, given, floats, results)


def device_gradients(
    subjects: Sequence[GraphSubject],
    cotangents: Sequence[Sequence[Array]],
    device: Device,
    choice: Choice | None = None,
    runs: int = 1,
) -> list[list[list[Array]]]:
    """What a device gives for the gradients: of each run of one Program, of each subject, of each of its ``floats``.

    ``choice`` picks the schedules, as in vkdnn.schedules.scheduled.
    """
    # With the results, so that the kernels are those of a pass forward and back.
    outputs = [n for s in subjects for n in (*s.results, *s.gradient_nodes)]
    inputs = [n for s in subjects for n in (*s.nodes, *s.cotangents)]
    words = []
    for subject, given in zip(subjects, cotangents, strict=True):
        arrays = [*subject.given, *(np.asarray(c, np.float32) for c in given)]
        nodes = [*subject.nodes, *subject.cotangents]
        words += [host_words(x, n.dtype) for x, n in zip(arrays, nodes, strict=True)]
    if choice is None:
        program = Program(device, outputs, inputs)
        storages = [_read(program, words) for _ in range(runs)]
    else:
        with scheduled(choice):
            program = Program(device, outputs, inputs)
            storages = [_read(program, words) for _ in range(runs)]
    found = []
    for run in storages:
        rest = iter(run)
        whole = [[next(rest) for _ in (*s.results, *s.gradient_nodes)] for s in subjects]
        found.append([part[len(s.results) :] for s, part in zip(subjects, whole, strict=True)])
    return found


def _read(program: Program, words: list[Any]) -> list[Array]:
    results = program([w.copy() for w in words])
    return [
        np.array(dtypes.from_words(storage.read(), n.dtype, n.shape), copy=True)
        for n, storage in zip(program.outputs, results, strict=True)
    ]


def _host(value: Any) -> Array:
    """A leaf as NumPy data in a dtype of vkdnn, flushed as vk.array() does it."""
    if isinstance(value, VkArray):
        return value.numpy()
    host = host_array("gradcheck: input", value)
    kind = dtypes.of_numpy(host)
    return np.array(dtypes.from_words(host_words(host, kind), kind, host.shape), copy=True)


def _wide(values: Array, node: Node) -> Array:
    return values.astype(np.float64) if node.dtype.category == "f" else values


# ---- pairs of NumPy functions


NARROW = "evaluated in float32"


class NumpySubject:
    """A function of NumPy arrays and its vjp, called in float64, or in float32 if ``narrow``."""

    def __init__(
        self, forward: Callable[..., Any], vjp: Callable[..., Any], inputs: Sequence[Any], name: str = "",
        complex_step: bool = False, narrow: bool = False,
    ):  # fmt: skip
        self.name = name or name_of(forward)
        self.forward, self.vjp, self.analytic, self.narrow = forward, vjp, complex_step, narrow
        self.note = NARROW if narrow else ""
        check_count(self.name, forward, len(inputs))
        check_count(f"the vjp of {self.name}", vjp, len(inputs) + 1)
        given = [_numpy(f"{self.name}: input {k}", x) for k, x in enumerate(inputs)]
        self.names = input_names(forward, given)
        self.floats = [k for k, x in enumerate(given) if x.dtype.kind == "f"]
        self.inputs = [self._cast(x).astype(np.float64) if x.dtype.kind == "f" else x for x in given]
        if not self.floats:
            raise ArgumentError(f"gradcheck: {self.name} has no input of a float dtype; give arrays of floats")
        self.structure: tree.Structure = None
        self.kept: list[int] = []
        self.shapes: list[tuple[int, ...]] = []

    def narrowed(self) -> NumpySubject:
        """The same in float32."""
        return NumpySubject(self.forward, self.vjp, self.inputs, self.name, self.analytic, True)

    def _cast(self, x: Array) -> Array:
        """An own array, in the dtype in which the functions are called."""
        kinds = {"f": np.float32, "c": np.complex64} if self.narrow else {"f": np.float64, "c": np.complex128}
        return x.astype(kinds[x.dtype.kind]) if x.dtype.kind in kinds else x.copy()

    def values(self, arrays: Sequence[Array], copies: int) -> list[Array]:
        parts = [
            self._near([x[c] if x.ndim > i.ndim else x for x, i in zip(arrays, self.inputs, strict=True)])
            for c in range(copies)
        ]
        return [np.stack(p) for p in zip(*parts, strict=True)]

    def _near(self, arrays: Sequence[Array]) -> list[Array]:
        """The values at a point; NaN where the function refuses it, but not the first one, nor complex numbers."""
        known, kept, structure = self.shapes, self.kept, self.structure
        try:
            found = self._call(arrays)
            if not known or self.shapes == known:
                return found
        except Exception:  # out of the domain, as the function says it
            if not known or any(x.dtype.kind == "c" for x in arrays):
                raise
        self.shapes, self.kept, self.structure = known, kept, structure
        return [np.full(known[k], np.nan) for k in kept]

    def _call(self, arrays: Sequence[Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            value = self.forward(*map(self._cast, arrays))
        leaves, self.structure = tree.flatten(value)
        found = [np.asarray(v) for v in leaves]
        self.shapes = [x.shape for x in found]
        self.kept = [k for k, x in enumerate(found) if x.dtype.kind in "fc" or x.dtype.name == "bfloat16"]
        if not self.kept:
            raise DtypeError(f"gradcheck: {self.name} gives no result of a float dtype (it gave {short(value)})")
        return [found[k].astype(np.complex128 if found[k].dtype.kind == "c" else np.float64) for k in self.kept]

    def gradients(self, cotangents: Sequence[Array]) -> list[Array]:
        filled = [np.zeros(s) for s in self.shapes]  # results of integers have no gradient
        for k, c in zip(self.kept, cotangents, strict=True):
            filled[k] = np.array(c)
        given = [*map(self._cast, filled)]
        with np.errstate(all="ignore"):
            found = self.vjp(tree.unflatten(self.structure, given), *map(self._cast, self.inputs))
        parts = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(parts) == len(self.inputs):
            parts = [parts[k] for k in self.floats]
        if len(parts) != len(self.floats):
            raise ArgumentError(
                f"gradcheck: the vjp of {self.name} gave {len(parts)} gradients, expected one for each of its "
                f"{len(self.inputs)} inputs, or of the {len(self.floats)} of a float dtype"
            )
        return [_gradient(self, k, g) for k, g in zip(self.floats, parts, strict=True)]

    def second(self, cotangents: Sequence[Array]) -> Subject:
        raise ArgumentError(
            f"gradcheck: the second derivatives of {self.name} need a vjp of its vjp; check the pair of these two"
        )


def _gradient(subject: NumpySubject, k: int, gradient: Any) -> Array:
    shape, name = subject.inputs[k].shape, subject.names[k]
    if gradient is None:
        return np.zeros(shape)
    found = np.asarray(gradient)
    if found.dtype.kind not in "fiub":
        raise DtypeError(f"gradcheck: the gradient for {name} is {short(gradient)}, expected an array of floats")
    if found.shape != shape:
        raise ShapeError(
            f"gradcheck: the gradient for {name} has shape {found.shape}, expected that of {name}, {shape}"
        )
    return found.astype(np.float64)


def _numpy(name: str, value: Any) -> Array:
    try:
        found = np.array(value)
    except VkdnnError:
        raise
    except (ValueError, TypeError):
        raise ArgumentError(f"{name}: got {short(value)}, expected an array") from None
    if found.dtype.name == "bfloat16":
        return found.astype(np.float32)
    if found.dtype.kind not in "fiub":
        raise DtypeError(f"{name}: got {short(value)} (NumPy dtype {found.dtype}), expected floats, integers or bools")
    return found


# ---- names


def name_of(function: Any) -> str:
    """What a function is called in a report."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).replace("<locals>.", "").rsplit(".<", 1)[-1].strip("<>") or "function"


def input_names(function: Any, inputs: Sequence[Any]) -> list[str]:
    """A name for each leaf of the arguments: the parameter's, with the path inside where that is a tree."""
    signature = parameters(function)
    known = signature.names if signature is not None else ()
    names = []
    for k, argument in enumerate(inputs):
        first = known[k] if k < len(known) else f"input {k}"
        names += [f"{first}.{path}" if path else first for path in tree.paths(argument)]
    return names
