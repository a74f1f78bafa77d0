"""A worker: a process that wants all shaders, again and again, and looks at every SPIR-V that it gets.

It is forked from the driver, which has imported everything; it must share nothing with it but the store.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from storms.shaders import Shaders
from vkdnn import shader
from vkdnn.errors import CompileError
from vkdnn.shader import compiler, store

TRAITS = ("small cap", "full disk", "no locks")
_SMALL_CAP = "24K"  # some ten entries
_PATIENCE = 1.0  # in the place of store.LOCK_SECONDS, so that a stopped process delays a round little
_KILLED = (f"killed by signal {signal.SIGKILL:d}", f"exited with {-signal.SIGKILL:d}")
_ATTEMPTS = 20  # at a shader whose compiler the driver kills again and again


@dataclass
class Worker:
    """A process of a round. ``killed``: the driver did it."""

    pid: int
    traits: frozenset[str]
    report: Path
    killed: bool = False
    status: int | None = None


def spawn(
    shaders: Shaders,
    folder: Path,
    report: Path,
    seed: int,
    turns: int,
    traits: frozenset[str],
    environment: Mapping[str, str],
) -> Worker:
    """Starts a worker with a process group of its own, which its compilers belong to."""
    rng = random.Random(seed)
    pid = os.fork()
    if pid:
        return Worker(pid, traits, report)
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ.update(environment, VKDNN_CACHE_DIR=str(folder))
        status = _work(shaders, report, rng, turns, traits)
    except BaseException:
        report.with_suffix(".error").write_text(traceback.format_exc())
        status = 1
    finally:
        sys.stderr.flush()
        os._exit(status)


def _work(shaders: Shaders, report: Path, rng: random.Random, turns: int, traits: frozenset[str]) -> int:
    _forget()
    _take_on(traits, rng)
    wrong, got, attempts = [], 0, 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(turns):
            shader._memo.clear()
            numbers = rng.sample(range(len(shaders.requests)), rng.randint(1, len(shaders.requests)))
            while True:
                try:
                    found = shader.compile_many([shaders.requests[number] for number in numbers])
                    break
                except CompileError as error:  # the driver kills compilers, too
                    attempts += 1
                    if not any(text in str(error) for text in _KILLED) or attempts > _ATTEMPTS:
                        raise
            got += len(found)
            wrong += [n for n, spirv in zip(numbers, found, strict=True) if shaders.wrong(n, spirv)]
    said = [str(warning.message) for warning in caught]
    record: dict[str, Any] = {
        "got": got,
        "compiled": shader.compile_count(),
        "compilers_killed": attempts,
        "wrong": wrong,
        "damaged": sum("damaged entry" in text for text in said),
        "unwritable": sum("cannot store" in text for text in said),
        "other": [text for text in said if "damaged entry" not in text and "cannot store" not in text],
    }
    report.write_text(json.dumps(record))
    once = record["damaged"] <= 1 and record["unwritable"] <= 1 and not record["other"]
    return 3 if wrong else 0 if once else 4


def _forget() -> None:
    """As if this process had begun with the interpreter."""
    shader._memo.clear()
    compiler._found.clear()
    compiler._runs = 0
    store._warned.clear()
    shader.LOCK_SECONDS = _PATIENCE  # type: ignore[misc]
    compiler._SECOND_FOLDER = tempfile.gettempdir()  # the driver's, which it takes away


def _take_on(traits: frozenset[str], rng: random.Random) -> None:
    if "small cap" in traits:
        os.environ["VKDNN_CACHE_MAX_BYTES"] = _SMALL_CAP
    if "full disk" in traits:
        fsync = os.fsync

        def full(handle: int) -> None:
            if rng.random() < 0.5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(handle)

        os.fsync = full
    if "no locks" in traits:

        def none(*_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        filelock.FileLock.acquire = none  # type: ignore[method-assign]
