"""What a bundle holds and needs: kernels with their work, arrays, memory over time, limits. Needs no device.

Before it says anything, it checks what can be checked (vkdnn/aot/checks.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from vkdnn.aot.checks import AGAIN, check_kernels, check_program
from vkdnn.aot.formulas import Formula, evaluate
from vkdnn.aot.manifest import Constant, Input, Manifest, Output, Program
from vkdnn.aot.reading import read_manifest
from vkdnn.dtypes import as_dtype
from vkdnn.errors import ArgumentError
from vkdnn.shader.bundle import Archive, BundleError
from vkdnn.shader.reflect import Reflection

_OF_RUNS = ("maxComputeWorkGroupCount", "maxStorageBufferRange", "memory")  # limits that a program's sizes decide


@dataclass(frozen=True)
class KernelUse:
    """A kernel of a bundle: what it is, how often a run dispatches it, and the work of these dispatches together."""

    number: int
    label: str
    family: str
    file: str
    spirv_bytes: int
    local_size: tuple[int, int, int]
    shared_bytes: int
    bindings: int
    push_bytes: int
    subgroups: bool
    workgroups: tuple[str, ...] | None  # of a launch, as formulas of its push constants
    dispatches: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Named:
    """An input, output or constant: its shape as the manifest writes it and as the symbols' values make it."""

    name: str
    dtype: str
    written: tuple[str, ...]
    shape: tuple[int, ...]
    bytes: int
    donated: bool = False
    initial: bool = False  # whether the weights file has a value to begin with
    replaces: str | None = None  # the donated input in whose memory an output is


@dataclass(frozen=True)
class Group:
    """Arrays whose names begin alike: params of params.layers.0.weight."""

    name: str
    arrays: tuple[Named, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(a.bytes for a in self.arrays)


@dataclass(frozen=True)
class Held:
    """A value in an arena, from the dispatch that writes it to the last that reads it, both included."""

    value: int
    offset: int  # bytes
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int
    writer: int | None  # number of the kernel that writes it


@dataclass(frozen=True)
class Arena:
    """A buffer that values share, one after the other."""

    buffer: int
    memory: str  # device or host
    bytes: int
    alive: tuple[int, ...]  # bytes of the values alive at each dispatch
    values: tuple[Held, ...]


@dataclass(frozen=True)
class Throughout:
    """A buffer that is there during the whole run: an input, output or constant."""

    buffer: int
    kind: str
    memory: str
    bytes: int


@dataclass(frozen=True)
class Memory:
    """The memory plan of a run, in bytes."""

    arenas: tuple[Arena, ...]
    throughout: tuple[Throughout, ...]

    def of(self, kind: str, memory: str | None = None) -> int:
        """Bytes of the buffers of a kind (input, output, constant, arena), in one memory or both."""
        buffers: Sequence[Arena | Throughout] = self.arenas
        if kind != "arena":
            buffers = [b for b in self.throughout if b.kind == kind]
        return sum(b.bytes for b in buffers if memory in (None, b.memory))

    @property
    def total(self) -> int:
        """Bytes of all buffers."""
        return self.of("arena") + sum(b.bytes for b in self.throughout)

    def alive(self, memory: str) -> list[int]:
        """Bytes of the values in a memory's arenas that are alive at each dispatch."""
        return [sum(at) for at in zip(*(a.alive for a in self.arenas if a.memory == memory), strict=True)]

    def lower_bound(self, memory: str) -> int:
        """Bytes below which no arrangement of the arenas could go: those alive at the fullest dispatch."""
        return max(self.alive(memory), default=0)


@dataclass(frozen=True)
class Inspection:
    """A bundle, looked through. ``memory`` is None for a set of kernels, which says nothing of a run."""

    path: str
    manifest: Manifest
    symbols: dict[str, int]  # the values for which the numbers hold
    kernels: tuple[KernelUse, ...]
    inputs: tuple[Named, ...]
    constants: tuple[Named, ...]
    outputs: tuple[Named, ...]
    memory: Memory | None

    @property
    def dispatches(self) -> int:
        """Dispatches of a run."""
        return sum(k.dispatches for k in self.kernels)

    @property
    def barriers(self) -> int:
        """Barriers of a run."""
        program = self.manifest.program
        return 0 if program is None else sum(d.barrier for d in program.dispatches)

    @property
    def submissions(self) -> int:
        """Submissions of a run."""
        program = self.manifest.program
        return 0 if program is None else len(program.submissions)

    @property
    def limits(self) -> dict[str, Any]:
        """What the device must offer, as far as it is known: a set of kernels does not say on what they run."""
        found = asdict(self.manifest.limits)
        return found if self.manifest.program is not None else {k: v for k, v in found.items() if k not in _OF_RUNS}

    def record(self) -> dict[str, Any]:
        """Everything as JSON has it."""
        manifest = self.manifest
        return {
            "path": self.path,
            "name": manifest.name,
            "version": manifest.version,
            "producer": asdict(manifest.producer),
            "numerics": asdict(manifest.numerics),
            "symbols": [{**asdict(s), "value": self.symbols[s.name]} for s in manifest.symbols],
            "limits": self.limits,
            "kernels": [asdict(k) for k in self.kernels],
            "totals": {
                "kernels": len(self.kernels),
                "spirv_bytes": sum(k.spirv_bytes for k in self.kernels),
                "dispatches": self.dispatches,
                "barriers": self.barriers,
                "submissions": self.submissions,
                "flops": sum(k.flops for k in self.kernels),
                "bytes": sum(k.bytes for k in self.kernels),
            },
            "inputs": [asdict(a) for a in self.inputs],
            "constants": [asdict(a) for a in self.constants],
            "outputs": [asdict(a) for a in self.outputs],
            "memory": None if self.memory is None else _memory_record(self.memory),
        }


def inspect(path: str | os.PathLike[str] | Archive, values: Mapping[str, int] | None = None) -> Inspection:
    """Looks through a bundle, with ``values`` for its symbols; those left out are taken at their largest.

    Raises BundleError for a bundle that is damaged, where a kernel's SPIR-V is not as the manifest says, or its plan of
    memory and barriers is wrong; ArgumentError for a value that is none of the symbols' or out of its range.
    """
    archive = path if isinstance(path, Archive) else Archive(path)
    manifest = read_manifest(archive)
    symbols = _chosen(manifest, values or {})
    reflections = check_kernels(archive, manifest)
    check_program(archive, manifest)
    try:
        return _inspection(str(archive.path), manifest, symbols, reflections)
    except ZeroDivisionError:
        said = ", ".join(f"{name} {value}" for name, value in symbols.items())
        raise BundleError(f"bundle {archive.path}: a formula divides by zero for {said}; {AGAIN}") from None


def _inspection(
    path: str, manifest: Manifest, symbols: dict[str, int], reflections: Sequence[Reflection]
) -> Inspection:  # fmt: skip
    program = manifest.program
    return Inspection(
        path=path,
        manifest=manifest,
        symbols=symbols,
        kernels=_uses(manifest, reflections, symbols),
        inputs=tuple(_input(i, symbols) for i in program.inputs) if program else (),
        constants=tuple(_named(c, symbols) for c in program.constants) if program else (),
        outputs=tuple(_output(o, program.inputs, symbols) for o in program.outputs) if program else (),
        memory=_memory(program, symbols) if program else None,
    )


def _chosen(manifest: Manifest, values: Mapping[str, int]) -> dict[str, int]:
    for name, value in values.items():
        if name not in manifest.ranges:
            known = ", ".join(manifest.ranges) or "none"
            raise ArgumentError(f"{name}: is no symbol of bundle {manifest.name}; its symbols: {known}")
        low, high = manifest.ranges[name]
        if not low <= value <= high:
            raise ArgumentError(f"{name}: got {value}, expected {low} to {high}, the range of bundle {manifest.name}")
    return {**manifest.largest, **values}


def _uses(manifest: Manifest, seen: Sequence[Reflection], symbols: Mapping[str, int]) -> tuple[KernelUse, ...]:
    dispatches = [] if manifest.program is None else manifest.program.dispatches
    count, flops, moved = ([0] * len(manifest.kernels) for _ in range(3))
    for d in dispatches:
        count[d.kernel] += 1
        flops[d.kernel] += evaluate(d.flops, symbols)
        moved[d.kernel] += evaluate(d.bytes, symbols)
    return tuple(
        KernelUse(
            i, k.label, k.family, k.file, k.size, k.local_size, k.shared_bytes, len(k.bindings),
            seen[i].push_bytes, seen[i].uses_subgroups,
            None if k.workgroups is None else tuple(map(formula_text, k.workgroups)), count[i], flops[i], moved[i],
        )
        for i, k in enumerate(manifest.kernels)
    )  # fmt: skip


def formula_text(formula: Formula) -> str:
    """A formula as people write it.

    >>> formula_text(["//", ["+", ["*", 2, "tokens"], 127], 128])
    '(2*tokens + 127)//128'
    """
    return _written(formula)[0]


def _written(formula: Formula) -> tuple[str, int]:
    """A formula's text, and how tightly its outermost operator binds."""
    if not isinstance(formula, list):
        return str(formula), 3
    name, (left, a), (right, b) = formula[0], *map(_written, formula[1:])
    if name in ("min", "max"):
        return f"{name}({left}, {right})", 3
    own = 1 if name in ("+", "-") else 2
    left = f"({left})" if a < own else left
    right = f"({right})" if b < own or (b == own and name not in ("+", "*")) else right
    return (f"{left} {name} {right}" if own == 1 else f"{left}{name}{right}"), own


def groups(arrays: Sequence[Named]) -> list[Group]:
    """The arrays by the first part of their names, in the order in which these come."""
    found: dict[str, list[Named]] = {}
    for a in arrays:
        found.setdefault(a.name.split(".")[0], []).append(a)
    return [Group(name, tuple(members)) for name, members in found.items()]


def _named(array: Input | Constant | Output, symbols: Mapping[str, int]) -> Named:
    lengths = tuple(evaluate(n, symbols) for n in array.shape)
    size = 4 * as_dtype(array.dtype).words(math.prod(lengths))
    return Named(array.name, array.dtype, tuple(map(formula_text, array.shape)), lengths, size)


def _input(array: Input, symbols: Mapping[str, int]) -> Named:
    return replace(_named(array, symbols), donated=array.donated, initial=array.initial is not None)


def _output(array: Output, inputs: Sequence[Input], symbols: Mapping[str, int]) -> Named:
    replaced = None if array.replaces is None else inputs[array.replaces].name
    return replace(_named(array, symbols), replaces=replaced)


def _memory(program: Program, symbols: Mapping[str, int]) -> Memory:
    writers = {v: d.kernel for d in reversed(program.dispatches) for v in d.values}
    held: dict[int, list[Held]] = {}
    end = len(program.dispatches) - 1
    for number, v in enumerate(program.values):
        shape = tuple(evaluate(n, symbols) for n in v.shape)
        first, last = (0 if v.first is None else v.first), (end if v.last is None else v.last)
        words = evaluate(v.words, symbols)
        held.setdefault(v.buffer, []).append(
            Held(number, 4 * v.offset, 4 * words, v.dtype, shape, first, last, writers.get(number))
        )
    arenas, throughout = [], []
    for number, b in enumerate(program.buffers):
        size = 4 * evaluate(b.words, symbols)
        if b.kind == "arena":
            values = held.get(number, [])
            arenas.append(Arena(number, b.memory, size, _alive(values, end + 1), tuple(values)))
        else:
            throughout.append(Throughout(number, b.kind, b.memory, size))
    return Memory(tuple(arenas), tuple(throughout))


def _alive(values: Sequence[Held], dispatches: int) -> tuple[int, ...]:
    changes = [0] * (dispatches + 1)
    for v in values:
        changes[v.first] += v.bytes
        changes[v.last + 1] -= v.bytes
    return tuple(accumulate(changes[:-1]))


def _memory_record(memory: Memory) -> dict[str, Any]:
    kinds = ("input", "output", "constant", "arena")
    return {
        "total": memory.total,
        **{kind: {where: memory.of(kind, where) for where in ("device", "host")} for kind in kinds},
        "lower_bound": {where: memory.lower_bound(where) for where in ("device", "host")},
        "arenas": [asdict(a) for a in memory.arenas],
        "throughout": [asdict(b) for b in memory.throughout],
    }
