"""Why a shader was compiled: what became of its entry, or which components differ from the nearest older one.

Pure functions on entries; they must never name a difference that is not there, nor hide one behind another.
"""

from __future__ import annotations

import difflib
import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.shader.entry import Entry

TEMPLATE = "template "
MAX_COMPARED = 200  # entries whose spec is read for one explanation
_SHOWN = 3  # differences of a spec in its message
_LIKE = 0.5  # of the lines of a spec that another must share to be like it
_SIBLING = 0.99  # the same, of one that the same process made: but for numbers, all
_NUMBER = re.compile(r"0x[0-9a-f]{8}|(?<![A-Za-z0-9_.])\d+")
_TOKEN = re.compile(r"0x[0-9a-f]{8}|[A-Za-z_]\w*|\d+|\s+|.")
_PLACE = re.compile(r"(?<= )(in|out)\d+\[[^\]]*\]")  # of an operand in memory
_PARAMETER = re.compile(r"(\w+)=((?:\([^()]*\)|[^,()])+)")
_VERSION = re.compile(r"\d+:(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Change:
    """A component that differs: its name, what people read, and both values where they are short."""

    component: str
    text: str
    before: str | None = None
    after: str | None = None

    def record(self) -> dict[str, Any]:
        return {"component": self.component, "text": self.text, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Removal:
    """An entry that is gone, as the store remembers it."""

    key: str
    reason: str
    time: float
    kind: str = "shaders"


def parse_removals(text: str) -> list[Removal]:
    """The lines of a store's list of removed entries; what cannot be read is left out."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
            kind = str(row.get("kind", "shaders"))
            found.append(Removal(str(row["key"]), str(row["reason"]), float(row["time"]), kind))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # the last line of a process that was killed
    return found


def removal_before(entry: Entry, removals: Iterable[Removal]) -> Removal | None:
    """The last removal of an entry of this very key before it was compiled again."""
    gone = [r for r in removals if r.key == entry.key and r.time <= compiled_at(entry)]
    return max(gone, key=lambda r: r.time, default=None)


def compiled_at(entry: Entry) -> float:
    """Seconds since the epoch; 0 for an entry that does not say."""
    value = entry.record.get("compiled", 0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0


def here_since(entry: Entry) -> float:
    """When an entry came into the store: compiled, or imported from another machine with its own clock."""
    imported = imported_at(entry)
    return compiled_at(entry) if imported is None else imported


def imported_at(entry: Entry) -> float | None:
    """When an entry was imported; None for one that was compiled here."""
    imported = entry.record.get("imported")
    if imported is None:
        return None
    value = imported.get("time") if isinstance(imported, dict) else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def removed_text(removals: Sequence[Removal], when: str = "") -> str:
    """How many were removed and why: ``12 entries were removed since (cleared)``."""
    reasons = ", ".join(dict.fromkeys(r.reason for r in removals))
    count = f"{len(removals):,} {'entry was' if len(removals) == 1 else 'entries were'} removed"
    return f"{count} {when} ({reasons})" if when else f"{count} ({reasons})"


def last_process(headers: Iterable[Entry]) -> list[Entry]:
    """The entries that the process made that compiled last, oldest first; imported ones are of no process here."""
    own = [h for h in headers if h.record.get("process") and "imported" not in h.record]
    last = max(own, key=compiled_at, default=None)
    made = [] if last is None else [h for h in own if h.record["process"] == last.record["process"]]
    return sorted(made, key=compiled_at)


class Index:
    """Headers of entries by what makes them alike, so that the nearest of one is found without looking at all."""

    def __init__(self, headers: Iterable[Entry]):
        self.by_spec: dict[tuple[str, str], list[Entry]] = {}
        self.by_family: dict[str, list[Entry]] = {}
        self._lines: dict[str, _Lines | None] = {}
        for header in headers:
            family = family_of(header)
            self.by_family.setdefault(family, []).append(header)
            self.by_spec.setdefault((family, header.components.get("spec", "")), []).append(header)

    def nearest(self, entry: Entry, load: Callable[[Entry], Entry | None]) -> Entry | None:
        """The older entry, with its contents, that is most like this one, which has its own; None if none is.

        One of the same spec comes first: what else changed is then the reason. ``load`` gives a header's whole entry.
        """
        family, spec = family_of(entry), entry.components.get("spec", "")
        same = _older(entry, self.by_spec.get((family, spec), ()))
        if same:
            closest = min(same, key=lambda h: (len(_named_changes(h, entry)), -compiled_at(h)))
            return load(closest) or closest
        names = entry.components.keys()

        def promise(header: Entry) -> tuple[bool, bool, float]:
            """The templates are among the names."""
            other_label = _sizes(header) != _sizes(entry)
            return header.components.keys() != names, other_label, -compiled_at(header)

        candidates = heapq.nsmallest(MAX_COMPARED, _older(entry, self.by_family.get(family, ())), promise)
        wanted = _Lines(entry.text("spec"))
        scored = []
        for number, candidate in enumerate(candidates):
            if candidate.key not in self._lines:
                whole = load(candidate)
                self._lines[candidate.key] = None if whole is None else _Lines(whole.text("spec"))
            lines = self._lines[candidate.key]
            if lines is not None:
                alike, exact = lines.likeness(wanted)
                same_process = candidate.record.get("process") == entry.record.get("process")
                if alike >= (_SIBLING if same_process else _LIKE):
                    scored.append((-alike, -exact, len(_named_changes(candidate, entry)), number))
        best = candidates[min(scored)[-1]] if scored else None
        return None if best is None else load(best) or best


def family_of(entry: Entry) -> str:
    """The kernel family, empty for an entry that does not say."""
    return str(entry.record.get("family", ""))


def _sizes(entry: Entry) -> str:
    """What a label says before its operations."""
    return str(entry.record.get("label", "")).partition(": ")[0]


def _older(entry: Entry, others: Iterable[Entry]) -> list[Entry]:
    moment = compiled_at(entry)
    return [h for h in others if here_since(h) <= moment and h.key != entry.key]


class _Lines:
    """The lines of a spec, as they are and with any numbers in them."""

    def __init__(self, spec: str):
        self.exact = Counter(spec.split("\n"))
        self.shapes = Counter(_NUMBER.sub("#", line) for line in spec.split("\n"))

    def likeness(self, other: _Lines) -> tuple[float, float]:
        """The share of lines that two specs have in common, with any numbers in them, and with these very numbers."""

        def share(x: Counter[str], y: Counter[str]) -> float:
            return 2 * (x & y).total() / (x.total() + y.total())

        return share(self.shapes, other.shapes), share(self.exact, other.exact)


def changes(old: Entry, new: Entry) -> list[Change]:
    """Every component in which two entries differ. GLSL is named only where nothing else explains it.

    With the contents of both, a change of the spec says what changed in it.
    """
    found = _named_changes(old, new)
    if old.components.get("spec") != new.components.get("spec"):
        found.insert(0, _spec_change(old.text("spec"), new.text("spec")))
    # The numerics strategies and the text of kernels are in the GLSL: it differs with them.
    if not any(c.component in ("spec", "strategies") or c.component.startswith(TEMPLATE) for c in found):
        before, after = old.components.get("glsl"), new.components.get("glsl")
        if before != after:
            found.append(Change("glsl", "the GLSL that vkdnn makes of the same spec changed: another version of vkdnn"))
    return found


def _named_changes(old: Entry, new: Entry) -> list[Change]:
    """Differences that headers alone show, but for spec and GLSL."""
    found = []
    for name in dict.fromkeys([*old.components, *new.components]):
        before, after = old.components.get(name), new.components.get(name)
        if before == after or name in ("spec", "glsl"):
            continue
        if name.startswith(TEMPLATE):
            what = "changed" if before and after else "is new" if after else "is not used any more"
            found.append(Change(name, f"{name} {what}", before, after))
        elif name == "compiler":
            short = versions(before or "none", after or "none")
            found.append(Change(name, f"compiler {short[0]} → {short[1]}", before, after))
        else:
            text = f"{name} {_different_items(before or 'none', after or 'none')}"
            found.append(Change(name, text, before, after))
    return found


def versions(before: str, after: str) -> tuple[str, str]:
    """The compiler's version numbers, or all that it says where these are the same."""
    numbers = [m.group(1) if (m := _VERSION.search(text)) else text for text in (before, after)]
    return (numbers[0], numbers[1]) if numbers[0] != numbers[1] else (before, after)


def _different_items(before: str, after: str) -> str:
    """``a=1,b=2`` and ``a=1,b=3``: ``b=2 → b=3``."""
    old, new = before.split(","), after.split(",")
    gone, come = [x for x in old if x not in new], [x for x in new if x not in old]
    return f"{','.join(gone) or 'none'} → {','.join(come) or 'none'}"


# ---- specs


def _spec_change(old: str, new: str) -> Change:
    if not (old and new):
        return Change("spec", "spec changed")
    found = spec_differences(old, new)
    more = len(found) - _SHOWN
    return Change("spec", "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else ""))


def spec_differences(old: str, new: str) -> list[str]:
    """What differs between two specs, each as a short text such as ``spec: 1000015.0 → 1000025.0``, without repeats.

    Numbers of values (``%3``) that merely moved are no difference.

    >>> spec_differences("fold [8]\\n%1 = const float32 0x3f800000", "fold [32]\\n%1 = const float32 0x40000000")
    ['spec: fold [8] → fold [32]', 'spec: 1.0 → 2.0']
    """
    a, b = (text.rstrip("\n").split("\n") for text in (old, new))
    resized = a[0] != b[0]  # places in memory follow from sizes
    x, y = ([_NUMBER.sub("#", line) for line in part] for part in (a, b))
    found: list[str] = []
    gone: list[str] = []
    come: list[str] = []
    for kind, a1, a2, b1, b2 in difflib.SequenceMatcher(None, x, y, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and a2 - a1 == b2 - b1):
            for before, after in zip(a[a1:a2], b[b1:b2], strict=True):
                found += _line_difference(before, after, resized)
        else:
            gone += [_plain(line) for line in a[a1:a2] if line.strip()]
            come += [_plain(line) for line in b[b1:b2] if line.strip()]
    for word, lines in (("removed", gone), ("added", come)):
        if len(lines) <= _SHOWN:
            found += [f"spec: instruction {word}: {line}" for line in lines]
        else:
            found.append(f"spec: {_operations(lines, word)}")
    return list(dict.fromkeys(found)) or ["spec: the numbering of its values"]


def _plain(line: str) -> str:
    """A line without the number of its value and with floats that can be read."""
    return re.sub(r"0x[0-9a-f]{8} \((.*)\)", r"\1", readable(re.sub(r"^%\d+ = ", "", line.strip())))


def _operations(lines: Sequence[str], word: str) -> str:
    """Several lines by their first words: 3 instructions added (2 mul, add)."""
    counts = Counter(line.split()[0] for line in lines)
    each = ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items())
    return f"{len(lines)} instructions {word} ({each})"


def _line_difference(old: str, new: str, resized: bool) -> list[str]:
    plain = [re.sub(r"%\d+", "%", line) for line in (old, new)]
    if plain[0] == plain[1]:
        return []
    places = [_PLACE.search(line) for line in plain]
    if places[0] and places[1] and [_PLACE.sub("", line) for line in plain].count(_PLACE.sub("", plain[0])) == 2:
        return [] if resized else [f"spec: {places[0].group()} → {places[1].group()}"]
    if old.startswith("schedule ") and new.startswith("schedule "):
        return [f"schedule: {text}" for text in parameters(old, new)]
    x, y = old.split(), new.split()
    if x[2:4] == y[2:4] == ["const", "float32"] and len(x) == len(y) == 5:
        return [f"spec: {float_text(x[4])} → {float_text(y[4])}"]
    pieces = [_TOKEN.findall(line) for line in plain]
    if len(pieces[0]) != len(pieces[1]):
        return [f"spec: “{old.strip()}” → “{new.strip()}”"]
    return [f"spec: {_with_name(pieces[0], i)} → {_with_name(pieces[1], i)}" for i in _different(*pieces)]


def _different(x: Sequence[str], y: Sequence[str]) -> list[int]:
    return [i for i, (p, q) in enumerate(zip(x, y, strict=True)) if p != q]


def _with_name(pieces: Sequence[str], index: int) -> str:
    """A token of a line with what says what it is: the word before it, and brackets that are around it."""
    start, end = index, index + 1
    if index and pieces[index - 1] == "[" and pieces[index + 1 : index + 2] == ["]"]:
        start, end = index - 1, index + 2
    before = start - 1
    while before >= 0 and pieces[before].isspace():
        before -= 1
    named = before >= 0 and re.fullmatch(r"[A-Za-z_]\w*", pieces[before]) is not None
    return "".join(pieces[before if named else start : end])


def parameters(old: str, new: str) -> list[str]:
    """Which parameters of two schedules, each a line ``schedule Kind(...)``, differ."""
    a, b = (dict(_PARAMETER.findall(line.partition("(")[2])) for line in (old, new))
    kinds = [line.split()[1].partition("(")[0] for line in (old, new)]
    found = [] if kinds[0] == kinds[1] else [f"{kinds[0]} → {kinds[1]}"]
    found += [f"{n} {a.get(n, 'none')} → {b.get(n, 'none')}" for n in dict.fromkeys([*a, *b]) if a.get(n) != b.get(n)]
    return found or ["“" + old + "” → “" + new + "”"]


def float_text(bits: str) -> str:
    """The float32 that a constant of a spec is; specs hold its bits.

    >>> float_text("0x497424f0")
    '1000015.0'
    """
    value = np.uint32(int(bits, 16)).view(np.float32)
    if not np.isfinite(value) or value == 0 or 1e-4 <= abs(value) < 1e16:
        return np.format_float_positional(value, trim="0")
    return np.format_float_scientific(value, trim="0")


def readable(spec: str) -> str:
    """A spec whose float constants can be read: each followed by the number that its bits are."""
    return re.sub(r"(const float32 )(0x[0-9a-f]{8})", lambda m: f"{m[1]}{m[2]} ({float_text(m[2])})", spec)


# ---- texts side by side


def unified(old: str, new: str, names: tuple[str, str], context: int = 3) -> list[str]:
    """A unified diff of two texts; empty where they are the same."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), *names, n=context, lineterm="")
    return list(lines)


def side_by_side(old: Entry, new: Entry) -> list[tuple[str, str | None, str | None]]:
    """Every component of two entries by name; None where one does not have it."""
    names = dict.fromkeys([*old.components, *new.components])
    return [(name, old.components.get(name), new.components.get(name)) for name in names]
