"""An on-disk store of entries (compiled shaders, device verdicts), keyed by everything that determines them.

It must never return a torn, damaged or foreign entry, and never fail the work that it only speeds up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import filelock
import platformdirs

from vkdnn.errors import StoreError
from vkdnn.shader.entry import FORMAT_VERSION, Components, DamagedEntryError, Entry, decode, encode, key_of

VERSION_FOLDER = f"v{FORMAT_VERSION}"
QUARANTINE, LOCKS, REMOVED = "quarantine", "locks", "removed.jsonl"
NEW = ".new-"  # how the name of a file begins that is being written
DEFAULT_MAX_BYTES = 2 << 30
DEFAULT_MAX_DAYS = 180.0
LOCK_SECONDS = 60.0  # after which whoever waits for another's work does it too
_POLL_SECONDS = 0.02
_STAMP_SECONDS = 60.0  # a last use is noted this exactly, so that reading seldom writes
_REMOVED_BYTES = 1 << 20
_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_DISABLED = {"1", "true", "yes", "on"}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_lock = threading.Lock()
_warned: set[str] = set()


class Store:
    """Entries of one kind under ``root``, a file each: ``root/v2/<kind>/<2 digits>/<key>``.

    Any number of threads and processes may share the folder: an entry appears whole or not at all. The time of
    modification of a file is the stamp of its last use.
    """

    def __init__(self, root: str | os.PathLike[str], kind: str = "shaders") -> None:
        """``root`` is made when the first entry is written."""
        self.root = Path(root)
        self.kind = kind
        self.base = self.root / VERSION_FOLDER
        self.folder = self.base / kind

    def path(self, key: str) -> Path:
        """Where the entry of a key lies or would lie."""
        return self.folder / key[:2] / key

    def load(self, components: Components) -> Entry | None:
        """The entry saved under these components; None if there is none. A damaged one goes to quarantine."""
        return self.load_key(key_of(self.kind, components))

    def load_key(self, key: str) -> Entry | None:
        """load() by the key."""
        path = self.path(key)
        try:
            if not path.is_file():
                return None  # a pipe would be waited for
            data = path.read_bytes()
        except OSError:
            return None  # absent or unreadable: the caller makes it anew, and write() reports the folder
        entry = self._decoded(data, key) or self._quarantine(path, key)
        if entry is not None:
            _stamp(path)
        return entry

    def _decoded(self, data: bytes, key: str) -> Entry | None:
        try:
            entry = decode(data)
        except DamagedEntryError:
            return None
        return entry if entry.kind == self.kind and entry.key == key else None

    def _quarantine(self, path: Path, key: str) -> Entry | None:
        """Moves a damaged file out of the way; if another process has put a whole entry there meanwhile, that one."""
        place = self.base / QUARANTINE / f"{self.kind}-{key}"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
            entry = self._decoded(place.read_bytes(), key)
            if entry is not None:
                os.replace(place, path)
                return entry
        except OSError:
            pass  # gone, or in a folder that cannot be written: it is made anew, and whoever writes it replaces it
        self.note_removed([key], "damaged")
        self._warn_once(
            f"damaged {self.root}",
            f"a damaged entry of {self.folder} was set aside in {place.parent}; it is made again. If that recurs, "
            "check the disk; `vkdnn cache verify` looks at every entry",
        )
        return None

    def save(self, entry: Entry) -> bool:
        """Writes an entry, replacing an older one in one step; True if it was stored.

        A folder that cannot be written gives one warning per process and folder, and False.
        """
        error = self.write(entry)
        if error is not None:
            self.warn(error)
        return error is None

    def write(self, entry: Entry) -> OSError | None:
        """save() for a worker thread: gives the error instead of the warning, which is warn() of the calling thread."""
        path = self.path(entry.key)
        data = encode(entry)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                path.rmdir()  # an empty one makes place; another is reported
            try:
                _write_and_replace(path, data)
            except FileNotFoundError:  # the folder was deleted underneath
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_and_replace(path, data)
        except OSError as error:
            return error
        return None

    @contextlib.contextmanager
    def locked(self, key: str, seconds: float = LOCK_SECONDS) -> Iterator[bool]:
        """Held while one process makes the entry of a key; False inside if another still held it after ``seconds``.

        Where the folder takes no locks, True at once: then several may make the same entry, and none waits. The
        system frees the lock of a process that dies.
        """
        # No soft locks, which are files: they would outlive a process that is killed.
        lock = filelock.FileLock(self.base / LOCKS / key[:2], thread_local=False, fallback_to_soft=False)
        held = False
        try:
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=seconds, poll_interval=_POLL_SECONDS)
            held = True
        except filelock.Timeout:
            yield False
            return
        except (OSError, NotImplementedError):
            pass  # read-only, full, or a file system without locks
        try:
            yield True
        finally:
            if held:
                lock.release()

    def warn(self, error: OSError) -> None:
        """One warning per process and folder, attributed to the caller of vkdnn."""
        self._warn_once(
            str(self.root),
            f"cannot store entries in {self.root} ({error.strerror or error}); going on without: they "
            "are made again in the next process. Set VKDNN_CACHE_DIR to a folder that can be written, "
            "or VKDNN_CACHE_DISABLE=1",
        )

    def _warn_once(self, topic: str, text: str) -> None:
        with _lock:
            if topic in _warned:
                return
            _warned.add(topic)
        warnings.warn(text, RuntimeWarning, stacklevel=_levels_of_vkdnn())

    def note_removed(self, keys: list[str], reason: str) -> None:
        """Remembers why entries are gone, for whoever asks later why one was made again."""
        path = self.base / REMOVED
        row = {"kind": self.kind, "reason": reason, "time": time.time()}
        lines = "".join(json.dumps({"key": key} | row) + "\n" for key in keys)
        with contextlib.suppress(OSError):  # only an explanation is lost
            if path.exists() and path.stat().st_size > _REMOVED_BYTES:
                os.replace(path, path.with_suffix(".old"))
            with open(path, "a", encoding="utf-8") as file:
                file.write(lines)


def _stamp(path: Path) -> None:
    with contextlib.suppress(OSError):  # gone, or read-only: then its age is that of its writing
        if abs(time.time() - path.stat().st_mtime) > _STAMP_SECONDS:  # clocks go back, too
            os.utime(path)


def _levels_of_vkdnn() -> int:
    """The stacklevel with which warn() points at the code that called vkdnn."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


@contextlib.contextmanager
def replaced(path: Path, prefix: str = NEW) -> Iterator[IO[bytes]]:
    """A file beside `path` to write, flushed to the disk, then renamed: readers see the old file or the whole new one.

    Who may read it is the umask's choice, so that a folder filled by one user can serve others.
    """
    temporary = path.parent / f"{prefix}{secrets.token_hex(8)}"
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_and_replace(path: Path, data: bytes) -> None:
    with replaced(path) as file:
        file.write(data)


def cache_folder() -> Path | None:
    """The folder for stored shaders and verdicts, or None if VKDNN_CACHE_DISABLE is set.

    VKDNN_CACHE_DIR names it, else the user's cache folder of the platform; a user without a home has none. Raises
    StoreError if VKDNN_CACHE_DIR names something that is not a folder.
    """
    if os.environ.get("VKDNN_CACHE_DISABLE", "").strip().lower() in _DISABLED:
        return None
    named = os.environ.get("VKDNN_CACHE_DIR")
    folder = Path(os.path.expanduser(named) if named else platformdirs.user_cache_dir("vkdnn"))
    if named and os.path.exists(folder) and not os.path.isdir(folder):  # False, too, where nobody may look
        raise StoreError(
            f"VKDNN_CACHE_DIR is {named!r}, which is a file, expected a folder; name a folder, "
            "or set VKDNN_CACHE_DISABLE=1"
        )
    return folder if named or folder.is_absolute() else None


def default_store(kind: str) -> Store | None:
    """The store of one kind of entries ("shaders", "verdicts") in `cache_folder()`; None where disabled.

    Raises StoreError for a VKDNN_CACHE_DIR or VKDNN_CACHE_MAX_BYTES that is none.
    """
    folder = cache_folder()
    max_bytes()  # a bad size is told before anything is compiled
    return None if folder is None else Store(folder, kind)


def parse_bytes(name: str, text: str) -> int:
    """Bytes of a text such as 500M or 2G. Raises StoreError that names where it came from."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise StoreError(f"{name} is {text!r}, expected a number of bytes such as 500000000, 500M or 2G")
    return int(float(found.group(1)) * _UNITS[found.group(2).upper()])


def bytes_text(count: int) -> str:
    """Bytes for people, in the units that parse_bytes() takes.

    >>> bytes_text(1), bytes_text(1536), bytes_text(2 << 30)
    ('1 byte', '1.5 KiB', '2.0 GiB')
    """
    for unit in "TGMK":
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:,.1f} {unit}iB"
    return "1 byte" if count == 1 else f"{count} bytes"


def max_bytes() -> int:
    """The size that the store may have: VKDNN_CACHE_MAX_BYTES, else 2 GiB. Raises StoreError if that is no size."""
    text = os.environ.get("VKDNN_CACHE_MAX_BYTES")
    return parse_bytes("VKDNN_CACHE_MAX_BYTES", text) if text else DEFAULT_MAX_BYTES
