"""What is kept of a device as evidence: who it is, how it computes, the digest of a training run on it.

A page is made of kept files alone: it must show nothing that none of them says.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.device_health import kernel_trouble, limit_lines, numerics_of
from vkdnn.errors import ArgumentError
from vkdnn.runtime.info import DeviceInfo, Limits
from vkdnn.train import Job, sample_text, verify

FORMAT = "vkdnn evidence 1"
STEPS = 20
PAGE, SWEEP = "README.md", "sweep.json"
COMMAND = "vkdnn doctor --page docs/evidence"

Progress = Callable[[str], None]


def gather(
    info: DeviceInfo,
    quick: bool = False,
    sweep: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All of a device; ``quick`` leaves the training out, ``sweep`` are figures that `vkdnn sweep` wrote.

    Raises DeviceError where the device cannot be opened, ArgumentError for the figures of another device.
    """
    if sweep is not None and sweep["device"] != info.name:
        raise ArgumentError(f"--sweep: its figures are of {sweep['device']}, expected those of {info.name}")
    tell = progress or (lambda _: None)
    tell("its arithmetic")
    numerics = numerics_of(info)
    trouble = training = None
    if numerics.strategies is not None:
        tell("one kernel")
        trouble, _ = kernel_trouble(info.index)
        if not quick:
            found = verify(Job(), sample_text(), vk.device(info.index), STEPS, lambda d, n: tell(f"step {n} on {d}"))
            training = {"steps": STEPS, "digest": found.digest, "reference": found.reference}
    return {
        "format": FORMAT,
        "date": datetime.date.today().isoformat(),
        "vkdnn": vk.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "device": asdict(info),
        "numerics": numerics.record(),
        "kernel": "refused" if numerics.strategies is None else trouble or "equal",
        "training": training,
        "sweep": None if sweep is None else _summary(sweep),
    }


def _summary(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep's figures come to."""
    rows = sweep["functions"]
    worst = max((r for r in rows if r["bound"]), key=lambda r: float(r["error"] or 0.0), default=None)
    return {
        "functions": len(rows),
        "complete": all(r["complete"] for r in rows),
        "ok": all(r["ok"] for r in rows),
        "inputs": sum(r["inputs"] for r in rows),
        "differing": sum(r["differing"] or 0 for r in rows),
        "worst": None if worst is None else [worst["function"], worst["error"]],
    }


def holds(record: Mapping[str, Any]) -> bool:
    """Whether everything in a device's evidence is as it should be."""
    training, sweep = record["training"], record.get("sweep")
    equal = training is None or training["digest"] == training["reference"]
    return record["kernel"] == "equal" and equal and (sweep is None or sweep["ok"])


def markdown(records: Mapping[str, Mapping[str, Any]]) -> str:
    """A table with a column for each device's evidence, by its name."""
    rows = [("", list(records))]
    rows += [(name, [line(r) for r in records.values()]) for name, line in _IDENTITY.items()]
    limits = [limit_lines(_info(r)) for r in records.values()]
    rows += [(name, [found[name] for found in limits]) for name in limits[0]]
    rules = [{rule["name"]: rule for rule in r["numerics"]["rules"]} for r in records.values()]
    rows += [(name, [_rule(found.get(name)) for found in rules]) for name in dict.fromkeys(n for f in rules for n in f)]
    rows += [(name, [line(r) for r in records.values()]) for name, line in _RESULTS.items()]
    return table(rows)


def table(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Markdown of rows, the first of which is the head."""
    lines = [f"| {name} | {' | '.join(cells)} |".replace("|  |", "| |") for name, cells in rows]
    return "\n".join([lines[0], "|" + " --- |" * (1 + len(rows[0][1])), *lines[1:]]) + "\n"


def _info(record: Mapping[str, Any]) -> DeviceInfo:
    found: dict[str, Any] = dict(record["device"])
    limits: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.pop("limits").items()}
    return DeviceInfo(**found, limits=Limits(**limits))


_IDENTITY: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "device": lambda r: f"{r['device']['name']} ({r['device']['kind']})",
    "driver": lambda r: f"{r['device']['driver']} {r['device']['driver_version']}",
    "Vulkan": lambda r: r["device"]["api_version"],
}
_RESULTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "strategy for subnormals": lambda r: (r["numerics"]["strategies"] or {}).get("subnormals", "refused"),
    "strategy for division": lambda r: (r["numerics"]["strategies"] or {}).get("division", "refused"),
    "strategy for square roots": lambda r: (r["numerics"]["strategies"] or {}).get("square_root", "refused"),
    "one kernel": lambda r: "every bit equal" if r["kernel"] == "equal" else r["kernel"],
    f"training, {STEPS} steps": lambda r: _training(r["training"]),
    "all inputs": lambda r: _all_inputs(r.get("sweep")),
    "taken": lambda r: f"{r['date']}, vkdnn {r['vkdnn']}",
}


def _rule(rule: Mapping[str, Any] | None) -> str:
    return "" if rule is None else f"{rule['differing']:,} of {rule['cases']:,}"


def _training(training: Mapping[str, Any] | None) -> str:
    if training is None:
        return "not run"
    equal = training["digest"] == training["reference"]
    return f"`{training['digest'][:12]}`, " + ("equal" if equal else "**different**")


def _all_inputs(sweep: Mapping[str, Any] | None) -> str:
    if sweep is None:
        return "not run"
    stopped = "" if sweep["complete"] else ", not complete"
    counts = f"{sweep['functions']} functions, {sweep['inputs']:,} inputs{stopped}: {sweep['differing']:,} differ"
    return counts if sweep["ok"] else f"**{counts}**"


# ---- the page


def load(path: Path) -> dict[str, Any]:
    """A device's evidence. Raises ArgumentError for a file that is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError):
        raise ArgumentError(f"evidence {path}: is none; write it with `vkdnn doctor --evidence`") from None


def load_sweep(path: Path) -> dict[str, Any]:
    """Figures that `vkdnn sweep --out` wrote. Raises ArgumentError for a file that holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not {"device", "driver", "functions"} <= set(found):
            raise ValueError
        return dict(found)
    except (OSError, ValueError, TypeError):
        raise ArgumentError(f"sweep {path}: holds no figures; write them with `vkdnn sweep --out`") from None


def page(folder: Path) -> str:
    """The page of a folder: the table of its devices, and that of its sweep if there is one.

    Raises ArgumentError for a folder without evidence, and for files that are none.
    """
    paths = sorted(path for path in folder.glob("*.json") if path.name != SWEEP)
    if not paths:
        raise ArgumentError(
            f"--page: {folder} has no evidence; write some with `vkdnn doctor --evidence {folder}/NAME`"
        )
    records = {path.stem: load(path) for path in paths}
    text = f"""# Evidence

What devices were measured to do. Each column is a file of this folder, written on that machine by
`vkdnn doctor --evidence`; this page is written from them by `{COMMAND}`.

For each rule of the contract (`docs/numerics.md`): how many of the cases the device's own instructions get wrong. What
they get wrong is done in software, as the strategies say, or the device is refused. The training is that of
`vkdnn train --verify {STEPS}`, on the device and on the reference; its digest is SHA-256 over all parameters and the
optimizer's state.

{markdown(records)}"""
    if (folder / SWEEP).exists():
        text += "\n" + sweep_text(load_sweep(folder / SWEEP))
    return text


def sweep_text(found: Mapping[str, Any]) -> str:
    """The table of a sweep's figures (`vkdnn sweep --out`)."""
    head = ("function", ("inputs", "differing bits", "largest error", "at"))
    rows = [head] + [(f["function"], _swept(f)) for f in found["functions"]]
    return f"""## All inputs

`vkdnn sweep --all`, {found["driver"] or "the reference alone"}.

Results whose bits are not the reference's, and the largest error against float64 in units of the last place (of the
slopes, below 1 in those of 1).

{table(rows)}"""


def _swept(f: Mapping[str, Any]) -> tuple[str, ...]:
    inputs = f"{f['inputs']:,}" + ("" if f["complete"] else f" of {f['of']:,}")
    differing = "-" if f["differing"] is None else f"{f['differing']:,}"
    error = "-" if f["error"] is None else f["error"] if isinstance(f["error"], str) else f"{f['error']:.4f}"
    return inputs, differing, error, ", ".join(f["at"]) or "-"
