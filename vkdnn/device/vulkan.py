"""Vulkan devices through vkdnn.runtime: tasks are compiled, recorded and, where somebody asks for it, tuned first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from vkdnn import runtime
from vkdnn.device.base import Device, Place, Progress, Run, Task, Words, ends_of, parts_of
from vkdnn.kernels.base import KernelSpec, Target
from vkdnn.runtime import Launch, Region, Timing
from vkdnn.schedules import Winners, asked, current_choice, pick
from vkdnn.shader import ShaderRequest, bundle, compile_many
from vkdnn.shader.request import kernel_request
from vkdnn.timeline import stretch


@dataclass(frozen=True)
class Work:
    """What Device.prepare() is given, as one thing."""

    tasks: Sequence[Task]
    uploads: Sequence[Any]
    downloads: Sequence[Any]
    progress: Progress | None = None
    cuts: Sequence[int] = ()


@dataclass(frozen=True)
class Prepared:
    """Tasks that were made ready on a Vulkan device: the schedule and the launch of each, and the recordings."""

    tasks: Sequence[Task]
    schedules: Sequence[Any]
    launches: Sequence[Launch]
    recordings: Sequence[runtime.Recording]
    fma: bool
    """Whether the device's strategies divide or take roots by fma()."""


_log: ContextVar[list[Prepared] | None] = ContextVar("log", default=None)


@contextmanager
def prepared() -> Iterator[list[Prepared]]:
    """Within, all that is made ready on Vulkan devices by this thread is written down."""
    found: list[Prepared] = []
    token = _log.set(found)
    try:
        yield found
    finally:
        _log.reset(token)


class VulkanDevice(Device):
    """A Vulkan device through vkdnn.runtime."""

    def __init__(self, opened: runtime.Device):
        info = opened.info
        self.opened = opened
        self.lock = threading.RLock()
        self.name, self.kind = info.name, info.kind
        self.software = info.kind == "software"
        self.max_words = info.limits.max_buffer_bytes // 4
        limits = info.limits
        self.target = Target(
            self.software,
            limits.max_workgroup_invocations,
            limits.shared_memory_bytes,
            limits.subgroup_size,
        )
        self.winners = Winners(info.name, f"{info.driver} {info.driver_version}", opened.strategies.text)

    def allocate(self, words: int, host: bool, remote: bool = False) -> Any:
        return self.opened.allocate(words, host, remote)

    def write(self, handle: Any, words: Words) -> None:
        with stretch("write"):
            self.opened.write(handle, words)

    def read(self, handle: Any, words: int) -> Words:
        with stretch("read"):
            return self.opened.read(handle, 0, words)

    def shader(self, spec: KernelSpec, schedule: Any) -> ShaderRequest:
        """The request from which a kernel is compiled for this device."""
        return kernel_request(spec, schedule, self.opened.strategies)

    def prepare(
        self,
        tasks: Sequence[Task],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None = None,
        cuts: Sequence[int] = (),
    ) -> Run:
        work, tuner = Work(tasks, uploads, downloads, progress, cuts), current_tuner()
        tuning = tuner(self, work) if tuner is not None else None
        return tuning or self.ready(work, self.chosen(tasks))

    def timing(self) -> AbstractContextManager[Timing | None]:
        return self.opened.timing() if self.opened.info.limits.timestamp_ns else nullcontext()

    def chosen(self, tasks: Sequence[Task]) -> list[Any]:
        """The schedules that tasks take here and now."""
        winners = self.winners if asked() is not False and self.winners.any() else None
        found = [pick(t.spec, t.sizes, t.spec.schedules(self.target), winners) for t in tasks]
        if current_choice() is None and bundle.in_use():
            found = [self._bundled(t.spec, s) for t, s in zip(tasks, found, strict=True)]
        return found

    def _bundled(self, spec: KernelSpec, chosen: Any) -> Any:
        """A schedule that a bundle has a kernel for, which was perhaps built with other tunings; else the chosen."""
        for schedule in (chosen, *spec.schedules(self.target)):
            if bundle.find(self.shader(spec, schedule).identity) is not None:
                return schedule
        return chosen

    def ready(self, work: Work, schedules: Sequence[Any]) -> _VulkanRun:
        """prepare() with schedules that are given."""
        launches = self.launches(work.tasks, schedules, work.progress)
        with stretch("record"):
            run = self.recorded(launches, work.uploads, work.downloads, work.cuts)
        if (log := _log.get()) is not None:
            ways = self.opened.strategies.division, self.opened.strategies.square_root
            log.append(Prepared(work.tasks, schedules, launches, run.recordings, "fma" in ways))
        return run

    def launches(
        self, tasks: Sequence[Task], schedules: Sequence[Any], progress: Progress | None = None
    ) -> list[Launch]:
        """Tasks as launches, compiled."""
        with stretch("compile"):
            requests = [self.shader(t.spec, s) for t, s in zip(tasks, schedules, strict=True)]
            spirv = compile_many(requests, progress=progress)
        return [self._launch(*parts) for parts in zip(tasks, schedules, spirv, strict=True)]

    def recorded(
        self, launches: Sequence[Launch], uploads: Sequence[Any], downloads: Sequence[Any], cuts: Sequence[int] = ()
    ) -> _VulkanRun:
        """The run of launches that are ready; otherwise as prepare()."""
        parts = parts_of(list(launches), cuts)
        last = len(parts) - 1
        recordings = [
            self.opened.record(part, uploads if i == 0 else (), downloads if i == last else ())
            for i, part in enumerate(parts)
        ]
        return _VulkanRun(recordings, ends_of(launches, cuts))

    def _launch(self, task: Task, schedule: Any, spirv: bytes) -> Launch:
        places = (*task.inputs, *task.outputs)

        def regions(part: Sequence[Place]) -> tuple[Region, ...]:
            return tuple(Region(p.handle, p.start, p.start + p.words) for p in part)

        return Launch(
            spirv,
            task.spec.text().split("\n", 1)[0],
            tuple(p.handle for p in places),
            (*(p.start for p in places), *task.sizes),
            task.spec.groups(task.sizes, schedule),
            regions(task.inputs),
            regions(task.outputs),
        )


class _VulkanRun:
    def __init__(self, recordings: list[runtime.Recording], ends: list[int]):
        self.recordings, self.ends, self.begun = recordings, ends, 0

    def stage(self, handle: Any, words: Words) -> None:
        self.recordings[0].stage(handle, words)

    def __call__(self) -> None:
        for recording, end in zip(self.recordings, self.ends, strict=True):
            self.begun = end
            with stretch("submit", recording):
                recording.run()  # waits

    def fetch(self, handle: Any) -> Words:
        return self.recordings[-1].fetch(handle)


# ---- tuning

Tuner = Callable[["VulkanDevice", Work], Run | None]
"""What Programs ask before they are made ready: a run that times kernels when it is called first, or None where there
is nothing to time."""

_tuner: ContextVar[Tuner | None] = ContextVar("tuner", default=None)
_standing: list[Tuner] = []


@contextmanager
def tuned_by(tuner: Tuner) -> Iterator[None]:
    """Within, Programs are made ready by a tuner."""
    token = _tuner.set(tuner)
    try:
        yield
    finally:
        _tuner.reset(token)


def stand_by(tuner: Tuner) -> None:
    """What tunes where VKDNN_AUTOTUNE=1 asks for it."""
    _standing[:] = [tuner]


def current_tuner() -> Tuner | None:
    """What tunes here and now, if anything does."""
    return _tuner.get() or (_standing[0] if _standing and asked() else None)
