"""vkdnn aot build and run: functions, models and training steps from the command line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn.cli import app
from vkdnn.cli.job_options import parse_job
from vkdnn.train import Trainer, sample_text
from vkdnn.train.data import batch_at

MODEL = ["--width", "16", "--layers", "1", "--heads", "2"]
TINY = [*MODEL, "--batch", "2", "--length", "16"]

MODULE = """
import vkdnn as vk

weight = vk.ones((8, 4)) * 0.5


def forward(x, scale=None):
    y = x @ weight
    return y if scale is None else y * scale


class Holder:
    double = staticmethod(lambda x: x * 2)


def broken(x):
    raise RuntimeError("no such thing")


number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "aot_example.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "aot_example", raising=False)
    yield "aot_example"
    sys.modules.pop("aot_example", None)


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["aot", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def found(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_a_function_is_built_and_run(module, tmp_path):
    place, x = tmp_path / "b", np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    record = found("build", f"{module}:forward", "--shape", "x=rows,8", "--range", "rows=1:9", "-o", place)
    assert record["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["rows", 8]}]
    assert record["outputs"] == [{"name": "result", "dtype": "float32", "shape": ["rows", 4]}]
    assert record["symbols"] == {"rows": [1, 9]} and record["target"] == "" and record["kernels"] >= 2
    np.save(tmp_path / "x.npy", x)
    record = found("run", place, "--input", f"x={tmp_path}/x.npy", "--output", tmp_path / "y.npz")
    y = np.load(tmp_path / "y.npz")["result"]
    expected = (vk.array(x) @ (vk.ones((8, 4)) * 0.5)).numpy()
    assert (y.view(np.uint32) == expected.view(np.uint32)).all()
    assert record["sizes"] == {"rows": 3} and record["outputs"][0]["shape"] == [3, 4]
    assert record["outputs"][0]["sha256"] == hashlib.sha256(y.tobytes()).hexdigest()
    assert found("run", place, "--set", "rows=5")["outputs"][0]["shape"] == [5, 4]
    assert found("run", place)["sizes"] == {"rows": 9}


def test_arguments_by_position_and_by_name(module, tmp_path):
    record = found("build", f"{module}:forward", "-s", "scale=", "-s", "3x8:float16", "-o", tmp_path / "b.zip")
    assert [(i["name"], i["dtype"], i["shape"]) for i in record["inputs"]] == [
        ("x", "float16", [3, 8]),
        ("scale", "float32", []),
    ]
    said = run("build", f"{module}:Holder.double", "-s", "4", "-o", tmp_path / "c").stdout
    assert "wrote" in said and "KiB" in said and "kB" not in said
    assert run("run", tmp_path / "c").stdout.count("SHA-256") == 1


def test_a_model_is_built_for_a_range_of_lengths(tmp_path):
    record = found("build", "--model", "gpt", *MODEL, "--range", "tokens=1:40", "--batch", "2", "-o", tmp_path / "b")
    assert record["inputs"] == [{"name": "tokens", "dtype": "int32", "shape": [2, "tokens"]}]
    assert found("run", tmp_path / "b", "--set", "tokens=33")["outputs"][0]["shape"] == [2, 33, 256]


def test_a_training_step_is_trained_from_python(tmp_path):
    """The loop of docs/aot.md."""
    said = run("build", "--model", "rapt", "--train", *TINY, "-o", tmp_path / "step").stdout
    assert "input    tokens: int32[2, 17]" in said and "arrays" in said and said.count("input") == 3
    step = vk.aot.load(tmp_path / "step")
    params, state, wanted = step.initial()
    text = sample_text()
    trainer = Trainer(parse_job("rapt", TINY, "test")[0], text, vk.device())
    for number in range(3):
        tokens = batch_at(text, number, 2, 16, trainer.job.seed)
        assert wanted == vk.aot.Spec(tokens.shape, "int32")
        params, state, loss = step(params, state, tokens)
        assert loss.item() == trainer.step()
    average = found("build", "--model", "rapt", "--train", *TINY, "--ema", "0.5", "-o", tmp_path / "average")
    assert [o["name"] for o in average["outputs"]][-1] == "result.3"
    assert len(vk.aot.load(tmp_path / "average").initial()) == 4


def test_a_training_step_is_built_and_goes_on_in_place(tmp_path):
    record = found("build", "--model", "rapt", "--train", *TINY, "--optimizer", "sgd", "-o", tmp_path / "b")
    assert record["inputs"][-1] == {"name": "tokens", "dtype": "int32", "shape": [2, 17]}
    assert record["outputs"][-1]["name"] == "result.2"
    once, twice = (found("run", tmp_path / "b", "--runs", n)["outputs"] for n in (1, 2))
    assert once != twice and len(once) == len(record["inputs"])


@pytest.mark.parametrize("model", ["rapt", "gpt"])
def test_a_run_with_the_kernels_of_a_bundle_compiles_nothing(tmp_path, model):
    """From start to end, the sample included; without a compiler, without Jinja, with an empty store."""
    text = tmp_path / "text.txt"
    text.write_bytes(sample_text().data.tobytes())
    record = found("build", "--model", model, "--train", *TINY, "--steps", 2, "--kernels", "--device", 0,
                   "-o", tmp_path / "kernels.zip")  # fmt: skip
    assert record["inputs"] == [] and record["kernels"] > 20
    code = "import sys; sys.modules['jinja2'] = None; from vkdnn.cli import main; main()"
    command = [
        "train",
        "--model",
        model,
        *TINY,
        "--steps",
        "2",
        "--device",
        "0",
        "--text",
        str(text),
        "--out",
        str(tmp_path / "run"),
    ]
    environment = {
        "VKDNN_AOT": str(tmp_path / "kernels.zip"),
        "VKDNN_AOT_ONLY": "1",
        "VKDNN_CACHE_DIR": str(tmp_path / "store"),
        "VKDNN_GLSLANG": "/nonexistent",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "equal: 2 steps" in done.stdout and (tmp_path / "run" / "sample.txt").exists()
    limits = found("inspect", tmp_path / "kernels.zip")["limits"]
    assert "maxComputeSharedMemorySize" in limits and not {"maxComputeWorkGroupCount", "memory"} & set(limits)
    assert "maxStorageBufferRange" not in run("inspect", tmp_path / "kernels.zip").stdout
    with pytest.raises(vk.aot.BundleError, match="is a set of kernels without a program"):
        vk.aot.load(tmp_path / "kernels.zip")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name one thing to build"),
        (["{module}:forward", "--model", "rapt"], "name one thing to build|unexpected extra argument"),
        (["{module}"], "expected module:function"),
        (["{module}:none"], "has no 'none'"),
        (["{module}:number"], "is int, expected a function"),
        (["nowhere:f"], "cannot import 'nowhere'"),
        (["{module}:forward"], "none for argument 'x'"),
        (["{module}:forward", "-s", "y=3"], "has no argument 'y', expected x, scale"),
        (["{module}:forward", "-s", "3,8", "-s", "x=3,8"], "got argument 'x' twice"),
        (["{module}:forward", "-s", "x=3,7"], "matmul"),
        (["{module}:forward", "-s", "x=a,8"], "--range: none for the size 'a'; give one, such as --range a=1:512"),
        (["{module}:forward", "-s", "x=a,8", "--range", "b=1:2"], "'b' is in no --shape; the sizes with names are a"),
        (["{module}:forward", "-s", "x=a,8", "--kernels"], "'a' has no value, which --kernels needs"),
        (["{module}:forward", "-s", "x=a,8", "--range", "a=3:2"], "a is 3:2, expected 1 <= LOW <= HIGH"),
        (["{module}:forward", "-s", "x=3,8", "--range", "a=1:2"], "'a' is in no --shape; all sizes are numbers"),
        (["{module}:forward", "-s", "x=3,8", "--range", "a"], "expected such as batch=1:8"),
        (["{module}:broken", "-s", "x=3"], "broken failed with RuntimeError: no such thing"),
        (["{module}:forward", "-s", "x=3,8", "--train"], "belongs to --model"),
        (["{module}:forward", "-s", "x=3,8", "--width", "3"], "belongs to --model"),
        (["{module}:forward", "-s", "x=3,8", "--device", "cpu"], "runs no shaders"),
        (["{module}:forward", "-s", "x=a,8", "--range", "a=1:2", "--kernels"], "belongs to programs"),
        (["--model", "none"], "got 'none', expected rapt or gpt"),
        (["--model", "rapt", "--steps", "none"], "should be a valid integer"),
        (["--model", "rapt", "--out", "x"], "belongs to a run of vkdnn train"),
        (["--model", "rapt", "--range", "width=1:2"], "expected batch or tokens"),
        (["--model", "rapt", "--train", "--range", "tokens=1:2"], "fixed number of tokens"),
        (["--model", "rapt", "--train", "--accumulate", "2", *TINY], "expected 1: a step of several"),
        (["--model", "rapt", "-s", "3"], "for a model use --batch"),
    ],
)
def test_what_cannot_be_built_is_said(module, tmp_path, arguments, said):
    result = CliRunner().invoke(app, ["aot", "build", *(a.format(module=module) for a in arguments), "-o",
                                      str(tmp_path / "b")])  # fmt: skip
    text = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code in (1, 2) and any(part in text for part in said.split("|")), text
    assert not (tmp_path / "b").exists() and "Traceback" not in text


def test_what_exists_stays_unless_asked(module, tmp_path):
    build = ("build", f"{module}:Holder.double", "-s", "4", "-o", tmp_path / "b")
    run(*build)
    said = " ".join(run(*build, code=1).output.split())
    assert "--output: " in said and "exists; name another, or replace it with --overwrite" in said
    run(*build, "--overwrite")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--input", "x=none.npy"], "cannot read 'none.npy'"),
        (["--input", "y={x}"], "has no input 'y', expected x"),
        (["--input", "{x}"], "expected NAME=FILE.npy"),
        (["--input", "x={x}"], "x: has shape (5, 8)"),
        (["--set", "rows"], "expected such as tokens=128"),
        (["--set", "rows=5"], "rows is 5, expected 1 to 4"),
        (["--set", "columns=5"], "has no size 'columns', expected rows"),
        (["--input", "x={good}", "--set", "rows=3"], "rows is 3, but 2 in the inputs"),
        (["--device", "cpu"], "runs no shaders"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path, arguments, said):
    vk.aot.export(lambda x: x + 1, [vk.aot.Spec(("rows", 4))], tmp_path / "b", ranges={"rows": (1, 4)})
    np.save(tmp_path / "x.npy", np.ones((5, 8), np.float32))
    np.save(tmp_path / "good.npy", np.ones((2, 4), np.float32))
    names = {"x": str(tmp_path / "x.npy"), "good": str(tmp_path / "good.npy")}
    result = run("run", tmp_path / "b", *(a.format(**names) for a in arguments), code=1)
    assert said in result.output and "Traceback" not in result.output
    assert "does not exist" in run("run", tmp_path / "none", code=1).output
