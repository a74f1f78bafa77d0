"""Devices as programs see them: the NumPy reference ("cpu") and Vulkan devices, behind one small interface.

Nothing here knows an operation; a device runs the steps it is given, in order, on the storages it is given.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from vkdnn import runtime
from vkdnn.dtypes import memory
from vkdnn.errors import DeviceError, MemoryLimitError
from vkdnn.ir.arguments import integer
from vkdnn.kernels.base import KernelSpec, Target
from vkdnn.numerics.basic import exact
from vkdnn.runtime import Launch, Region
from vkdnn.schedules import Winners, asked, current_choice, pick
from vkdnn.shader import ShaderRequest, bundle, compile_many
from vkdnn.shader.request import kernel_request
from vkdnn.timeline import stretch

Words = np.ndarray[Any, np.dtype[np.uint32]]
Progress = Callable[[int, int, str], None]


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
        _stack().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _stack().pop()

    def __repr__(self) -> str:
        return f"<device {self.name!r}>"


# ---- the reference


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
        return _ReferenceRun(_parts([_reference_call(t) for t in tasks], cuts), _ends(tasks, cuts))


def _parts(whole: list[Any], cuts: Sequence[int]) -> list[list[Any]]:
    """A list in parts, cut before these places."""
    return [whole[i:j] for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def _ends(tasks: Sequence[Task | Launch], cuts: Sequence[int]) -> list[int]:
    """What Run.begun is in each of the submissions."""
    return [*cuts, len(tasks)] if cuts else [0]


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


# ---- Vulkan


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
        tuner = current_tuner()
        tuning = tuner(self, tasks, uploads, downloads, progress, cuts) if tuner is not None else None
        return tuning or self.ready(tasks, self.chosen(tasks), uploads, downloads, progress, cuts)

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

    def ready(
        self,
        tasks: Sequence[Task],
        schedules: Sequence[Any],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None = None,
        cuts: Sequence[int] = (),
    ) -> _VulkanRun:
        """prepare() with schedules that are given."""
        launches = self.launches(tasks, schedules, progress)
        with stretch("record"):
            run = self.recorded(launches, uploads, downloads, cuts)
        if (log := _log.get()) is not None:
            ways = self.opened.strategies.division, self.opened.strategies.square_root
            log.append(Prepared(tasks, schedules, launches, run.recordings, "fma" in ways))
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
        parts = _parts(list(launches), cuts)
        last = len(parts) - 1
        recordings = [
            self.opened.record(part, uploads if i == 0 else (), downloads if i == last else ())
            for i, part in enumerate(parts)
        ]
        return _VulkanRun(recordings, _ends(launches, cuts))

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


class Tuner(Protocol):
    """What Programs ask before they are made ready on a Vulkan device."""

    def __call__(
        self,
        device: VulkanDevice,
        tasks: Sequence[Task],
        uploads: Sequence[Any],
        downloads: Sequence[Any],
        progress: Progress | None,
        cuts: Sequence[int],
    ) -> Run | None:
        """A run that times kernels when it is called first; None where there is nothing to time."""
        ...


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


# ---- choosing

_local = threading.local()
_lock = threading.Lock()
_opened: dict[int, VulkanDevice] = {}  # by the identity of what the runtime opened: it keeps one for each strategy
_reference = ReferenceDevice()


def _stack() -> list[Device]:
    if not hasattr(_local, "stack"):
        _local.stack = []
    stack: list[Device] = _local.stack
    return stack


def device(selector: str | int | None = None) -> Device:
    """The device a selector names: "cpu" (the NumPy reference), an index, a kind ("discrete", "integrated",
    "virtual", "software") or part of a name; None takes ``VKDNN_DEVICE``, else the best Vulkan device.

    Usable as a context: arrays made inside live on it. Raises DeviceError when there is no such device and
    ArgumentError when the selector is neither text nor an int.

    >>> import vkdnn as vk
    >>> with vk.device("cpu"):
    ...     print(vk.array([1.0, 2.0]) + 1)
    [2. 3.]
    """
    if not isinstance(selector, (str, type(None))):
        selector = str(integer("device: selector", selector, "an index, a kind, part of a name or 'cpu'"))
    selector = selector if selector is not None else os.environ.get("VKDNN_DEVICE") or None
    if selector is not None and selector.lower() in ("cpu", "reference"):
        return _reference
    opened = runtime.open_device(selector)
    with _lock:
        if id(opened) not in _opened:
            _opened[id(opened)] = VulkanDevice(opened)
        return _opened[id(opened)]


def current_device() -> Device:
    """The innermost ``with vk.device(...)`` of this thread, else the default device."""
    stack = _stack()
    return stack[-1] if stack else device()


def devices() -> tuple[runtime.DeviceInfo, ...]:
    """Every Vulkan device of this machine, in the order of their indices; "cpu" always exists besides."""
    return runtime.list_devices()
