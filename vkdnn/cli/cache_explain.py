"""vkdnn cache explain-miss: why shaders were compiled, by what differs from the nearest older entry.

It must never say more than the entries and the list of removed ones show.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vkdnn.cli.cache_common import (
    DIGITS,
    SHADERS,
    ago,
    bar,
    family_of,
    find,
    headers,
    label_of,
    load,
    removals,
    root,
    size,
)
from vkdnn.cli.cache_show import print_diff
from vkdnn.cli.console import JsonOption, counted, output, print_json, printable
from vkdnn.errors import StoreError
from vkdnn.shader import Store
from vkdnn.shader.entry import Entry
from vkdnn.shader.explain import (
    Change,
    Index,
    Removal,
    changes,
    compiled_at,
    here_since,
    imported_at,
    last_process,
    removal_before,
    removed_text,
    unified,
)
from vkdnn.shader.store import max_bytes
from vkdnn.shader.upkeep import EVICTED

_NAMED = 3  # shaders of one reason that are named without --verbose
_DIFF_LINES = 60  # of one shader's GLSL


@dataclass(frozen=True)
class Removals:
    """Entries of shaders that were removed before a moment, and since."""

    before: tuple[Removal, ...]
    since: tuple[Removal, ...]

    @property
    def all(self) -> tuple[Removal, ...]:
        return (*self.before, *self.since)


@dataclass(frozen=True)
class Explained:
    """A shader and why it was compiled: its entry was removed, or the nearest differs; neither: it is the first.

    ``gone`` is what was removed before its process began to compile and since: what was like it may be among them.
    """

    entry: Entry
    removal: Removal | None = None
    nearest: Entry | None = None
    changes: tuple[Change, ...] = ()
    gone: Removals | None = None

    @property
    def imported(self) -> bool:
        return imported_at(self.entry) is not None

    @property
    def reason(self) -> str:
        return self.reason_of(1)

    def reason_of(self, count: int) -> str:
        """The reason of so many shaders that share it."""
        one = count == 1
        moment = imported_at(self.entry)
        if moment is not None:
            stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
            return f"imported from {_archive(self.entry)} on {stamp}, compiled elsewhere"
        if self.removal is not None:
            whose = "its entry was" if one else "their entries were"
            return f"{whose} removed: {self.removal.reason} {ago(self.removal.time)}"
        if self.nearest is None:
            return self._first(one)
        return "; ".join(c.text for c in self.changes) or "nothing differs: compiled twice at once"

    def _first(self, one: bool) -> str:
        its, it = ("its", "it") if one else ("their", "them")
        before, since = (self.gone.before, self.gone.since) if self.gone is not None else ((), ())
        if since:
            when = "before and since" if before else "since"
            return f"nothing like {it} is left: {removed_text((*before, *since), when)}"
        if before:
            return f"the first of {its} kind among what was left: {removed_text(before, 'before')}"
        return f"the first of {its} kind: no older entry like {it}"

    @property
    def group(self) -> str:
        """Shaders with the same are told together."""
        return self.reason if self.removal is None else f"removed: {self.removal.reason}"

    @property
    def sibling(self) -> bool:
        """Whether the nearest was made by the same process."""
        return self.nearest is not None and self.nearest.record.get("process") == self.entry.record.get("process")

    def record(self) -> dict[str, Any]:
        gone, near = self.removal, self.nearest
        return {
            "key": self.entry.key,
            "family": family_of(self.entry),
            "label": label_of(self.entry),
            "compiled": compiled_at(self.entry) or None,
            "imported": imported_at(self.entry),
            "process": self.entry.record.get("process"),
            "reason": self.reason,
            "removed": None if gone is None else {"reason": gone.reason, "time": gone.time},
            "nearest": None if near is None else near.key,
            "nearest_label": None if near is None else label_of(near),
            "same_process": self.sibling,
            "changes": [c.record() for c in self.changes],
        }


def explain_miss(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="A key, or its first 4 or more digits. Left out: all shaders of the last process that compiled any.",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Name every shader, and show how the GLSL differs from the nearest's."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say why a shader was compiled, or compiled again.

    JSON: store (folder), process, compiled (when it began, seconds since 1970), store_was_empty, removed_since
    [{reason, count, last}], shaders [{key, family, label, compiled, imported (when, or null), process, reason, removed
    {reason, time} or null, nearest (key) or null, nearest_label, same_process, changes [{component, text, before,
    after}]}].
    """
    console = output(as_json)
    folder = root()
    store = Store(folder, SHADERS)
    wanted = None if key is None else find(key, SHADERS).key
    known = headers(store, console)
    if wanted is None:
        asked = last_process(entry for _, entry in known)
    else:
        asked = [entry for item, entry in known if item.key == wanted]
        if not asked:
            raise StoreError(f"entry {wanted[:DIGITS]} is damaged; `vkdnn cache repair` sets it aside")
    begun = min(map(compiled_at, asked), default=None)
    gone = _removals(store, begun or 0.0)
    explained = _explained(store, [entry for _, entry in known], asked, gone, console)
    own = {entry.key for entry in asked}
    empty = begun is not None and not any(here_since(e) <= begun for _, e in known if e.key not in own)
    if as_json:
        process = explained[0].entry.record.get("process") if explained else None
        print_json(
            {
                "store": str(folder),
                "process": process,
                "compiled": begun,
                "store_was_empty": empty and wanted is None,
                "removed_since": _counts(gone.since),
                "shaders": [e.record() for e in explained],
            }
        )
        return
    if not explained:
        _print_nothing(console, folder, bool(known), gone.all)
    elif wanted is not None:
        _print_one(console, explained[0], verbose)
    else:
        _print_all(console, explained, gone, empty, verbose)


def _archive(entry: Entry) -> str:
    imported = entry.record["imported"]
    name = imported.get("archive") if isinstance(imported, dict) else None
    return f"the archive {printable(name)}" if isinstance(name, str) else "an archive"


def _removals(store: Store, moment: float) -> Removals:
    found = [r for r in removals(store.root) if r.kind == store.kind]
    return Removals(
        tuple(r for r in found if r.time <= moment),
        tuple(r for r in found if r.time > moment),
    )


def _counts(gone: Sequence[Removal]) -> list[dict[str, Any]]:
    reasons = dict.fromkeys(r.reason for r in gone)
    times = {reason: [r.time for r in gone if r.reason == reason] for reason in reasons}
    return [{"reason": reason, "count": len(found), "last": max(found)} for reason, found in times.items()]


def _explained(
    store: Store, known: list[Entry], asked: list[Entry], gone: Removals, console: Console
) -> list[Explained]:
    index = Index(known)

    def whole(header: Entry) -> Entry | None:
        return load(store.path(header.key))

    found = []
    with bar(console, "comparing shaders", len(asked)) as progress:
        for number, header in enumerate(asked, 1):
            removal = removal_before(header, gone.all)
            entry = whole(header) or header
            if imported_at(header) is not None:
                found.append(Explained(entry))
            elif removal is not None:
                found.append(Explained(entry, removal))
            else:
                nearest = index.nearest(entry, whole)
                differing = () if nearest is None else tuple(changes(nearest, entry))
                found.append(Explained(entry, None, nearest, differing, gone))
            progress(number)
    return found


def _print_one(console: Console, explained: Explained, verbose: bool) -> None:
    entry, near = explained.entry, explained.nearest
    compiled = "" if explained.imported else f", compiled {ago(compiled_at(entry))}"
    console.print(f"[bold]{entry.key[:DIGITS]}[/] {escape(label_of(entry))}{compiled}")
    if explained.removal is not None or near is None:
        console.print(f"  {explained.reason}", markup=False)
        return
    for change in explained.changes or (None,):
        console.print(f"  {change.text if change else explained.reason}", markup=False)
    how = "of the same process" if explained.sibling else f"compiled {ago(compiled_at(near))}"
    console.print(f"  against the nearest older entry, {near.key[:DIGITS]} {label_of(near)}, {how}", markup=False)
    since = explained.gone.since if explained.gone is not None else ()
    if since and any(c.component == "spec" for c in explained.changes):
        console.print(f"  {removed_text(since, 'since')}: a nearer one may be among them", markup=False)
    if verbose:
        _print_glsl(console, explained)
    else:
        console.print(f"  all of it: vkdnn cache diff {near.key[:DIGITS]} {entry.key[:DIGITS]}", markup=False)


def _print_nothing(console: Console, folder: Path, imported: bool, gone: Sequence[Removal]) -> None:
    only = ", only imported ones" if imported else ""
    text = f"nothing to explain: {folder} has no shader that was compiled here"
    if not gone:
        console.print(text + (only or " yet"), markup=False)
        return
    last = max(gone, key=lambda r: r.time)
    console.print(f"{text} and is left{only}: {removed_text(gone)}, the last {ago(last.time)}", markup=False)
    _hint_at_cap(console, gone)


def _hint_at_cap(console: Console, gone: Sequence[Removal]) -> None:
    """Where the cap, and not a command, removed what was wanted."""
    if any(r.reason.startswith(EVICTED) for r in gone):
        console.print(
            "what is evicted is compiled again: set VKDNN_CACHE_MAX_BYTES to more than a run needs "
            f"(it is {size(max_bytes())} now)",
            markup=False,
        )


def _print_all(console: Console, explained: list[Explained], gone: Removals, empty: bool, verbose: bool) -> None:
    begun = min(compiled_at(e.entry) for e in explained)
    seconds = sum(s for e in explained if isinstance(s := e.entry.record.get("seconds"), (int, float)))
    process = str(explained[0].entry.record.get("process")).partition("-")[0]
    since = removed_text(gone.since, "since") if gone.since else "nothing was compiled since"
    last = "the last of which anything is left" if gone.since else "the last that compiled anything"
    console.print(
        f"{counted(len(explained), 'shader')} compiled by process {process}, {last}, "
        f"{ago(begun)}, in {seconds:.1f} s; {since}",
        markup=False,
    )
    _hint_at_cap(console, gone.since)
    groups: dict[str, list[Explained]] = {}
    told = 0
    for one in explained:
        if empty and one.removal is None and not verbose:
            told += 1
        else:
            groups.setdefault(one.group, []).append(one)
    if empty and (told or verbose):
        count = counted(told or len(explained), "shader")
        how = f"nothing older was left: {count}; {removed_text(gone.before, 'before')}"
        console.print(f"\n{how if gone.before else f'the store was empty: {count}'}", markup=False)
        if told > 1:
            console.print("  --verbose compares them with one another", markup=False)
    for members in sorted(groups.values(), key=len, reverse=True):
        console.print(f"\n[bold]{counted(len(members), 'shader')}:[/] {escape(members[0].reason_of(len(members)))}")
        shown = members if verbose else members[:_NAMED]
        for one in shown:
            near = ""
            if one.nearest is not None:
                near = f", nearest {one.nearest.key[:DIGITS]}" + (" of the same process" if one.sibling else "")
            console.print(f"  {one.entry.key[:DIGITS]} {label_of(one.entry)}{near}", markup=False)
            if verbose:
                _print_glsl(console, one)
        if len(shown) < len(members):
            console.print(f"  and {len(members) - len(shown)} more; --verbose names them", markup=False)


def _print_glsl(console: Console, explained: Explained) -> None:
    """Which lines of the GLSL differ, where a template or vkdnn's own code changed it."""
    near = explained.nearest
    if near is None:
        return
    names = near.key[:DIGITS], explained.entry.key[:DIGITS]
    lines = unified(near.text("glsl"), explained.entry.text("glsl"), names, 1)
    print_diff(console, lines[:_DIFF_LINES], "    ")
    if len(lines) > _DIFF_LINES:
        console.print(f"    ... {len(lines) - _DIFF_LINES} more lines: vkdnn cache diff {names[0]} {names[1]}")
