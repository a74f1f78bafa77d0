"""The rules by which results pass: element by element, against float32 evaluated plainly, or bit for bit.

NaN against a finite number, or an infinity where none belongs, fails under every rule; a rule must never forgive it.

- ``element``: |got - golden| <= max(0.5 % of |golden|, 2.5e-5), but for at most 0.5 % of the elements. The rule of
  fused attention tests for 16-bit dtypes; it forgives what is small beside 2.5e-5.
- ``twice-plain``: the largest error and the root of the mean square error are no more than twice those of the golden's
  formula in float32, rounded to the result's dtype (or the case's ``factor`` times). Errors below a few units in the
  last place of the largest entry (FLOORS) always pass: a result of few numbers is exact now and then, by chance. The
  default.
- ``bits``: the bits of the reference, NaN equal to NaN.

Integers and bools have to be equal (under ``element``, but for the same share).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vkdnn.check.accuracy.subjects import Array, is_float
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError

RELATIVE, ABSOLUTE, SHARE = 0.005, 2.5e-5, 0.005
FACTOR = 2.0
FLOORS = {"float32": (8.0, 2.0), "float16": (1.0, 0.5), "bfloat16": (1.0, 0.5)}
"""Units in the last place of the largest true value: of the largest error, and of the root mean square."""
SMALLEST = 2.0**-126  # what lies below may be zero


@dataclass(frozen=True)
class Figures:
    """Errors of a result against float64, over finite elements; ``special`` counts NaN and infinities out of place."""

    elements: int
    max_abs: float
    mean_abs: float
    rms: float
    max_rel: float
    special: int
    over: int
    """Elements beyond the rule's limit."""
    plain_max: float | None = None
    plain_rms: float | None = None

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Judgement:
    """Whether a result passes, its figures, which elements are wrong, and the reason in words where it fails."""

    ok: bool
    figures: Figures
    wrong: Array
    error: Array
    reason: str = ""


def judge(
    rule: str, got: Array, golden: Array, plain: Array | None = None, reference: Array | None = None,
    factor: float = FACTOR,
) -> Judgement:  # fmt: skip
    """Judge a result; ``golden`` is float64 or integers of the same shape.

    ``plain`` is what ``twice-plain`` compares with, ``reference`` what ``bits`` does. Raises ArgumentError where the
    one that the rule needs is missing.
    """
    if got.shape != golden.shape:
        blank = np.ones((), bool)
        figures = Figures(got.size, np.inf, np.inf, np.inf, np.inf, 0, got.size)
        return Judgement(False, figures, blank, blank * np.inf, f"shape {got.shape}, expected {golden.shape}")
    if rule == "bits":
        return _bits(got, golden, reference)
    if not is_float(got):
        return _exact(got, golden, SHARE if rule == "element" else 0.0)
    if rule == "element":
        return _element(got, golden)
    if rule == "twice-plain":
        return _twice_plain(got, golden, plain, factor)
    raise ArgumentError(f"rule: got {rule!r}, expected element, twice-plain or bits")


def errors(got: Array, golden: Array) -> tuple[Array, Array]:
    """|got - golden| in float64, 0 where both are the same special value, and where they are not (error infinite).

    A true value that rounds to infinity in the result's dtype has to be infinite.
    """
    with np.errstate(all="ignore"):
        rounded = golden.astype(np.float32).astype(got.dtype).astype(np.float64)
        wide = got.astype(np.float64)
        special = ~np.isfinite(rounded) | ~np.isfinite(wide)
        same = (np.isnan(rounded) & np.isnan(wide)) | (rounded == wide)
        found = np.abs(wide - np.asarray(golden, np.float64))
    return np.where(special, np.where(same, 0.0, np.inf), found), special & ~same


def _figures(error: Array, golden: Array, special: Array, wrong: Array, **plain: float) -> Figures:
    finite = error[np.isfinite(error)]
    size = np.abs(np.asarray(golden, np.float64))
    with np.errstate(all="ignore"):
        relative = np.where((error > 0) & np.isfinite(error), error / np.maximum(size, SMALLEST), 0.0)
    return Figures(
        int(error.size), float(finite.max(initial=0.0)), float(finite.mean()) if finite.size else 0.0, _rms(finite),
        float(relative.max(initial=0.0)), int(special.sum()), int(wrong.sum()), **plain,
    )  # fmt: skip


def _rms(error: Array) -> float:
    largest = float(error.max(initial=0.0))
    return largest * float(np.sqrt(np.mean((error / largest) ** 2))) if largest > 0 else 0.0


def _element(got: Array, golden: Array) -> Judgement:
    error, special = errors(got, golden)
    with np.errstate(invalid="ignore"):
        limit = np.fmax(np.abs(golden) * RELATIVE, ABSOLUTE)
    wrong = special | ((error > limit) & np.isfinite(error))
    figures = _figures(error, golden, special, wrong)
    reason = _special_reason(special)
    if not reason and figures.over > SHARE * figures.elements:
        share = figures.over / figures.elements
        reason = f"{share:.1%} of the elements are off by more than {RELATIVE:.1%} and {ABSOLUTE}; {SHARE:.1%} may be"
    return Judgement(not reason, figures, wrong, error, reason)


def _twice_plain(got: Array, golden: Array, plain: Array | None, factor: float) -> Judgement:
    if plain is None:
        raise ArgumentError("rule: twice-plain needs the plain float32 results; take element or bits")
    error, special = errors(got, golden)
    with np.errstate(over="ignore"):
        baseline, _ = errors(plain.astype(np.float32).astype(got.dtype), golden)
    baseline = baseline[np.isfinite(baseline)]
    plain_max, plain_rms = float(baseline.max(initial=0.0)), _rms(baseline)
    largest, mean = floors(got, golden)
    max_limit, rms_limit = max(factor * plain_max, largest), max(factor * plain_rms, mean)
    finite = np.isfinite(error)
    wrong = special | (finite & (error > max_limit))
    figures = _figures(error, golden, special, wrong, plain_max=plain_max, plain_rms=plain_rms)
    reason = _special_reason(special)
    if not reason and figures.max_abs > max_limit:
        reason = (
            f"largest error {figures.max_abs:.3g}, expected at most {max_limit:.3g} (plain float32 {plain_max:.3g})"
        )
    elif not reason and figures.rms > rms_limit:
        reason = f"RMS error {figures.rms:.3g}, expected at most {rms_limit:.3g} (plain float32 {plain_rms:.3g})"
        wrong = finite & (error > rms_limit)
    return Judgement(not reason, figures, wrong, error, reason)


def floors(got: Array, golden: Array) -> tuple[float, float]:
    """Errors that always pass, largest and RMS."""
    sizes = np.abs(np.asarray(golden, np.float64))
    largest = float(sizes[np.isfinite(sizes)].max(initial=0.0))
    bits = {"float16": 10, "bfloat16": 7}.get(got.dtype.name, 23)
    lowest = 2.0**-24 if got.dtype.name == "float16" else SMALLEST
    unit = 2.0 ** (np.floor(np.log2(largest)) - bits) if largest > SMALLEST else 0.0
    high, mean = FLOORS.get(got.dtype.name, FLOORS["float32"])
    mean = max(mean, high / max(1.0, got.size) ** 0.5)  # of few numbers, one may be the mean
    return max(high * unit, lowest), max(mean * unit, lowest)


def _bits(got: Array, golden: Array, reference: Array | None) -> Judgement:
    if reference is None:
        raise ArgumentError("rule: bits needs the reference's results")
    if got.dtype != reference.dtype:
        wrong = np.ones(got.shape, bool)
    else:
        wrong = ~bits_equal(got, reference)
    wide = is_float(got)
    error, special = errors(got, golden) if wide else (_difference(got, golden), np.zeros(got.shape, bool))
    figures = _figures(error, golden, special, wrong)
    reason = f"{figures.over} of {figures.elements} elements have other bits than the reference" if wrong.any() else ""
    return Judgement(not reason, figures, wrong, error, reason)


def _exact(got: Array, golden: Array, share: float) -> Judgement:
    error = _difference(got, golden)
    wrong = error > 0
    figures = _figures(error, golden, np.zeros(got.shape, bool), wrong)
    reason = ""
    if figures.over > share * figures.elements:
        reason = f"{figures.over} of {figures.elements} integers differ"
    return Judgement(not reason, figures, wrong, error, reason)


def _difference(got: Array, golden: Array) -> Array:
    return np.abs(got.astype(np.float64) - np.asarray(golden).astype(np.float64))


def _special_reason(special: Array) -> str:
    if not special.any():
        return ""
    count = int(special.sum())
    return f"{count} of {special.size} elements are NaN or infinite on one side alone"
