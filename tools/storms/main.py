"""The driver of tools/storm: rounds of workers, attacks and kills, and the account of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from storms import shaders as made
from storms.attacks import ATTACKS, ON_MOUNT, entries
from storms.worker import TRAITS, Worker, spawn
from vkdnn.errors import VkdnnError
from vkdnn.shader import KIND, Store
from vkdnn.shader.entry import DamagedEntryError, decode
from vkdnn.shader.store import NEW

KILLS = ("a worker", "a worker and its compilers", "a compiler", "a stopped worker")
_KILL = 0.6  # of what happens, the part that is a kill
_TRAIT = 0.15  # of the workers, the part that has a trait
_APART = "VKDNN_STORM_APART"  # set in a process with mounts of its own
_MOUNT_SIZE = "2m"
_SPAN = {"quick": 0.06, "real": 0.5}  # seconds from the start of a round in which something happens


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if something went wrong in a round, 2 for bad options."""
    parser = argparse.ArgumentParser(prog="tools/storm", description=__doc__)
    parser.add_argument("--rounds", type=_positive, default=500)
    parser.add_argument("--processes", type=_positive, default=4)
    parser.add_argument("--shaders", type=_positive, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real-every", type=_positive, default=10, metavar="N", help="rounds with the real compiler")
    parser.add_argument("--no-mount", action="store_true", help="leave out what needs a file system of its own")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a worker hangs (default 60)")
    parser.add_argument("--json", metavar="FILE", help="write the account; - is stdout, all else on stderr")
    options = parser.parse_args(arguments)
    if not options.no_mount:
        _go_apart()
    with tempfile.TemporaryDirectory(prefix="vkdnn-storm-", ignore_cleanup_errors=True) as folder:
        try:
            storm = Storm(options, Path(folder))
        except VkdnnError as error:
            parser.error(str(error))
        try:
            account = storm.run()
        finally:
            storm.end()
    text = json.dumps(account, indent=1) + "\n"
    if options.json and options.json != "-":
        Path(options.json).write_text(text)
    if options.json == "-":
        sys.stdout.write(text)
    else:
        _tell(account)
    return int(bool(account["failures"]))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number, 1 or more")
    return int(text)


def _go_apart() -> None:
    """Starts the program again where its mounts end with it, if this machine lets it."""
    if _APART in os.environ or shutil.which("unshare") is None:
        return
    for how in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if subprocess.run([*how, "true"], capture_output=True, check=False).returncode == 0:
            os.environ[_APART] = "1"
            os.execvp(how[0], [*how, sys.executable, *sys.argv])


class Storm:
    """Rounds in a folder. Failures are told in words; everything else is counted."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.store = options, folder, folder / "store"
        self.random = random.Random(options.seed)
        self.failures: list[str] = []
        self.running: list[Worker] = []
        self.done: Counter[str] = Counter()
        self.workers: Counter[str] = Counter()
        (folder / "quick").mkdir()
        (folder / "reports").mkdir()
        (folder / "tmp").mkdir()
        os.environ["VKDNN_CACHE_DISABLE"] = "1"
        self.shaders, self.quick = made.make(options.shaders, folder / "quick")
        del os.environ["VKDNN_CACHE_DISABLE"]
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")  # of the compilers, which die with their files
        self.mounted = _APART in os.environ and not options.no_mount and self._mount()
        self.attacks = [name for name in ATTACKS if self.mounted or name not in ON_MOUNT]

    def _mount(self) -> bool:
        self.store.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_MOUNT_SIZE}", "tmpfs", str(self.store)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def end(self) -> None:
        for worker in self.running:
            if not _ended(worker):
                os.killpg(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.store)], capture_output=True, check=False)

    def run(self) -> dict[str, Any]:
        start = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        # No thread of its own draws the bar: workers are forked from this one.
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task("rounds", total=self.options.rounds)
            for number in range(self.options.rounds):
                self._round(number)
                text = f"rounds, {len(self.failures)} failures" if self.failures else "rounds"
                bar.update(task, advance=1, description=text, refresh=number % 5 == 0)
        self._calm()
        return {
            "rounds": self.options.rounds,
            "processes": self.options.processes,
            "shaders": self.options.shaders,
            "seed": self.options.seed,
            "seconds": round(time.monotonic() - start, 1),
            "own_file_system": self.mounted,
            "workers": dict(self.workers),
            "happened": dict(sorted(self.done.items())),
            "failures": self.failures,
        }

    def _round(self, number: int) -> None:
        rng = self.random
        real = number % self.options.real_every == self.options.real_every - 1
        self.workers["rounds with the real compiler"] += real
        for path in rng.sample(found := entries(self.store), min(len(found), 8)):
            path.unlink(missing_ok=True)  # so that there is something to compile
        environment = {} if real else {"VKDNN_GLSLANG": str(self.quick)}
        workers = [
            spawn(
                self.shaders, self.store, self.folder / "reports" / f"{number}-{k}", rng.getrandbits(64),
                1 if real else 3, frozenset(trait for trait in TRAITS if rng.random() < _TRAIT), environment,
            )
            for k in range(self.options.processes)
        ]  # fmt: skip
        self.running = workers
        undo = []
        span = _SPAN["real" if real else "quick"]
        for _ in range(rng.randint(1, 5)):
            time.sleep(rng.random() * span / 3)
            if rng.random() < _KILL:
                self._kill(rng.choice(workers), rng.choice(KILLS))
            else:
                name = rng.choice(self.attacks)
                self.done[name] += 1
                with contextlib.suppress(OSError):  # what is attacked may be gone, or read-only by now
                    undo.append(ATTACKS[name](self.store, rng))
        self._wait(number, workers)
        for call in filter(None, reversed(undo)):
            call()
        for worker in workers:
            self._judge(number, worker)
        self._nothing_wrong_is_stored(number)

    def _kill(self, worker: Worker, what: str) -> None:
        if worker.killed or _ended(worker):
            return
        if what == "a compiler":
            children = _children(worker.pid)
            for pid in children[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.done["kill a compiler"] += 1
            return
        if what == "a stopped worker":
            os.kill(worker.pid, signal.SIGSTOP)
            time.sleep(self.random.random() * 0.2)
        worker.killed = True
        self.done[f"kill {what}"] += 1
        with contextlib.suppress(ProcessLookupError):
            if what == "a worker and its compilers":
                os.killpg(worker.pid, signal.SIGKILL)
            else:
                os.kill(worker.pid, signal.SIGKILL)

    def _wait(self, number: int, workers: list[Worker]) -> None:
        deadline = time.monotonic() + self.options.limit
        while not all([_ended(worker) for worker in workers]):
            if time.monotonic() > deadline:
                for worker in workers:
                    if not _ended(worker):
                        self.failures.append(f"round {number}: a worker ran for over {self.options.limit:g} s")
                        worker.killed = True
                        os.killpg(worker.pid, signal.SIGKILL)
                        os.waitpid(worker.pid, 0)
                        worker.status = -signal.SIGKILL
            time.sleep(0.002)

    def _judge(self, number: int, worker: Worker) -> None:
        self.workers["started"] += 1
        error = worker.report.with_suffix(".error")
        if worker.killed and worker.status == -signal.SIGKILL:
            self.workers["killed"] += 1
        elif worker.report.exists():
            record = json.loads(worker.report.read_text())
            self.workers["finished"] += 1
            for key in ("got", "compiled", "compilers_killed", "damaged", "unwritable"):
                self.workers[key] += record[key]
            if worker.status:
                self.failures.append(f"round {number}: {json.dumps(record)}, traits {sorted(worker.traits)}")
        else:
            said = error.read_text() if error.exists() else "no word"
            self.failures.append(f"round {number}: exit status {worker.status}, {sorted(worker.traits)}: {said}")
        for path in (worker.report, error):
            path.unlink(missing_ok=True)

    def _nothing_wrong_is_stored(self, number: int) -> None:
        """What can be decoded must be right, whether or not a worker asked for it."""
        store = Store(self.store, KIND)
        for path in entries(self.store):
            try:
                entry = decode(path.read_bytes())
            except (DamagedEntryError, OSError):
                continue
            if entry.kind == KIND and store.path(entry.key) == path:
                shader = int(entry.record["label"].split()[1])
                if self.shaders.wrong(shader, entry.contents["spirv"]):
                    self.failures.append(f"round {number}: the store holds a wrong shader {shader}")

    def _calm(self) -> None:
        """After the storm one process mends everything, and the next compiles nothing."""
        for name, compiles in (("mending", None), ("after it", 0)):
            environment = {"VKDNN_GLSLANG": str(self.quick)}
            report = self.folder / "reports" / "calm"
            worker = spawn(self.shaders, self.store, report, 0, 40, frozenset(), environment)
            self._wait(-1, [worker])
            if worker.status or (compiles is not None and json.loads(report.read_text())["compiled"] != compiles):
                self.failures.append(f"{name}: exit status {worker.status}, {report.exists() and report.read_text()}")
        self.workers["files left half written"] = len(list(self.store.glob(f"v*/*/*/{NEW}*")))
        self.workers["files in quarantine"] = len(list(self.store.glob("v*/quarantine/*")))


def _ended(worker: Worker) -> bool:
    if worker.status is None:
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if pid:
            worker.status = os.waitstatus_to_exitcode(status)
    return worker.status is not None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _tell(account: dict[str, Any]) -> None:
    for title in ("workers", "happened"):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in account[title].items()))
    if not account["own_file_system"]:
        print(f"left out, for want of a file system of its own: {', '.join(sorted(ON_MOUNT))}")
    for text in account["failures"]:
        print(f"FAILED {text}")
    print(f"{account['rounds']} rounds in {account['seconds']} s, {len(account['failures'])} failures")
