"""vkdnn gradcheck: tables for people, JSON for programs, exit status 1 for a wrong gradient, results after Ctrl-C."""

import json
import sys

import pytest
from typer.testing import CliRunner

from vkdnn.cli import app
from vkdnn.cli.console import INTERRUPTED

MODULE = """
import numpy as np
import vkdnn as vk
from vkdnn.check.operator import Input, Operator


def gelu(x):
    return vk.gelu(x) * 2


pair = (np.sin, lambda g, x: g * np.cos(x))
wrong = (np.sin, lambda g, x: -g * np.cos(x))
halved = Operator("halved", "mine", (Input("x", "n"),), lambda x: x / 2, None, {"n": 3})
number = 3


def raises(x):
    raise ValueError("[b] of shape :smile:")


def product(a, b):
    return a @ b


def narrow(x):
    if x.dtype != np.float32:
        raise TypeError("float32 only")
    return np.tanh(x)


thin = (narrow, lambda g, x: g * (1 - narrow(x) ** 2))
products = (lambda a, b: a @ b, lambda g, a, b: (g @ b.T, a.T @ g))
"""
TORCH = """
import torch


def halved(x: torch.Tensor):
    return torch.tanh(x) / 2


def plain(x):
    return x.sigmoid()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


class Net(torch.nn.Linear):
    pass


linear = torch.nn.Linear(4, 2)
"""


def run(*arguments):
    return CliRunner().invoke(app, ["gradcheck", *arguments])


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "mine_torch.py").write_text(TORCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    for name in ("mine", "mine_torch"):
        sys.modules.pop(name, None)


def test_an_operation_is_checked():
    result = run("softmax", "--device", "cpu")
    assert result.exit_code == 0
    assert "softmax: ok (full, seed 0, cpu)" in result.stdout
    assert all(part in result.stdout for part in ("formula", "device", "determinism", "ULP", "estimate"))


def test_several_are_a_table():
    result = run("softmax", "argmax", "relu", "-d", "cpu")
    assert result.exit_code == 0
    assert "3 targets: 2 ok, 1 without such a gradient" in result.stdout


def test_json_is_alone_on_stdout():
    found = json.loads(run("vk.softmax", "--device", "cpu", "--seed", "3", "--index", "2,1", "--json").stdout)
    (report,) = found["reports"]
    assert report["verdict"] == "ok" and report["seed"] == 3 and not found["stopped"]
    assert report["parts"][0]["checked"] == 1 and report["parts"][0]["worst"]["index"] == [2, 1]


def test_things_of_a_users_module(mine):
    for name in ("mine:gelu", "mine:pair"):
        result = run(name, "--shape", "x=3,4", "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert f"{name}: ok" in result.stdout
    assert run("mine:halved", "--device", "cpu").exit_code == 0


def test_errors_of_theirs_are_a_line_each_and_the_run_goes_on(mine):
    result = run("mine:raises", "mine:product", "mine:pair", "--shape", "x=3", "-d", "cpu", "--json")
    assert result.exit_code == 1 and "no parameter 'x'; its parameters: a, b" in result.stderr
    assert [r["verdict"] for r in json.loads(result.stdout)["reports"]] == ["error", "error", "ok"]
    result = run("mine:raises", "mine:number", "mine:pair", "--shape", "3", "-d", "cpu")
    assert result.exit_code == 1 and "3 targets: 1 ok, 2 not checked" in result.stdout
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: mine:raises: ValueError: [b] of shape :smile: (mine.py:")
    assert lines[1].startswith("error: mine:number: got 3, expected a function, or a pair") and len(lines) == 2
    alone = run("mine:raises", "--shape", "3", "-d", "cpu", "--json")
    assert alone.exit_code == 1 and json.loads(alone.stdout)["reports"][0]["verdict"] == "error"


def test_what_was_asked_and_cannot_be_done_is_an_error(mine):
    result = run("mine:pair", "--shape", "3", "--second-order")
    assert result.exit_code == 1 and "need a vjp of its vjp" in result.stderr
    empty = run("mine:pair", "--shape", "x=0")
    assert empty.exit_code == 0 and "none" in empty.stdout and "no elements" in empty.stdout


def test_shapes_go_by_name(mine):
    result = run("mine:products", "--shape", "b=3,2", "--shape", "a=4,3")
    assert result.exit_code == 0 and "18 compared" in result.stdout


def test_a_written_float32_is_one(mine):
    for name, shape in (("mine:thin", "x=5"), ("mine:pair", "x=5:float32")):
        result = run(name, "--shape", shape)
        assert result.exit_code == 0 and "evaluated in float32" in result.stdout, result.output
    assert "evaluated in float32" not in run("mine:pair", "--shape", "5").stdout


def test_functions_of_tensors(mine):
    pytest.importorskip("torch")
    for arguments in (["mine_torch:halved"], ["mine_torch:plain"], ["mine:pair", "mine_torch:plain", "--torch"]):
        result = run(*arguments, "--shape", "3,4")
        assert result.exit_code == 0, result.output
    result = run("mine_torch:Net", "--shape", "3,4")
    assert result.exit_code == 1 and "is a class; name a function or an instance" in result.stderr


def test_pytorch_that_is_not_here_is_said(mine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("mine_torch:Cube", "--shape", "3,4")
    assert result.exit_code == 1 and "pip install 'vkdnn[torch]'" in result.stderr


def test_a_wrong_gradient_is_exit_status_1_with_a_line_that_reproduces_it(mine):
    result = run("mine:wrong", "--shape", "3,4", "--mode", "fast")
    assert result.exit_code == 1 and "mine:wrong: failed" in result.stdout
    (line,) = [row for row in result.stdout.splitlines() if "again:" in row]
    words = line.split("vkdnn gradcheck ")[1].split()
    assert words[:3] == ["mine:wrong", "--shape", "3,4"] and "--index" in words and "--mode" not in words
    again = run(*words)
    assert again.exit_code == 1 and "1 compared, 1 failed" in again.stdout


def test_torchs_functions_and_modules(mine):
    pytest.importorskip("torch")
    assert run("mine_torch:Cube", "--shape", "3,4").exit_code == 0
    result = run("mine_torch:linear", "--shape", "3,4", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["reports"][0]["parts"][0]["checked"] == 12 + 8 + 2


def test_a_users_functions_need_no_vulkan(mine, monkeypatch):
    import vkdnn.cli.gradcheck as command
    from vkdnn.check import gradcheck
    from vkdnn.errors import DeviceError

    def none(*_):
        raise DeviceError("no Vulkan device")

    def never(*_):
        raise AssertionError("a device is opened")

    monkeypatch.setattr(command, "find_device", never)
    assert run("mine:pair", "--shape", "3").exit_code == 0
    monkeypatch.setattr(command, "find_device", none)
    assert run("mine:pair", "--shape", "3").exit_code == 0
    assert "no Vulkan device" in run("softmax").stderr
    monkeypatch.setattr("vkdnn.check.gradcheck_run.current_device", none)
    assert gradcheck(abs, [[1.0, -2.0]], vjp=lambda g, x: g * (x > 0) - g * (x < 0)).ok


def test_modes_and_second_order():
    for options in (["--mode", "fast"], ["--mode", "inner"], ["--mode", "complex"], ["--second-order"]):
        assert run("tanh", "--device", "cpu", *options).exit_code == 0
    assert "silu_slope has no derivative" in run("silu", "--device", "cpu", "--second-order").stdout


def test_noise_is_no_failure_but_is_said(mine):
    result = run("mine:pair", "--shape", "3", "--step", "1e-16")
    assert result.exit_code == 0 and "inconclusive" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["softmaxx"], "is it softmax"),
        ([], "none is named"),
        (["softmax", "--mode", "slow"], "--mode: got 'slow', expected one of full, fast"),
        (["softmax", "--index", "a,b"], "--index: got 'a,b', expected ints such as 2,1"),
        (["softmax", "--input", "y", "-d", "cpu"], "no input 'y', expected one of x"),
        (["mine:gelu"], "give each with --shape"),
        (["mine:number", "--shape", "3"], "expected a function, or a pair"),
        (["mine:nothing", "--shape", "3"], "mine has no 'nothing'"),
        (["softmax", "--device", "no such"], "no such"),
    ],
)
def test_bad_arguments_are_one_line_of_error(mine, arguments, text):
    result = run(*arguments)
    assert result.exit_code == 1 and result.stderr.startswith("error: ") and text in result.stderr
    assert "Traceback" not in result.output


def test_ctrl_c_gives_what_was_found(monkeypatch):
    import vkdnn.cli.gradcheck as command

    def broken_off(*arguments):
        found = command_targets(*arguments)
        yield next(found)
        raise KeyboardInterrupt

    command_targets = command.check_targets
    monkeypatch.setattr(command, "check_targets", broken_off)
    result = run("softmax", "norms", "--device", "cpu")
    assert result.exit_code == INTERRUPTED
    assert "softmax" in result.stdout and "interrupted after 1 of" in result.stderr
    found = json.loads(run("norms", "--device", "cpu", "--json").stdout)
    assert found["stopped"] and len(found["reports"]) == 1
