"""vkdnn cache stats and list: how large the store is, and what is in it.

They must never change an entry, nor count as a use of one.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import filelock
import typer
from rich.console import Console
from rich.markup import escape

from vkdnn.cli.cache_common import (
    DIGITS,
    SHADERS,
    age,
    entries,
    header,
    headers,
    plain,
    print_table,
    root,
    row,
    size,
    stores,
    table,
    used_age,
    used_ago,
)
from vkdnn.cli.console import JsonOption, counted, output, print_json
from vkdnn.errors import CompileError
from vkdnn.shader import Compiler, Store
from vkdnn.shader.entry import FORMAT_VERSION
from vkdnn.shader.store import DEFAULT_MAX_DAYS, LOCKS, NEW, max_bytes
from vkdnn.shader.upkeep import Item, items, leftovers, old_formats, quarantined

_KEY_DIGITS = 64
_REMEDY = "shaders are compiled again in each process; make it writable, or set VKDNN_CACHE_DIR to another folder"

KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind", metavar="KIND", help="[bold]shaders[/], [bold]verdicts[/], [bold]compilers[/], [bold]tunings[/]."
    ),
]


# ---- stats


def stats(as_json: JsonOption = False) -> None:
    """How large the store is, how near its bounds, and whether it works.

    Nothing but storing shaders brings a store that is larger than VKDNN_CACHE_MAX_BYTES back under it;
    `vkdnn cache prune` does so at once.

    JSON: folder, works (whether entries can be written), trouble (why not, or null), format, kinds {kind: {entries,
    bytes}}, entries, bytes, max_bytes, share (of max_bytes; null where that is 0), max_days, oldest_use, newest_use
    (seconds since 1970, or null), quarantined, leftovers and old_formats {entries, bytes}, locks (true, false; null:
    nothing to lock yet), compiler {path, version} or null, compiler_error.
    """
    console = output()
    folder = root()
    found = _stats(folder)
    if as_json:
        print_json(found)
        return
    rows = [
        ("folder", str(folder) + ("" if folder.exists() else " (not made yet)")),
        ("works", "yes" if found["works"] else f"no: {found['trouble']}; {_REMEDY}"),
        ("format", f"v{FORMAT_VERSION}"),
    ]
    for kind, part in found["kinds"].items():
        rows.append((kind, f"{entries(part['entries'])}, {size(part['bytes'])}"))
    whole, limit = found["bytes"], found["max_bytes"]
    share = "" if found["share"] is None else f" ({found['share']:.1%})"
    beyond = "; `vkdnn cache prune` removes what is beyond" if whole > limit else ""
    rows.append(("size", f"{size(whole)} of {size(limit)}{share}, VKDNN_CACHE_MAX_BYTES{beyond}"))
    if found["entries"]:
        rows.append(("last use", f"newest {used_ago(found['newest_use'])}, oldest {used_ago(found['oldest_use'])}"))
    for name, where in (("quarantined", "prune"), ("leftovers", "repair"), ("old_formats", "prune")):
        part = found[name]
        if part["entries"]:
            text = f"{counted(part['entries'], 'file')}, {size(part['bytes'])}; `vkdnn cache {where}` removes them"
            rows.append((name.replace("_", " "), text))
    locks = {True: "usable", False: "not usable: several processes may compile the same shader", None: "none yet"}
    rows.append(("locks", locks[found["locks"]]))
    compiler = found["compiler"]
    rows.append(("compiler", compiler["path"] if compiler else f"none: {found['compiler_error']}"))
    for name, text in rows:
        console.print(f"[bold]{name:<13}[/]{escape(text)}")


def _stats(folder: Path) -> dict[str, Any]:
    compiler, trouble = _compiler()
    counts, limit = {store.kind: counted_items(store) for store in stores()}, max_bytes()
    kinds = {kind: {"entries": part.entries, "bytes": part.bytes} for kind, part in counts.items()}
    whole = sum(part.bytes for part in counts.values())
    used = [moment for part in counts.values() if part.entries for moment in (part.oldest, part.newest)]
    trouble_of_folder = writing_trouble(folder)
    return {
        "folder": str(folder),
        "works": trouble_of_folder is None,
        "trouble": trouble_of_folder,
        "format": FORMAT_VERSION,
        "kinds": kinds,
        "entries": sum(part.entries for part in counts.values()),
        "bytes": whole,
        "max_bytes": limit,
        "share": whole / limit if limit else None,
        "max_days": DEFAULT_MAX_DAYS,
        "oldest_use": min(used, default=None),
        "newest_use": max(used, default=None),
        "quarantined": _summed(quarantined(folder)),
        "leftovers": _summed(leftovers(folder)),
        "old_formats": _summed(old_formats(folder)),
        "locks": _locks(folder),
        "compiler": compiler,
        "compiler_error": trouble,
    }


def writing_trouble(folder: Path) -> str | None:
    """Why entries cannot be written; None where they can. Leaves nothing behind."""
    store = Store(folder, SHADERS)
    places = [place for place in (folder, store.base, store.folder) if os.path.lexists(place)]
    if not places:  # the folder would be made in the first of those above that is there
        places = [next((p for p in folder.absolute().parents if os.path.lexists(p)), Path("/"))]
    for place in places:
        try:
            with tempfile.TemporaryFile(prefix=NEW, dir=place) as file:
                file.write(b"0")
        except OSError as error:
            what = "cannot be written" if place in (folder, store.base, store.folder) else "takes no new folder"
            return f"{place} {what} ({error.strerror or error})"
    return None


@dataclass
class Counted:
    """How many entries there are, their bytes, and the times of the first and the last use."""

    entries: int = 0
    bytes: int = 0
    oldest: float = float("inf")
    newest: float = 0.0


def counted_items(store: Store) -> Counted:
    """upkeep.items() summed up, three times as fast: a store may have a hundred thousand."""
    found = Counted()
    for shard in scanned(store.folder):
        for child in scanned(shard.path):
            if len(child.name) != _KEY_DIGITS:
                continue
            try:
                status = child.stat(follow_symlinks=False)
            except OSError:
                continue  # removed since
            if stat.S_ISREG(status.st_mode):
                found.entries += 1
                found.bytes += status.st_size
                found.oldest = min(found.oldest, status.st_mtime)
                found.newest = max(found.newest, status.st_mtime)
    return found


def scanned(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _summed(files: list[Item]) -> dict[str, int]:
    return {"entries": len(files), "bytes": sum(i.bytes for i in files)}


def _compiler() -> tuple[dict[str, str] | None, str | None]:
    try:
        found = Compiler.find()
    except CompileError as error:
        return None, str(error)
    return {"path": found.path, "version": found.version}, None


def _locks(folder: Path) -> bool | None:
    place = Store(folder).base / LOCKS
    if not place.is_dir():
        return None
    try:
        with filelock.FileLock(place / "00", timeout=0):
            return True
    except filelock.Timeout:
        return True  # another process is compiling
    except (OSError, NotImplementedError):
        return False


# ---- list


class Order(StrEnum):
    """What the first of a list has most of."""

    used = "used"
    compiled = "compiled"
    size = "size"
    seconds = "seconds"
    label = "label"
    key = "key"


_QUICK = {Order.used: lambda i: (-i.used, i.key), Order.size: lambda i: (-i.bytes, i.key), Order.key: lambda i: i.key}
_SLOW = {
    Order.compiled: lambda r: -(r["compiled"] or 0.0),
    Order.seconds: lambda r: -(r["seconds"] or 0.0),
    Order.label: lambda r: (r["label"], r["key"]),
}


def list_entries(
    kind: KindOption = SHADERS,
    sort: Annotated[Order, typer.Option(help="The latest, largest, slowest first; label and key by alphabet.")] = (
        Order.used
    ),
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="At most so many; 0 for all.")] = 50,
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of this kernel family, such as FoldSpec or fold.")
    ] = None,
    match: Annotated[str | None, typer.Option(metavar="TEXT", help="With this text in the label.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List entries: key, family, label, size, age, last use and the time that compiling took.

    Last uses are known to a minute: one is noted when the one before is older than that, so that reading seldom writes.

    JSON: total, shown, entries [{key, kind, family, label, bytes, compiled, used, seconds}].
    """
    console = output(as_json)
    total, rows = _listed(console, kind, sort, limit, family, match)
    if as_json:
        print_json({"total": total, "shown": len(rows), "entries": rows})
        return
    if not rows:
        console.print("no entries" + (" like that" if family or match else f" in {escape(str(root()))}"))
        return
    made = table("key", "family", "label", ">size", ">age", ">used", ">took")
    for r in rows:
        compiled = age(r["compiled"]) if r["compiled"] else ""
        took = "" if r["seconds"] is None else f"{r['seconds']:.2f} s"
        cells = (r["key"][:DIGITS], r["family"], r["label"], size(r["bytes"]), compiled, used_age(r["used"]), took)
        made.add_row(*map(plain, cells))
    print_table(console, made)
    if len(rows) < total:
        console.print(f"{len(rows)} of {entries(total)}; --limit 0 lists all")


def _listed(
    console: Console, kind: str | None, sort: Order, limit: int, family: str | None, match: str | None
) -> tuple[int, list[dict[str, Any]]]:
    quick = _QUICK.get(sort)
    rows: list[dict[str, Any]] = []
    if quick is not None and not family and not match:  # only those shown have to be read
        everything = sorted((i for store in stores(kind) for i in items(store)), key=quick)
        for item in everything:
            if limit and len(rows) == limit:
                break
            entry = header(item)
            if entry is not None:
                rows.append(row(item, entry))
        return len(everything), rows
    for store in stores(kind):
        for item, entry in headers(store, console):
            found = row(item, entry)
            if (not family or is_family(found["family"], family)) and (
                not match or match.lower() in found["label"].lower()
            ):
                rows.append(found | {"_item": item})
    rows.sort(key=_SLOW[sort] if quick is None else lambda r: quick(r["_item"]))
    for found in rows:
        del found["_item"]
    return len(rows), rows[: limit or None]


def is_family(found: str, asked: str) -> bool:
    """Whether a family is called so: FoldSpec is also fold."""
    return found.lower() in (asked.lower(), f"{asked.lower()}spec")
