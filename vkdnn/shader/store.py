"""An on-disk store of compiled shaders, keyed by everything that determines them.

It must never return a torn or foreign entry, and never fail the work that it only speeds up.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from vkdnn.errors import StoreError

FORMAT_VERSION = 1
_MAGIC = b"vkdnn store entry\n"
_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_DISABLED = {"1", "true", "yes", "on"}

_lock = threading.Lock()
_warned: set[str] = set()
_opened: dict[str, ShaderStore] = {}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class ShaderStore:
    """Entries in one folder: a header with the hash of each key component and a checksum, then the payload.

    Any number of threads and processes may share the folder: an entry appears whole or not at all.
    """

    def __init__(self, root: str | os.PathLike[str], suffix: str = ".spv") -> None:
        """`root` is made when the first entry is written; `suffix` keeps kinds of entries apart."""
        self.root = Path(root)
        self.suffix = suffix

    @staticmethod
    def key(components: Mapping[str, str]) -> str:
        """The key of an entry: sha256 over the format version and the named components, in their order."""
        return _digest(json.dumps(_component_hashes(components)).encode())

    def path(self, components: Mapping[str, str]) -> Path:
        """Where the entry with these components lies or would lie."""
        key = self.key(components)
        return self.root / key[:2] / (key + self.suffix)

    def load(self, components: Mapping[str, str]) -> bytes | None:
        """The payload saved under these components; None if there is none or the file is damaged."""
        try:
            data = self.path(components).read_bytes()
        except OSError:
            return None  # absent or unreadable: the caller makes it anew, and save() reports the folder
        if not data.startswith(_MAGIC):
            return None
        header, newline, payload = data[len(_MAGIC) :].partition(b"\n")
        expected = _header(components, payload)
        return payload if newline and header == expected else None

    def save(self, components: Mapping[str, str], payload: bytes) -> bool:
        """Writes an entry, replacing an older one in one step; True if it was stored.

        A folder that cannot be written gives one warning per process and folder, and False.
        """
        error = self.write(components, payload)
        if error is not None:
            self.warn(error)
        return error is None

    def write(self, components: Mapping[str, str], payload: bytes) -> OSError | None:
        """save() for a worker thread: gives the error instead of the warning, which is warn() of the calling thread."""
        path = self.path(components)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                path.rmdir()  # an empty one makes place; another is reported
            _write_and_replace(path, _MAGIC + _header(components, payload) + b"\n" + payload)
        except OSError as error:
            return error
        return None

    def warn(self, error: OSError) -> None:
        """One warning per process and folder, attributed to the caller of vkdnn."""
        with _lock:
            if str(self.root) in _warned:
                return
            _warned.add(str(self.root))
        warnings.warn(
            f"cannot store entries in {self.root} ({error.strerror or error}); going on without: they "
            "are made again in the next process. Set VKDNN_CACHE_DIR to a folder that can be written, "
            "or VKDNN_CACHE_DISABLE=1",
            RuntimeWarning,
            stacklevel=_levels_of_vkdnn(),
        )


def _levels_of_vkdnn() -> int:
    """The stacklevel with which warn() points at the code that called vkdnn."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _component_hashes(components: Mapping[str, str]) -> list[list[str]]:
    named = [["format", str(FORMAT_VERSION)]]
    return named + [[name, _digest(text.encode())] for name, text in components.items()]


def _header(components: Mapping[str, str], payload: bytes) -> bytes:
    """One line of JSON. Comparing it whole checks components, length and content at once."""
    header = {"components": _component_hashes(components), "bytes": len(payload), "sha256": _digest(payload)}
    return json.dumps(header).encode()


def _write_and_replace(path: Path, data: bytes) -> None:
    """Writes beside `path`, flushes to the disk, then renames: readers see the old entry or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def cache_folder() -> Path | None:
    """The folder for stored shaders and verdicts, or None if VKDNN_CACHE_DISABLE is set.

    VKDNN_CACHE_DIR names it, else the user's cache folder of the platform. Raises StoreError if
    VKDNN_CACHE_DIR names something that is not a folder.
    """
    if os.environ.get("VKDNN_CACHE_DISABLE", "").strip().lower() in _DISABLED:
        return None
    named = os.environ.get("VKDNN_CACHE_DIR")
    folder = Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("vkdnn"))
    if named and folder.exists() and not folder.is_dir():
        raise StoreError(
            f"VKDNN_CACHE_DIR is {named!r}, which is a file, expected a folder; name a folder, "
            "or set VKDNN_CACHE_DISABLE=1"
        )
    return folder


def default_store(kind: str, suffix: str) -> ShaderStore | None:
    """The store of one kind of entries ("shaders", "verdicts") in `cache_folder()`; None where disabled."""
    folder = cache_folder()
    if folder is None:
        return None
    root = str(folder / kind)
    with _lock:
        if root not in _opened:
            _opened[root] = ShaderStore(root, suffix)
        return _opened[root]
