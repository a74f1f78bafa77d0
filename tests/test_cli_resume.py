"""vkdnn train --resume: Ctrl-C, kill -9, full disks and what differs from the run, as a user meets them."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn.cli import app
from vkdnn.train import load_start, sample_text

TINY = ["--width", "16", "--layers", "1", "--heads", "2", "--batch", "2", "--length", "32", "--steps", "120"]
DEVICES = ["cpu", "default"]
every_device = pytest.mark.parametrize("device", DEVICES)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def flag(device):
    return ["--device", "cpu"] if device == "cpu" else []


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(sample_text().data.tobytes())
    return path


@pytest.fixture(scope="module")
def unbroken(text, tmp_path_factory):
    """The digest of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    result = run("train", *TINY, "--text", text, "--device", "cpu", "--out", folder, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["digest"]


def started(*arguments, **settings):
    command = [sys.executable, "-c", "from vkdnn.cli import main; main()", "train", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **settings
    )


def wait_for(process, pattern):
    """The output up to a line that matches."""
    for line in process.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"{pattern} did not come: {process.stderr.read()}")


@every_device
def test_ctrl_c_at_several_steps_and_resume_give_the_digest_of_the_unbroken_run(device, text, unbroken, tmp_path):
    folder = tmp_path / "run"
    arguments = [*TINY, "--text", text, "--out", folder]
    steps = []
    for _ in range(3):
        process = started(*arguments, *flag(device))
        wait_for(process, r"^step +\d+ of 120")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 130 and errors == ""
        steps.append(int(re.search(r"by Ctrl-C after step (\d+) of 120; the checkpoint is kept", output)[1]))
        assert f"go on with vkdnn train --resume {folder}" in output
        assert len(load_start(folder).losses) == steps[-1]
        arguments = ["--resume", folder]
    assert 0 < steps[0] < steps[1] < steps[2] < 120
    result = run("train", "--resume", folder, *flag(device), "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["digest"] == unbroken and found["steps"] == 120 and found["resumed_after"] == steps[-1]
    assert device == "cpu" or found["parity"]["equal"] is True
    assert len((folder / "loss.csv").read_text().splitlines()) == 121


@every_device
def test_kill_between_checkpoints_leaves_the_last_whole_one(device, text, unbroken, tmp_path):
    folder = tmp_path / "run"
    process = started(*TINY, "--text", text, "--out", folder, "--checkpoint-every", 5, *flag(device))
    wait_for(process, r"^step +24 of 120")
    process.kill()
    process.communicate(timeout=60)
    (folder / f".checkpoint.safetensors.{process.pid}.partial").write_bytes(b"half of one")  # killed while writing
    step = len(load_start(folder).losses)
    assert step % 5 == 0 and 20 <= step < 120
    other = "default" if device == "cpu" else "cpu"
    result = run("train", "--resume", folder, *flag(other), "--json")  # on another device
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["digest"] == unbroken
    assert not list(folder.glob(".*"))


def test_a_second_ctrl_c_ends_at_once_and_keeps_the_earlier_checkpoint(text, tmp_path):
    folder = tmp_path / "run"
    big = [*TINY[:-6], "--batch", "64", "--length", "512", "--steps", "60"]  # steps long enough to be hit twice
    process = started(*big, "--text", text, "--out", folder, "--checkpoint-every", 1, "--device", "cpu")
    while not (folder / "checkpoint.safetensors").exists():
        time.sleep(0.05)
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == ""
    assert re.search(r"stopped +(in|after) step \d+; an earlier checkpoint, of step \d+, is kept", output), output
    assert len(load_start(folder).losses) >= 1


def test_a_finished_run_goes_on_to_nothing(text, tmp_path):
    folder = tmp_path / "run"
    assert run("train", *TINY, "--steps", 2, "--text", text, "--device", "cpu", "--out", folder).exit_code == 0
    before = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "loss.png").unlink()
    sample = (folder / "sample.txt").stat()
    result = run("train", "--resume", folder, "--device", "cpu")
    assert result.exit_code == 0 and "\ndone     nothing was left to train\n" in result.stdout
    assert (folder / "sample.txt").stat() == sample and "\nsample" not in result.stdout
    (folder / "sample.txt").unlink()  # as after Ctrl-C before it was written
    assert "\nsample" in run("train", "--resume", folder, "--device", "cpu").stdout
    assert (folder / "sample.txt").exists()
    assert (folder / "loss.png").exists() and (folder / "checkpoint.safetensors").read_bytes() == before


@pytest.fixture(scope="module")
def short(text, tmp_path_factory):
    """A run that ended by its time after one step."""
    folder = tmp_path_factory.mktemp("short") / "run"
    options = ["--ema", 0.9, "--optimizer", "lion", "--variant", "lrla"]
    result = run("train", *TINY, *options, "--text", text, "--time", 0, "--device", "cpu", "--out", folder)
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", 4], "--batch 2 (got 4)"),
        (["--steps", 70, "--seed", 1], "--steps 120 (got 70), --seed 0 (got 1)"),
        (["--learning-rate", 0.01], "--learning-rate 0.0005 (got 0.01)"),
        (["--optimizer", "sgd"], "--optimizer lion (got sgd)"),
        (["--variant", "rla2"], "--variant lrla (got rla2)"),
        (["--ema", 0.99], "--ema 0.9 (got 0.99)"),
        (["--accumulate", 2], "--accumulate 1 (got 2)"),
        (["--width", 32], "--width 16 (got 32)"),
    ],
)
def test_options_that_differ_are_named(short, options, message):
    result = run("train", "--resume", short, *options, "--device", "cpu")
    assert result.exit_code == 1 and message in result.stderr and "leave these options out" in result.stderr


def test_options_that_agree_are_welcome(short):
    result = run("train", "--resume", short, "--batch", 2, "--ema", 0.9, "--time", 0, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["steps"] >= 2


def test_refusals(short, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(text.read_bytes()[:-1])
    changed = run("train", "--resume", short, "--text", other, "--device", "cpu")
    assert changed.exit_code == 1 and "differs from the run's: 11357 bytes" in changed.stderr
    empty = run("train", "--resume", tmp_path, "--device", "cpu")
    assert empty.exit_code == 1 and "checkpoint.safetensors does not exist" in empty.stderr
    assert run("train", "--resume", short, "--out", tmp_path / "x").exit_code == 2
    assert run("train", "--resume", short, "--verify", 1).exit_code == 2
    assert run("train", "--checkpoint-every", 2, "--verify", 1).exit_code == 2
    assert run("train", "--optimizer", "adam").exit_code == 2
    assert run("train", "--variant", "rla9").exit_code == 2
    wrong = run("train", *TINY, "--decay", 0.9, "--text", text, "--device", "cpu", "--out", tmp_path / "x")
    assert wrong.exit_code == 2 and "--decay below 1 needs --variant rla" in wrong.stderr
    beyond = run("train", *TINY, "--decay", 1.5, "--text", text, "--device", "cpu", "--out", tmp_path / "x")
    assert beyond.exit_code == 1 and "decay: got 1.5, expected" in beyond.stderr
    full = run("train", *TINY, "--text", text, "--device", "cpu", "--out", short)
    assert full.exit_code == 1 and f"go on with the run there with --resume {short}" in full.stderr.replace("\n", " ")


# ---- disks


def test_no_room_for_a_checkpoint_is_an_error_before_training(text, tmp_path):
    """A real limit: no file may grow beyond 20,000 bytes."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    folder = tmp_path / "run"
    process = started(*TINY, "--text", text, "--device", "cpu", "--out", folder, preexec_fn=limit)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "step" not in output
    assert "checkpoint: cannot write" in errors and "free some space there" in errors
    assert not folder.exists()


def test_a_disk_that_fills_up_on_the_way_loses_no_older_checkpoint(text, tmp_path, monkeypatch):
    folder, calls = tmp_path / "run", []
    real = os.fsync

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) > 2:  # the first checkpoint: file and folder
            raise OSError(28, "No space left on device")
        real(descriptor)

    options = [*TINY, "--steps", 7, "--checkpoint-every", 2, "--text", text, "--device", "cpu", "--out", folder]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        result = run("train", *options)
    assert result.exit_code == 1
    for step in (4, 6):
        said = f"no checkpoint of step {step}: No space left on device; an earlier checkpoint, of step 2, is kept"
        assert said in result.stdout
    assert "cannot write that of step 7" in result.stderr and "go on from there with --resume" in result.stderr
    assert [p.name for p in folder.iterdir()] == ["checkpoint.safetensors"]
    again = run("train", "--resume", folder, "--device", "cpu", "--json")
    assert again.exit_code == 0 and json.loads(again.stdout)["resumed_after"] == 2
    plain = run("train", *options[:-1], tmp_path / "plain", "--json")
    assert json.loads(plain.stdout)["digest"] == json.loads(again.stdout)["digest"]


# ---- variants and optimizers


@pytest.mark.parametrize("variant", ["rla2", "rla", "lrla"])
def test_every_variant_has_its_recorded_digest_on_device_and_reference(variant):
    result = run("train", *TINY[:-2], "--variant", variant, "--verify", 2, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["equal"] is True and found["device"] == vk.device().name
    assert found["digest"] == DIGESTS[variant]


def test_decay_accumulation_and_averages_verify():
    options = ["--variant", "rla", "--decay", 0.95, "--accumulate", 2, "--ema", 0.9, "--optimizer", "lion"]
    result = run("train", *TINY[:-2], *options, "--verify", 2, "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["equal"] is True


@pytest.mark.parametrize("variant", ["rla", "lrla"])
def test_generate_decodes_every_variant(variant, text, tmp_path):
    folder = tmp_path / "run"
    options = [*TINY, "--steps", 3, "--variant", variant, "--ema", 0.5, "--text", text, "--device", "cpu"]
    assert run("train", *options, "--out", folder).exit_code == 0
    arguments = ["generate", folder, "--bytes", 8, "--json"]
    device, reference = (json.loads(run(*arguments, *flag(d)).stdout)["bytes"] for d in reversed(DEVICES))
    assert device == reference
    assert run(*arguments, "--last", "--device", "cpu").exit_code == 0


DIGESTS = {
    "rla2": "4ff73b3fbb6ce182038673b39954460c74eaa4494c2e0a3b2d0417feaad79cfa",
    "rla": "acc4fd258c100777dedd374966eda479f4722946f47dff0458d6df0c7ce3392b",
    "lrla": "94d5f8613e69e7f94b706b57345c49d069b997b5a41a43d5c6499d6bd02056a3",
}
