"""The file in which a sweep keeps what it has found, line by line, so that it goes on where it was killed.

It must never mix results of different functions' versions, inputs or devices, nor let two processes write at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, Any

from vkdnn.check.sweep_pieces import Referred
from vkdnn.errors import ArgumentError

FORMAT = "vkdnn sweep 1"
Key = tuple[str, int]
"""Function and number of a piece."""


@dataclass(frozen=True)
class Header:
    """What all lines of a file depend on; ``functions`` are names with fingerprints, ``device`` is None in a recording
    of the reference alone."""

    functions: dict[str, str]
    stride: int
    pairs: int
    device: str | None

    def trouble(self, kept: Header) -> str | None:
        """Why what is kept under another header does not serve."""
        for name in ("stride", "pairs", "device"):
            own, other = getattr(self, name), getattr(kept, name)
            if own != other:
                return f"it is of {name} {other}, expected {own}"
        if set(self.functions) != set(kept.functions):
            odd = ", ".join(sorted(set(self.functions) ^ set(kept.functions)))
            return f"it is of other functions (in one and not in the other: {odd})"
        return self.stale(kept, self.functions)

    def stale(self, kept: Header, names: Any) -> str | None:
        """As trouble(), of the versions of some functions alone."""
        changed = [name for name in names if self.functions[name] != kept.functions.get(name)]
        return f"it is of another version of {', '.join(changed)}" if changed else None


@dataclass
class Content:
    """The lines of a file."""

    header: Header
    referred: dict[Key, Referred] = field(default_factory=dict)
    computed: dict[Key, str] = field(default_factory=dict)
    """Digests of the device's results."""
    differing: dict[Key, tuple[int, list[str]]] = field(default_factory=dict)
    """Where digests part: how many results, and inputs, reference and device of the first."""
    whole: int = 0
    """Bytes up to the end of the last whole line."""


def read(path: str | os.PathLike[str]) -> Content:
    """What a file holds; a last line that was torn off is left out. Raises ArgumentError for a file that is none."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(f"sweep file {path}: cannot be read ({error.strerror}); name another") from None
    lines = data.split(b"\n")[:-1]
    try:
        first = json.loads(lines[0])
        if first.pop("format") != FORMAT:
            raise ValueError
        header = Header(**first)
        _demand(isinstance(header.functions, dict) and all(map(_is_text, header.functions.values())))
        _demand(_is_count(header.stride) and _is_count(header.pairs))
        _demand(header.device is None or _is_text(header.device))
        content = Content(header, whole=len(data) - len(data.rsplit(b"\n", 1)[-1]))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise ArgumentError(f"sweep file {path}: is none of this version of vkdnn; remove it or name another") from None
    for number, line in enumerate(lines[1:], 2):
        try:
            _take(content, json.loads(line))
        except (ValueError, TypeError, IndexError, RecursionError):
            raise ArgumentError(
                f"sweep file {path}: line {number} is damaged; remove the file or copy it anew"
            ) from None
    return content


def _take(content: Content, line: list[Any]) -> None:
    """Add a line. Raises ValueError or TypeError for one that no sweep writes, or that gainsays another."""
    kind, name, piece, *rest = line
    _demand(name in content.header.functions and _is_count(piece, 0))
    key = name, piece
    known: Any
    found: Any
    if kind == "reference":
        digest, error, at = rest
        _demand(_is_digest(digest) and isinstance(at, list) and all(map(_is_text, at)))
        _demand(error is None or (type(error) in (int, float) and error >= 0))
        known, found = content.referred.get(key), Referred(digest, error, tuple(at))
        content.referred[key] = found
    elif kind == "device":
        (digest,) = rest
        _demand(_is_digest(digest))
        known, found = content.computed.get(key), digest
        content.computed[key] = digest
    elif kind == "differing":
        count, first = rest
        _demand(_is_count(count, 0) and isinstance(first, list) and all(map(_is_text, first)))
        known, found = content.differing.get(key), (count, first)
        content.differing[key] = count, first
    else:
        raise ValueError
    _demand(known is None or known == found)


def _demand(holds: bool) -> None:
    if not holds:
        raise ValueError


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any, least: int = 1) -> bool:
    return type(value) is int and value >= least


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) is not None


class Journal:
    """A file that is read and then written on; without a path, nothing is kept."""

    def __init__(self, path: str | os.PathLike[str] | None, header: Header):
        """Raises ArgumentError for a file of another header, and for one that another process writes."""
        self.content = Content(header)
        self._file: IO[bytes] | None = None
        if path is None:
            return
        try:
            self._file = open(path, "ab")  # noqa: SIM115  (closed by close())
        except OSError as error:
            raise ArgumentError(f"sweep file {path}: cannot be written ({error.strerror}); name another") from None
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ArgumentError(
                    f"sweep file {path}: another process is writing it; wait for it, or name another file"
                ) from None
            if os.fstat(self._file.fileno()).st_size:
                found = read(path)
                trouble = header.trouble(found.header)
                if trouble is not None:
                    raise ArgumentError(f"sweep file {path}: {trouble}; remove it or name another")
                self.content = found
                self._file.truncate(found.whole)
            else:
                self._write({"format": FORMAT} | vars(header))
        except BaseException:
            self.close()
            raise

    def note_reference(self, key: Key, found: Referred) -> None:
        self.content.referred[key] = found
        self._write(["reference", *key, *astuple(found)])

    def note_device(self, key: Key, digest: str) -> None:
        self.content.computed[key] = digest
        self._write(["device", *key, digest])

    def note_differing(self, key: Key, count: int, first: list[str]) -> None:
        self.content.differing[key] = (count, first)
        self._write(["differing", *key, count, first])

    def _write(self, value: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(value).encode() + b"\n")
            self._file.flush()  # a process that is killed leaves whole lines; a machine that dies, fewer

    def close(self) -> None:
        """Gives the file free."""
        if self._file is not None:
            self._file.close()
            self._file = None
