"""Decisions about symbolic sizes: by the ranges where these settle them, else by the hints, and then remembered.

A decision that the hints made must hold over the whole ranges, or what was traced is refused (Guards.check).
"""

from __future__ import annotations

import math
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from vkdnn.errors import ArgumentError
from vkdnn.ir.forms import Form, added, constant_form

CHECKED_POINTS = 1 << 22  # values of the symbols over which a guard is checked, one by one
_OWN = ("vkdnn.ir.dims", "vkdnn.ir.guards")
DECIDED_POINTS = 1 << 16  # over which a comparison is decided at once


@dataclass(frozen=True)
class Guard:
    """A comparison of a form with 0 that the hint decided."""

    form: Form
    relation: str  # "<", "<=" or "=="
    outcome: bool
    asked: str  # where

    @property
    def text(self) -> str:
        relation = self.relation if self.outcome else {"<": ">=", "<=": ">", "==": "!="}[self.relation]
        form = self.form
        if form.terms[0][1] < 0:
            form, relation = added(constant_form(0), form, -1), relation.translate(str.maketrans("<>", "><"))
        known = form.terms[-1][1] if not form.terms[-1][0] else 0
        return f"{added(form, constant_form(-known)).text} {relation} {-known}"

    def holds(self, values: Mapping[str, Any]) -> Any:
        return RELATIONS[self.relation](self.form.value(values), 0) == self.outcome


RELATIONS: dict[str, Callable[[Any, Any], Any]] = {"<": operator.lt, "<=": operator.le, "==": operator.eq}


class Guards:
    """The guards of what was traced."""

    def __init__(self) -> None:
        self.found: dict[tuple[Form, str], Guard] = {}

    def check(self) -> None:
        """Raises ArgumentError unless every guard holds over the whole ranges; names the ranges for which all do."""
        if not self.found:
            return
        symbols = {s.name: s for g in self.found.values() for s in g.form.symbols}
        ranges = {name: (s.low, s.high) for name, s in symbols.items()}
        broken = []
        for guard in self.found.values():
            narrowed = _narrowed(guard, ranges)
            if narrowed != ranges:
                broken.append(guard)
                ranges = narrowed
        if not broken:
            return
        names = [n for n, s in symbols.items() if ranges[n] != (s.low, s.high)]
        asked = ", ".join(f"{n} from {symbols[n].low} to {symbols[n].high}" for n in names)
        could = ", ".join(f"{n} from {ranges[n][0]} to {ranges[n][1]}" for n in names)
        why = "; ".join(f"{g.text} (asked in {g.asked})" for g in broken[:4])
        raise ArgumentError(
            f"{asked}: the kernels are not the same over the whole range, expected {could} (around the hint), because "
            f"they are made for {why}; narrow the range, or export one bundle for each part of it"
        )


def _narrowed(guard: Guard, ranges: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The ranges, cut to a box around the hint over which the guard holds."""
    symbols = guard.form.symbols
    if math.prod(high - low + 1 for low, high in (ranges[s.name] for s in symbols)) > CHECKED_POINTS:
        raise ArgumentError(
            f"{', '.join(s.text for s in symbols)}: whether {guard.text} holds (asked in {guard.asked}) cannot be "
            f"checked for more than {CHECKED_POINTS} combinations, expected narrower ranges"
        )
    axes = [np.arange(ranges[s.name][0], ranges[s.name][1] + 1, dtype=np.int64) for s in symbols]
    grid = dict(zip((s.name for s in symbols), np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
    good: Any = np.broadcast_to(np.asarray(guard.holds(grid)), tuple(map(len, axes)))
    result = dict(ranges)
    for k, symbol in enumerate(symbols):  # one axis after the other is cut; the others keep what they have by then
        if good.all():
            break
        along = np.moveaxis(good, k, 0)
        at = symbol.hint - result[symbol.name][0]
        fits = along.reshape(along.shape[0], -1).all(axis=1)
        if not fits[at]:
            if k + 1 < len(symbols):
                continue  # another axis can be cut so that the hint fits
            fits = along[(slice(None), *(s.hint - result[s.name][0] for s in symbols if s is not symbol))]
        low = at - int(np.argmin(fits[at::-1])) + 1 if not fits[: at + 1].all() else 0
        high = at + int(np.argmin(fits[at:])) - 1 if not fits[at:].all() else len(fits) - 1
        start = result[symbol.name][0]
        result[symbol.name] = (start + low, start + high)
        good = np.moveaxis(along[low : high + 1], 0, k)
    return result


_thread = threading.local()


@contextmanager
def guards() -> Iterator[Guards]:
    """Within, comparisons that ranges leave open are decided by the hint and collected."""
    before = getattr(_thread, "guards", None)
    _thread.guards = found = Guards()
    try:
        yield found
    finally:
        _thread.guards = before


@lru_cache(maxsize=1 << 16)
def known(form: Form, relation: str) -> bool | None:
    """Whether the relation to 0 holds over the whole ranges, or over none of them; None if neither is known."""
    if form.constant is not None:
        return bool(RELATIONS[relation](form.constant, 0))
    low, high = form.bounds
    if relation == "==":
        if low > 0 or high < 0:
            return False
    else:
        limit = 0 if relation == "<" else 1
        if high < limit:
            return True
        if low >= limit:
            return False
    if math.prod(s.high - s.low + 1 for s in form.symbols) <= DECIDED_POINTS:
        axes = [np.arange(s.low, s.high + 1, dtype=np.int64) for s in form.symbols]
        grid = dict(zip((s.name for s in form.symbols), np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
        holds = np.asarray(RELATIONS[relation](form.value(grid), 0))
        if holds.all() or not holds.any():
            return bool(holds.flat[0])
    return None


def decide(form: Form, relation: str) -> bool:
    settled = known(form, relation)
    if settled is not None:
        return settled
    collected: Guards | None = getattr(_thread, "guards", None)
    outcome = bool(RELATIONS[relation](form.hint, 0))
    guard = Guard(form, relation, outcome, asker())
    if collected is None:
        raise ArgumentError(
            f"a size: {guard.text} depends on the values of its symbols; compare inside `with dims.guards()`"
        )
    collected.found.setdefault((form, relation), guard)
    return outcome


def asker() -> str:
    """The module and function that ask for a comparison."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in _OWN and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}"
