"""vkdnn gradcheck: gradients against differences, of vkdnn's operations and of other people's functions.

It must never end with status 0 when a gradient was found wrong, nor keep back what it had found when it is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import vkdnn as vk
from vkdnn.check.gradcheck_points import Options
from vkdnn.check.gradcheck_report import ERROR, FAILED, INCONCLUSIVE, NONE, OK, Part, Report
from vkdnn.check.gradcheck_run import MODES
from vkdnn.check.gradcheck_targets import Target, check_targets, targets
from vkdnn.cli.console import (
    INTERRUPTED,
    CountColumn,
    DeviceOption,
    JsonOption,
    complain,
    counted,
    find_device,
    output,
    print_json,
)
from vkdnn.errors import ArgumentError, DeviceError

EXAMPLES = """\
[bold]Examples[/]

  vkdnn gradcheck softmax matmul @norms     operations, by name, prefix or group

  vkdnn gradcheck --all                     every operation and layer that has a gradient

  vkdnn gradcheck my_ops:gelu --shape x=4,8     a function of arrays of vkdnn or of tensors

  vkdnn gradcheck my_ops:pair --shape 4,8   pair = (forward, vjp), functions of NumPy

  vkdnn gradcheck softmax --seed 3 --input x --index 2,1    one element"""

PIPE_WIDTH = 160  # of a table that no terminal limits
_COLOURS = {OK: "green", FAILED: "bold red", INCONCLUSIVE: "yellow", NONE: "dim", ERROR: "bold red"}
_COUNTED = {NONE: "without such a gradient", ERROR: "not checked"}


def gradcheck(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET...",
            help="An operation, a prefix or group of operations, or module:thing: a function, a pair (forward, vjp), a "
            "torch Function or Module, or an Operator of vkdnn.check.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All operations and layers.")] = False,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", help="An argument of module:thing, as x=8,128 or 4:int32; once for each."),
    ] = None,
    tensors: Annotated[
        bool,
        typer.Option(
            "--torch", help="Functions of module:thing are of tensors, where annotations and imports do not say so."
        ),
    ] = False,
    mode: Annotated[
        str,
        typer.Option(
            help="full: every element; fast: random directions; inner: <J v, u> = <v, vjp(u)>; complex: its steps."
        ),
    ] = "full",
    second_order: Annotated[bool, typer.Option("--second-order", help="Check the gradient of the gradient.")] = False,
    seed: Annotated[int, typer.Option(help="Of the inputs, cotangents and directions.", min=0)] = 0,
    input_name: Annotated[str | None, typer.Option("--input", help="Only the gradient of this input.")] = None,
    index: Annotated[str | None, typer.Option(help="Only this element, as 2,1.")] = None,
    step: Annotated[float, typer.Option(help="Central differences of this step alone.", min=0.0)] = 0.0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare gradients with differences, those of a device with the formula, and its bits with themselves."""
    if mode not in MODES:
        raise ArgumentError(f"--mode: got {mode!r}, expected one of {', '.join(MODES)}")
    options = Options(mode, seed, step=step, input=input_name, index=_index(index))
    found = targets(names or [], shapes or [], every, seed, tensors)
    place = _device(device, found)
    reports: list[Report] = []
    stopped = False
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), CountColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(found[0].name, total=len(found))
        try:
            for report in check_targets(found, place, options, second_order):
                reports.append(report)
                bar.update(task, advance=1, description=report.op)
        except KeyboardInterrupt:
            stopped = True
    for report in reports:
        if report.verdict == ERROR:
            note = report.parts[0].note
            complain(ArgumentError(note if report.op in note else f"{report.op}: {note}"))
    if as_json:
        print_json({"stopped": stopped, "reports": [r.record() for r in reports]})
    else:
        _print(reports, len(found) > 1)
    if stopped:
        Console(stderr=True).print(f"interrupted after {len(reports)} of {counted(len(found), 'target')}")
        raise typer.Exit(INTERRUPTED)
    if any(r.failed for r in reports):
        raise typer.Exit(1)


def _device(selector: str | None, found: Sequence[Target]) -> vk.Device:
    """The device of --device; the reference where nothing runs on one, or where there is none and only a user's own
    functions are checked."""
    if selector is None and not any(t.device for t in found):
        return vk.device("cpu")
    try:
        return find_device(selector)
    except DeviceError:
        if selector is not None or any(":" not in t.name for t in found):
            raise
        return vk.device("cpu")


def _index(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ArgumentError(f"--index: got {text!r}, expected ints such as 2,1") from None


def _print(reports: Sequence[Report], several: bool) -> None:
    console = output()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    shown = [r for r in reports if r.verdict != NONE]
    none = {r.op: r.parts[0].note for r in reports if r.verdict == NONE}
    if several and shown:
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for name in ("target", "verdict", "elements", "formula", "device", "bits", ""):
            table.add_column(name, no_wrap=name in ("target", "verdict"), overflow="fold")
        for report in shown:
            table.add_row(*_cells(report))
        console.print(table)
    if several:
        for note in dict.fromkeys(none.values()):
            names = ", ".join(op for op, why in none.items() if why == note)
            console.print(f"\n[dim]{escape(note)}:[/] {escape(names)}")
    for report in reports:
        if report.verdict != ERROR and (not several or report.verdict in (FAILED, INCONCLUSIVE)):
            head, _, rest = str(report).partition("\n")
            if several:
                console.print()
            console.print(Text(head, _COLOURS[report.verdict]))
            console.print(Text(rest))
    if several and reports:
        counts = [(v, sum(r.verdict == v for r in reports)) for v in (OK, FAILED, ERROR, INCONCLUSIVE, NONE)]
        words = [f"{count} {_COUNTED.get(v, v)}" for v, count in counts if count]
        console.print(f"\n{counted(len(reports), 'target')}: {', '.join(words)}")


def _cells(report: Report) -> list[Text | str]:
    """A report in a line: the largest relative error of the formula, the largest error of the device in ULP."""
    parts = {p.name: p for p in report.parts}
    formula: Part | None = next((parts[n] for n in ("formula", "directions", "inner") if n in parts), None)
    worst = formula.worst if formula else None
    bits = parts.get("determinism")
    device = parts.get("device")
    notes = [p.note for p in report.parts if p.note and p.verdict != OK]
    notes += [f"{p.kinks} kinks" if p.kinks > 1 else "1 kink" for p in report.parts if p.kinks]
    return [
        escape(report.op),
        Text(report.verdict, _COLOURS[report.verdict]),
        str(formula.checked) if formula and formula.checked else "",
        "" if worst is None else f"{worst.relative:.1e}",
        "" if device is None or device.worst is None else f"{device.worst.ulp:.3g} ULP",
        "" if bits is None else "same" if bits.verdict == OK else "differ",
        escape("; ".join(notes)),
    ]
