"""vkdnn accuracy: what is printed, the exit status, JSON alone on standard output, times, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn.cli import app

HERE = ("--in-process", "--backend", "reference")

WRONG = """
import numpy as np
import vkdnn as vk
from vkdnn.check.operator import Input, Operator

def off(x):
    y = np.zeros((4, 6), np.float32)
    y[3, 4:] = 1.0
    return vk.exp(x) + y

WRONG = Operator("wrong", "mine", (Input("x", "heads keys"),), off, np.exp, {"heads": 4, "keys": 6})
"""


def run(*arguments):
    return CliRunner().invoke(app, ["accuracy", *arguments])


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong_operator.py").write_text(WRONG)
    (tmp_path / "mine.toml").write_text('[A]\noperator = "wrong_operator:WRONG"\n[B]\noperator = "exp"\n')
    monkeypatch.delitem(sys.modules, "wrong_operator", raising=False)
    return tmp_path


def test_cases_that_pass():
    result = run("small", "-c", "ALL.layer_norm", "--backend", "reference,plain", "--in-process")
    assert result.exit_code == 0, result.output
    assert "small/ALL.layer_norm.both" in result.stdout
    assert result.stdout.rstrip().endswith("2 cases: 4 pass")


def test_a_failure_is_said_whole(wrong):
    result = run("mine.toml", *HERE, "--out", "out")
    assert result.exit_code == 1
    assert "all failures in heads = 3, keys >= 4; there everything fails" in result.stdout
    assert "result[3, 4] got " in result.stdout and "error 1\n" in result.stdout
    assert "picture: " in result.stdout and (wrong / "out" / "images").is_dir()
    assert "not good: mine/A" in result.stdout and "2 cases: 1 pass, 1 fail" in result.stdout
    rows = json.loads((wrong / "out" / "results.json").read_text())["rows"]
    assert [r["verdict"] for r in rows] == ["fail", "pass"] and rows[0]["elements"][0]["index"] == [3, 4]


def test_json_stands_alone_on_standard_output(wrong):
    result = run("mine.toml", *HERE, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["totals"] == {"pass": 1, "fail": 1} and found["finished"] is True
    listed = json.loads(run("mine.toml", "--list", "--json").stdout)
    assert [s["name"] for s in listed] == ["mine/A", "mine/B"]
    assert "2 cases" in run("mine.toml", "--list").stdout


def test_isolated_and_then_resumed(wrong):
    first = run("mine.toml", "-c", "B", "--backend", "reference", "--out", "out")
    assert first.exit_code == 0, first.output
    again = run("mine.toml", "-c", "B", "--backend", "reference", "--out", "out", "--resume")
    assert again.exit_code == 0 and "1 case: 1 pass" in again.stdout
    assert "1 row taken from results.csv, 0 run" in again.stdout


def test_a_row_of_another_device_rule_or_factor_is_not_taken(wrong, monkeypatch):
    def resumed(*arguments):
        result = run("mine.toml", *HERE, "--out", "out", "--resume", *arguments)
        return result.stdout, json.loads((wrong / "out" / "results.json").read_text())

    first, _ = resumed()
    assert "0 rows taken from results.csv, 2 run" in first
    again, found = resumed()
    assert "2 rows taken from results.csv, 0 run" in again and found["taken"] == 2
    assert "result[3, 4] got " in again, "elements come from results.json"
    assert {row["device"] for row in found["rows"]} == {vk.device("cpu").name}
    assert "2 lines of other cases, rules or devices left out" in resumed("--rule", "element")[0]
    resumed()
    monkeypatch.setattr("vkdnn.check.accuracy.backends.place", lambda name, device: "another driver")
    moved, found = resumed()
    assert "0 rows taken from results.csv, 2 run; 2 lines" in moved
    assert {row["device"] for row in found["rows"]} == {"another driver"}
    (wrong / "out" / "results.json").unlink()
    assert "failing elements of rows taken were not kept" in resumed()[0]
    file = wrong / "mine.toml"
    file.write_text(file.read_text() + "factor = 3\n")
    assert "1 row taken from results.csv, 1 run" in resumed()[0]


def test_golden_is_kept_and_used(wrong):
    assert run("small", "-c", "ALL.exp", *HERE, "--save-golden", "golden").exit_code == 0
    assert run("small", "-c", "ALL.exp", *HERE, "--load-golden", "golden").exit_code == 0
    result = run("small", "-c", "ALL.log", *HERE, "--load-golden", "golden")
    assert result.exit_code == 1 and "golden: " in result.stdout and "is missing" in result.stdout


def test_times_say_their_clock():
    result = run("small", "-c", "ALL.tanh", "--in-process", "--perf", "3", "--json")
    assert result.exit_code == 0, result.output
    perf = json.loads(result.stdout)["rows"][0]["perf"]
    assert perf["clock"] in ("device", "wall") and perf["replays"] == 3
    assert perf["cold_ms"] > perf["hot_ms"] > 0


def test_nothing_compared_is_no_success(wrong):
    result = run("mine.toml", "-c", "B", "--in-process", "--backend", "plain", "--rule", "element")
    assert result.exit_code == 1 and "nothing was compared" in result.stdout
    (wrong / "empty").mkdir()
    assert run("mine.toml", "-c", "B", "--in-process", "--backend", "dump:empty").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "none are named"),
        (("--all", "small"), "expected one or the other"),
        (("smal",), "no set 'smal'"),
        (("small", "-c", "NONE"), "begins with 'NONE'"),
        (("small", "--backend", "gpu"), "got 'gpu'"),
        (("small", "--rule", "exact"), "got 'exact'"),
        (("small", "--resume"), "needs --out"),
        (("small", "--timeout", "0"), "got 0"),
        (("small", "--timeout", "inf"), "got inf"),
        (("small", "--save-golden", "a", "--load-golden", "b"), "expected one of them"),
    ],
)
def test_bad_arguments(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split()), result.stderr


def heard():
    """What a shell has started in the background ignores Ctrl-C, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_whole_files(wrong):
    command = [sys.executable, "-m", "vkdnn", "accuracy", "small", "--backend", "reference", "--out", "out"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heard
    )
    table = wrong / "out" / "results.csv"
    end = time.monotonic() + 60
    while (not table.exists() or table.read_text().count("\n") < 4) and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers hear it, too
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert b"broken off" in output and b"Traceback" not in errors
    text = table.read_text()
    found = json.loads((wrong / "out" / "results.json").read_text())
    assert text.endswith("\n") and found["finished"] is False
    assert text.count("\n") - 1 - len(found["rows"]) in (0, 1), "a row is in the table before it is in the document"
    assert len(found["rows"]) < 300
