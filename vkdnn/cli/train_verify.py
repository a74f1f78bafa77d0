"""vkdnn train --verify: digests of the same steps on a device and on the reference.

It must end with exit status 1 when a single bit differs.
"""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import vkdnn as vk
from vkdnn.cli.console import CountColumn, counted, print_json, short_name
from vkdnn.cli.train_model import layers_of, mixing_of
from vkdnn.nn import NO_LEVERS, Levers
from vkdnn.train import Corpus, Job, Parity, compare, run_steps


def run_verify(
    job: Job, corpus: Corpus, device: vk.Device, steps: int, console: Console, as_json: bool, levers: Levers = NO_LEVERS
) -> None:
    """Print the digests and the verdict; raises typer.Exit(1) when they differ.

    Levers are those of the device named; the reference beside it runs without.
    """
    reference = vk.device("cpu")
    config = job.config
    console.print(
        f"{counted(steps, 'training step')}: {job.kind.title}, {layers_of(config)}, {mixing_of(config)}, "
        f"batch {job.batch} x {job.length}, seed {job.seed}\ntext {corpus}",
        markup=False,
    )
    columns = (TextColumn("{task.description}"), BarColumn(24), CountColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        found = None
        if device is not reference:
            found = _steps(job, corpus, device, steps, bars, levers)
            console.print(f"{found.digest}  {short_name(device)}", markup=False)
        truth = _steps(job, corpus, reference, steps, bars, levers if device is reference else NO_LEVERS)
        console.print(f"{truth.digest}  reference", markup=False)
    parity = compare(device.name, found, truth) if found is not None else None
    if parity is not None:
        console.print(verdict(parity))
    if as_json:
        print_json(
            {
                "steps": steps,
                "device": device.name,
                "digest": (found or truth).digest,
                "reference": truth.digest,
                "equal": parity.equal if parity is not None else None,
            }
        )
    if parity is not None and not parity.equal:
        raise typer.Exit(1)


def _steps(job: Job, corpus: Corpus, device: vk.Device, steps: int, bars: Progress, levers: Levers) -> Any:
    name = "reference" if device.kind == "reference" else short_name(device)
    task = bars.add_task(name, total=steps)

    def compiled(done: int, total: int, label: str) -> None:
        bars.update(task, description=f"{name}: {done} of {total} kernels compiled")

    def stepped(_: str, done: int) -> None:
        bars.update(task, description=name, completed=done)

    state = run_steps(job, corpus, device, steps, stepped, compiled, levers=levers)
    bars.remove_task(task)
    return state


def verdict(parity: Parity) -> str:
    """One line (rich markup): equal, or where the runs part."""
    if parity.equal:
        return f"[green]equal[/]: {counted(parity.steps, 'step')}, every bit of parameters and optimizer state"
    names = ", ".join(parity.arrays[:3]) + (", ..." if len(parity.arrays) > 3 else "")
    first = f"; losses part at step {parity.first_step}" if parity.first_step is not None else ""
    return f"[bold red]different[/]: {counted(len(parity.arrays), 'array')} ({names}){first}"
