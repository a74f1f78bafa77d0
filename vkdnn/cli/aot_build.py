"""vkdnn aot build: a function, a model or its training step as a bundle.

It must never run what it builds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vkdnn.aot.arguments import described
from vkdnn.aot.describe import Described
from vkdnn.aot.export import Spec, prepared, sizes_named, some_device
from vkdnn.aot.manifest import WEIGHTS, Manifest, Symbol
from vkdnn.aot.package import package
from vkdnn.aot.picture import sized
from vkdnn.aot.target import BuildTarget, target_of
from vkdnn.aot.targets import Argument, Collector, find_function, parse_argument
from vkdnn.aot.write import check_free
from vkdnn.array import Array
from vkdnn.cli.cache_common import bar
from vkdnn.cli.cache_warm import collect_model
from vkdnn.cli.console import JsonOption, counted, find_device, full_name, output, print_json
from vkdnn.cli.job_options import parse_job
from vkdnn.device import Device
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.nn import Levers
from vkdnn.shader import ShaderRequest, compile_count
from vkdnn.train import Job, Trainer, sample_text

EXAMPLES = """\
[bold]Examples[/]

  vkdnn aot build my_model:forward --shape x=batch,512 --range batch=1:8 -o forward

  vkdnn aot build my_model:step --shape 8x128:int32 --shape scale= -o step.zip

  vkdnn aot build --model rapt --range batch=1:4 --range tokens=1:256 -o rapt

  vkdnn aot build --model gpt --layers 2 --train --batch 8 --length 64 -o step

  vkdnn aot build --model rapt --train --steps 50 --device 0 -o kernels
  VKDNN_AOT=kernels VKDNN_AOT_ONLY=1 vkdnn train --steps 50 --device 0    compiles nothing"""

_COMMAND = "vkdnn aot build"
_LISTED = 8  # inputs or outputs that are listed one by one


def build(
    context: typer.Context,
    path: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="The bundle: a new folder, or one .zip.")
    ],
    function: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:FUNCTION]", help="A function of arrays; give --shape for each argument."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            "-s",
            metavar="[NAME=]SIZES[:DTYPE]",
            help="An argument, such as x=8,128 or 8x128:int32; names among the sizes are chosen at each run; repeat.",
        ),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="NAME=LOW:HIGH",
            help="What a name among the sizes may be; with --model [bold]batch[/] and [bold]tokens[/]; repeat.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="[bold]rapt[/] or [bold]gpt[/], with the options of vkdnn train: from tokens to logits, with its "
            "first weights.",
        ),
    ] = None,
    training: Annotated[
        bool,
        typer.Option(
            "--train", help="A whole training step of the model, in place, and every other kernel of vkdnn train."
        ),
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Only the kernels, for VKDNN_AOT; no program and no weights.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            metavar="DEVICE",
            help="Build for this Vulkan device. Without it the bundle is portable: for all of them.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What the bundle calls itself.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a bundle that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile a function, a model or its training step ahead of time.

    With --model, options of vkdnn train describe it, such as --width 64 --layers 2 --batch 8. JSON: path, name, target
    (empty: portable), kernels, compiled, dispatches, symbols, inputs, outputs, bytes, memory.
    """
    rest = [*([function] if function and (model or function.startswith("-")) else []), *context.args]
    function = None if rest and rest[0] == function else function
    if (model is None) == (function is None):
        raise typer.BadParameter("name one thing to build: --model or MODULE:FUNCTION")
    if model is None and (rest or training):
        raise typer.BadParameter(f"belongs to --model: {rest[0] if rest else '--train'}")
    if function is None and shape:
        raise typer.BadParameter(
            "belongs to MODULE:FUNCTION; for a model use --batch and --length", param_hint="--shape"
        )
    if kernels and ranges:
        raise typer.BadParameter(
            "belongs to programs; kernels alone are for sizes that are known", param_hint="--range"
        )
    console = output(as_json)
    place = check_free(path, overwrite, "--output", "--overwrite")
    chosen = None if device is None else find_device(device)
    target = target_of(chosen)
    if function is not None:
        called = find_function(function)
        arguments = ordered(called, [parse_argument(text) for text in shape or ()])
        made = _Built(function, target, called, arguments, (), [])
    else:
        assert model is not None
        made = _of_model(*parse_job(model, rest, _COMMAND), training, kernels, _ranges(ranges), target, chosen)
    if kernels and sizes_named(made.arguments):
        raise ArgumentError(f"--shape: {sizes_named(made.arguments)[0]!r} has no value, which --kernels needs; give it")
    if not kernels:
        _check_ranges(made.arguments, _ranges(ranges))
    before = compile_count()
    with bar(console, "compiling", None, at_once=True) as progress:
        if kernels:
            manifest = _kernels_alone(made, place, name, overwrite, lambda done, total, _: progress(done, total))
        else:
            parts = _prepared(made, _ranges(ranges))
            manifest = package(
                place, name or made.name, target, *parts, overwrite, lambda done, total, _: progress(done, total),
                made.more,
            )  # fmt: skip
    _report(console, manifest, place, chosen, compile_count() - before, as_json)


class _Built:
    """What to build: a function with its arguments, those that are weights, and further kernels."""

    def __init__(
        self,
        name: str,
        target: BuildTarget,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        weights: tuple[int, ...],
        more: Sequence[ShaderRequest],
    ):
        self.name, self.target, self.function, self.arguments = name, target, function, list(arguments)
        self.weights, self.more = weights, list(more)


def _ranges(texts: Sequence[str] | None) -> dict[str, tuple[int, int]]:
    found = {}
    for text in texts or ():
        parts = re.fullmatch(r"([A-Za-z_]\w*)=(\d{1,10}):(\d{1,10})", text.replace(" ", ""))
        if parts is None:
            raise ArgumentError(f"--range: got {text!r}, expected such as batch=1:8")
        found[parts[1]] = (int(parts[2]), int(parts[3]))
    return found


def _check_ranges(arguments: Sequence[Any], ranges: dict[str, tuple[int, int]]) -> None:
    """Raises ArgumentError, in words of the command line, for names without a range and ranges without a name."""
    used = sizes_named(arguments)
    for name, (low, high) in ranges.items():
        if name not in used:
            known = f"the sizes with names are {', '.join(used)}" if used else "all sizes are numbers"
            raise ArgumentError(f"--range: {name!r} is in no --shape; {known}")
        if not 0 < low <= high < 2**31:
            raise ArgumentError(f"--range: {name} is {low}:{high}, expected 1 <= LOW <= HIGH < 2**31")
    for name in used:
        if name not in ranges:
            raise ArgumentError(f"--range: none for the size {name!r}; give one, such as --range {name}=1:512")


def ordered(function: Callable[..., Any], arguments: Sequence[Argument]) -> list[Spec]:
    """Specs in the order of the function's parameters. Raises ArgumentError for one that there is not, or that is
    missing."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional]
    given = [a for a in arguments if not a.name]
    found = dict(enumerate(given))
    for argument in arguments:
        if argument.name:
            if argument.name not in names:
                raise ArgumentError(
                    f"--shape: the function has no argument {argument.name!r}, expected {', '.join(names) or 'none'}"
                )
            number = names.index(argument.name)
            if number in found:
                raise ArgumentError(f"--shape: got argument {argument.name!r} twice, expected each once")
            found[number] = argument
    for number, p in enumerate(positional):
        if number not in found and (p.default is p.empty or any(n > number for n in found)):
            raise ArgumentError(f"--shape: none for argument {p.name!r}; give --shape {p.name}=SIZES[:DTYPE]")
    return [Spec(found[number].sizes, found[number].dtype) for number in sorted(found)]


def _prepared(
    made: _Built, ranges: dict[str, tuple[int, int]]
) -> tuple[tuple[Symbol, ...], Described, dict[str, Array]]:
    try:
        return prepared(made.function, made.arguments, made.target, made.weights, ranges)
    except VkdnnError:
        raise
    except Exception as error:  # whatever the user's function does
        raise ArgumentError(
            f"function: {made.name} failed with {type(error).__name__}: {error}; correct it, or the shapes"
        ) from error


# ---- models


def _of_model(
    job: Job,
    levers: Levers,
    training: bool,
    kernels: bool,
    ranges: dict[str, tuple[int, int]],
    target: BuildTarget,
    device: Device | None,
) -> _Built:
    for name in ranges:
        if name not in ("batch", "tokens"):
            raise ArgumentError(f"--range: got {name!r}, expected batch or tokens, the sizes of a model's input")
    place = device or some_device()
    batch = "batch" if "batch" in ranges else job.batch
    if training:
        if "tokens" in ranges:
            raise ArgumentError("--range: a training step has a fixed number of tokens, --length; leave tokens out")
        name, collector = f"{job.model}-train", Collector(target)
        collect_model(collector, job, levers, training=True)
        if kernels:
            return _Built(name, target, lambda: None, [], (), collector.requests)
        function, values = Trainer(job, sample_text(), place, levers=levers).step_function()
        tokens = Spec((batch, job.length + 1), "int32")
        return _Built(name, target, function, [*values, tokens], tuple(range(len(values))), collector.requests)
    model: Any = job.make_model()
    params = model.init(job.seed, place)

    def forward(params: Any, tokens: Any) -> Any:
        return model(params, tokens, levers=levers)

    tokens = Spec((batch, "tokens" if "tokens" in ranges else job.length), "int32")
    return _Built(job.model, target, forward, [params, tokens], (0,), [])


def _kernels_alone(made: _Built, place: Path, name: str | None, overwrite: bool, progress: Any) -> Manifest:
    requests = made.more
    if not requests:
        _, described, _ = _prepared(made, {})
        requests = list(described.requests)
    return package(place, name or made.name, made.target, (), None, {}, overwrite, progress, requests)


# ---- what came of it


def _report(
    console: Console, manifest: Manifest, place: Path, device: Device | None, compiled: int, as_json: bool
) -> None:
    files = [p for p in place.rglob("*") if p.is_file()] if place.is_dir() else [place]
    size = sum(p.stat().st_size for p in files)
    program = manifest.program
    if as_json:
        print_json(
            {
                "path": str(place),
                "name": manifest.name,
                "target": manifest.producer.target,
                "kernels": len(manifest.kernels),
                "compiled": compiled,
                "dispatches": len(program.dispatches) if program else 0,
                "symbols": {s.name: [s.low, s.high] for s in manifest.symbols},
                "inputs": [_array(i) for i in program.inputs] if program else [],
                "outputs": [_array(o) for o in program.outputs] if program else [],
                "bytes": size,
                "memory": manifest.limits.memory,
            }
        )
        return
    where = "any Vulkan device" if device is None else full_name(device)

    def line(title: str, text: str) -> None:
        console.print(f"[bold]{title:<9}[/]{escape(text)}")

    line("wrote", f"{place} ({sized(size)})")
    line("for", where)
    line("kernels", f"{len(manifest.kernels):,}, of which {compiled:,} compiled now")
    if program is None:
        return
    line("runs", f"{counted(len(program.dispatches), 'kernel')} in {counted(len(program.submissions), 'submission')}")
    line("memory", sized(manifest.limits.memory) + (" at the largest sizes" if manifest.symbols else ""))
    for s in manifest.symbols:
        line("size", f"{s.name} from {s.low} to {s.high}")
    for title, arrays in (("input", program.inputs), ("output", program.outputs)):
        for text in _listed(arrays):
            line(title, text)
    if manifest.weights:
        line("weights", WEIGHTS)


def _listed(arrays: Sequence[Any]) -> list[str]:
    """A line for each array; where there are many, one for those of an argument or a part of the result."""
    parts: dict[str, list[Any]] = {}
    for array in arrays:
        words = array.name.split(".")
        short = ".".join(words[: 2 if words[0] == "result" else 1])
        parts.setdefault(short if len(arrays) > _LISTED else array.name, []).append(array)
    return [
        f"{name}: {described(found[0])}" if len(found) == 1 else f"{name}: {len(found):,} arrays"
        for name, found in parts.items()
    ]


def _array(array: Any) -> dict[str, Any]:
    return {"name": array.name, "dtype": array.dtype, "shape": list(array.shape)}
