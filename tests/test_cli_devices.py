"""vkdnn devices, and what all commands share: help with examples, errors as one line, exit statuses."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import vkdnn
from vkdnn.cli import app
from vkdnn.errors import DeviceError


def run(*arguments):
    return CliRunner().invoke(app, arguments)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv("VKDNN_DEVICE", raising=False)


def test_devices_lists_every_device_and_the_reference():
    result = run("devices")
    assert result.exit_code == 0
    for info in vkdnn.devices():
        assert f"{info.index}   {info.name}" in result.stdout
    assert result.stdout.count("* ") == 1
    assert "  cpu NumPy reference" in result.stdout


def test_json_has_the_same_rows(monkeypatch):
    monkeypatch.setenv("VKDNN_DEVICE", "cpu")
    rows = json.loads(run("devices", "--json").stdout)
    assert [row["selector"] for row in rows] == [*(str(d.index) for d in vkdnn.devices()), "cpu"]
    assert [row["default"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert all(row["strategies"] is None for row in rows)


def test_probe_tells_how_a_device_computes():
    rows = json.loads(run("devices", "--probe", "--json").stdout)
    assert set(rows[0]["strategies"]) == {"subnormals", "division", "square_root"}
    assert "strategies subnormals" in run("devices", "--probe").stdout


def test_a_device_that_fails_the_probe_is_listed_as_refused(monkeypatch):
    def fail(selector):
        raise DeviceError("rule broken")

    monkeypatch.setattr("vkdnn.cli.devices.open_device", fail)
    result = run("devices", "--probe")
    assert result.exit_code == 0 and "refused: rule broken" in result.stdout


def test_without_vulkan_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(vkdnn, "devices", tuple)
    result = run("devices")
    assert result.exit_code == 0
    assert "cpu NumPy reference" in result.stdout and "mesa-vulkan-drivers" in result.stdout
    as_json = run("devices", "--json")
    assert [row["selector"] for row in json.loads(as_json.stdout)] == ["cpu"]
    assert "mesa-vulkan-drivers" in as_json.stderr

    def no_loader():
        raise DeviceError("no Vulkan loader; install libvulkan1")

    monkeypatch.setattr(vkdnn, "devices", no_loader)
    result = run("devices")
    assert result.exit_code == 0 and "install libvulkan1" in result.stdout


def test_a_default_that_does_not_exist_is_an_error_below_the_list(monkeypatch):
    monkeypatch.setenv("VKDNN_DEVICE", "no such card")
    for arguments in (("devices",), ("devices", "--json")):
        result = run(*arguments)
        assert result.exit_code == 1 and "NumPy reference" in result.stdout and "* " not in result.stdout
        assert "error: VKDNN_DEVICE 'no such card' names no Vulkan device" in result.stderr
        assert "or cpu (the NumPy reference)" in result.stderr


@pytest.mark.parametrize("command", ["devices", "train", "generate", "show"])
def test_every_command_has_help_with_examples(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.stdout and f"vkdnn {command}" in result.stdout


def test_version_and_wrong_usage():
    assert run("--version").stdout == f"vkdnn {vkdnn.__version__}\n"
    assert run("devices", "--nonsense").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_python_m_is_the_command():
    done = subprocess.run([sys.executable, "-m", "vkdnn", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == f"vkdnn {vkdnn.__version__}\n"


def test_errors_are_one_line_on_stderr_without_traceback():
    code = "from vkdnn.cli import main; main()"
    command = [sys.executable, "-c", code, "train", "--text", "/no/such/file"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == ("error: text: /no/such/file does not exist; name a text file or a folder of text files\n")
