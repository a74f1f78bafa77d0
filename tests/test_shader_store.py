"""The on-disk store: whole entries or none, whatever happens to the file or the folder."""

import os
import warnings

import pytest

from vkdnn.shader import ShaderRequest, compile_count, compile_many
from vkdnn.shader.store import ShaderStore

COMPONENTS = {"spec": "softmax n=128", "glsl": "void main() {}", "compiler": "12.0", "strategies": "native"}
PAYLOAD = bytes(range(256)) * 4 + b"\nwith a newline"


def test_an_entry_comes_back(tmp_path):
    store = ShaderStore(tmp_path / "made on first use")
    assert store.load(COMPONENTS) is None
    assert store.save(COMPONENTS, PAYLOAD)
    assert store.load(COMPONENTS) == PAYLOAD
    assert store.save(COMPONENTS, b"")
    assert store.load(COMPONENTS) == b""


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_is_part_of_the_key(tmp_path, name):
    store = ShaderStore(tmp_path)
    store.save(COMPONENTS, PAYLOAD)
    assert store.load({**COMPONENTS, name: "another"}) is None


def test_text_moved_between_components_is_another_key():
    assert ShaderStore.key({"a": "xy", "b": "z"}) != ShaderStore.key({"a": "x", "b": "yz"})
    assert ShaderStore.key({"a": "x", "b": "y"}) != ShaderStore.key({"b": "y", "a": "x"})


def damages(data):
    yield "empty", b""
    yield "header only", data[: data.index(b"\n", 20) + 1]
    for cut in (1, 10, 30, len(data) // 2, len(data) - 1):
        yield f"cut after {cut} bytes", data[:cut]
    for place in (0, 25, len(data) // 3, len(data) - 300, len(data) - 1):
        yield f"bit flipped in byte {place}", data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    yield "longer", data + b"\0"
    yield "zeros of the right length", bytes(len(data))


def test_no_damaged_entry_is_ever_returned(tmp_path):
    store = ShaderStore(tmp_path)
    store.save(COMPONENTS, PAYLOAD)
    path = store.path(COMPONENTS)
    data = path.read_bytes()
    assert store.load(COMPONENTS) == PAYLOAD
    for name, damaged in damages(data):
        path.write_bytes(damaged)
        assert store.load(COMPONENTS) is None, name


def test_an_entry_of_another_key_is_not_returned(tmp_path):
    store = ShaderStore(tmp_path)
    other = {**COMPONENTS, "glsl": "another"}
    store.save(other, PAYLOAD)
    store.path(COMPONENTS).parent.mkdir(parents=True, exist_ok=True)
    os.replace(store.path(other), store.path(COMPONENTS))
    assert store.load(COMPONENTS) is None


def test_a_damaged_shader_is_compiled_again_and_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VKDNN_CACHE_DISABLE", raising=False)
    monkeypatch.setattr("vkdnn.shader._memo", {})
    request = ShaderRequest("#version 450\nvoid main() {}\n", "empty", "native", "empty")
    (spirv,) = compile_many([request])
    (path,) = tmp_path.glob("shaders/*/*.spv")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    monkeypatch.setattr("vkdnn.shader._memo", {})
    before = compile_count()
    assert compile_many([request]) == [spirv]
    assert compile_count() == before + 1
    assert path.read_bytes() == whole


def test_nothing_is_left_beside_the_entry(tmp_path, monkeypatch):
    store = ShaderStore(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert not store.save(COMPONENTS, PAYLOAD)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert store.load(COMPONENTS) is None


def test_a_folder_that_cannot_be_made_warns_once(tmp_path):
    (tmp_path / "file").write_text("")
    store = ShaderStore(tmp_path / "file" / "below")
    with pytest.warns(RuntimeWarning, match="cannot store entries .*VKDNN_CACHE_DIR.*VKDNN_CACHE_DISABLE=1"):
        assert not store.save(COMPONENTS, PAYLOAD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.save(COMPONENTS, PAYLOAD)
        assert store.load(COMPONENTS) is None


def test_a_folder_in_the_place_of_an_entry(tmp_path):
    store = ShaderStore(tmp_path)
    path = store.path(COMPONENTS)
    path.mkdir(parents=True)
    assert store.load(COMPONENTS) is None
    assert store.save(COMPONENTS, PAYLOAD) and store.load(COMPONENTS) == PAYLOAD  # an empty one makes place
    path.unlink()
    (path / "kept").mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="cannot store entries") as caught:
        assert not store.save(COMPONENTS, PAYLOAD)
    assert store.load(COMPONENTS) is None and (path / "kept").is_dir() and caught[0].filename == __file__
