"""Times of callables, measured in turns.

A figure is never the time of one run alone, except where the run is longer than the time given to its case.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vkdnn.device import Device, Task

Call = Callable[[], Any]
FEWEST = 3  # runs, unless a single one takes all of the time
MOST_DISPATCHES = 2048  # in one submission


@dataclass(frozen=True)
class Times:
    """Seconds of each run."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def over(self, count: int) -> Times:
        """The times of one of ``count`` equal parts."""
        return Times(tuple(s / count for s in self.seconds))

    def record(self) -> dict[str, Any]:
        return {"median_s": self.median, "best_s": self.best, "runs": len(self.seconds)}


@dataclass(frozen=True)
class Limits:
    """How long to measure: runs at most, seconds for all calls of a case, each with an equal share of them, and the
    seconds one submission shall take at least, so that its fixed cost does not matter.
    """

    turns: int
    seconds: float
    submission: float


def clock(call: Call) -> float:
    """Seconds of one run. What it returns is dropped outside the measurement."""
    start = time.perf_counter()
    result = call()
    took = time.perf_counter() - start
    del result
    return took


def in_turns(calls: Mapping[str, Call], limits: Limits, ready: Callable[[str], None]) -> dict[str, Times]:
    """All calls one after the other, again and again, so that noise hits all of them, after one that does not count;
    ``ready`` is called with the name before each."""
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    share = limits.seconds / len(calls)
    for _ in range(limits.turns):
        for name, call in calls.items():
            if sum(found[name]) < share or (len(found[name]) < FEWEST and max(found[name]) < share):
                ready(name)
                found[name].append(clock(call))
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def tasks_of(device: Device, call: Call) -> list[Task]:
    """The kernels, with their places, that the first run of ``call`` records on the device."""
    prepare: Any = device.prepare
    found: list[Task] = []

    def spy(tasks: Sequence[Task], *rest: Any) -> Any:
        found[:] = tasks
        return prepare(tasks, *rest)

    vars(device)["prepare"] = spy  # hides the method until it is taken away again
    try:
        call()
    finally:
        del vars(device)["prepare"]
    return found


def repeated(device: Device, tasks: Sequence[Task], limits: Limits) -> tuple[Call, int]:
    """The kernels recorded several times over into one submission, and how often: the submission's cost vanishes."""
    count = 1
    while True:
        run = device.prepare([*tasks] * count, [], [])
        run()
        took = clock(run)
        most = max(1, MOST_DISPATCHES // max(1, len(tasks)))
        if took >= limits.submission or count >= most:
            return run, count
        wanted = count * min(8, 1.2 * limits.submission / max(took, 1e-6))
        count = min(most, max(count + 1, int(wanted)))
