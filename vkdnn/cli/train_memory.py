"""vkdnn train --memory-report: what a step needs of memory under the levers.

It must train nothing and write nothing.
"""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console

import vkdnn as vk
from vkdnn.cli.console import full_name, print_json
from vkdnn.cli.train_model import layers_of
from vkdnn.nn import Levers
from vkdnn.train import Corpus, Job, Usage, memory_report

COLUMNS = ("values", "state", "device", "host", "submissions")


def run_memory_report(
    job: Job, corpus: Corpus, device: vk.Device, levers: Levers, console: Console, as_json: bool
) -> None:
    """Print the table."""
    rows = memory_report(job, corpus, device, levers)
    what = f"{job.kind.title}, {layers_of(job.config)}, batch {job.batch} x {job.length}"
    if as_json:
        print_json({"device": device.name, "model": what, "settings": [asdict(row) for row in rows]})
        return
    console.print(f"one training step: {what}\ndevice {full_name(device)}", markup=False)
    names = [described(row) for row in rows]
    width = max(map(len, names)) + 2
    console.print(f"{'':{width}}" + "".join(f"{name:>12}" for name in COLUMNS), style="bold")
    for name, row in zip(names, rows, strict=True):
        sizes = (row.device_bytes, row.state_bytes, row.device_bytes + row.state_bytes, row.host_bytes)
        cells = [*(f"{size / 1e6:,.1f} MB" for size in sizes), f"{row.submissions:,}"]
        console.print(f"{name:{width}}" + "".join(f"{cell:>12}" for cell in cells), markup=False)
    console.print("values: what a step computes, at its peak; state: parameters, optimizer, averages; device: both;")
    console.print("host: values that wait in the host's memory; submissions: of a step")


def described(row: Usage) -> str:
    """A setting with its numbers."""
    numbers = {"recompute": row.levers.checkpoint_every, "flush": row.levers.flush_every}
    return ", ".join(f"{part} {numbers[part]}" if part in numbers else part for part in row.setting.split(", "))
