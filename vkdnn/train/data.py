"""Text as bytes, and the batches of a training run: any UTF-8 file or folder, or Python's standard library.

It must never train on what is no text, and batch number i depends on the text, the seed and i alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from vkdnn import streams
from vkdnn.errors import ArgumentError

MAX_BYTES = 2**30  # of one text, all of which is held in memory
_NO_SOURCES = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests"})


@dataclass(frozen=True)
class Corpus:
    """A text: what to call it, its bytes as uint8 [N], how many files it holds and how many were left out, and
    where it was read from (None: it came with Python or vkdnn).
    """

    name: str
    data: np.ndarray[Any, np.dtype[np.uint8]]
    files: int = 1
    skipped: int = 0
    path: str | None = None

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hex) of the bytes: the identity of the text."""
        return hashlib.sha256(self.data.tobytes()).hexdigest()

    def __str__(self) -> str:
        size = f"{self.data.size / 1e6:.1f} MB" if self.data.size >= 1e5 else f"{self.data.size:,} bytes"
        files = f" in {self.files} files" if self.files > 1 else ""
        left = f"{self.skipped} file" + ("s" if self.skipped > 1 else "")
        skipped = f", {left} left out (no UTF-8 text)" if self.skipped else ""
        return f"{self.name}, {size}{files}{skipped}"

    def check(self, length: int) -> None:
        """Raise ArgumentError unless the text holds one window of ``length`` bytes and the byte after it."""
        if self.data.size < length + 1:
            raise ArgumentError(
                f"text: {self.name} has {self.data.size} bytes, but one window takes {length + 1} (its "
                "length and one byte to predict); give a longer text or a smaller length"
            )


def batch_at(corpus: Corpus, step: int, batch: int, length: int, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Tokens [batch, length + 1] int32 of a step: windows of the text from anywhere, each equally likely.

    Raises ArgumentError when the text is shorter than one window.
    """
    corpus.check(length)
    starts = streams.integers(seed, f"batch.{step}", (batch,), corpus.data.size - length)
    return corpus.data[starts[:, None] + np.arange(length + 1)].astype(np.int32)


def load_text(path: str | os.PathLike[str]) -> Corpus:
    """The text of a UTF-8 file, or of all UTF-8 files below a folder but hidden ones, by path.

    Raises ArgumentError for what is missing, unreadable, empty, binary or too long.
    """
    place = Path(path)
    if not place.exists():
        raise ArgumentError(f"text: {place} does not exist; name a text file or a folder of text files")
    if place.is_dir():
        return replace(_folder(str(place), _walk(place, ""), f"text: {place}"), path=os.path.abspath(place))
    if not place.is_file():
        raise ArgumentError(f"text: {place} is neither a file nor a folder; save its content to a file first")
    if place.stat().st_size > MAX_BYTES:
        raise ArgumentError(
            f"text: {place} has {place.stat().st_size} bytes, the limit is {MAX_BYTES}; give a part of it"
        )
    content = _read(place)
    if not content:
        raise ArgumentError(f"text: {place} is empty; give a file that holds text")
    fault = _no_text(content)
    if fault:
        raise ArgumentError(f"text: {place} {fault}")
    return Corpus(str(place), np.frombuffer(content, np.uint8), path=os.path.abspath(place))


def standard_library() -> Corpus:
    """The sources of this Python's standard library, without its tests.

    Raises ArgumentError where they are not installed as files.
    """
    version = platform.python_version_tuple()
    root = Path(sysconfig.get_path("stdlib"))
    name = f"the standard library of Python {version[0]}.{version[1]}"
    return _folder(name, _walk(root, ".py"), f"text: {name} has no sources in {root}; name another text, for it")


def sample_text() -> Corpus:
    """The text that ships with vkdnn: the Apache license, the same bytes on every machine."""
    content = resources.files("vkdnn.train").joinpath("sample.txt").read_bytes()
    return Corpus("the text of the Apache license", np.frombuffer(content, np.uint8))


def _folder(name: str, paths: Iterator[Path], complaint: str) -> Corpus:
    parts: list[bytes] = []
    total = skipped = 0
    for path in paths:
        total += path.stat().st_size
        if total > MAX_BYTES:
            raise ArgumentError(f"{complaint} holds more than {MAX_BYTES} bytes; name a smaller folder")
        content = _read(path)
        if _no_text(content):
            skipped += 1
        elif content:
            parts.append(content if content.endswith(b"\n") else content + b"\n")
    if not parts:
        reason = f"{skipped} files, none of them UTF-8 text" if skipped else "no text"
        raise ArgumentError(f"{complaint} holds {reason}; name a folder with text files")
    return Corpus(name, np.frombuffer(b"".join(parts), np.uint8), len(parts), skipped)


def _walk(root: Path, suffix: str) -> Iterator[Path]:
    """Regular files below a folder whose names end with ``suffix``, in sorted order."""
    for folder, inner, names in os.walk(root):
        unwanted = _NO_SOURCES if suffix else {"__pycache__"}
        inner[:] = sorted(d for d in inner if not d.startswith(".") and d not in unwanted)
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(suffix) and not name.startswith(".") and path.is_file():
                yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArgumentError(
            f"text: cannot read {path} ({error.strerror or error}); change its permissions or name another"
        ) from error


def _no_text(content: bytes) -> str:
    """Why these bytes are no text; empty if they are."""
    at = content.find(0)
    if at >= 0:
        return f"is binary (a NUL byte at offset {at}), expected UTF-8 text; give a text file"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return (
            f"is not UTF-8 text (byte 0x{content[error.start]:02x} at offset {error.start}); convert it, for "
            "example with iconv -f latin1 -t utf-8"
        )
    return ""
