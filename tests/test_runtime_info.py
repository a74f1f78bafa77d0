"""Listing and choosing devices, and the strategies that the environment forces."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from vkdnn.errors import ArgumentError, DeviceError
from vkdnn.runtime import DeviceInfo, Limits, Strategies, choose, list_devices
from vkdnn.runtime.info import forced_strategies

LIMITS = Limits((65535, 65535, 65535), (1024, 1024, 64), 1024, 32768, 2**27, 128, 16, 2**34)
SOFTWARE = DeviceInfo(
    0, "llvmpipe (LLVM 19)", "software", 0x10005, 0, "llvmpipe", "25.0.7", "1.4.305", "00" * 16, LIMITS
)
INTEGRATED = replace(SOFTWARE, index=1, name="Radeon 780M", kind="integrated", driver="radv")
DISCRETE = replace(SOFTWARE, index=2, name="NVIDIA H200", kind="discrete", driver="NVIDIA")
SECOND = replace(DISCRETE, index=3)
ALL = (SOFTWARE, INTEGRATED, DISCRETE, SECOND)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv("VKDNN_DEVICE", raising=False)


def test_the_devices_here_are_described():
    devices = list_devices()
    assert [info.index for info in devices] == list(range(len(devices)))
    for info in devices:
        assert info.name and info.driver and len(info.uuid) == 32
        assert info.kind in ("discrete", "integrated", "virtual", "software", "other")
        limits = info.limits
        assert min(limits.max_workgroup_count) >= 65535 and limits.max_workgroup_invocations >= 128
        assert limits.shared_memory_bytes >= 16384 and limits.push_constant_bytes >= 128
        assert 2**27 <= limits.max_buffer_bytes <= 2**32 - 4 and limits.max_buffer_bytes % 4 == 0
        assert limits.memory_bytes >= 2**27


def test_the_best_kind_is_the_default():
    assert choose(devices=ALL) is DISCRETE
    assert choose(devices=(SOFTWARE, INTEGRATED)) is INTEGRATED
    assert choose(devices=(SOFTWARE,)) is SOFTWARE


@pytest.mark.parametrize(
    ("selector", "expected"),
    [("0", SOFTWARE), ("3", SECOND), ("software", SOFTWARE), ("h200", DISCRETE), ("Integrated", INTEGRATED)],
)
def test_a_selector_is_an_index_a_kind_or_part_of_a_name(selector, expected, monkeypatch):
    assert choose(selector, ALL) is expected
    monkeypatch.setenv("VKDNN_DEVICE", selector)
    assert choose(devices=ALL) is expected
    assert choose("radeon", ALL) is INTEGRATED


def test_a_wrong_selector_lists_what_there_is(monkeypatch):
    with pytest.raises(DeviceError, match=r"selector '7' names no .*; choose one of: .*1: Radeon"):
        choose("7", ALL)
    monkeypatch.setenv("VKDNN_DEVICE", "arc")
    with pytest.raises(DeviceError, match="VKDNN_DEVICE 'arc' names no Vulkan device"):
        choose(devices=ALL)


def test_no_device_says_what_to_install():
    with pytest.raises(DeviceError, match=r"no Vulkan device found; .*mesa-vulkan-drivers"):
        choose(devices=())


def test_no_driver_is_an_empty_list():
    code = "from vkdnn.runtime import list_devices; print(list_devices())"
    environment = {**os.environ, "VK_DRIVER_FILES": "/nowhere.json"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "()\n", done.stderr


def test_no_loader_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vulkan", None)
    with pytest.raises(DeviceError, match=r"no Vulkan loader .*libvulkan1"):
        list_devices()


def test_strategies_have_a_canonical_text():
    assert Strategies().text == "subnormals=software,division=remainder,square_root=remainder"
    native = Strategies("native", "native", "native")
    assert native.text == "subnormals=native,division=native,square_root=native"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        ("subnormals=software", {"subnormals"}),
        (" division = remainder ,square_root=remainder, ", {"division", "square_root"}),
        ("subnormals=native,division=native", set()),
        (Strategies().text, {"subnormals", "division", "square_root"}),
    ],
)
def test_forced_strategies(text, expected, monkeypatch):
    assert forced_strategies(text) == expected
    monkeypatch.setenv("VKDNN_STRATEGIES", text)
    assert forced_strategies() == expected


@pytest.mark.parametrize("text", ["sqrt=remainder", "division=software", "subnormals", "native"])
def test_unknown_strategies_are_refused(text):
    with pytest.raises(ArgumentError, match="expected a comma-separated choice of: subnormals=software,"):
        forced_strategies(text)
