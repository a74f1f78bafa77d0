"""vkdnn cache show and diff: one entry with all that is known of it, and two side by side.

They must never change an entry, nor count as a use of one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from vkdnn.cli.cache_common import DIGITS, ago, found_entry, label_of, plain, print_table, row, size, table, used_ago
from vkdnn.cli.console import JsonOption, output, print_json, printable
from vkdnn.errors import ArgumentError, CompileError, StoreError
from vkdnn.shader.entry import Entry
from vkdnn.shader.explain import changes, readable, side_by_side, unified
from vkdnn.shader.upkeep import Item
from vkdnn.show import disassemble

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A key, or its first 4 or more digits.")]


def show(
    key: KeyArgument,
    glsl: Annotated[str | None, typer.Option(metavar="FILE", help="Write the GLSL alone; - for standard output.")] = (
        None
    ),
    spec: Annotated[str | None, typer.Option(metavar="FILE", help="Write the spec alone.")] = None,
    spirv: Annotated[str | None, typer.Option(metavar="FILE", help="Write the SPIR-V alone, as bytes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show an entry: components, record, reflection, spec, GLSL with line numbers, and the SPIR-V listing.

    JSON: as in list, and path, components, record, contents {name: bytes}, spec, glsl, spirv (the listing of spirv-dis,
    or null and spirv_error). Reflection and limits are in the record.
    """
    wanted = {name: place for name, place in (("glsl", glsl), ("spec", spec), ("spirv", spirv)) if place is not None}
    if wanted and (as_json or list(wanted.values()).count("-") > 1):
        raise typer.BadParameter("one thing at a time can go to standard output", param_hint="--" + next(iter(wanted)))
    item, entry = found_entry(key)
    if wanted:
        for name, place in wanted.items():
            _extract(entry, name, place)
        return
    listing, trouble = _listing(entry)
    if as_json:
        sizes = {name: len(data) for name, data in entry.contents.items()}
        texts = {n: entry.text(n) for n in entry.contents if n != "spirv"}
        whole = row(item, entry) | {"path": str(item.path), "components": entry.components, "record": entry.record}
        print_json(whole | {"contents": sizes} | texts | {"spirv": listing, "spirv_error": trouble})
        return
    _print_entry(output(), item, entry)
    console = output()
    if listing is not None:
        _heading(console, "SPIR-V")
        console.print(printable(listing), markup=False)
    elif trouble is not None:
        _heading(console, "SPIR-V")
        console.print(f"[yellow]note:[/] {escape(trouble)}")


def _extract(entry: Entry, name: str, place: str) -> None:
    data = entry.contents.get(name)
    if data is None:
        raise ArgumentError(f"entry {entry.key[:DIGITS]} of {entry.kind} has no {name}; it has {_names(entry)}")
    if place == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        Path(place).write_bytes(data)
    except OSError as error:
        raise StoreError(f"--{name}: cannot write {place} ({error.strerror}); name another file") from error


def _names(entry: Entry) -> str:
    return ", ".join(entry.contents) or "nothing"


def _listing(entry: Entry) -> tuple[str | None, str | None]:
    if "spirv" not in entry.contents:
        return None, None
    try:
        return disassemble(entry.contents["spirv"]), None
    except CompileError as error:
        return None, str(error)


def _print_entry(console: Console, item: Item, entry: Entry) -> None:
    console.print(f"[bold]{item.key}[/]")
    record = dict(entry.record)
    reflection, limits = record.pop("reflection", None), record.pop("limits", None)
    rows = [
        ("label", label_of(entry)),
        ("kind", entry.kind),
        ("size", size(item.bytes)),
        ("last use", used_ago(item.used)),
    ]
    for name, value in record.items():
        if name == "compiled" and isinstance(value, (int, float)):
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
            rows.append(("compiled", f"{stamp} ({ago(value)})"))
        elif name == "seconds" and isinstance(value, (int, float)):
            rows.append(("took", f"{value:.3f} s"))
        elif name == "workgroups" and isinstance(value, list):
            rows.append((name, " x ".join(map(formula_text, value))))
        elif name != "label" and value not in ("", None):
            rows.append((name.replace("_", " "), str(value)))
    _rows(console, rows)
    _heading(console, "components")
    _rows(console, list(entry.components.items()))
    if isinstance(reflection, dict):
        _heading(console, "reflection")
        _rows(console, _reflected(reflection))
    if isinstance(limits, dict):
        _heading(console, "what a device must offer")
        _rows(console, [(name, str(value)) for name, value in limits.items() if value not in (0, [])])
    for name in entry.contents:
        if name in ("spec", "glsl", "spirv"):
            continue
        _heading(console, name)
        console.print(printable(entry.text(name)), markup=False)
    if "spec" in entry.contents and entry.text("spec") != entry.text("glsl"):
        _heading(console, "spec")
        console.print(printable(readable(entry.text("spec"))).rstrip(), markup=False)
    if "glsl" in entry.contents:
        _heading(console, "GLSL")
        _numbered(console, printable(entry.text("glsl")).rstrip())


def _reflected(reflection: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, value in reflection.items():
        if name == "bindings" and isinstance(value, list):
            for b in value:
                access = "readonly " if b.get("readonly") else ""
                rows.append((f"binding {b.get('binding')}", f"{access}{b.get('element')} {b.get('name')}[]"))
        elif name == "push_constants" and isinstance(value, dict):
            members = ", ".join(f"{m.get('type')} {m.get('name')}" for m in value.get("members", []))
            rows.append(("push constants", f"{value.get('bytes')} bytes: {members}"))
        elif isinstance(value, list) and value:
            rows.append((name.replace("_", " "), (" x " if name == "local_size" else ", ").join(map(str, value))))
        elif value not in ([], "", None, False):
            rows.append((name.replace("_", " "), str(value)))
    return rows


def formula_text(formula: Any) -> str:
    """A formula in prefix form as people write it.

    >>> formula_text(["min", ["//", ["+", "count", 31], 32], 65535])
    'min((count + 31) // 32, 65535)'
    """
    if not (isinstance(formula, list) and len(formula) == 3):
        return str(formula)
    name, a, b = formula
    if name in ("min", "max"):
        return f"{name}({formula_text(a)}, {formula_text(b)})"
    left, right = (f"({formula_text(x)})" if _infix(x) else formula_text(x) for x in (a, b))
    return f"{left} {name} {right}"


def _infix(formula: Any) -> bool:
    return isinstance(formula, list) and formula[:1] not in (["min"], ["max"])


def _rows(console: Console, rows: list[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, text in rows:
        console.print(f"{printable(name):{width}}{printable(text)}", markup=False)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]── {escape(text)}[/]" if console.is_terminal else f"\n// ---- {escape(text)}")


def _numbered(console: Console, text: str) -> None:
    if console.is_terminal:
        style = {"theme": "ansi_dark", "background_color": "default", "word_wrap": True}
        console.print(Syntax(text, "glsl", line_numbers=True, **style))  # type: ignore[arg-type]
        return
    for number, line in enumerate(text.split("\n"), 1):
        console.print(f"{number:5d} | {line}", markup=False)


# ---- diff


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A key, or its first 4 or more digits.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    context: Annotated[int, typer.Option(min=0, metavar="N", help="Lines around each change.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Compare two entries: their components side by side, then their specs and their GLSL.

    JSON: a and b as in list, changes [{component, text, before, after}], components [{name, a, b, same}], spec and glsl
    (lines of a unified diff; empty where they are the same).
    """
    (item_a, old), (item_b, new) = found_entry(a), found_entry(b)
    names = item_a.key[:DIGITS], item_b.key[:DIGITS]
    texts = {
        "spec": unified(readable(old.text("spec")), readable(new.text("spec")), names, context),
        "glsl": unified(old.text("glsl"), new.text("glsl"), names, context),
    }
    rows = side_by_side(old, new)
    if as_json:
        print_json(
            {
                "a": row(item_a, old),
                "b": row(item_b, new),
                "changes": [c.record() for c in changes(old, new)],
                "components": [{"name": n, "a": x, "b": y, "same": x == y} for n, x, y in rows],
                **texts,
            }
        )
        return
    console = output()
    made = table("", "component", names[0], names[1])
    for name, x, y in rows:
        mark = " " if x == y else "≠"
        made.add_row(mark, *map(plain, (name, _cell(x), "the same" if x == y else _cell(y))))
    made.add_row(" ", "label", plain(label_of(old)), plain(label_of(new)))
    print_table(console, made)
    for name, lines in texts.items():
        if lines:
            _heading(console, {"spec": "spec", "glsl": "GLSL"}[name])
            print_diff(console, lines)


def _cell(value: str | None) -> str:
    if value is None:
        return "none"
    return value[:19] + "…" if value.startswith("sha256:") else value if len(value) <= 60 else value[:59] + "…"


def print_diff(console: Console, lines: list[str], indent: str = "") -> None:
    """A unified diff, coloured on a terminal."""
    for line in lines:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        console.print(indent + printable(line), markup=False, style=style)
