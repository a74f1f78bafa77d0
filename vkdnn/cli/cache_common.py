"""What the cache commands share: the store's folder, finding keys, reading headers with a bar, sizes and ages in words.

Nothing here may fail because another process writes to the store, or removes from it, at the same time.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vkdnn.cli.console import CountColumn, counted, printable
from vkdnn.errors import ArgumentError, StoreError
from vkdnn.shader import Store
from vkdnn.shader.entry import DamagedEntryError, Entry, decode, decode_header
from vkdnn.shader.explain import Removal, compiled_at, parse_removals
from vkdnn.shader.store import REMOVED, bytes_text, cache_folder
from vkdnn.shader.upkeep import DAY, KINDS, Item, items

SHADERS = "shaders"
DIGITS = 12  # of a key in lists
_LEAST_DIGITS = 4
_HEADER_BYTES = 8192
_MOST_HEADER_BYTES = 1 << 20
_BAR_SECONDS = 2.0
# Columns that are never cut: those of the store, and of tunings.
_FIXED = {"", "key", "size", "age", "used", "took", "sizes"} | {"launches", "default ms", "ms", "gain", "runs"}
_WIDTH = 160  # of tables that no terminal shows
_LISTED = 10  # keys that an ambiguous prefix lists


def root() -> Path:
    """The folder of the store. Raises StoreError where it is switched off."""
    folder = cache_folder()
    if folder is None:
        raise StoreError("the store is switched off by VKDNN_CACHE_DISABLE; unset it to look at it or change it")
    return folder


def stores(kind: str | None = None) -> list[Store]:
    """The stores of all kinds, or of one. Raises ArgumentError for a kind that there is not."""
    if kind is not None and kind not in KINDS:
        raise ArgumentError(f"--kind: got {kind!r}, expected {', '.join(KINDS)}")
    return [Store(root(), k) for k in KINDS if kind in (None, k)]


def header(item: Item) -> Entry | None:
    """The entry of a file without its contents; None for one that is gone or damaged."""
    try:
        with open(item.path, "rb") as file:
            beginning = file.read(_HEADER_BYTES)
            found = decode_header(beginning)
            if found is None and len(beginning) == _HEADER_BYTES:
                found = decode_header(beginning + file.read(_MOST_HEADER_BYTES))
    except OSError:
        return None
    return found if found is not None and found.key == item.key else None


def load(path: Path) -> Entry | None:
    """A whole entry, without noting a use of it; None for one that is gone or damaged."""
    try:
        entry = decode(path.read_bytes())
    except (OSError, DamagedEntryError):
        return None
    return entry if entry.key == path.name else None


def headers(store: Store, console: Console) -> list[tuple[Item, Entry]]:
    """Every entry that can be read, with its file."""
    found = []
    everything = list(items(store))
    with bar(console, "reading entries", len(everything)) as progress:
        for number, item in enumerate(everything, 1):
            entry = header(item)
            if entry is not None:
                found.append((item, entry))
            progress(number)
    return found


def find(key: str, kind: str | None = None) -> Item:
    """The file whose key begins so. Raises ArgumentError for none, for several, and for what is no prefix."""
    prefix = key.lower()
    if not re.fullmatch(rf"[0-9a-f]{{{_LEAST_DIGITS},64}}", prefix):
        raise ArgumentError(f"key: got {key!r}, expected the first {_LEAST_DIGITS} or more hexadecimal digits of a key")
    found = [i for store in stores(kind) for i in items(store) if i.key.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ArgumentError(f"key: no entry of {root()} begins with {prefix!r}; `vkdnn cache list` lists them")
    listed = []
    for item in sorted(found, key=lambda i: i.key)[:_LISTED]:
        entry = header(item)
        label = label_of(entry) if entry is not None else "damaged"
        listed.append(f"{item.key[: max(DIGITS, len(prefix) + 4)]} ({label})")
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    raise ArgumentError(f"key: {len(found)} entries begin with {prefix!r}: {', '.join(listed)}{more}; give more digits")


def found_entry(key: str, kind: str | None = None) -> tuple[Item, Entry]:
    """The file and the whole entry of a key. Raises StoreError for a damaged one."""
    item = find(key, kind)
    entry = load(item.path)
    if entry is None:
        raise StoreError(
            f"entry {item.key[:DIGITS]} is damaged, or was removed a moment ago; `vkdnn cache repair` sets damaged "
            "entries aside"
        )
    return item, entry


def removals(folder: Path) -> list[Removal]:
    """What the store remembers of entries that are gone."""
    path = Store(folder).base / REMOVED
    found: list[Removal] = []
    for place in (path.with_suffix(".old"), path):
        with contextlib.suppress(OSError):
            found += parse_removals(place.read_text(encoding="utf-8", errors="replace"))
    return found


class Advance(Protocol):
    """Tells a bar how much is done, and the whole where that was not known before."""

    def __call__(self, done: int, whole: int | None = None) -> None: ...


@contextlib.contextmanager
def bar(console: Console, what: str, total: int | None, at_once: bool = False) -> Iterator[Advance]:
    """A progress bar on a terminal that shows itself when the work takes longer than a moment, or at once."""
    begun = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(24), CountColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = shown.add_task(what, total=total)
    started = False

    def progress(done: int, whole: int | None = None) -> None:
        nonlocal started
        if not started and (at_once or time.monotonic() - begun > _BAR_SECONDS):
            shown.start()
            started = True
        if started:
            shown.update(task, completed=done, total=total if whole is None else whole)

    try:
        yield progress
    finally:
        if started:
            shown.stop()


# ---- words


def size(count: int) -> str:
    """Bytes for people."""
    return bytes_text(count)


def entries(count: int) -> str:
    """1 entry, 2 entries."""
    return f"{count:,} entr" + ("y" if count == 1 else "ies")


def ago(moment: float) -> str:
    """How long ago a time was, in words."""
    seconds = time.time() - moment
    if moment <= 0:
        return "never"
    if seconds < 1:
        return "now"
    for unit, name in ((365 * DAY, "year"), (30 * DAY, "month"), (DAY, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            return f"{counted(int(seconds // unit), name)} ago"
    return f"{counted(int(seconds), 'second')} ago"


def age(moment: float) -> str:
    """ago() for columns: 40s, 3h, 12d."""
    seconds = max(0.0, time.time() - moment)
    for unit, name in ((365 * DAY, "y"), (DAY, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds // unit:.0f}{name}"
    return f"{seconds:.0f}s"


def used_ago(moment: float) -> str:
    """ago() of a last use, of which the store knows the minute."""
    return ago(moment) if moment <= 0 or time.time() - moment >= 60 else "less than a minute ago"


def used_age(moment: float) -> str:
    """age() of a last use."""
    return age(moment) if time.time() - moment >= 60 else "<1m"


def label_of(entry: Entry) -> str:
    """What an entry is called, on one line, safe for a terminal."""
    label = entry.record.get("label") or entry.components.get("path") or entry.components.get("device") or entry.kind
    return printable(str(label)).replace("\n", " ")


def family_of(entry: Entry) -> str:
    return printable(str(entry.record.get("family", ""))).replace("\n", " ")


def row(item: Item, entry: Entry) -> dict[str, Any]:
    """An entry of a list as JSON."""
    seconds = entry.record.get("seconds")
    return {
        "key": item.key,
        "kind": entry.kind,
        "family": family_of(entry),
        "label": label_of(entry),
        "bytes": item.bytes,
        "compiled": compiled_at(entry) or None,
        "used": item.used,
        "seconds": float(seconds) if isinstance(seconds, (int, float)) else None,
    }


def table(*columns: str) -> Table:
    """A plain table; a column whose name begins with > is aligned to the right. Labels give way where it is narrow."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        justify: JustifyMethod = "right" if name.startswith(">") else "left"
        made.add_column(name.removeprefix(">"), justify=justify, no_wrap=True, overflow="ellipsis")
    return made


def print_table(console: Console, made: Table, width: int = _WIDTH) -> None:
    """Wide enough for whatever reads it where that is no terminal."""
    for column in made.columns:
        if column.header in _FIXED:
            column.min_width = max(map(cell_len, map(str, [column.header, *column.cells])))
    if not console.is_terminal:
        console.width = max(console.width, width)
    console.print(made)


def plain(text: str) -> Text:
    """Text of a table's cell that is no markup."""
    return Text(printable(text))
