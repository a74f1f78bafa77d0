"""An entry of the store as bytes: components, record and contents under one checksum.

Decoding must never give an entry with a bit changed, nor one that lies under another's key.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vkdnn.errors import StoreError

FORMAT_VERSION = 2
_MAGIC = f"vkdnn entry {FORMAT_VERSION} ".encode()
_FIRST_LINE = len(_MAGIC) + 64 + 1  # the magic, a SHA-256 in hex, a newline
LARGEST = 1 << 28  # bytes of the contents: far beyond any shader
_SHORT = 400  # characters up to which a component is kept as it is
_HASHED = re.compile(r"sha256:[0-9a-f]{64}")

Components = Mapping[str, str]


class DamagedEntryError(StoreError):
    """A file of the store that is no whole entry."""


def digest(data: bytes | str) -> str:
    """SHA-256 in hex, of text in UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def hashed(text: str) -> str:
    """The form in which a long component is kept."""
    return f"sha256:{digest(text)}"


def short(components: Components) -> dict[str, str]:
    """Components as they are kept: one that is long, or of several lines, by its hash. Idempotent."""

    def kept(text: str) -> str:
        return text if _HASHED.fullmatch(text) or (len(text) <= _SHORT and "\n" not in text) else hashed(text)

    return {name: kept(text) for name, text in components.items()}


def key_of(kind: str, components: Components) -> str:
    """The key of an entry: SHA-256 over format, kind and components by name, in their order."""
    return digest(json.dumps([FORMAT_VERSION, kind, list(short(components).items())]))


@dataclass(frozen=True)
class Entry:
    """Named ``contents`` under ``components``; the ``record`` says what is worth knowing of how they were made."""

    kind: str
    components: dict[str, str]
    record: dict[str, Any] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        return key_of(self.kind, self.components)

    def text(self, name: str) -> str:
        """One of the contents as text; empty if there is none."""
        return self.contents.get(name, b"").decode(errors="replace")


def encode(entry: Entry) -> bytes:
    """The entry as a file: a line with the checksum of all that follows, a line of JSON, compressed contents."""
    packed = {name: zlib.compress(data, 6) for name, data in entry.contents.items()}
    header = {
        "kind": entry.kind,
        "key": entry.key,
        "components": short(entry.components),
        "record": entry.record,
        "contents": [[name, len(data), len(entry.contents[name])] for name, data in packed.items()],
    }
    rest = json.dumps(header).encode() + b"\n" + b"".join(packed.values())
    return _MAGIC + digest(rest).encode() + b"\n" + rest


def decode(data: bytes) -> Entry:
    """The entry of a whole file. Raises DamagedEntryError for anything that encode() did not make."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) <= _FIRST_LINE:
        raise DamagedEntryError("entry: its first line is not that of an entry")
    if data[len(_MAGIC) : _FIRST_LINE] != digest(data[_FIRST_LINE:]).encode() + b"\n":
        raise DamagedEntryError("entry: its checksum does not fit")
    end = data.find(b"\n", _FIRST_LINE) + 1
    entry, sizes = _header(data[_FIRST_LINE:end])
    if any(plain < 0 for _, _, plain in sizes) or sum(plain for _, _, plain in sizes) > LARGEST:
        raise DamagedEntryError(f"entry: its contents have other than 0 to {LARGEST} bytes")
    for name, packed, plain in sizes:
        entry.contents[name] = _unpacked(name, data[end : end + packed], plain)
        end += packed
    return entry


def _unpacked(name: str, packed: bytes, plain: int) -> bytes:
    """Never more bytes than the header says, whatever a file from elsewhere would unpack to."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, plain + 1)
    except zlib.error as error:
        raise DamagedEntryError(f"entry: {name} cannot be unpacked ({error})") from error
    if len(data) != plain or not unpacker.eof:
        raise DamagedEntryError(f"entry: {name} has other than {plain} bytes")
    return data


def decode_header(beginning: bytes) -> Entry | None:
    """The entry without its contents, unchecked, from the beginning of its file; None where that is not enough of it.

    For lists: what is used must come from decode().
    """
    end = beginning.find(b"\n", _FIRST_LINE)
    if beginning[: len(_MAGIC)] != _MAGIC or end < 0:
        return None
    try:
        return _header(beginning[_FIRST_LINE:end])[0]
    except DamagedEntryError:
        return None


def _header(line: bytes) -> tuple[Entry, list[tuple[str, int, int]]]:
    try:
        header = json.loads(line)
        entry = Entry(header["kind"], dict(header["components"]), header["record"])
        sizes = [(str(name), int(packed), int(plain)) for name, packed, plain in header["contents"]]
        same = header["key"] == entry.key and isinstance(entry.record, dict)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedEntryError(f"entry: its header cannot be read ({error})") from error
    if not same:
        raise DamagedEntryError("entry: its key is not that of its components")
    return entry, sizes
