"""vkdnn sweep: functions over all float32 inputs, their error against float64 and a device's bits.

It must end with exit status 1 when a single bit differs or an error exceeds its bound.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vkdnn.check.sweep import PAIRS, UNARY, Figures, Sweep, device_name
from vkdnn.check.sweep_pieces import Inputs, refer
from vkdnn.check.sweep_truth import ULP
from vkdnn.cli.console import (
    INTERRUPTED,
    CountColumn,
    DeviceOption,
    JsonOption,
    counted,
    find_device,
    output,
    print_json,
)
from vkdnn.errors import ArgumentError
from vkdnn.shader.store import replaced

EXAMPLES = """\
[bold]Examples[/]

  vkdnn sweep exp                                      all 4,294,967,296 inputs of one function

  vkdnn sweep --all --state sweep.state -o sweep.json  all functions; killed and started again, it goes on

  vkdnn sweep exp tanh --stride 4099                   every 4099th input: seconds

  vkdnn sweep --all --record reference.sweep           the reference alone, on a machine with many cores

  vkdnn sweep --all --against reference.sweep          any device against it, which computes nothing again"""

_MEASURED = 1 << 18  # inputs
_SILENCE = 10.0  # seconds after which something is said where there is no bar


def sweep(
    functions: Annotated[
        list[str] | None, typer.Argument(metavar="FUNCTION...", help="Rows of the op table, such as exp or pow.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every function of one argument, and pow, atan2, ...")] = False,
    stride: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Of functions of one argument, every N-th of the 2^32 bit patterns; odd is best."
        ),
    ] = 1,
    pairs: Annotated[int, typer.Option(min=1, metavar="N", help="Pairs for functions of two arguments.")] = 10**8,
    device: DeviceOption = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FILE", help="Keep what is found there, and go on from it.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Compute the reference alone; go on where FILE ends."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Take the reference from what --record wrote.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Processes for the reference. Default: one a core, less one.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--time", min=0.0, metavar="SECONDS", help="Begin nothing after these.")
    ] = float("inf"),
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the figures as JSON.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Only print what the reference would cost here.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run functions over all float32 inputs: error against float64, bits against the NumPy reference.

    JSON: device, driver, functions [{function, inputs, of, differing, first, error, at, unit, bound, complete, ok}].
    """
    console = output(as_json)
    names = [*(functions or []), *([*UNARY, *PAIRS] if every else [])]
    if not names:
        raise ArgumentError("function: none is named; name some, such as exp, or take --all")
    if record is not None and (state is not None or against is not None):
        raise typer.BadParameter("is a state of its own; leave out --state and --against", param_hint="--record")
    if stride > 1 and all(name in PAIRS for name in names):
        raise ArgumentError(f"--stride: {names[0]} has two arguments, whose inputs are drawn; --pairs says how many")
    if measure:
        _measure(names, stride, pairs, jobs, console)
        return
    chosen = None if record is not None else find_device(device)
    columns = (TextColumn("{task.description}"), BarColumn(24), CountColumn(), TimeRemainingColumn())
    bars_console = Console(stderr=True)
    with Progress(*columns, console=bars_console, transient=True, disable=not bars_console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        said = time.monotonic()

        def heard(name: str, done: int, total: int) -> None:
            nonlocal said
            if not bars_console.is_terminal and time.monotonic() - said > _SILENCE:
                said = time.monotonic()
                bars_console.print(f"{name}: {done:,} of {total:,} pieces", highlight=False)
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            for other, task in tasks.items():
                bars.update(task, visible=other == name)
            bars.update(tasks[name], completed=done)

        work = Sweep(names, chosen, stride=stride, pairs=pairs, jobs=jobs, seconds=seconds, state=record or state,
                     against=against, progress=heard)  # fmt: skip
        interrupted = False
        try:
            work.run()
        except KeyboardInterrupt:
            interrupted = True
    found = work.figures()
    _report(found, None if chosen is None else device_name(chosen), stride, console)
    whole = {
        "device": None if chosen is None else chosen.name,
        "driver": None if chosen is None else device_name(chosen),
        "functions": [f.record() for f in found],
    }
    if out is not None:
        with replaced(out) as file:
            file.write((json.dumps(whole, indent=1) + "\n").encode())
    if as_json:
        print_json(whole)
    left = [f.function for f in found if not f.complete]
    if left:
        journal = record or state
        kept = f"the same command goes on from {journal}" if journal is not None else "nothing is kept without --state"
        console.print(f"[yellow]not complete:[/] {', '.join(left)}; {kept}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not all(f.ok for f in found):
        raise typer.Exit(1)


def _report(found: list[Figures], device: str | None, stride: int, console: Console) -> None:
    which = f", every {stride:,}th float32" if stride > 1 else ""
    console.print(f"{'the reference alone' if device is None else device}{which}", markup=False, style="dim")
    for f in found:
        reached = f"{f.inputs:,} inputs" if f.complete else f"{f.inputs:,} of {f.of:,} inputs"
        differing = "" if f.differing is None else f"{f.differing:,} differing"
        line = f"{f.function:<16}{reached:>21} {differing:>16}  {_error(f)}"
        console.print(line.rstrip(), style="" if f.ok else "red", markup=False)
    bad = [f.function for f in found if not f.ok]
    bits = (
        "every error within its bound" if device is None else "every bit the reference's, every error within its bound"
    )
    verdict = f"failed: {', '.join(bad)}" if bad else f"{counted(len(found), 'function')}: {bits}"
    if all(f.complete for f in found) or bad:
        console.print(verdict, markup=False, style="bold red" if bad else "bold")


def _error(f: Figures) -> str:
    """The largest error with unit, bound and place; the first result that differs."""
    if f.error is None:
        return ""
    unit = "ULP" if f.unit == ULP else "ULP (below 1 of 1)"
    bound = "" if f.bound is None else f", bound {f.bound:g}" if f.ok or f.differing else f", above {f.bound:g}"
    at = f", at {', '.join(f.at)}" if f.at else ""
    trouble = f"; first: {', '.join(f.first)}" if f.differing else ""
    return f"error {f.error:.4f} {unit}{bound}{at}{trouble}"


def _measure(names: list[str], stride: int, pairs: int, jobs: int | None, console: Console) -> None:
    """What the reference costs here, from a quarter of a million inputs of each function."""
    workers = max(1, (os.cpu_count() or 2) - 1 if jobs is None else jobs)
    total = 0.0
    for name in dict.fromkeys(names):
        whole = Inputs.of(name, stride, pairs)
        part = Inputs(name, stride, whole.total, min(whole.length, _MEASURED))
        refer(Inputs.of(name, 2**20, 1024), 0)  # traces what is defined, loads what is imported late
        begun = time.process_time()
        refer(part, part.order()[-1])
        each = (time.process_time() - begun) / part.length
        total += each * whole.total / workers
        console.print(
            f"{name:<16} {1e9 * each:7.1f} ns an input {each * whole.total / workers:9.0f} s", highlight=False
        )
    console.print(f"{'all':<16} {total:31,.0f} s with {workers} processes")
