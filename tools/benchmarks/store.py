"""The shader store: look-ups and upkeep of large ones, several processes at once, and what it is there for, starts.

Facts are made here and named in benchmarks.facts.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storms.at_once import compile_at_once

from benchmarks.work import Missing, Setup
from vkdnn.device import VulkanDevice
from vkdnn.shader import Compiler, Store, upkeep
from vkdnn.shader.entry import Entry, encode

ROOT = Path(__file__).resolve().parent.parent.parent
ENTRY_BYTES = 2000  # of contents: small, since what counts is how many there are
_COMMAND = "import sys; sys.path.insert(0, sys.argv.pop(1)); from vkdnn.cli import main; main()"
RUNS = 3  # fresh processes of each kind of start


def sizes(setup: Setup) -> dict[str, Any]:
    """Look-ups in stores of several sizes; counting, sampling and evicting in the largest."""
    counts = setup.pick((10, 100, 1000), (100, 10_000, 100_000), (100, 10_000, 100_000))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vkdnn-bench-") as folder, _environment(VKDNN_CACHE_MAX_BYTES="1T"):
        store, keys = Store(folder), []
        for count in counts:
            keys += [_put(store, number) for number in range(len(keys), count)]
            found[f"look-up_in_{count}_us"] = 1e6 * _look_up(store, keys)
        smallest, largest = found[f"look-up_in_{counts[0]}_us"], found[f"look-up_in_{counts[-1]}_us"]
        found["look-up_largest_over_smallest"] = largest / smallest
        found["sizes_first_s"], total = _timed(lambda: sum(item.bytes for item in upkeep.items(store)))
        found["sizes_s"], _ = _timed(lambda: sum(item.bytes for item in upkeep.items(store)))
        with _environment(VKDNN_CACHE_DIR=folder):
            found["vkdnn_cache_stats_s"], _ = _timed(lambda: _run(["-c", _COMMAND, str(ROOT), "cache", "stats"], {}))
        for name, share in (("far_below_the_cap", 100.0), ("near_the_cap", 1.5), ("beyond_the_cap", 0.99)):
            os.environ["VKDNN_CACHE_MAX_BYTES"] = str(int(share * total))
            found[f"after_storing,_{name}_s"], _ = _timed(lambda: upkeep.after_storing(store, keys[0][:2]))
        found["evicted"] = len(keys) - sum(1 for _ in upkeep.items(store))
    return found


def _put(store: Store, number: int) -> str:
    """An entry written as it would be, but for the flush to the disk; its key."""
    noise = hashlib.shake_128(str(number).encode()).digest(ENTRY_BYTES)
    entry = Entry(store.kind, {"spec": f"number {number}"}, {"label": "made up"}, {"spirv": noise})
    path = store.path(entry.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(entry))
    return entry.key


def _look_up(store: Store, keys: list[str]) -> float:
    chosen = random.Random(0).sample(keys, min(len(keys), 1000))
    return statistics.median(_timed(lambda key=key: store.load_key(key))[0] for _ in range(3) for key in chosen)


def _run(arguments: list[str], environment: dict[str, str]) -> str:
    """What a Python process says. Raises Missing if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Missing(f"a process of its own failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout


def _timed(call: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


@contextmanager
def _environment(**names: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def at_once(setup: Setup) -> dict[str, Any]:
    """Processes that compile the same shaders on an empty store at once, beside one that does it alone."""
    processes, count = setup.pick((2, 4), (8, 200), (8, 200))
    records = []
    for number in (1, processes):
        with tempfile.TemporaryDirectory(prefix="vkdnn-bench-") as folder:
            records.append(compile_at_once(number, count, Path(folder)))
    alone, all_of_them = records
    if any(d != alone["digests"][0] for d in all_of_them["digests"]):
        raise Missing("the processes did not get the same shaders: run tools/storm")
    return {
        "processes": processes,
        "shaders": count,
        "compiler_calls": all_of_them["calls"],
        "one_process_s": alone["seconds"],
        "all_processes_s": all_of_them["seconds"],
        "all_over_one": all_of_them["seconds"] / alone["seconds"],
    }


# ---- starts

# A script is asked for its version each time, which a program is once: that is left out of the count.
_COUNTING = """#!/bin/sh
[ "$1" = --version ] || echo "$1" >> {log}
exec {compiler} "$@"
"""
_CHILD = "import sys; sys.path[:0] = sys.argv[1:3]; from benchmarks.store import first_step; first_step()"
_SMALL = ("--width", "16", "--layers", "1", "--heads", "2", "--batch", "2", "--length", "16")
_DRIVER_FOLDERS = ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")


def starts(setup: Setup) -> dict[str, Any]:
    """From the start of a process to the end of the first training step of the main job.

    Cold: the store and the driver's own cache are empty. Then with the driver's cache full, with both full, and with
    a bundle of kernels and neither store nor compiler.
    """
    if not isinstance(setup.device, VulkanDevice):
        raise Missing("the reference compiles nothing: choose a Vulkan device")
    with tempfile.TemporaryDirectory(prefix="vkdnn-bench-") as folder:
        return _Starts(setup, Path(folder)).measure(setup.pick(1, RUNS, RUNS))


class _Starts:
    def __init__(self, setup: Setup, folder: Path) -> None:
        self.folder, self.log, self.compiler = folder, folder / "calls", folder / "counting"
        self.device = str(setup.device.opened.info.index)  # type: ignore[attr-defined]
        self.words = _SMALL if setup.scale == "quick" else ()
        text = _COUNTING.format(log=shlex.quote(str(self.log)), compiler=shlex.quote(Compiler.find().path))
        self.compiler.write_text(text)
        self.compiler.chmod(0o755)
        (folder / "empty").mkdir()

    def measure(self, runs: int) -> dict[str, Any]:
        bundle = self._bundle()
        nowhere = {"VKDNN_GLSLANG": "", "PATH": str(self.folder / "empty"), "VKDNN_CACHE_DISABLE": "1"}
        ahead = {"VKDNN_AOT": str(bundle), "VKDNN_AOT_ONLY": "1", **nowhere}
        kinds: dict[str, list[dict[str, Any]]] = {}
        for run in range(runs):
            full = f"driver {run}"
            kinds.setdefault("cold", []).append(self._start(f"store {run}", full))
            kinds.setdefault("driver_warm", []).append(self._start(f"other store {run}", full))
            kinds.setdefault("warm", []).append(self._start(f"store {run}", full))
            kinds.setdefault("ahead_of_time", []).append(self._start("none", full, **ahead))
        seconds = {kind: statistics.median(r["seconds"] for r in records) for kind, records in kinds.items()}
        found = {f"{kind}_s": value for kind, value in seconds.items()}
        found |= {f"{kind}_compiler_calls": max(r["calls"] for r in records) for kind, records in kinds.items()}
        found |= {f"cold_over_{kind}": seconds["cold"] / seconds[kind] for kind in kinds if kind != "cold"}
        found["warm_importing_s"] = statistics.median(r["importing"] for r in kinds["warm"])
        found["ahead_of_time_modules_of_jinja"] = max(r["jinja"] for r in kinds["ahead_of_time"])
        if len({r["loss"] for records in kinds.values() for r in records}) > 1:
            raise Missing("the first losses differ: no figure is worth anything")
        return found

    def _bundle(self) -> Path:
        place = self.folder / "bundle"
        options = ["--model", "rapt", "--train", "--device", self.device, "-o", str(place), *self.words]
        _run(["-c", _COMMAND, str(ROOT), "aot", "build", *options], {})
        return place

    def _start(self, store: str, driver: str, **environment: str) -> dict[str, Any]:
        folders = {name: str(self.folder / driver) for name in _DRIVER_FOLDERS}
        (self.folder / driver).mkdir(exist_ok=True)
        self.log.write_text("")
        usual = {name: "" for name in ("VKDNN_AOT", "VKDNN_AOT_ONLY", "VKDNN_CACHE_DISABLE")}
        names = {**usual, "VKDNN_GLSLANG": str(self.compiler), "VKDNN_CACHE_DIR": str(self.folder / store), **folders}
        arguments = ["-c", _CHILD, str(ROOT), str(ROOT / "tools"), self.device, *self.words]
        start = time.monotonic()
        record = json.loads(_run(arguments, names | environment))
        return {**record, "seconds": record["end"] - start, "calls": len(self.log.read_text().splitlines())}


def first_step() -> None:
    """The child of starts(): arguments are two folders, a device and options of vkdnn train."""
    start = time.monotonic()
    import vkdnn as vk
    from vkdnn.cli.job_options import parse_job
    from vkdnn.train import Trainer, sample_text

    importing = time.monotonic() - start
    selector, *words = sys.argv[3:]
    job, _ = parse_job("rapt", words, "tools/bench")
    loss = Trainer(job, sample_text(), vk.device(selector)).step()
    end = time.monotonic()
    jinja = sum(name.split(".")[0] == "jinja2" for name in sys.modules)
    print(json.dumps({"end": end, "importing": importing, "jinja": jinja, "loss": repr(loss)}))
