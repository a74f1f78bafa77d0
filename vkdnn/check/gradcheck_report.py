"""What gradcheck found: parts with their verdicts, the elements that matter, and a line that shows them again.

It must never be taken for true or false: ask for ``ok``, ``failed`` or the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vkdnn.errors import VkdnnError

OK, FAILED, KINK, INCONCLUSIVE, NONE, ERROR = "ok", "failed", "kink", "inconclusive", "none", "error"
"""Verdicts. ``none``: there is no such gradient, ``error``: it could not be checked; the part's note says why."""

KEPT = 20  # entries of each verdict that a part lists
SHOWN = 10  # of them in the table for people
_WEIGHT = {FAILED: 3, INCONCLUSIVE: 1, KINK: 0, OK: 2}


class GradientError(VkdnnError, AssertionError):
    """A gradient that gradcheck found wrong. Its message is the report."""


@dataclass(frozen=True)
class Entry:
    """One comparison: of an element of a gradient, or along a direction (then ``index`` is None).

    ``analytic`` is the value under test, ``numeric`` what it should be, both as numbers; ``ulp`` is their distance in
    units of the last place of a float32 of the size of ``numeric``. ``step`` and ``estimate``, of the error of
    ``numeric``, are NaN and 0 where no difference was taken. ``left`` and ``right`` are one-sided slopes.
    """

    part: str
    input: str
    index: tuple[int, ...] | None
    analytic: float
    numeric: float
    verdict: str
    step: float = math.nan
    estimate: float = 0.0
    left: float = math.nan
    right: float = math.nan
    note: str = ""

    @property
    def kink(self) -> bool:
        return self.verdict == KINK

    @property
    def absolute(self) -> float:
        return 0.0 if self.analytic == self.numeric else abs(self.analytic - self.numeric)

    @property
    def relative(self) -> float:
        size = max(abs(self.numeric), abs(self.analytic))
        return self.absolute / size if size else self.absolute

    @property
    def ulp(self) -> float:
        if not math.isfinite(self.numeric):
            return self.absolute
        exponent = math.frexp(self.numeric)[1] if self.numeric else -126
        return self.absolute / 2.0 ** (max(exponent, -125) - 24)

    def record(self) -> dict[str, Any]:
        """All fields as JSON has them: infinities and NaN as text."""
        found = {**asdict(self), "absolute": self.absolute, "relative": self.relative, "ulp": self.ulp}
        found["kink"] = self.kink
        return {k: _plain(v) for k, v in found.items()}


@dataclass(frozen=True)
class Part:
    """One check of a gradient: its verdict, how many comparisons came out how, the worst, and those to be seen."""

    name: str
    verdict: str
    checked: int = 0
    failed: int = 0
    kinks: int = 0
    inconclusive: int = 0
    worst: Entry | None = None
    entries: tuple[Entry, ...] = ()
    note: str = ""

    def record(self) -> dict[str, Any]:
        found = {k: getattr(self, k) for k in ("name", "verdict", "checked", "failed", "kinks", "inconclusive", "note")}
        worst = None if self.worst is None else self.worst.record()
        return {**found, "worst": worst, "entries": [e.record() for e in self.entries]}


def part_of(name: str, entries: Sequence[Entry], note: str = "") -> Part:
    """The part of these comparisons: failed if one is, inconclusive if half of those beside kinks are."""
    count = {v: sum(e.verdict == v for e in entries) for v in _WEIGHT}
    undecided = count[INCONCLUSIVE] * 2 > len(entries) - count[KINK] and count[INCONCLUSIVE] > 0
    verdict = FAILED if count[FAILED] else INCONCLUSIVE if undecided else OK
    worst = max(entries, key=_badness, default=None)
    shown: list[Entry] = []
    for which in (FAILED, KINK, INCONCLUSIVE):
        shown += sorted((e for e in entries if e.verdict == which), key=_badness, reverse=True)[:KEPT]
    lost = sum(e.verdict == OK and math.isnan(e.analytic) and math.isnan(e.numeric) for e in entries)
    note = joined(note, f"{lost} of them NaN on both sides" if lost else "")
    return Part(name, verdict, len(entries), count[FAILED], count[KINK], count[INCONCLUSIVE], worst, tuple(shown), note)


def joined(*notes: str) -> str:
    """Notes as one, without the empty ones."""
    return "; ".join(n for n in notes if n)


def _badness(entry: Entry) -> tuple[int, float]:
    return _WEIGHT[entry.verdict], math.inf if math.isnan(entry.absolute) else entry.absolute


@dataclass(frozen=True)
class Report:
    """What gradcheck found of one function. ``reproduce`` is a line that runs the check of its worst element."""

    op: str
    mode: str
    order: int
    seed: int
    device: str | None
    parts: tuple[Part, ...]
    reproduce: str

    @property
    def verdict(self) -> str:
        found = {p.verdict for p in self.parts}
        return next(v for v in (ERROR, FAILED, INCONCLUSIVE, NONE, OK) if v in found or v == OK)

    @property
    def ok(self) -> bool:
        """Whether everything was found right."""
        return self.verdict == OK

    @property
    def failed(self) -> bool:
        """Whether something was found wrong, or could not be checked."""
        return self.verdict in (FAILED, ERROR)

    @property
    def worst(self) -> Entry | None:
        """The worst comparison of the parts that are not right (else of all), the first one of an element if any is."""
        found = [p.worst for p in self.parts if p.verdict == self.verdict and p.worst is not None]
        return next((e for e in found if e.index is not None), found[0] if found else None)

    def part(self, name: str) -> Part:
        """The part of this name. Raises KeyError."""
        return {p.name: p for p in self.parts}[name]

    def raise_if_failed(self) -> Report:
        """Itself. Raises GradientError, whose message is the report, unless everything was found right."""
        if not self.ok:
            raise GradientError(str(self))
        return self

    def record(self) -> dict[str, Any]:
        """The report as JSON has it."""
        found = {k: getattr(self, k) for k in ("op", "mode", "order", "seed", "device", "verdict", "ok", "reproduce")}
        return {**found, "parts": [p.record() for p in self.parts]}

    def __bool__(self) -> bool:
        raise TypeError("a gradcheck report is neither true nor false; ask for report.ok, or report.raise_if_failed()")

    def __str__(self) -> str:
        where = f", {self.device}" if self.device else ""
        order = "second derivatives, " if self.order == 2 else ""
        lines = [f"{self.op}: {self.verdict} ({order}{self.mode}, seed {self.seed}{where})"]
        for part in self.parts:
            lines.append(f"  {part.name:<13}{part.verdict:<13}{summary(part)}")
        shown = [e for p in self.parts for e in p.entries]
        shown = shown or [p.worst for p in self.parts if p.worst is not None]
        if shown:
            most = [e for v in (FAILED, INCONCLUSIVE, KINK, OK) for e in shown if e.verdict == v][:SHOWN]
            rows = [COLUMNS, *(row(e) for e in most)]
            widths = [max(len(r[c]) for r in rows) for c in range(len(COLUMNS))]
            lines.append("")
            for cells in rows:
                lines.append(("  " + "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True))).rstrip())
            more = sum(p.failed + p.kinks + p.inconclusive for p in self.parts) - len(most)
            lines += [f"  … and {more} more"] if more > 0 else []
        if not self.ok:
            lines += ["", f"  again: {self.reproduce}"]
        return "\n".join(lines)


COLUMNS = ("part", "at", "analytic", "numeric", "absolute", "relative", "ULP", "step", "estimate", "verdict", "")


def row(entry: Entry) -> tuple[str, ...]:
    """The cells of an entry, under COLUMNS."""
    at = entry.input + ("" if entry.index is None else f"[{', '.join(map(str, entry.index))}]")
    numbers = [f"{entry.analytic:.9g}", f"{entry.numeric:.9g}", f"{entry.absolute:.2g}", f"{entry.relative:.2g}"]
    taken = not math.isnan(entry.step)
    steps = [f"{entry.step:.2g}", f"{entry.estimate:.2g}"] if taken else ["", ""]
    note = entry.note or (f"slopes {entry.left:.6g} and {entry.right:.6g}" if entry.kink else "")
    return (entry.part, at, *numbers, f"{entry.ulp:.3g}", *steps, entry.verdict, note)


def summary(part: Part) -> str:
    """A part in some words: how many comparisons, how many of them not plain, and the note."""
    words = [f"{part.checked} compared"] if part.checked else []
    for count, what in ((part.failed, "failed"), (part.kinks, "kinks"), (part.inconclusive, "inconclusive")):
        if count:
            words.append(f"{count} {what}")
    text = ", ".join(words)
    return f"{text}; {part.note}" if text and part.note else text or part.note


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
