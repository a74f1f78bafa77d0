"""The vkdnn command: devices, doctor, sweep, train, generate, profile, tune, show, ops, cache, aot, accuracy,
gradcheck, parity.

It must never show a traceback for an error of vkdnn's own, nor mix anything into JSON on standard output.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

import vkdnn
from vkdnn.cli import (
    accuracy,
    aot,
    cache,
    devices,
    doctor,
    generate,
    gradcheck,
    ops,
    parity,
    profile,
    show,
    sweep,
    train,
    tune,
)
from vkdnn.cli.console import Commands

app = typer.Typer(
    cls=Commands,
    name="vkdnn",
    help="Neural networks on Vulkan devices, with the same bits on each of them and on the NumPy reference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vkdnn {vkdnn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("devices", epilog=devices.EXAMPLES)(devices.devices)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("sweep", epilog=sweep.EXAMPLES)(sweep.sweep)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("generate", epilog=generate.EXAMPLES)(generate.generate)
# The options of vkdnn train are handed on to that command's own parser.
_HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("profile", epilog=profile.EXAMPLES, context_settings=_HANDED_ON)(profile.profile)
app.command("show", epilog=show.EXAMPLES)(show.show)
app.command("ops", epilog=ops.EXAMPLES)(ops.ops)
app.command("accuracy", epilog=accuracy.EXAMPLES)(accuracy.accuracy)
app.command("gradcheck", epilog=gradcheck.EXAMPLES)(gradcheck.gradcheck)
app.command("parity", epilog=parity.EXAMPLES)(parity.parity)
_HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("tune", epilog=tune.EXAMPLES, context_settings=_HANDED_ON)(tune.tune)
app.add_typer(cache.app)
app.add_typer(aot.app)


def main() -> None:
    """The entry point of the command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever called
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for as long as the process lives)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know an arrow
    app()
