"""Kernels of a Program run one at a time, or as a beginning of it, on values that are given.

It must never change a Program: what is run here lies in memory of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.array import Array as Lazy
from vkdnn.check.operator import Array
from vkdnn.device import Device, Place, Progress, ReferenceDevice, Run, Task, VulkanDevice, Words
from vkdnn.fusion.specs import Step
from vkdnn.ir.node import IDENTITIES, Node, leaf, make, toposort
from vkdnn.kernels.base import KernelSpec
from vkdnn.program import Program, Ran
from vkdnn.schedules import Choice, scheduled

Values = dict[Node, Words]


def values_of(node: Node, words: Words) -> Array:
    """Words of a node's buffer as an array."""
    return dtypes.from_words(words[: node.words], node.dtype, node.shape)


def given(program: Program, ran: Ran) -> Values:
    """The words of a Program's inputs and of what it captured, from a run of the same Program elsewhere."""
    found = dict(zip(program.inputs, ran.arguments, strict=True))
    return found | dict(zip(program.captured, ran.captured.values(), strict=True))


def run_step(device: Device, step: Step, values: Mapping[Node, Words]) -> list[Words]:
    """The words of a kernel's outputs, run alone."""
    ins, outs = ([n for n in nodes] for nodes in (step.inputs, step.outputs))
    handles = {n: device.upload(values[n]).handle() for n in ins}
    results = [device.storage(n.words).handle() for n in outs]
    task = Task(
        step.spec,
        step.sizes,
        tuple(Place(handles[n], 0, max(1, n.words)) for n in ins),
        tuple(Place(h, 0, max(1, n.words)) for n, h in zip(outs, results, strict=True)),
    )
    run = device.prepare([task], [], results)
    run()
    return [run.fetch(h)[: n.words] for n, h in zip(outs, results, strict=True)]


def words(array: Lazy) -> Words:
    """The words of an array that is data."""
    found: Words = array.storage().read()
    return found


def believed(program: Program, arguments: Sequence[Words]) -> list[Array]:
    """The values of a Program's outputs by its kernels' references."""
    values = dict(zip(program.inputs, arguments, strict=True))
    found = by_reference(program, values | {node: storage.read() for node, storage in program.captured.items()})
    return [values_of(n, w) for n, w in zip(program.outputs, found, strict=True)]


def by_reference(program: Program, values: Values) -> list[Words]:
    """The words of a Program's results from those of its inputs and of what it captured.

    Each node has memory of its own: not even the memory plan is trusted.
    """
    values, reference = dict(values), ReferenceDevice()
    last = {n: k for k, step in enumerate(program.steps) for n in step.inputs}
    kept = {*program.results}
    for k, step in enumerate(program.steps):
        values |= dict(zip(step.outputs, run_step(reference, step, values), strict=True))
        for node in step.inputs:
            if last[node] == k and node not in kept:
                values.pop(node, None)
    return [values[r] if r.size else np.empty(0, np.uint32) for r in program.results]


def legal(device: Device, spec: KernelSpec) -> list[Any]:
    """The schedules of a kernel on a device, the default first; none on the reference."""
    return list(spec.schedules(device.target)) if isinstance(device, VulkanDevice) else []


@contextmanager
def taking(schedule: Any) -> Iterator[None]:
    """Within, kernels take this schedule, those for which it is not legal one of its kind or their default."""

    def choice(_: Any, schedules: Sequence[Any]) -> Any:
        alike = [s for s in schedules if s == schedule] or [s for s in schedules if _alike(s, schedule)]
        return (alike or list(schedules))[0]

    with scheduled(choice):
        yield


def _alike(a: Any, b: Any) -> bool:
    """Whether two schedules take the same way through a template."""
    if type(a) is not type(b):
        return False
    return all(bool(x) == bool(getattr(b, name)) for name, x in vars(a).items())


def chosen(choice: Choice | None, device: Device, step: Step) -> Any:
    """The schedule that a kernel takes under a choice; None on the reference."""
    if not isinstance(device, VulkanDevice):
        return None
    with scheduled(choice):
        return device.chosen([Task(step.spec, step.sizes, (), ())])[0]


# ---- expressions


def inside(step: Step) -> list[Node]:
    """The nodes that a kernel computes from its inputs, arguments first."""
    inputs = set(step.inputs)
    order = toposort(step.outputs, stop=lambda n: n in inputs, arguments=_arguments)
    return [n for n in order if n not in inputs and n.kind not in ("leaf", "const", "iota", "call", *IDENTITIES)]


def _arguments(node: Node) -> Sequence[Node]:
    return node.args[:1] if node.kind in IDENTITIES else node.args


def upon(roots: Sequence[Node], known: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Expressions computed from leaves that stand for the nodes ``known``: the expressions and these leaves."""
    leaves = {n: leaf(n.shape, n.dtype, f"in{k}") for k, n in enumerate(dict.fromkeys(known))}
    new: dict[Node, Node] = {}
    for node in toposort(roots, stop=lambda n: n in leaves, arguments=_arguments):
        if node in leaves:
            new[node] = leaves[node]
        elif node.kind in IDENTITIES:
            new[node] = new[node.args[0]]
        else:
            new[node] = make(node.kind, [new[a] for a in node.args], node.attrs, node.shape, node.dtype)
    return [new[r] for r in roots], list(leaves.values())


def evaluate(device: Device, roots: Sequence[Node], values: Mapping[Node, Words]) -> list[Array]:
    """Values of expressions, in Programs of their own, from the words of the nodes below which they are not entered."""
    new, leaves = upon(roots, list(values))
    found = Program(device, new, leaves)(list(values.values()))
    return [values_of(n, s.read()) for n, s in zip(new, found, strict=True)]


# ---- beginnings of a Program


class Tap(Device):
    """A device whose Programs can be cut short: all memory can be read, and the tasks are kept."""

    def __init__(self, device: Device):
        self.device = device
        self.lock: threading.RLock = device.lock
        self.name, self.kind, self.max_words, self.software = (
            device.name,
            device.kind,
            device.max_words,
            device.software,
        )
        self.tasks: list[Task] = []
        self.uploads: list[Any] = []

    def allocate(self, words: int, host: bool, remote: bool = False) -> Any:
        return self.device.allocate(words, not remote, remote)

    def write(self, handle: Any, words: Words) -> None:
        self.device.write(handle, words)

    def read(self, handle: Any, words: int) -> Words:
        return self.device.read(handle, words)

    def prepare(
        self,
        tasks: Sequence[Task],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None = None,
        cuts: Sequence[int] = (),
    ) -> Run:
        self.tasks, self.uploads = list(tasks), list(uploads)
        return self.device.prepare(tasks, uploads, downloads, progress, cuts)


class Beginnings:
    """The first kernels of a Program, with its memory, on the words of a run."""

    def __init__(self, device: Device, program: Program, ran: Ran):
        self.tap = Tap(device)
        self.program = Program(self.tap, program.outputs, program.inputs, program.donated)
        self.arguments = [w.copy() for w in ran.arguments]
        self.results = [s.read() for s in self.program(self.arguments)]

    @property
    def tasks(self) -> list[Task]:
        return self.tap.tasks

    def after(self, count: int) -> list[Words]:
        """The outputs of kernel number ``count`` - 1, right after it."""
        outputs = [p for p in self.tasks[count - 1].outputs]
        readable = [p.handle for p in outputs if not getattr(p.handle, "remote", False)]
        cuts = [c for c in self.program.cuts if c < count]
        run = self.tap.device.prepare(self.tasks[:count], self.tap.uploads, readable, None, cuts)
        self._stage(run)
        run()
        return [run.fetch(p.handle)[p.start : p.start + p.words] for p in outputs if p.handle in readable]

    def _stage(self, run: Run) -> None:
        # Slots are uploaded in the order of the inputs, those without words left out.
        for handle, words in zip(self.tap.uploads, [w for w in self.arguments if w.size], strict=True):
            run.stage(handle, words)
