"""What is done to a store while processes use it: each attack takes the folder and gives what undoes it, or None.

An attack must work by itself, as another program or a failing disk would: it never goes through vkdnn.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

Undo = Callable[[], None] | None
Attack = Callable[[Path, random.Random], Undo]
ATTACKS: dict[str, Attack] = {}
ON_MOUNT: set[str] = set()  # those for which the folder must be a file system of its own


def attack(name: str, on_mount: bool = False) -> Callable[[Attack], Attack]:
    """Registers an attack under a name."""

    def register(function: Attack) -> Attack:
        ATTACKS[name] = function
        if on_mount:
            ON_MOUNT.add(name)
        return function

    return register


def entries(folder: Path) -> list[Path]:
    """Files of entries, of every kind."""
    return [path for path in folder.glob("v*/*/??/*") if path.is_file()]


def _some(folder: Path, rng: random.Random, most: int = 8) -> list[Path]:
    found = entries(folder)
    return rng.sample(found, min(len(found), rng.randint(1, most)))


def _damage(folder: Path, rng: random.Random, change: Callable[[bytes], bytes]) -> None:
    """Changes files where they lie, as a disk would, not through a new file."""
    for path in _some(folder, rng):
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            data = change(file.read())
            file.seek(0)
            file.write(data)
            file.truncate()


@attack("truncate")
def _truncate(folder: Path, rng: random.Random) -> Undo:
    _damage(folder, rng, lambda data: data[: rng.randrange(len(data) + 1)])
    return None


@attack("flip a bit")
def _flip(folder: Path, rng: random.Random) -> Undo:
    def change(data: bytes) -> bytes:
        place = rng.randrange(len(data)) if data else 0
        return (
            data[:place] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[place : place + 1]) + data[place + 1 :]
        )

    _damage(folder, rng, change)
    return None


@attack("empty")
def _empty(folder: Path, rng: random.Random) -> Undo:
    _damage(folder, rng, lambda data: b"")
    return None


@attack("zeros in a block")
def _zeros(folder: Path, rng: random.Random) -> Undo:
    def change(data: bytes) -> bytes:
        place = rng.randrange(len(data) + 1)
        return data[:place] + bytes(len(data[place : place + 512])) + data[place + 512 :]

    _damage(folder, rng, change)
    return None


@attack("append")
def _append(folder: Path, rng: random.Random) -> Undo:
    _damage(folder, rng, lambda data: data + data[: rng.randrange(1, 100)])
    return None


@attack("swap two")
def _swap(folder: Path, rng: random.Random) -> Undo:
    pair = _some(folder, rng, 2)
    if len(pair) == 2:
        aside = folder / "aside"
        with contextlib.suppress(OSError):
            for source, target in ((pair[0], aside), (pair[1], pair[0]), (aside, pair[1])):
                os.replace(source, target)
        aside.unlink(missing_ok=True)
    return None


@attack("copy one over another")
def _copy(folder: Path, rng: random.Random) -> Undo:
    pair = _some(folder, rng, 2)
    if len(pair) == 2:
        with contextlib.suppress(OSError):
            pair[1].write_bytes(pair[0].read_bytes())
    return None


@attack("delete entries")
def _delete(folder: Path, rng: random.Random) -> Undo:
    for path in _some(folder, rng, 20):
        path.unlink(missing_ok=True)
    return None


@attack("delete shards")
def _shards(folder: Path, rng: random.Random) -> Undo:
    for path in _some(folder, rng):
        shutil.rmtree(path.parent, ignore_errors=True)
    return None


@attack("delete the folder")
def _everything(folder: Path, rng: random.Random) -> Undo:
    for child in folder.glob("*"):
        shutil.rmtree(child, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rmdir()  # a mounted one stays
    return None


@attack("delete locks")
def _locks(folder: Path, rng: random.Random) -> Undo:
    for path in folder.glob("v*/locks"):
        shutil.rmtree(path, ignore_errors=True)
    return None


def _replaced(paths: list[Path], make: Callable[[Path], object]) -> Undo:
    """Puts something else in the place of files or folders until it is undone."""
    made = []
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            make(path)
            made.append(path)

    def undo() -> None:
        for path in made:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    return undo


@attack("folders in the place of entries")
def _folders(folder: Path, rng: random.Random) -> Undo:
    return _replaced(_some(folder, rng), lambda path: path.mkdir())


@attack("full folders in the place of entries")
def _full_folders(folder: Path, rng: random.Random) -> Undo:
    return _replaced(_some(folder, rng), lambda path: (path / "kept").mkdir(parents=True))


@attack("links to themselves in the place of entries")
def _links(folder: Path, rng: random.Random) -> Undo:
    return _replaced(_some(folder, rng), lambda path: path.symlink_to(path))


@attack("files in the place of shards")
def _files(folder: Path, rng: random.Random) -> Undo:
    return _replaced([path.parent for path in _some(folder, rng)], lambda path: path.write_text("no folder"))


@attack("a file in the place of a folder")
def _file(folder: Path, rng: random.Random) -> Undo:
    found = list(folder.glob("v*/*"))
    return _replaced([rng.choice(found)] if found else [], lambda path: path.write_text("no folder"))


@attack("fill the disk", on_mount=True)
def _fill(folder: Path, rng: random.Random) -> Undo:
    filler = folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()

    def undo() -> None:
        with contextlib.suppress(OSError):  # it was read-only, so that there is none
            filler.unlink()

    return undo


@attack("make it read-only", on_mount=True)
def _read_only(folder: Path, rng: random.Random) -> Undo:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], capture_output=True, check=False)

    remount("ro")
    return lambda: remount("rw")
