"""Decoding: bytes that depend on checkpoint, prompt and seed alone, on every device."""

import json

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.checkpoint import CheckpointError
from vkdnn.errors import ArgumentError, MemoryLimitError, VkdnnError
from vkdnn.nn import GPTConfig, GPTModel, RAPTConfig, RAPTModel
from vkdnn.train import generate, load_model, sample_text
from vkdnn.train.decode import PIECE, _choose

CONFIG = RAPTConfig(width=16, layers=1, heads=2, key_width=8, value_width=8, hidden=32)
MODEL = RAPTModel(CONFIG)
GPT = GPTModel(GPTConfig(width=16, layers=1, heads=2, hidden=32))
CPU = vk.device("cpu")


def on(device):
    return MODEL.init(3, device)


def test_the_same_bytes_on_the_device_and_the_reference():
    made = bytes(generate(MODEL, on(CPU), b"def ", 12, temperature=1.0, seed=5))
    assert len(made) == 12
    assert made == bytes(generate(MODEL, on(vk.device()), b"def ", 12, temperature=1.0, seed=5))
    assert made != bytes(generate(MODEL, on(CPU), b"def ", 12, temperature=1.0, seed=6))
    assert made[:5] == bytes(generate(MODEL, on(CPU), b"def ", 5, temperature=1.0, seed=5))


def test_temperature_zero_takes_the_most_probable_byte_of_the_whole_sequence():
    params, text = on(CPU), b"ab"
    made = bytes(generate(MODEL, params, text, 6, temperature=0.0))
    for byte in made:
        with CPU:
            logits = MODEL(params, np.array([list(text)], np.int32)).numpy()[0, -1]
        assert byte == int(np.argmax(logits))
        text += bytes([byte])


@pytest.mark.parametrize("model", [MODEL, GPT], ids=["rapt", "gpt"])
def test_a_long_prompt_in_pieces_gives_the_same_bytes(model, monkeypatch):
    prompt = sample_text().data.tobytes()
    for length in (PIECE, PIECE + 3):
        params = model.init(3, CPU)
        made = bytes(generate(model, params, prompt[:length], 6))
        with monkeypatch.context() as patch:
            patch.setattr("vkdnn.train.decode.PIECE", 10**6)
            assert made == bytes(generate(model, params, prompt[:length], 6))


def test_learned_positions_end_a_text():
    model = GPTModel(GPTConfig(width=16, layers=1, heads=2, hidden=32, positions="learned", max_tokens=8))
    params = model.init(3, CPU)
    assert len(bytes(generate(model, params, b"abc", 6))) == 6
    with pytest.raises(ArgumentError, match=r"max_tokens: got 9, but this model learned 8 positions"):
        generate(model, params, b"abc", 7)  # at once: no byte was asked for


def test_more_bytes_than_a_cache_holds_are_refused_at_once():
    with pytest.raises(MemoryLimitError, match=r"init_state: a cache of 1 x 100000000064 tokens"):
        generate(GPT, GPT.init(3, CPU), b"x", 10**11 + 1)


def test_a_low_temperature_comes_to_the_same_as_zero():
    params = on(CPU)
    greedy = bytes(generate(MODEL, params, b"x", 8, temperature=0.0))
    assert bytes(generate(MODEL, params, b"x", 8, temperature=1e-6)) == greedy


def test_draws_follow_the_probabilities():
    probabilities = np.array([0.0, 0.5, 0.25, 0.25], np.float32)
    drawn = [_choose(probabilities, 1.0, seed=0, number=i) for i in range(4000)]
    counts = np.bincount(drawn, minlength=4)
    assert counts[0] == 0
    assert abs(counts[1] - 2000) < 160 and abs(counts[2] - 1000) < 140  # five standard deviations


def test_nan_is_reported():
    with pytest.raises(VkdnnError, match=r"the model gives NaN"):
        _choose(np.array([0.5, np.nan], np.float32), 1.0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"", 1), r"prompt: got no bytes"),
        ((b"x", -1), r"bytes: got -1"),
        ((b"x", 1, -0.5), r"temperature: got -0.5"),
        ((b"x", 1, float("nan")), r"temperature: got nan"),
        ((b"x", 1, float("inf")), r"temperature: got inf"),
    ],
)
def test_arguments_are_checked_at_once(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        generate(MODEL, {}, *arguments)


def test_no_bytes_are_none():
    assert list(generate(MODEL, on(CPU), b"x", 0)) == []


def test_checkpoints_that_hold_no_such_model(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(ArgumentError, match=r"checkpoint.safetensors does not exist; name a checkpoint"):
        load_model(tmp_path, CPU)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError, match=r"damaged or no safetensors file"):
        load_model(path, CPU)
    checkpoint.save(path, on(CPU))
    with pytest.raises(CheckpointError, match=r"describes no RAPT model"):
        load_model(path, CPU)
    checkpoint.save(path, on(CPU), metadata={"config": {"width": 0}})
    with pytest.raises(CheckpointError, match=r"describes no RAPT model \(width: got 0"):
        load_model(path, CPU)
    checkpoint.save(path, on(CPU), metadata={"model": "other", "config": vars(CONFIG)})
    with pytest.raises(CheckpointError, match=r"describes no known model \(model: got 'other', expected one of rapt"):
        load_model(path, CPU)
    wider = json.loads(json.dumps(vars(CONFIG))) | {"hidden": 64}
    checkpoint.save(path, on(CPU), metadata={"config": wider})
    with pytest.raises(CheckpointError, match=r"layers.0.mlp.* of shape \(.*32.*\), expected \(.*64.*\)"):
        load_model(path, CPU)
    checkpoint.save(path, on(CPU), metadata={"model": "gpt", "config": {"positions": "sine"}})
    with pytest.raises(CheckpointError, match=r"describes no GPT model \(positions: got 'sine'"):
        load_model(path, CPU)
    checkpoint.save(path, GPT.init(3, CPU), metadata={"model": "gpt", "config": vars(GPT.config)})
    assert load_model(path, CPU)[0] == GPT
    checkpoint.save(path, on(CPU), metadata={"config": vars(CONFIG)})
    model, params, _ = load_model(path, CPU)
    assert model == MODEL and tree.paths(params) == tree.paths(on(CPU))
