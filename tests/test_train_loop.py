"""The training loop, its interrupts, and the parity check: the same steps, the same bits."""

import os
import signal
from dataclasses import replace

import pytest

import vkdnn as vk
from vkdnn.errors import ArgumentError
from vkdnn.nn import RAPTConfig
from vkdnn.train import Job, Stop, Trainer, TrainingError, compare, load_model, run_steps, sample_text, verify

CONFIG = RAPTConfig(width=16, layers=1, heads=2, key_width=8, value_width=8, hidden=32)
JOB = Job(CONFIG, steps=40, batch=2, length=32, learning_rate=1e-2)
CPU = vk.device("cpu")


def test_training_learns():
    trainer = Trainer(JOB, sample_text(), CPU)
    losses = [trainer.step() for _ in range(40)]
    assert 5.4 < losses[0] < 5.8
    assert sum(losses[-10:]) / 10 < 3.5
    assert losses == trainer.losses


def test_a_step_has_the_same_bits_on_the_device_and_the_reference():
    seen = []
    parity = verify(JOB, sample_text(), vk.device(), 2, lambda name, done: seen.append((name, done)))
    assert parity.equal and parity.digest == parity.reference
    assert (parity.steps, parity.first_step, parity.arrays) == (2, None, ())
    assert seen == [(vk.device().name, 1), (vk.device().name, 2), ("cpu", 1), ("cpu", 2)]


def test_a_difference_is_found_and_named():
    state = run_steps(JOB, sample_text(), CPU, 2)
    again = run_steps(JOB, sample_text(), CPU, 2)
    assert state == again
    other = run_steps(replace(JOB, seed=1), sample_text(), CPU, 2)
    parity = compare("device", other, state)
    assert not parity.equal and parity.first_step == 1
    assert "params.head.weight" in parity.arrays and "state.step" not in parity.arrays


def test_the_digest_covers_every_parameter_and_the_optimizer():
    trainer = Trainer(JOB, sample_text(), CPU)
    trainer.step()
    names = set(run_steps(JOB, sample_text(), CPU, 1).arrays)
    assert {"state.step", "state.beta1_power", "state.beta2_power"} < names
    for part in ("params", "state.m", "state.v"):
        assert sum(name.startswith(f"{part}.") for name in names) == (len(names) - 3) // 3
    before = trainer.digest()
    trainer.state["step"] = trainer.state["step"] + 1
    assert trainer.digest() != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"width": 16}}, r"config: got dict, expected one of RAPTConfig"),
        ({"steps": 0}, r"steps: got 0, expected 1 or more"),
        ({"batch": 0}, r"batch: got 0"),
        ({"length": -1}, r"length: got -1"),
        ({"seed": -1}, r"seed: got -1"),
        ({"seed": 2**64}, r"seed: got 18446744073709551616"),
        ({"learning_rate": 0.0}, r"learning_rate: got 0.0"),
        ({"learning_rate": float("nan")}, r"learning_rate: got nan"),
    ],
)
def test_jobs_that_cannot_be(change, message):
    with pytest.raises(ArgumentError, match=message):
        replace(JOB, **change)


def test_a_text_that_is_too_short_is_refused_before_training():
    with pytest.raises(ArgumentError, match=r"has 11358 bytes, but one window takes 20001"):
        Trainer(replace(JOB, length=20000), sample_text(), CPU)
    with pytest.raises(ArgumentError, match=r"verify: got 0 steps"):
        run_steps(JOB, sample_text(), CPU, 0)


def test_a_loss_that_is_no_number_ends_the_run():
    trainer = Trainer(replace(JOB, learning_rate=1e38), sample_text(), CPU)
    with pytest.raises(TrainingError, match=r"loss: got (nan|inf) at step \d+, .*learning rate"):
        for _ in range(10):
            trainer.step()
    assert len(trainer.losses) < 10


def test_a_checkpoint_gives_the_model_back(tmp_path):
    trainer = Trainer(JOB, sample_text(), CPU)
    trainer.step()
    trainer.save(tmp_path / "checkpoint.safetensors")
    model, params, metadata = load_model(tmp_path, CPU)
    assert model.config == CONFIG and metadata["step"] == 1
    assert vk.tree.paths(params) == vk.tree.paths(trainer.params)


def test_ctrl_c_is_heard_between_steps_and_twice_at_once():
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        with pytest.raises(KeyboardInterrupt):  # nothing is trained yet
            os.kill(os.getpid(), signal.SIGINT)
        stop.armed = True
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
