"""What VKDNN_AOT_ONLY=1 says of kernels that are in no bundle and not stored: the nearest, and what to do."""

from __future__ import annotations

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import CompileError
from vkdnn.shader import bundle


def scaled(number):
    return lambda x: vk.softmax(vk.exp(x) * number)


X = np.ones((4, 8), np.float32)


@pytest.fixture(autouse=True)
def only(tmp_path, monkeypatch):
    """A bundle for this device and a portable one of a function, and an empty store."""
    monkeypatch.setattr(bundle, "_tables", {})
    monkeypatch.setattr(bundle, "_provided", {})
    monkeypatch.setattr("vkdnn.shader._memo", {})
    monkeypatch.delenv("VKDNN_AOT", raising=False)
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "store"))


def refused(monkeypatch, number):
    """The error of a run that may not compile, line by line."""
    monkeypatch.setattr("vkdnn.shader._memo", {})
    monkeypatch.setattr(bundle, "_provided", {})
    monkeypatch.setenv("VKDNN_AOT_ONLY", "1")
    with pytest.raises(CompileError) as caught:
        scaled(number)(vk.array(X)).numpy()
    return str(caught.value).split("\n")


def test_a_number_that_differs_from_the_bundle(tmp_path, monkeypatch):
    vk.aot.export(scaled(16.0), [X], tmp_path / "b", device=vk.device())
    monkeypatch.setenv("VKDNN_AOT", str(tmp_path / "b"))
    first, near, hint, remedy = refused(monkeypatch, 17.0)
    assert "1 shader is neither" in first and "elements [8] by " in first
    assert near == "  the nearest in the bundle differs by: spec: 16.0 → 17.0;"
    assert "numbers such as --steps and --learning-rate are part of kernels" in hint
    assert "vkdnn aot build --device" in remedy


def test_a_portable_bundle_is_the_reason(tmp_path, monkeypatch):
    vk.aot.export(scaled(16.0), [X], tmp_path / "b")
    monkeypatch.setenv("VKDNN_AOT", str(tmp_path / "b"))
    lines = refused(monkeypatch, 16.0)
    assert lines[1].endswith("b is portable, with other arithmetic or schedules: build it with --device;")
    assert len(lines) == 3


def test_the_nearest_in_the_store(monkeypatch):
    scaled(16.0)(vk.array(X)).numpy()
    lines = refused(monkeypatch, 17.0)
    assert lines[1] == "  the nearest in the store differs by: spec: 16.0 → 17.0;" and len(lines) == 4


def test_nothing_near_is_no_line(monkeypatch):
    vk.tanh(vk.array(X)).numpy()
    assert len(refused(monkeypatch, 17.0)) == 2


def test_without_a_compiler_a_bundle_is_the_way(tmp_path, monkeypatch):
    scaled(16.0)(vk.array(X)).numpy()
    monkeypatch.setenv("VKDNN_GLSLANG", str(tmp_path / "none"))
    lines = refused(monkeypatch, 16.0)
    assert "there is no GLSL compiler here, whose version is part of the store's keys" in lines[1]
    assert "vkdnn aot build --device" in lines[1] and len(lines) == 2
