"""vkdnn cache: the store of compiled shaders, looked at, explained, checked, cleaned, filled and moved.

The commands lie in the modules beside this one; here is what they are called.
"""

from __future__ import annotations

import typer

from vkdnn.cli import cache_check, cache_clean, cache_explain, cache_look, cache_move, cache_show, cache_warm

HELP = """Look at, explain, check, clean, fill and move the store of compiled shaders.

It lies in VKDNN_CACHE_DIR, else in the user's cache folder. VKDNN_CACHE_MAX_BYTES bounds its size (2 GiB): whatever is
beyond is evicted when shaders are stored, and by `vkdnn cache prune` at once. VKDNN_CACHE_DISABLE=1 switches it off."""

EXAMPLES = """\
[bold]Examples[/]

  vkdnn cache stats                        how large it is, and whether it works

  vkdnn cache explain-miss                 why the last process compiled anything

  vkdnn cache list --sort seconds          what took longest

  vkdnn cache show 5991ae8d                one entry: components, GLSL, SPIR-V

  vkdnn cache warm --model rapt --train    before the first step needs it

  vkdnn cache export warm.tar.gz           for another machine, where

  vkdnn cache import warm.tar.gz           takes what it has verified

  vkdnn cache prune --max-bytes 500M --dry-run"""

app = typer.Typer(name="cache", help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")

app.command("stats")(cache_look.stats)
app.command("list")(cache_look.list_entries)
app.command("show")(cache_show.show)
app.command("explain-miss")(cache_explain.explain_miss)
app.command("diff")(cache_show.diff)
app.command("verify")(cache_check.verify)
app.command("repair")(cache_check.repair)
app.command("prune")(cache_clean.prune)
app.command("clear")(cache_clean.clear)
app.command("warm", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(cache_warm.warm)
app.command("export")(cache_move.export)
app.command("import")(cache_move.import_archive)
