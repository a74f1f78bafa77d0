"""Moving entries of shaders between stores as one archive, .tar.gz or .zip, with a member for each entry.

An import must never believe the archive: every member is verified before the first entry is stored.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from vkdnn.errors import CompileError, StoreError
from vkdnn.shader.compiler import Compiler
from vkdnn.shader.entry import DamagedEntryError, Entry, decode, digest
from vkdnn.shader.store import Store, replaced
from vkdnn.shader.upkeep import after_storing
from vkdnn.shader.verify import recompiled, same_compiler, trouble

KIND = "shaders"
MAX_MEMBERS = 1_000_000
MAX_ENTRY_BYTES = 1 << 24  # of a file of the store; shaders have some 10 KB
MAX_BYTES = 1 << 35
_NAME = re.compile(rf"{KIND}/([0-9a-f]{{64}})")
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
_MAX_NAME_BYTES = 1 << 16
_CHUNK = 1 << 16
_BATCH = 64
_LATEST = 1e11  # seconds since the epoch, or of a compilation, that a record may say

Progress = Callable[[int], None]
Member = tuple[str, bytes | str]
"""A name with the bytes of the member, or with the reason for which it is refused."""


@dataclass
class Exported:
    """What an archive got."""

    entries: int = 0
    bytes: int = 0
    damaged: int = 0


@dataclass
class Imported:
    """What became of an archive's members; ``refused`` has (name, reason)."""

    imported: list[Entry] = field(default_factory=list)
    known: int = 0
    bytes: int = 0
    recompiled: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for _, reason in self.refused)


def export_entries(paths: Iterable[Path], archive: Path, progress: Progress | None = None) -> Exported:
    """Writes the entries that lie in these files; the archive appears whole or not at all.

    Equal entries give an equal archive. Damaged files are counted and left out. Raises StoreError for a name that
    ends neither in .tar.gz, .tgz nor .zip, and OSError when it cannot be written.
    """
    opened = _writer(archive)
    found = Exported()
    with replaced(archive, f".{archive.name}-") as file, opened(file) as add:
        for count, path in enumerate(sorted(paths, key=lambda p: p.name), 1):
            try:
                data = path.read_bytes()
                whole = decode(data)
            except DamagedEntryError:
                found.damaged += 1
            except OSError:
                pass  # removed since
            else:
                if (whole.kind, whole.key) == (KIND, path.name):
                    add(f"{KIND}/{path.name}", data)
                    found.entries += 1
                    found.bytes += len(data)
                else:
                    found.damaged += 1
            if progress is not None:
                progress(count)
    return found


_Add = Callable[[str, bytes], None]


def _writer(archive: Path) -> Callable[[IO[bytes]], AbstractContextManager[_Add]]:
    name = archive.name.lower()
    if name.endswith((".tar.gz", ".tgz")):
        return _tar_writer
    if name.endswith(".zip"):
        return _zip_writer
    raise StoreError(f"archive: got {archive.name!r}, expected a name that ends in .tar.gz, .tgz or .zip")


@contextmanager
def _tar_writer(file: IO[bytes]) -> Iterator[_Add]:
    with (
        gzip.GzipFile("", "wb", 1, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        yield add


@contextmanager
def _zip_writer(file: IO[bytes]) -> Iterator[_Add]:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:  # entries are compressed already

        def add(name: str, data: bytes) -> None:
            packed.writestr(zipfile.ZipInfo(name), data)

        yield add


# ---- reading


def members(archive: Path) -> Iterator[Member]:
    """Every member of an archive but folders; what cannot be an entry comes with the reason instead of its bytes.

    Raises StoreError when the file is no such archive, is truncated or holds more than any store.
    """
    total = 0
    try:
        with open(archive, "rb") as file:
            beginning = file.read(4)
            file.seek(0)
            found = _zip_members(file) if beginning.startswith(b"PK") else _tar_members(file)
            for count, member in enumerate(found, 1):
                total += len(member[1])
                if count > MAX_MEMBERS or total > MAX_BYTES:
                    raise StoreError(
                        f"{archive}: more than {MAX_MEMBERS} members or {MAX_BYTES} bytes, expected entries of a store"
                    )
                yield member
    except _DAMAGED as error:
        raise StoreError(
            f"{archive}: is no .tar.gz or .zip of `vkdnn cache export`, or is damaged ({error}); nothing was imported"
        ) from error


def _refusal(name: str, plain: bool, size: int) -> str | None:
    if not plain:
        return "it is no plain file"
    if not _NAME.fullmatch(name):
        return f"its name is not {KIND}/ and a key"
    return f"it has more than {MAX_ENTRY_BYTES} bytes" if size > MAX_ENTRY_BYTES else None


class _Header(tarfile.TarInfo):
    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE) and self.size > _MAX_NAME_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")  # it would be read as a name
        return super()._proc_member(tar)  # type: ignore[misc]


def _tar_members(file: IO[bytes]) -> Iterator[Member]:
    skipped = 0
    with gzip.GzipFile(fileobj=file) as packed, tarfile.open(fileobj=packed, mode="r|", tarinfo=_Header) as tar:
        for info in tar:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep all
            skipped += info.size
            if skipped > MAX_BYTES:
                raise tarfile.ReadError(f"more than {MAX_BYTES} bytes")
            if info.isdir():
                continue
            reason = _refusal(info.name, info.isreg(), info.size)
            source = None if reason else tar.extractfile(info)
            yield info.name, reason or (source.read() if source else "it is no plain file")
        while skipped <= MAX_BYTES and (rest := packed.read(_CHUNK)):  # to its checksum
            skipped += len(rest)


def _zip_members(file: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as packed:
        for info in packed.infolist():
            if info.is_dir():
                continue
            mode = info.external_attr >> 16
            reason = _refusal(info.filename, mode & 0o170000 in (0, 0o100000), info.file_size)
            if reason is None:
                with packed.open(info) as source:
                    data = source.read(MAX_ENTRY_BYTES + 1)  # the size that the archive says may be wrong
                reason = _refusal(info.filename, True, len(data))
            yield info.filename, reason or data


def checked(member: Member) -> Entry | str:
    """The entry of a member, or the reason for which it is refused."""
    name, data = member
    if isinstance(data, str):
        return data
    try:
        entry = decode(data)
    except DamagedEntryError as error:
        return str(error).removeprefix("entry: ")
    if (entry.kind, f"{KIND}/{entry.key}") != (KIND, name):
        return "its name is not the key of its components"
    return _record_trouble(entry.record) or trouble(entry) or entry


def _record_trouble(record: dict[str, Any]) -> str | None:
    """What is wrong with a record: others will read its times and names."""
    times = [record.get(name, 0.0) for name in ("compiled", "seconds")]
    plain = all(isinstance(t, (int, float)) and 0 <= t < _LATEST for t in times)
    named = all(isinstance(record.get(name, ""), str) for name in ("label", "family", "process", "compiler_path"))
    try:
        json.dumps(record, allow_nan=False)
    except ValueError:
        plain = False
    return None if plain and named else "its record has times or names that are none"


def import_entries(
    store: Store,
    archive: Path,
    recompile: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Stores the entries of an archive, after all of them were verified; entries that the store has stay as they are.

    Whoever makes an archive can make its checksums fit: only compiling proves that SPIR-V is what its GLSL gives. So
    all entries of the compiler that is here (others are not found here) are compiled again and compared, or
    ``recompile`` of them, spread over the archive; 0 trusts the archive. Raises StoreError, with nothing stored, for a
    damaged archive and for an entry that compiles to something else; OSError when an entry cannot be written.
    """
    found, good = Imported(), {}
    seen: set[str] = set()
    count = 0
    with ThreadPoolExecutor(os.cpu_count() or 1, "vkdnn-verify") as pool:
        for batch in _batches(members(archive)):
            for (name, data), verdict in zip(batch, pool.map(checked, batch), strict=True):
                if isinstance(verdict, str):
                    found.refused.append((name, verdict))
                elif name in seen:
                    found.refused.append((name, "another member has its name"))
                else:
                    seen.add(name)
                    assert isinstance(data, bytes)
                    good[name] = digest(data)
            count += len(batch)
            if progress is not None:
                progress(count)
    found.recompiled = 0 if recompile == 0 else _recompile(archive, good, recompile)
    _store(store, archive, good, found, dry_run)
    return found


def _store(store: Store, archive: Path, good: dict[str, str], found: Imported, dry_run: bool) -> None:
    """Reads the archive a second time: it may be larger than the memory."""
    shard = ""
    for name, data in members(archive):
        if isinstance(data, str) or good.get(name) != digest(data):
            continue  # refused before, or not what was verified
        del good[name]
        entry = decode(data)
        if _whole(store, entry.key):
            found.known += 1
            continue
        record = {**entry.record, "imported": {"time": time.time(), "archive": archive.name}}
        if not dry_run:
            error = store.write(replace(entry, record=record))
            if error is not None:
                raise error
            shard = entry.key[:2]
        found.bytes += len(data)
        found.imported.append(replace(entry, contents={}))
    if shard:
        after_storing(store, shard)


def _whole(store: Store, key: str) -> bool:
    """Whether the store has the entry; looking is no use of it, and changes nothing."""
    try:
        return decode(store.path(key).read_bytes()).key == key
    except (OSError, DamagedEntryError):
        return False


def _batches(found: Iterable[Member]) -> Iterator[list[Member]]:
    batch: list[Member] = []
    for member in found:
        batch.append(member)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _recompile(archive: Path, good: dict[str, str], count: int | None) -> int:
    """Compiles entries again; how many of them are of this compiler's version."""
    try:
        compiler = Compiler.find()
    except CompileError:
        return 0  # nor will anything that is stored be found here
    names = sorted(good)
    step = 1 if count is None else max(1, len(names) // count)
    chosen = set(names[::step][:count])

    def one(member: Member) -> tuple[str, bool, str | None]:
        name, data = member
        assert isinstance(data, bytes)
        entry = decode(data)
        fits = same_compiler(entry.components, compiler)
        return name, fits, recompiled(entry, compiler) if fits else None

    done = 0
    wanted = (m for m in members(archive) if m[0] in chosen and m[1] and not isinstance(m[1], str))
    whole = (m for m in wanted if digest(m[1]) == good[m[0]])
    with ThreadPoolExecutor(os.cpu_count() or 1, "vkdnn-verify") as pool:
        for batch in _batches(whole):
            for name, fits, wrong in pool.map(one, batch):
                if wrong:
                    raise StoreError(
                        f"{archive}: {name}: {wrong}; nothing was imported, as the others may be wrong as well: "
                        "export again from a store that `vkdnn cache verify --recompile` finds right"
                    )
                done += fits
    return done
