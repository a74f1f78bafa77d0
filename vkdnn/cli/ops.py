"""vkdnn ops: every operation with its dtypes, gradient, bound of the error and order of additions.

It must never need a device: the catalogue is a property of the package.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from vkdnn.catalogue import LEGEND, ORDERS, Entry, catalogue
from vkdnn.cli.console import JsonOption, output, print_json
from vkdnn.errors import ArgumentError

EXAMPLES = """\
[bold]Examples[/]

  vkdnn ops                 every operation

  vkdnn ops softmax         those with softmax in their names

  vkdnn ops 'random.*'      a pattern for the whole name

  vkdnn ops --markdown      docs/ops.md"""

COLUMNS = ("name", "dtypes", "gradient", "bound", "order", "doc")
PIPE_WIDTH = 200  # of a table that no terminal limits
HEAD = """\
# Operations

What `vkdnn ops --markdown` prints. Names stand after `vk.`; arguments are in the docstrings.
"""


def ops(
    pattern: Annotated[
        str | None, typer.Argument(help="Part of a name, or a pattern with * or ? for all of it.", show_default=False)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/ops.md.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the operations: dtypes, gradient, bound of the error, order of additions."""
    entries = matching(pattern)
    if as_json:
        print_json([dataclasses.asdict(e) for e in entries])
    elif markdown:
        typer.echo(page(entries), nl=False)
    else:
        _print(entries)


def matching(pattern: str | None) -> list[Entry]:
    """The entries of a pattern. Raises ArgumentError if there are none."""
    entries = catalogue()
    if pattern is None:
        return entries
    whole = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
    found = [e for e in entries if fnmatch.fnmatchcase(e.name, whole)]
    if not found:
        near = difflib.get_close_matches(pattern, [e.name for e in entries], 3)
        hint = f" (is it {' or '.join(near)}?)" if near else ""
        raise ArgumentError(f"no operation matches {pattern!r}{hint}; `vkdnn ops` lists all")
    return found


def page(entries: Sequence[Entry]) -> str:
    """The entries in Markdown, with the legend and the orders."""
    lines = [HEAD, *(f"- {text}." for text in LEGEND), "", f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    for entry in entries:
        cells = [f"`{entry.name}`", *(_cell(getattr(entry, name)) for name in COLUMNS[1:])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Orders", "", "| name | reduction | order |", "| --- | --- | --- |"]
    lines += [f"| {name} | {what} | {order} |" for name, (what, order) in ORDERS.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    for mark in "|*_<":
        text = text.replace(mark, "\\" + mark)
    return text


def _print(entries: Sequence[Entry]) -> None:
    console = output()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in COLUMNS:
        table.add_column(name, no_wrap=name == "name", overflow="fold")
    for entry in entries:
        table.add_row(*(escape(getattr(entry, name)) for name in COLUMNS))
    console.print(table)
    used = {name for e in entries for name in e.order.split(", ")}
    for name, (what, order) in ORDERS.items():
        if name in used:
            console.print(f"\n[bold]{name}[/]: {escape(what)}: {escape(order)}", soft_wrap=not console.is_terminal)
