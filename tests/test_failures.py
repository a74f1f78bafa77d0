"""When the machine fails: no device, no compiler, no cache folder, no memory, a device lost amid the work."""

import os
import subprocess
import sys

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import tracing
from vkdnn.errors import CompileError, DeviceError
from vkdnn.runtime import kompute, probe


def run(program, **environment):
    """``program`` in a process of its own: its status and the last line on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return done.returncode, (done.stderr.strip().split("\n") or [""])[-1], done.stdout


@pytest.fixture
def fresh(monkeypatch):
    """Nothing opened, compiled or stored yet."""
    monkeypatch.setenv("VKDNN_CACHE_DISABLE", "1")
    monkeypatch.setattr("vkdnn.shader._memo", {})
    monkeypatch.setattr(probe, "_open", {})
    monkeypatch.setattr(sys.modules["vkdnn.device"], "_opened", {})


@pytest.fixture
def salt():
    """A constant that no kernel of another test holds."""
    return float(np.random.default_rng().random())


def test_no_device():
    status, error, _ = run("import vkdnn as vk; vk.array([1.0])", VK_DRIVER_FILES="/nowhere", VKDNN_DEVICE="")
    assert status == 1 and error.startswith("vkdnn.errors.DeviceError: no Vulkan device found; install")
    assert "mesa-vulkan-drivers" in error and "VKDNN_DEVICE=cpu" in error
    status, _, said = run(
        "import vkdnn as vk; print(vk.array([1.0]) + 1)", VK_DRIVER_FILES="/nowhere", VKDNN_DEVICE="cpu"
    )
    assert status == 0 and said == "[2.]\n"


def test_a_device_that_fails_the_probe_is_refused_each_time(fresh, monkeypatch):
    def broken(device):
        raise DeviceError("breaks the numerics contract in addition")

    with monkeypatch.context() as patch:
        patch.setattr(probe, "run_probe", broken)
        for _ in range(2):
            with pytest.raises(DeviceError, match="breaks the numerics contract in addition"):
                vk.device(0)
        with vk.device("cpu"):
            assert (vk.array([1.0]) + 1).item() == 2  # the reference goes on
    assert vk.device(0).kind


def test_no_compiler(fresh, monkeypatch, tmp_path, salt):
    x = vk.array([1.0, 2.0])
    y = x * salt
    with monkeypatch.context() as patch:
        patch.setenv("VKDNN_GLSLANG", str(tmp_path / "absent"))
        for make in (y.numpy, lambda: vk.jit(lambda x: x * salt)(x), lambda: print(y)):
            with pytest.raises(CompileError, match=r"VKDNN_GLSLANG is .*absent'.*glslang-tools"):
                make()
        patch.delenv("VKDNN_GLSLANG")
        patch.setenv("PATH", str(tmp_path))
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(CompileError, match="no GLSL compiler: glslangValidator is not on PATH; install"):
            y.numpy()
    assert np.array_equal(y.numpy(), np.float32([1, 2]) * np.float32(salt))  # nothing was spoilt


def test_no_compiler_when_a_device_is_opened():
    status, error, _ = run(
        "import vkdnn as vk; vk.array([1.0])", VKDNN_GLSLANG="/nonexistent", VKDNN_CACHE_DISABLE="1", VKDNN_DEVICE="0"
    )
    assert status == 1 and error.startswith("vkdnn.errors.CompileError: VKDNN_GLSLANG is '/nonexistent'")


def test_a_cache_folder_that_cannot_be_written(tmp_path):
    """One warning for each kind of entry, at the line that asked for the value; the work goes on."""
    (tmp_path / "file").write_text("")
    program = "import vkdnn as vk\nx = vk.array([1.0, 2.0])\nprint(vk.exp(x * 1.5).numpy().shape, vk.sum(x).item())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "VKDNN_CACHE_DIR": str(tmp_path / "file" / "below"), "VKDNN_DEVICE": "0"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "(2,) 3.0\n"
    warned = [line for line in done.stderr.split("\n") if "RuntimeWarning" in line]
    assert 1 <= len(warned) <= 2 and all(line.startswith("<string>:") and "VKDNN_CACHE_DIR" in line for line in warned)


def test_a_full_disk(monkeypatch, tmp_path, salt):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left on device.*going on without") as caught:
        assert (vk.array([2.0]) * salt).item() == np.float32(2) * np.float32(salt)
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p.parent.name != "locks"]  # a lock's file stays, empty
    assert [w.filename for w in caught] == [__file__] and not left


def test_a_device_lost_amid_the_work(monkeypatch, salt):
    """Kompute reports a lost device as success; the ticket that does not come back tells. What is known stays known."""
    with vk.device(0):
        step = vk.jit(lambda x: x * salt)
        x = vk.array([1.0, 2.0])
        first = step(x)
        known = first.numpy()
        y = x + salt
        with monkeypatch.context() as patch:
            patch.setattr(kompute, "_TICKET", 1)
            for make in (
                lambda: step(x),
                y.numpy,
                lambda: vk.array([3.0]),
                lambda: vk.grad(lambda x: vk.sum(x * x))(x).numpy(),
            ):
                with pytest.raises(
                    DeviceError, match=r"lost, a submission did not run to its end.*start the process again"
                ):
                    make()
        assert np.array_equal(step(x).numpy(), known)
        assert np.array_equal(y.numpy(), np.float32([1, 2]) + np.float32(salt))
        assert not tracing.active()


def test_a_program_interrupted_while_it_compiles(monkeypatch, salt):
    """An error out of progress() leaves nothing half done."""
    step = vk.jit(lambda x: vk.exp(x * salt), progress=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        step(vk.array([0.0]))
    assert step(vk.array([0.0])).item() == 1  # the shader is stored: nothing is left to report
