"""The NumPy reference as a device: the oracle of all others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkdnn.device.base import Device, Place, Progress, Run, Task, Words, ends_of, parts_of
from vkdnn.dtypes import memory
from vkdnn.numerics.basic import exact


class ReferenceDevice(Device):
    """Runs every kernel's NumPy reference. Needs no Vulkan; the oracle of all other devices."""

    name, kind, max_words = "cpu", "reference", 2**31

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def allocate(self, words: int, host: bool, remote: bool = False) -> Words:
        return np.zeros(words, np.uint32)

    def write(self, handle: Words, words: Words) -> None:
        handle[: words.size] = words

    def read(self, handle: Words, words: int) -> Words:
        return handle[:words].copy()

    def prepare(
        self,
        tasks: Sequence[Task],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None = None,
        cuts: Sequence[int] = (),
    ) -> Run:
        return _ReferenceRun(parts_of([_reference_call(t) for t in tasks], cuts), ends_of(tasks, cuts))


def _reference_call(task: Task) -> Callable[[], None]:
    def views(places: Sequence[Place], dtypes: Sequence[Any]) -> list[Any]:
        return [memory(p.handle[p.start : p.start + p.words], d) for p, d in zip(places, dtypes, strict=True)]

    inputs, outputs = views(task.inputs, task.spec.inputs), views(task.outputs, task.spec.outputs)
    return lambda: task.spec.reference(task.sizes, inputs, outputs)


class _ReferenceRun:
    def __init__(self, parts: list[list[Callable[[], None]]], ends: list[int]):
        self.parts, self.ends, self.begun = parts, ends, 0

    def stage(self, handle: Words, words: Words) -> None:
        handle[: words.size] = words

    def __call__(self) -> None:
        with exact():
            for part, end in zip(self.parts, self.ends, strict=True):
                self.begun = end
                for call in part:
                    call()

    def fetch(self, handle: Words) -> Words:
        return handle.copy()
