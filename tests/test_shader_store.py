"""The on-disk store: whole entries or none, whatever happens to the file or the folder."""

import json
import os
import threading
import time
import warnings

import pytest

from vkdnn.errors import StoreError
from vkdnn.shader import ShaderRequest, Store, compile_count, compile_many
from vkdnn.shader.entry import DamagedEntryError, Entry, decode, decode_header, encode, key_of, short
from vkdnn.shader.store import cache_folder, default_store, max_bytes, parse_bytes

COMPONENTS = {"spec": "softmax\nn=128", "glsl": "void main() {}", "compiler": "12.0", "strategies": "native"}
CONTENTS = {"spirv": bytes(range(256)) * 4 + b"\nwith a newline", "glsl": b"void main() {}", "nothing": b""}
ENTRY = Entry("shaders", COMPONENTS, {"label": "softmax", "seconds": 0.25}, CONTENTS)


@pytest.fixture(autouse=True)
def each_test_is_warned_anew(monkeypatch):
    monkeypatch.setattr("vkdnn.shader.store._warned", set())


def test_an_entry_comes_back(tmp_path):
    store = Store(tmp_path / "made on first use")
    assert store.load(COMPONENTS) is None
    assert store.save(ENTRY)
    entry = store.load(COMPONENTS)
    assert entry.contents == CONTENTS and entry.record == ENTRY.record and entry.key == ENTRY.key
    assert entry.components == short(COMPONENTS)
    assert store.save(Entry("shaders", COMPONENTS))
    assert store.load(COMPONENTS).contents == {}


def test_long_components_are_kept_by_their_hash():
    kept = short({"short": "12.0", "long": "x" * 1000, "lines": "a\nb"})
    assert kept["short"] == "12.0" and kept["long"].startswith("sha256:") and kept["lines"].startswith("sha256:")
    assert short(kept) == kept
    assert key_of("shaders", COMPONENTS) == key_of("shaders", short(COMPONENTS))


def test_a_header_is_read_from_the_beginning_of_a_file():
    data = encode(ENTRY)
    header = decode_header(data[:2000])
    assert (header.components, header.record, header.contents) == (short(COMPONENTS), ENTRY.record, {})
    assert decode_header(data[:100]) is None and decode_header(b"") is None and decode_header(b"x" * 3000) is None


def test_a_checksum_that_fits_does_not_excuse_a_wrong_key():
    """A file made by another program may carry a checksum of its own nonsense."""
    from vkdnn.shader.entry import digest

    line = encode(ENTRY).split(b"\n")[1]
    for change in ({"key": "0" * 64}, {"contents": "?"}, {"components": {"spec": "other"}}):
        rest = json.dumps({**json.loads(line), **change}).encode() + b"\n"
        with pytest.raises(DamagedEntryError):
            decode(b"vkdnn entry 2 " + digest(rest).encode() + b"\n" + rest)


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_is_part_of_the_key(tmp_path, name):
    store = Store(tmp_path)
    store.save(ENTRY)
    assert store.load({**COMPONENTS, name: "another"}) is None
    assert Store(tmp_path, "verdicts").load(COMPONENTS) is None


def test_text_moved_between_components_is_another_key():
    assert key_of("s", {"a": "xy", "b": "z"}) != key_of("s", {"a": "x", "b": "yz"})
    assert key_of("s", {"a": "x", "b": "y"}) != key_of("s", {"b": "y", "a": "x"})
    assert key_of("s", COMPONENTS) != key_of("t", COMPONENTS)


def damages(data):
    yield "empty", b""
    yield "header only", data[: data.index(b"\n", 20) + 1]
    for cut in (1, 10, 30, len(data) // 2, len(data) - 1):
        yield f"cut after {cut} bytes", data[:cut]
    for place in (0, 25, len(data) // 3, len(data) - 300, len(data) - 1):
        yield f"bit flipped in byte {place}", data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    yield "longer", data + b"\0"
    yield "zeros of the right length", bytes(len(data))


def test_no_damaged_entry_is_ever_returned(tmp_path, monkeypatch):
    """It is set aside, with one warning, and does not come back."""
    store = Store(tmp_path)
    store.save(ENTRY)
    path = store.path(ENTRY.key)
    data = path.read_bytes()
    for name, damaged in damages(data):
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True):
            assert store.load(COMPONENTS) is None, name
        assert not path.exists(), name
        assert (tmp_path / "v2" / "quarantine" / f"shaders-{ENTRY.key}").read_bytes() == damaged
    path.write_bytes(data[:-1])
    monkeypatch.setattr("vkdnn.shader.store._warned", set())
    with pytest.warns(RuntimeWarning, match="a damaged entry .* was set aside in .*quarantine; it is made again"):
        store.load(COMPONENTS)


def test_every_single_flipped_bit_is_noticed():
    data = encode(ENTRY)
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
        with pytest.raises(DamagedEntryError):
            decode(damaged)


def test_a_whole_entry_that_takes_the_place_of_a_damaged_one_is_kept(tmp_path, monkeypatch):
    """Another process mends the entry between our reading it and our setting it aside."""
    store = Store(tmp_path)
    store.save(ENTRY)
    path = store.path(ENTRY.key)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    replace = os.replace

    def mended_meanwhile(source, target):
        if "quarantine" in str(target):
            path.write_bytes(whole)
        return replace(source, target)

    monkeypatch.setattr(os, "replace", mended_meanwhile)
    assert store.load(COMPONENTS).contents == CONTENTS
    assert path.read_bytes() == whole


def test_an_entry_of_another_key_is_not_returned(tmp_path):
    store = Store(tmp_path)
    other = Entry("shaders", {**COMPONENTS, "glsl": "another"}, {}, CONTENTS)
    store.save(other)
    store.path(ENTRY.key).parent.mkdir(parents=True, exist_ok=True)
    os.replace(store.path(other.key), store.path(ENTRY.key))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert store.load(COMPONENTS) is None


def test_an_entry_of_another_kind_is_not_returned(tmp_path):
    verdicts = Store(tmp_path, "verdicts")
    verdicts.save(Entry("verdicts", COMPONENTS))
    store = Store(tmp_path)
    store.path(ENTRY.key).parent.mkdir(parents=True)
    os.replace(verdicts.path(key_of("verdicts", COMPONENTS)), store.path(ENTRY.key))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert store.load(COMPONENTS) is None


def test_a_use_is_stamped(tmp_path):
    store = Store(tmp_path)
    store.save(ENTRY)
    path = store.path(ENTRY.key)
    os.utime(path, (1e9, 1e9))
    store.load(COMPONENTS)
    assert time.time() - path.stat().st_mtime < 60


def test_one_at_a_time_makes_an_entry(tmp_path):
    store, order = Store(tmp_path), []
    with store.locked(ENTRY.key) as first:
        with Store(tmp_path).locked(ENTRY.key, 0) as second:
            assert first and not second

        def wait():
            with Store(tmp_path).locked(ENTRY.key) as held:
                order.append(("waited", held))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        order.append("released")
    thread.join()
    assert order == ["released", ("waited", True)]


def test_where_no_lock_can_be_had_nobody_waits(tmp_path):
    (tmp_path / "file").write_text("")
    with Store(tmp_path / "file" / "below").locked(ENTRY.key, 60) as held:
        assert held


def test_a_pipe_in_the_place_of_an_entry_is_not_waited_for(tmp_path):
    store = Store(tmp_path)
    store.path(ENTRY.key).parent.mkdir(parents=True)
    os.mkfifo(store.path(ENTRY.key))
    assert store.load(COMPONENTS) is None
    assert store.save(ENTRY) and store.load(COMPONENTS).contents == CONTENTS


def test_a_user_without_a_home_has_no_store(monkeypatch):
    monkeypatch.delenv("VKDNN_CACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/.cache/{name}")
    assert cache_folder() is None and default_store("shaders") is None


def test_sizes_as_people_write_them(monkeypatch):
    assert [parse_bytes("x", text) for text in ("100", "1K", "2.5M", "3 GiB", "1tb")] == [
        100, 1024, 5 * 2**19, 3 * 2**30, 2**40,
    ]  # fmt: skip
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "a lot")
    with pytest.raises(StoreError, match="VKDNN_CACHE_MAX_BYTES is 'a lot', expected a number of bytes"):
        max_bytes()


def test_a_damaged_shader_is_compiled_again_and_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VKDNN_CACHE_DISABLE", raising=False)
    monkeypatch.setattr("vkdnn.shader._memo", {})
    request = ShaderRequest.of_glsl("#version 450\nvoid main() {}\n", "empty", "native", "empty")
    (spirv,) = compile_many([request])
    (path,) = tmp_path.glob("v2/shaders/*/*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    monkeypatch.setattr("vkdnn.shader._memo", {})
    before = compile_count()
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert compile_many([request]) == [spirv]
    assert compile_count() == before + 1
    assert decode(path.read_bytes()).contents == decode(whole).contents


def test_nothing_is_left_beside_the_entry(tmp_path, monkeypatch):
    store = Store(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert not store.save(ENTRY)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert store.load(COMPONENTS) is None


def test_a_folder_that_cannot_be_made_warns_once(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "below")
    with pytest.warns(RuntimeWarning, match="cannot store entries .*VKDNN_CACHE_DIR.*VKDNN_CACHE_DISABLE=1"):
        assert not store.save(ENTRY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.save(ENTRY)
        assert store.load(COMPONENTS) is None


def test_a_folder_in_the_place_of_an_entry(tmp_path):
    store = Store(tmp_path)
    path = store.path(ENTRY.key)
    path.mkdir(parents=True)
    assert store.load(COMPONENTS) is None
    assert store.save(ENTRY) and store.load(COMPONENTS).contents == CONTENTS  # an empty one makes place
    path.unlink()
    (path / "kept").mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="cannot store entries") as caught:
        assert not store.save(ENTRY)
    assert store.load(COMPONENTS) is None and (path / "kept").is_dir() and caught[0].filename == __file__
