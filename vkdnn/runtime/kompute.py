"""A device driven through Kompute: memory, transfers, submissions; the only module that imports kp.

It must never hand out a view of device memory, nor let a hazard, a limit or a lost device pass in silence.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np

from vkdnn.errors import ArgumentError, DeviceError, MemoryLimitError
from vkdnn.numerics.flush import hardware_flush
from vkdnn.runtime.checks import check_launch, check_span, check_words
from vkdnn.runtime.info import SOFTWARE, DeviceInfo, Strategies
from vkdnn.runtime.interface import Buffer, Launch, Words
from vkdnn.runtime.recording import KomputeRecording, Timing

# Written to the ticket on the device once; every submission ends by copying it back (see submit).
_TICKET = 0x5EA1ED00
# Algorithms kept for reuse while their buffers live; each holds a pipeline of the driver.
_MAX_ALGORITHMS = 1024
_NO_CONSTANTS = np.zeros(0, np.uint32)

_serials = itertools.count()
_timing: ContextVar[Timing | None] = ContextVar("timing", default=None)


class KomputeBuffer:
    """Device memory of `words` 32-bit words; with `host`, also a mapped staging copy of the same size.

    With `remote` it is memory of the host instead, which shaders read and write over the bus.
    """

    def __init__(self, device: KomputeDevice, tensor: Any, words: int, host: bool, remote: bool = False) -> None:
        self.device = device
        self.words = words
        self.host = host
        self.remote = remote
        self.serial = next(_serials)
        self.tensor = tensor
        self._staging = mapped_words(tensor) if host else None

    def __repr__(self) -> str:
        kind = "host" if self.host else "remote" if self.remote else "storage"
        return f"<{kind} buffer {self.serial} of {self.words} words>"

    def staging(self) -> Words:
        """The mapped staging copy; a view for use inside this module, never to be kept or handed out."""
        if self._staging is None:
            raise ArgumentError(f"{self!r} has no staging copy; allocate it with host=True")
        return self._staging


class KomputeDevice:
    """An opened device. Its methods may be called from any thread; submissions happen one at a time."""

    def __init__(self, info: DeviceInfo, strategies: Strategies = SOFTWARE) -> None:
        """Raises DeviceError if Kompute is missing or cannot open the device."""
        self.info = info
        self.strategies = strategies
        self.submissions = 0
        self.peak_bytes = 0
        self.lock = threading.RLock()
        self._allocated = 0
        self._remote = 0
        self._released: deque[tuple[int, int, bool]] = deque()
        self._sweeping = threading.Lock()
        self._kp = import_kp()
        self._algorithms: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        try:
            # The worker threads of a software device inherit this thread's floating-point mode and then flush
            # by themselves; a graphics card does not care. The probe decides what came of it.
            self._process = os.getpid()
            with hardware_flush():
                self._manager = self._kp.Manager(info.index)
            self._ticket = self._manager.tensor_t(np.array([_TICKET], np.uint32))
            self._ticket_word = mapped_words(self._ticket)
            self._fence = self._manager.tensor_t(np.zeros(1, np.uint32))
            self._manager.sequence().eval(self._kp.OpTensorSyncDevice([self._ticket, self._fence]))
        except RuntimeError as error:
            raise DeviceError(
                f"device {info}: cannot be opened ({error}); check its driver with `vulkaninfo --summary` "
                "or choose another with VKDNN_DEVICE"
            ) from error

    def __repr__(self) -> str:
        return f"<KomputeDevice {self.info}>"

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all live buffers, remote ones and staging copies not counted."""
        with self.lock:
            self.sweep()
            return self._allocated

    @property
    def remote_bytes(self) -> int:
        """Bytes of all live remote buffers."""
        with self.lock:
            self.sweep()
            return self._remote

    def allocate(self, words: int, host: bool, remote: bool = False) -> KomputeBuffer:
        """A buffer of `words` 32-bit words with undefined contents; `host` adds the staging copy, `remote` puts the
        buffer into the host's memory.

        Raises ArgumentError for less than one word or for both, MemoryLimitError beyond the limits of the device or
        of the host.
        """
        self._check_process()
        if words < 1:
            raise ArgumentError(f"words is {words}, expected at least 1; an empty array needs no buffer")
        if host and remote:
            raise ArgumentError("host and remote are both true, expected one of them; remote memory is never staged")
        size = 4 * words
        limits = self.info.limits
        if size > limits.max_buffer_bytes:
            raise MemoryLimitError(
                f"words is {words} ({size} bytes), expected at most {limits.max_buffer_bytes} bytes in one "
                f"buffer of {self.info.name}; split the array, or choose a device with a larger limit"
            )
        with self.lock:
            self.sweep()
            # Kompute does not check the driver's answer: an allocation that fails would crash later.
            used, limit = (self._remote, _host_bytes()) if remote else (self._allocated, limits.memory_bytes)
            if used + size > limit:
                where = "in the host's memory" if remote else f"on {self.info.name}"
                raise MemoryLimitError(
                    f"words is {words} ({size} bytes) with {used} bytes allocated, expected at "
                    f"most {limit} bytes in all {where}; free arrays or make the batch smaller"
                )
            kinds = self._kp.TensorTypes
            kind = kinds.host if remote else kinds.device if host else kinds.storage
            # Zeros are pages that are never touched: for storage Kompute reads nothing but their number.
            tensor = self._manager.tensor_t(np.zeros(words, np.uint32), kind)
            buffer = KomputeBuffer(self, tensor, words, host, remote)
            weakref.finalize(buffer, _release, weakref.ref(self), buffer.serial, size, remote).atexit = False
            with self._sweeping:
                if remote:
                    self._remote += size
                else:
                    self._allocated += size
                    self.peak_bytes = max(self.peak_bytes, self._allocated)
        return buffer

    def write(self, buffer: Buffer, words: Words, offset: int = 0) -> None:
        """Copies `words` (uint32, 1-D) into a host buffer from word `offset` on, and waits.

        Transfers the whole buffer, both ways where only a part is written. Raises ArgumentError for a storage
        buffer, another dtype or words that do not fit.
        """
        own = self.own(buffer, "buffer", host=True)
        checked = check_words(words)
        check_span(own, offset, checked.size)
        with self.lock:
            if checked.size < own.words:
                # Kompute copies all of the staging memory: it has to hold what the device has in the rest.
                self._transfer(self._kp.OpTensorSyncLocal([own.tensor]))
            own.staging()[offset : offset + checked.size] = checked
            self._transfer(self._kp.OpTensorSyncDevice([own.tensor]))

    def read(self, buffer: Buffer, offset: int = 0, words: int | None = None) -> Words:
        """A copy of `words` words (default: all from `offset` on) of a host buffer.

        Transfers the whole buffer. Raises ArgumentError for a storage buffer or words outside it.
        """
        own = self.own(buffer, "buffer", host=True)
        count = own.words - offset if words is None else words
        check_span(own, offset, count)
        with self.lock:
            self._transfer(self._kp.OpTensorSyncLocal([own.tensor]))
            return own.staging()[offset : offset + count].copy()

    def record(
        self, launches: Sequence[Launch], uploads: Sequence[Buffer] = (), downloads: Sequence[Buffer] = ()
    ) -> KomputeRecording:
        """Records the uploads, the launches in order with barriers at real hazards, then the downloads.

        Runs nothing. Raises ArgumentError for foreign or storage buffers in transfers, regions outside their
        buffers, workgroup counts, push constants or bindings beyond the device's limits.
        """
        self._check_process()
        for launch in launches:
            check_launch(launch, self.info)
        timing = _timing.get()
        return KomputeRecording(
            self, launches, uploads, downloads, timing if timing is not None and timing.device is self else None
        )

    @contextmanager
    def timing(self) -> Iterator[Timing]:
        """What this thread records within has the times of its launches after each run, here and later.

        Stamps between launches keep those that could overlap apart: such a recording takes a little longer. Raises
        DeviceError for a device without timestamps.

        >>> with opened.timing() as timing:  # doctest: +SKIP
        ...     recording = opened.record(launches)
        >>> recording.run()  # doctest: +SKIP
        >>> recording.launch_seconds(), timing.seconds  # doctest: +SKIP
        ([0.00014, 0.00023], 0.00038)
        """
        if not self.info.limits.timestamp_ns:
            raise DeviceError(f"device {self.info}: has no timestamps for computing; time whole submissions instead")
        timing = Timing(self)
        token = _timing.set(timing)
        try:
            yield timing
        finally:
            _timing.reset(token)

    # What follows is for this module.

    def own(self, buffer: Buffer, argument: str, host: bool) -> KomputeBuffer:
        """The buffer as one of this device's; raises ArgumentError if it is not, or lacks a staging copy."""
        if not isinstance(buffer, KomputeBuffer) or buffer.device is not self:
            raise ArgumentError(f"{argument}: {buffer!r} is no buffer of {self!r}; allocate it there")
        if host and not buffer.host:
            raise ArgumentError(
                f"{argument}: {buffer!r} has no staging copy, expected a host buffer; allocate it with host=True"
            )
        return buffer

    def record_sequence(
        self,
        launches: Sequence[Launch],
        plan: Sequence[bool],
        uploads: Sequence[Buffer],
        downloads: Sequence[Buffer],
        stamps: int = 0,
    ) -> tuple[Any, list[bool]]:
        """The sequence, with room for so many timestamps, and, of each launch, whether a barrier was recorded before
        it: what checks look at."""
        kp, recorded = self._kp, []
        sequence = self._manager.sequence(0, stamps) if stamps else self._manager.sequence()
        if uploads:
            sequence.record(kp.OpTensorSyncDevice(self._tensors(uploads)))
        for launch, barrier in zip(launches, plan, strict=True):
            ordered = False
            if barrier:
                # A dispatch waits for transfers only; this transfer waits for the dispatches before it. Its
                # memory barrier names the fence alone, since Kompute has none for storage buffers: the
                # execution order is strict, and drivers flush whole caches, never single buffers.
                sequence.record(kp.OpTensorSyncLocal([self._fence]))
                ordered = True
            recorded.append(ordered)
            push = np.array(launch.push, np.uint32)
            sequence.record(kp.OpAlgoDispatch(self._algorithm(launch), push))
        if downloads:
            sequence.record(kp.OpTensorSyncLocal(self._tensors(downloads)))
        sequence.record(kp.OpTensorSyncLocal([self._ticket]))
        return sequence, recorded

    def note_release(self, serial: int, size: int, remote: bool) -> None:
        self._released.append((serial, size, remote))
        self.sweep()

    def sweep(self) -> None:
        """Forgets algorithms that would keep the memory of released buffers.

        Never waits and never nests: where a sweep is under way, or a thread is amid its lookups, the next one
        does the work.
        """
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            while self._released:
                serial, size, remote = self._released.popleft()
                if remote:
                    self._remote -= size
                else:
                    self._allocated -= size
                for key in [key for key in self._algorithms if serial in key[1]]:
                    del self._algorithms[key]
        finally:
            self._sweeping.release()

    def submit(self, sequence: Any) -> None:
        """Runs a sequence that ends with the ticket's way back, and waits.

        Kompute ignores what the driver answers, so a lost device looks like success: only the ticket, wiped
        here and copied back by the last command, proves that the commands ran.
        """
        self._check_process()
        with self.lock:
            self._ticket_word[0] = 0
            self.submissions += 1
            try:
                sequence.eval()
            except RuntimeError as error:
                raise DeviceError(f"device {self.info}: submission failed ({error}); {_LOST}") from error
            if self._ticket_word[0] != _TICKET:
                raise DeviceError(f"device {self.info}: lost, a submission did not run to its end; {_LOST}")

    def _check_process(self) -> None:
        """Drivers do not follow into a forked process: calls there end it, or never end."""
        if os.getpid() != self._process:
            raise DeviceError(
                f"device {self.info}: opened before this process was forked, and drivers do not follow; open it in the "
                'child alone, or start processes with multiprocessing.get_context("spawn")'
            )

    def _transfer(self, operation: Any) -> None:
        sequence = self._manager.sequence()
        sequence.record(operation)
        sequence.record(self._kp.OpTensorSyncLocal([self._ticket]))
        self.submit(sequence)

    def _tensors(self, buffers: Iterable[Buffer]) -> list[Any]:
        return [self.own(buffer, "buffers", host=False).tensor for buffer in buffers]

    def _algorithm(self, launch: Launch) -> Any:
        """The Kompute algorithm for a launch; of the push constants only the number matters here."""
        serials = tuple(self.own(buffer, "buffers", host=False).serial for buffer in launch.buffers)
        key = (launch.spirv, serials, len(launch.push), launch.groups)
        with self._sweeping:
            algorithm = self._algorithms.get(key)
            if algorithm is not None:
                self._algorithms.move_to_end(key)
        if algorithm is None:
            try:
                algorithm = self._manager.algorithm(
                    self._tensors(launch.buffers),
                    launch.spirv,
                    launch.groups,
                    _NO_CONSTANTS,
                    np.zeros(len(launch.push), np.uint32),
                )
            except RuntimeError as error:
                raise DeviceError(
                    f"shader {launch.label}: the driver of {self.info} makes no pipeline of it ({error}); "
                    "update the driver or choose another device with VKDNN_DEVICE"
                ) from error
            with self._sweeping:
                self._algorithms[key] = algorithm
                if len(self._algorithms) > _MAX_ALGORITHMS:
                    self._algorithms.popitem(last=False)
        return algorithm


_LOST = "its driver may have reset it after a long kernel; start the process again"


def mapped_words(tensor: Any) -> Words:
    """The mapped memory of a Kompute tensor of uint32, as a view that dangles once the tensor is gone.

    Kompute's own view has stride 0 where kp was built with pybind11 before 2.12 and NumPy is 2 or later:
    every element would be the first. Only its address and the tensor's size are used.
    """
    address: int = tensor.data().ctypes.data
    return np.ctypeslib.as_array((ctypes.c_uint32 * tensor.size()).from_address(address))


def _host_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _release(device: weakref.ref[KomputeDevice], serial: int, size: int, remote: bool) -> None:
    """A buffer is gone. Runs when the collector likes, even inside the device's own methods."""
    alive = device()
    if alive is not None:
        alive.note_release(serial, size, remote)


def import_kp() -> ModuleType:
    """Kompute's module. Raises DeviceError, with what to install, where there is none."""
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        import kp
    except (ImportError, OSError) as error:
        raise DeviceError(
            f"Kompute is missing ({error}); run tools/setup, or `pip install --no-deps kp==0.9.0`, which "
            "builds it with Debian's cmake, g++, libvulkan-dev, libfmt-dev and pybind11-dev"
        ) from error
    # Importing kp configures the root logger, which belongs to the program.
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)
    module: ModuleType = kp
    return module
