"""Results as files and numbers: a CSV line by line, one JSON document, counts by verdict.

Whatever ends a run, each file must be one that a reader takes: whole lines, a whole document.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vkdnn.check.accuracy.cases import Spec
from vkdnn.check.accuracy.run import VERDICTS, Row
from vkdnn.errors import ArgumentError
from vkdnn.shader.store import replaced

FIGURES = ("elements", "max_abs", "mean_abs", "rms", "max_rel", "special", "over", "plain_max", "plain_rms")
PERF = ("cold_ms", "hot_ms", "clock")
COLUMNS = (
    "case",
    "backend",
    "device",
    "verdict",
    "rule",
    "factor",
    "result",
    *FIGURES,
    *PERF,
    "seconds",
    "reason",
    "where",
    "image",
    "key",
)


class Table:
    """A CSV of rows that is added to as cases end; with ``resume``, to what stands there of the same cases."""

    def __init__(
        self, path: Path, specs: Sequence[Spec] = (), resume: bool = False, place: Callable[[str], str] | None = None
    ) -> None:
        """``place`` gives what a backend runs on now; without it rows of any place are taken.

        Raises ArgumentError for a file to resume that is none of these tables.
        """
        self.path = path
        self.kept: list[dict[str, str]] = []
        self.refused = 0
        """Lines that were not taken: of another case, rule or device, or of a case that did not end."""
        if resume and path.exists():
            wanted = {s.name: (s.key, s.rule, _number(s.factor)) for s in specs}
            found = _read(path)
            places = {b: place(b) for b in dict.fromkeys(r["backend"] for r in found)} if place else {}
            self.kept = [
                r for r in found
                if r["verdict"] in ("pass", "fail", "skip") and places.get(r["backend"], r["device"]) == r["device"]
                and wanted.get(r["case"]) == (r["key"], r["rule"], r["factor"])
            ]  # fmt: skip
            self.refused = len(found) - len(self.kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file:
            file.write(_line(COLUMNS).encode())
            for row in self.kept:
                file.write(_line([row[c] for c in COLUMNS]).encode())
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115  (for as long as the run lasts)

    def left(self, specs: Sequence[Spec], backends: Sequence[str]) -> list[Spec]:
        """The cases that have no row here for one of the backends."""
        done = {(r["case"], r["backend"]) for r in self.kept}
        missing = [s for s in specs if not all((s.name, b) in done for b in backends)]
        again = {s.name for s in missing}
        if any(r["case"] in again and r["backend"] in backends for r in self.kept):
            rows = [r for r in self.kept if r["case"] not in again or r["backend"] not in backends]
            self.close()
            with replaced(self.path) as file:
                file.write((_line(COLUMNS) + "".join(_line([r[c] for c in COLUMNS]) for r in rows)).encode())
            self.kept = rows
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        return missing

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows: the lines of a case in one write."""
        self.file.write("".join(_line(_cells(row)) for row in rows).encode())

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def _cells(row: Row) -> list[Any]:
    whole = row.record() | dict(row.figures) | dict(row.perf)
    return [_number(whole.get(column)) for column in COLUMNS]


def _number(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _line(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([str(c).replace("\n", " ") for c in cells])
    return text.getvalue()


def _read(path: Path) -> list[dict[str, str]]:
    """The whole lines of a table; a last one that was cut off is left out."""
    text = path.read_text(encoding="utf-8", errors="replace")
    rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ArgumentError(f"resume: {path} is no table of vkdnn accuracy; name another folder, or leave --resume out")
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows[1:] if len(row) == len(COLUMNS)]


def row_of(cells: Mapping[str, str]) -> Row:
    """The row that a line of a table was made of, as far as it stands there."""

    def number(column: str) -> float | int | None:
        text = cells[column]
        return None if not text else int(text) if column in ("elements", "special", "over") else float(text)

    figures = {c: number(c) for c in FIGURES} if cells["elements"] else {}
    perf = {c: cells[c] if c == "clock" else number(c) for c in PERF if cells[c]}
    return Row(
        cells["case"], cells["backend"], cells["verdict"], cells["rule"], cells["key"], cells["reason"],
        float(cells["seconds"] or 0), cells["result"], figures, cells["where"], (), cells["image"], perf,
        cells["device"], float(cells["factor"]),
    )  # fmt: skip


def with_elements(rows: Sequence[Row], path: Path) -> list[Row]:
    """Rows of a table with the failing elements that the JSON document beside it has; unchanged where it has none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["rows"]
        known = {
            (r["case"], r["backend"], r["key"], r["device"]): [
                {k: v if k == "index" else float(v) for k, v in element.items()} for element in r["elements"]
            ]
            for r in found
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return list(rows)
    return [replace(r, elements=known.get((r.case, r.backend, r.key, r.device), ())) for r in rows]


def totals(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each verdict, those that occur."""
    counts = Counter(row.verdict for row in rows)
    return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}


def document(rows: Sequence[Row], finished: bool, about: Mapping[str, Any]) -> dict[str, Any]:
    """All results as plain data for JSON; numbers that JSON does not have are words."""
    return clean({**about, "finished": finished, "totals": totals(rows), "rows": [row.record() for row in rows]})


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    with replaced(path) as file:
        file.write(json.dumps(record, indent=1, allow_nan=False).encode() + b"\n")


def clean(value: Any) -> Any:
    """A value with words for NaN and infinities.

    >>> clean({"a": [1.0, float("inf")]})
    {'a': [1.0, 'inf']}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {k: clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    return value
