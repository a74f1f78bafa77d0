"""The command line of tools/bench."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.work import has

if has("torch"):
    import torch  # noqa: F401  (before Vulkan is opened: the other way round fails on some drivers)

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import vkdnn as vk
from benchmarks import report
from benchmarks.cases import CASES
from benchmarks.facts import FACTS
from benchmarks.measure import Limits
from benchmarks.options import add_outputs, check_outputs, matching, positive, write_json
from benchmarks.run import run
from benchmarks.work import Setup
from vkdnn.errors import VkdnnError

PIPE_WIDTH = 180


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if something failed, 2 for bad options."""
    parser = _parser()
    options = parser.parse_args(arguments)
    cases, facts = matching(CASES, options.only), matching(FACTS, options.only)
    if options.list:
        print("\n".join([*cases, *facts]))
        return 0
    if not cases and not facts:
        parser.error(f"--only: {', '.join(options.only)} matches nothing; --list names what there is")
    check_outputs(parser, options)
    scale = "quick" if options.quick else "large" if options.large else "default"
    try:
        device = vk.device(options.device)
    except VkdnnError as error:
        parser.error(f"--device: {error}")
    limits = Limits(2, 1.0, 0.001) if scale == "quick" else Limits(options.turns, options.seconds, 0.02)
    record = _with_progress(Setup(device, scale), limits, cases, facts)
    _tell(record, options)
    return int(any("error" in row for row in [*record["cases"], *record["facts"]]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bench",
        description="Measures vkdnn on this machine: each figure beside its peer and the roofline.",
        epilog="docs/performance.md says what the columns mean.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, no figures")
    size.add_argument("--large", action="store_true", help="sizes for a graphics card with 8 GB of memory or more")
    parser.add_argument(
        "--peers", action="store_true", help="beside PyTorch on a graphics card, by its clock; has options of its own"
    )
    parser.add_argument("--list", action="store_true", help="names of the cases and facts, and nothing else")
    parser.add_argument("--device", "-d", help="index, kind, part of a name, or cpu (default: VKDNN_DEVICE, the best)")
    parser.add_argument("--turns", type=positive, default=9, help="measured runs of each case (default 9)")
    parser.add_argument("--seconds", type=positive, default=20, help="after which a case stops (default 20)")
    add_outputs(parser, "ratios and roofline")
    return parser


def _with_progress(setup: Setup, limits: Limits, cases: list[str], facts: list[str]) -> dict[str, Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(cases) + len(facts) + 1 + bool(cases))
        begun = [0]

        def begin(name: str) -> None:
            bar.update(task, description=f"{name:<22}", completed=begun[0])
            begun[0] += 1

        return run(setup, limits, cases, facts, begin)


def _tell(record: dict[str, Any], options: argparse.Namespace) -> None:
    stream = write_json(record, options.json)
    if options.png:
        report.picture(record, options.png)
    if options.markdown:
        print(report.markdown(record), end="", file=stream)
    else:
        console = Console(file=stream)
        if not console.is_terminal:
            console.width = PIPE_WIDTH
        report.print_tables(record, console)
