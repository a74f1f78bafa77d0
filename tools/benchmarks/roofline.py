"""The ceilings of a device: copy bandwidth, multiply-adds on registers, and what a submission costs at least."""

from __future__ import annotations

from dataclasses import dataclass

import vkdnn as vk
from benchmarks.measure import clock, tasks_of
from benchmarks.work import Setup, on_device
from vkdnn.profile import ceilings
from vkdnn.profile.ceilings import Ceilings


@dataclass(frozen=True)
class Roofline(Ceilings):
    """Also the seconds that a submission of nothing takes."""

    submission_s: float


def best(a: Roofline, b: Roofline) -> Roofline:
    """The ceilings of two measurements: noise only lowers them."""
    return Roofline(
        max(a.bytes_per_s, b.bytes_per_s), max(a.flops_per_s, b.flops_per_s), min(a.submission_s, b.submission_s)
    )


def measured(setup: Setup) -> Roofline:
    """As vkdnn profile measures them, and a submission with one tiny kernel."""
    found = ceilings.measured(setup.device, quick=setup.scale == "quick")
    call, _ = on_device(setup.device, vk.negative, [setup.normal(1)])
    run = setup.device.prepare(tasks_of(setup.device, call), [], [])
    return Roofline(found.bytes_per_s, found.flops_per_s, min(clock(run) for _ in range(20)))
