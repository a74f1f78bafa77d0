"""vkdnn doctor: what this machine can do for vkdnn, what is wrong with it, and evidence to keep.

It must never end with a traceback, whatever is broken.
"""

from __future__ import annotations

from itertools import groupby

import typer
from rich.console import Console
from rich.markup import escape

from vkdnn.check.doctor import examine
from vkdnn.check.finding import Finding, Report
from vkdnn.cli.console import JsonOption, counted, output, print_json

EXAMPLES = """\
[bold]Examples[/]

  vkdnn doctor           everything from the loader up to a kernel's bits; each problem with its remedy

  vkdnn doctor --json    the same for programs"""

_MARKS = {
    "ok": "[green]ok[/]     ",
    "note": "[dim]note[/]   ",
    "warning": "[yellow]warning[/]",
    "failure": "[bold red]FAILED[/] ",
}


def doctor(as_json: JsonOption = False) -> None:
    """Examine this machine. Exit status 1 if something failed; warnings do not count.

    JSON: healthy, counts {failure, warning, note, ok}, findings [{topic, state, text, remedy, details}].
    """
    console = output(as_json)
    progress = Console(stderr=True)
    with progress.status("looking", spinner="line") as status:
        report = examine(lambda topic: status.update(f"looking at {topic}"))
    if as_json:
        print_json(report.record())
    else:
        print_report(report, console)
    if not report.healthy:
        raise typer.Exit(1)


def print_report(report: Report, console: Console) -> None:
    """All findings by topic, then the problems again with their remedies."""
    for topic, group in groupby(report.findings, key=lambda f: f.topic):
        console.print(f"[bold]{escape(topic)}[/]")
        for finding in group:
            console.print(f"  {_MARKS[finding.state]} {escape(' '.join(finding.text.split()))}")
    console.print()
    failures, warnings = report.of("failure"), report.of("warning")
    for finding in (*warnings, *failures):
        _print_problem(finding, console)
    counts = f"{counted(len(failures), 'failure')}, {counted(len(warnings), 'warning')}"
    verdict = "[green]healthy[/]" if report.healthy else "[bold red]not healthy[/]"
    console.print(f"{verdict}: {counts}")


def _print_problem(finding: Finding, console: Console) -> None:
    console.print(f"{_MARKS[finding.state]} {escape(finding.topic)}: {escape(' '.join(finding.text.split()))}")
    if finding.remedy:
        console.print(f"        [bold]remedy:[/] {escape(finding.remedy)}")
