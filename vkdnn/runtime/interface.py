"""What the layers above see of a device: buffers, launches, recordings, as data and protocols.

It must never import a backend: Kompute is one, another may stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vkdnn.runtime.info import DeviceInfo, Strategies

Words = npt.NDArray[np.uint32]


class Buffer(Protocol):
    """Memory of 32-bit words for shaders, freed when the object and all recordings with it are gone."""

    @property
    def words(self) -> int:
        """Size in 32-bit words."""
        ...

    @property
    def host(self) -> bool:
        """Whether it has a staging copy, so that the host can write and read it."""
        ...

    @property
    def remote(self) -> bool:
        """Whether it lies in the host's memory, where shaders reach it."""
        ...


@dataclass(frozen=True)
class Region:
    """Words `start` to `stop` (exclusive) of a buffer."""

    buffer: Buffer
    start: int
    stop: int

    @staticmethod
    def whole(buffer: Buffer) -> Region:
        """All words of the buffer."""
        return Region(buffer, 0, buffer.words)


@dataclass(frozen=True)
class Launch:
    """One dispatch: a shader, its buffers by binding, push constants as 32-bit words, workgroup counts.

    `reads` and `writes` must name every word that the shader may touch: barriers are placed from them alone.
    """

    spirv: bytes
    label: str
    buffers: tuple[Buffer, ...]
    push: tuple[int, ...]
    groups: tuple[int, int, int]
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


class Timing(Protocol):
    """A stop-watch over all runs of what was recorded while it was on."""

    seconds: float


class Recording(Protocol):
    """Launches recorded once; each `run` is one submission."""

    @property
    def barriers(self) -> int:
        """Number of barriers between launches."""
        ...

    @property
    def plan(self) -> Sequence[bool]:
        """Of each launch, whether a barrier was recorded right before it."""
        ...

    def stage(self, buffer: Buffer, words: Words, offset: int = 0) -> None:
        """Puts words where the next run uploads them from."""
        ...

    def run(self) -> None:
        """Submits once and waits."""
        ...

    def fetch(self, buffer: Buffer, offset: int = 0, words: int | None = None) -> Words:
        """A copy of what the last run downloaded."""
        ...

    @property
    def seconds(self) -> float:
        """Of the last run, from the first launch's beginning to the last one's end; recorded within timing()."""
        ...

    def launch_spans(self) -> list[tuple[float, float]]:
        """Of each launch of the last run, beginning and end in seconds since the first began; within timing()."""
        ...

    def launch_seconds(self) -> list[float]:
        """Of each launch of the last run, how long it took; recorded within timing()."""
        ...


@runtime_checkable
class Device(Protocol):
    """An opened device."""

    info: DeviceInfo
    strategies: Strategies
    submissions: int
    peak_bytes: int

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all live buffers, but for remote ones."""
        ...

    @property
    def remote_bytes(self) -> int:
        """Bytes of all live remote buffers."""
        ...

    def allocate(self, words: int, host: bool, remote: bool = False) -> Buffer:
        """A new buffer with undefined contents."""
        ...

    def write(self, buffer: Buffer, words: Words, offset: int = 0) -> None:
        """Copies words into a host buffer at once."""
        ...

    def read(self, buffer: Buffer, offset: int = 0, words: int | None = None) -> Words:
        """A copy of words of a host buffer."""
        ...

    def record(
        self, launches: Sequence[Launch], uploads: Sequence[Buffer] = (), downloads: Sequence[Buffer] = ()
    ) -> Recording:
        """Records uploads, launches in order, downloads."""
        ...

    def timing(self) -> AbstractContextManager[Timing]:
        """What is recorded within has the times of its launches. Raises DeviceError without timestamps."""
        ...
