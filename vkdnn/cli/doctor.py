"""vkdnn doctor: what this machine can do for vkdnn, what is wrong with it, and evidence to keep.

It must never end with a traceback, whatever is broken.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vkdnn.check.doctor import examine
from vkdnn.check.evidence import PAGE, gather, holds, load_sweep, markdown
from vkdnn.check.evidence import page as make_page
from vkdnn.check.finding import Finding, Report, State
from vkdnn.cli.console import DeviceOption, JsonOption, counted, find_device, output, print_json
from vkdnn.device import VulkanDevice
from vkdnn.errors import ArgumentError
from vkdnn.runtime import DeviceInfo
from vkdnn.shader.store import replaced

EXAMPLES = """\
[bold]Examples[/]

  vkdnn doctor           everything from the loader up to a kernel's bits; each problem with its remedy

  vkdnn doctor --json    the same for programs

  vkdnn doctor --evidence llvmpipe    what the device does, kept as llvmpipe.json and llvmpipe.md"""

_MARKS = {
    "ok": "[green]ok[/]     ",
    "note": "[dim]note[/]   ",
    "warning": "[yellow]warning[/]",
    "failure": "[bold red]FAILED[/] ",
}


def doctor(
    evidence: Annotated[
        Path | None,
        typer.Option(
            "--evidence",
            metavar="FILE",
            help="Examine one device instead, and write its table to FILE.json and FILE.md.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="With --evidence: train nothing.")] = False,
    sweep: Annotated[
        Path | None,
        typer.Option("--sweep", metavar="FILE", help="With --evidence: figures that `vkdnn sweep --out` wrote."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page", metavar="FOLDER", help="Write the page of a folder of evidence, its README.md, and stop."
        ),
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Examine this machine. Exit status 1 if something failed; warnings do not count.

    JSON: healthy, counts {failure, warning, note, ok}, findings [{topic, state, text, remedy, details}].
    """
    for name, given in (("--quick", quick), ("--sweep", sweep), ("--device", device)):
        if given and evidence is None:
            hint = "; VKDNN_DEVICE chooses the default device" if name == "--device" else ""
            raise ArgumentError(f"{name}: is for --evidence, which is missing{hint}")
    console = output(as_json)
    if page is not None:
        with replaced(page / PAGE) as file:
            file.write(make_page(page).encode())
        console.print(f"wrote {page / PAGE}", markup=False)
        return
    progress = Console(stderr=True)
    with progress.status("looking", spinner="line") as status:

        def tell(topic: str) -> None:
            status.update(f"looking at {escape(topic)}")

        if evidence is None:
            report = examine(tell)
        else:
            found = gather(_info(device), quick, None if sweep is None else load_sweep(sweep), tell)
    if evidence is not None:
        _keep(found, evidence, console, as_json)
        return
    if as_json:
        print_json(report.record())
    else:
        print_report(report, console)
    if not report.healthy:
        raise typer.Exit(1)


def _info(selector: str | None) -> DeviceInfo:
    found = find_device(selector)
    if not isinstance(found, VulkanDevice):
        raise ArgumentError("--device: cpu is the reference itself, expected a Vulkan device")
    return found.opened.info


def _keep(found: dict[str, Any], path: Path, console: Console, as_json: bool) -> None:
    """Writes both files of a device's evidence; raises typer.Exit(1) where it speaks against the device."""
    base = path.with_suffix("") if path.suffix in (".json", ".md") else path
    text = markdown({base.name: found})
    for suffix, content in ((".json", json.dumps(found, indent=1) + "\n"), (".md", text)):
        with replaced(base.parent / f"{base.name}{suffix}") as file:
            file.write(content.encode())
    if as_json:
        print_json(found)
    else:
        console.print(text, markup=False)
    if not holds(found):
        raise typer.Exit(1)


def print_report(report: Report, console: Console) -> None:
    """All findings by topic, then what to do."""
    for topic, group in groupby(report.findings, key=lambda f: f.topic):
        console.print(f"[bold]{escape(topic)}[/]")
        for kept, some in groupby(group, key=_is_kept_rule):
            for state, text in _one_line(list(some)) if kept else [(f.state, f.text) for f in some]:
                console.print(f"  {_MARKS[state]} {escape(' '.join(text.split()))}")
    console.print()
    failures, warnings = report.of("failure"), report.of("warning")
    for state, topic, remedy in dict.fromkeys((f.state, f.topic, f.remedy) for f in (*warnings, *failures)):
        console.print(f"{_MARKS[state]} {escape(topic)}: " + (f"remedy: {escape(remedy)}" if remedy else "see above"))
    counts = f"{counted(len(failures), 'failure')}, {counted(len(warnings), 'warning')}"
    verdict = "[green]healthy[/]" if report.healthy else "[bold red]not healthy[/]"
    console.print(f"{verdict}: {counts}")


def _is_kept_rule(finding: Finding) -> bool:
    return finding.state == "ok" and finding.details.get("differing") == 0


def _one_line(rules: list[Finding]) -> list[tuple[State, str]]:
    """Rules of arithmetic that a device keeps in every case."""
    cases = sum(f.details["cases"] for f in rules)
    return [("ok", f"kept in all of {cases:,} cases: {', '.join(f.details['name'] for f in rules)}")]
