"""The first run of a Program that is being tuned: kernel by kernel, candidates timed where the real data lies.

It must give what any other run gives: candidates write to memory of their own, the kernel itself runs by the default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any

from vkdnn.device import Place, Run, Task, VulkanDevice, Words, Work
from vkdnn.errors import MemoryLimitError
from vkdnn.runtime import Recording


class Scratch:
    """Memory for the outputs of one task after the other."""

    def __init__(self, device: VulkanDevice, tasks: Sequence[Task]) -> None:
        self.device = device
        self.handles: list[Any] = []
        # All at once: memory of graphics cards may be slow for a while after it was allocated.
        for places in zip_longest(*(task.outputs for task in tasks)):
            words = max(place.words for place in places if place is not None)
            with suppress(MemoryLimitError):
                self.handles.append(device.allocate(words, host=False))

    @property
    def bytes(self) -> int:
        return sum(4 * handle.words for handle in self.handles)

    def beside(self, task: Task) -> Task:
        """The task with outputs in memory of its own. Raises MemoryLimitError where there is no room."""
        held = [*self.handles, *(None for _ in task.outputs)]
        places = [
            Place(handle if handle is not None and handle.words >= p.words else self._another(p.words), 0, p.words)
            for handle, p in zip(held, task.outputs, strict=False)
        ]
        return replace(task, outputs=tuple(places))

    def _another(self, words: int) -> Any:
        """For a task that is smaller than the one for which there was no room."""
        return self.device.allocate(words, host=False)


class Rehearsal:
    """A run whose first call tunes: ``tune`` is called with each of the tasks numbered ``chosen`` when its inputs are
    there, and with memory for outputs. Afterwards it is the run of whatever schedules are known then."""

    def __init__(
        self,
        device: VulkanDevice,
        work: Work,
        chosen: Collection[int],
        tune: Callable[[Task, Scratch], None],
    ) -> None:
        self.device, self.work, self.chosen, self.tune = device, work, sorted(chosen), tune
        self.launches = device.launches(work.tasks, device.chosen(work.tasks), work.progress)
        self.begun = 0
        self._staged = device.opened.record([], work.uploads)
        self._fetched: Recording | None = None
        self._final: Run | None = None

    @property
    def recordings(self) -> list[Recording]:
        """Those of the tuned run, once there is one."""
        return getattr(self._final, "recordings", [])

    def stage(self, handle: Any, words: Words) -> None:
        if self._final is not None:
            self._final.stage(handle, words)
        else:
            self._staged.stage(handle, words)

    def __call__(self) -> None:
        if self._final is None:
            self._first()
        else:
            try:
                self._final()
            finally:
                self.begun = self._final.begun
            self._fetched = None

    def _first(self) -> None:
        opened, tasks = self.device.opened, self.work.tasks
        scratch = Scratch(self.device, [tasks[i] for i in self.chosen])
        self._staged.run()
        # Stretches that begin with a task to be tuned: right before it runs, its inputs are there.
        stops = [0, *(i for i in self.chosen if i), len(tasks)]
        for begin, end in pairwise(stops):
            if begin in self.chosen:
                self.tune(tasks[begin], scratch)
            self.begun = end
            opened.record(self.launches[begin:end]).run()
        self.begun = 0
        self._fetched = opened.record([], (), self.work.downloads)
        self._fetched.run()
        self._final = self.device.ready(self.work, self.device.chosen(tasks))

    def fetch(self, handle: Any) -> Words:
        if self._fetched is not None:
            return self._fetched.fetch(handle)
        assert self._final is not None
        return self._final.fetch(handle)
