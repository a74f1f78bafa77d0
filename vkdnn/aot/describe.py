"""A traced function as the program of a manifest: buffers, values with lifetimes, dispatches with barriers.

A pure function of a Program and a target: it compiles nothing and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vkdnn.aot import manifest as m
from vkdnn.aot.formulas import Formula
from vkdnn.aot.records import Tree
from vkdnn.aot.target import BuildTarget
from vkdnn.device import Storage
from vkdnn.ir.dims import formula, largest, maximum
from vkdnn.ir.memory import on_host
from vkdnn.ir.node import Node
from vkdnn.ir.symbolic import symbols
from vkdnn.program import Program
from vkdnn.runtime.hazards import plan_barriers
from vkdnn.runtime.interface import Launch, Region
from vkdnn.shader.request import ShaderRequest


@dataclass(frozen=True)
class Argument:
    """An input of the program: its node, its name, its shape as it was given, and whether it is donated and has a value
    to begin with."""

    node: Node
    name: str
    shape: tuple[Formula, ...]
    donated: bool
    initial: bool


@dataclass(frozen=True)
class Traced:
    """A function that was traced: its Program, what its inputs, constants and results are called, its trees."""

    program: Program
    arguments: tuple[Argument, ...]
    named: dict[Node, str]  # arguments that became constants
    results: tuple[tuple[str, tuple[int, ...], Any], ...]  # name, shape, dtype
    trees: tuple[Tree, Tree, Tree]  # positional arguments, keywords, result


@dataclass(frozen=True)
class Described:
    """The program, the requests of its kernels in the order of their numbers, and the constants' storages by name."""

    program: m.Program
    requests: tuple[ShaderRequest, ...]
    storages: dict[str, Storage]


@dataclass(eq=False)
class _Memory:
    """A buffer as launches see it: something to compare regions by."""

    words: int
    host: bool = False
    remote: bool = False


def describe(traced: Traced, target: BuildTarget) -> Described:
    """The program of a traced function, its kernels scheduled for a target."""
    return _Description(traced, target).make()


class _Description:
    def __init__(self, traced: Traced, target: BuildTarget):
        self.traced, self.target, self.program = traced, target, traced.program
        self.buffers: list[m.Buffer] = []
        self.values: list[m.Value] = []
        self.at: dict[Node, int] = {}  # node -> number of its value
        self.requests: dict[str, int] = {}
        self.listed: list[ShaderRequest] = []
        self.storages: dict[str, Storage] = {}
        self.first: dict[Node, int] = {}
        self.last: dict[Node, int] = {}
        for i, step in enumerate(self.program.steps):
            for node in (*step.inputs, *step.outputs):
                self.last[node] = i
            for node in step.outputs:
                self.first[node] = i

    def make(self) -> Described:
        program, traced = self.program, self.traced
        for argument in traced.arguments:
            self.place(argument.node, self.buffer("input", argument.node), lasting=argument.node in program.returned)
        constants = tuple(self.constants())
        for root in program.roots:
            donor = program.taken.get(root)
            self.place(root, self.buffer("output", root) if donor is None else self.buffer_of(donor), lasting=True)
        self.arenas()
        dispatches = tuple(self.dispatches())
        return Described(
            m.Program(
                buffers=tuple(self.buffers),
                values=tuple(self.values),
                inputs=tuple(
                    m.Input(
                        name=a.name,
                        dtype=str(a.node.dtype),
                        shape=a.shape,
                        value=self.at[a.node],
                        donated=a.donated,
                        initial=a.name if a.initial else None,
                    )
                    for a in traced.arguments
                ),
                constants=constants,
                outputs=tuple(self.outputs()),
                arguments=traced.trees[0],
                keywords=traced.trees[1],
                result=traced.trees[2],
                dispatches=dispatches,
                submissions=tuple(self.submissions()),
            ),
            tuple(self.listed),
            self.storages,
        )

    # ---- memory

    def buffer(self, kind: str, node: Node, words: Any = None, host: bool = False) -> int:
        self.buffers.append(m.Buffer(kind, "host" if host else "device", _words(node) if words is None else words))
        return len(self.buffers) - 1

    def buffer_of(self, node: Node) -> int:
        return self.values[self.at[node]].buffer

    def place(self, node: Node, buffer: int, offset: int = 0, lasting: bool = False) -> None:
        shape = tuple(map(formula, node.shape))
        first, last = self.first.get(node), None if lasting else self.last.get(node)
        self.at[node] = len(self.values)
        self.values.append(m.Value(buffer, offset, _words(node), str(node.dtype), shape, first, last))

    def constants(self) -> Iterator[m.Constant]:
        """Captured arrays, each storage once; several nodes may share it."""
        names: dict[int, Node] = {}
        for node, storage in self.program.captured.items():
            if id(storage) in names:
                self.place(node, self.buffer_of(names[id(storage)]), lasting=True)
                continue
            names[id(storage)] = node
            name = self.traced.named.get(node, f"constant.{len(self.storages)}")
            self.storages[name] = storage
            self.place(node, self.buffer("constant", node), lasting=True)
            yield m.Constant(name, str(node.dtype), tuple(map(int, node.shape)), self.at[node])

    def arenas(self) -> None:
        for host, plan in ((False, self.program.plan), (True, self.program.host_plan)):
            arenas = [len(self.buffers) + i for i in range(len(plan.arenas))]
            self.buffers += [m.Buffer("arena", "host" if host else "device", words) for words in plan.arenas]
            for node, (arena, offset) in sorted(plan.places.items(), key=lambda item: self.first[item[0]]):
                assert on_host(node) == host
                self.place(node, arenas[arena], offset)

    # ---- work

    def dispatches(self) -> Iterator[m.Dispatch]:
        steps = self.program.steps
        barriers = self.barriers()
        for step, barrier in zip(steps, barriers, strict=True):
            schedule = self.target.schedule(step.spec, step.sizes)
            request = self.target.request(step.spec, schedule)
            if request.identity not in self.requests:
                self.requests[request.identity] = len(self.listed)
                self.listed.append(request)
            values = tuple(self.at[n] for n in (*step.inputs, *step.outputs))
            x, y, z = map(formula, step.spec.groups(step.sizes, schedule))
            cost = step.spec.cost(step.sizes)
            yield m.Dispatch(
                kernel=self.requests[request.identity],
                values=values,
                # As the template's push constants: where each binding begins, sizes, symbols of the spec.
                push=(
                    *(self.values[v].offset for v in values),
                    *map(formula, step.sizes),
                    *(s.name for s in symbols(step.spec)),
                ),
                groups=(x, y, z),
                barrier=barrier,
                flops=formula(cost.flops),
                bytes=formula(cost.bytes),
            )

    def submissions(self) -> Iterator[tuple[int, int]]:
        if self.program.steps:
            yield from zip([0, *self.program.cuts], [*self.program.cuts, len(self.program.steps)], strict=True)

    def barriers(self) -> list[bool]:
        """Before each dispatch; the first of a submission needs none."""
        memory = [_Memory(0) for _ in self.buffers]

        def regions(nodes: Sequence[Node]) -> tuple[Region, ...]:
            values = [(self.values[self.at[n]], largest(n.words)) for n in nodes]
            return tuple(Region(memory[v.buffer], v.offset, v.offset + max(1, words)) for v, words in values)

        launches = [
            Launch(b"", "", (), (), (1, 1, 1), regions(step.inputs), regions(step.outputs))
            for step in self.program.steps
        ]
        return [barrier for first, end in self.submissions() for barrier in plan_barriers(launches[first:end])]

    def outputs(self) -> Iterator[m.Output]:
        numbers = {a.node: i for i, a in enumerate(self.traced.arguments)}
        for (name, shape, dtype), node in zip(self.traced.results, self.program.results, strict=True):
            donor = self.program.taken.get(node)
            replaced = numbers[donor] if donor is not None else numbers.get(node)
            if replaced is not None and not self.traced.arguments[replaced].donated:
                replaced = None
            yield m.Output(name, str(dtype), tuple(map(formula, shape)), self.at[node], replaced)


def _words(node: Node) -> Formula:
    return formula(maximum(1, node.words))
