"""vkdnn aot run: a bundle on a device, with inputs from files.

It must never need a compiler.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes
import numpy as np
import typer
from rich.markup import escape

from vkdnn import dtypes, tree
from vkdnn.aot.bundle import Bundle, load
from vkdnn.aot.formulas import evaluate
from vkdnn.aot.manifest import Input
from vkdnn.aot.trees import build
from vkdnn.cli.cache_common import bar
from vkdnn.cli.console import JsonOption, counted, find_device, full_name, output, print_json
from vkdnn.errors import ArgumentError

EXAMPLES = """\
[bold]Examples[/]

  vkdnn aot run forward --input x=x.npy --output results.npz

  vkdnn aot run rapt --set batch=2 --set tokens=100    zeros for inputs that are not given

  vkdnn aot run step --input tokens=tokens.npy --runs 10    a training step; tokens: int32, batch x (length + 1)"""


def run(
    bundle: Annotated[Path, typer.Argument(help="A folder or .zip that `vkdnn aot build` or vk.aot.export wrote.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE.npy",
            help="The value of an input, or a FILE.npz with several by name. Default: what the bundle has to begin "
            "with, else zeros.",
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=N", help="A size, for inputs that are not given. Default: the largest."),
    ] = None,
    result: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.npz", help="Write the results there, by name.")
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs, each with what the one before has replaced in place.")
    ] = 1,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", metavar="DEVICE", help="The Vulkan device. Default: VKDNN_DEVICE, or the best."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a bundle. JSON: bundle, device, sizes, runs, seconds (of each run), outputs (name, dtype, shape, sha256)."""
    console = output(as_json)
    loaded = load(bundle, None if device is None else find_device(device))
    given = _read(inputs or ())
    sizes = _sizes(loaded, given, _values(values or ()))
    arguments = _arguments(loaded, given, sizes)
    seconds = []
    with bar(console, "running", runs, at_once=True) as progress:
        for number in range(runs):
            progress(number)
            begun = time.monotonic()
            found = loaded(*arguments[0], **arguments[1])
            leaves = tree.flatten(found)[0]
            seconds.append(time.monotonic() - begun)
            if number + 1 < runs:
                arguments = _next(loaded, arguments, leaves)
    hosts = {o.name: x.numpy() for o, x in zip(loaded.program.outputs, leaves, strict=True)}
    if result is not None:
        np.savez(result, **{n: x.view(np.uint16) if x.dtype == ml_dtypes.bfloat16 else x for n, x in hosts.items()})
    records = [
        {"name": n, "dtype": x.dtype.name, "shape": list(x.shape), "sha256": hashlib.sha256(x.tobytes()).hexdigest()}
        for n, x in hosts.items()
    ]
    if as_json:
        print_json(
            {
                "bundle": str(bundle), "device": loaded.device.name, "sizes": sizes, "runs": runs, "seconds": seconds,
                "outputs": records,
            }
        )  # fmt: skip
        return
    chosen = "".join(f", {n} {v}" for n, v in sizes.items())
    how = f"{counted(runs, 'run')} on {full_name(loaded.device)}{chosen}, the last in {seconds[-1]:.3f} s"
    console.print(f"[bold]{escape(loaded.manifest.name)}[/] {escape(how)}")
    for record in records:
        text = f"{record['name']}: {record['dtype']}{record['shape']}"
        console.print(f"  {escape(text)}  SHA-256 {str(record['sha256'])[:16]}")
    if result is not None:
        console.print(f"wrote {escape(str(result))}")


def _values(texts: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        parts = re.fullmatch(r"([A-Za-z_]\w*)=(\d{1,10})", text.replace(" ", ""))
        if parts is None:
            raise ArgumentError(f"--set: got {text!r}, expected such as tokens=128")
        found[parts[1]] = int(parts[2])
    return found


def _read(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, _, file = text.rpartition("=")
        try:
            read = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ArgumentError(f"--input: cannot read {file!r} ({error}); give NAME=FILE.npy, or a FILE.npz") from None
        is_archive = isinstance(read, np.lib.npyio.NpzFile)
        if is_archive == bool(name):
            raise ArgumentError(f"--input: got {text!r}, expected NAME=FILE.npy, or a FILE.npz with several by name")
        found.update(dict(read) if is_archive else {name: read})
    return found


def _sizes(bundle: Bundle, given: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, int]:
    """Values of the symbols: from the inputs, else chosen, else the largest."""
    names = {i.name for i in bundle.program.inputs}
    for name in given:
        if name not in names:
            raise ArgumentError(
                f"--input: the bundle has no input {name!r}, expected {', '.join(sorted(names)) or 'none'}"
            )
    found: dict[str, int] = {}
    for i in bundle.program.inputs:
        if i.name in given:
            found.update({n: k for n, k in zip(i.shape, given[i.name].shape, strict=False) if isinstance(n, str)})
    for name, n in chosen.items():
        if name not in bundle.manifest.ranges:
            known = ", ".join(bundle.manifest.ranges) or "none"
            raise ArgumentError(f"--set: the bundle has no size {name!r}, expected {known}")
        if found.get(name, n) != n:
            raise ArgumentError(f"--set: {name} is {n}, but {found[name]} in the inputs; leave it out")
        low, high = bundle.manifest.ranges[name]
        if not low <= n <= high:
            raise ArgumentError(f"--set: {name} is {n}, expected {low} to {high}")
        found[name] = n
    return {name: found.get(name, high) for name, (_, high) in bundle.manifest.ranges.items()}


def _arguments(bundle: Bundle, given: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[list[Any], dict[str, Any]]:
    leaves = [
        _typed(given[i.name], i)
        if i.name in given
        else bundle.first_value(i)
        if i.initial is not None
        else np.zeros([evaluate(n, sizes) for n in i.shape], dtypes.as_dtype(i.dtype).numpy)
        for i in bundle.program.inputs
    ]
    return build(bundle.program.arguments, leaves), build(bundle.program.keywords, leaves)


def _typed(host: Any, i: Input) -> Any:
    """NumPy's files know no bfloat16: two bytes stand for one."""
    return host.view(ml_dtypes.bfloat16) if i.dtype == "bfloat16" and host.dtype.itemsize == 2 else host


def _next(bundle: Bundle, arguments: tuple[Any, Any], leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments, with what has replaced those that are donated."""
    flat = [x for part in arguments for x in tree.flatten(part)[0]]
    for o, x in zip(bundle.program.outputs, leaves, strict=True):
        if o.replaces is not None:
            flat[o.replaces] = x
    return build(bundle.program.arguments, flat), build(bundle.program.keywords, flat)
