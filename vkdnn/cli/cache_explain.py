"""vkdnn cache explain-miss: why shaders were compiled, by what differs from the nearest older entry.

It must never say more than the entries and the list of removed ones show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vkdnn.cli.cache_common import DIGITS, SHADERS, ago, bar, family_of, find, headers, label_of, load, removals, root
from vkdnn.cli.cache_show import print_diff
from vkdnn.cli.console import JsonOption, counted, output, print_json
from vkdnn.errors import StoreError
from vkdnn.shader import Store
from vkdnn.shader.entry import Entry
from vkdnn.shader.explain import Change, Index, Removal, changes, compiled_at, last_process, removal_before, unified

_NAMED = 3  # shaders of one reason that are named without --verbose
_DIFF_LINES = 60  # of one shader's GLSL


@dataclass(frozen=True)
class Explained:
    """A shader and why it was compiled: its entry was removed, or the nearest differs; neither: it is the first."""

    entry: Entry
    removal: Removal | None = None
    nearest: Entry | None = None
    changes: tuple[Change, ...] = ()

    @property
    def reason(self) -> str:
        if self.removal is not None:
            return f"its entry was removed: {self.removal.reason} {ago(self.removal.time)}"
        if self.nearest is None:
            return "the first of its kind: no older entry of its family is like it"
        return "; ".join(c.text for c in self.changes) or "nothing differs: it was compiled twice at once"

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

    JSON: store (folder), process, compiled (when it began, seconds since 1970), shaders [{key, family, label, compiled,
    process, reason, removed {reason, time} or null, nearest (key) or null, nearest_label, same_process, changes
    [{component, text, before, after}]}].
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
    explained = _explained(store, [entry for _, entry in known], asked, console)
    if as_json:
        process = explained[0].entry.record.get("process") if explained else None
        begun = min((compiled_at(e.entry) for e in explained), default=None)
        shaders = [e.record() for e in explained]
        print_json({"store": str(folder), "process": process, "compiled": begun, "shaders": shaders})
        return
    if not explained:
        text = f"nothing to explain: {folder} has no shader that was compiled here"
        console.print(text + (", only imported ones" if known else " yet"), markup=False)
    elif wanted is not None:
        _print_one(console, explained[0], verbose)
    else:
        _print_all(console, explained, verbose)


def _explained(store: Store, known: list[Entry], asked: list[Entry], console: Console) -> list[Explained]:
    index, gone = Index(known), removals(store.root)

    def whole(header: Entry) -> Entry | None:
        return load(store.path(header.key))

    found = []
    with bar(console, "comparing shaders", len(asked)) as progress:
        for number, header in enumerate(asked, 1):
            removal = removal_before(header, gone)
            entry = whole(header) or header
            if removal is not None:
                found.append(Explained(entry, removal))
            else:
                nearest = index.nearest(entry, whole)
                differing = () if nearest is None else tuple(changes(nearest, entry))
                found.append(Explained(entry, None, nearest, differing))
            progress(number)
    return found


def _print_one(console: Console, explained: Explained, verbose: bool) -> None:
    entry, near = explained.entry, explained.nearest
    console.print(f"[bold]{entry.key[:DIGITS]}[/] {escape(label_of(entry))}, compiled {ago(compiled_at(entry))}")
    if explained.removal is not None or near is None:
        console.print(f"  {explained.reason}", markup=False)
        return
    for change in explained.changes or (None,):
        console.print(f"  {change.text if change else explained.reason}", markup=False)
    how = "of the same process" if explained.sibling else f"compiled {ago(compiled_at(near))}"
    console.print(f"  against the nearest older entry, {near.key[:DIGITS]} {label_of(near)}, {how}", markup=False)
    if verbose:
        _print_glsl(console, explained)
    else:
        console.print(f"  all of it: vkdnn cache diff {near.key[:DIGITS]} {entry.key[:DIGITS]}", markup=False)


def _print_all(console: Console, explained: list[Explained], verbose: bool) -> None:
    begun = min(compiled_at(e.entry) for e in explained)
    seconds = sum(s for e in explained if isinstance(s := e.entry.record.get("seconds"), (int, float)))
    process = str(explained[0].entry.record.get("process")).partition("-")[0]
    console.print(
        f"{counted(len(explained), 'shader')} compiled by process {process} {ago(begun)}, in {seconds:.1f} s",
        markup=False,
    )
    groups: dict[str, list[Explained]] = {}
    for one in explained:
        groups.setdefault(one.group, []).append(one)
    for members in sorted(groups.values(), key=len, reverse=True):
        console.print(f"\n[bold]{counted(len(members), 'shader')}:[/] {escape(members[0].reason)}")
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
