"""Tuned schedules on disk: of a kernel on a device the winner for each size, with the times of all candidates.

It must never give a schedule that is not legal now, nor fail the work that it only speeds up.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vkdnn.errors import StoreError
from vkdnn.kernels.base import KernelSpec
from vkdnn.shader.entry import DamagedEntryError, Entry, decode, key_of
from vkdnn.shader.request import generator_fingerprint, label_of
from vkdnn.shader.store import Store, default_store
from vkdnn.shader.upkeep import items

KIND = "tunings"
_MOST_SIZES = 64  # of a kernel: the latest are kept
_TURNS = "tuning"  # a lock of its own, beside those of keys

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A schedule as text: the median of its times in seconds with their quartiles, or why there is none."""

    schedule: str
    seconds: float | None = None
    low: float = 0.0
    high: float = 0.0
    runs: int = 0
    note: str = ""


@dataclass(frozen=True)
class Tuned:
    """What timing a kernel at certain sizes gave; the default schedule is the first candidate."""

    sizes: Sizes
    winner: str
    clock: str  # "device": its timestamps; "wall": single submissions
    time: float  # seconds since the epoch
    candidates: tuple[Candidate, ...]

    @property
    def gain(self) -> float:
        """How much longer the default takes than the winner; 1 where either was not timed."""
        by_text = {c.schedule: c.seconds for c in self.candidates}
        default, best = self.candidates[0].seconds, by_text.get(self.winner)
        return default / best if default and best else 1.0


@dataclass(frozen=True)
class Kernel:
    """All that is known of a kernel on a device: an entry of the store, for lists and explanations."""

    key: str
    label: str
    family: str
    spec: str
    device: str
    driver: str
    current: bool
    """Whether this vkdnn still makes the same shaders; otherwise the entry is never used again."""
    tuned: tuple[Tuned, ...]


class Winners:
    """The tuned schedules of a device; ``name`` and ``driver`` are its own, ``strategies`` their canonical text.

    What a process has once looked up stays as it is, but for what it tunes itself: results never depend on it, times
    stay comparable. Without a folder that can be written, what is tuned is known to this process alone.
    """

    def __init__(self, name: str, driver: str, strategies: str) -> None:
        self._device = {"device": name, "driver": driver, "strategies": strategies}
        self._known: dict[tuple[Path | None, str], tuple[Tuned, ...]] = {}
        self._lock = threading.Lock()

    def any(self) -> bool:
        """Whether anything was ever tuned: if not, no kernel needs to be looked up. One look at the disk."""
        if self._known:
            return True
        store = default_store(KIND)
        return store is not None and store.folder.is_dir()

    def find(self, spec: KernelSpec, sizes: Sequence[Any], legal: Sequence[Any]) -> Any | None:
        """The winner among legal schedules: at these sizes, else at the nearest of the same magnitude; or None."""
        if any(type(n) is not int for n in sizes):  # symbolic: a schedule has to serve them all
            return None
        rows = [row for row in self.rows(spec) if _magnitudes(row.sizes) == _magnitudes(sizes)]
        rows.sort(key=lambda row: _distance(row.sizes, sizes))
        by_text = {str(schedule): schedule for schedule in legal}
        return next((by_text[row.winner] for row in rows[:1] if row.winner in by_text), None)

    def exactly(self, spec: KernelSpec, sizes: Sizes, anew: bool = False) -> Tuned | None:
        """What was timed at just these sizes; with ``anew`` by what other processes have stored meanwhile, too."""
        if anew and (store := default_store(KIND)) is not None:
            with self._lock:
                self._known.pop((store.root, spec.text()), None)
        return next((row for row in self.rows(spec) if row.sizes == sizes), None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Held while a kernel is timed: processes that tune would disturb each other, so they take turns.

        None waits for another longer than a minute.
        """
        store = default_store(KIND)
        if store is None:
            yield
            return
        with store.locked(_TURNS):
            yield

    def rows(self, spec: KernelSpec) -> tuple[Tuned, ...]:
        """All sizes at which a kernel was tuned."""
        store, text = default_store(KIND), spec.text()
        at = (None if store is None else store.root, text)
        with self._lock:
            if at not in self._known:
                self._known[at] = () if store is None else _read(store.load(self._components(text)))
            return self._known[at]

    def add(self, spec: KernelSpec, tuned: Tuned) -> bool:
        """Keeps a row, in place of one for the same sizes; True if it was stored for other processes.

        Rows that others have stored meanwhile stay. A folder that cannot be written gives one warning.
        """
        store, text = default_store(KIND), spec.text()
        components = self._components(text)
        at = (None if store is None else store.root, text)

        def merged(rows: Sequence[Tuned]) -> tuple[Tuned, ...]:
            return (tuned, *(row for row in rows if row.sizes != tuned.sizes))[:_MOST_SIZES]

        if store is None:
            with self._lock:
                self._known[at] = merged(self._known.get(at, ()))
            return False
        with store.locked(key_of(KIND, components)):
            rows = merged(_read(store.load(components)) or self._known.get(at, ()))
            record = {"label": label_of(text), "family": type(spec).__name__, "compiled": time.time()}
            contents = {"tuned": json.dumps([asdict(row) for row in rows]).encode(), "spec": text.encode()}
            stored = store.save(Entry(KIND, components, record, contents))
        with self._lock:
            self._known[at] = rows
        return stored

    def forget(self) -> None:
        """Everything is looked up again."""
        with self._lock:
            self._known.clear()

    def _components(self, text: str) -> dict[str, str]:
        return {"spec": text, **self._device, "generator": generator_fingerprint()}


def kernels(store: Store) -> Iterator[Kernel]:
    """Every readable entry of a store of tunings."""
    for item in items(store):
        try:  # looking at an entry is no use of it
            entry = decode(item.path.read_bytes())
        except (DamagedEntryError, OSError):
            continue
        parts, record = entry.components, entry.record
        yield Kernel(
            item.key,
            str(record.get("label", "")),
            str(record.get("family", "")),
            entry.text("spec"),
            parts.get("device", ""),
            parts.get("driver", ""),
            parts.get("generator") == generator_fingerprint(),
            _read(entry),
        )


def _read(entry: Entry | None) -> tuple[Tuned, ...]:
    """The rows of an entry; none of what cannot be read, which another version of vkdnn may have written."""
    if entry is None:
        return ()
    try:
        return tuple(_row(row) for row in json.loads(entry.text("tuned")))
    except (ValueError, TypeError, KeyError, AttributeError, StoreError):
        return ()


def _row(row: dict[str, Any]) -> Tuned:
    found = Tuned(**row)
    candidates = tuple(Candidate(**c) for c in row["candidates"])
    return replace(found, sizes=tuple(map(int, found.sizes)), candidates=candidates)


def _magnitudes(sizes: Sequence[int]) -> list[int]:
    return [n.bit_length() for n in sizes]


def _distance(sizes: Sequence[int], wanted: Sequence[int]) -> float:
    return sum(abs(a - b) / (a + b) if a + b else 0 for a, b in zip(sizes, wanted, strict=True))
