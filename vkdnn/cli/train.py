"""vkdnn train: train a language model on text, show what it learned, and prove its bits.

It must never leave a run without saying where its checkpoint is and whether its bits are the reference's.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from vkdnn.cli.console import DeviceOption, JsonOption, find_device, output
from vkdnn.cli.train_memory import run_memory_report
from vkdnn.cli.train_model import job_of
from vkdnn.cli.train_resume import given_options, levers_of, resume_run
from vkdnn.cli.train_run import CLAIM, Run
from vkdnn.cli.train_verify import run_verify
from vkdnn.errors import ArgumentError
from vkdnn.nn import GPTConfig, RAPTConfig
from vkdnn.train import OPTIMIZERS, Corpus, Job, load_text, sample_text, standard_library

DEFAULT_SECONDS = 210.0  # of a run without options: sample and parity check end within 5 minutes

EXAMPLES = """\
[bold]Examples[/]

  vkdnn train                    write Python, from its standard library

  vkdnn train --text book.txt    any UTF-8 file or folder

  vkdnn train --model gpt        softmax attention instead of linear

  vkdnn train --steps 2000 --out runs/long --device discrete

  vkdnn train --resume runs/long    go on where it ended, on any device

  vkdnn train --layers 24 --memory-report    what a step needs, with levers and without

  vkdnn train --verify 20        device and reference, 20 steps: one digest

  vkdnn train --verify 20 --device cpu    the reference's digest alone

Ctrl-C ends the run after the step at hand and keeps the checkpoint.

A second Ctrl-C ends it at once; the checkpoint written last is kept.

--resume goes on to the bits of a run that was never broken off.

Exit status: 0 done, 1 error or differing bits, 2 wrong usage, 130 Ctrl-C."""

_DEFAULT = Job()
_RAPT, _GPT = RAPTConfig(), GPTConfig()


def train(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="[bold]rapt[/] (ReLU linear attention) or [bold]gpt[/] (softmax attention).",
        ),
    ] = _DEFAULT.model,
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
            help="RAPT's attention: [bold]rla2[/] (sums as denominators), [bold]rla[/] (roots of sums of squares), "
            "[bold]lrla[/] (rla2 with a learned feature map).",
        ),
    ] = _RAPT.variant,
    decay: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="RAPT: of the scores from token to token; below 1 with --variant rla and --order sequential only.",
        ),
    ] = _RAPT.decay,
    order: Annotated[
        str,
        typer.Option(
            "--order", metavar="ORDER", help="RAPT: order of the scans, [bold]sequential[/] or [bold]chunked[/]."
        ),
    ] = _RAPT.order,
    kv_heads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="GPT: heads of keys and values. Default: as many as --heads."),
    ] = _GPT.kv_heads,
    positions: Annotated[
        str, typer.Option(metavar="NAME", help="GPT: [bold]rope[/], [bold]alibi[/] or [bold]learned[/].")
    ] = _GPT.positions,
    mlp: Annotated[str, typer.Option(metavar="NAME", help="GPT: [bold]swiglu[/] or [bold]gelu[/].")] = _GPT.mlp,
    norm: Annotated[str, typer.Option(metavar="NAME", help="GPT: [bold]rms[/] or [bold]layer[/].")] = _GPT.norm,
    window: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="GPT: bytes that a byte sees, itself included. Default: all.")
    ] = _GPT.window,
    softcap: Annotated[
        float | None, typer.Option(metavar="X", help="GPT: scores stay below this, by tanh. Default: no such bound.")
    ] = _GPT.softcap,
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
    recompute_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Compute blocks again for the gradient, N at a time, instead of keeping values.",
        ),
    ] = None,
    offload: Annotated[
        bool, typer.Option("--offload", help="Keep what these blocks begin with in the host's memory.")
    ] = False,
    flush_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="End a submission after N blocks: for watchdogs of drivers."),
    ] = None,
    memory_report: Annotated[
        bool,
        typer.Option("--memory-report", help="Train nothing: print what a step needs of memory with these levers."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a small language model on text."""
    console = output(as_json)
    if resume is not None:
        start, corpus = resume_run(context, resume, text)
        folder, levers = start.path.parent, levers_of(context, start.levers)
        Run(start.job, corpus, find_device(device), folder, console, as_json, seconds, every, start, levers=levers).go()
        return
    if verify is not None and memory_report:
        raise typer.BadParameter("trains nothing; leave out --verify", param_hint="--memory-report")
    if (verify is not None or memory_report) and any(x is not None for x in (steps, seconds, out, every)):
        what = "trains nothing" if memory_report else "runs steps of its own"
        raise typer.BadParameter(
            f"{what} and writes no files; leave out --steps, --time, --out and --checkpoint-every",
            param_hint="--memory-report" if memory_report else "--verify",
        )
    job = job_of(context.params, given_options(context), steps or _DEFAULT.steps)
    levers = levers_of(context)
    corpus = _corpus(text, verify is not None or memory_report)
    corpus.check(length)
    if memory_report:
        run_memory_report(job, corpus, find_device(device), levers, console, as_json)
        return
    if verify is not None:
        run_verify(job, corpus, find_device(device), verify, console, as_json, levers)
        return
    limited = seconds is None and steps is None
    if limited:
        seconds = DEFAULT_SECONDS
    chosen = find_device(device)
    Run(job, corpus, chosen, _folder(out), console, as_json, seconds, every, limited=limited, levers=levers).go()


def _corpus(text: Path | None, fixed: bool) -> Corpus:
    if text is not None:
        return load_text(text)
    return sample_text() if fixed else standard_library()


def _folder(out: Path | None) -> Path:
    """The folder of this run, made and claimed now, so that what is wrong with it shows before training."""
    folder = out or Path("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))
    try:
        if folder.exists() and not folder.is_dir():
            raise ArgumentError(f"--out: {folder} is a file; name a folder")
        folder.mkdir(parents=True, exist_ok=True)
        files = {path.name for path in folder.iterdir()}
        if not files:
            with open(folder / CLAIM, "x"):
                return folder
    except FileExistsError:  # made a moment ago
        files = {CLAIM}
    except OSError as error:
        raise ArgumentError(f"--out: cannot make {folder} ({error.strerror}); name another folder") from error
    if out is None:
        time.sleep(1.0)  # another run began in this second
        return _folder(None)
    if files == {CLAIM}:
        raise ArgumentError(
            f"--out: another run began in {folder}; name another folder, or remove this one if that run was killed"
        )
    raise ArgumentError(
        f"--out: {folder} is not empty; name a new folder, or go on with the run there with --resume {folder}"
    )
