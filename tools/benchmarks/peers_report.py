"""The record of tools/bench --peers for people: one table, as text or Markdown, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
HEADS = ("work", "size", "ms", "TB/s", "TFLOP/s", "roofline", "target", "reached", "peer", "peer ms", "ratio")
_TEXTS = frozenset({"work", "size", "target", "peer"})


def lines(record: Record) -> list[tuple[str, ...]]:
    """A line for each row, and one for each further peer of it."""
    found: list[tuple[str, ...]] = []
    for row in record["rows"]:
        peers = [_peer(peer) for peer in row["peers"]] or [("—", "", "")]
        found.append((row["name"], row["what"], *_figures(row), *peers[0]))
        found += [("",) * 8 + peer for peer in peers[1:]]
    return found


def notes(record: Record) -> list[str]:
    """What is not in the table, and why."""
    found = [f"{row['name']}: {row['error']}" for row in record["rows"] if "error" in row]
    peers = [(row["name"], peer) for row in record["rows"] for peer in row["peers"]]
    reasons: dict[str, list[str]] = {}
    for name, peer in peers:
        if "seconds" not in peer:
            reasons.setdefault(peer.get("missing") or peer["error"], []).append(f"{name}, {peer['name']}")
    for why, names in reasons.items():
        found.append(f"{'all peers' if len(names) == len(peers) else '; '.join(names)}: {why}")
    for row in record["rows"]:
        if "tokens" in row:
            timed = [("vkdnn", row["seconds"]), *((p["name"], p["seconds"]) for p in row["peers"] if "seconds" in p)]
            rates = [f"{name} {row['tokens'] / seconds:,.0f}" for name, seconds in timed]
            found.append(f"{row['name']}: tokens a second: {', '.join(rates)}; ms are of wall time")
    return found


def heading(record: Record) -> list[str]:
    roof, device, peers = record["ceilings"], record["device"], record["peers"]
    about = ", ".join(f"{k} {v}" for k, v in peers.items()) or "none"
    return [
        f"vkdnn {record['vkdnn']} on {device['name']}, {device['driver']}" + ", tiny sizes" * record["quick"],
        f"ceilings: copy {roof['bytes_per_s'] / 1e12:.3g} TB/s, multiply and add {roof['flops_per_s'] / 1e12:.3g} "
        "TFLOP/s",
        f"peers: {about}",
    ]


def table(record: Record) -> list[str]:
    """Lines of text."""
    rows = [HEADS, *lines(record)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEADS))]
    cells = [
        "  ".join(
            cell.ljust(width) if head in _TEXTS else cell.rjust(width)
            for head, cell, width in zip(HEADS, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    return [*heading(record), "", *cells, "", *notes(record)]


def markdown(record: Record) -> list[str]:
    """Lines for docs/performance.md."""
    marks = ["---" if head in _TEXTS else "---:" for head in HEADS]
    rows = [f"| {' | '.join(cells)} |" for cells in (HEADS, marks, *lines(record))]
    more = [f"- {note}" for note in notes(record)]
    return [*(f"- {line}" for line in heading(record)), "", *rows, *([""] if more else []), *more]


def _figures(row: Record) -> tuple[str, ...]:
    goal = row.get("goal")
    target = goal["text"] if goal else "—"
    if "error" in row:
        return ("—", "—", "—", "—", target, "error")
    reached = f"{goal['share']:.0%}{'' if goal['met'] else ' !'}" if goal else "—"
    rates = (f"{row['bytes_per_s'] / 1e12:.2f}", f"{row['flops_per_s'] / 1e12:.2f}", f"{row['roofline_fraction']:.0%}")
    return (f"{1e3 * row['seconds']:.4g}", *rates, target, reached)


def _peer(peer: Record) -> tuple[str, str, str]:
    if "seconds" not in peer:
        return (peer["name"], "missing" if "missing" in peer else "error", "")
    return (peer["name"], f"{1e3 * peer['seconds']:.4g}", f"{peer['ratio']:.3g}" if "ratio" in peer else "")


# ---- the picture


def picture(record: Record, path: Path) -> None:
    """Bars: ratios to the peers, and how much of each target is reached."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ratios = [
        (f"{row['name']} / {peer['name']}", peer["ratio"])
        for row in record["rows"]
        for peer in row["peers"]
        if "ratio" in peer
    ]
    goals = [(f"{row['name']}: {row['goal']['text']}", row["goal"]["share"]) for row in record["rows"] if "goal" in row]
    height = max(4.0, 0.3 * max(len(ratios), len(goals)) + 1.5)
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, height), layout="constrained")
    _bars(left, ratios, "peer's time / vkdnn's time (longer is better)")
    _bars(right, goals, "reached of the target (1: met)")
    figure.suptitle(heading(record)[0])
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(axes: Any, bars: Sequence[tuple[str, float]], label: str) -> None:
    shown = list(bars)[::-1]
    axes.barh(range(len(shown)), [x for _, x in shown], color=["tab:green" if x >= 1 else "tab:red" for _, x in shown])
    axes.set_yticks(range(len(shown)), [name for name, _ in shown], fontsize=8)
    for k, (_, x) in enumerate(shown):
        axes.annotate(f"{x:.2f}", (x, k), textcoords="offset points", xytext=(3, -3), fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel(label)
