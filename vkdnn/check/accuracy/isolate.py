"""Cases in processes of their own: a crash or a hang is the end of one case, and a new process goes on with the next.

A case must get exactly one answer, whatever its process does.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from vkdnn.check.accuracy.cases import Spec
from vkdnn.check.accuracy.run import Row, Settings, row_from, without_results
from vkdnn.check.accuracy.worker import LOST

START = 120.0  # seconds a process may take until it is ready
END = 3.0  # seconds it may take to end, once its output is closed or it was killed
TAIL = 2000  # characters of its last words that are looked at


class Worker:
    """A process that runs one case at a time."""

    def __init__(self) -> None:
        self.words = tempfile.TemporaryFile()  # noqa: SIM115  (for as long as the process lives)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vkdnn.check.accuracy.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, env=_environment(),
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self.buffer = b""
        self.ready = False
        self.spec: Spec | None = None
        self.begun = time.monotonic()

    def give(self, spec: Spec, settings: Settings) -> None:
        """Start a case; its time runs from now, or from when the process is ready."""
        self.spec, self.begun = spec, time.monotonic()
        job = {"spec": spec.record(), "settings": settings.record()}
        with contextlib.suppress(OSError):  # it has died: its output says so
            self.stdin.write(json.dumps(job).encode() + b"\n")
            self.stdin.flush()

    @property
    def deadline(self) -> float:
        return self.begun + (self.spec.timeout if self.ready and self.spec is not None else START)

    def messages(self) -> tuple[list[dict[str, Any]], bool]:
        """Messages that have come, and whether the process has closed its output, or filled it with something else."""
        try:
            data = os.read(self.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return [], False
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        found: list[dict[str, Any]] = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict) or not {"ready", "rows"} & set(message):
                return found, True
            found.append(message)
        return found, not data

    def last_words(self) -> str:
        """How the process ended, and the last line that it wrote of its own accord.

        A process that goes on without its output is killed: it cannot answer any more.
        """
        lost = "the process closed or overwrote the files by which it answers"
        try:
            code = self.process.wait(END)
        except subprocess.TimeoutExpired:
            return f"{lost}, and was killed"
        if code == LOST:
            return lost
        self.words.seek(0)
        lines = self.words.read().decode(errors="replace")[-TAIL:].strip().splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")] or lines[-1:]
        how = f"status {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
        return f"the process ended with {how}" + (f": {fatal[0]}" if fatal else "")

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it in the kernel
            self.process.wait(END)
        for stream in (self.stdin, self.stdout, self.words):
            with contextlib.suppress(OSError):
                stream.close()


def _environment() -> dict[str, str]:
    """Modules of the working folder are found there, too."""
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path}


def run_isolated(specs: Sequence[Spec], settings: Settings, jobs: int = 1, fresh: bool = False) -> Iterator[list[Row]]:
    """The rows of each case as it ends, run by ``jobs`` processes, or with ``fresh`` by one for each case.

    A case whose process dies is a `crash`, one that takes longer than its timeout a `timeout`; the process is replaced.
    Closing the iterator ends all processes.
    """
    waiting = deque(specs)
    workers: list[Worker] = []
    selector = selectors.DefaultSelector()

    def add() -> None:
        worker = Worker()
        workers.append(worker)
        selector.register(worker.stdout, selectors.EVENT_READ, worker)
        worker.give(waiting.popleft(), settings)

    def drop(worker: Worker) -> None:
        selector.unregister(worker.stdout)
        workers.remove(worker)
        worker.kill()

    try:
        while waiting or workers:
            while waiting and len(workers) < max(1, jobs):
                add()
            soonest = min(w.deadline for w in workers)
            for key, _ in selector.select(max(0.0, soonest - time.monotonic()) + 0.001):
                worker: Worker = key.data
                messages, ended = worker.messages()
                for message in messages:
                    if "ready" in message:
                        worker.ready, worker.begun = True, time.monotonic()
                        continue
                    worker.spec = None
                    yield [row_from(r) for r in message["rows"]]
                    if waiting and not fresh:
                        worker.give(waiting.popleft(), settings)
                    else:
                        drop(worker)
                        break
                else:
                    if ended:
                        yield _ended(worker, settings)
                        drop(worker)
            for worker in [w for w in workers if time.monotonic() > w.deadline]:
                yield _late(worker, settings)
                drop(worker)
    finally:
        for worker in list(workers):
            drop(worker)
        selector.close()


def _ended(worker: Worker, settings: Settings) -> list[Row]:
    assert worker.spec is not None
    seconds = time.monotonic() - worker.begun
    return without_results(worker.spec, settings, "crash", worker.last_words(), seconds)


def _late(worker: Worker, settings: Settings) -> list[Row]:
    assert worker.spec is not None
    if not worker.ready:
        return without_results(worker.spec, settings, "crash", f"its process was not ready after {START:.0f} s", START)
    limit = worker.spec.timeout
    return without_results(worker.spec, settings, "timeout", f"took longer than {limit:g} s", limit)


def run_one(spec: Spec, settings: Settings) -> list[Row]:
    """The rows of one case, run by a process of its own."""
    (rows,) = run_isolated([spec], settings, fresh=True)
    return rows
