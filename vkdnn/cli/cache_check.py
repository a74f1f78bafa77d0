"""vkdnn cache verify and repair: every entry looked at whole; what is wrong is set aside, never mended in place.

A verify must change nothing, and neither may take an entry that another process just replaces for a damaged one.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console

from vkdnn.cli.cache_common import DIGITS, SHADERS, bar, entries, root, size, stores
from vkdnn.cli.console import JsonOption, counted, output, print_json, printable
from vkdnn.shader import Compiler, Store
from vkdnn.shader.entry import DamagedEntryError, Entry, decode
from vkdnn.shader.store import QUARANTINE
from vkdnn.shader.upkeep import Item, Removed, items, leftovers, remove_old_formats
from vkdnn.shader.verify import recompiled, same_compiler, trouble, validator

DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")]
Recompile = Annotated[
    int | None,
    typer.Option(
        "--recompile",
        min=0,
        metavar="N",
        help="Also compile N shaders again, spread over the store, and compare the bytes; 0 for all. Those of "
        "another compiler's version are left out.",
    ),
]


@dataclass
class Verdict:
    """What a look at everything found: ``wrong`` has (store, file, what is wrong)."""

    looked_at: int = 0
    recompiled: int = 0
    other_compiler: int = 0
    wrong: list[tuple[Store, Item, str]] = field(default_factory=list)
    proven: set[str] = field(default_factory=set)
    """Keys of those that only compiling again has shown."""

    def record(self) -> dict[str, Any]:
        wrong = [{"kind": s.kind, "key": i.key, "bytes": i.bytes, "trouble": t} for s, i, t in self.wrong]
        return {
            "entries": self.looked_at,
            "recompiled": self.recompiled,
            "other_compiler": self.other_compiler,
            "wrong": wrong,
        }


def verify(recompile: Recompile = None, as_json: JsonOption = False) -> None:
    """Look at every entry: checksum, key, texts against components, SPIR-V word by word and by spirv-val.

    Exit status 1 if anything is wrong. JSON: entries (looked at), recompiled, other_compiler (left out of recompiling),
    spirv_val (whether it is installed), wrong [{kind, key, bytes, trouble}].
    """
    console = output(as_json)
    found = _looked(console)
    if recompile is not None:
        _recompile(found, recompile, console)
    if as_json:
        print_json(found.record() | {"spirv_val": validator() is not None})
    else:
        for store, item, text in found.wrong:
            console.print(f"{store.kind} {item.key[:DIGITS]}: {printable(text)}", markup=False, style="red")
        _print_verdict(console, found)
        if found.wrong:
            again = "" if recompile is None else f" --recompile {recompile}"
            console.print(f"`vkdnn cache repair{again}` sets them aside")
    if found.wrong:
        raise typer.Exit(1)


def _print_verdict(console: Console, found: Verdict) -> None:
    what = "nothing wrong" if not found.wrong else f"{entries(len(found.wrong))} wrong"
    parts = [f"{entries(found.looked_at)} looked at, {what}"]
    if found.recompiled or found.other_compiler:
        parts.append(f"{counted(found.recompiled, 'shader')} compiled again")
    if found.other_compiler:
        parts.append(f"{found.other_compiler:,} of another compiler left out")
    if validator() is None:
        parts.append("spirv-val is not installed and was not asked")
    console.print("; ".join(parts), markup=False)


def repair(recompile: Recompile = None, dry_run: DryRun = False, as_json: JsonOption = False) -> None:
    """Set aside what verify finds wrong, and remove leftovers of killed processes and entries of old formats.

    What is set aside lies in the folder quarantine until prune; shaders are made again when they are needed.
    JSON: dry_run, entries (looked at), quarantined, leftovers, old_formats {entries, bytes}, wrong as verify has it.
    """
    console = output(as_json)
    found = _looked(console)
    if recompile is not None:
        _recompile(found, recompile, console)
    aside, swept = Removed(), Removed()
    for store, item, _ in found.wrong:
        if dry_run or _set_aside(store, item, item.key in found.proven):
            aside.add(item)
    for item in leftovers(root()):
        swept.add(item)
        if not dry_run:
            item.path.unlink(missing_ok=True)
    old = remove_old_formats(root(), dry_run)
    if as_json:
        parts = {"quarantined": aside, "leftovers": swept, "old_formats": old}
        print_json({"dry_run": dry_run} | found.record() | {name: vars(part) for name, part in parts.items()})
        return
    for store, item, text in found.wrong:
        console.print(f"{store.kind} {item.key[:DIGITS]}: {printable(text)}", markup=False)
    would = "would be " if dry_run else ""
    console.print(
        f"{entries(found.looked_at)} looked at; {would}set aside {aside.entries:,} ({size(aside.bytes)}); "
        f"{would}removed {counted(swept.entries, 'leftover')} ({size(swept.bytes)}) and "
        f"{entries(old.entries)} of old formats ({size(old.bytes)})",
        markup=False,
    )


def _looked(console: Console) -> Verdict:
    found = Verdict()
    work = [(store, item) for store in stores() for item in items(store)]
    with bar(console, "verifying", len(work)) as progress, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for number, (pair, text) in enumerate(zip(work, pool.map(_trouble, work), strict=True), 1):
            if text is not None:
                found.wrong.append((*pair, text))
            progress(number)
    found.looked_at = len(work)
    return found


def _trouble(pair: tuple[Store, Item]) -> str | None:
    store, item = pair
    try:
        entry = decode(item.path.read_bytes())
    except FileNotFoundError:
        return None  # removed since
    except DamagedEntryError as error:
        return str(error).removeprefix("entry: ")
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if (entry.kind, entry.key) != (store.kind, item.key):
        return "it lies under another's key"
    return trouble(entry) if entry.kind == SHADERS else None


def _recompile(found: Verdict, count: int, console: Console) -> None:
    compiler = Compiler.find()
    store = next(s for s in stores(SHADERS))
    wrong = {item.key for _, item, _ in found.wrong}
    everything = sorted((i for i in items(store) if i.key not in wrong), key=lambda i: i.key)
    step = max(1, len(everything) // count) if count else 1
    chosen = everything[::step][: count or None]

    def one(item: Item) -> tuple[bool, str | None]:
        entry = _whole(item)
        if entry is None:
            return True, None
        fits = same_compiler(entry.components, compiler)
        return fits, recompiled(entry, compiler) if fits else None

    with bar(console, "compiling again", len(chosen)) as progress, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for number, (item, (fits, text)) in enumerate(zip(chosen, pool.map(one, chosen), strict=True), 1):
            found.recompiled += fits
            found.other_compiler += not fits
            if text is not None:
                found.wrong.append((store, item, text))
                found.proven.add(item.key)
            progress(number)


def _whole(item: Item) -> Entry | None:
    with contextlib.suppress(OSError, DamagedEntryError):
        return decode(item.path.read_bytes())
    return None


def _set_aside(store: Store, item: Item, proven: bool) -> bool:
    """Moves a wrong file to quarantine; False if it is gone, or another process has put a right one there.

    What compiling again has ``proven`` wrong looks right otherwise.
    """
    if not proven and _trouble((store, item)) is None:
        return False
    place = store.base / QUARANTINE / f"{store.kind}-{item.key}"
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(item.path, place)
        entry = _whole(Item(place, item.bytes, item.used))
        whole = entry is not None and (entry.kind, entry.key) == (store.kind, item.key)
        if not proven and entry is not None and whole and (entry.kind != SHADERS or trouble(entry) is None):
            os.replace(place, item.path)  # put there since
            return False
    except FileNotFoundError:
        return False
    store.note_removed([item.key], "damaged")
    return True
