"""The two ceilings of a device, measured through vkdnn itself: copy bandwidth, and multiply-adds on registers.

They are what this device reached with these kernels, not what its maker promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import vkdnn as vk
from benchmarks.measure import Limits, clock, repeated, tasks_of, work
from benchmarks.work import Setup, on_device

CHAINS, LENGTH = 4, 10  # independent chains an element, so that one hides the other's latency; they fit in one kernel


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
    """Arrays beyond any cache, and work that takes so long that starting a kernel does not matter."""
    hardware = setup.device.kind not in ("software", "reference")
    copied, made = (2**26, 2**28) if hardware else (2**24, 2**20)
    if setup.scale == "quick":
        copied, made = 2**14, 2**10
    bandwidth = _rate(setup, limits, vk.negative, copied)[1]
    return Roofline(bandwidth, _rate(setup, limits, _chains(made), 1)[0], _submission(setup))


def _chains(count: int) -> Any:
    """A function whose work is on registers alone: numbers made there, multiplied and added, summed up."""

    def function(x: Any) -> Any:
        numbers = vk.arange(count).astype("float32") + x
        chains = [numbers * 0.5 + float(c) for c in range(1, CHAINS + 1)]
        for _ in range(LENGTH - 1):
            chains = [y * 0.5 + 1.0 for y in chains]
        return vk.sum((chains[0] + chains[1]) + (chains[2] + chains[3]))

    return function


def _rate(setup: Setup, limits: Limits, function: Any, count: int) -> tuple[float, float]:
    """Float operations and bytes a second of a function of one array of so many elements, at its best of some runs."""
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
