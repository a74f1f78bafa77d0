"""vkdnn aot inspect: what a bundle holds and needs, and its memory plan as a picture.

It must never need a device or a compiler.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vkdnn.aot.inspect import Inspection, KernelUse, Memory, Named, groups, inspect
from vkdnn.aot.picture import check_plot, plot_memory, sized
from vkdnn.cli.console import JsonOption, counted, output, print_json, printable
from vkdnn.errors import ArgumentError

EXAMPLES = """\
[bold]Examples[/]

  vkdnn aot inspect rapt.zip                    kernels, arrays, memory, limits

  vkdnn aot inspect rapt.zip --sort flops       the heaviest kernels first

  vkdnn aot inspect rapt --set tokens=128       with 128 for the symbol tokens

  vkdnn aot inspect rapt --plot memory.svg      buffers over time"""

LISTED = 24  # arrays of a kind that are listed one by one; more are counted by the first part of their names
PIPE_WIDTH = 200  # of a table that no terminal limits


class Sort(StrEnum):
    """By what kernels are sorted."""

    order = "order"
    runs = "runs"
    flops = "flops"
    bytes = "bytes"
    size = "size"


def inspect_command(
    bundle: Annotated[Path, typer.Argument(help="A folder or .zip that `vkdnn aot build` or vk.aot.export wrote.")],
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=N", help="A value for a symbol. Default: the largest.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the memory plan to this .png or .svg.", metavar="FILE", show_default=False),
    ] = None,
    sort: Annotated[
        Sort, typer.Option(help="Kernels as they are numbered, or most [bold]runs[/], ... first.")
    ] = Sort.order,
    as_json: JsonOption = False,
) -> None:
    """Show the kernels, arrays, memory plan and required limits of a bundle; each kernel is checked on the way."""
    if plot is not None:
        check_plot(plot)
    found = inspect(bundle, set_values(values or []))
    if plot is not None:
        plot_memory(plot, found)
    if as_json:
        record = found.record()
        record["kernels"] = [record["kernels"][k.number] for k in _sorted(found.kernels, sort)]
        print_json(record)
        return
    console = output()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    _print_head(console, found)
    _print_kernels(console, found, sort)
    for title, arrays in (("inputs", found.inputs), ("constants", found.constants), ("outputs", found.outputs)):
        if arrays:
            _print_arrays(console, title, arrays)
    if found.memory is not None:
        _print_memory(console, found.memory)
    _print_limits(console, found)
    if plot is not None:
        console.print(f"\nmemory plan drawn to {escape(str(plot))}")


def set_values(settings: Sequence[str]) -> dict[str, int]:
    """The values of ``--set NAME=N``, given any number of times.

    >>> set_values(["tokens=128", "batch=4"])
    {'tokens': 128, 'batch': 4}
    """
    found: dict[str, int] = {}
    for text in settings:
        name, _, number = text.partition("=")
        if not name or not re.fullmatch(r"[0-9]{1,18}", number):
            raise ArgumentError(f"--set: got {text!r}, expected the name of a symbol and a size, such as tokens=128")
        if name in found:
            raise ArgumentError(f"--set: {name} is given twice, {found[name]} and {number}; leave one out")
        found[name] = int(number)
    return found


def count(number: int) -> str:
    """A large number in three digits.

    >>> count(999), count(1234567), count(2_500_000_000)
    ('999', '1.23 M', '2.50 G')
    """
    for unit, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.2f} {letter}"
    return str(number)


def _sorted(kernels: Sequence[KernelUse], sort: Sort) -> list[KernelUse]:
    keys = {Sort.runs: "dispatches", Sort.flops: "flops", Sort.bytes: "bytes", Sort.size: "spirv_bytes"}
    return list(kernels) if sort is Sort.order else sorted(kernels, key=lambda k: -getattr(k, keys[sort]))


def _print_head(console: Console, found: Inspection) -> None:
    manifest = found.manifest
    made = manifest.producer
    where = f"for {made.target}" if made.target else "for every device"
    what = "" if manifest.program else ": a set of kernels"
    console.print(f"[bold]{_safe(manifest.name)}[/]{what}; {_safe(found.path)}")
    compiler = made.compiler.split(" | ")[0]  # the rest is about languages and options
    console.print(_safe(f"format {manifest.version}, by vkdnn {made.vkdnn}, {where}; compiler {compiler}"))
    numerics = manifest.numerics
    console.print(
        f"numerics {numerics.mode}: subnormals {numerics.subnormals}, division {numerics.division}, square root "
        f"{numerics.square_root}" + (", host threads flush to zero" if numerics.host_flush else "")
    )
    for s in manifest.symbols:
        console.print(_safe(f"symbol {s.name}: {s.low} to {s.high}; the numbers below are for {found.symbols[s.name]}"))


def _print_kernels(console: Console, found: Inspection, sort: Sort) -> None:
    columns = ("#", "kernel", "family", "runs", "FLOPs", "moves", "local size", "shared", "bindings", "SPIR-V")
    table = _table(columns, left=("kernel", "family"))
    for k in _sorted(found.kernels, sort):
        shared, probe = sized(k.shared_bytes) if k.shared_bytes else "", k.number == found.manifest.probe
        table.add_row(
            str(k.number), _safe(k.label) + (" (probes the device)" if probe else ""), _safe(k.family),
            *((f"{k.dispatches:,}", count(k.flops), sized(k.bytes)) if k.dispatches else ("", "", "")),
            "x".join(map(str, k.local_size)), shared, str(k.bindings), sized(k.spirv_bytes),
        )  # fmt: skip
    _heading(console, "kernels")
    console.print(table)
    text = f"{counted(len(found.kernels), 'kernel')}, {sized(sum(k.spirv_bytes for k in found.kernels))} of SPIR-V"
    if found.manifest.program is not None:
        flops, moved = (sum(getattr(k, name) for k in found.kernels) for name in ("flops", "bytes"))
        dispatches = f"{found.dispatches:,} dispatch" + ("" if found.dispatches == 1 else "es")
        text += f"; a run: {dispatches}, {counted(found.barriers, 'barrier')}, "
        text += f"{counted(found.submissions, 'submission')}, {count(flops)} FLOPs, moves {sized(moved)}"
    console.print(text)


def _print_arrays(console: Console, title: str, arrays: Sequence[Named]) -> None:
    _heading(console, title)
    table = _table(("name", "dtype", "shape", "bytes", ""), left=("name", "dtype", "shape", ""))
    for group in groups(arrays) if len(arrays) > LISTED else ():
        if len(group.arrays) > 1:
            notes = Counter(filter(None, map(_kind, group.arrays)))
            table.add_row(
                f"{_safe(group.name)}.*", ", ".join(dict.fromkeys(a.dtype for a in group.arrays)),
                f"{len(group.arrays)} arrays", sized(group.bytes),
                ", ".join(note if n == len(group.arrays) else f"{n} of them {note}" for note, n in notes.items()),
            )  # fmt: skip
        else:
            table.add_row(*_array_row(group.arrays[0]))
    for array in arrays if len(arrays) <= LISTED else ():
        table.add_row(*_array_row(array))
    console.print(table)
    if len(arrays) > LISTED:
        console.print(f"{counted(len(arrays), 'array')}, {sized(sum(a.bytes for a in arrays))}; --json lists each")


def _array_row(array: Named) -> list[str]:
    lengths = [w if w == str(n) else f"{w}={n}" for w, n in zip(array.written, array.shape, strict=True)]
    note = f"in the place of {array.replaces}" if array.replaces else _kind(array)
    shape = _safe(f"[{', '.join(lengths)}]")
    return [_safe(array.name), array.dtype, shape, sized(array.bytes), _safe(note)]


def _kind(array: Named) -> str:
    parts = {
        "donated": array.donated,
        "with a value": array.initial,
        "in an input's place": array.replaces is not None,
    }
    return ", ".join(name for name, holds in parts.items() if holds)


def _print_memory(console: Console, memory: Memory) -> None:
    _heading(console, "memory")
    table = _table(("", "device", "host"), left=("",))
    places = ("device", "host")
    rows = {f"{kind}s": [memory.of(kind, p) for p in places] for kind in ("input", "constant", "output", "arena")}
    rows["total"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    rows["lower bound of arenas"] = [memory.lower_bound(p) for p in places]
    for name, sizes in rows.items():
        table.add_row(name, *(sized(n) if n else "" for n in sizes))
    console.print(table)
    for arena in memory.arenas:
        fullest = max(arena.alive, default=0)
        at = f" at dispatch {arena.alive.index(fullest)}" if fullest else ""
        held = f"{counted(len(arena.values), 'value')}, at most {sized(fullest)} alive{at}"
        console.print(f"arena of buffer {arena.buffer} in {arena.memory} memory: {sized(arena.bytes)}, {held}")


def _print_limits(console: Console, found: Inspection) -> None:
    _heading(console, "the device must offer")
    table = _table(("limit", "at least"))
    table.columns[0].justify = "left"
    for name, value in found.limits.items():
        table.add_row(name, "x".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value:,}")
    if any(k.subgroups for k in found.kernels):
        table.add_row("subgroup operations", "yes")
    console.print(table)


def _table(columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]")


def _safe(text: Any) -> str:
    """Text of a bundle, which may come from anywhere."""
    return escape(printable(str(text)))
