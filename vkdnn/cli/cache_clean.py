"""vkdnn cache prune and clear: removing entries, and nothing that is not the store's.

Someone may have VKDNN_CACHE_DIR in a folder of their own: no folder is ever removed with what is in it.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Any

import filelock
import typer

from vkdnn.cli.cache_check import DryRun
from vkdnn.cli.cache_common import entries, root, size, stores
from vkdnn.cli.cache_look import KindOption
from vkdnn.cli.console import JsonOption, output, print_json
from vkdnn.errors import ArgumentError
from vkdnn.shader import Store
from vkdnn.shader.store import DEFAULT_MAX_DAYS, LOCKS, QUARANTINE, max_bytes, parse_bytes
from vkdnn.shader.upkeep import (
    KINDS,
    UNUSED,
    Item,
    Removed,
    evicted,
    expired,
    items,
    leftovers,
    quarantined,
    remove,
    remove_old_formats,
    surplus,
)


def prune(
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            help="Remove the entries least recently used until the rest is no larger; such as 500M or 2G. Default: "
            "VKDNN_CACHE_MAX_BYTES, else 2 GiB.",
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--max-days",
            min=0.0,
            metavar="DAYS",
            help=f"Remove entries that were not used for so long. Default: {DEFAULT_MAX_DAYS:g}.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Bring the store within a size and an age, and remove leftovers, damaged files set aside and old formats.

    A process does so only when it stores shaders and finds the store too large; this command acts at once. Last uses
    are known to a minute: of entries used within the same one, those written first go first.

    JSON: dry_run, expired, surplus, leftovers, quarantined, old_formats {entries, bytes}, left {entries, bytes}.
    """
    limit = parse_bytes("--max-bytes", max_size) if max_size is not None else max_bytes()
    everything = {store: list(items(store)) for store in stores()}
    reason = evicted(limit) if max_size is None else f"pruned to {size(limit)}"
    age = DEFAULT_MAX_DAYS if days is None else days
    old, over = Removed(), Removed()
    gone: set[Path] = set()
    for store, found in everything.items():
        _add(old, remove(store, _kept(expired(found, age), gone), UNUSED, dry_run))
    whole = [i for found in everything.values() for i in found if i.path not in gone]
    doomed = {i.path for i in surplus(whole, limit)}
    for store, found in everything.items():
        chosen = [i for i in found if i.path in doomed]
        _add(over, remove(store, _kept(chosen, gone), reason, dry_run))
    left = Removed()
    for item in (i for i in whole if i.path not in gone):
        left.add(item)
    parts = {
        "expired": old,
        "surplus": over,
        "leftovers": _unlinked(leftovers(root()), dry_run),
        "quarantined": _unlinked(quarantined(root()), dry_run),
        "old_formats": remove_old_formats(root(), dry_run),
    }
    _report(parts, left, dry_run, as_json)


def _kept(chosen: list[Item], gone: set[Path]) -> list[Item]:
    gone.update(i.path for i in chosen)
    return chosen


def _add(whole: Removed, part: Removed) -> None:
    whole.entries += part.entries
    whole.bytes += part.bytes


def _unlinked(files: list[Item], dry_run: bool) -> Removed:
    found = Removed()
    for item in files:
        found.add(item)
        if not dry_run:
            item.path.unlink(missing_ok=True)
    return found


_NAMES = {
    "expired": "not used for long",
    "surplus": "beyond the size",
    "entries": "entries",
    "leftovers": "leftovers of killed processes",
    "quarantined": "damaged files that were set aside",
    "old_formats": "entries of old formats",
}


def _report(parts: dict[str, Removed], left: Removed, dry_run: bool, as_json: bool) -> None:
    if as_json:
        result: dict[str, Any] = {"dry_run": dry_run}
        print_json(result | {name: vars(part) for name, part in parts.items()} | {"left": vars(left)})
        return
    console = output()
    whole = Removed()
    for part in parts.values():
        _add(whole, part)
    verb = "would remove" if dry_run else "removed"
    console.print(
        f"{verb} {whole.entries:,} ({size(whole.bytes)}); left: {entries(left.entries)} ({size(left.bytes)})",
        markup=False,
    )
    for name, part in parts.items():
        if part.entries and len(parts) > 1:
            console.print(f"  {_NAMES[name]}: {part.entries:,} ({size(part.bytes)})", markup=False)


def clear(kind: KindOption = None, dry_run: DryRun = False, as_json: JsonOption = False) -> None:
    """Remove every entry, or those of one kind, and nothing else that is in the folder.

    Without --kind also leftovers, damaged files that were set aside, old formats and locks. JSON: dry_run, entries,
    leftovers, quarantined, old_formats {entries, bytes}, left {entries, bytes}.
    """
    if kind is not None and kind not in KINDS:
        raise ArgumentError(f"--kind: got {kind!r}, expected {', '.join(KINDS)}")
    removed, left = Removed(), Removed()
    for store in stores():
        found = list(items(store))
        if kind in (None, store.kind):
            _add(removed, remove(store, found, "cleared", dry_run))
        else:
            for item in found:
                left.add(item)
    parts = {"entries": removed}
    if kind is None:
        parts |= {
            "leftovers": _unlinked(leftovers(root()), dry_run),
            "quarantined": _unlinked(quarantined(root()), dry_run),
            "old_formats": remove_old_formats(root(), dry_run),
        }
    if not dry_run:
        _sweep(kind)
    _report(parts, left, dry_run, as_json)


def _sweep(kind: str | None) -> None:
    """Folders of the store that are empty now, and, if everything was cleared, locks that nobody holds."""
    base = Store(root()).base
    for store in stores(kind):
        _remove_empty(store.folder)
    if kind is None:
        _remove_empty(base / QUARANTINE)
        _remove_locks(base / LOCKS)
        with contextlib.suppress(OSError):
            base.rmdir()  # where nothing was ever removed from it


def _remove_locks(folder: Path) -> None:
    """Locks that nobody holds. Whoever just waits for one may make a shader twice, which is all that locks are for."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if re.fullmatch("[0-9a-f]{2}|tu", path.name):  # shards', and that of tuning
                with contextlib.suppress(OSError, NotImplementedError), filelock.FileLock(path, timeout=0):
                    path.unlink()
        folder.rmdir()


def _remove_empty(folder: Path) -> None:
    """A folder and the folders in it, where they are empty."""
    with contextlib.suppress(OSError):  # gone, in use again, or not to be written
        for child in folder.iterdir():
            if child.is_dir() and not child.is_symlink():
                with contextlib.suppress(OSError):
                    child.rmdir()
        folder.rmdir()
