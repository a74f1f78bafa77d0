"""Where two devices part: the first Program, in it the first kernel, in that the first expression whose bits differ.

It must never name a kernel that gives the right bits on the right inputs: each is run alone on the values of the device
that is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vkdnn.array import Array as Lazy
from vkdnn.check.bits import Place, bits_text, difference, value_text
from vkdnn.check.operator import Array
from vkdnn.check.steps import (
    Beginnings,
    Values,
    by_reference,
    chosen,
    evaluate,
    given,
    inside,
    legal,
    run_step,
    taking,
    upon,
    values_of,
)
from vkdnn.check.work import Subject, quiet
from vkdnn.device import Device, ReferenceDevice, Task, Words
from vkdnn.device import Place as Region
from vkdnn.errors import VkdnnError
from vkdnn.fusion.specs import Step
from vkdnn.ir.node import Node
from vkdnn.program import Ran, recorded
from vkdnn.schedules import Choice, scheduled
from vkdnn.shader.request import label_of

CHANCES = 8  # runs of a kernel by which it is seen whether it always gives the same
LINES = 12  # of an expression that is printed
SHOWN = 3  # operands

EXPRESSION, KERNEL, ORDER, CHANCE, PROGRAM = "expression", "kernel", "order", "chance", "program"


@dataclass(frozen=True)
class Finger:
    """The first thing that differs. Numbers count from 1; 0 where there is none.

    ``kind``: an expression (a part of a kernel), a whole kernel, the order or memory of kernels that are right alone,
    chance (a kernel that does not always give the same), or only a Program (nothing in it differs alone).
    """

    kind: str
    verdict: str
    program: int = 0
    programs: int = 0
    kernel: int = 0
    kernels: int = 0
    label: str = ""
    family: str = ""
    schedule: str = ""
    wrong: tuple[str, ...] = ()
    """Schedules of the kernel under which it differs."""
    right: tuple[str, ...] = ()
    expression: str = ""
    result: int = 0
    place: Place | None = None
    operands: tuple[str, ...] = ()
    """Of an elementwise expression, what goes in at the first index that differs."""


@dataclass(frozen=True)
class Evidence:
    """What a reproducer needs: kernels with their memory, its words beforehand, and what is expected of the last."""

    tasks: tuple[Task, ...]
    schedules: tuple[Any, ...]
    before: dict[int, Words]
    """Words of buffers that hold something: by the number that stands as a handle in the tasks."""
    sizes: dict[int, int]
    expected: tuple[Words, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Located:
    finger: Finger
    evidence: Evidence | None = field(default=None, compare=False, repr=False)


def locate(
    subject: Subject, device: Device, believed: Device, choice: Choice | None, chances: int = CHANCES
) -> Located:
    """Bisect a subject whose results on ``device`` differ from those on ``believed``, or from run to run."""
    with quiet():
        with scheduled(choice), recorded() as got:
            subject.session(device).run()
        if isinstance(believed, ReferenceDevice):
            want = [_by_reference(ran) for ran in got]
        else:
            with recorded() as want:
                subject.session(believed).run()
        for number, (a, b) in enumerate(zip(want, got, strict=False), 1):
            arguments = zip(a.program.inputs, a.arguments, b.arguments, strict=False)
            if any(difference(values_of(n, x), values_of(n, y)) for n, x, y in arguments):
                verdict = f"Program {number} gets other inputs, although all before it agree: the fault is on the host"
                return Located(Finger(PROGRAM, verdict, number, len(want)))
            if _differs(a, b):
                return _Bisection(a, b, device, believed, choice, chances).run(number, len(want))
        if len(want) != len(got):
            verdict = f"{len(want)} Programs on {believed.name}, {len(got)} on {device.name}; those before agree"
            return Located(Finger(PROGRAM, verdict, min(len(want), len(got)) + 1, len(want)))
        return _unsteady(want, got, device, believed, choice, chances)


def _by_reference(ran: Ran) -> Ran:
    """The run that a Program would have had on the reference, with the same inputs: all before it are believed."""
    values = dict(zip(ran.program.inputs, ran.arguments, strict=True)) | ran.captured
    return Ran(ran.program, ran.arguments, ran.captured, by_reference(ran.program, values))


def _unsteady(
    want: list[Ran], got: list[Ran], device: Device, believed: Device, choice: Choice | None, chances: int
) -> Located:
    """Nothing differed this time: look for a kernel that does not always give the same."""
    for number, (a, b) in enumerate(zip(want, got, strict=True), 1):
        found = _Bisection(a, b, device, believed, choice, chances).alone()
        if found is not None:
            return replace(found, finger=replace(found.finger, program=number, programs=len(want)))
    return Located(Finger(PROGRAM, f"run again, nothing differs, nor does any kernel in {chances} runs", 0, len(want)))


def _differs(a: Ran, b: Ran) -> bool:
    outputs = zip(a.program.outputs, a.results, b.results, strict=True)
    return any(difference(values_of(n, x), values_of(n, y)) for n, x, y in outputs)


class _Bisection:
    """One Program that ran on both devices, with the same inputs."""

    def __init__(self, want: Ran, got: Ran, device: Device, believed: Device, choice: Choice | None, chances: int):
        self.want, self.got, self.device, self.believed = want, got, device, believed
        self.choice, self.chances = choice, chances
        self.steps: list[Step] = got.program.steps
        self.values: Values = given(got.program, want)

    def run(self, number: int, programs: int) -> Located:
        found = self.alone() or self.in_order()
        return replace(found, finger=replace(found.finger, program=number, programs=programs))

    # ---- a kernel alone

    def alone(self) -> Located | None:
        """The first kernel that differs on the inputs that it ought to have."""
        for number, step in enumerate(self.steps, 1):
            want = run_step(self.believed, step, self.values)
            with scheduled(self.choice):
                got = run_step(self.device, step, self.values)
                again = [run_step(self.device, step, self.values) for _ in range(self.chances - 1)]
            finger = self._kernel(number)
            if unlike := next((x for x in again if _first(step, got, x)), None):
                result, place = _first(step, got, unlike) or (0, None)
                verdict = (
                    f"kernel {number} does not always give the same: {1 + len(again)} runs on the same inputs differ"
                )
                finger = replace(finger, kind=CHANCE, verdict=verdict, result=result, place=place)
                return Located(finger, self._evidence(step, want))
            if first := _first(step, want, got):
                finger = replace(finger, result=first[0], place=first[1])
                return Located(self._expression(finger, step), self._evidence(step, want))
            self.values |= dict(zip(step.outputs, want, strict=True))
        return None

    def _kernel(self, number: int) -> Finger:
        step = self.steps[number - 1]
        return Finger(
            KERNEL,
            "",
            kernel=number,
            kernels=len(self.steps),
            label=label_of(step.spec.text()),
            family=type(step.spec).__name__,
            schedule=str(chosen(self.choice, self.device, step)),
        )

    def _evidence(self, step: Step, want: list[Words]) -> Evidence:
        ins = list(dict.fromkeys(step.inputs))
        number = {n: k for k, n in enumerate((*ins, *step.outputs))}

        def regions(nodes: Sequence[Node]) -> tuple[Region, ...]:
            return tuple(Region(number[n], 0, max(1, n.words)) for n in nodes)

        return Evidence(
            (Task(step.spec, step.sizes, regions(step.inputs), regions(step.outputs)),),
            (chosen(self.choice, self.device, step),),
            {number[n]: self.values[n] for n in ins},
            {k: max(1, n.words) for n, k in number.items()},
            tuple(want),
            tuple(n.dtype.name for n in step.outputs),
            tuple(n.shape for n in step.outputs),
        )

    # ---- an expression of it

    def _expression(self, finger: Finger, step: Step) -> Finger:
        """The first expression of a kernel that differs, else the whole of it and the schedules that do."""
        wrong: list[str] = []
        right: list[str] = []
        want = run_step(self.believed, step, self.values)
        for schedule in legal(self.device, step.spec):
            with taking(schedule):
                differs = _first(step, want, run_step(self.device, step, self.values))
            (wrong if differs else right).append(str(schedule))
        finger = replace(finger, wrong=tuple(wrong), right=tuple(right))
        whole = inside(step)
        for node in whole if len(whole) > 1 else ():
            found = self._part(finger, step, node)
            if found is not None:
                return found
        if len(whole) == 1 and whole[0].kind == "map":
            return self._part(finger, step, whole[0]) or finger
        agree = f", while it agrees under {' and '.join(right)}" if right else ""
        parts = "no part of it does alone" if len(whole) > 1 else "it is one operation"
        verdict = f"kernel {finger.kernel} differs under {finger.schedule}{agree}; {parts}"
        return replace(finger, verdict=verdict, expression=self._text(step, list(step.outputs)))

    def _part(self, finger: Finger, step: Step, node: Node) -> Finger | None:
        inputs = {n: self.values[n] for n in step.inputs}
        schedule = chosen(self.choice, self.device, step)
        try:
            (want,) = evaluate(self.believed, [node], inputs)
            with taking(schedule):
                (got,) = evaluate(self.device, [node], inputs)
        except VkdnnError:  # an expression that no kernel computes by itself
            return None
        place = difference(want, got)
        if place is None:
            return None
        operands: tuple[str, ...] = ()
        if node.kind == "map":
            values = evaluate(self.believed, list(node.args), inputs)
            operands = tuple(_operand(x, place.index) for x in values[:SHOWN])
        last = self._text(step, [node]).splitlines()[-2].split(" = ", 1)[-1]
        verdict = f"in kernel {finger.kernel} the expression `{last}` is the first that differs"
        return replace(
            finger,
            kind=EXPRESSION,
            verdict=verdict,
            expression=self._text(step, [node]),
            place=place,
            operands=operands,
        )

    def _text(self, step: Step, nodes: list[Node]) -> str:
        from vkdnn.show import graph_text

        new, _ = upon(nodes, step.inputs)
        lines = graph_text([Lazy(n) for n in new]).splitlines()
        return "\n".join(lines if len(lines) <= LINES else ["...", *lines[-LINES:]])

    # ---- kernels in their order

    def in_order(self) -> Located:
        """All kernels are right alone: find the one that gets something else than was computed for it."""
        with scheduled(self.choice):
            begun = Beginnings(self.device, self.got.program, self.want)
            for number, step in enumerate(self.steps, 1):
                got = begun.after(number)
                first = _first(step, [self.values[n] for n in step.outputs], got) if got else None
                if first is not None:
                    finger = replace(self._kernel(number), kind=ORDER, result=first[0], place=first[1])
                    finger = replace(finger, verdict=self._disorder(begun.tasks, number))
                    return Located(finger, self._tape(begun, number))
        verdict = "every kernel is right alone and in its place; run again, the Program agrees"
        for node, words in zip(begun.program.results, begun.results, strict=True):
            base = self.values.get(node)
            if base is not None and difference(values_of(node, base), values_of(node, words)):
                verdict = "every kernel is right, but a later one writes over a result: the memory plan is wrong"
        return Located(Finger(PROGRAM, verdict, kernels=len(self.steps)))

    def _disorder(self, tasks: Sequence[Task], number: int) -> str:
        """What comes between a kernel and what it reads."""
        step, task = self.steps[number - 1], tasks[number - 1]
        producers = {n: k for k, s in enumerate(self.steps[: number - 1], 1) for n in s.outputs}
        for node, region in zip(step.inputs, task.inputs, strict=True):
            for k in range(producers.get(node, 0) + 1, number):
                if any(_overlap(region, other) for other in tasks[k - 1].outputs):
                    return (
                        f"kernel {number} is right alone, but kernel {k} has written over what it reads: "
                        "a fault of the memory plan"
                    )
        before = max((producers[n] for n in step.inputs if n in producers), default=number - 1)
        return (
            f"kernel {number} is right alone, but not after the others: a fault of order (a barrier) or of the memory "
            f"plan between kernels {before} and {number}"
        )

    def _tape(self, begun: Beginnings, number: int) -> Evidence | None:
        """The Program's first kernels, with buffers by number."""
        tasks = begun.tasks[:number]
        handles: list[Any] = []
        for task in tasks:
            for p in (*task.inputs, *task.outputs):
                if not any(h is p.handle for h in handles):
                    handles.append(p.handle)
        number_of = {id(h): k for k, h in enumerate(handles)}
        sizes: dict[int, int] = {}
        before: dict[int, Words] = {}
        known = {id(h): w for h, w in zip(begun.tap.uploads, [w for w in begun.arguments if w.size], strict=True)}
        known |= {id(s.handle()): s.read() for s in begun.program.captured.values()}

        def regions(places: Sequence[Region]) -> tuple[Region, ...]:
            found = []
            for p in places:
                k = number_of[id(p.handle)]
                sizes[k] = max(sizes.get(k, 1), p.start + p.words)
                if id(p.handle) in known:
                    before[k] = known[id(p.handle)]
                found.append(Region(k, p.start, p.words))
            return tuple(found)

        copied = tuple(Task(t.spec, t.sizes, regions(t.inputs), regions(t.outputs)) for t in tasks)
        outputs = self.steps[number - 1].outputs
        return Evidence(
            copied,
            tuple(chosen(self.choice, self.device, s) for s in self.steps[:number]),
            before,
            sizes,
            tuple(self.values[n] for n in outputs),
            tuple(n.dtype.name for n in outputs),
            tuple(n.shape for n in outputs),
        )


def _overlap(a: Region, b: Region) -> bool:
    return a.handle is b.handle and a.start < b.start + b.words and b.start < a.start + a.words


def _first(step: Step, want: Sequence[Words], got: Sequence[Words]) -> tuple[int, Place] | None:
    """Number of the first output that differs, and where."""
    for k, (node, a, b) in enumerate(zip(step.outputs, want, got, strict=True)):
        place = difference(values_of(node, a), values_of(node, b))
        if place is not None:
            return k, place
    return None


def _operand(x: Array, index: tuple[int, ...]) -> str:
    value = np.asarray(x[index if x.ndim == len(index) else ()])
    return f"{value_text(value)} ({bits_text(value)})"
