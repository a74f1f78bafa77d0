"""Checkpoints come back bit for bit or not at all; digests see every bit that is part of the contract."""

import os

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.check.hard import HARD_FLOATS
from vkdnn.errors import ArgumentError


@pytest.fixture(autouse=True)
def on_reference():
    with vk.device("cpu"):
        yield


def trees():
    params = {
        "layers": [{"weight": vk.array([[1.0, -0.0]])}, {"weight": vk.array([[2.5, np.inf]])}],
        "bias": vk.array([3.0]),
    }
    state = {"step": vk.array(np.int32(7)), "m": {"bias": vk.array([0.5])}, "seen": vk.array([True, False])}
    return params, state


def test_a_checkpoint_comes_back(tmp_path):
    params, state = trees()
    checkpoint.save(tmp_path / "model.safetensors", params, state, {"step": 7, "text": "ü"})
    loaded = checkpoint.load(tmp_path / "model.safetensors")
    assert checkpoint.digest(loaded.params) == checkpoint.digest(params)
    assert tree.flatten(loaded.state)[1] == tree.flatten(state)[1]
    assert loaded.state["step"].item() == 7 and loaded.state["step"].shape == ()
    assert loaded.state["seen"].numpy().tolist() == [True, False]
    assert loaded.metadata == {"step": 7, "text": "ü"}
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_hard_values_come_back_bit_for_bit(tmp_path):
    params = {"x": vk.array(np.asarray(HARD_FLOATS, np.float32))}
    checkpoint.save(tmp_path / "x", params)
    loaded = checkpoint.load(tmp_path / "x")
    assert loaded.params["x"].numpy().tobytes() == params["x"].numpy().tobytes()
    assert loaded.state is None and loaded.metadata == {}


def test_long_lists_keep_their_order(tmp_path):
    params = {"layers": [vk.array([float(i)]) for i in range(12)]}
    checkpoint.save(tmp_path / "x", params)
    assert [p.item() for p in checkpoint.load(tmp_path / "x").params["layers"]] == list(range(12))


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model"
    checkpoint.save(path, {"x": vk.array([1.0])})

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space"):
            checkpoint.save(path, {"x": vk.array([2.0])})
    assert checkpoint.load(path).params["x"].item() == 1.0
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize(
    "params",
    [
        {"a.b": [1.0]},
        {"a": {}, "b": [1.0]},
        {"a": {"0": np.ones(1)}},
        {"a": (np.ones(1), np.ones(1))},
        {"a": None},
    ],
    ids=["dot", "empty", "number", "tuple", "none"],
)
def test_trees_that_names_cannot_describe_are_refused(tmp_path, params):
    with pytest.raises(ArgumentError, match="params, state: got a tree"):
        checkpoint.save(tmp_path / "x", params)
    assert os.listdir(tmp_path) == []


def test_metadata_must_be_json(tmp_path):
    with pytest.raises(ArgumentError, match="metadata: "):
        checkpoint.save(tmp_path / "x", {"x": vk.array([1.0])}, metadata={"x": object()})


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "model"
    checkpoint.save(path, {"x": vk.array([1.0])})
    data = path.read_bytes()
    path.write_bytes(data[:-2])
    with pytest.raises(checkpoint.CheckpointError, match="damaged"):
        checkpoint.load(path)
    path.write_bytes(data.replace(b"vkdnn-checkpoint-1", b"vkdnn-checkpoint-9"))
    with pytest.raises(checkpoint.CheckpointError, match="format 'vkdnn-checkpoint-9'"):
        checkpoint.load(path)
    with pytest.raises(FileNotFoundError, match="no file at"):
        checkpoint.load(tmp_path / "absent")


def test_digest_sees_names_shapes_dtypes_and_bits():
    one = np.zeros(2, np.float32)
    values = [
        {"x": one}, {"y": one}, {"x": one.reshape(1, 2)}, {"x": np.zeros(2, np.int32)},
        {"x": one + np.float32(1e-30)}, {"x": -one}, {"x": one, "y": one}, {"x": [one]},
    ]  # fmt: skip
    assert len({checkpoint.digest(v) for v in values}) == len(values)
    assert checkpoint.digest({"x": one}) == checkpoint.digest({"x": vk.array(one)})


def test_digest_takes_every_nan_for_the_same():
    quiet, payload = np.array([0x7FC00000, 0xFFC12345], np.uint32).view(np.float32).reshape(2, 1)
    assert checkpoint.digest({"x": quiet}) == checkpoint.digest({"x": payload})
