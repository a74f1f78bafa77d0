"""vkdnn devices: what this machine offers, and which device is taken when nobody chooses.

It must never fail for want of Vulkan, nor open a device unless asked to.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

import vkdnn as vk
from vkdnn.cli.console import JsonOption, complain, output, print_json
from vkdnn.errors import VkdnnError
from vkdnn.runtime import DeviceInfo, choose, open_device

EXAMPLES = """\
[bold]Examples[/]

  vkdnn devices                 what there is; * marks the default

  vkdnn devices --probe         also run the numerics probe on each device

  VKDNN_DEVICE=1 vkdnn devices  another default"""


def devices(
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Open each device, test its arithmetic and print the strategies chosen."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the Vulkan devices and the NumPy reference."""
    found: tuple[DeviceInfo, ...] = ()
    default: str | None = None
    trouble: str | None = None
    wrong: VkdnnError | None = None
    try:
        found = vk.devices()
    except VkdnnError as error:
        trouble = str(error)
    if os.environ.get("VKDNN_DEVICE", "").lower() in ("cpu", "reference"):
        default = "cpu"
    elif trouble is None:
        try:
            default = str(choose(devices=found).index)  # with no devices: says how to get one
        except VkdnnError as error:
            if found:
                wrong = error  # VKDNN_DEVICE names none of these
            else:
                trouble = str(error)
    rows = [_row(info, default, probe) for info in found] + [_reference(default)]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            _print(row)
    if trouble:
        if as_json:
            complain(VkdnnError(trouble))
        else:
            console = output()
            console.print(f"[yellow]note:[/] {escape(trouble)}", soft_wrap=not console.is_terminal)
    if wrong is not None:
        raise wrong


def _row(info: DeviceInfo, default: str | None, probe: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "selector": str(info.index),
        "index": info.index,
        "name": info.name,
        "kind": info.kind,
        "default": str(info.index) == default,
        "driver": info.driver,
        "driver_version": info.driver_version,
        "api_version": info.api_version,
        "memory_bytes": info.limits.memory_bytes,
        "max_buffer_bytes": info.limits.max_buffer_bytes,
        "uuid": info.uuid,
        "strategies": None,
        "error": None,
    }
    if probe:
        try:
            row["strategies"] = asdict(open_device(str(info.index)).strategies)
        except VkdnnError as error:
            row["error"] = str(error)
    return row


def _reference(default: str | None) -> dict[str, Any]:
    row = dict.fromkeys(
        (
            "driver",
            "driver_version",
            "api_version",
            "memory_bytes",
            "max_buffer_bytes",
            "uuid",
            "strategies",
            "error",
        )
    )
    return {"selector": "cpu", "index": None, "name": "NumPy reference", "kind": "reference"} | {
        "default": default == "cpu",
        **row,
    }


def _print(row: dict[str, Any]) -> None:
    mark = "[green]*[/]" if row["default"] else " "
    lines = [f"{mark} [bold]{row['selector']:<4}[/]{escape(row['name'])}"]
    if row["index"] is None:
        lines.append("always there; needs no Vulkan; slow")
    else:
        memory = f"{row['memory_bytes'] / 2**30:.1f} GiB"
        lines.append(f"{row['kind']}, Vulkan {row['api_version']}, {memory}")
        lines.append(escape(f"driver {row['driver']} {row['driver_version']}"))
    if row["strategies"]:
        lines.append("strategies " + ", ".join(f"{k} {v}" for k, v in row["strategies"].items()))
    if row["error"]:
        lines.append(f"[red]refused:[/] {escape(row['error'])}")
    output().print("\n      ".join(lines))
