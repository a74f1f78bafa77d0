"""Seconds that launches take, by the device's timestamps where it has them, else by the wall clock.

It must say which clock it read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from vkdnn.device import VulkanDevice
from vkdnn.runtime import Launch, Recording


class Stopwatch:
    """Times launches on a device. ``clock`` is "device" (launches alone) or "wall" (whole submissions)."""

    def __init__(self, device: VulkanDevice) -> None:
        self.opened = device.opened
        self.clock = "device" if device.opened.info.limits.timestamp_ns else "wall"

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
