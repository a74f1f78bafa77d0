"""Accuracy: cases in processes of their own, files that are written as they end, and cases spread by Dask."""

import csv
import json
import os
import signal
import threading
import time

import pytest

from vkdnn.check.accuracy import isolate
from vkdnn.check.accuracy.cases import load
from vkdnn.check.accuracy.isolate import run_isolated
from vkdnn.check.accuracy.job import Job, Mode
from vkdnn.check.accuracy.report import Table
from vkdnn.check.accuracy.run import Settings
from vkdnn.errors import ArgumentError

REFERENCE = Settings(("reference",))

MODULE = """
import ctypes, os, pathlib, stat, time
import numpy as np
import vkdnn as vk
from vkdnn.check.operator import Input, Operator

def operator(name, function):
    return Operator(name, "mine", (Input("x", "n"),), function, np.exp, {"n": 5})

def started(x):
    with open("started", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return vk.exp(x)

def pipe(fd):
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False

def hang(x):
    started(x)
    time.sleep(600)

GOOD = operator("good", started)
SLOW = operator("slow", lambda x: (started(x), time.sleep(0.4))[0])
CRASH = operator("crash", lambda x: ctypes.string_at(0))
LEAVE = operator("leave", lambda x: os._exit(3))
HANG = operator("hang", hang)
CLOSE = operator("close", lambda x: (os.closerange(0, 100), time.sleep(600)))
CLOSE_SOME = operator("close_some", lambda x: (os.closerange(3, 100), vk.exp(x))[1])
SCRIBBLE = operator("scribble", lambda x: ([os.write(fd, b"[1]\\n") for fd in range(3, 9) if pipe(fd)], vk.exp(x))[1])
LOUD = operator("loud", lambda x: (print("noise"), os.system("echo more"), vk.exp(x))[2])
"""


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """A function from operators of the module above to cases A0, A1, ..."""
    monkeypatch.chdir(tmp_path)
    name = f"faulty_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)

    def made(*operators, timeout=60):
        tables = [f'[A{k}]\noperator = "{name}:{o}"\nn = {k + 1}\ntimeout = {timeout}' for k, o in enumerate(operators)]
        (tmp_path / "cases.toml").write_text("\n".join(tables))
        return load(["cases.toml"])

    return made


def processes(folder):
    return (folder / "started").read_text().split()


def lines(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_process_serves_many_cases_and_a_crash_ends_one(cases, tmp_path):
    specs = cases("GOOD", "GOOD", "CRASH", "LOUD", "GOOD", "LEAVE", "GOOD")
    rows = [row for rows in run_isolated(specs, REFERENCE) for row in rows]
    assert [row.case for row in rows] == [s.name for s in specs]
    assert [row.verdict for row in rows] == ["pass", "pass", "crash", "pass", "pass", "crash", "pass"]
    assert "SIGSEGV: Fatal Python error: Segmentation fault" in rows[2].reason
    assert rows[5].reason.startswith("the process ended with status 3")
    first, second, third, fourth = processes(tmp_path)
    assert first == second and len({first, third, fourth}) == 3


def test_a_case_that_hangs_is_killed_at_its_timeout(cases, tmp_path):
    specs = cases("HANG", "GOOD", timeout=1.5)
    begun = time.monotonic()
    rows = [row for rows in run_isolated(specs, REFERENCE) for row in rows]
    assert [(row.verdict, row.reason) for row in rows] == [("timeout", "took longer than 1.5 s"), ("pass", "")]
    assert time.monotonic() - begun < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int(processes(tmp_path)[0]), 0)


def test_a_case_that_closes_or_overwrites_its_files_is_a_crash(cases, monkeypatch):
    monkeypatch.setattr(isolate, "END", 0.5)
    begun = time.monotonic()
    rows = [
        row
        for rows in run_isolated(cases("CLOSE", "GOOD", "CLOSE_SOME", "SCRIBBLE", "GOOD"), REFERENCE)
        for row in rows
    ]
    assert [row.verdict for row in rows] == ["crash", "pass", "crash", "crash", "pass"], [r.reason for r in rows]
    assert all("closed or overwrote the files by which it answers" in rows[k].reason for k in (0, 2, 3))
    assert time.monotonic() - begun < 60


def test_a_fresh_process_for_each_case_and_several_at_once(cases, tmp_path):
    specs = cases("GOOD", "GOOD", "GOOD")
    rows = [row for rows in run_isolated(specs, REFERENCE, jobs=2, fresh=True) for row in rows]
    assert sorted(row.case for row in rows) == [s.name for s in specs]
    assert all(row.good for row in rows)
    assert len(set(processes(tmp_path))) == 3


def test_broken_off_all_files_are_whole_and_a_run_goes_on(cases, tmp_path):
    specs = cases("GOOD", "GOOD", "CRASH", "GOOD", "GOOD")
    out = tmp_path / "out"
    job = Job(specs, REFERENCE, Mode(), out)

    def interrupt(rows):
        if rows[0].case == "cases/A2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(interrupt)
    assert [r["verdict"] for r in lines(out / "results.csv")] == ["pass", "pass", "crash"]
    document = json.loads((out / "results.json").read_text())
    assert document["finished"] is False and document["totals"] == {"pass": 2, "crash": 1}

    with open(out / "results.csv", "ab") as file:
        file.write(b"cases/A3,refer")  # a line that was cut off
    again = Job(specs, REFERENCE, Mode(), out, resume=True)
    told = []
    again.run(lambda rows: told.extend(row.case for row in rows))
    assert told[:2] == ["cases/A0", "cases/A1"] and len(told) == 5, "what stood there is told first"
    assert sorted(r["case"] for r in lines(out / "results.csv")) == [s.name for s in specs]
    assert json.loads((out / "results.json").read_text())["totals"] == {"pass": 4, "crash": 1}
    assert len(processes(tmp_path)) == 4, "no case that had passed was run again"


def test_a_table_keeps_only_rows_of_the_same_case(cases, tmp_path):
    specs = cases("GOOD", "GOOD")
    out = tmp_path / "out"
    Job(specs, REFERENCE, Mode(here=True), out).run()
    (tmp_path / "cases.toml").write_text((tmp_path / "cases.toml").read_text().replace("n = 2", "n = 3"))
    changed = load(["cases.toml"])
    table = Table(out / "results.csv", changed, resume=True)
    assert [s.name for s in table.left(changed, ("reference",))] == ["cases/A1"]
    assert [s.name for s in table.left(changed, ("reference", "plain"))] == ["cases/A0", "cases/A1"]
    table.close()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ArgumentError, match=r"other.csv is no table"):
        Table(tmp_path / "other.csv", changed, resume=True)


def test_dask_spreads_cases_and_outlives_a_worker(cases, tmp_path):
    distributed = pytest.importorskip("distributed")
    specs = cases(*["SLOW"] * 8)
    killed = []
    out = tmp_path / "out"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, scheduler_port=0
    ) as cluster:
        pids = {name: worker.pid for name, worker in cluster.workers.items()}

        def kill():
            while not (tmp_path / "started").exists() or len(processes(tmp_path)) < 3:
                time.sleep(0.05)
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

        threading.Thread(target=kill, daemon=True).start()
        job = Job(specs, REFERENCE, Mode(scheduler=cluster.scheduler_address), out)
        rows = job.run()
        assert all(row.verdict == "pass" for row in rows), [r.reason for r in rows]
    assert killed
    found = [r["case"] for r in lines(out / "results.csv")]
    assert sorted(found) == sorted(s.name for s in specs) and len(set(found)) == len(found)


def test_no_scheduler_answers(cases, monkeypatch):
    pytest.importorskip("distributed")
    from vkdnn.check.accuracy import spread

    monkeypatch.setattr(spread, "CONNECT", 0.5)
    with pytest.raises(ArgumentError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        list(spread.run_spread(cases("GOOD"), REFERENCE, "tcp://127.0.0.1:9"))
