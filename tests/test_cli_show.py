"""vkdnn show: every operation at every stage, with no device opened."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from vkdnn import show
from vkdnn.catalogue import catalogue
from vkdnn.cli import app
from vkdnn.errors import ArgumentError, CompileError

FUSED = ("softmax", "rms_norm", "layer_norm", "gelu_matmul", "adamw", "scan_prefix_sequential", "exp")


def run(*arguments):
    return CliRunner().invoke(app, ["show", *arguments])


@pytest.fixture
def no_device(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a device was opened")

    monkeypatch.setattr("vkdnn.runtime.open_device", refuse)


def test_the_stages_of_softmax(no_device):
    result = run("softmax", "--shape", "4,8")
    assert result.exit_code == 0
    for part in (
        "%0 = x: float32[4,8]",
        "kernel 1 of 1: FoldSpec",
        "fold rows",
        "void main()",
        "OpFunction ",
    ):
        assert part in result.stdout


@pytest.mark.parametrize("name", list(show.EXAMPLES))
def test_every_operation_has_a_graph_and_shaders(name, no_device):
    result = run(name, "--json", "--stage", "glsl")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert shown["op"] == name and shown["graph"][-1].startswith("result ")
    assert shown["kernels"] and all("void main()" in k["glsl"] for k in shown["kernels"])
    assert all(k["bytes"] > 0 and k["outputs"] for k in shown["kernels"])


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused_is_one_kernel(name, no_device):
    assert len(json.loads(run(name, "--json", "--stage", "ir").stdout)["kernels"]) == 1


def test_stages_show_only_themselves(no_device):
    graph = run("exp", "--stage", "ir").stdout
    assert "expr dims" in graph and "void main" not in graph and "OpFunction" not in graph
    glsl = run("exp", "--stage", "glsl").stdout
    assert "void main" in glsl and "result %" not in glsl and "OpFunction" not in glsl
    spirv = run("exp", "--stage", "spirv").stdout
    assert "OpFunction" in spirv and "NoContraction" in spirv and "void main" not in spirv


def test_a_device_shows_its_own_shader():
    result = run("exp", "--stage", "glsl", "--device", "0")
    assert result.exit_code == 0 and "void main()" in result.stdout
    refused = run("exp", "--device", "cpu")
    assert refused.exit_code == 1 and "runs no shaders" in refused.stderr


def test_without_a_disassembler_it_says_how_to_get_one(monkeypatch):
    which = show.shutil.which
    monkeypatch.setattr(show.shutil, "which", lambda name, **k: None if name == "spirv-dis" else which(name, **k))
    result = run("exp")
    assert result.exit_code == 0 and "install the Debian package spirv-tools" in result.stdout
    result = run("exp", "--stage", "spirv")
    assert result.exit_code == 1 and "install the Debian package spirv-tools" in result.stderr
    (kernel,) = json.loads(run("exp", "--json").stdout)["kernels"]
    assert kernel["spirv"] is None and "spirv-tools" in kernel["spirv_error"]


def test_a_disassembler_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(show.shutil, "which", lambda name: "spirv-dis")
    failed = subprocess.CompletedProcess([], 1, b"", b"unknown version\n")
    monkeypatch.setattr(show.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(CompileError, match=r"spirv-dis failed: unknown version; update"):
        show.disassemble(b"")


def test_the_list_and_short_names():
    listed = run().stdout
    assert all(name in listed for name in show.EXAMPLES)
    assert len(json.loads(run("--json").stdout)) == len(show.EXAMPLES)
    assert "scan_prefix_sequential: " in run("scan-prefix", "--stage", "ir").stdout


@pytest.mark.parametrize(
    ("name", "shown"),
    [("subtract", "sub"), ("vk.negative", "neg"), ("power", "pow"), ("nn.cross_entropy", "cross_entropy")],
)
def test_public_names_are_welcome(name, shown):
    assert f"// ---- {shown}: " in run(name, "--stage", "ir").stdout


@pytest.mark.parametrize("entry", [e.name for e in catalogue()])
def test_every_operation_of_the_catalogue_is_shown_or_named_as_not_shown(entry):
    try:
        show.example(entry)
    except ArgumentError as error:
        assert str(error).startswith(f"{entry}: no shader is shown for it; shown are: softmax, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["softmx"], "'softmx' cannot be shown (is it softmax or log_softmax?); `vkdnn show` lists them"),
        (["softmax", "--shape", "3"], "got 1 sizes 3, expected 2 for softmax: rows, columns"),
        (["softmax", "--shape", "3,0"], "got 3x0, expected sizes of 1 or more"),
        (["softmax", "--shape", "99999,99999"], "got 99999x99999, expected sizes of 1 or more, below 2**31"),
        (["softmax", "--shape", "a"], "--shape: got 'a', expected sizes such as 64,256"),
    ],
)
def test_errors(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert result.stderr.count("\n") == 1
    assert run("softmax", "--stage", "nothing").exit_code == 2


def test_a_reader_that_has_had_enough_is_no_failure():
    for arguments in ("show softmax", "show --json"):
        script = f'set -o pipefail; "{sys.executable}" -c "from vkdnn.cli import main; main()" {arguments} | head -c 1'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and len(done.stdout) == 1 and done.stderr == ""
