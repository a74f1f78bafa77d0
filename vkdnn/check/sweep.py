"""Sweeps: a function over all float32 inputs, its error against float64 and a device's bits against the reference.

Both sides give a digest for each piece of the inputs, so that either may be computed elsewhere or at another time. No
order of pieces, number of processes or interruption may change a figure.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.hard import bits_equal
from vkdnn.check.sweep_journal import Content, Header, Journal, Key, read
from vkdnn.check.sweep_pieces import (
    MULTIPLIERS,
    PAIRS,
    QUIET_NAN,
    SHIFTS,
    STEPS,
    UNARY,
    Inputs,
    Referred,
    chunks,
    digest_text,
    fingerprint,
    hexadecimal,
    refer,
)
from vkdnn.check.sweep_truth import NEAR_ONE, error_of
from vkdnn.device import Device, VulkanDevice
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.ir.node import leaf
from vkdnn.ir.ops import OPS
from vkdnn.ops.elementwise import isnan, where
from vkdnn.program import Program

__all__ = ["PAIRS", "UNARY", "Figures", "Inputs", "Sweep"]

LOOKED_AT = 16  # pieces of a function whose differing results are counted one by one

Progress = Callable[[str, int, int], None]
"""(function, pieces done, pieces in all)"""


@dataclass(frozen=True)
class Figures:
    """What a sweep has found of a function. ``of`` are the inputs of the whole, ``inputs`` those it has reached."""

    function: str
    device: str | None
    stride: int | None
    of: int
    inputs: int
    differing: int | None
    """Results whose bits are not the reference's, at least: beyond a few pieces one is counted for each."""
    first: tuple[str, ...]
    """Inputs, reference and device of the first such result."""
    error: float | None
    at: tuple[str, ...]
    unit: str | None
    bound: float | None

    @property
    def complete(self) -> bool:
        return self.inputs == self.of

    @property
    def ok(self) -> bool:
        """Whether nothing differs and the error keeps its bound, so far."""
        return not self.differing and (self.bound is None or self.error is None or self.error <= self.bound)

    def record(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        found = asdict(self) | {"complete": self.complete, "ok": self.ok}
        return {k: "inf" if v == float("inf") else v for k, v in found.items()}


class Compared:
    """A function on a device: the digest of its results for a piece, and the results themselves."""

    def __init__(self, inputs: Inputs, device: Device):
        self.inputs, n = inputs, inputs.length
        shapes = [(n,), (n,)] if inputs.paired else [(1,)]
        given = [vk.Array(leaf(shape, vk.uint32), device) for shape in shapes]
        place = vk.arange(n).astype("uint32")
        bits = given if inputs.paired else [place * inputs.stride + given[0]]
        result = given[0]._map(inputs.name, *(b._map("bits_float32", b) for b in bits))
        if result.dtype.category not in "iub":
            result = result.astype("float32")
            result = where(isnan(result), QUIET_NAN, result._map("bits_uint32", result))
        words = result.astype("uint32")
        sums = [self._mixed(words ^ (place * step)) for step in STEPS]
        sums = [vk.sum(vk.sum(s.reshape(-1, 1024), axis=1)) for s in sums]
        nodes = [a.node for a in given]
        self._sums = Program(device, [s.node for s in sums], nodes)
        self._words = Program(device, [words.node], nodes)

    @staticmethod
    def _mixed(x: Any) -> Any:
        for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
            x = x ^ (x >> shift)
            x = x * multiplier
        return x ^ (x >> SHIFTS[-1])

    def _given(self, piece: int) -> list[Any]:
        if self.inputs.paired:
            return [a.view(np.uint32) for a in self.inputs.arrays(piece)]
        return [np.array([self.inputs.start(piece)], np.uint32)]

    def digest(self, piece: int) -> str:
        return digest_text([int(s.read()[0]) for s in self._sums(self._given(piece))])

    def differing(self, piece: int) -> tuple[int, list[str]]:
        """How many results differ; inputs, reference and device of the first that does."""
        got, count, start = self._words(self._given(piece))[0].read(), 0, 0
        first: list[str] = []
        for values, want in chunks(self.inputs, piece):
            part = got[start : start + want.size]
            part = part.astype(np.bool_) if want.dtype == np.bool_ else part.view(want.dtype)
            wrong = np.flatnonzero(~bits_equal(want, part))
            if wrong.size and not first:
                first = [_text(v[wrong[0]]) for v in (*values, want, part)]
            count, start = count + int(wrong.size), start + want.size
        return count, first


def _text(value: Any) -> str:
    return hexadecimal(value) if isinstance(value, np.float32) else str(value)


class Sweep:
    """Functions over all their inputs.

    ``device`` None computes the reference alone (a recording). ``against`` is a file of such: what it holds is not
    computed again. ``state`` is where all that is found is kept, and from where it goes on; ``seconds`` bounds the time
    in which pieces are begun, ``jobs`` is the number of processes for the reference (0: this one).

    >>> from vkdnn.check.sweep import Sweep
    >>> (found,) = Sweep(["abs"], device=vk.device("cpu"), stride=2**20, jobs=0).run()
    >>> found.inputs, found.differing, found.error
    (4096, 0, 0.0)
    """

    def __init__(
        self,
        functions: Sequence[str],
        device: Device | None = None,
        *,
        stride: int = 1,
        pairs: int = 10**8,
        jobs: int | None = None,
        seconds: float = float("inf"),
        state: str | os.PathLike[str] | None = None,
        against: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ):
        """Raises ArgumentError for functions that there are not, and for files that do not fit or are being written."""
        self.inputs = {name: Inputs.of(name, stride, pairs) for name in dict.fromkeys(functions)}
        if not self.inputs:
            raise ArgumentError("function: none is named")
        self.device, self.seconds, self.progress = device, seconds, progress
        self.jobs = max(1, (os.cpu_count() or 2) - 1) if jobs is None else jobs
        names = {name: fingerprint(name) for name in self.inputs}
        header = Header(names, stride, pairs, None if device is None else device_name(device))
        recorded = {} if against is None else _recorded(against, header)
        self.journal = Journal(state, header)
        self.content: Content = self.journal.content
        for key, found in recorded.items():
            if self.content.referred.setdefault(key, found) != found:
                where, kept = f"sweep file {against}", f"{state} holds"
                raise ArgumentError(f"{where}: piece {key[1]} of {key[0]} is not what {kept}; remove one of them")
        self._compared: dict[str, Compared] = {}
        self._told = 0.0

    def run(self) -> list[Figures]:
        """Does what is missing. Interrupted, figures() has what was found so far."""
        stop = time.monotonic() + self.seconds
        pool = self._pool()
        pending: dict[Future[Referred], Key] = {}
        try:
            for name, inputs in self.inputs.items():
                for piece in inputs.order():
                    if time.monotonic() > stop:
                        break
                    key = name, piece
                    if key not in self.content.referred:
                        while len(pending) > 2 * self.jobs:
                            self._take(pending)
                        if pool is None:
                            self._refer(key, refer(inputs, piece))
                        else:
                            pending[pool.submit(refer, inputs, piece)] = key
                    self._compute(key)
                    self._tell(name)
            while pending:
                self._take(pending)
            return self.figures()
        except BrokenProcessPool:
            raise VkdnnError(
                "sweep: a process that computes the reference died; is there enough memory? Take fewer with --jobs"
            ) from None
        finally:
            if pool is not None:
                _end(pool)
            self.journal.close()

    def _pool(self) -> ProcessPoolExecutor | None:
        missing = any((n, p) not in self.content.referred for n, i in self.inputs.items() for p in range(i.count))
        if not self.jobs or not missing:
            return None
        # A driver does not survive a fork.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.jobs, context, _start)

    def _take(self, pending: dict[Future[Referred], Key]) -> None:
        """Takes in what is ready, at least one."""
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            key = pending.pop(future)
            self._refer(key, future.result())
            self._tell(key[0])

    def _refer(self, key: Key, found: Referred) -> None:
        self.journal.note_reference(key, found)
        self._compare(key)

    def _compute(self, key: Key) -> None:
        if self.device is not None and key not in self.content.computed:
            self.journal.note_device(key, self._on_device(key[0]).digest(key[1]))
        self._compare(key)

    def _on_device(self, name: str) -> Compared:
        assert self.device is not None
        if name not in self._compared:
            self._compared.clear()  # functions come one after the other
            self._compared[name] = Compared(self.inputs[name], self.device)
        return self._compared[name]

    def _compare(self, key: Key) -> None:
        """Where digests part, counts the results, of some pieces."""
        content = self.content
        want, got = content.referred.get(key), content.computed.get(key)
        if want is None or got is None or want.digest == got or key in content.differing:
            return
        if sum(1 for name, _ in content.differing if name == key[0]) < LOOKED_AT:
            self.journal.note_differing(key, *self._on_device(key[0]).differing(key[1]))

    def _reached(self, key: Key) -> bool:
        return key in self.content.referred and (self.device is None or key in self.content.computed)

    def _tell(self, name: str) -> None:
        if self.progress is not None and time.monotonic() - self._told > 0.1:
            self._told = time.monotonic()
            count = self.inputs[name].count
            self.progress(name, sum(1 for piece in range(count) if self._reached((name, piece))), count)

    def figures(self) -> list[Figures]:
        """What is known now, function by function."""
        return [self._figures(name, inputs) for name, inputs in self.inputs.items()]

    def _figures(self, name: str, inputs: Inputs) -> Figures:
        content = self.content
        reached = [(name, piece) for piece in range(inputs.count) if self._reached((name, piece))]
        found = [content.referred[key] for key in reached]
        parted = [k for k in reached if self.device is not None and content.referred[k].digest != content.computed[k]]
        counts = [content.differing.get(key, (1, [])) for key in parted]
        worst = max((r for r in found if r.error is not None), key=lambda r: r.error or 0.0, default=Referred(""))
        measure = error_of(name)
        return Figures(
            function=name,
            device=None if self.device is None else self.device.name,
            stride=None if inputs.paired else inputs.stride,
            of=inputs.total,
            inputs=sum(inputs.counted(piece) for _, piece in reached),
            differing=None if self.device is None else sum(max(1, count) for count, _ in counts),
            first=tuple(next((first for _, first in counts if first), ())),
            error=worst.error,
            at=worst.at if worst.error else (),
            unit=None if measure is None else measure[0],
            bound=None if measure is None or measure[0] == NEAR_ONE else bound(name),
        )


def bound(name: str) -> float:
    """The error that a row may have: exact ones none."""
    if name in ("to_float16", "to_bfloat16"):
        return 0.5
    return OPS[name].ulp or 0.0


def device_name(device: Device) -> str:
    """A device with its driver: two versions of a software device have one name."""
    if not isinstance(device, VulkanDevice):
        return device.name
    info = device.opened.info
    return f"{info.name}, {info.driver} {info.driver_version}"


def _recorded(path: str | os.PathLike[str], header: Header) -> dict[Key, Referred]:
    """The reference's part of a file, for a sweep of these functions. Raises ArgumentError where it does not fit."""
    found = read(path)
    if missing := [name for name in header.functions if name not in found.header.functions]:
        raise ArgumentError(f"sweep file {path}: it has no {', '.join(missing)}; record them, or name others")
    for name in ("stride", "pairs"):
        own, other = getattr(header, name), getattr(found.header, name)
        if own != other:
            raise ArgumentError(f"sweep file {path}: it is of {name} {other}, expected {own}; give --{name} {other}")
    trouble = header.stale(found.header, header.functions)
    if trouble is not None:
        raise ArgumentError(f"sweep file {path}: {trouble}; record it anew")
    return {key: value for key, value in found.referred.items() if key[0] in header.functions}


def _start() -> None:
    """In a process for the reference: whoever started it decides when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(pool: ProcessPoolExecutor) -> None:
    """At once, if an exception is under way: a piece takes seconds."""
    broken = sys.exc_info()[0] is not None
    processes = list((pool._processes or {}).values()) if broken else []
    pool.shutdown(wait=not broken, cancel_futures=True)
    for process in processes:
        process.terminate()
