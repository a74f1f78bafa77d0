"""vkdnn parity: table, JSON, exit status, digest files, Ctrl-C."""

import json

import planted
import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn.check.digests import DigestFile
from vkdnn.cli import app
from vkdnn.cli import parity as command


def run(*arguments):
    return CliRunner().invoke(app, ["parity", *map(str, arguments)])


def test_equal_bits_are_a_table_and_status_0():
    result = run("softmax", "relu", "--repeat", 2)
    assert result.exit_code == 0, result.output
    assert f"{vk.device().name}, " in result.stdout and " against cpu" in result.stdout
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["group", "targets", "values", "different", "flaws", "errors", "seconds"]
    assert lines[-1] == "equal: 2 targets, every bit"


def test_json_is_alone_on_stdout():
    result = run("softmax", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and "against cpu" in result.stderr
    assert (found["device"], found["other"], found["complete"]) == (vk.device().name, "cpu", True)
    (outcome,) = found["outcomes"]
    assert outcome["ok"] and outcome["target"] == "softmax" and outcome["differences"] == []


def test_a_difference_is_told_with_its_finger_and_status_1(tmp_path):
    with planted.row("relu", "maximum({0}, 1.0)"):
        result = run("softmax", "relu", "--save", tmp_path)
        as_json = run("relu", "--save", tmp_path, "--json")
    assert result.exit_code == as_json.exit_code == 1
    assert "relu: different\n  result, random inputs: " in result.stdout
    assert "  Program 1 of 3, kernel 2 of 2: in kernel 2 the expression `relu %" in result.stdout
    assert "  operand 0 there: " in result.stdout and f"python {tmp_path}/relu/reproduce.py" in result.stdout
    assert result.stdout.endswith("not equal: 1 target of 2: relu\n")
    (outcome,) = json.loads(as_json.stdout)["outcomes"]
    assert outcome["finger"]["kind"] == "expression" and outcome["script"].endswith("reproduce.py")
    assert outcome["finger"]["place"]["got_bits"] == "0x3f800000"


def test_missing_barriers_are_told():
    with planted.no_barriers():
        result = run("matmul", "layer_norm")
    assert result.exit_code == 1
    assert "wrong kernels" in result.stdout and "no barrier between kernel " in result.stdout


def test_a_digest_file_repeats_what_was_asked(tmp_path):
    file = tmp_path / "here.json"
    assert run("softmax", "relu", "--record", file).exit_code == 0
    again = run("--against", file)
    assert again.exit_code == 0 and again.stdout.endswith("equal: 2 targets, every bit\n")
    assert f"against {file}, recorded on {vk.device().name}" in again.stdout
    assert run("softmax", "--against", file, "--device", "cpu").exit_code == 0
    with planted.row("relu", "maximum({0}, 1.0)"):
        wrong = run("--against", file, "--save", tmp_path)
    assert wrong.exit_code == 1 and "relu: different\n  result, random inputs\n" in wrong.stdout
    assert "expression `relu" in wrong.stdout
    file.write_text(file.read_text()[:100])
    broken = run("--against", file)
    assert broken.exit_code == 1 and "is damaged" in broken.stderr and "Traceback" not in broken.output


def test_a_function_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import vkdnn as vk\n\ndef f(x):\n    return vk.softmax(x) * 2\n")
    monkeypatch.chdir(tmp_path)
    result = run("mine:f", "--shape", "x=3,7")
    assert result.exit_code == 0 and "functions" in result.stdout
    assert run("mine:f").exit_code == 1


def test_a_function_that_gives_no_arrays_is_an_error(tmp_path, monkeypatch):
    text = "def none(x): pass\n\ndef number(x): return 3.0\n\ndef bad(x): raise ValueError('[b]')\n"
    (tmp_path / "hollow.py").write_text(text + "\ndef empty(x): return x[:0]\n")
    monkeypatch.chdir(tmp_path)
    result = run("hollow:none", "hollow:number", "hollow:bad", "hollow:empty", "--shape", "3")
    assert result.exit_code == 1 and "not equal: 3 targets of 4" in result.stdout
    assert "hollow:none gives no array of vkdnn (it gave None)" in result.stdout
    assert "(it gave 3.0), so nothing can be compared" in result.stdout
    assert "ValueError: [b] (hollow.py:5)" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "target: none is named"),
        (("softmx",), "is it softmax"),
        (("grid:none",), "no family 'none' of the grid"),
        (("softmax", "--device", "cpu"), "would be compared with itself"),
        (("softmax", "--other", "nothing"), "names no Vulkan device"),
        (("softmax", "--other", "cpu", "--against", "x"), "leave one of them out"),
        (("softmax", "--against", "/no/such/file"), "cannot be read"),
        (("softmax", "--record", "/no/such/folder/file"), "cannot be written"),
        (("grid:", "--grid-size", "huge"), "expected one of small, ci, full"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 1 and message in result.stderr and "Traceback" not in result.output


def test_ctrl_c_prints_what_was_done(tmp_path, monkeypatch):
    check = command.check

    def interrupted(subjects, *rest, on_outcome, **named):
        check(subjects[:1], *rest, on_outcome=on_outcome, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "check", interrupted)
    file = tmp_path / "part.json"
    result = run("softmax", "relu", "--record", file)
    assert result.exit_code == 130 and "interrupted: 1 of 2 targets were done" in result.stdout
    found = DigestFile.read(file)
    assert not found.complete and set(found.targets) == {"softmax"}
    as_json = run("softmax", "relu", "--json")
    assert as_json.exit_code == 130 and not json.loads(as_json.stdout)["complete"]
