"""Parity: the bits of a device against those of the reference, another device, or a digest file; none may differ.

What differs is bisected by vkdnn.check.bisect. Nothing is kept between calls: a patched row or template is always seen.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import vkdnn as vk
from vkdnn.check import bisect, reproducer
from vkdnn.check.bits import Place, difference
from vkdnn.check.digests import DigestFile, Digests, Recorded, digests_of, machine
from vkdnn.check.grid import FAMILIES, SIZES, Group, groups
from vkdnn.check.operator import Case
from vkdnn.check.statics import Flaw, Walk
from vkdnn.check.steps import legal
from vkdnn.check.targets import resolve
from vkdnn.check.users import described
from vkdnn.check.work import (
    ModelWork,
    Results,
    Subject,
    Work,
    apart,
    fresh,
    of_case,
    of_group,
    of_model,
    slug,
    together,
)
from vkdnn.device import Device, Prepared, ReferenceDevice, prepared
from vkdnn.errors import ArgumentError
from vkdnn.schedules import Choice, current_choice, scheduled

TOGETHER = 8  # operations that share a Program while nothing differs
Target = Case | Group | Work | ModelWork
Progress = Callable[["Outcome"], None]


@dataclass(frozen=True)
class Difference:
    """A result that differs: on which inputs, in which run (empty: the first one), and where, if values are known."""

    inputs: str
    result: str
    run: str = ""
    place: Place | None = None

    def __str__(self) -> str:
        where = f": {self.place}" if self.place else ""
        inputs = self.inputs if self.inputs.startswith("step ") else f"{self.inputs} inputs"
        return f"{self.result}, {inputs}{f', {self.run}' if self.run else ''}{where}"


@dataclass(frozen=True)
class Outcome:
    """What was found out about one target; ``ok`` if no bit differs, nothing is wrong with a kernel, and it ran."""

    target: str
    group: str
    values: int = 0
    """Values compared, over all inputs and runs."""
    kernels: int = 0
    runs: int = 0
    differences: tuple[Difference, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    finger: bisect.Finger | None = None
    error: str = ""
    script: str = ""
    """Where the reproducer lies."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not (self.differences or self.flaws or self.error)

    def record(self) -> dict[str, Any]:
        """As data for JSON."""
        return {"ok": self.ok, **asdict(self)}


def targets(
    names: Sequence[str], shapes: Sequence[str] = (), every: bool = False, grid_size: str = "ci", steps: int = 2
) -> list[Target]:
    """What names on a command line stand for: as vkdnn.check.targets.resolve(), and ``model:rapt``, ``model:gpt`` (that
    many training steps), ``grid:`` (all of the grid) or ``grid:folds`` (a family), of a size in SIZES.

    Raises ArgumentError for what there is not.
    """
    if grid_size not in SIZES:
        raise ArgumentError(f"grid size: got {grid_size!r}, expected one of {', '.join(SIZES)}")
    found: list[Target] = []
    plain = [n for n in names if not n.startswith(("grid:", "model:"))]
    if plain or every or not names:
        found += resolve(plain, shapes, every)
    families: dict[str, None] = dict.fromkeys(FAMILIES) if every else {}
    for name in names:
        if name.startswith("grid:"):
            families |= dict.fromkeys(_families(name.removeprefix("grid:")))
    found += groups(SIZES[grid_size], families)
    models = [n.removeprefix("model:") for n in names if n.startswith("model:")]
    return found + [of_model(n, steps) for n in dict.fromkeys([*models, *(("rapt", "gpt") if every else ())])]


def _families(name: str) -> list[str]:
    found = [f for f in FAMILIES if not name or slug(f) == name] or [f for f in FAMILIES if slug(f).startswith(name)]
    if not found:
        raise ArgumentError(f"target: no family {name!r} of the grid, expected one of {', '.join(map(slug, FAMILIES))}")
    return found


def check(
    subjects: Iterable[Target],
    device: Device | None = None,
    other: Device | None = None,
    *,
    against: DigestFile | None = None,
    record: DigestFile | None = None,
    schedules: bool = False,
    repeat: int = 1,
    save: str | Path | None = None,
    share: int = TOGETHER,
    on_outcome: Progress | None = None,
) -> list[Outcome]:
    """An Outcome for each target, in order.

    The device (default: the current one) is compared with ``other`` (default: the reference), or with the digest file
    ``against``. ``record`` gets digests of what the device gives. ``schedules``: also with each of the schedules that
    the kernels have; ``repeat``: so many runs, in turn of the same recordings and of new ones. A difference is
    bisected, and its reproducer written below the folder ``save`` unless that is None. Up to ``share`` operations of a
    group run as one Program while nothing is wrong. Raises ArgumentError for numbers below 1.

    >>> from vkdnn.check.parity import check, targets
    >>> [outcome.ok for outcome in check(targets(["softmax"]))]
    [True]
    """
    for name, number in (("repeat", repeat), ("share", share)):
        if number < 1:
            raise ArgumentError(f"{name}: got {number}, expected 1 or more")
    place = device or vk.current_device()
    checker = _Checker(place, other or vk.device("cpu"), against, record, schedules, repeat, save)
    found: list[Outcome] = []
    for chunk in _chunks(subjects, share):
        for outcome in checker.outcomes(chunk):
            found.append(outcome)
            if on_outcome is not None:
                on_outcome(outcome)
    return found


def _chunks(subjects: Iterable[Target], share: int) -> Iterator[list[Target]]:
    """Light operations of one group, ``share`` of them at a time; all else by itself."""
    chunk: list[Target] = []
    group = ""
    for subject in subjects:
        target = subject
        if isinstance(subject, Case):
            with contextlib.suppress(Exception):  # it will be seen when it runs
                target = of_case(subject)
        light = isinstance(target, Work) and target.light
        if chunk and not (light and len(chunk) < share and _group(target) == group):
            yield chunk
            chunk = []
        if light:
            chunk, group = [*chunk, target], _group(target)
        else:
            yield [target]
    if chunk:
        yield chunk


def _subject(target: Target) -> Subject:
    if isinstance(target, Case):
        return of_case(target)
    return of_group(target) if isinstance(target, Group) else target


@dataclass
class _Look:
    """One subject, or several as one, on both sides."""

    results: list[Results]
    differences: list[list[Difference]]
    choice: Choice | None = field(default_factory=current_choice)  # under which the first difference was seen
    unsteady: bool = False
    values: list[int] = field(default_factory=list)
    made: list[Prepared] = field(default_factory=list)
    runs: int = 1

    @property
    def clean(self) -> bool:
        return not any(self.differences)

    @property
    def kernels(self) -> int:
        return len({(t.spec.text(), str(s)) for m in self.made for t, s in zip(m.tasks, m.schedules, strict=True)})


@dataclass
class _Checker:
    device: Device
    believed: Device
    against: DigestFile | None
    record: DigestFile | None
    schedules: bool
    repeat: int
    save: str | Path | None
    walk: Walk = field(default_factory=Walk)

    def outcomes(self, chunk: Sequence[Target]) -> Iterator[Outcome]:
        begun = time.perf_counter()
        if len(chunk) > 1:
            look, works = None, [t for t in chunk if isinstance(t, Work)]
            try:
                look = self._look(together(works), works)
                if look.clean and not self.walk.flaws(look.made):
                    seconds = (time.perf_counter() - begun) / len(works)
                    yield from (self._clean(work, look, k, seconds) for k, work in enumerate(works))
                    return
            except Exception:  # one by one it will be seen which it was
                pass
            alone = [self._alone(t) for t in chunk]
            yield from alone
            if look is not None and not look.clean and all(o.ok for o in alone):
                joined = together(works)
                yield self._wrong(Outcome(joined.name, joined.group, runs=look.runs), joined, look)
            return
        yield self._alone(chunk[0])

    def _alone(self, target: Target) -> Outcome:
        begun = time.perf_counter()
        try:
            subject = _subject(target)
            look = self._look(subject, [subject])
            found = self._clean(subject, look, 0, 0.0)
            found = replace(
                found, kernels=sum(len(m.tasks) for m in look.made), flaws=tuple(self.walk.flaws(look.made))
            )
            if not look.clean:
                found = self._wrong(found, subject, look)
        except Exception as error:  # whatever a target does, the others are still checked
            found = Outcome(_name(target), _group(target), error=described(error))
        return replace(found, seconds=time.perf_counter() - begun)

    def _clean(self, subject: Subject, look: _Look, k: int, seconds: float) -> Outcome:
        if self.record is not None:
            self.record.targets[subject.name] = Recorded(subject.digests(), digests_of(look.results[k]))
        return Outcome(subject.name, subject.group, look.values[k], look.kernels, look.runs, seconds=seconds)

    def _wrong(self, outcome: Outcome, subject: Subject, look: _Look) -> Outcome:
        """The outcome with its differences, the finger and the reproducer."""
        outcome = replace(outcome, differences=tuple(d for part in look.differences for d in part))
        chances = max(bisect.CHANCES, self.repeat if look.unsteady else 1)
        try:
            found = bisect.locate(subject, fresh(self.device), fresh(self.believed), look.choice, chances)
        except Exception as error:  # the difference stands, whatever comes of the search
            return replace(outcome, error=f"cannot be bisected: {type(error).__name__}: {error}")
        finger = found.finger
        if self.against is not None and finger.kind == bisect.PROGRAM and not finger.program:
            other = self.against.machine.get("device", "the other device")
            text = f"{self.device.name} agrees with {self.believed.name} here: it is {other} that differs"
            finger = replace(finger, verdict=text)
        outcome = replace(outcome, finger=finger)
        if self.save is not None and found.evidence is not None:
            times = chances if finger.kind == bisect.CHANCE else 1
            script = reproducer.save(self.save, subject.name, finger, found.evidence, times)
            outcome = replace(outcome, script=str(script))
        return outcome

    # ---- running

    def _look(self, whole: Subject, parts: Sequence[Subject]) -> _Look:
        def split(results: Results) -> list[Results]:
            works = [p for p in parts if isinstance(p, Work)]
            return apart(results, works) if len(parts) > 1 else [results]

        with prepared() as made:
            session = whole.session(fresh(self.device))
            first = split(session.run())
        want: list[Any]
        if self.against is not None:
            want = [_recorded(self.against, p) for p in parts]
        else:
            known = session.expected() if isinstance(self.believed, ReferenceDevice) else None
            want = split(known or whole.session(fresh(self.believed)).run())
        look = _Look(first, [_compared(a, b, "") for a, b in zip(want, first, strict=True)], made=made)
        look.values = [_count(r) for r in first]
        self._again(whole, session, split, look)
        if self.schedules and look.clean:
            self._scheduled(whole, split, want, look)
        return look

    def _again(self, whole: Subject, session: Any, split: Callable[[Results], list[Results]], look: _Look) -> None:
        """The same work again: the results of the first run must come again, whether they are right or wrong."""
        for number in range(2, self.repeat + 1):
            new = number % 2 == 1
            if new:
                session = whole.session(fresh(self.device))
            run = f"run {number} in {'a new' if new else 'the same'} recording, against the first"
            found = [_compared(a, b, run) for a, b in zip(look.results, split(session.run()), strict=True)]
            self._add(look, found)
            if any(found):
                look.unsteady = True
                return

    def _scheduled(self, whole: Subject, split: Callable[[Results], list[Results]], want: Any, look: _Look) -> None:
        """Every kernel with its second schedule, its third, and so on; with its last where it has no more."""
        counts = [len(legal(self.device, t.spec)) for ready in look.made for t in ready.tasks]
        for number in range(1, max(counts, default=1)):

            def choice(_: Any, schedules: Sequence[Any], number: int = number) -> Any:
                return schedules[min(number, len(schedules) - 1)]

            with scheduled(choice), prepared() as made:
                results = split(whole.session(fresh(self.device)).run())
            look.made += made
            run = f"schedule {number + 1} of each kernel"
            self._add(look, [_compared(a, b, run) for a, b in zip(want, results, strict=True)])
            if not look.clean:
                look.choice = choice
                return

    def _add(self, look: _Look, found: Sequence[list[Difference]]) -> None:
        look.runs += 1
        for known, new in zip(look.differences, found, strict=True):
            known += new
        look.values = [n + _count(r) for n, r in zip(look.values, look.results, strict=True)]


def _name(target: Target) -> str:
    return f"grid:{slug(target.family)} {target.length}" if isinstance(target, Group) else target.name


def _group(target: Target) -> str:
    if isinstance(target, Case):
        return target.operator.group
    return f"grid:{slug(target.family)}" if isinstance(target, Group) else target.group


def _count(results: Results) -> int:
    return sum(x.size for values in results.values() for x in values.values())


def _recorded(file: DigestFile, subject: Subject) -> Digests:
    """What a digest file has of a subject. Raises ArgumentError where it has none, or of other inputs."""
    found = file.targets.get(subject.name)
    if found is None:
        raise ArgumentError(f"{subject.name}: is not in the digest file; record it there too, or name what it has")
    own = subject.digests()
    if found.inputs != own:
        here, there = machine(vk.device("cpu")), file.machine
        versions = ", ".join(f"{k} {there.get(k)} there, {here[k]} here" for k in ("vkdnn", "numpy"))
        pairs = {n: itertools.zip_longest(x, found.inputs.get(n, ())) for n, x in own.items()}
        names = ", ".join(f"{n} argument {k}" for n, x in pairs.items() for k, (a, b) in enumerate(x) if a != b)
        raise ArgumentError(
            f"{subject.name}: its inputs are not those that were recorded ({names}; {versions}); record it again"
        )
    return found.results


def _compared(want: Results | Digests, got: Results, run: str) -> list[Difference]:
    """What differs between values, or between recorded digests and values."""
    found = []
    digests: Digests | None = None
    for name, values in got.items():
        for result, x in values.items():
            known: Any = want.get(name, {}).get(result)
            if known is None:
                found.append(Difference(name, f"{result} (is only on one side)", run))
            elif isinstance(known, str):
                digests = digests or digests_of(got)
                if digests[name][result] != known:
                    found.append(Difference(name, result, run))
            elif (place := difference(known, x)) is not None:
                found.append(Difference(name, result, run, place))
        for result in want.get(name, {}).keys() - values.keys():
            found.append(Difference(name, f"{result} (is only on one side)", run))
    return found
