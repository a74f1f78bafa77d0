"""Levers in training: the report of what they save, the same digest, and going on with a run that has them."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn import tree
from vkdnn.cli import app
from vkdnn.nn import GPTConfig, Levers, RAPTConfig
from vkdnn.train import Job, Trainer, load_start, memory_report, run_steps, sample_text

CPU = vk.device("cpu")
SIZES = {"width": 16, "layers": 6, "heads": 2, "hidden": 32}
CONFIGS = {"rapt": RAPTConfig(**SIZES, key_width=8, value_width=8), "gpt": GPTConfig(**SIZES)}
JOB = Job(CONFIGS["rapt"], steps=4, batch=8, length=32)
ALL = Levers(checkpoint_every=1, offload=True, flush_every=1)
TINY = ["--width", "16", "--layers", "2", "--heads", "2", "--batch", "2", "--length", "32"]


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_report_shows_what_each_lever_saves(model, accumulate):
    job = replace(JOB, config=CONFIGS[model], accumulate=accumulate)
    plain, again, away, cut = memory_report(job, sample_text(), CPU, Levers(checkpoint_every=1))
    assert [u.setting for u in (plain, again, away, cut)] == [
        "plain", "recompute", "recompute, offload", "recompute, offload, flush",
    ]  # fmt: skip
    assert away.device_bytes < again.device_bytes < 0.6 * plain.device_bytes
    assert cut.device_bytes < again.device_bytes * 1.1
    assert plain.host_bytes == again.host_bytes == 0
    assert away.host_bytes == cut.host_bytes == 4 * 6 * 8 * 32 * 16  # six inputs [8, 32, 16]
    programs = 1 if accumulate == 1 else 3  # two micro-batches and the step
    assert plain.submissions == again.submissions == away.submissions == programs
    assert cut.submissions == programs + accumulate * 12
    assert len({u.state_bytes for u in (plain, again, away, cut)}) == 1


def test_the_state_is_what_the_trainer_holds():
    device = vk.device()
    before = device.opened.allocated_bytes
    trainer = Trainer(JOB, sample_text(), device)
    vk.realize(tree.flatten(trainer.whole)[0])
    held = device.opened.allocated_bytes - before
    assert trainer.state_bytes <= held < trainer.state_bytes * 1.05


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_has_the_same_digest_with_levers(accumulate):
    job = replace(JOB, accumulate=accumulate, batch=2, ema=0.9)
    want = run_steps(job, sample_text(), CPU, 3)
    assert run_steps(job, sample_text(), CPU, 3, levers=ALL) == want
    if accumulate == 1:
        shallow = replace(job, config=replace(job.config, layers=1))
        want = run_steps(shallow, sample_text(), CPU, 2)
        assert run_steps(shallow, sample_text(), vk.device(), 2, levers=ALL) == want


def test_a_checkpoint_keeps_the_levers(tmp_path):
    trainer = Trainer(replace(JOB, batch=1), sample_text(), CPU, levers=ALL)
    trainer.step()
    trainer.save(tmp_path / "checkpoint.safetensors")
    start = load_start(tmp_path)
    assert start.levers == ALL and start.job == trainer.job


# ---- the command


def test_the_report_of_the_command():
    result = run("train", *TINY, "--memory-report", "--device", "cpu", "--recompute-every", 2, "--flush-every", 1)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "one training step: RAPT, 2 layers of width 16, batch 2 x 32" and lines[1] == "device cpu"
    assert lines[2].split() == ["values", "state", "device", "host", "submissions"]
    names = ["plain", "recompute 2", "recompute 2, offload", "recompute 2, offload, flush 1"]
    assert [line.split("  ")[0] for line in lines[3:7]] == names
    found = run("train", *TINY, "--memory-report", "--device", "cpu", "--model", "gpt", "--json")
    rows = json.loads(found.stdout)["settings"]
    assert [row["submissions"] for row in rows] == [1, 1, 1, 5]
    assert rows[3]["levers"] == {"checkpoint_every": 1, "offload": True, "flush_every": 1}


def test_levers_of_a_run_are_kept_and_can_be_changed(tmp_path):
    folder = tmp_path / "run"
    text = tmp_path / "text.txt"
    text.write_bytes(sample_text().data.tobytes())
    options = [*TINY, "--text", text, "--device", "cpu"]
    plain = run("train", *options, "--steps", 2, "--out", tmp_path / "plain", "--json")
    levers = ["--recompute-every", 1, "--offload", "--flush-every", 1]
    found = run("train", *options, "--steps", 2, "--out", folder, "--json", *levers)
    assert json.loads(found.stdout)["digest"] == json.loads(plain.stdout)["digest"]
    assert load_start(folder).levers == ALL
    again = run("train", "--resume", folder, "--recompute-every", 2, "--device", "cpu", "--json")
    assert again.exit_code == 0 and json.loads(again.stdout)["digest"] == json.loads(plain.stdout)["digest"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory-report", "--verify", "2"], "trains nothing; leave out --verify"),
        (["--memory-report", "--steps", "2"], "leave out --steps"),
        (["--memory-report", "--resume", "x"], "leave out --memory-report"),
        (["--recompute-every", "0"], "should be greater than or equal to 1"),
    ],
)
def test_what_does_not_go_together(options, message):
    result = run("train", *options)
    assert result.exit_code == 2 and message in " ".join(result.stderr.replace("│", "").split())
