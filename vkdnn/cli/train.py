"""vkdnn train: train a language model on text, show what it learned, and prove its bits.

It must never leave a run without saying where its checkpoint is and whether its bits are the reference's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from vkdnn.cli.console import DeviceOption, JsonOption, find_device, output
from vkdnn.cli.train_resume import resume_run
from vkdnn.cli.train_run import Run
from vkdnn.cli.train_verify import run_verify
from vkdnn.errors import ArgumentError
from vkdnn.nn import RAPTConfig
from vkdnn.nn.attention import VARIANTS
from vkdnn.train import OPTIMIZERS, Corpus, Job, load_text, sample_text, standard_library

DEFAULT_SECONDS = 210.0  # of a run without options: sample and parity check end within 5 minutes

EXAMPLES = """\
[bold]Examples[/]

  vkdnn train                    write Python, from its standard library

  vkdnn train --text book.txt    any UTF-8 file or folder

  vkdnn train --steps 2000 --out runs/long --device discrete

  vkdnn train --resume runs/long    go on where it ended, on any device

  vkdnn train --verify 20        device and reference, 20 steps: one digest

  vkdnn train --verify 20 --device cpu    the reference's digest alone

Ctrl-C ends the run after the step at hand and keeps the checkpoint.

A second Ctrl-C ends it at once; the checkpoint written last is kept.

--resume goes on to the bits of a run that was never broken off.

Exit status: 0 done, 1 error or differing bits, 2 wrong usage, 130 Ctrl-C."""

_DEFAULT = Job()


def train(
    context: typer.Context,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            "-t",
            metavar="PATH",
            help="A UTF-8 file or a folder. Default: the Python standard library.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            "-n",
            min=1,
            metavar="N",
            help=f"Steps to train. Default: {_DEFAULT.steps}, fewer if they take {DEFAULT_SECONDS:.0f} s.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--time", min=0.0, metavar="SECONDS", help="End after the step that passes this."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Windows of text a step.")] = _DEFAULT.batch,
    length: Annotated[int, typer.Option(min=1, metavar="N", help="Bytes a window.")] = _DEFAULT.length,
    width: Annotated[int, typer.Option(min=2, metavar="N", help="Width of the model.")] = _DEFAULT.config.width,
    layers: Annotated[int, typer.Option(min=1, metavar="N", help="Blocks of the model.")] = _DEFAULT.config.layers,
    heads: Annotated[int, typer.Option(min=1, metavar="N", help="Attention heads a block.")] = _DEFAULT.config.heads,
    variant: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Attention: [bold]rla2[/] (sums as denominators), [bold]rla[/] (roots of sums of squares), "
            "[bold]lrla[/] (rla2 with a learned feature map).",
        ),
    ] = _DEFAULT.config.variant,
    decay: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Of the scores from token to token; below 1 with --variant rla and --order sequential only.",
        ),
    ] = _DEFAULT.config.decay,
    order: Annotated[
        str,
        typer.Option("--order", metavar="ORDER", help="Order of the scans: [bold]sequential[/] or [bold]chunked[/]."),
    ] = _DEFAULT.config.order,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="[bold]adamw[/], [bold]sgd[/] (momentum 0.9) or [bold]lion[/].")
    ] = _DEFAULT.optimizer,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help=f"The highest. Default: {', '.join(f'{n} {r:g}' for n, (_, r, _w) in OPTIMIZERS.items())}.",
            show_default=False,
        ),
    ] = None,
    accumulate: Annotated[
        int, typer.Option(min=1, metavar="N", help="Batches a step, one after the other; the step takes their mean.")
    ] = _DEFAULT.accumulate,
    ema: Annotated[
        float | None,
        typer.Option(metavar="DECAY", help="Keep averaged weights too, and write the sample with them; such as 0.99."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of parameters and batches.")] = _DEFAULT.seed,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the results. Default: runs/DATE-TIME."),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            "--checkpoint-every", min=1, metavar="N", help="Steps between checkpoints. Default: one each minute."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FOLDER",
            help="Go on with the run in this folder, with its options and its text, on any device. "
            "Its number of steps cannot be raised: the learning rate followed it from the start.",
        ),
    ] = None,
    device: DeviceOption = None,
    verify: Annotated[
        int | None,
        typer.Option(
            "--verify",
            min=1,
            metavar="STEPS",
            help="Train nothing: run this many steps on the device and on the reference and compare SHA-256 "
            "over all parameters and optimizer state. Default text: the one that ships with vkdnn.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a RAPT language model on text."""
    console = output(as_json)
    if resume is not None:
        start, corpus = resume_run(context, resume, text)
        Run(start.job, corpus, find_device(device), start.path.parent, console, as_json, seconds, every, start).go()
        return
    if verify is not None and any(x is not None for x in (steps, seconds, out, every)):
        raise typer.BadParameter(
            "runs steps of its own and writes no files; leave out --steps, --time, --out and --checkpoint-every",
            param_hint="--verify",
        )
    for name, value, known in (("variant", variant, VARIANTS), ("optimizer", optimizer, OPTIMIZERS)):
        if value not in known:
            raise typer.BadParameter(f"got {value!r}, expected {', '.join(known)}", param_hint=f"--{name}")
    if 0 < decay < 1 and (variant, order) != ("rla", "sequential"):
        raise typer.BadParameter("--decay below 1 needs --variant rla and --order sequential")
    config = replace(_config(width, layers, heads, order), variant=variant, decay=decay)
    rate = OPTIMIZERS[optimizer][1] if learning_rate is None else learning_rate
    job = Job(config, steps or _DEFAULT.steps, batch, length, rate, seed, optimizer, accumulate, ema)
    corpus = _corpus(text, verify is not None)
    corpus.check(length)
    if verify is not None:
        run_verify(job, corpus, find_device(device), verify, console, as_json)
        return
    limited = seconds is None and steps is None
    if limited:
        seconds = DEFAULT_SECONDS
    chosen = find_device(device)
    Run(job, corpus, chosen, _folder(out), console, as_json, seconds, every, limited=limited).go()


def _config(width: int, layers: int, heads: int, order: str) -> RAPTConfig:
    if order not in ("sequential", "chunked"):
        raise typer.BadParameter(f"got {order!r}, expected sequential or chunked", param_hint="--order")
    if width % (2 * heads):
        raise typer.BadParameter(
            f"--heads {heads} does not fit --width {width}: the width must be a multiple of twice the heads "
            f"({2 * heads}), as positions turn pairs of each head's elements"
        )
    default, head = _DEFAULT.config, width // heads
    config = replace(default, layers=layers, order=order)
    if (width, heads) == (default.width, default.heads):
        return config
    hidden = width * default.hidden // default.width
    return replace(config, width=width, heads=heads, key_width=head, value_width=head, hidden=hidden)


def _corpus(text: Path | None, fixed: bool) -> Corpus:
    if text is not None:
        return load_text(text)
    return sample_text() if fixed else standard_library()


def _folder(out: Path | None) -> Path:
    """The folder of this run, made now, so that what is wrong with it shows before training."""
    folder = out or Path("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))
    there = folder.is_dir()
    if there and any(folder.iterdir()):
        if out is None:
            time.sleep(1.0)  # another run began in this second
            return _folder(None)
        raise ArgumentError(
            f"--out: {folder} is not empty; name a new folder, or go on with the run there with --resume {folder}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=there)
    except FileExistsError:
        if out is None:
            return _folder(None)
        raise ArgumentError(f"--out: {folder} was made a moment ago, by another run; name another folder") from None
    except OSError as error:
        raise ArgumentError(f"--out: cannot make {folder} ({error.strerror}); name another folder") from error
    return folder
