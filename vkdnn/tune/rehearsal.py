"""The first run of a Program that is being tuned: kernel by kernel, candidates timed where the real data lies.

It must give what any other run gives: candidates write to memory of their own, the kernel itself runs by the default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from vkdnn.device import Place, Progress, Run, Task, VulkanDevice, Words
from vkdnn.runtime import Recording


class Scratch:
    """Memory for the outputs of one task after the other."""

    def __init__(self, device: VulkanDevice) -> None:
        self.device = device
        self.handles: list[Any] = []

    def beside(self, task: Task) -> Task:
        """The task with outputs in memory of its own. Raises MemoryLimitError where there is no room."""
        places = []
        for k, place in enumerate(task.outputs):
            if k == len(self.handles):
                self.handles.append(None)
            if self.handles[k] is None or self.handles[k].words < place.words:
                self.handles[k] = None  # its memory comes back first
                self.handles[k] = self.device.allocate(place.words, host=False)
            places.append(Place(self.handles[k], 0, place.words))
        return replace(task, outputs=tuple(places))


class Rehearsal:
    """A run whose first call tunes: ``tune`` is called with each of the tasks numbered ``chosen`` when its inputs are
    there, and with memory for outputs. Afterwards it is the run of whatever schedules are known then."""

    def __init__(
        self,
        device: VulkanDevice,
        tasks: Sequence[Task],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None,
        cuts: Sequence[int],
        chosen: Collection[int],
        tune: Callable[[Task, Scratch], None],
    ) -> None:
        self.device, self.tasks, self.chosen, self.tune = device, tasks, sorted(chosen), tune
        self.uploads, self.downloads, self.progress, self.cuts = uploads, downloads, progress, cuts
        self.launches = device.launches(tasks, device.chosen(tasks), progress)
        self.begun = 0
        self._staged = device.opened.record([], uploads)
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
        opened, scratch = self.device.opened, Scratch(self.device)
        self._staged.run()
        # Stretches that begin with a task to be tuned: right before it runs, its inputs are there.
        stops = [0, *(i for i in self.chosen if i), len(self.tasks)]
        for begin, end in pairwise(stops):
            if begin in self.chosen:
                self.tune(self.tasks[begin], scratch)
            self.begun = end
            opened.record(self.launches[begin:end]).run()
        self.begun = 0
        self._fetched = opened.record([], (), self.downloads)
        self._fetched.run()
        schedules = self.device.chosen(self.tasks)
        self._final = self.device.ready(self.tasks, schedules, self.uploads, self.downloads, self.progress, self.cuts)

    def fetch(self, handle: Any) -> Words:
        if self._fetched is not None:
            return self._fetched.fetch(handle)
        assert self._final is not None
        return self._final.fetch(handle)
