"""Bundles are written whole, or not at all: full disks, killed processes, readers in between."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import zipfile

import pytest

from vkdnn.aot import write
from vkdnn.aot.write import write_bundle
from vkdnn.shader.bundle import BundleError

FILES = {"kernels/a.spv": bytes(1000), "manifest.json": b"{}"}
NAMES = ("b", "b.zip")


def content(place):
    """The files of a bundle by name; None where there is none."""
    if not place.exists():
        return None
    if place.is_dir():
        return {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()}
    with zipfile.ZipFile(place) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_there_and_nothing_else(tmp_path, name):
    write_bundle(tmp_path / name, FILES)
    assert content(tmp_path / name) == FILES
    write_bundle(tmp_path / name, {"manifest.json": b"{1}"}, overwrite=True)
    assert content(tmp_path / name) == {"manifest.json": b"{1}"}
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_and_what_was_there(tmp_path, monkeypatch, name, call):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(write.os, call, full)
        with pytest.raises(BundleError, match="No space left"):
            write_bundle(tmp_path / name, FILES)
    assert os.listdir(tmp_path) == []
    write_bundle(tmp_path / name, FILES)
    with monkeypatch.context() as patch:
        patch.setattr(write.os, "fsync", full)
        with pytest.raises(BundleError, match="free some space"):
            write_bundle(tmp_path / name, {"manifest.json": b"new"}, overwrite=True)
    assert content(tmp_path / name) == FILES and os.listdir(tmp_path) == [name]


def test_too_little_space_is_seen_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(write.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(BundleError, match="no space left"):
        write_bundle(tmp_path / "b", FILES)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
from vkdnn.aot import write
name, call, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
real, left = getattr(write.os, call), [number]
def die(*arguments):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
setattr(write.os, call, die)
write.write_bundle(name, {"kernels/a.spv": bytes(1000), "manifest.json": b"new"}, overwrite=True)
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", [False, True], ids=["new", "over"])
def test_a_killed_process_leaves_the_old_or_the_new(tmp_path, name, before):
    place, old = tmp_path / name, {"manifest.json": b"old"}
    for call, number in (("fsync", 1), ("fsync", 2), ("replace", 1)):
        if before:
            write_bundle(place, old, overwrite=True)
        done = subprocess.run([sys.executable, "-c", KILLED, str(place), call, str(number)], check=False)
        assert done.returncode in (-signal.SIGKILL, 0)
        assert content(place) in ((old if before else None), {**FILES, "manifest.json": b"new"})
        if done.returncode == 0:
            assert call == "replace"  # a folder that is there is exchanged instead
    write_bundle(place, FILES, overwrite=True)
    assert os.listdir(tmp_path) == [name]  # what the killed ones left is gone


def test_a_reader_finds_a_whole_folder_at_any_moment(tmp_path):
    versions = [{"manifest.json": bytes([k]) * 10, "kernels/a.spv": bytes([k]) * 10} for k in range(2)]
    write_bundle(tmp_path / "b", versions[0])
    stop, seen = threading.Event(), []

    def read():
        while not stop.is_set():
            seen.append((tmp_path / "b" / "manifest.json").exists())

    reader = threading.Thread(target=read)
    reader.start()
    for k in range(20):
        write_bundle(tmp_path / "b", versions[k % 2], overwrite=True)
    stop.set()
    reader.join()
    assert seen and all(seen)


def test_without_an_exchange_of_names_the_folder_is_still_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "_exchange", lambda a, b: False)
    write_bundle(tmp_path / "b", {"manifest.json": b"old"})
    write_bundle(tmp_path / "b", FILES, overwrite=True)
    assert content(tmp_path / "b") == FILES and os.listdir(tmp_path) == ["b"]
