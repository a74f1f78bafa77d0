"""Runs the cases and the facts: one record each, ready for JSON.

A case that fails becomes a record with its error; the others go on.
"""

from __future__ import annotations

import gc
import os
import platform
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import vkdnn as vk
from benchmarks.cases import CASES
from benchmarks.facts import FACTS
from benchmarks.measure import Limits, in_turns, repeated, tasks_of
from benchmarks.roofline import Roofline, best, measured
from benchmarks.work import Missing, Setup
from vkdnn.device import VulkanDevice
from vkdnn.errors import VkdnnError
from vkdnn.profile.awake import awake
from vkdnn.profile.work import work

Progress = Callable[[str], None]
KERNELS, CALL = "the kernels", "a call"  # peers have other names


def run(setup: Setup, limits: Limits, cases: Sequence[str], facts: Sequence[str], progress: Progress) -> dict[str, Any]:
    """Everything that was asked for; ``progress`` hears of each thing before it begins."""
    progress("roofline")
    roof = measured(setup)
    rows = []
    for name in cases:
        progress(name)
        rows.append(_attempt(name, partial(measure, setup, limits, name)))
        gc.collect()  # arrays of a case must not crowd out those of the next
    if cases:
        progress("roofline")
        roof = best(roof, measured(setup))
    found = []
    for name in facts:
        progress(name)
        found.append(_attempt(name, partial(_fact, setup, name)))
        gc.collect()
    return {
        "vkdnn": vk.__version__,
        "scale": setup.scale,
        "device": describe(setup.device),
        "host": host(),
        "roofline": roof.record(),
        "cases": [row if "error" in row or "missing" in row else _against(row, roof) for row in rows],
        "facts": found,
    }


def _attempt(name: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return call()
    except Missing as lack:
        return {"name": name, "missing": str(lack)}
    except (VkdnnError, MemoryError) as error:
        return {"name": name, "error": str(error) or type(error).__name__}
    except Exception as error:  # one broken case must not cost the figures of the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"name": name, "error": f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"}


def _fact(setup: Setup, name: str) -> dict[str, Any]:
    return {"name": name, **FACTS[name](setup)}


def measure(setup: Setup, limits: Limits, name: str) -> dict[str, Any]:
    """One case: its kernels, the whole call and its peers, in turns."""
    made = CASES[name](setup)
    calls, repeats = {CALL: made.call, **made.peers}, {}
    for title, variant in {KERNELS: made.call, **made.variants}.items():
        tasks = tasks_of(setup.device, variant)
        if made.repeatable:
            calls[title], repeats[title] = repeated(setup.device, tasks, limits)

    def ready(title: str) -> None:
        if title not in made.peers:  # a peer may have left the device without work
            awake(setup.device)

    times = {title: t.over(repeats.get(title, 1)) for title, t in in_turns(calls, limits, ready).items()}
    call = times.pop(CALL)
    kernels = times.pop(KERNELS, call)
    program = made.program()
    flops, moved = work(program)
    row = {
        "name": name,
        "what": made.what,
        "kernels": len(program.steps),
        "flops": flops,
        "bytes": moved,
        "repeats": repeats.get(KERNELS, 1),
        "device": kernels.record(),
        "call": call.record(),
        "peers": [{"name": n, **t.record(), "ratio": t.median / kernels.median} for n, t in times.items()],
        "notes": made.notes,
    }
    if made.tokens:
        row["tokens_per_s"] = made.tokens / call.median
    return row


def _against(row: dict[str, Any], roof: Roofline) -> dict[str, Any]:
    took, flops, moved = row["device"]["median_s"], row["flops"], row["bytes"]
    return {
        **row,
        "flops_per_s": flops / took,
        "bytes_per_s": moved / took,
        "roofline_fraction": roof.seconds(flops, moved) / took,
        "bound": roof.bound(flops, moved),
    }


def describe(device: vk.Device) -> dict[str, Any]:
    """The device and its driver."""
    if not isinstance(device, VulkanDevice):
        return {"name": device.name, "kind": device.kind}
    info = device.opened.info
    return {
        "name": info.name,
        "kind": info.kind,
        "driver": f"{info.driver} {info.driver_version}",
        "strategies": device.opened.strategies.text,
    }


def host() -> dict[str, Any]:
    """The machine of the peers."""
    build = np.show_config(mode="dicts")
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": build.get("Build Dependencies", {}).get("blas", {}).get("name", "unknown"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
