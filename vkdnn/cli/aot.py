"""vkdnn aot: build bundles, run them, look into them."""

from __future__ import annotations

import typer

from vkdnn.cli import aot_build, aot_inspect, aot_run

app = typer.Typer(
    name="aot",
    help="Bundles: functions and models compiled ahead of time, to run without a compiler, or without vkdnn.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The options of vkdnn train are handed on to that command's own parser.
_HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("build", epilog=aot_build.EXAMPLES, context_settings=_HANDED_ON)(aot_build.build)
app.command("run", epilog=aot_run.EXAMPLES)(aot_run.run)
app.command("inspect", epilog=aot_inspect.EXAMPLES)(aot_inspect.inspect_command)
