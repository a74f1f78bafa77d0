"""Going on with a run: the bits of one that was never broken off, on any device; texts and files that differ."""

from dataclasses import replace

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import checkpoint
from vkdnn.checkpoint import CheckpointError
from vkdnn.errors import ArgumentError
from vkdnn.nn import RAPTConfig
from vkdnn.train import Job, Trainer, load_model, load_start, load_text, same_text, sample_text

CONFIG = RAPTConfig(width=16, layers=1, heads=2, key_width=8, value_width=8, hidden=32)
JOB = Job(CONFIG, steps=6, batch=2, length=16, learning_rate=1e-2)
CPU = vk.device("cpu")
CHANGES = [
    {},
    {"optimizer": "sgd", "learning_rate": 0.3, "ema": 0.9},
    {"optimizer": "lion", "accumulate": 2, "learning_rate": 1e-3},
    {"config": replace(CONFIG, variant="rla", decay=0.9)},
    {"config": replace(CONFIG, variant="lrla"), "ema": 0.5},
]
NAMES = ["adamw", "sgd-ema", "lion-accumulate", "rla-decay", "lrla-ema"]
every_job = pytest.mark.parametrize("job", [replace(JOB, **c) for c in CHANGES], ids=NAMES)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(sample_text().data.tobytes())
    return path


def trained(job, corpus, device, steps, start=None):
    trainer = Trainer(job, corpus, device, start=start)
    for _ in range(steps):
        trainer.step()
    return trainer


@every_job
def test_a_run_in_pieces_has_the_bits_of_the_whole_on_any_device(job, text, tmp_path):
    corpus, path = load_text(text), tmp_path / "checkpoint.safetensors"
    whole = trained(job, corpus, CPU, 6)
    trained(job, corpus, CPU, 1).save(path)
    for device, steps in ((vk.device(), 2), (CPU, 1), (vk.device(), 2)):
        start = load_start(tmp_path)
        assert start.job == job
        piece = trained(start.job, same_text(start), device, steps, start)
        piece.save(path)
    assert piece.losses == whole.losses
    assert piece.digest() == whole.digest()


@every_job
def test_a_job_comes_back_from_its_record(job):
    import json

    assert Job.from_record(json.loads(json.dumps(job.record()))) == job


def test_records_without_a_model_are_of_rapt():
    record = JOB.record()
    assert record.pop("model") == "rapt" == JOB.model
    assert Job.from_record(record) == JOB
    with pytest.raises(ArgumentError, match=r"^model: got 'other', expected one of rapt"):
        Job.from_record({**record, "model": "other"})


def test_averaged_weights_are_those_to_decode_with(text, tmp_path):
    trainer = trained(replace(JOB, ema=0.5), load_text(text), CPU, 2)
    trainer.save(tmp_path / "checkpoint.safetensors")
    _, averaged, _ = load_model(tmp_path, CPU)
    _, last, _ = load_model(tmp_path, CPU, averaged=False)
    assert checkpoint.digest(averaged) == checkpoint.digest(trainer.average) == checkpoint.digest(trainer.best)
    assert checkpoint.digest(last) == checkpoint.digest(trainer.params) != checkpoint.digest(averaged)


def test_accumulated_batches_are_the_windows_of_as_many_steps(text):
    corpus = load_text(text)
    plain = Trainer(replace(JOB, batch=4), corpus, CPU)
    split = Trainer(replace(JOB, accumulate=2), corpus, CPU)
    assert abs(plain.step() - split.step()) < 0.2  # other windows, as many of them
    assert split.checkpoint_bytes == plain.checkpoint_bytes


def test_a_checkpoint_is_no_larger_than_announced(text, tmp_path):
    for job in (JOB, replace(JOB, ema=0.5), replace(JOB, optimizer="sgd")):
        trainer = trained(job, load_text(text), CPU, 1)
        trainer.save(tmp_path / "x")
        assert 0.5 < (tmp_path / "x").stat().st_size / trainer.checkpoint_bytes < 1


def test_another_text_is_refused(text, tmp_path):
    trained(JOB, load_text(text), CPU, 1).save(tmp_path / "checkpoint.safetensors")
    start = load_start(tmp_path)
    moved = tmp_path / "moved.txt"
    text.rename(moved)
    assert same_text(start, moved).sha256 == start.text_sha256
    with pytest.raises(ArgumentError, match=r"text: .*text.txt does not exist"):
        same_text(start)
    text.write_bytes(moved.read_bytes() + b"!")
    with pytest.raises(ArgumentError, match=r"text: .*text.txt differs from the run's: 11359 bytes with SHA-256"):
        same_text(start)


def test_the_text_that_ships_with_vkdnn_is_found_again(tmp_path):
    trained(JOB, sample_text(), CPU, 1).save(tmp_path / "checkpoint.safetensors")
    assert same_text(load_start(tmp_path)).name == sample_text().name


def test_folders_without_a_run(text, tmp_path):
    with pytest.raises(ArgumentError, match=r"^--resume: .*checkpoint.safetensors does not exist; name the folder"):
        load_start(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, {"x": vk.array([1.0], device=CPU)}, metadata={"config": {}})
    with pytest.raises(CheckpointError, match=r"keeps no run to go on with"):
        load_start(tmp_path)
    trained(JOB, load_text(text), CPU, 1).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"damaged"):
        load_start(tmp_path)
    path.write_bytes(whole)
    start = load_start(path)
    with pytest.raises(CheckpointError, match=r"has params.* as float32 \[.*\], expected"):
        Trainer(replace(JOB, config=replace(CONFIG, hidden=64)), load_text(text), CPU, start=start)


@pytest.mark.parametrize(("accumulate", "submissions"), [(1, 1), (3, 4)])
def test_a_step_takes_no_more_memory_and_submissions_from_step_to_step(text, accumulate, submissions):
    device = vk.device()
    trainer = Trainer(replace(JOB, ema=0.9, accumulate=accumulate, steps=100), load_text(text), device)
    trainer.step()
    trainer.step()
    bytes_before, seen = device.opened.allocated_bytes, set()
    for _ in range(30):
        before = device.opened.submissions
        trainer.step()
        seen.add((device.opened.submissions - before, device.opened.allocated_bytes - bytes_before))
    assert seen == {(submissions, 0)}


def test_losses_come_back_exactly(text, tmp_path):
    trainer = trained(JOB, load_text(text), CPU, 3)
    trainer.save(tmp_path / "checkpoint.safetensors")
    assert list(load_start(tmp_path).losses) == trainer.losses
    assert all(x == np.float32(x) for x in trainer.losses)
