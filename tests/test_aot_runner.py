"""tools/run_bundle: a runner that knows nothing of vkdnn gets the bits of the reference."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import tree
from vkdnn.check.hard import bits_equal
from vkdnn.nn import GPTConfig, GPTModel, RAPTConfig, RAPTModel
from vkdnn.train import Job, Trainer, sample_text
from vkdnn.train.data import batch_at

SWIFTSHADER = os.environ.get("VKDNN_SWIFTSHADER_ICD", "")
RUNNER = Path(__file__).parent.parent / "tools" / "run_bundle"
RAPT = RAPTConfig(layers=1, width=32, heads=2, hidden=48, key_width=16, value_width=16)


def run(folder, bundle, *options, code=0, **inputs):
    """The outputs by name; or what it said on its way out."""
    given = []
    for name, value in inputs.items():
        np.save(folder / f"{name}.npy", value)
        given += ["--input", f"{name}={folder / name}.npy"]
    results = folder / "results.npz"
    command = [sys.executable, str(RUNNER), str(bundle), *given, *options, "--output", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert not code or (done.stderr.startswith("run_bundle: ") and done.stderr.count("\n") == 1), done.stderr
    return done.stderr if code else dict(np.load(results))


def tokens(*shape):
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.int32)


def test_the_runner_is_short_and_imports_nothing_of_vkdnn():
    text = RUNNER.read_text()
    assert len(text.splitlines()) <= 200
    imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {a.name.split(".")[0] for n in imports if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module).split(".")[0] for n in imports if isinstance(n, ast.ImportFrom)}
    assert names <= {"kp", "numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("model", [RAPTModel(RAPT), GPTModel(GPTConfig(layers=1, width=32, heads=2, hidden=48))])
def test_one_bundle_of_a_model_runs_at_several_lengths(tmp_path, model):
    params = model.init(1, vk.device("cpu"))
    vk.aot.export(
        lambda params, tokens: model(params, tokens),
        [params, vk.aot.Spec(("batch", "tokens"), "int32")],
        tmp_path / "b.zip",
        weights=0,
        ranges={"batch": (1, 3), "tokens": (1, 150)},
    )
    loaded = vk.aot.load(tmp_path / "b.zip")
    for shape in ((1, 1), (2, 63), (3, 150)):
        x = tokens(*shape)
        with vk.device("cpu"):
            expected = vk.jit(lambda params, x: model(params, x))(params, x).numpy()
        for found in (loaded(x).numpy(), run(tmp_path, tmp_path / "b.zip", tokens=x)["result"]):
            assert found.shape == expected.shape and bits_equal(found, expected).all()


@pytest.mark.parametrize("device", [None, "default"])
def test_training_steps_give_the_bits_of_the_trainer(tmp_path, device):
    """State is replaced in place; a device's bundle counts on its own arithmetic, a portable one serves any batch."""
    job = Job(RAPT, batch=2, length=16, steps=3)
    text = sample_text()
    trainer = Trainer(job, text, vk.device("cpu"))
    step, values = trainer.step_function()
    place = None if device is None else vk.device()
    shape = vk.aot.Spec(("batch" if place is None else job.batch, job.length + 1), "int32")
    ranges = {"batch": (1, 3)} if place is None else None
    vk.aot.export(step, [*values, shape], tmp_path / "b", weights=(0, 1), device=place, ranges=ranges)
    begin = []
    for number in range(2):
        trainer.step()
        batch = batch_at(text, number, job.batch, job.length, job.seed)
        found = run(tmp_path, tmp_path / "b", *begin, tokens=batch)
        assert float(found["result.2"]) == trainer.losses[-1]
        state = {n.replace("result.0", "params").replace("result.1", "state"): x for n, x in found.items()}
        del state["result.2"]
        np.savez(tmp_path / "state.npz", **state)
        begin = ["--input", str(tmp_path / "state.npz")]
    whole = {"params": trainer.params, "state": trainer.state}
    expected = dict(zip(tree.paths(whole), tree.flatten(whole)[0], strict=True))
    assert sorted(expected) == sorted(state)
    for name, value in expected.items():
        assert bits_equal(state[name], value.numpy()).all(), name


def test_runs_one_after_the_other_go_on_with_the_state(tmp_path):
    step = vk.jit(lambda state, x: {"sum": state["sum"] * 0.5 + x, "n": state["n"] + 1}, donate_argnums=0)
    state, x = {"sum": np.float32(1), "n": np.int32(0)}, np.float32(0.3)
    vk.aot.export(step, [state, x], tmp_path / "b", weights=0)
    found = run(tmp_path, tmp_path / "b", "--runs", "5", x=x)
    for _ in range(5):
        state = step(state, x)
    assert found["result.n"] == 5 and found["result.sum"] == state["sum"].numpy()


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "bool", "float16", "bfloat16"])
def test_every_dtype(tmp_path, dtype):
    held = vk.array([1, 0, 1, 1, 0], dtype=dtype)
    vk.aot.export(lambda x, i: (vk.where(i > 0, x, held), x), [vk.aot.Spec((5,), dtype), np.ones(5, np.int32)],
                  tmp_path / "b")  # fmt: skip
    x, i = vk.array([0, 3, 1, 0, 1], dtype=dtype).numpy(), np.array([1, 0, 1, 0, 1], np.int32)
    found = run(tmp_path, tmp_path / "b", x=x.view(np.uint16) if dtype == "bfloat16" else x, i=i)
    expected = np.where(i > 0, x, held.numpy())
    for name, want in (("result.0", expected), ("result.1", x)):
        got = found[name].view(x.dtype) if dtype == "bfloat16" else found[name]
        assert got.dtype == x.dtype and (got == want).all()


def test_subnormals_of_inputs_are_zero(tmp_path):
    vk.aot.export(lambda x: x.reshape(2, 2).T, [vk.aot.Spec((4,))], tmp_path / "b")
    x = np.array([1e-40, -1e-40, 1.2e-38, np.inf], np.float32)
    found = run(tmp_path, tmp_path / "b", x=x)["result"]
    assert bits_equal(found, vk.array(x).numpy().reshape(2, 2).T).all() and np.signbit(found[1, 0])


def test_several_submissions_and_memory_of_the_host(tmp_path):
    def loss(x):
        block = vk.remat(lambda x: vk.tanh(x @ x), offload=True)
        return vk.sum(vk.flush(block(vk.flush(block(x)))))

    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    program = vk.aot.export(vk.grad(loss), [x], tmp_path / "b").program
    assert len(program.submissions) > 1 and "host" in {b.memory for b in program.buffers}
    assert bits_equal(run(tmp_path, tmp_path / "b", x=x)["result"], vk.grad(loss)(vk.array(x)).numpy()).all()


@pytest.mark.skipif(not Path(SWIFTSHADER).is_file(), reason="VKDNN_SWIFTSHADER_ICD names no driver")
def test_a_portable_bundle_gives_the_same_on_another_vendor_s_device(tmp_path, monkeypatch):
    def function(x, y):
        return vk.softmax(x @ y) / vk.sqrt(vk.sum(x * x, axis=1, keepdims=True)), vk.argsort(x[:, 0])

    x, y = (np.random.default_rng(k).standard_normal((9, 9)).astype(np.float32) for k in range(2))
    vk.aot.export(function, [x, y], tmp_path / "b")
    expected = [r.numpy() for r in vk.jit(function)(x, y)]
    monkeypatch.setenv("VK_DRIVER_FILES", SWIFTSHADER)
    found = run(tmp_path, tmp_path / "b", x=x, y=y)
    assert all(bits_equal(found[f"result.{k}"], e).all() for k, e in enumerate(expected))


def test_what_does_not_fit_is_said(tmp_path):
    vk.aot.export(lambda x: x + 1, [vk.aot.Spec(("rows", 2))], tmp_path / "b", ranges={"rows": (1, 4)})
    assert "no input x float32['rows', 2]; give --input x=FILE.npy" in run(tmp_path, tmp_path / "b", code=1)
    for x in (np.ones((5, 2), np.float32), np.ones((2, 3), np.float32), np.ones((2, 2)), np.ones(2, np.float32)):
        assert "expected float32['rows', 2] {'rows': (1, 4)}" in run(tmp_path, tmp_path / "b", code=1, x=x)
    x = np.ones((2, 2), np.float32)
    assert "the bundle has no input y" in run(tmp_path, tmp_path / "b", code=1, x=x, y=x)
    assert "cannot read" in run(tmp_path, tmp_path / "b", "--input", "x=none.npy", code=1)
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    assert "bad.npy" in run(tmp_path, tmp_path / "b", "--input", f"x={tmp_path}/bad.npy", code=1)
    assert "cannot open Vulkan device 9" in run(tmp_path, tmp_path / "b", "--device", "9", code=1, x=x)
    assert "none" in run(tmp_path, tmp_path / "none", code=1)
    for kernel in (tmp_path / "b" / "kernels").iterdir():
        kernel.write_bytes(b"")
    assert "damaged" in run(tmp_path, tmp_path / "b", code=1, x=x)


def test_weights_that_are_missing_or_damaged_are_said(tmp_path):
    held, x = vk.array(np.arange(3, dtype=np.float32)), np.ones(3, np.float32)
    vk.aot.export(lambda x: x + held, [vk.aot.Spec((3,))], tmp_path / "b")
    weights = tmp_path / "b" / "weights.safetensors"
    weights.write_bytes(b"12345678")
    assert "weights.safetensors has another SHA-256: damaged" in run(tmp_path, tmp_path / "b", code=1, x=x)
    weights.unlink()
    shutil.make_archive(str(tmp_path / "b"), "zip", tmp_path / "b")
    for name in ("b", "b.zip"):
        said = run(tmp_path, tmp_path / name, code=1, x=x)
        assert f"cannot read {tmp_path / name} (" in said and "weights.safetensors" in said


def test_no_device_is_said(tmp_path, monkeypatch):
    vk.aot.export(lambda x: x + 1, [vk.aot.Spec((3,))], tmp_path / "b")
    monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent")
    assert "cannot open Vulkan device 0" in run(tmp_path, tmp_path / "b", code=1, x=np.ones(3, np.float32))
