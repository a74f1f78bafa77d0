"""tools/bench --peers: vkdnn on a graphics card beside PyTorch and flash-linear-attention, each in its own process.

It must never import torch: its driver and Vulkan's do not share a process well. Times are those of the device's clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import vkdnn as vk
from benchmarks import peers_report as report
from benchmarks import peers_torch
from benchmarks.options import add_outputs, check_outputs, matching, positive, write_json
from benchmarks.peers_cases import BUILDERS, Made
from benchmarks.peers_rows import ROWS, Goal, Row, described
from vkdnn.device import VulkanDevice
from vkdnn.errors import VkdnnError
from vkdnn.profile import Ceilings, Profile
from vkdnn.profile.ceilings import measured

PATIENCE = 400.0  # seconds for all peers, after which the other process is ended
Record = dict[str, Any]
Tell = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if a row of vkdnn's failed, 2 for bad options."""
    parser = _parser()
    options = parser.parse_args(arguments)
    rows = [ROWS[name] for name in matching(ROWS, options.only)]
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    if not rows:
        parser.error(f"--only: {', '.join(options.only)} matches nothing; --list names what there is")
    check_outputs(parser, options)
    if options.read:
        record = _read(parser, options.read)
    else:
        try:
            device = vk.device(options.device)
        except VkdnnError as error:
            parser.error(f"--device: {error}")
        if not isinstance(device, VulkanDevice):
            parser.error(f"--device: {device.name} has no time stamps; name a Vulkan device")
        record = run(rows, device, options.quick, options.runs, lambda line: print(line, file=sys.stderr, flush=True))
    stream = write_json(record, options.json)
    if options.png:
        report.picture(record, options.png)
    print("\n".join(report.markdown(record) if options.markdown else report.table(record)), file=stream)
    return int(any("error" in row for row in record["rows"]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bench --peers",
        description="vkdnn on a graphics card beside PyTorch and flash-linear-attention, by the device's clock.",
        epilog="docs/performance.md says what the columns mean.",
    )
    parser.add_argument("--peers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, no figures")
    parser.add_argument("--list", action="store_true", help="names of the rows, and nothing else")
    parser.add_argument("--device", "-d", help="index, kind or part of a name (default: VKDNN_DEVICE, the best)")
    parser.add_argument("--runs", type=positive, default=10, help="measured calls of each row (default 10)")
    parser.add_argument("--read", action="append", type=Path, metavar="FILE", help="join records; measure nothing")
    add_outputs(parser, "ratios and targets")
    return parser


def _read(parser: argparse.ArgumentParser, paths: Sequence[Path]) -> Record:
    """One record of several of the same device and sizes: of each row the last."""
    try:
        records = [json.loads(path.read_text()) for path in paths]
    except (OSError, ValueError) as error:
        parser.error(f"--read: {error}")
    first = records[0]
    if any((r["device"], r["quick"]) != (first["device"], first["quick"]) for r in records):
        parser.error("--read: the records are of different devices or sizes")
    rows = {row["name"]: row for r in records for row in r["rows"]}
    about = {k: v for r in records for k, v in r["peers"].items()}
    roof = {k: max(r["ceilings"][k] for r in records) for k in first["ceilings"]}
    return first | {"ceilings": roof, "peers": about, "rows": [rows[name] for name in ROWS if name in rows]}


# ---- here


def run(rows: Sequence[Row], device: VulkanDevice, quick: bool, runs: int, tell: Tell) -> Record:
    """Every row here, then every peer in the other process; ``tell`` hears of each when it is done."""
    begun = time.monotonic()
    roof = measured(device, quick)
    tell(f"ceilings: {roof.bytes_per_s / 1e9:,.4g} GB/s, {roof.flops_per_s / 1e9:,.5g} GFLOP/s")
    found = {}
    for row in rows:
        found[row.name] = _attempt(row, device, quick, runs, roof)
        gc.collect()  # arrays of a row must not crowd out those of the next
        tell(f"{time.monotonic() - begun:5.1f} s  {row.name}: {_told(found[row.name])}")
    about: Record = {}
    for said in _heard([[row.name, row.kind, row.arguments(quick)] for row in rows]):
        if "about" in said:
            about |= said["about"]
            continue
        row = found[said.pop("row")]
        if "seconds" in said and "seconds" in row:
            said["ratio"] = said["seconds"] / row["seconds"]
        row["peers"].append(said)
        tell(f"{time.monotonic() - begun:5.1f} s  {row['name']}, {said['name']}: {_told(said)}")
    info = device.opened.info
    return {
        "vkdnn": vk.__version__,
        "quick": quick,
        "device": {"name": info.name, "driver": f"{info.driver} {info.driver_version}"},
        "ceilings": roof.record(),
        "peers": about,
        "rows": list(found.values()),
    }


def _told(figures: Record) -> str:
    return f"{1e3 * figures['seconds']:.4g} ms" if "seconds" in figures else figures.get("error") or figures["missing"]


def _attempt(row: Row, device: VulkanDevice, quick: bool, runs: int, roof: Ceilings) -> Record:
    sizes = row.arguments(quick)
    start: Record = {"name": row.name, "what": described(row.kind, sizes), "peers": []}
    try:
        with device:
            made = BUILDERS[row.kind](sizes)
            profile = vk.profile(made.call, steps=runs, device=device, ceilings=roof)
        return start | _figures(row.goal, made, profile)
    except Exception as error:  # one broken row must not cost the figures of the others
        return start | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def _figures(goal: Goal | None, made: Made, profile: Profile) -> Record:
    """``seconds`` are those of all kernels, or of a whole call where tokens are counted."""
    roof, shares = profile.ceilings, profile.shares()
    flops = sum(s.launches * s.kernel.cost.flops for s in shares)
    moved = sum(s.launches * s.kernel.cost.bytes for s in shares) if made.bytes is None else made.bytes
    seconds = profile.wall if made.tokens else profile.busy
    figures: Record = {
        "seconds": seconds,
        "wall_s": profile.wall,
        "busy_share": profile.busy_share,
        "runs": len(profile.calls),
        "kernels": profile.dispatches,
        "flops": flops,
        "bytes": moved,
        "flops_per_s": flops / seconds,
        "bytes_per_s": moved / seconds,
        "roofline_fraction": profile.fraction if made.tokens else roof.seconds(flops, moved) / seconds,
        "bound": roof.bound(flops, moved),
    }
    if made.tokens:
        figures["tokens"] = made.tokens
    if goal is not None:
        reached = {
            "copy": moved / seconds / roof.bytes_per_s,
            "flops": flops / seconds,
            "busy": profile.busy_share,
            "seconds": seconds,
        }[goal.figure]
        figures["goal"] = {"text": str(goal), "value": goal.value, "reached": reached, "met": goal.met(reached)}
        figures["goal"]["share"] = goal.share(reached)
    return figures


# ---- the other process


def _heard(job: Sequence[Any]) -> Iterator[Record]:
    """What the other process says of each peer, when it does; a peer of which it says nothing is missing."""
    waiting = {(row, peer): None for row, kind, _ in job for peer in peers_torch.PEERS[kind]}
    why = "the process of the peers ended"
    with subprocess.Popen(
        [sys.executable, peers_torch.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(job))
            process.stdin.close()
            for line in process.stdout:
                said = json.loads(line) if line.startswith("{") else {}  # libraries may print, too
                if "row" in said:
                    waiting.pop((said["row"], said["name"]), None)
                if said:
                    yield said
        finally:
            if not timer.is_alive():
                why = f"not measured within {PATIENCE:.0f} s"
            timer.cancel()
            process.kill()
    for row, peer in waiting:
        yield {"row": row, "name": peer, "missing": why}
