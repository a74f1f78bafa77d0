"""vkdnn profile: where the time of a training step, an operation or a function goes, kernel by kernel.

It must measure what a user runs: the same Programs, recorded once more with time stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import vkdnn as vk
from vkdnn.check.targets import resolve
from vkdnn.check.work import quiet
from vkdnn.cli.cache_common import bar
from vkdnn.cli.console import DeviceOption, JsonOption, find_device, full_name, output, print_json
from vkdnn.cli.job_options import parse_job
from vkdnn.cli.train_model import layers_of, mixing_of
from vkdnn.device import Progress
from vkdnn.errors import ArgumentError
from vkdnn.profile import Profile
from vkdnn.profile import profile as profiled
from vkdnn.profile.chrome import write
from vkdnn.profile.measure import STEPS
from vkdnn.profile.table import TOP, table
from vkdnn.train import MODELS, Trainer, sample_text

EXAMPLES = """\
[bold]Examples[/]

  vkdnn profile rapt                       a training step of vkdnn train

  vkdnn profile rapt --layers 8 --width 512 --heads 8 --order chunked

  vkdnn profile gpt --trace step.json      also a file for ui.perfetto.dev

  vkdnn profile attention --device 0       an operation, on small arrays

  vkdnn profile my_model:forward --shape x=8,512"""

_COMMAND = "vkdnn profile"


def profile(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="[bold]rapt[/] or [bold]gpt[/], with the options of vkdnn train: a training step; an operation "
            "(softmax); or module:function.",
            show_default=False,
        ),
    ],
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", "-s", metavar="[NAME=]SIZES[:DTYPE]", help="An argument of module:function; repeat."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", "-n", min=1, metavar="N", help="Calls that count.")] = STEPS,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Kernels that are listed.")] = TOP,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", "-t", metavar="FILE", help="Also write a trace file of the host and the device."),
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time every kernel by the device's clock: its share, FLOP/s, bytes/s, and how near it comes to the ceilings.

    The ceilings, copy bandwidth and multiply-adds, are measured in the same run. JSON: name, device, ceilings, wall_s,
    busy_s, busy_share, gaps_s, submissions, dispatches, barriers, kernels [{title, launches, seconds, share, flops,
    bytes, roofline_fraction, bound, ...}], and of models tokens_per_s.
    """
    console = output(as_json)
    if trace is not None and not trace.absolute().parent.is_dir():
        raise ArgumentError(f"--trace: the folder of {trace} does not exist; make it first")
    place = find_device(device)
    with bar(Console(stderr=True), "kernels compiled", None) as progress:
        if target in MODELS:
            if shape:
                raise typer.BadParameter("belongs to module:function; for a model use --batch and --length")
            name, tokens, function = _model(target, context.args, place, lambda done, total, _: progress(done, total))
        elif context.args:
            raise typer.BadParameter(f"belongs to {' or '.join(MODELS)}: {context.args[0]}")
        else:
            name, tokens, function = target, 0, _function(target, shape or [], place)
        found = replace(profiled(function, steps=steps, device=place), name=name, device=full_name(place))
    if trace is not None:
        write(found, trace)
    _tell(found, tokens, top, trace, console, as_json)


def _model(name: str, words: Sequence[str], place: vk.Device, progress: Progress) -> tuple[str, int, Callable[[], Any]]:
    """What to call a model's training step, its tokens, and the step."""
    job, levers = parse_job(name, words, _COMMAND)
    trainer = Trainer(job, sample_text(), place, progress, levers=levers)
    what = f"a training step of {job.kind.title}, {layers_of(job.config)}, {mixing_of(job.config)}, "
    what += f"batch {job.batch} x {job.length}" + (f" x {job.accumulate}" if job.accumulate > 1 else "")
    what += f", {trainer.parameter_count:,} parameters"
    return what, job.batch * job.length * job.accumulate, trainer.step


def _function(target: str, shapes: Sequence[str], place: vk.Device) -> Callable[[], Any]:
    """The only case of a target, jitted, on arrays of its own."""
    with quiet():
        cases = resolve([target], shapes)
    if len(cases) > 1:
        some = ", ".join(case.name for case in cases[:4])
        raise ArgumentError(f"target: {target!r} names {len(cases)} operations ({some}, ...); name one of them")
    with place:
        arrays = [vk.array(a) for a in cases[0].arrays()]
    run = vk.jit(cases[0].run)
    return lambda: run(*arrays)


def _tell(found: Profile, tokens: int, top: int, trace: Path | None, console: Console, as_json: bool) -> None:
    if as_json:
        print_json(found.record() | ({"tokens_per_s": tokens / found.wall} if tokens else {}))
    else:
        console.print(table(found, top), markup=False)
        if tokens:
            console.print(f"\n{tokens / found.wall:,.0f} tokens a second", markup=False)
    if trace is not None:
        console.print(f"trace in {trace}: open it in ui.perfetto.dev or chrome://tracing", markup=False)
