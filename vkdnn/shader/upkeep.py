"""What keeps the store within its bounds and whole: walking it, evicting by last use, sweeping leftovers, checking.

It must never remove what is not the store's own, nor stop because another process removes the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vkdnn.shader.entry import FORMAT_VERSION, DamagedEntryError, decode
from vkdnn.shader.store import DEFAULT_MAX_DAYS, NEW, QUARANTINE, VERSION_FOLDER, Store, bytes_text, max_bytes

DAY = 86400.0
_ABANDONED_DAYS = 30.0
_LEFTOVER_SECONDS = 3600.0  # a file that is being written is not older
_SHARDS = 256
_KEEP = 0.9  # of the cap after an eviction, so that the next one is not due at once
_SUSPECT = 0.25  # of the cap in one shard's estimate from which on more of the store is counted
_MANY = 20_000  # entries from which on that is a sample of shards, else everything
_SAMPLES = 16  # shards; so many entries of as many sizes are known to 3 %
_NEAR = 0.95  # of the cap in the sample's estimate from which on everything is counted
_OLD_FORMAT, _SHARD = re.compile(r"v\d{1,4}"), re.compile(r"[0-9a-f]{2}")
_KEY = re.compile(r"[0-9a-f]{64}(\.spv|\.json)?")
_ANY_FORMAT = b"vkdnn "  # how an entry of any format begins
_FIRST_KINDS = ("shaders", "verdicts")  # lay at the top before formats had folders of their own
KINDS = ("shaders", "verdicts", "compilers", "tunings")
_QUARANTINED = re.compile(rf"({'|'.join(KINDS)})-[0-9a-f]{{64}}")
UNUSED, EVICTED = "not used for long", "evicted by the size cap"  # why an entry was removed


class Item(NamedTuple):
    """A file of the store, as the folder knows it: there may be a hundred thousand."""

    file: str | Path
    bytes: int
    used: float
    """Seconds since the epoch of the last use."""

    @property
    def path(self) -> Path:
        return Path(self.file)

    @property
    def key(self) -> str:
        return os.path.basename(self.file)


@dataclass
class Removed:
    """What was removed, or would be."""

    entries: int = 0
    bytes: int = 0

    def add(self, item: Item) -> None:
        self.entries += 1
        self.bytes += item.bytes


def items(store: Store) -> Iterator[Item]:
    """Every entry's file of a store, in no order. What else lies there is not the store's."""
    for shard in _shards(store.folder):
        for child in _children(shard.path):
            if _KEY.fullmatch(child.name) and child.name.startswith(shard.name):
                yield from _item(child)


def _shards(folder: str | Path) -> list[os.DirEntry[str]]:
    """The shards in the folder of a kind; a link leads to what is not the store's."""
    return [c for c in _children(folder) if _SHARD.fullmatch(c.name) and c.is_dir(follow_symlinks=False)]


def _children(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []  # gone, or never made


def _item(child: os.DirEntry[str]) -> tuple[Item, ...]:
    try:
        if child.is_file(follow_symlinks=False):
            stat = child.stat(follow_symlinks=False)
            return (Item(child.path, stat.st_size, stat.st_mtime),)
    except OSError:
        pass  # removed since
    return ()


def leftovers(root: Path) -> list[Item]:
    """Files that a killed process left half written."""
    now, found = time.time(), []
    for kind in KINDS:
        for shard in _shards(root / VERSION_FOLDER / kind):
            for child in _children(shard.path):
                if child.name.startswith(NEW):
                    found += [item for item in _item(child) if now - item.used > _LEFTOVER_SECONDS]
    return found


def quarantined(root: Path) -> list[Item]:
    """Damaged files that were set aside."""
    found = (child for child in _children(root / VERSION_FOLDER / QUARANTINE) if _QUARANTINED.fullmatch(child.name))
    return [item for child in found for item in _item(child)]


def old_formats(root: Path) -> list[Item]:
    """Entries that this version of vkdnn cannot read: those of older formats, of which the first had no folder."""
    files = (child for shard in _old_shards(root) for child in _children(shard.path) if _KEY.fullmatch(child.name))
    return [item for child in files for item in _item(child) if _begins(item.path, _ANY_FORMAT)]


def _begins(path: Path, magic: bytes) -> bool:
    """Whether a file begins so: other programs, too, name files by hashes."""
    try:
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _old_shards(root: Path) -> list[os.DirEntry[str]]:
    kinds = [child for child in _children(root) if child.name in _FIRST_KINDS]
    for child in _children(root):
        if _OLD_FORMAT.fullmatch(child.name) and int(child.name[1:]) < FORMAT_VERSION:
            kinds += _children(child.path)
    return [shard for kind in kinds for shard in _shards(kind.path)]


def _abandoned(root: Path) -> bool:
    """Whether there are old formats, and nothing was put there for long: no older vkdnn uses them any more."""
    written = [shard.stat().st_mtime for shard in _old_shards(root)]
    return bool(written) and max(written) < time.time() - _ABANDONED_DAYS * DAY


def remove_old_formats(root: Path, dry_run: bool = False) -> Removed:
    """Removes old_formats() and folders that they leave empty. Raises OSError where the folder does not allow it."""
    removed = Removed()
    for item in old_formats(root):
        removed.add(item)
        if not dry_run:
            item.path.unlink(missing_ok=True)
            for folder in item.path.parents:
                if folder == root or any(_children(folder)):
                    break
                folder.rmdir()
    return removed


def remove(store: Store, doomed: Iterable[Item], reason: str, dry_run: bool = False) -> Removed:
    """Removes entries; ``reason`` is remembered for explanations. Raises OSError where the folder does not allow it."""
    removed, keys = Removed(), []
    trouble: OSError | None = None
    for item in doomed:
        try:
            if not dry_run:
                os.unlink(item.file)
        except FileNotFoundError:
            continue  # another process was quicker
        except OSError as error:
            trouble = error  # one file that stays must not keep the others
            continue
        removed.add(item)
        keys.append(item.key)
    if keys and not dry_run:
        store.note_removed(keys, reason)
    if trouble is not None:
        raise trouble
    return removed


def expired(entries: Iterable[Item], days: float) -> list[Item]:
    """Entries not used for so many days."""
    limit = time.time() - days * DAY
    return [item for item in entries if item.used < limit]


def surplus(entries: Iterable[Item], limit: int, keep: float = 1.0) -> list[Item]:
    """The entries least recently used whose removal brings the whole to ``keep * limit`` bytes, if it is beyond.

    A last use is known to a minute; of entries used within the same one, those written first go first.
    """
    listed = sorted(entries, key=lambda item: (-item.used, item.key))
    total = sum(item.bytes for item in listed)
    doomed: list[Item] = []
    while listed and total > (limit if not doomed else keep * limit):
        doomed.append(listed.pop())
        total -= doomed[-1].bytes
    return doomed


def evicted(limit: int) -> str:
    """Why surplus() entries were removed."""
    return f"{EVICTED} of {bytes_text(limit)}"


def after_storing(store: Store, shard: str) -> None:
    """Keeps the store within its bounds after an entry was put into a shard; to be called by whoever stored it.

    A shard is a 256th of the entries, by chance: only when it looks as if the cap might be near is the whole store
    counted, and of a large store a sample before that, so that storing stays cheap however large the store is.
    """
    limit = max_bytes()
    with contextlib.suppress(OSError):  # what cannot be removed stays
        if _abandoned(store.root):
            remove_old_formats(store.root)
    (count, size), near = _sample(store, [shard]), _SUSPECT * limit
    if size * _SHARDS >= near and count * _SHARDS >= _MANY:
        first = int(shard, 16)
        shards = [f"{(first + _SHARDS // _SAMPLES * n) % _SHARDS:02x}" for n in range(_SAMPLES)]
        (count, size), near = _sample(store, shards), _NEAR * limit * _SAMPLES
    if size * _SHARDS < near:
        return
    everything = list(items(store))
    old = expired(everything, DEFAULT_MAX_DAYS)
    gone = {item.key for item in old}
    excess = surplus((i for i in everything if i.key not in gone), limit, _KEEP)
    for doomed, reason in ((old, UNUSED), (excess, evicted(limit))):
        with contextlib.suppress(OSError):  # what cannot be removed stays
            remove(store, doomed, reason)
    for item in leftovers(store.root):
        with contextlib.suppress(OSError):
            item.path.unlink(missing_ok=True)


def _sample(store: Store, shards: Iterable[str]) -> tuple[int, int]:
    """How many entries some shards have, and of how many bytes."""
    sizes = [i.bytes for shard in shards for child in _children(store.folder / shard) for i in _item(child)]
    return len(sizes), sum(sizes)


def check(store: Store, progress: Callable[[int], None] | None = None) -> list[tuple[Item, str]]:
    """Every entry that is damaged, with what is wrong. Moves and changes nothing.

    ``progress`` hears how many were looked at.
    """
    wrong = []
    for count, item in enumerate(items(store), 1):
        with contextlib.suppress(FileNotFoundError):  # removed since
            trouble = entry_trouble(store, item)
            if trouble:
                wrong.append((item, trouble))
        if progress is not None:
            progress(count)
    return wrong


def entry_trouble(store: Store, item: Item) -> str | None:
    """What is wrong with the file of an entry, None if nothing is. Raises FileNotFoundError where it is gone."""
    try:
        entry = decode(item.path.read_bytes())
    except FileNotFoundError:
        raise
    except (DamagedEntryError, OSError) as error:
        return str(error)
    return None if (entry.kind, entry.key) == (store.kind, item.key) else "entry: it lies under another's key"
