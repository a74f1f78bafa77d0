"""Recorded work of a Kompute device, and its times by the device's own clock.

It must never run anything unless asked, nor read what the last run has not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from vkdnn.errors import ArgumentError, DeviceError
from vkdnn.runtime.checks import check_span, check_words
from vkdnn.runtime.hazards import plan_barriers
from vkdnn.runtime.interface import Buffer, Launch, Words

if TYPE_CHECKING:
    from vkdnn.runtime.kompute import KomputeDevice


@dataclass
class Timing:
    """What is recorded while this is on is timed; ``seconds`` add up over all runs of it."""

    device: KomputeDevice
    seconds: float = 0.0


class KomputeRecording:
    """A Kompute sequence: uploads, launches with barriers at real hazards, downloads; replayed by `run`."""

    def __init__(
        self,
        device: KomputeDevice,
        launches: Sequence[Launch],
        uploads: Sequence[Buffer],
        downloads: Sequence[Buffer],
        timing: Timing | None = None,
    ) -> None:
        self._device = device
        self._uploads = {device.own(buffer, "uploads", host=True).serial for buffer in uploads}
        self._downloads = {device.own(buffer, "downloads", host=True).serial for buffer in downloads}
        plan = plan_barriers(launches)
        # Everything recorded is kept alive by this object: Kompute itself holds only the tensors.
        self._buffers = [*uploads, *downloads, *(buffer for launch in launches for buffer in launch.buffers)]
        self._ran = False
        self._timing = timing
        with device.lock:
            # One stamp at the beginning and one after each command; the ticket's is the last.
            stamps = len(launches) + sum(plan) + 4 if timing else 0
            self._sequence, self.plan = device.record_sequence(launches, plan, uploads, downloads, stamps)
        self.barriers = sum(self.plan)
        self._first = int(bool(uploads))  # number of the stamp before the first launch

    def stage(self, buffer: Buffer, words: Words, offset: int = 0) -> None:
        """Copies `words` (uint32, 1-D) into the staging memory of an upload buffer, from word `offset` on.

        They stay there for every later run until staged anew. Raises ArgumentError if the buffer is not
        uploaded by this recording or the words do not fit.
        """
        own = self._device.own(buffer, "buffer", host=True)
        if own.serial not in self._uploads:
            raise ArgumentError(f"buffer: {own} is not uploaded by this recording; name it in uploads")
        checked = check_words(words)
        check_span(own, offset, checked.size)
        own.staging()[offset : offset + checked.size] = checked

    def run(self) -> None:
        """Submits everything once and waits for it. Raises DeviceError if the device was lost."""
        self._device.submit(self._sequence)
        self._ran = True
        if self._timing is not None:
            self._timing.seconds += self.seconds

    def fetch(self, buffer: Buffer, offset: int = 0, words: int | None = None) -> Words:
        """A copy of `words` words (default: all from `offset` on) of a download buffer after the last run.

        Raises ArgumentError if the buffer is not downloaded by this recording, which has to have run.
        """
        own = self._device.own(buffer, "buffer", host=True)
        if own.serial not in self._downloads:
            raise ArgumentError(f"buffer: {own} is not downloaded by this recording; name it in downloads")
        if not self._ran:
            raise ArgumentError(f"buffer: {own} has nothing to fetch before the first run; call run()")
        count = own.words - offset if words is None else words
        check_span(own, offset, count)
        return own.staging()[offset : offset + count].copy()

    # ---- times of the last run, by the device's clock

    @property
    def seconds(self) -> float:
        """From the beginning of the first launch to the end of the last, barriers between them counted."""
        marks = self._marks()
        return marks[-1] - marks[0]

    def launch_spans(self) -> list[tuple[float, float]]:
        """Of each launch, in order, when it began and ended, in seconds since the first began.

        A launch counts from when all before it had ended: of launches without a barrier between them, which may
        overlap, each gets what it added. Raises DeviceError unless recorded within ``device.timing()`` and run.
        """
        marks, at, spans = self._marks(), 0, []
        for barrier in self.plan:
            at += barrier
            spans.append((marks[at] - marks[0], marks[at + 1] - marks[0]))
            at += 1
        return spans

    def launch_seconds(self) -> list[float]:
        """Of each launch, in order, the seconds of its span."""
        return [stop - start for start, stop in self.launch_spans()]

    def _marks(self) -> list[float]:
        """Seconds at which the commands from the first launch to the last ended, and that before them."""
        if self._timing is None or not self._ran:
            raise DeviceError(
                "recording: has no times; record it within `with device.timing():`, and run it before they are read"
            )
        ticks = self._sequence.get_timestamps()[self._first :][: 1 + len(self.plan) + self.barriers]
        tick = self._device.info.limits.timestamp_ns * 1e-9
        marks = [0.0]
        for before, after in pairwise(ticks):
            marks.append(marks[-1] + (after - before) * tick)
        return marks
