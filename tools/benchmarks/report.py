"""The results for people: tables on a terminal or in Markdown, and a picture. All figures come from the record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Record = dict[str, Any]
HEADS = ("case", "size", "kernels ms", "call ms", "peer", "peer ms", "ratio", "GB/s", "GFLOP/s", "roofline", "bound")
TEXTS = frozenset({"case", "size", "peer", "bound"})


def case_lines(record: Record) -> list[tuple[str, ...]]:
    """One line for each case and each further peer of it."""
    lines: list[tuple[str, ...]] = []
    for row in record["cases"]:
        if "device" not in row:
            continue
        peers = [(p["name"], _ms(p["median_s"]), f"{p['ratio']:.3g}") for p in row["peers"]] or [("—", "—", "—")]
        fraction = f"{100 * row['roofline_fraction']:.0f} %"
        rates = (f"{row['bytes_per_s'] / 1e9:.3g}", f"{row['flops_per_s'] / 1e9:.3g}", fraction, row["bound"])
        times = (_ms(row["device"]["median_s"]), _ms(row["call"]["median_s"]))
        lines.append((row["name"], row["what"], *times, *peers[0], *rates))
        lines += [("", "", "", "", *peer, "", "", "", "") for peer in peers[1:]]
    return lines


def fact_lines(record: Record) -> list[tuple[str, str, str]]:
    """Name, figure and its unit; units are the ends of the keys."""
    lines: list[tuple[str, str, str]] = []
    for row in [row for row in record["cases"] if "tokens_per_s" in row]:
        lines.append((row["name"], "tokens a second", f"{row['tokens_per_s']:,.0f}"))
    for row in record["facts"]:
        for key, value in row.items():
            if key != "name" and "error" not in row and "missing" not in row:
                lines.append((row["name"], *_figure(key, value)))
    return lines


def notes(record: Record) -> list[str]:
    """What could not be measured, and why, each reason once."""
    found: dict[str, list[str]] = {}
    for row in [*record["cases"], *record["facts"]]:
        reasons = [*row.get("notes", []), *(f"{k}: {row[k]}" for k in ("missing", "error") if k in row)]
        for reason in reasons:
            found.setdefault(reason, []).append(row["name"])
    return [f"{'; '.join(names)}: {reason}" for reason, names in found.items()]


def heading(record: Record) -> list[str]:
    device, host, roof = record["device"], record["host"], record["roofline"]
    driver = f", {device['driver']}" if "driver" in device else ""
    return [
        f"device: {device['name']} ({device['kind']}{driver})",
        f"peers: {host['processor']}, {host['cores']} cores, Python {host['python']}, NumPy {host['numpy']} with "
        f"{host['blas']}",
        f"roofline: copy {roof['bytes_per_s'] / 1e9:.3g} GB/s, multiply and add {roof['flops_per_s'] / 1e9:.3g} "
        f"GFLOP/s; one submission {1e3 * roof['submission_s']:.3g} ms; sizes: {record['scale']}",
    ]


def print_tables(record: Record, console: Console) -> None:
    """Both tables and the notes."""
    for line in heading(record):
        console.print(escape(line), highlight=False)
    console.print()
    _table(console, HEADS, case_lines(record))
    _table(console, ("fact", "figure", "value"), fact_lines(record))
    for note in notes(record):
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)


def _table(console: Console, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    if not lines:
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in TEXTS or heads is not HEADS else "right", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)
    console.print()


def markdown(record: Record) -> str:
    """Both tables and the notes, for docs/performance.md."""
    lines = [f"- {line}" for line in heading(record)]
    for heads, rows in ((HEADS, case_lines(record)), (("fact", "figure", "value"), fact_lines(record))):
        if rows:
            marks = ["---" if head in TEXTS or heads is not HEADS else "---:" for head in heads]
            lines += ["", *(f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows))]
    found = notes(record)
    return "\n".join([*lines, *([""] if found else []), *(f"- {note}" for note in found)]) + "\n"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _figure(key: str, value: Any) -> tuple[str, str]:
    words = key.split("_")
    unit = words.pop() if words[-1] in ("us", "s", "bytes") else ""
    text = f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    if unit == "bytes" and abs(value) >= 2**20:
        text, unit = f"{value / 2**20:,.1f}", "MiB"
    return " ".join(words), f"{text} {unit}".strip()


# ---- the picture


def picture(record: Record, path: Path) -> None:
    """Ratios to the peers as bars, and the cases below the roofline."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in record["cases"] if "device" in row]
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, max(4.5, 0.3 * len(rows) + 2)), layout="constrained")
    _bars(left, rows)
    _roof(right, rows, record["roofline"])
    figure.suptitle(f"vkdnn {record['vkdnn']} on {record['device']['name']}, {record['scale']} sizes")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(axes: Any, rows: Sequence[Record]) -> None:
    bars = [(f"{row['name']} / {peer['name']}", peer["ratio"]) for row in rows for peer in row["peers"]][::-1]
    colours = ["tab:green" if ratio >= 1 else "tab:red" for _, ratio in bars]
    axes.barh(range(len(bars)), [ratio for _, ratio in bars], color=colours)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
    if bars:
        axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("peer's time / vkdnn's time (longer is better)")


def _roof(axes: Any, rows: Sequence[Record], roof: Record) -> None:
    bandwidth, peak = roof["bytes_per_s"], roof["flops_per_s"]
    points = [(row["flops"] / row["bytes"], row["flops_per_s"] / 1e9, row["name"]) for row in rows if row["flops"]]
    ridge = peak / bandwidth
    ends = [min([ridge / 100, *(p[0] / 2 for p in points)]), max([ridge * 100, *(p[0] * 2 for p in points)])]
    axes.plot([ends[0], ridge, ends[1]], [ends[0] * bandwidth / 1e9, peak / 1e9, peak / 1e9], color="black")
    for x, y, name in points:
        axes.plot(x, y, "o", markersize=4)
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(4, 3), fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="float operations a byte", ylabel="GFLOP/s")
    axes.grid(True, which="major", alpha=0.3)
