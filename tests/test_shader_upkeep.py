"""Upkeep of the store: bounds by size and age, leftovers, older formats; what is not the store's own stays."""

import hashlib
import json
import os
import time
import warnings

import pytest

from vkdnn.shader import Store, upkeep
from vkdnn.shader.entry import Entry, encode
from vkdnn.shader.store import NEW, REMOVED, bytes_text, max_bytes, parse_bytes
from vkdnn.shader.upkeep import DAY, Item


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.delenv("VKDNN_CACHE_MAX_BYTES", raising=False)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # nothing here outlives the machine
    return Store(tmp_path)


def entry(number, size=1000):
    """Of incompressible contents."""
    noise = b"".join(hashlib.sha256(f"{number} {k}".encode()).digest() for k in range(size // 32 + 1))
    return Entry("shaders", {"spec": f"number {number}"}, {"label": str(number)}, {"spirv": noise[:size]})


def fill(store, numbers, days_ago=lambda number: 0.0, size=1000):
    """Entries, each last used so many days ago; their keys."""
    keys = []
    for number in numbers:
        made = entry(number, size)
        assert store.save(made)
        used = time.time() - days_ago(number) * DAY
        os.utime(store.path(made.key), (used, used))
        keys.append(made.key)
    return keys


def kept(store):
    return {item.key for item in upkeep.items(store)}


def cap(monkeypatch, store, share):
    """Sets the cap to a share of what the store has."""
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", str(int(share * sum(i.bytes for i in upkeep.items(store)))))


def removed(store):
    return [json.loads(line) for line in (store.base / REMOVED).read_text().splitlines()]


# ---- size and age


def test_beyond_the_cap_the_least_recently_used_go(store, monkeypatch):
    keys = fill(store, range(40), days_ago=lambda number: (number * 7) % 40)
    by_use = [key for _, key in sorted((number * 7 % 40, key) for number, key in enumerate(keys))]
    cap(monkeypatch, store, 0.5)
    upkeep.after_storing(store, keys[-1][:2])
    assert kept(store) == set(by_use[:18])  # 0.9 of the cap, so that the next entry does not evict again
    assert {line["key"] for line in removed(store)} == set(by_use[18:])
    assert {(line["kind"], line["reason"]) for line in removed(store)} == {("shaders", upkeep.evicted(max_bytes()))}
    upkeep.after_storing(store, keys[-1][:2])
    assert kept(store) == set(by_use[:18])


def test_what_was_read_lately_stays(store, monkeypatch):
    keys = fill(store, range(10), days_ago=lambda number: 10 + number)
    store.load_key(keys[9])
    cap(monkeypatch, store, 0.35)
    upkeep.after_storing(store, keys[0][:2])
    assert kept(store) == {keys[9], keys[0], keys[1]}


def test_below_the_cap_nothing_goes(store, monkeypatch):
    keys = fill(store, range(20), days_ago=lambda number: number)
    cap(monkeypatch, store, 1.0)
    upkeep.after_storing(store, keys[0][:2])
    assert kept(store) == set(keys) and not (store.base / REMOVED).exists()


def test_a_cap_below_one_entry_leaves_none(store, monkeypatch):
    keys = fill(store, range(3))
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "10")
    upkeep.after_storing(store, keys[0][:2])
    assert kept(store) == set()


def test_a_large_store_is_sampled_before_it_is_counted(store, monkeypatch):
    """Seen with few entries: as if one a shard were many."""
    monkeypatch.setattr(upkeep, "_MANY", 100)
    keys = fill(store, range(800), size=40)
    shard = next(key[:2] for key in keys)
    calls = []
    real = upkeep.items
    monkeypatch.setattr(upkeep, "items", lambda store: calls.append(1) or real(store))
    for share, counted in ((10.0, False), (2.0, False), (0.7, True)):
        total = sum(i.bytes for i in real(store))
        monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", str(int(share * total)))
        calls.clear()
        upkeep.after_storing(store, shard)
        assert bool(calls) == counted, share
    assert 0.5 < len(kept(store)) / 800 < 0.7


def test_what_was_not_used_for_long_goes_first(store, monkeypatch):
    keys = fill(store, range(10), days_ago=lambda number: 200 if number < 4 else 1)
    cap(monkeypatch, store, 1.5)
    upkeep.after_storing(store, keys[0][:2])
    assert kept(store) == set(keys[4:])
    assert {line["reason"] for line in removed(store)} == {"not used for long"}


def test_expired_and_surplus_choose_and_remove_nothing():
    now = time.time()
    listed = [Item(f"/nowhere/{n}", 100, now - n * DAY) for n in range(10)]
    assert upkeep.expired(listed, 6.5) == listed[7:]
    assert upkeep.expired([], 1) == upkeep.surplus([], 0) == upkeep.surplus(listed, 1000) == []
    assert sorted(upkeep.surplus(listed, 999)) == listed[9:]
    assert sorted(upkeep.surplus(listed, 999, 0.5), key=lambda i: i.key) == listed[4:]  # 0.5 of 999 holds four
    assert len(upkeep.surplus(listed, 0)) == 10
    same = [Item(f"/nowhere/{n}", 100, now) for n in range(10)]
    assert upkeep.surplus(same, 500) == upkeep.surplus(same[::-1], 500)


def test_a_stamp_from_the_future_is_corrected_by_a_use(store):
    (key,) = fill(store, [1], days_ago=lambda number: -400)
    store.load_key(key)
    assert abs(store.path(key).stat().st_mtime - time.time()) < 60


def test_a_dry_run_removes_nothing_and_counts_the_same(store):
    keys = fill(store, range(10), days_ago=lambda number: number)
    doomed = upkeep.expired(upkeep.items(store), 4.5)
    would = upkeep.remove(store, doomed, "test", dry_run=True)
    assert kept(store) == set(keys) and not (store.base / REMOVED).exists()
    did = upkeep.remove(store, doomed, "test")
    assert would == did and did.entries == 5 and did.bytes == sum(item.bytes for item in doomed)
    assert kept(store) == set(keys[:5])


def test_a_file_that_stays_does_not_keep_the_others(store, monkeypatch):
    keys = fill(store, range(10), days_ago=lambda number: number)
    unlink = os.unlink

    def refusing(path, *rest, **keywords):
        if os.fspath(path).endswith(keys[9]):
            raise PermissionError(1, "Operation not permitted")
        return unlink(path, *rest, **keywords)

    monkeypatch.setattr(os, "unlink", refusing)
    with pytest.raises(PermissionError):
        upkeep.remove(store, [i for i in upkeep.items(store) if i.key in keys[8:]], "test")
    assert kept(store) == set(keys) - {keys[8]}
    cap(monkeypatch, store, 0.5)
    upkeep.after_storing(store, keys[0][:2])
    assert kept(store) == {*keys[:4], keys[9]}


def test_two_that_evict_at_once(store, monkeypatch):
    """Both have listed the same; what is gone already is neither an error nor counted twice."""
    fill(store, range(30), days_ago=lambda number: number)
    cap(monkeypatch, store, 0.5)
    doomed = upkeep.surplus(upkeep.items(store), int(os.environ["VKDNN_CACHE_MAX_BYTES"]))
    first = upkeep.remove(store, doomed[:10], "one")
    second = upkeep.remove(store, doomed, "two")
    assert first.entries == 10 and first.entries + second.entries == len(doomed) == len(removed(store))


def test_two_processes_evict_at_once(store, monkeypatch):
    keys = fill(store, range(400), days_ago=lambda number: number / 10, size=200)
    cap(monkeypatch, store, 0.5)
    children = []
    for _ in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            status = 1
            try:
                upkeep.after_storing(store, keys[0][:2])
                status = 0
            finally:
                os._exit(status)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
    left = kept(store)
    assert left == set(keys[: len(left)]) and 150 < len(left) <= 180


# ---- leftovers, quarantine, damage


def test_leftovers_are_old_files_that_were_being_written(store):
    (key,) = fill(store, [1])
    old, young = (store.path(key).parent / f"{NEW}{name}" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half")
    hours_ago = time.time() - 7200
    os.utime(old, (hours_ago, hours_ago))
    assert [item.path for item in upkeep.leftovers(store.root)] == [old]
    assert kept(store) == {key}


def test_eviction_sweeps_leftovers(store, monkeypatch):
    keys = fill(store, range(3))
    old = store.path(keys[0]).parent / f"{NEW}old"
    old.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    cap(monkeypatch, store, 0.9)
    upkeep.after_storing(store, keys[0][:2])
    assert not old.exists()


def test_quarantine_is_listed_and_is_no_part_of_the_store(store):
    keys = fill(store, range(3))
    store.path(keys[1]).write_bytes(b"damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert store.load_key(keys[1]) is None
    (item,) = upkeep.quarantined(store.root)
    assert item.path.read_bytes() == b"damaged" and item.key == f"shaders-{keys[1]}"
    assert kept(store) == {keys[0], keys[2]}
    assert [line["reason"] for line in removed(store)] == ["damaged"]


def test_check_finds_every_kind_of_damage_and_changes_nothing(store):
    keys = fill(store, range(6))
    whole = store.path(keys[5]).read_bytes()
    store.path(keys[0]).write_bytes(b"")
    store.path(keys[1]).write_bytes(store.path(keys[1]).read_bytes()[:-1])
    store.path(keys[2]).write_bytes(whole)
    seen = []
    found = {item.key: text for item, text in upkeep.check(store, seen.append)}
    assert found.keys() == set(keys[:3]) and seen == list(range(1, 7))
    assert "first line" in found[keys[0]] and "checksum" in found[keys[1]] and "another's key" in found[keys[2]]
    assert store.path(keys[2]).read_bytes() == whole and kept(store) == set(keys)


def test_an_empty_store(store):
    assert list(upkeep.items(store)) == upkeep.leftovers(store.root) == upkeep.quarantined(store.root) == []
    assert upkeep.old_formats(store.root) == upkeep.check(store) == []
    assert upkeep.remove_old_formats(store.root) == upkeep.remove(store, [], "test") == upkeep.Removed()
    upkeep.after_storing(store, "00")
    assert list(store.root.iterdir()) == []


# ---- what is not the store's own


KEY = "ab" + "0" * 62
FIRST = b"vkdnn store entry\n{}\n"  # how an entry of the first format begins


def put(path, data=FIRST, days_ago=100.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    for each in (path, path.parent):
        os.utime(each, (time.time() - days_ago * DAY,) * 2)
    return path


def test_old_formats_are_removed_with_the_folders_they_leave_empty(store):
    for name in (f"shaders/ab/{KEY}.spv", f"verdicts/ab/{KEY}.json", f"v1/shaders/ab/{KEY}"):
        put(store.root / name)
    keys = fill(store, range(2))
    would = upkeep.remove_old_formats(store.root, dry_run=True)
    assert would.entries == len(upkeep.old_formats(store.root)) == 3
    assert upkeep.remove_old_formats(store.root) == would
    assert [path.name for path in store.root.iterdir()] == ["v2"] and kept(store) == set(keys)


def test_what_users_keep_beside_stays(store):
    own = [
        put(store.root / "shaders" / "toon.glsl", b"mine"),
        put(store.root / "shaders" / "ab" / "notes.txt", b"mine"),
        put(store.root / "shaders" / "ab" / f"{KEY}.spv", b"\x03\x02\x23\x07 another program's"),
        put(store.root / "v1" / "blobs" / "ab" / KEY, b"another program's, which names files by hashes"),
        put(store.root / "v1" / "thesis.tex", b"mine"),
        put(store.root / "v10" / "shaders" / "ab" / KEY),  # of a vkdnn to come
        put(store.root / "v0.1" / "shaders" / "ab" / KEY),
        put(store.root / "v2" / "shaders" / "ab" / "notes.txt", b"mine"),
        put(store.root / "v2" / "shaders" / "notes.txt", b"mine"),
        put(store.root / "notes.txt", b"mine"),
    ]
    put(store.root / "shaders" / "ac" / f"{KEY}.spv")
    assert upkeep.remove_old_formats(store.root).entries == 1
    assert all(path.is_file() for path in own) and not (store.root / "shaders" / "ac").exists()
    assert kept(store) == set()
    (store.root / "other").mkdir()
    link = store.root / "v2" / "shaders" / "ab" / KEY
    link.symlink_to(own[0])
    assert kept(store) == set() and upkeep.after_storing(store, "ab") is None and own[0].exists()


def test_old_formats_go_by_themselves_only_when_abandoned(store):
    """An older vkdnn may still use them."""
    fill(store, [1])
    old = put(store.root / "shaders" / "ab" / f"{KEY}.spv", days_ago=1)
    upkeep.after_storing(store, "ab")
    assert old.exists()
    put(old, days_ago=100)
    upkeep.after_storing(store, "ab")
    assert not old.exists()


def test_an_entry_of_another_kind_is_not_evicted(store, monkeypatch):
    keys = fill(store, range(5))
    verdicts = Store(store.root, "verdicts")
    verdict = Entry("verdicts", {"device": "x"}, {}, {"verdict": b"{}"})
    verdicts.save(verdict)
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "1")
    upkeep.after_storing(store, keys[0][:2])
    assert kept(store) == set() and verdicts.load_key(verdict.key) is not None


def test_sizes_are_those_of_the_files(store):
    keys = fill(store, range(3))
    assert {i.key: i.bytes for i in upkeep.items(store)} == {k: store.path(k).stat().st_size for k in keys}
    assert store.path(keys[0]).read_bytes() == encode(entry(0))


@pytest.mark.parametrize("text", ["0 bytes", "1 byte", "1023 bytes", "1.5 KiB", "2.0 MiB", "2.0 GiB", "1.0 TiB"])
def test_sizes_are_told_in_the_units_in_which_they_are_given(text):
    assert bytes_text(parse_bytes("size", text.removesuffix("ytes").removesuffix("yte"))) == text


def test_links_and_the_files_of_others_are_left_alone(store, tmp_path):
    others = tmp_path / "others"
    others.mkdir()
    for name in (f"{0xAB:064x}", "ab" + "0" * 62, ".new-old"):
        (others / name).write_text("a thesis")
        os.utime(others / name, (1e9, 1e9))
    store.folder.mkdir(parents=True, exist_ok=True)
    (store.folder / "ab").symlink_to(others)
    (store.folder / "zz").mkdir()
    (store.folder / "zz" / ("0" * 64)).write_text("")
    (store.base / upkeep.QUARANTINE).mkdir(exist_ok=True)
    (store.base / upkeep.QUARANTINE / "thesis.txt").write_text("a thesis")
    assert list(upkeep.items(store)) == upkeep.leftovers(store.root) == upkeep.quarantined(store.root) == []
