"""What the commands share: consoles, errors as one line, the choice of a device.

It must never swallow an error that is not vkdnn's own or the system's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Task
from rich.text import Text
from typer.core import TyperGroup

import vkdnn as vk
from vkdnn.device import VulkanDevice
from vkdnn.errors import DeviceError, VkdnnError

INTERRUPTED = 130  # 128 + SIGINT, as shells count

DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        metavar="DEVICE",
        help="An index, a kind (discrete, integrated, virtual, software), part of a name, or [bold]cpu[/], "
        "the NumPy reference. Default: VKDNN_DEVICE, else the best Vulkan device.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, everything else on stderr.")]


class Commands(TyperGroup):
    """The group of all commands: an error of vkdnn or the system is one line on stderr and exit status 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # whoever read the output has had enough: that is no failure
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (VkdnnError, OSError) as error:
            complain(error)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def complain(error: BaseException) -> None:
    """An error on stderr: one line, wrapped between words on a terminal only."""
    console = Console(stderr=True, highlight=False, emoji=False)
    console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=not console.is_terminal)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the program with status 1."""
        raise BrokenPipeError


def output(as_json: bool = False) -> Console:
    """Where people's output goes: stdout, or stderr when stdout is for JSON."""
    return _Output(stderr=as_json, highlight=False, soft_wrap=True, emoji=False)


def print_json(value: Any) -> None:
    """The result of a command, alone on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def find_device(selector: str | None) -> vk.Device:
    """The device of --device. Raises DeviceError, with the way out that always exists."""
    try:
        return vk.device(selector)
    except DeviceError as error:
        if "NumPy reference" in str(error):
            raise
        raise DeviceError(f"{error}. Or use --device cpu, the NumPy reference, which needs no Vulkan") from None


def short_name(device: vk.Device) -> str:
    """A device's name without what stands in brackets."""
    return device.name.split(" (")[0]


def full_name(device: vk.Device) -> str:
    """A device's name with its driver's version: software devices of two versions have one name."""
    if not isinstance(device, VulkanDevice):
        return device.name
    version = re.split(r"[ -]", device.opened.info.driver_version)
    # "Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)" names its driver, "570.86.15" does not.
    known = " ".join(version[:2]) if version[0].isalpha() else f"driver {version[0]}"
    return f"{device.name}, {known}"


def counted(number: int, noun: str) -> str:
    """1 step, 2 steps."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def resume_command(folder: Path) -> str:
    """The command line that goes on with a run, through tools/run where that started this process."""
    program = os.environ.get("VKDNN_TRAIN_COMMAND")
    return f"{shlex.quote(program) if program else 'vkdnn train'} --resume {shlex.quote(str(folder))}"


class CountColumn(MofNCompleteColumn):
    """3/10 of a progress bar; nothing while the whole is not known."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


def printable(text: str) -> str:
    """Text that cannot move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
