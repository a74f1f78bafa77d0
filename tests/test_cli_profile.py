"""vkdnn profile: models, operations and functions of one's own; tables, JSON and trace files."""

import json

import pytest
from typer.testing import CliRunner

from vkdnn.cli import app
from vkdnn.profile import Ceilings, measure

SMALL = ("--width", "16", "--layers", "1", "--heads", "2", "--batch", "2", "--length", "32")  # of test_cli_train too


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch):
    monkeypatch.setattr(measure, "measured", lambda device: Ceilings(1e10, 1e11))


def run(*arguments):
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def test_a_training_step(tmp_path):
    result = run("rapt", *SMALL, "-n", 2, "--json", "--trace", tmp_path / "step.json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["name"].startswith("a training step of RAPT, 1 layer of width 16, sequential scans, batch 2 x 32")
    assert record["submissions"] == 1 and record["dispatches"] > 20 and record["tokens_per_s"] > 0
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert f"trace in {tmp_path / 'step.json'}" in result.stderr


def test_an_operation():
    result = run("softmax", "-n", 1)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("softmax on ") and "fold rows" in result.stdout


def test_a_function_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mine_to_profile.py").write_text("def double(x):\n    return x + x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = run("mine_to_profile:double", "--shape", "x=4,8", "-n", 1, "--json")
    assert result.exit_code == 0, result.stderr
    (kernel,) = json.loads(result.stdout)["kernels"]
    assert (kernel["flops"], kernel["bytes"]) == (32, 256)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("softmax", "--width", "8"), 2, "belongs to rapt or gpt: --width"),
        (("gpt", "--shape", "8"), 2, "belongs to module:function; for a model use"),
        (("rapt", "--text", "x"), 1, "--text: belongs to a run of vkdnn train; leave it out"),
        (("softmax", "--device", "cpu"), 1, "profile: cpu has no time stamps; choose a Vulkan device"),
        (("@norms",), 1, "names"),
        (("softmax", "--trace", "/no/such/folder/x.json"), 1, "--trace: the folder of"),
    ],
)
def test_what_does_not_go_together(arguments, status, message):
    result = run(*arguments)
    assert result.exit_code == status and message in " ".join(result.stderr.replace("│", "").split())
