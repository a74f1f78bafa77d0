"""Slopes of a function by differences: extrapolated, with an error estimate that knows the function's noise, and kinks.

A slope must never come without its estimate, and what noise drowns must say so in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Line = Callable[[Array], Array]
"""Of a vector of numbers t (complex for complex_slope): values of a function at a point moved by each t, as rows."""

Best = tuple[float, float, float]
"""A slope, its estimated error and its step."""

_ODD = np.array([1129, 871, 1013, 1171, 907, 1061, 1201, 953, 1097, 883, 1151, 991]) / 1024
STEPS = _ODD * 2.0 ** -np.arange(4.0, 28.0, 2.0)  # of the scale; few bits, but no period in common with a function
FIRST = (1, 2, 3, 4)  # enough for what is smooth
FINE = (2.0**-18, 2.0**-28)  # of the scale: where what looks like noise may be seen to oscillate
POINTS = 13  # of the table of differences
SPACINGS = (1.07e-6, 1.73e-5, 2.9e-4, 4.3e-3)  # of the scale; the first: some 16 units of the last place of float32
EPSILON = 2.0**-52
TINY = 2.0**-100  # the complex step: nothing is subtracted, so nothing is lost


@dataclass(frozen=True)
class Slope:
    """A derivative along a line: its value with an estimate of the error, and what differences say of both sides.

    ``value`` is NaN and ``error`` infinite where no two steps gave numbers. ``coarse`` is the difference quotient of
    the largest step that gave one. At a kink ``left`` and ``right`` are extrapolated, with an error of ``beside``; to
    the side of a jump the slope is infinite. ``edge`` says that some steps to one side gave no numbers.
    """

    value: float
    error: float
    step: float
    left: float
    right: float
    kink: bool
    coarse: float
    beside: float = 0.0
    edge: bool = False


def scale_of(values: Array) -> Array:
    """Powers of two by which elements may move: near their size, or the usual size of the array's elements."""
    finite = np.where(np.isfinite(values), values, 0.0).astype(np.float64)
    usual = _root_mean_square(finite)
    return np.asarray(2.0 ** np.round(np.log2(np.maximum(np.abs(finite), max(usual, 2.0**-7)))))


def _root_mean_square(values: Array) -> float:
    most = float(np.abs(values).max(initial=0.0))  # in these units, so that no square overflows
    return most * math.sqrt(float(np.mean((values / most) ** 2))) if 0 < most < math.inf else most


def change(values: Array, base: Array, weights: Array) -> Array:
    """sum((values - base) * weights) of each row, where equal infinities, and NaN before and after, are no change."""
    with np.errstate(all="ignore"):
        still = (np.isnan(values) & np.isnan(base)) | (values == base)
        return np.asarray(np.sum(np.where(still, 0.0, values - base) * weights, -1))


def noise(line: Line, base: Array, weights: Array, scale: float = 1.0) -> float:
    """The standard deviation of rounding errors in sum(line(t) * weights), from the differences of high order of
    values on one side (Moré and Wild, Estimating computational noise, SIAM J. Sci. Comput. 33, 2011).

    High differences leave nothing of what is smooth; a kink at t = 0 is not seen from one side. Where values are
    rounded so coarsely that neighbours are equal, the points move apart.
    """
    found = []
    for side in (1.0, -1.0):
        deviations, moving = [], 0
        for spacing in SPACINGS:
            values = change(line(side * spacing * scale * np.arange(1, POINTS + 1)), base, weights)
            if np.all(np.isfinite(values)):
                deviations.append(_deviation(values))
            moving += int(np.count_nonzero(np.diff(values)) > POINTS // 2)
            if moving == 2:  # in step with the roundings, equal spacing can miss them; hardly twice
                break
        if deviations:
            found.append(max(deviations))
    usual = np.abs(np.where(np.isfinite(base), base, 0.0) * weights)
    floor = EPSILON * float(usual.max(initial=0.0))
    return 2.0 * min(found, default=0.0) + floor  # a kink near by is seen from its side alone


def _deviation(values: Array) -> float:
    smallest = math.inf
    table = values
    for order in range(1, 9):
        table = np.diff(table)
        if order >= 4:
            factor = math.factorial(order) ** 2 / math.factorial(2 * order)
            smallest = min(smallest, math.sqrt(factor) * _root_mean_square(table))
    return smallest


def slope(line: Line, base: Array, weights: Array, scale: float = 1.0, noise: float = 0.0, step: float = 0.0) -> Slope:
    """The derivative of sum(line(t) * weights) at 0, where the row line([0]) is ``base``.

    Central differences at steps of falling size are extrapolated (Ridders, Accurate computation of F'(x) and
    F'(x)F''(x), Adv. Eng. Softw. 4, 1982), and the entry with the smallest estimate is taken: how far it lies from
    the entries it was made of, plus ``noise`` over its step. Where one side gives no numbers the other is used alone.
    ``step`` takes one step, as it is, instead of the ladder.
    """
    if step:
        return _judge(*_sample(line, base, weights, np.array([4.0 * step, step])), noise, step)
    first = STEPS[list(FIRST)] * scale
    samples = _sample(line, base, weights, first)
    found = _judge(*samples, noise)
    size = max(abs(found.value), noise / scale)
    if found.error <= 1e-9 * size and not found.kink:
        return found
    rest = np.array([s for k, s in enumerate(STEPS) if k not in FIRST]) * scale
    steps, plus, minus = (np.concatenate(p) for p in zip(samples, _sample(line, base, weights, rest), strict=True))
    order = np.argsort(-steps)
    return _judge(steps[order], plus[order], minus[order], noise)


def sure(found: Slope, limit: float) -> bool:
    """Whether a slope stands: of two sides, no kink, with an estimate below ``limit`` of it."""
    both = math.isfinite(found.left) and math.isfinite(found.right)
    return both and not found.kink and 4 * found.error <= limit * abs(found.value)


def finer(
    line: Line, base: Array, weights: Array, found: Slope, noise_there: float, x: float, scale: float, limit: float,
    claimed: float,
) -> Slope:  # fmt: skip
    """A slope that is not sure, or a kink, looked at from near: with steps of the size of the element ``x`` itself
    where that is small, and with small ones where the noise is as large as the values, as of a fast oscillation.

    Where that helps nothing and what was found rests on one side, or on such noise, its error is infinite. So it is
    where noise is less, but what is ``claimed`` is the slope from near: the coarse roundings of a part look like that.
    """
    own = 2.0 ** round(math.log2(abs(x))) if 1e-290 < abs(x) < math.inf else scale
    usual = float(np.abs(np.where(np.isfinite(base), base, 0.0) * weights).max(initial=0.0))
    moved = abs(found.coarse) * STEPS[0] * scale
    drowned = noise_there > 2.0**-5 * max(usual, moved if math.isfinite(moved) else 0.0)
    smooth = math.isfinite(found.left + found.right) and not found.edge  # else a jump or an edge: the near one counts
    slopes = max(abs(found.left), abs(found.right)) if found.kink and smooth else 0.0
    scales = [own] if own < scale / 4 else []
    if not found.kink and not sure(found, limit) and noise_there > 1e-4 * usual:
        scales += [scale * f for f in FINE]
    for small in scales:
        near = slope(line, base, weights, small, noise(line, base, weights, small))
        if near.kink or not (sure(near, limit) or slopes):
            continue
        rounded = 4 * (near.error + 4 * noise_there / near.step)
        if (drowned or not smooth) and sure(near, limit):
            return near
        if rounded <= limit * max(abs(near.value), slopes):
            return near
        if not found.kink and abs(near.value - claimed) <= limit * abs(near.value):
            return replace(found, error=math.inf)
    if found.kink or sure(found, limit):
        return found
    return replace(found, error=math.inf) if drowned or (x != 0 and not smooth) else found


def complex_slope(line: Line, weights: Array, scale: float = 1.0) -> Slope:
    """The same by a complex step, for lines of analytic functions: no difference, so no cancellation (Squire and
    Trapp, Using complex variables to estimate derivatives of real functions, SIAM Rev. 40, 1998)."""
    step = TINY * scale
    with np.errstate(all="ignore"):
        parts = line(np.array([1j * step]))[0].imag / step * weights
    value = float(parts.sum())
    error = 64 * EPSILON * float(np.abs(parts).sum()) if math.isfinite(value) else math.inf
    return Slope(value, error, step, value, value, False, value)


def _sample(line: Line, base: Array, weights: Array, steps: Array) -> tuple[Array, Array, Array]:
    both = change(line(np.concatenate([steps, -steps])), base, weights)
    return steps, both[: len(steps)], both[len(steps) :]


def _judge(steps: Array, plus: Array, minus: Array, noise: float, only: float = 0.0) -> Slope:
    with np.errstate(all="ignore"):
        right, left = plus / steps, -minus / steps
        middle = (plus - minus) / (2 * steps)
        sides = [(middle, 2.0)] if np.isfinite(middle).sum() >= 2 else [(right, 1.0), (left, 1.0)]
        best: Best = (math.nan, math.inf, math.nan)
        for quotients, order in sides:
            found = _extrapolated(steps, quotients, order, noise, only)
            if order == 1.0 and _grows(quotients[np.isfinite(quotients)]):  # log or sqrt by 0: no estimate holds
                found = (found[0], math.inf, found[2])
            best = found if found[1] < best[1] or math.isnan(best[0]) else best
        kink = not only and _is_kink(steps, left, right, noise)
        finite = middle[np.isfinite(middle)]
        small = _usable(steps, left, right, noise)
        at = small[-1] if len(small) else len(steps) - 1
        coarse = float(finite[0]) if finite.size else math.nan
        edge = finite.size < middle.size
        if not kink:
            return Slope(*best, float(left[at]) + 0.0, float(right[at]) + 0.0, kink, coarse, edge=edge)
        (low, one), (high, other) = (_beside(steps, q, small, noise) for q in (left, right))
    return Slope(*best, low + 0.0, high + 0.0, kink, coarse, max(one, other), edge)


def _extrapolated(
    steps: Array, quotients: Array, order: float, noise: float, only: float
) -> tuple[float, float, float]:
    """(value, error, step) of the best entry of Neville's table; an entry uses the steps from some one to its own."""
    best = (math.nan, math.inf, math.nan)
    table = quotients
    if only:  # what the larger step gives tells of the curvature, and of nothing if noise rules
        bend = abs(quotients[1] - quotients[0]) / 8
        return float(quotients[1]), float(bend + 2 * noise / only), only
    for column in range(1, len(steps)):
        factor = (steps[:-column] / steps[column:]) ** order
        last, table = table, (factor * table[1:] - table[:-1]) / (factor - 1)
        apart = np.maximum(np.abs(table - last[1:]), np.abs(table - last[:-1]))
        if column == 1:  # plain quotients of two steps that agree: all there is beside a kink
            best = _least(best, last[1:], np.abs(last[1:] - last[:-1]), steps[1:], noise, order)
        best = _least(best, table, apart, steps[column:], noise, order)
        if column == 5:  # of higher order only the noise grows
            break
    return best


def _least(best: Best, values: Array, apart: Array, steps: Array, noise: float, order: float) -> Best:
    error = apart + (3.0 - order) * 2.0 * noise / steps + 8 * EPSILON * np.abs(values)
    error = np.where(np.isfinite(error), error, np.inf)
    at = int(np.argmin(error))
    return (float(values[at]), float(error[at]), float(steps[at])) if error[at] < best[1] else best


def _usable(steps: Array, left: Array, right: Array, noise: float) -> Array:
    """Numbers of the steps at which both one-sided quotients stand clear of the noise."""
    size = np.abs(left) + np.abs(right)
    return np.flatnonzero(np.isfinite(size) & (noise / steps <= 1e-4 * size))


def _is_kink(steps: Array, left: Array, right: Array, noise: float) -> bool:
    """Whether the one-sided slopes differ by something that three smaller and smaller steps do not make smaller."""
    usable = _usable(steps, left, right, noise)[-3:]
    if len(usable) < 3:
        return False
    gaps = np.abs(left - right)[usable]
    size = (np.abs(left) + np.abs(right))[usable[-1]]
    return bool(gaps[2] > 1e-4 * size and gaps[2] > gaps[1] / 1.9 and gaps[1] > gaps[0] / 1.9)


def _beside(steps: Array, quotients: Array, usable: Array, noise: float) -> tuple[float, float]:
    """A one-sided slope at a kink and its error: infinite where the quotients of smaller steps grow, as at a jump."""
    if _grows(quotients[usable]):
        return math.copysign(math.inf, float(quotients[usable[-1]])), 0.0
    value, error, _ = _extrapolated(steps, quotients, 1.0, noise, 0.0)
    return value, error


def _grows(quotients: Array) -> bool:
    last = np.abs(quotients[-3:])
    return len(last) == 3 and bool(last[2] > 1.5 * last[1] > 2.25 * last[0])


def inner(parts: Sequence[Array], others: Sequence[Array]) -> float:
    """The inner product of two lists of arrays."""
    return float(sum(np.dot(np.ravel(a), np.ravel(b)) for a, b in zip(parts, others, strict=True)))
