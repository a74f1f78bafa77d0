"""The two ceilings of a device, measured through vkdnn itself: copy bandwidth, and multiply-adds on registers.

They are what this device reached with these kernels, not what its maker promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vkdnn.array import Array, array
from vkdnn.device import Device
from vkdnn.ops.elementwise import negative
from vkdnn.profile.awake import awake, chains, on_hardware
from vkdnn.profile.work import work
from vkdnn.runtime import Timing
from vkdnn.transform import jit

RUNS = 10


@dataclass(frozen=True)
class Ceilings:
    """Bytes and float operations a second, each at its best."""

    bytes_per_s: float
    flops_per_s: float

    def seconds(self, flops: int, moved: int) -> float:
        """What they allow at best for so many float operations and bytes."""
        return max(moved / self.bytes_per_s, flops / self.flops_per_s)

    def bound(self, flops: int, moved: int) -> str:
        """The ceiling that is nearer: ``memory`` or ``arithmetic``."""
        return "memory" if moved / self.bytes_per_s >= flops / self.flops_per_s else "arithmetic"

    def record(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def measured(device: Device, quick: bool = False) -> Ceilings:
    """The ceilings of a device, by its own clock where it has one: on arrays beyond any cache, and with work that takes
    so long that starting a kernel does not matter. ``quick`` takes tiny sizes, whose figures mean nothing."""
    copied, made = (2**26, 2**28) if on_hardware(device) else (2**24, 2**20)
    if quick:
        copied, made = 2**14, 2**10
    return Ceilings(_rates(device, negative, copied)[1], _rates(device, chains(made), 1)[0])


def seconds_of(call: Callable[[], Any], watch: Timing | None) -> float:
    """Of one call: by the stop-watch what its kernels took, without one the whole by the wall clock."""
    begun, before = time.perf_counter(), 0.0 if watch is None else watch.seconds
    call()
    return time.perf_counter() - begun if watch is None else watch.seconds - before


def _rates(device: Device, function: Callable[[Array], Any], count: int) -> tuple[float, float]:
    """Float operations and bytes a second of a function of one array of so many numbers, at its best of some runs: of
    its kernels alone where the device has a clock."""
    run = jit(function)
    with device, device.timing() as watch:
        x = array(np.linspace(-1.0, 1.0, count, dtype=np.float32))
        seconds_of(lambda: run(x), watch)
        awake(device)
        took = min(seconds_of(lambda: run(x), watch) for _ in range(RUNS))
    flops, moved = work(run.program(x))
    return flops / took, moved / took
