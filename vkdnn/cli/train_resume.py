"""vkdnn train --resume: going on with a run, with the options and the text that it began with.

It must never change a run silently: an option or a text that differs is refused by name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from vkdnn.cli.train_model import model_options
from vkdnn.errors import ArgumentError
from vkdnn.nn import NO_LEVERS, Levers
from vkdnn.train import Corpus, Job, Start, load_start, same_text

FREE = frozenset(
    {"resume", "text", "seconds", "every", "device", "as_json", "recompute_every", "offload", "flush_every"}
)
"""Options that a run may go on with as the user likes; ``text`` is compared by its bytes."""


def given_options(context: typer.Context) -> dict[str, Any]:
    """The options of the command line, by the name of the parameter."""
    named = {name: context.get_parameter_source(name) for name in context.params}
    return {n: context.params[n] for n, source in named.items() if source is not None and source.name == "COMMANDLINE"}


def resume_run(context: typer.Context, folder: Path, text: Path | None) -> tuple[Start, Corpus]:
    """The run in a folder and its text. Raises ArgumentError when an option or the text differs from it."""
    given = given_options(context)
    for wrong in ("verify", "memory_report", "out"):
        if wrong in given:
            raise typer.BadParameter(
                f"goes on in the folder of the run; leave out --{wrong.replace('_', '-')}", param_hint="--resume"
            )
    start = load_start(folder)
    began = options_of(start.job)
    flags = {p.name: p.opts[0] for p in context.command.params}
    differing = [
        f"{flags[name]} {'none' if began.get(name) is None else began[name]} (got {value})"
        for name, value in given.items()
        if name not in FREE and began.get(name) != value
    ]
    if differing:
        raise ArgumentError(
            f"--resume: the run in {start.path.parent} began with {', '.join(differing)}; leave these options out, "
            "or start a new run"
        )
    return start, same_text(start, text)


def levers_of(context: typer.Context, began: Levers = NO_LEVERS) -> Levers:
    """The levers of the command line; those that it does not name are the ones that the run began with."""
    names = {"recompute_every": "checkpoint_every", "offload": "offload", "flush_every": "flush_every"}
    given = given_options(context)
    return replace(began, **{field: given[name] for name, field in names.items() if name in given})


def options_of(job: Job) -> dict[str, Any]:
    """The options of vkdnn train that describe a job."""
    return {
        "steps": job.steps,
        "batch": job.batch,
        "length": job.length,
        **model_options(job.config),
        "learning_rate": job.learning_rate,
        "seed": job.seed,
        "optimizer": job.optimizer,
        "accumulate": job.accumulate,
        "ema": job.ema,
    }
