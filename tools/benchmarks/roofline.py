"""The two ceilings of a device, measured through vkdnn itself: copy bandwidth, and multiply-adds on registers.

They are what this device reached with these kernels, not what its maker promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import vkdnn as vk
from benchmarks.measure import Limits, clock, repeated, tasks_of, work
from benchmarks.work import Setup, on_device

CHAINS, LENGTH = 4, 64  # independent chains an element, so that one hides the other's latency


@dataclass(frozen=True)
class Roofline:
    """Bytes and float operations a second, and the seconds that a submission of nothing takes."""

    bandwidth: float
    peak: float
    submission: float

    def seconds(self, flops: int, moved: int) -> float:
        """What the ceilings allow at best."""
        return max(moved / self.bandwidth, flops / self.peak)

    def bound(self, flops: int, moved: int) -> str:
        return "memory" if moved / self.bandwidth >= flops / self.peak else "arithmetic"

    def record(self) -> dict[str, float]:
        return {"bytes_per_s": self.bandwidth, "flops_per_s": self.peak, "submission_s": self.submission}


def best(a: Roofline, b: Roofline) -> Roofline:
    """The ceilings of two measurements: noise only lowers them."""
    return Roofline(max(a.bandwidth, b.bandwidth), max(a.peak, b.peak), min(a.submission, b.submission))


def measured(setup: Setup, limits: Limits) -> Roofline:
    copied = _rate(setup, limits, vk.negative, setup.pick(2**14, 2**24, 2**28))
    chained = _rate(setup, limits, _chains, setup.pick(2**10, 2**18, 2**24))
    return Roofline(copied[1], chained[0], _submission(setup))


def _chains(x: Any) -> Any:
    chains = [x * 0.5 + float(c) for c in range(1, CHAINS + 1)]
    for _ in range(LENGTH - 1):
        chains = [y * 0.5 + 1.0 for y in chains]
    total = chains[0]
    for y in chains[1:]:
        total = total + y
    return total


def _rate(setup: Setup, limits: Limits, function: Any, count: int) -> tuple[float, float]:
    """Float operations and bytes a second of a function of one array, at its best of some runs."""
    call, program = on_device(setup.device, function, [setup.normal(count)])
    run, repeats = repeated(setup.device, tasks_of(setup.device, call), limits)
    took = min(clock(run) for _ in range(max(3, limits.turns))) / repeats
    flops, moved = work(program())
    return flops / took, moved / took


def _submission(setup: Setup) -> float:
    """Seconds of a submission with one tiny kernel."""
    call, _ = on_device(setup.device, vk.negative, [setup.normal(1)])
    run = setup.device.prepare(tasks_of(setup.device, call), [], [])
    return min(clock(run) for _ in range(20))
