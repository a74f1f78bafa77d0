"""vkdnn train and vkdnn generate: a whole run, the parity check, refusals, Ctrl-C."""

import csv
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn import checkpoint
from vkdnn.cli import app
from vkdnn.cli.console import full_name
from vkdnn.cli.train import train
from vkdnn.cli.train_model import configure, model_options
from vkdnn.nn import GPTConfig, GPTModel, RAPTConfig
from vkdnn.train import Job, Parity, run_steps, sample_text

TINY = ["--width", "16", "--layers", "1", "--heads", "2", "--batch", "2", "--length", "32"]
DEFAULTS = {name: p.default for name, p in inspect.signature(train).parameters.items() if name != "context"}


def configured(model="rapt", length=32, **given):
    """What the command makes of these options."""
    return configure(model, DEFAULTS | given, given, length)


TINY_CONFIG = configured(width=16, layers=1, heads=2)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on the default device: its folder and the result."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    text = folder.parent / "text.txt"
    text.write_bytes(sample_text().data.tobytes())
    return folder, run("train", *TINY, "--text", text, "--steps", 4, "--out", folder, "--json")


def test_a_run_gives_its_results_as_json(trained):
    folder, result = trained
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["device"] == vk.device().name and found["steps"] == 4
    assert found["checkpoint"] == str(folder / "checkpoint.safetensors")
    assert found["parity"]["steps"] == 3 and found["parity"]["equal"] is True
    assert found["parity"]["digest"] == found["parity"]["reference"]
    assert found["sample"].startswith("def ") and found["interrupted"] is False


def test_a_run_tells_how_it_went_and_writes_its_files(trained):
    folder, result = trained
    for part in ("RAPT, 1 layer of width 16", "text.txt, 11,358 bytes", "4 of 4, loss", "equal: 3 steps"):
        assert part in result.stderr
    assert f"device   {full_name(vk.device())}\n" in result.stderr
    assert "nats a byte (mean of the last 4 steps), 4 steps, " in result.stderr and "stopped" not in result.stderr
    text = (folder / "sample.txt").read_text(encoding="utf-8")
    assert all(c.isprintable() or c in "\n\t" for c in text)
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["checkpoint.safetensors", "loss.csv", "loss.png", "sample.txt"]
    rows = list(csv.DictReader((folder / "loss.csv").open()))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert float(rows[0]["loss"]) == json.loads(result.stdout)["first_loss"]


def test_generate_gives_the_same_text_on_every_device(trained):
    folder, _ = trained
    arguments = ["generate", folder, "--prompt", "The ", "--bytes", 12, "--seed", 7]
    device, reference = (json.loads(run(*arguments, "--json", "--device", d).stdout) for d in (vk.device().name, "cpu"))
    assert device == reference and len(bytes.fromhex(device["bytes"])) == 12
    plain = run(*arguments, "--device", "cpu")
    assert plain.exit_code == 0 and plain.stdout == f"The {device['text']}\n"
    other = json.loads(run(*arguments[:-1], 8, "--json", "--device", "cpu").stdout)
    assert other["bytes"] != device["bytes"]


def test_generate_refuses_clearly(trained, tmp_path):
    folder, _ = trained
    missing = run("generate", tmp_path, "--device", "cpu")
    assert missing.exit_code == 1 and "checkpoint.safetensors does not exist; name" in missing.stderr
    readme = run("generate", folder / "sample.txt", "--device", "cpu")
    assert readme.exit_code == 1 and "or name checkpoint.safetensors of a run, or its folder" in readme.stderr
    damaged = run("generate", folder / "loss.csv", "--device", "cpu")
    assert damaged.exit_code == 1 and "damaged or no safetensors file" in damaged.stderr
    empty = run("generate", folder, "--prompt", "", "--device", "cpu")
    assert empty.exit_code == 1 and "--prompt: got no text" in empty.stderr
    assert run("generate", folder, "--temperature", "-1").exit_code == 2


def test_generate_writes_no_prompt_above_an_error(tmp_path):
    config = GPTConfig(width=16, layers=1, heads=2, hidden=16)
    for name, params, message in (
        ("long", GPTModel(config).init(0, vk.device("cpu")), "init_state: a cache of 1 x"),
        ("nan", GPTModel(config).init(0, vk.device("cpu")), "the model gives NaN"),
    ):
        if name == "nan":
            params["norm"]["weight"] = vk.array(np.full(16, np.nan, np.float32), device="cpu")
        path = tmp_path / f"{name}.safetensors"
        checkpoint.save(path, params, metadata={"model": "gpt", "config": asdict(config)})
        result = run("generate", path, "--device", "cpu", "-n", 10**11 if name == "long" else 3)
        assert result.exit_code == 1 and message in result.stderr and result.stdout == ""


def test_verify_compares_the_device_with_the_reference():
    result = run("train", *TINY, "--verify", 2, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    digest = run_steps(Job(TINY_CONFIG, batch=2, length=32), sample_text(), vk.device("cpu"), 2).digest
    assert found == {
        "steps": 2, "device": vk.device().name, "digest": digest, "reference": digest, "equal": True
    }  # fmt: skip
    assert result.stderr.count(digest) == 2 and "equal: 2 steps" in result.stderr


def test_verify_on_the_reference_prints_its_digest_alone():
    result = run("train", *TINY, "--verify", 1, "--device", "cpu")
    digest = run_steps(Job(TINY_CONFIG, batch=2, length=32), sample_text(), vk.device("cpu"), 1).digest
    assert result.exit_code == 0 and f"{digest}  reference" in result.stdout
    assert "equal" not in result.stdout


def differing(device, found, reference):
    arrays = ("params.a", "params.b", "params.c", "params.d")
    return Parity(len(found.losses), device, "0" * 64, reference.digest, 2, arrays)


def test_differing_bits_are_exit_status_1(monkeypatch, tmp_path):
    monkeypatch.setattr("vkdnn.cli.train_verify.compare", differing)
    result = run("train", *TINY, "--verify", 2, "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["equal"] is False
    said = "different: 4 arrays (params.a, params.b, params.c, ...); losses part at step 2"
    assert said in result.stderr
    monkeypatch.setattr("vkdnn.cli.train_run.compare", differing)
    monkeypatch.setattr("vkdnn.cli.train_run.SAMPLE_BYTES", 2)
    result = run("train", *TINY, "--steps", 2, "--out", tmp_path / "run")
    assert result.exit_code == 1 and said in result.stdout
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_training_on_the_reference_in_the_chunked_order(tmp_path):
    result = run("train", *TINY, "--order", "chunked", "--steps", 1, "--device", "cpu", "--out", tmp_path / "r")
    assert result.exit_code == 0, result.stderr
    assert "device   cpu" in result.stdout and "trained on the reference itself" in result.stdout


def test_a_time_limit_ends_the_run(tmp_path):
    out = tmp_path / "r"
    result = run("train", *TINY, "--steps", 1000, "--time", 0, "--device", "cpu", "--out", out, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["steps"] == 1 and found["interrupted"] is False
    said = f"at step 1 of 1000; go on with vkdnn train --resume {out}\n"
    assert re.search(rf"stopped  after \d+ s {re.escape(said)}", result.stderr), result.stderr


def test_the_limit_of_a_run_without_options_tells_how_to_lift_it(tmp_path, monkeypatch):
    monkeypatch.setattr("vkdnn.cli.train.DEFAULT_SECONDS", 0.0)
    monkeypatch.setattr("vkdnn.cli.train_run.SAMPLE_BYTES", 2)
    monkeypatch.setenv("VKDNN_TRAIN_COMMAND", "tools/run")
    out = tmp_path / "a run"
    result = run("train", *TINY, "--device", "cpu", "--out", out)
    said = f"at step 1 of 700; go on with tools/run --resume '{out}'; all steps at once: --steps 700\n"
    assert result.exit_code == 0 and said in result.stdout


def test_the_defaults_are_the_main_job():
    assert configured() == RAPTConfig() and configured("gpt") == GPTConfig()
    wide = configured(width=64, layers=3, heads=2, order="chunked")
    assert (wide.key_width, wide.value_width, wide.layers, wide.order) == (32, 32, 3, "chunked")


def test_options_of_gpt():
    config = configured("gpt", 300, width=64, heads=4, kv_heads=2, positions="learned", mlp="gelu", window=9, softcap=5)
    assert config == GPTConfig(
        width=64, heads=4, kv_heads=2, hidden=128, positions="learned", mlp="gelu", window=9, softcap=5, max_tokens=300
    )
    assert configured("gpt", **{n: v for n, v in model_options(config).items() if n != "model"}).max_tokens == 256
    assert configured("gpt", width=15, heads=3, positions="alibi").width == 15
    for wrong, flag in (
        (["--kv-heads", "1"], "--kv-heads"),
        (["--model", "gpt", "--order", "chunked"], "--order"),
        (["--model", "gpt", "--kv-heads", "2"], "--kv-heads"),
        (["--model", "gpt", "--positions", "sine"], "--positions"),
        (["--model", "gpt", "--window", "0"], "--window"),
        (["--model", "gpt", "--width", "15"], "--heads"),
        (["--model", "gtp"], "--model"),
    ):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", *wrong])
        assert result.exit_code == 2 and flag in result.stderr, wrong


def test_gpt_trains_goes_on_and_writes(tmp_path):
    (tmp_path / "text.txt").write_bytes(sample_text().data.tobytes())
    tiny = [*TINY, "--model", "gpt", "--kv-heads", 1, "--text", tmp_path / "text.txt", "--steps", 4, "--json"]
    whole = run("train", *tiny, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr
    assert "GPT, 1 layer of width 16" in whole.stderr
    found = json.loads(whole.stdout)
    assert found["parity"]["equal"] is True and found["model"] == "gpt"
    broken = run("train", *tiny, "--time", 0, "--device", "cpu", "--out", tmp_path / "broken")
    assert json.loads(broken.stdout)["steps"] == 1
    for wrong, message in (
        (["--model", "rapt"], "--model gpt (got rapt)"),
        (["--variant", "rla"], "--variant none (got rla)"),
        (["--kv-heads", 2], "--kv-heads 1 (got 2)"),
    ):
        result = run("train", "--resume", tmp_path / "broken", *wrong)
        assert result.exit_code == 1 and message in result.stderr
    again = run("train", "--resume", tmp_path / "broken", "--model", "gpt", "--json")
    assert json.loads(again.stdout)["digest"] == found["digest"]
    arguments = ["generate", tmp_path / "whole", "--bytes", 70, "--json", "--device"]
    device, reference = (json.loads(run(*arguments, d).stdout) for d in (vk.device().name, "cpu"))
    assert device == reference and len(bytes.fromhex(device["bytes"])) == 70


def test_refusals(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    short = run("train", "--text", tmp_path / "short.txt", "--out", tmp_path / "run")
    assert short.exit_code == 1 and f"has 5 bytes, but one window takes {Job().length + 1}" in short.stderr
    assert not (tmp_path / "run").exists()
    full = run("train", *TINY, "--device", "cpu", "--out", tmp_path)
    assert full.exit_code == 1 and "is not empty; name a new folder" in full.stderr
    file = run("train", *TINY, "--device", "cpu", "--out", tmp_path / "short.txt")
    assert file.exit_code == 1 and "short.txt is a file; name a folder" in file.stderr
    blocked = run("train", *TINY, "--device", "cpu", "--out", tmp_path / "short.txt" / "run")
    assert blocked.exit_code == 1 and "--out: cannot make" in blocked.stderr
    device = run("train", *TINY, "--device", "no such card", "--out", tmp_path / "run")
    assert device.exit_code == 1 and "or cpu (the NumPy reference)" in device.stderr
    heads = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", "--heads", "5"])
    assert heads.exit_code == 2 and "--heads 5 does not fit --width 96: the width must be" in heads.stderr
    for wrong in (
        ["--steps", "0"],
        ["--order", "random"],
        ["--width", "10", "--heads", "4"],
        ["--verify", "2", "--steps", "3"],
        ["--verify", "2", "--out", "x"],
    ):
        assert run("train", *wrong).exit_code == 2, wrong


def start(out):
    command = [sys.executable, "-c", "from vkdnn.cli import main; main()", "train", *TINY]
    command += ["--steps", "500", "--device", "cpu", "--out", str(out)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )


def test_ctrl_c_keeps_the_checkpoint(tmp_path):
    process = start(tmp_path / "run")
    line = ""
    while not line.startswith("step"):
        line = process.stdout.readline()
        assert line, process.stderr.read()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and errors == ""
    assert "stopped  by Ctrl-C after step" in output and "the checkpoint is kept" in output
    again = run("generate", tmp_path / "run", "--bytes", 1, "--device", "cpu")
    assert again.exit_code == 0, again.stderr


def test_ctrl_c_before_the_first_step_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("vkdnn.train.Trainer.step", interrupted)
    result = run("train", *TINY, "--steps", 2, "--device", "cpu", "--out", tmp_path / "run")
    assert result.exit_code == 130 and "in step 1; there is no checkpoint yet" in result.stdout
    assert not (tmp_path / "run").exists()


def test_an_empty_folder_is_taken_by_the_first_run(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    found = []

    def second(self):
        found.append(run("train", *TINY, "--steps", 2, "--device", "cpu", "--out", folder))
        raise KeyboardInterrupt

    monkeypatch.setattr("vkdnn.train.Trainer.step", second)
    first = run("train", *TINY, "--steps", 2, "--device", "cpu", "--out", folder)
    assert len(found) == 1 and found[0].exit_code == 1
    assert "--out: another run began in" in found[0].stderr
    assert first.exit_code == 130 and not folder.exists()


def test_ctrl_c_elsewhere_is_no_traceback(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("vkdnn.cli.train.run_verify", interrupted)
    result = run("train", *TINY, "--verify", 1, "--device", "cpu")
    assert result.exit_code == 130 and result.stderr == "interrupted\n"


@pytest.mark.parametrize(
    ("model", "digest"),
    [
        ("rapt", "9aa3f2ee73d8f23739f6e9843eccdd7b9c4f9e2536ee168b39539c4204a8a820"),
        ("gpt", "911a98a4510e95fe401b2f64ab98f4e8b8c9eaeab23b1322d84a37b101af9498"),
    ],
)
def test_the_main_job_has_its_recorded_digest(model, digest):
    """Two steps of the default model on the text that ships with vkdnn: the same bits on every machine."""
    result = run("train", "--model", model, "--verify", 2, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["digest"] == digest


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        (
            "--positions alibi --kv-heads 1 --window 9 --softcap 5",
            "7d7726a6bdc4d93d87073003dcd2e98d58b35913ed45a46a7d142907028f6eb7",
        ),
        (
            "--positions learned --mlp gelu --norm layer",
            "e2ccaaf72d6f5b2f14afb894f401139a43ca8fb14614ccb57c15eb826038a504",
        ),
    ],
    ids=["alibi", "learned"],
)
def test_choices_of_gpt_have_their_recorded_digests_on_device_and_reference(options, digest):
    result = run("train", *TINY, "--model", "gpt", *options.split(), "--verify", 2, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["equal"] is True and found["digest"] == digest
