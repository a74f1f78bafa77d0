"""vkdnn tune: the fastest schedules of a model's or a function's kernels on a device, found by timing them.

It must run what a user would run, and change nothing but the times of later runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import vkdnn as vk
from vkdnn import dtypes, tree
from vkdnn.aot.targets import Argument, find_function, parse_argument
from vkdnn.array import Array
from vkdnn.cli.cache_common import bar
from vkdnn.cli.cache_warm import collect_model
from vkdnn.cli.console import counted, find_device, full_name, output, print_json
from vkdnn.cli.job_options import parse_job
from vkdnn.cli.tune_show import clear, compare, explain, gains, list_kernels, record
from vkdnn.device import VulkanDevice
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.train import MODELS, Trainer, sample_text
from vkdnn.tune import Tuning

EXAMPLES = """\
[bold]Examples[/]

  vkdnn tune rapt --layers 8 --width 512 --batch 16 --length 1024    a training step

  vkdnn tune gpt --decode                                            and what vkdnn generate needs

  vkdnn tune my_model:forward --shape x=8,512

  vkdnn tune --list                                                  what is known

  vkdnn tune --explain softmax                                       every candidate's times, and why it lost

  vkdnn tune --compare-defaults                                      kernels whose default loses 10 % or more"""

_COMMAND = "vkdnn tune"
_SMALL = 8  # integers of arguments are below: positions in any table


def tune(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="[bold]rapt[/] or [bold]gpt[/], with the options of vkdnn train: a training step; or MODULE:FUNCTION.",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            "-s",
            metavar="[NAME=]SIZES[:DTYPE]",
            help="An argument of the function, such as x=8,128 or 8x128:int32; repeat.",
        ),
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Of a model, also what decoding needs.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.001, help="Time no longer than this, all kernels together.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Time kernels that are known, too.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List what is known.")] = False,
    explained: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="SPEC", help="All that is known of kernels with this text in their spec, or this key."
        ),
    ] = None,
    compared: Annotated[
        bool, typer.Option("--compare-defaults", help="Of what is known, where the default loses 10 % or more.")
    ] = False,
    cleared: Annotated[bool, typer.Option("--clear", help="Forget everything.")] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            metavar="DEVICE",
            help="An index, a kind (discrete, integrated, virtual, software) or part of a name. Default: VKDNN_DEVICE, "
            "else the best Vulkan device.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, everything else on stderr.")
    ] = False,
) -> None:
    """Time the schedules of kernels on a device and keep the fastest. No result changes by a bit.

    Kernels are timed one by one, on their own data, while the target runs once; what is known is not timed again.
    JSON: device, seconds, skipped, kernels [{key, label, family, device, driver, current, sizes, launches, default_ms,
    ms, gain, winner, clock, candidates}]; --list, --explain and --compare-defaults give such kernels alone.
    """
    console = output(as_json)
    looks = [listed, explained is not None, compared, cleared]
    rest = [*([target] if target is not None and target.startswith("-") else []), *context.args]
    target = None if rest and rest[0] == target else target
    if sum(looks) + (target is not None) != 1:
        raise typer.BadParameter(
            "name one of: rapt, gpt, MODULE:FUNCTION, --list, --explain, --compare-defaults, --clear"
        )
    if target not in MODELS and (rest or decode):
        raise typer.BadParameter(f"belongs to {' or '.join(MODELS)}: {rest[0] if rest else '--decode'}")
    if shape and (target is None or target in MODELS):
        raise typer.BadParameter("belongs to MODULE:FUNCTION", param_hint="--shape")
    if listed:
        list_kernels(console, as_json)
    elif explained is not None:
        explain(console, explained, as_json)
    elif compared:
        compare(console, as_json)
    elif cleared:
        clear(console, as_json)
    else:
        assert target is not None
        run = _of_model(target, rest, decode) if target in MODELS else _of_function(target, shape or [])
        _tune(console, run, find_device(device), Tuning(seconds, again), as_json)


def _tune(
    console: Console, run: Callable[[VulkanDevice], None], device: vk.Device, tuning: Tuning, as_json: bool
) -> None:
    if not isinstance(device, VulkanDevice):
        raise ArgumentError(f"device: {device.name} has no schedules to choose from; name a Vulkan device")
    with bar(console, "tuning", None, at_once=True) as progress:
        tuning.progress = lambda done, total, label: progress(done, total)
        with tuning:
            run(device)
    kernels = tuning.kernels
    if as_json:
        rows = [record(k.label, k.family, k.tuned) | {"launches": k.launches} for k in kernels]
        print_json({"device": device.name, "seconds": tuning.spent, "skipped": tuning.skipped, "kernels": rows})
        return
    better = [k for k in kernels if k.tuned.gain > 1]
    gains(console, [(k.label, k.launches, k.tuned) for k in better])
    console.print(
        f"tuned {counted(len(kernels), 'kernel')} in {tuning.spent:.1f} s on {full_name(device)}; "
        f"{len(better)} {'is' if len(better) == 1 else 'are'} faster than by default",
        markup=False,
    )
    if kernels:
        default, best = (sum(k.launches * seconds(k.tuned) for k in kernels) for seconds in (_default, _best))
        console.print(f"their launches: {1e3 * default:.3f} ms by default, {1e3 * best:.3f} ms now", markup=False)
    if tuning.skipped:
        console.print(f"{counted(len(tuning.skipped), 'kernel')} left out for want of time or memory", markup=False)


def _default(tuned: Any) -> float:
    return float(tuned.candidates[0].seconds or 0.0)


def _best(tuned: Any) -> float:
    return _default(tuned) / float(tuned.gain)


# ---- what is run


def _of_model(name: str, options: Sequence[str], decode: bool) -> Callable[[VulkanDevice], None]:
    job, levers = parse_job(name, options, _COMMAND)

    def run(device: VulkanDevice) -> None:
        Trainer(job, sample_text(), device, levers=levers).step()
        if decode:
            collect_model(device, job, levers, False)

    return run


def _of_function(name: str, shapes: Sequence[str]) -> Callable[[VulkanDevice], None]:
    function, arguments = find_function(name), [parse_argument(text) for text in shapes]

    def run(device: VulkanDevice) -> None:
        with device:
            values = [(a.name, _value(a, k)) for k, a in enumerate(arguments)]
            try:
                result = function(*(v for n, v in values if not n), **{n: v for n, v in values if n})
            except VkdnnError:
                raise
            except Exception as error:  # whatever the user's function does
                raise ArgumentError(
                    f"function: {name} failed with {type(error).__name__}: {error}; give a --shape for each argument, "
                    "by position or by name"
                ) from error
            vk.realize([leaf for leaf in tree.flatten(result)[0] if isinstance(leaf, Array)])

    return run


def _value(argument: Argument, seed: int) -> Array:
    """Normal floats, small integers, bools."""
    shape = []
    for size in argument.sizes:
        if isinstance(size, str):
            raise ArgumentError(f"--shape: got the symbol {size!r}, expected a number; tune for each size")
        shape.append(size)
    dtype, rng = dtypes.as_dtype(argument.dtype), np.random.default_rng(seed)
    if dtype.category == "f":
        return vk.array(rng.standard_normal(shape, dtype=np.float32)).astype(dtype)
    high = 2 if dtype.category == "b" else _SMALL
    return vk.array(rng.integers(0, high, shape).astype(np.int32)).astype(dtype)
