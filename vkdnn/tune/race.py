"""The candidates of one kernel, timed against each other on memory that is given.

It must never let one candidate's failure, or the noise of a shared machine, choose the winner.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vkdnn.device import Task, VulkanDevice
from vkdnn.errors import CompileError, DeviceError, MemoryLimitError, VkdnnError
from vkdnn.profile.ceilings import Ceilings
from vkdnn.runtime import Launch
from vkdnn.schedules.winners import Candidate, Tuned
from vkdnn.shader import compile_many
from vkdnn.tune.bounds import at_the_ceiling, too_few
from vkdnn.tune.stopwatch import Stopwatch


@dataclass(frozen=True)
class Limits:
    """How long the candidates of a kernel are timed: at most so many rounds and seconds, the first runs aside; and
    after how many seconds of compiling and first runs no further candidate is tried."""

    rounds: int = 15
    seconds: float = 1.0
    preparing: float = 20.0
    submission: float = 0.1  # seconds that a submission of several rounds may take: drivers end longer ones


LIMITS = Limits()
_FEWEST = 3  # rounds after which a candidate may be left
_HOPELESS = 3.0  # times the best, in the better of two runs: left at once
_SHORT = 0.005  # seconds below which two runs are not enough to see that
_WORTH = 0.98  # of the default's time: what gains less is noise, and the default stays


@dataclass
class _Runner:
    schedule: Any
    launch: Launch | None = None
    times: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def racing(self) -> bool:
        return self.launch is not None and not self.note

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.times) < 2:
            return self.times[0], self.times[0]
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return low, high

    def candidate(self) -> Candidate:
        if not self.times:
            return Candidate(str(self.schedule), note=self.note)
        return Candidate(str(self.schedule), self.median, *self.quartiles, len(self.times), self.note)


def race(
    device: VulkanDevice,
    task: Task,
    schedules: Sequence[Any],
    watch: Stopwatch,
    ceilings: Ceilings | None = None,
    limits: Limits = LIMITS,
    lost: Callable[[Tuned], None] = lambda tuned: None,
) -> Tuned:
    """The times of a task under its schedules, the default first, and the winner.

    The task's inputs have what the kernel is to work on; its outputs are overwritten. ``lost`` is told what is known
    when a candidate takes the device down, before the error goes on. Raises what the default raises.
    """
    runners = [_Runner(schedule) for schedule in schedules]
    default, *others = runners

    def result() -> Tuned:
        return Tuned(task.sizes, str(_winner(runners).schedule), watch.clock, time.time(), _found(runners))

    begun = time.perf_counter()
    _compile(device, task, [default])
    if default.launch is None:
        raise CompileError(f"tune: the default schedule fails: {default.note}")
    watch.settle()
    _first_runs(watch, default)
    ceiling = at_the_ceiling(task.spec.cost(task.sizes), default.median, ceilings)
    for runner in others:
        runner.note = ceiling or too_few(device.kind, task.spec, task.sizes, runner.schedule, default.median)
    _compile(device, task, [r for r in others if not r.note])
    watch.settle()
    for runner in others:
        if runner.racing:
            if time.perf_counter() - begun > limits.preparing:
                runner.note = f"not tried: those before it took {limits.preparing:g} s to compile and run first"
                continue
            try:
                _first_runs(watch, runner)
            except DeviceError as error:
                runner.note = f"failed: {error}"
                if "no pipeline" not in str(error) and not isinstance(error, MemoryLimitError):
                    lost(result())
                    raise
                continue
            best = min(min(r.times) for r in runners if r.times and not r.note)
            if runner.times[0] > _HOPELESS * best and runner.times[0] < _SHORT:  # a neighbour may have been at fault
                _first_runs(watch, runner)
            if runner.times[0] > _HOPELESS * best:
                runner.note = f"left after its first runs: {runner.times[0] / best:.1f} times the best"
    _rounds(watch, runners, limits)
    return result()


def _found(runners: Sequence[_Runner]) -> tuple[Candidate, ...]:
    return tuple(runner.candidate() for runner in runners)


def _compile(device: VulkanDevice, task: Task, runners: Sequence[_Runner]) -> None:
    """Launches of candidates; a note for those that do not compile."""
    with suppress(CompileError):  # all at once, with every core; those that fail say so below
        compile_many([device.shader(task.spec, r.schedule) for r in runners])
    for runner in runners:
        try:
            (runner.launch,) = device.launches([task], [runner.schedule])
        except VkdnnError as error:
            runner.note = f"failed: {error}"


def _first_runs(watch: Stopwatch, runner: _Runner) -> None:
    """The driver compiles, memory gets warm: the best of these runs counts."""
    assert runner.launch is not None
    (times,) = watch.times([runner.launch], 2)
    runner.times = [min(times + runner.times)]


def _rounds(watch: Stopwatch, runners: Sequence[_Runner], limits: Limits) -> None:
    """In turns, until the limits, or until all but one are clearly slower."""
    begun, done = time.perf_counter(), 0
    racing = [r for r in runners if r.racing]
    lap = sum(r.median for r in racing)
    while len(racing) > 1 and done < limits.rounds and time.perf_counter() - begun < limits.seconds:
        rounds = max(1, min(limits.rounds - done, _FEWEST, int(limits.submission / max(lap, 1e-9))))
        found = watch.times([r.launch for r in racing if r.launch is not None], rounds)
        for runner, times in zip(racing, found, strict=True):
            runner.times = times if done == 0 else runner.times + times  # first runs are not among them
        done += rounds
        lap = sum(r.median for r in racing)
        if done >= _FEWEST:
            best = min(racing, key=lambda r: r.median)
            for runner in racing:
                if runner is not best and runner.quartiles[0] > best.quartiles[1]:
                    runner.note = f"left after {done} rounds: {runner.median / best.median:.2f} times the best"
            racing = [r for r in racing if r.racing]


def _winner(runners: Sequence[_Runner]) -> _Runner:
    """The fastest of those that ran to the end; the default unless another is faster beyond noise."""
    default = runners[0]
    ended = [r for r in runners if r.times and not r.note]
    best = min(ended, key=lambda r: r.median, default=default)
    return default if default.times and not default.note and best.median > _WORTH * default.median else best
