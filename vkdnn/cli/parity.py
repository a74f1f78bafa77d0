"""vkdnn parity: no bit of a device may differ from the reference, another device, or what another machine recorded.

It must end with exit status 1 when one does, and say which kernel it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import vkdnn as vk
from vkdnn.check.digests import DigestFile, machine
from vkdnn.check.grid import SIZES
from vkdnn.check.parity import Outcome, Target, check, targets
from vkdnn.check.work import quiet
from vkdnn.cli.cache_common import bar
from vkdnn.cli.console import (
    INTERRUPTED,
    DeviceOption,
    JsonOption,
    counted,
    find_device,
    full_name,
    output,
    print_json,
    printable,
)
from vkdnn.errors import ArgumentError

EXAMPLES = """\
[bold]Examples[/]

  vkdnn parity softmax attention            two operations and their gradients against the reference

  vkdnn parity --all --schedules            everything, with every legal schedule of each kernel

  vkdnn parity reductions --repeat 50       the same work again and again

  vkdnn parity grid:folds model:rapt        hard values at critical lengths; training steps

  vkdnn parity my_model:forward --shape x=8,128

  vkdnn parity --all --record here.json     and on another machine:
  vkdnn parity --against here.json"""

_PRINTED = 3  # differences of a target that are printed


def parity(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="Operations (softmax), prefixes (nn.), groups (@norms), module:thing, model:rapt, model:gpt, "
            "grid: or grid:FAMILY.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All operations, the grid and the models.")] = False,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", "-s", metavar="[NAME=]SIZES[:DTYPE]", help="An argument of module:function; repeat."),
    ] = None,
    device: DeviceOption = None,
    other: Annotated[
        str | None,
        typer.Option("--other", metavar="DEVICE", help="Compare with this device instead of the NumPy reference."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with what --record wrote; without targets, with all that it has."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write digests of inputs and results to this file.")
    ] = None,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Also with each of the legal schedules of every kernel.")
    ] = False,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Run all N times, in turn of the same recordings and of new ones.")
    ] = 1,
    grid_size: Annotated[str, typer.Option(metavar="SIZE", help=f"Of the grid: {', '.join(SIZES)}.")] = "ci",
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Training steps of models.")] = 2,
    save: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the reproducer of a kernel that differs is written.")
    ] = Path("vkdnn-parity"),
    as_json: JsonOption = False,
) -> None:
    """Compare a device's bits with those of the reference: forward and gradients, on random and hard inputs.

    A difference is bisected to the first Program, kernel and expression, and saved as a reproducer. Kernels are also
    looked at without running them: float operations that a driver may fuse, barriers that are missing. JSON: device,
    other, complete, outcomes [{ok, target, values, differences, flaws, finger, error, script, ...}].
    """
    place, console = find_device(device), output(as_json)
    believed = find_device(other if other is not None else "cpu")
    if other is not None and against is not None:
        raise ArgumentError("--other: the digest file of --against takes its place; leave one of them out")
    if place is believed and against is None:
        raise ArgumentError(f"--device: {place.name} would be compared with itself; name another with --other")
    file = DigestFile.read(against) if against is not None else None
    names, shapes = target or [], shape or []
    if file is not None and not names and not every:
        asked = file.asked(str(against))
        names, shapes, every = asked["targets"], asked["shapes"], asked["all"]
        grid_size, steps = asked["grid_size"], asked["steps"]
    with quiet():
        subjects = targets(names, shapes, every, grid_size, steps)
    request = {"targets": names, "shapes": shapes, "all": every, "grid_size": grid_size, "steps": steps}
    sink = DigestFile(machine(place), request=request) if record is not None else None
    against_name = f"{against}, recorded on {file.machine.get('device')}" if file is not None else full_name(believed)
    console.print(f"{full_name(place)} against {against_name}", markup=False)
    found: list[Outcome] = []
    complete = _run(subjects, place, believed, file, sink, schedules, repeat, save, console, found)
    if sink is not None and record is not None:
        DigestFile(sink.machine, sink.targets, complete, request).write(record)
    if as_json:
        other_name = str(against) if against is not None else believed.name
        records = [o.record() for o in found]
        print_json({"device": place.name, "other": other_name, "complete": complete, "outcomes": records})
    else:
        console.print(_table(found))
        _verdict(console, found, len(subjects), complete)
        if record is not None:
            console.print(f"digests of {counted(len(sink.targets) if sink else 0, 'target')} in {record}", markup=False)
    if not complete:
        raise typer.Exit(INTERRUPTED)
    if not all(o.ok for o in found):
        raise typer.Exit(1)


def _run(
    subjects: Sequence[Target],
    device: vk.Device,
    other: vk.Device,
    file: DigestFile | None,
    sink: DigestFile | None,
    schedules: bool,
    repeat: int,
    save: Path,
    console: Console,
    found: list[Outcome],
) -> bool:
    """Fill ``found``; whether all was done, not broken off by Ctrl-C."""
    with bar(Console(stderr=True), "targets", len(subjects)) as advance:

        def done(outcome: Outcome) -> None:
            found.append(outcome)
            advance(len(found))
            if not outcome.ok:
                console.print(_failure(outcome), markup=False)

        try:
            check(
                subjects,
                device,
                other,
                against=file,
                record=sink,
                schedules=schedules,
                repeat=repeat,
                save=save,
                on_outcome=done,
            )
        except KeyboardInterrupt:
            return False
    return True


def _failure(outcome: Outcome) -> str:
    lines = [f"{outcome.target}: " + ("error" if outcome.error and not outcome.differences else "different")]
    lines[0] = f"{outcome.target}: wrong kernels" if outcome.flaws and not outcome.differences else lines[0]
    lines += [f"  {d}" for d in outcome.differences[:_PRINTED]]
    more = len(outcome.differences) - _PRINTED
    lines += [f"  and {counted(more, 'result')} more"] if more > 0 else []
    lines += [f"  {outcome.error}"] if outcome.error else []
    lines += [f"  {f.label} ({f.family}, {f.schedule}): {f.what}" for f in outcome.flaws[:_PRINTED]]
    more = len(outcome.flaws) - _PRINTED
    lines += [f"  and {counted(more, 'finding')} more"] if more > 0 else []
    finger = outcome.finger
    if finger is not None:
        numbers = [f"Program {finger.program} of {finger.programs}"] if finger.program else []
        numbers += [f"kernel {finger.kernel} of {finger.kernels}"] if finger.kernel else []
        lines.append(f"  {', '.join(numbers)}: {finger.verdict}" if numbers else f"  {finger.verdict}")
        if finger.label:
            lines.append(f"  {finger.family}: {finger.label}")
            lines.append(f"  schedule {finger.schedule}")
        lines += [f"  differs under {s}" for s in finger.wrong] + [f"  agrees under {s}" for s in finger.right]
        lines += [f"    {line}" for line in finger.expression.splitlines()]
        if finger.place is not None:
            lines.append(f"  its result: {finger.place}")
        lines += [f"  operand {k} there: {x}" for k, x in enumerate(finger.operands)]
    if outcome.script:
        lines.append(f"  run that kernel again: python {outcome.script}")
    return printable("\n".join(lines))


def _table(found: Sequence[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("group")
    for name in ("targets", "values", "different", "flaws", "errors", "seconds"):
        table.add_column(name, justify="right")
    groups: dict[str, list[Outcome]] = {}
    for outcome in found:
        groups.setdefault(outcome.group, []).append(outcome)
    for name, part in [*groups.items(), ("all", list(found))]:
        table.add_row(escape(name), *_cells(part))
    return table


def _cells(part: Sequence[Outcome]) -> list[str]:
    numbers: list[Any] = [
        len(part),
        sum(o.values for o in part),
        sum(1 for o in part if o.differences),
        sum(len(o.flaws) for o in part),
        sum(1 for o in part if o.error),
    ]
    return [*(f"{n:,}" for n in numbers), f"{sum(o.seconds for o in part):.1f}"]


def _verdict(console: Console, found: Sequence[Outcome], asked: int, complete: bool) -> None:
    wrong = [o.target for o in found if not o.ok]
    if not complete:
        console.print(f"[yellow]interrupted[/]: {len(found)} of {counted(asked, 'target')} were done")
    if wrong:
        names = ", ".join(wrong[:8]) + (", ..." if len(wrong) > 8 else "")
        console.print(f"[bold red]not equal[/]: {counted(len(wrong), 'target')} of {len(found)}:", end=" ")
        console.print(names, markup=False)
    elif complete:
        console.print(f"[green]equal[/]: {counted(len(found), 'target')}, every bit")
