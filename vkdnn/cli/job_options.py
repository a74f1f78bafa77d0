"""The options of vkdnn train for commands that prepare a model instead of training it.

An option that only a run could follow must be refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import typer

from vkdnn.cli import train
from vkdnn.cli.train_model import job_of
from vkdnn.cli.train_resume import given_options, levers_of
from vkdnn.errors import ArgumentError
from vkdnn.nn import Levers
from vkdnn.train import Job

_OF_RUNS = frozenset({"text", "seconds", "out", "every", "resume", "device", "verify", "memory_report", "as_json"})


def parse_job(model: str, words: Sequence[str], command: str) -> tuple[Job, Levers]:
    """The job and levers that ``--model`` and options of vkdnn train, as they stand on a command line, describe.

    ``command`` is what the user called, for messages. Raises UsageError for an unknown option and a value that does
    not fit, ArgumentError for options of runs.
    """
    app = typer.Typer(add_completion=False)
    app.command()(train.train)
    made = typer.main.get_command(app).make_context(command, [f"--model={model}", *words])
    context = cast(typer.Context, made)  # of which it is the base class
    options, given = context.params, given_options(context)
    wrong = sorted(_OF_RUNS & given.keys())
    if wrong:
        flags = {p.name: p.opts[0] for p in context.command.params}
        raise ArgumentError(f"{flags[wrong[0]]}: belongs to a run of vkdnn train; leave it out")
    return job_of(options, given, options["steps"] or Job().steps), levers_of(context)
