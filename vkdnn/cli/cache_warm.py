"""vkdnn cache warm: what a model, a function or a script needs is compiled before it is needed.

It must compile what a run would: shaders are collected by running on a device that computes nothing.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import vkdnn as vk
from vkdnn import dtypes, tree
from vkdnn.aot.target import target_of
from vkdnn.aot.targets import Argument, Collector, find_function, parse_argument
from vkdnn.array import Array
from vkdnn.cli.cache_common import bar, root
from vkdnn.cli.console import counted, find_device, full_name, output, print_json
from vkdnn.cli.job_options import parse_job
from vkdnn.cli.train_run import SAMPLE_BYTES, SAMPLE_PROMPT
from vkdnn.device import VulkanDevice
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.nn import Levers
from vkdnn.shader import ShaderRequest, compile_count, compile_many
from vkdnn.train import Job, Trainer, sample_text
from vkdnn.train.decode import PIECE, generate

_COMMAND = "vkdnn cache warm"
_GENERATED = 200  # bytes that vkdnn generate writes by default


def warm(
    context: typer.Context,
    function: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:FUNCTION", help="A function of arrays; give --shape for each argument."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", "-s", metavar="[NAME=]SIZES[:DTYPE]", help="An argument, such as x=8,128 or 8x128:int32; repeat."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME", help="[bold]rapt[/] or [bold]gpt[/], with the options of vkdnn train."
        ),
    ] = None,
    training: Annotated[
        bool, typer.Option("--train", help="The model's training with its sample; without it, what decoding needs.")
    ] = False,
    script: Annotated[
        Path | None,
        typer.Option("--script", metavar="FILE.py", help="Run a Python script as it is, and count what it compiled."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            metavar="DEVICE",
            help="The Vulkan device to compile for: shaders differ with its limits and arithmetic.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, everything else on stderr.")
    ] = False,
) -> None:
    """Compile all that a model, a function or a script will need, with every core.

    With --model, options of vkdnn train describe it, such as --width 64 --layers 2 --batch 8: give those of the run,
    --steps and --learning-rate included, as the schedule of the learning rate is part of its shaders. JSON: store,
    device, shaders (needed; null for a script), compiled, stored (found in the store before; null for a script),
    seconds.
    """
    rest = [*([function] if function and (model or function.startswith("-")) else []), *context.args]
    function = None if rest and rest[0] == function else function
    if [model, function, script].count(None) != 2:
        raise typer.BadParameter("name one thing to compile for: --model, MODULE:FUNCTION or --script")
    if model is None and (rest or training):
        raise typer.BadParameter(f"belongs to --model: {rest[0] if rest else '--train'}")
    if function is None and shape:
        raise typer.BadParameter("belongs to MODULE:FUNCTION", param_hint="--shape")
    console = output(as_json)
    folder, begun = root(), time.monotonic()
    chosen = find_device(device)
    if not isinstance(chosen, VulkanDevice):
        raise ArgumentError(f"device: {chosen.name} runs no shaders; name a Vulkan device")
    if script is not None:
        compiled = _run_script(script, chosen, as_json)
        _report(console, folder, chosen, None, compiled, time.monotonic() - begun, as_json)
        return
    collector = Collector(target_of(chosen))
    if model is not None:
        collect_model(collector, *parse_job(model, rest, _COMMAND), training)
    elif function is not None:
        _collect_function(collector, find_function(function), [parse_argument(text) for text in shape or ()])
    requests = collector.requests
    compiled = _compile(requests, console)
    _report(console, folder, chosen, len(requests), compiled, time.monotonic() - begun, as_json)


def _compile(requests: Sequence[ShaderRequest], console: Console) -> int:
    """How many had to be compiled."""
    before = compile_count()
    with bar(console, "compiling", None, at_once=True) as progress:
        compile_many(requests, lambda done, total, label: progress(done, total))
    return compile_count() - before


def _report(
    console: Console, folder: Path, device: vk.Device, needed: int | None, compiled: int, seconds: float, as_json: bool
) -> None:
    stored = None if needed is None else needed - compiled
    if as_json:
        print_json(
            {
                "store": str(folder),
                "device": device.name,
                "shaders": needed,
                "compiled": compiled,
                "stored": stored,
                "seconds": seconds,
            }
        )
        return
    found = "" if stored is None else f" of {needed:,}; {stored:,} {'was' if stored == 1 else 'were'} in the store"
    console.print(f"compiled {counted(compiled, 'shader')}{found} ({full_name(device)}, {seconds:.1f} s)", markup=False)


# ---- what to collect


def collect_model(collector: vk.Device, job: Job, levers: Levers, training: bool) -> None:
    """Runs a model on a device, such as a collector: a training step and the sample, or its beginning and all of
    decoding."""
    if training:
        trainer = Trainer(job, sample_text(), collector, levers=levers)
        trainer.step()
        _decode(job, trainer.best, SAMPLE_PROMPT, SAMPLE_BYTES)
        return
    with collector:
        params = job.make_model().init(job.seed)
    _decode(job, params, SAMPLE_PROMPT, _GENERATED)
    _decode(job, params, bytes(PIECE + 1), _GENERATED)


def _decode(job: Job, params: Any, prompt: bytes, count: int) -> None:
    """The prompt is read, which takes every kernel of decoding; no byte can be drawn from probabilities of zero."""
    with contextlib.suppress(VkdnnError):
        next(generate(job.make_model(), params, prompt, count))


def _collect_function(collector: Collector, function: Callable[..., Any], arguments: Sequence[Argument]) -> None:
    with collector:
        given: list[Any] = []
        named: dict[str, Any] = {}
        for argument in arguments:
            symbols = [s for s in argument.sizes if isinstance(s, str)]
            if symbols:
                raise ArgumentError(f"--shape: got the symbol {symbols[0]!r}, expected a number; compile for each size")
            value = vk.array(np.zeros(argument.sizes, dtypes.as_dtype(argument.dtype).numpy))
            if argument.name:
                named[argument.name] = value
            else:
                given.append(value)
        try:
            result = function(*given, **named)
        except VkdnnError:
            raise
        except Exception as error:  # whatever the user's function does
            raise ArgumentError(
                f"function: {function.__name__} failed with {type(error).__name__}: {error}; give a --shape for each "
                "argument, by position or by name"
            ) from error
        arrays = [leaf for leaf in tree.flatten(result)[0] if isinstance(leaf, Array)]
        vk.realize(arrays)


def _run_script(script: Path, device: vk.Device, as_json: bool) -> int:
    """How many shaders a script compiled, in this process."""
    if not script.is_file():
        raise ArgumentError(f"--script: {script} is no file; name a Python script")
    before, arguments, path = compile_count(), sys.argv, list(sys.path)
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.resolve().parent))
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(io.StringIO())
    try:
        with device, quiet:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise ArgumentError(f"--script: {script} ended with {error.code!r}") from error
    except VkdnnError:
        raise
    except Exception as error:  # whatever the user's script does
        raise ArgumentError(f"--script: {script} failed with {type(error).__name__}: {error}") from error
    finally:
        sys.argv, sys.path[:] = arguments, path
    return compile_count() - before
