"""Seconds that launches take, by the device's timestamps where it has them, else by the wall clock.

It must say which clock it read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from vkdnn.device import VulkanDevice
from vkdnn.profile.awake import awake, on_hardware
from vkdnn.runtime import Launch, Recording
from vkdnn.schedules import scheduled

_SETTLED = 2.0  # seconds that the clock stays up


class Stopwatch:
    """Times launches on a device. ``clock`` is "device" (launches alone) or "wall" (whole submissions)."""

    def __init__(self, device: VulkanDevice) -> None:
        self.device, self.opened = device, device.opened
        self._settled = -math.inf
        self.clock = "device" if device.opened.info.limits.timestamp_ns else "wall"

    def settle(self) -> None:
        """A graphics card that had little to do for a while is brought to its full clock."""
        if on_hardware(self.device) and time.perf_counter() - self._settled > _SETTLED:
            with scheduled(lambda spec, legal: legal[0]):  # the load is not to be tuned
                awake(self.device)
            self._settled = time.perf_counter()

    def times(self, launches: Sequence[Launch], rounds: int) -> list[list[float]]:
        """Of each launch the seconds it took, in ``rounds`` of all of them, one after the other.

        Launches that write to the same memory have barriers between them, which are not in their times.
        """
        if self.clock == "device":
            with self.opened.timing():
                recording = self.opened.record([*launches] * rounds)
            recording.run()
            seconds = recording.launch_seconds()
        else:
            recordings = [self.opened.record([launch]) for launch in launches]
            seconds = [_wall(recording) for _ in range(rounds) for recording in recordings]
        return [seconds[k :: len(launches)] for k in range(len(launches))]


def _wall(recording: Recording) -> float:
    begun = time.perf_counter()
    recording.run()
    return time.perf_counter() - begun
