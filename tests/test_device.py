"""Choosing devices, the context, storages; forced strategies make a device of their own."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import DeviceError


def test_arrays_live_on_the_innermost_device():
    with vk.device("cpu") as cpu:
        assert vk.current_device() is cpu and vk.array([1.0]).device is cpu
        with vk.device() as other:
            assert vk.array([1.0]).device is other and other is not cpu
        assert vk.current_device() is cpu
    assert vk.current_device() is vk.device()


def test_the_reference_needs_no_vulkan(tmp_path):
    program = (
        "import vkdnn as vk, sys\n"
        "print(vk.grad(lambda x: vk.sum(vk.softmax(x) * x))(vk.array([1.0, 2.0])).numpy().tolist())\n"
        "assert 'kp' not in sys.modules\n"
    )
    environment = {
        "VKDNN_DEVICE": "cpu",
        "VK_DRIVER_FILES": "/nowhere",
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with vk.device("cpu"):
        slope = vk.grad(lambda x: vk.sum(vk.softmax(x) * x))(vk.array([1.0, 2.0])).numpy().tolist()
    assert done.stdout.strip() == str(slope)


def test_selectors(monkeypatch):
    assert vk.device("CPU") is vk.device("reference") is vk.device("cpu")
    first = vk.devices()[0]
    assert vk.device(str(first.index)) is vk.device(first.name)
    monkeypatch.setenv("VKDNN_DEVICE", "cpu")
    assert vk.device() is vk.device("cpu") and vk.current_device() is vk.device("cpu")
    with pytest.raises(DeviceError, match="no such thing"):
        vk.device("no such thing")


def test_each_choice_of_strategies_is_a_device_of_its_own(monkeypatch):
    plain = vk.device()
    monkeypatch.setenv("VKDNN_STRATEGIES", "division=remainder,subnormals=software")
    forced = vk.device()
    assert {"VKDNN_DIVIDE_REMAINDER", "VKDNN_SUBNORMALS_SOFTWARE"} <= set(forced.opened.strategies.defines)
    with forced:
        quotient = (vk.array([1.0, 2.0**-126]) / 3.0).numpy()
    assert quotient.tolist() == [float(np.float32(1) / np.float32(3)), 0]
    monkeypatch.delenv("VKDNN_STRATEGIES")
    assert vk.device() is plain


def test_each_thread_has_its_own_context():
    seen = []
    with vk.device("cpu"):
        thread = threading.Thread(target=lambda: seen.append(vk.current_device()))
        thread.start()
        thread.join()
    assert seen == [vk.device()]


def test_arrays_move_between_devices():
    with vk.device("cpu") as cpu:
        x = vk.array([1.0, 2.0]) * 2
    y = vk.array(x, device=vk.device())
    assert y.device is vk.device() and vk.array(y, device=cpu).device is cpu
    assert (y + 1).numpy().tolist() == [3, 5] and vk.array(x, device=cpu) is x


@pytest.mark.parametrize("name", ["cpu", None])
def test_threads_share_a_function(name):
    device, function, wrong = vk.device(name), vk.jit(lambda x, y: (x @ y + 1.0, vk.sum(x))), []

    def work(seed):
        rng = np.random.default_rng(seed)
        with device:
            for _ in range(40):
                a, b = rng.integers(-3, 4, (2, 3)).astype(np.float32), rng.integers(-3, 4, (3, 2)).astype(np.float32)
                product, total = function(a, b)
                if not np.array_equal(product.numpy(), a @ b + 1) or total.item() != a.sum():
                    wrong.append((a, b))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKED = """
import os
import vkdnn as vk
x = vk.array([1.0, 2.0])
(x + 1).numpy()
child = os.fork()
if not child:
    try:
        (x * 3).numpy()
    except vk.errors.DeviceError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_process_is_told_to_open_the_device_itself():
    """Drivers do not follow into a child: without the error it would wait for ever."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=True)
    assert "opened before this process was forked" in done.stdout
