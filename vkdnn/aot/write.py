"""Writes a bundle: all of it, or nothing at its final name.

It must never replace what is no bundle, nor leave a half-written one where a reader could find it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

from vkdnn.errors import ArgumentError
from vkdnn.shader.bundle import MANIFEST, BundleError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def check_free(
    path: str | os.PathLike[str], overwrite: bool, name: str = "path", option: str = "overwrite=True"
) -> Path:
    """The path, if a bundle may be written there. Raises ArgumentError that says why not; ``name`` and ``option`` are
    what the path, and the wish to overwrite, are called there."""
    try:
        place = Path(path)
    except TypeError:
        raise ArgumentError(f"{name}: got {type(path).__name__}, expected a path") from None
    if not place.name:
        raise ArgumentError(f"{name}: got {str(path)!r}, expected the name of a new folder or .zip")
    if not place.parent.is_dir():
        raise ArgumentError(f"{name}: there is no folder {place.parent}; make it first")
    if place.suffix == ".zip" and place.is_dir():
        raise ArgumentError(f"{name}: {place} is a folder; name another .zip")
    if place.exists() or place.is_symlink():
        if not overwrite:
            raise ArgumentError(f"{name}: {place} exists; name another, or replace it with {option}")
        if not _is_bundle(place):
            raise ArgumentError(f"{name}: {place} is no bundle, so it is not overwritten; name another")
    return place


def _is_bundle(place: Path) -> bool:
    if place.is_symlink():
        return False
    if place.is_dir():
        return (place / MANIFEST).is_file() or not any(place.iterdir())
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(place) as file:
        return MANIFEST in file.namelist()
    return False


def write_bundle(path: str | os.PathLike[str], files: Mapping[str, bytes], overwrite: bool = False) -> None:
    """Writes the files of a bundle to a folder, or to one file if the name ends in .zip.

    They are written beside it, flushed to disk, and renamed. Raises ArgumentError as check_free() does, and BundleError
    when they cannot be written.
    """
    place = check_free(path, overwrite)
    _clear(place)
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        if shutil.disk_usage(place.parent).free < sum(map(len, files.values())):
            raise OSError(28, "no space left on device")
        if place.suffix == ".zip":
            _write_zip(partial, files)
        else:
            _write_folder(partial, files)
        _publish(partial, check_free(place, overwrite))
        _sync(place.parent)
    except OSError as error:
        raise BundleError(
            f"bundle {place}: cannot be written ({error.strerror or error}); free some space there, or name another"
        ) from error
    finally:
        _remove(partial)


def _write_zip(partial: Path, files: Mapping[str, bytes]) -> None:
    with open(partial, "wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        file.flush()
        os.fsync(file.fileno())


def _write_folder(partial: Path, files: Mapping[str, bytes]) -> None:
    partial.mkdir()
    folders = {partial}
    for name, data in files.items():
        target = partial / name
        target.parent.mkdir(parents=True, exist_ok=True)
        folders.add(target.parent)
        with open(target, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    for folder in folders:
        _sync(folder)


def _publish(partial: Path, place: Path) -> None:
    """Gives ``partial`` the name ``place``; what was there takes the name of ``partial``, or goes."""
    if not place.is_dir() or partial.is_file():
        os.replace(partial, place)
    elif not _exchange(partial, place):
        old = place.with_name(f".{place.name}.{os.getpid()}.old.partial")
        os.replace(place, old)
        try:
            os.replace(partial, place)
        except OSError:
            os.replace(old, place)
            raise
        _remove(old)


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two names at once, where the system can (Linux); so a reader finds a whole bundle at any moment."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    done = swap(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE)
    return bool(done == 0)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _clear(place: Path) -> None:
    """Removes what processes that were killed have left of this bundle."""
    for left in place.parent.glob(f".{place.name}.*.partial"):
        number = left.name[len(place.name) + 2 :].split(".", 1)[0]
        if number.isdigit() and int(number) != os.getpid() and not _alive(int(number)):
            _remove(left)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
