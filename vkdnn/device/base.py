"""What a device is to programs: storages, tasks, runs, and the interface behind which all devices stand.

Nothing here knows an operation; a device runs the steps it is given, in order, on the storages it is given.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from vkdnn.errors import DeviceError, MemoryLimitError
from vkdnn.kernels.base import KernelSpec
from vkdnn.runtime import Timing

Words = np.ndarray[Any, np.dtype[np.uint32]]
Progress = Callable[[int, int, str], None]


class Storage:
    """Words of one array on one device.

    A Program that replays writes its results into the same buffers again; a storage that someone still holds is then
    detached: it keeps its words on the host, and goes back to the device if it is used there.
    """

    __slots__ = ("__weakref__", "_detached", "_handle", "_run", "device", "memo", "producer", "stale", "words")

    def __init__(self, device: Device, words: int, handle: Any, run: Run | None = None):
        self.device, self.words, self._handle = device, words, handle
        self._run = weakref.ref(run) if run is not None else None  # whose submission has brought the words back
        self._detached: Words | None = None
        self.stale = False  # donated: a Program has put another value into the buffer
        self.memo: list[weakref.ref[Any]] = []  # expression nodes that know this storage as their value
        self.producer: weakref.ref[Any] | None = None  # the recording that writes here when it is replayed

    def handle(self) -> Any:
        """The device's buffer. Raises DeviceError if it was donated."""
        with self.device.lock:
            self._check()
            if self._detached is not None:
                self._handle = self.device.allocate(max(1, self.words), host=True)
                self.device.write(self._handle, self._detached)
                self._detached = None
            return self._handle

    def read(self) -> Words:
        """The words. Raises DeviceError if they were donated."""
        with self.device.lock:
            self._check()
            if self._detached is not None:
                return self._detached
            if not self.words:
                return np.empty(0, np.uint32)
            run = self._run() if self._run is not None else None
            if run is not None:
                return run.fetch(self._handle)[: self.words]
            return self.device.read(self._handle, self.words)

    def detach(self) -> None:
        with self.device.lock:
            if not self.stale:
                self._detached = self.read()
            self._run = None
            self._handle = None

    def donate(self) -> None:
        """The buffer goes to another value; whoever still asks for this one gets an error."""
        self.stale = True
        for known in self.memo:
            node = known()
            if node is not None:
                node.buffer = None  # the expression can be computed again
        producer = self.producer() if self.producer is not None else None
        if producer is not None:
            producer.spoiled = True

    def _check(self) -> None:
        if self.stale:
            raise DeviceError(
                "array: its memory was donated to a jitted function, which has put a result there; "
                "use the function's result, or leave the argument out of donate_argnums"
            )


@dataclass(frozen=True)
class Place:
    """Where an array of a Program lies: a storage's handle, from a word on."""

    handle: Any
    start: int
    words: int


@dataclass(frozen=True)
class Task:
    """A kernel with its places: what a device runs."""

    spec: KernelSpec
    sizes: tuple[int, ...]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


class Run(Protocol):
    """Tasks made ready to run many times."""

    begun: int
    """Tasks, of the first on, that a call which broke off may have run: those up to the end of the submission under
    way, where there are several; a single one has run whole or not at all."""

    def stage(self, handle: Any, words: Words) -> None: ...
    def __call__(self) -> None: ...
    def fetch(self, handle: Any) -> Words: ...


class Device(AbstractContextManager["Device"]):
    """A device; ``with device:`` makes it the one on which arrays are created.

    Threads may share it: ``lock`` is held while a Program runs and while a storage is read or moved.
    """

    lock: threading.RLock
    name: str
    kind: str
    max_words: int
    software: bool = True
    """Whether it computes in the host's processor; then kernels whose invocations share results are slow."""

    def allocate(self, words: int, host: bool, remote: bool = False) -> Any:
        """A buffer of uint32 words; ``host`` if the host will write or read it, ``remote`` to have it in the host's
        memory instead of the device's, for kernels to reach from there."""
        raise NotImplementedError

    def write(self, handle: Any, words: Words) -> None:
        raise NotImplementedError

    def read(self, handle: Any, words: int) -> Words:
        raise NotImplementedError

    def prepare(
        self,
        tasks: Sequence[Task],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None = None,
        cuts: Sequence[int] = (),
    ) -> Run:
        """Compile and record. One call of the result is one submission, and one more for each of the ``cuts``: numbers
        of tasks, ascending, before which another submission begins."""
        raise NotImplementedError

    def timing(self) -> AbstractContextManager[Timing | None]:
        """A stop-watch over what is recorded within, by the device's own clock; None for a device without one."""
        return nullcontext()

    def check_size(self, words: int) -> None:
        """Raises MemoryLimitError for more words than one buffer holds."""
        if words > self.max_words:
            raise MemoryLimitError(
                f"array: {4 * words} bytes, but one buffer of {self.name} holds {4 * self.max_words}; split the array"
            )

    def storage(self, words: int) -> Storage:
        self.check_size(words)
        return Storage(self, words, self.allocate(max(1, words), host=True))

    def upload(self, words: Words) -> Storage:
        storage = self.storage(words.size)
        if words.size:
            self.write(storage.handle(), words)
        return storage

    def __enter__(self) -> Device:
        entered().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered().pop()

    def __repr__(self) -> str:
        return f"<device {self.name!r}>"


def parts_of(whole: list[Any], cuts: Sequence[int]) -> list[list[Any]]:
    """A list in parts, cut before these places."""
    return [whole[i:j] for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def ends_of(tasks: Sequence[Any], cuts: Sequence[int]) -> list[int]:
    """What Run.begun is in each of the submissions."""
    return [*cuts, len(tasks)] if cuts else [0]


# ---- the devices that this thread has entered

_local = threading.local()


def entered() -> list[Device]:
    if not hasattr(_local, "stack"):
        _local.stack = []
    stack: list[Device] = _local.stack
    return stack
