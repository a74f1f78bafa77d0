"""vkdnn show: an operation at every stage between Python and the device.

It must never need a Vulkan device for what it can say without one.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from vkdnn.cli.console import JsonOption, find_device, output, print_json
from vkdnn.errors import ArgumentError, CompileError
from vkdnn.show import EXAMPLES as OPERATIONS
from vkdnn.show import Shown, disassemble, example, graph_text, kernel_record, kernels

EXAMPLES = """\
[bold]Examples[/]

  vkdnn show                                   the operations there are

  vkdnn show softmax --stage ir                the graph and its kernels

  vkdnn show gelu_matmul --shape 64,128,256 --stage glsl

  vkdnn show scan_prefix_sequential --stage spirv

  vkdnn show exp --device 0 --json             the shader of one device"""


class Stage(StrEnum):
    """How far to go."""

    ir = "ir"
    glsl = "glsl"
    spirv = "spirv"
    all = "all"


def show(
    op: Annotated[
        str | None, typer.Argument(help="The operation. Left out: a list of them.", show_default=False)
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option("--shape", "-s", help="Sizes, such as 64,256; the list says which an operation has."),
    ] = None,
    stage: Annotated[
        Stage,
        typer.Option(help="[bold]ir[/]: the graph, kernel specs and costs; or the text of the shaders."),
    ] = Stage.all,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            metavar="DEVICE",
            help="The shader for this Vulkan device: an index, a kind (discrete, integrated, virtual, software) or "
            "part of a name. Without it, no device is asked: the shader with every software form.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the graph, the kernels, the GLSL and the SPIR-V of an operation."""
    console = output()
    if op is None:
        _list(console, as_json)
        return
    chosen = example(op)
    sizes = _sizes(shape)
    outputs = chosen.outputs(sizes)
    shown = kernels(outputs, None if device is None else find_device(device))
    if as_json:
        records = [_record(s, stage) for s in shown]
        graph = graph_text(outputs).split("\n")
        print_json({"op": chosen.name, "sizes": list(sizes or chosen.sizes), "graph": graph, "kernels": records})
        return
    if stage in (Stage.ir, Stage.all):
        named = zip(chosen.dims or ("shape",) * len(chosen.sizes), sizes or chosen.sizes, strict=False)
        where = ", ".join(f"{d} {n}" for d, n in named) if chosen.dims else f"shape {list(sizes or chosen.sizes)}"
        _heading(console, f"{chosen.name}: {chosen.doc}; {where}")
        console.print(graph_text(outputs), markup=False)
    for number, kernel in enumerate(shown, 1):
        _print(console, kernel, f"kernel {number} of {len(shown)}", stage)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,10}([,x]\d{1,10})*", text):
        raise ArgumentError(f"--shape: got {text!r}, expected sizes such as 64,256 or 64x256")
    return tuple(map(int, re.split("[,x]", text)))


def _print(console: Console, kernel: Shown, title: str, stage: Stage) -> None:
    record = kernel_record(kernel)
    if stage in (Stage.ir, Stage.all):
        _heading(console, f"{title}: {record['family']}")
        console.print(record["spec"].rstrip(), markup=False)
        sizes = ", ".join(f"{name} {n}" for name, n in record["sizes"].items())
        console.print(f"{sizes}; {record['flops']:,} float operations, {record['bytes']:,} bytes")
    if stage in (Stage.glsl, Stage.all):
        _heading(console, f"{title}: GLSL")
        _code(console, kernel.request.glsl.rstrip())
    if stage in (Stage.spirv, Stage.all):
        _heading(console, f"{title}: SPIR-V")
        try:
            console.print(disassemble(kernel.spirv()), markup=False)
        except CompileError as error:
            if stage is Stage.spirv:
                raise
            console.print(f"[yellow]note:[/] {escape(str(error))}")


def _record(kernel: Shown, stage: Stage) -> dict[str, Any]:
    record = kernel_record(kernel)
    if stage in (Stage.glsl, Stage.all):
        record["glsl"] = kernel.request.glsl
    if stage in (Stage.spirv, Stage.all):
        try:
            record["spirv"] = disassemble(kernel.spirv())
        except CompileError as error:
            if stage is Stage.spirv:
                raise
            record["spirv"], record["spirv_error"] = None, str(error)
    return record


def _list(console: Console, as_json: bool) -> None:
    if as_json:
        print_json([{"op": e.name, "doc": e.doc, "dims": e.dims, "sizes": e.sizes} for e in OPERATIONS.values()])
        return
    for e in OPERATIONS.values():
        sizes = f" ({' '.join(e.dims)})" if e.dims else ""
        console.print(f"[bold]{e.name:<24}[/]{escape(e.doc + sizes)}")


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]── {escape(text)}[/]" if console.is_terminal else f"// ---- {escape(text)}")


def _code(console: Console, text: str) -> None:
    if console.is_terminal:
        console.print(Syntax(text, "glsl", theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        console.print(text, markup=False)
