"""vkdnn accuracy: operators against float64, case by case from TOML files.

It must never report a run as good that was broken off, nor leave half a file behind.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vkdnn.check.accuracy import backends
from vkdnn.check.accuracy.cases import RULES, Spec, check_timeout, load, sets
from vkdnn.check.accuracy.job import IMAGES, TABLE, Job, Mode
from vkdnn.check.accuracy.report import clean, totals
from vkdnn.check.accuracy.run import Row, Settings
from vkdnn.cli.cache_common import bar
from vkdnn.cli.console import DeviceOption, JsonOption, counted, output, print_json
from vkdnn.errors import ArgumentError

EXAMPLES = """\
[bold]Examples[/]

  vkdnn accuracy small                            a small case of every operator

  vkdnn accuracy attention --case CAUSAL          cases whose names begin so

  vkdnn accuracy mine.toml --backend device,torch --out results

  vkdnn accuracy --all --out results --resume     go on with a run

  vkdnn accuracy large --perf 20 --list           names alone, nothing is run"""

WIDTH = 44  # of the names of cases
STYLES = {"pass": "green", "skip": "dim", "fail": "bold red", "error": "red", "timeout": "red", "crash": "red"}

CasesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CASES...", help="Case files (.toml) or names of sets that come with vkdnn.", show_default=False
    ),
]


def accuracy(
    cases: CasesArgument = None,
    every_set: Annotated[bool, typer.Option("--all", help="Every set that comes with vkdnn.")] = False,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", "-c", metavar="PREFIX", help="Only cases whose name begins so; may be repeated."),
    ] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases, run nothing.")] = False,
    backend: Annotated[
        str,
        typer.Option(
            help="What is compared with float64, several with commas: device, reference, plain (float32 NumPy), torch, "
            "torch:cuda, dump:PATH.",
        ),
    ] = "device",
    device: DeviceOption = None,
    rule: Annotated[str | None, typer.Option(help=f"Instead of the cases' own: {', '.join(RULES)}.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Draws of each case, instead of its own.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a case may take, instead of its own.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for results.csv, results.json and, of failures, images."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out what results.csv in --out has already.")] = False,
    save_golden: Annotated[
        Path | None, typer.Option(help="Folder to keep golden results in; those that are there are used.")
    ] = None,
    load_golden: Annotated[
        Path | None, typer.Option(help="Folder to take golden results from: nothing is computed in float64.")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option(help="Folder to record the results of device or reference in, for dump:PATH.")
    ] = None,
    perf: Annotated[int, typer.Option(min=0, metavar="N", help="Also time each case, hot over N replays.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that run cases.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="A new process for each case.")] = False,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run everything here: quicker, without timeouts.")
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Spread the cases over the workers of this Dask scheduler."),
    ] = None,
    interim: Annotated[int, typer.Option(min=1, metavar="N", help="A summary every N cases.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Compare operators with float64, in cases that TOML files describe; exit status 1 if one fails."""
    if every_set and cases:
        raise ArgumentError("--all: got names of cases as well, expected one or the other")
    names = sets() if every_set else list(cases or ())
    if not names:
        raise ArgumentError(f"cases: none are named; name .toml files or sets ({', '.join(sets())}), or take --all")
    specs = [_changed(spec, rule, seeds, timeout) for spec in load(names, case or ())]
    if list_cases:
        _list(specs, as_json)
        return
    if resume and out is None:
        raise ArgumentError("--resume: needs --out, the folder whose results.csv is gone on with")
    if save_golden and load_golden:
        raise ArgumentError("--load-golden: got --save-golden as well, expected one of them")
    settings = Settings(
        tuple(backends.check(b.strip()) for b in backend.split(",")), device, _path(save_golden), _path(load_golden),
        _path(dump), _path(out / IMAGES) if out else None, perf,
    )  # fmt: skip
    job = Job(specs, settings, Mode(jobs, fresh, in_process, scheduler), out, resume, interim)
    console = output(as_json)
    try:
        _run(job, console)
    except KeyboardInterrupt:
        _print_end(job, console, as_json)
        raise
    _print_end(job, console, as_json)
    if not all(row.good for row in job.rows) or not any(row.verdict == "pass" for row in job.rows):
        raise typer.Exit(1)


def _changed(spec: Spec, rule: str | None, seeds: int | None, timeout: float | None) -> Spec:
    if rule is not None and rule not in RULES:
        raise ArgumentError(f"--rule: got {rule!r}, expected one of {', '.join(RULES)}")
    if timeout is not None:
        check_timeout("--timeout", timeout)
    return replace(spec, rule=rule or spec.rule, seeds=seeds or spec.seeds, timeout=timeout or spec.timeout)


def _path(path: Path | None) -> str | None:
    """A path that holds for processes in other folders, too."""
    return None if path is None else os.path.abspath(path)


def _list(specs: list[Spec], as_json: bool) -> None:
    if as_json:
        print_json([clean(spec.record()) for spec in specs])
        return
    console = output()
    for spec in specs:
        fields = ", ".join(f"{k} {v}" for k, v in spec.fields.items())
        extra = ", gradient" if spec.gradient else ""
        console.print(f"{spec.name:<{WIDTH}} {spec.operator}{extra}, {spec.rule}: {fields or 'defaults'}", markup=False)
    console.print(counted(len(specs), "case"))


# ---- what people see


def _run(job: Job, console: Console) -> None:
    done = 0
    title = f"{'case':<{WIDTH}} {'backend':<10} {'verdict':<8} {'largest':>9} {'RMS':>9} {'plain':>9} {'s':>6}"
    console.print(title + ("  cold ms   hot ms" if job.settings.perf else ""), style="bold", markup=False)
    with bar(console, "cases", len(job.specs)) as progress:

        def tell(rows: list[Row]) -> None:
            nonlocal done
            for row in rows:
                _print_row(row, console)
            done += len({row.case for row in rows})
            progress(done)
            if done % job.every == 0 and done < len(job.specs):
                console.print(f"{done} of {counted(len(job.specs), 'case')}: {_counts(job.rows)}", style="dim")

        job.run(tell)


def _print_row(row: Row, console: Console) -> None:
    figures: dict[str, Any] = dict(row.figures)
    cells = [_figure(figures.get(name)) for name in ("max_abs", "rms", "plain_max")]
    perf = ""
    if row.perf:
        perf = f"{row.perf['cold_ms']:>9.3g}{row.perf['hot_ms']:>9.3g} ({row.perf['clock']})"
    style = STYLES[row.verdict]
    console.print(
        f"{escape(row.case):<{WIDTH}} {escape(row.backend):<10} [{style}]{row.verdict:<8}[/] "
        f"{cells[0]:>9} {cells[1]:>9} {cells[2]:>9} {row.seconds:>6.2f}{perf}"
    )
    if row.good and not row.reason:
        return
    said = [row.reason, row.where] if row.verdict == "fail" else [row.reason]
    for text in filter(None, said):
        console.print(f"    {text}", style="red" if not row.good else "dim", markup=False)
    for element in row.elements:
        at = ", ".join(map(str, element["index"]))
        console.print(
            f"    {row.result}[{at}] got {element['got']:.9g}, expected {element['golden']:.9g}, "
            f"error {element['error']:.3g}", markup=False,
        )  # fmt: skip
    if row.image:
        console.print(f"    picture: {row.image}", markup=False)


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:.2e}"


def _counts(rows: list[Row]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in totals(rows).items()) or "nothing"


def _print_end(job: Job, console: Console, as_json: bool) -> None:
    if as_json:
        print_json(job.record())
        return
    cases = len({row.case for row in job.rows})
    end = "" if job.finished else f" of {len(job.specs)}, broken off"
    console.print(f"[bold]{counted(cases, 'case')}[/]{end}: {_counts(job.rows)}")
    if job.resume:
        more = f"; {counted(job.refused, 'line')} of other cases, rules or devices left out" if job.refused else ""
        run = len({(row.case, row.backend) for row in job.rows}) - job.taken
        console.print(f"{counted(job.taken, 'row')} taken from {TABLE}, {run} run{more}", style="dim")
        if any(row.verdict == "fail" and not row.elements for row in job.rows[: job.taken]):
            console.print(
                "failing elements of rows taken were not kept; a run without --resume shows them", style="dim"
            )
    for device in dict.fromkeys(row.device for row in job.rows if row.device and row.backend == "device"):
        console.print(f"device: {device}", markup=False, style="dim")
    if job.finished and all(row.verdict == "skip" for row in job.rows):
        console.print("nothing was compared: no backend has any of the cases", style="red")
    bad = dict.fromkeys(row.case for row in job.rows if not row.good)
    if bad:
        shown = ", ".join(list(bad)[:10]) + (f" and {len(bad) - 10} more" if len(bad) > 10 else "")
        console.print(f"not good: {shown}", markup=False, style="red")
