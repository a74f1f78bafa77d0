"""One check of one gradient: the claimed values at a point beside differences, another run, or a device's.

Whatever differences cannot decide must be called inconclusive or a kink, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkdnn.check import differences
from vkdnn.check.differences import Line, Slope
from vkdnn.check.gradcheck_report import FAILED, INCONCLUSIVE, KINK, OK, Entry, Part, part_of
from vkdnn.check.hard import bits_equal
from vkdnn.check.subjects import Array, GraphSubject, Subject
from vkdnn.errors import ArgumentError, VkdnnError

LIMIT = 1e-3  # an estimate above this share of a slope decides nothing
ROUNDING = 1e-11  # of the largest entry: what float64 itself may lose in a formula
SENSITIVITY = 64.0  # roundings inside a kernel, for one of its inputs
DEVICE_UNITS = 256.0  # of the last place of the largest entry: what float32 may lose in a kernel


@dataclass(frozen=True)
class Options:
    """How to check. ``input`` and ``index`` pick one element; ``step`` replaces the steps of the differences;
    every ``schedules``-th function that shares a Program with others runs under other schedules as well, none if 0."""

    mode: str = "full"
    seed: int = 0
    directions: int = 5
    rtol: float = 1e-6
    step: float = 0.0
    input: str | None = None
    index: tuple[int, ...] | None = None
    schedules: int = 1


class Point:
    """A subject with its cotangents, the values there and the claimed gradients."""

    def __init__(self, subject: Subject, seed: int, cotangents: Sequence[Array] | None = None):
        self.subject, self.rng = subject, np.random.default_rng(seed)
        first, again = self._values(), self._values()
        self.steady = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True))
        self.cotangents = [self._random(x.shape) for x in first] if cotangents is None else list(cotangents)
        self.base = _flat([x[None] for x in first])[0]
        self.weights = _flat([c[None] for c in self.cotangents])[0]
        self.claimed = subject.gradients(self.cotangents)
        self.scales = {k: differences.scale_of(subject.inputs[k]) for k in subject.floats}
        self._analytic: bool | None = None

    def second(self, seed: int) -> Point:
        """The point of the gradient as a function."""
        return Point(self.subject.second(self.cotangents), seed + 1)

    def _values(self) -> list[Array]:
        return [x[0] for x in self.subject.values([x[None] for x in self.subject.inputs], 1)]

    def _random(self, shape: tuple[int, ...]) -> Array:
        """Numbers of both signs away from 0, exact in float32."""
        size = self.rng.uniform(0.5, 1.5, shape) * self.rng.choice([-1.0, 1.0], shape)
        return np.asarray(size, np.float32).astype(np.float64)

    def line(self, directions: dict[int, Array]) -> Line:
        """The function along a direction: an array for some of the inputs."""

        def values(ts: Array) -> Array:
            arrays = list(self.subject.inputs)
            for k, direction in directions.items():
                x = arrays[k]
                arrays[k] = x + np.reshape(ts, (-1, *(1,) * x.ndim)) * direction
            return _flat(self.subject.values(arrays, len(ts)))

        return values

    # ---- the formula

    def parts(self, options: Options) -> list[Part]:
        """The parts that need no device."""
        if not self.steady:
            note = "the function gave two results for one input; fix its seed, or switch dropout off"
            return [Part("determinism", FAILED, note=note)]
        steady = self._steady()
        if options.mode == "fast":
            along = self._directions(options)
            if along.verdict == OK and not along.kinks:
                return [along, *steady]
            return [along, self._elements(options), *steady]
        if options.mode == "inner":
            return [self._inner(options), self._linear(options), *steady]
        return [self._elements(options), *steady]

    def _steady(self) -> list[Part]:
        """That the claimed gradient is the same when it is asked for again; graphs are asked on the device."""
        if isinstance(self.subject, GraphSubject):
            return []
        return [self._same_bits(self.claimed, [("again", self.subject.gradients(self.cotangents))])]

    def _elements(self, options: Options) -> Part:
        entries: list[Entry] = []
        largest = self._largest(self.claimed)
        for k, claimed in zip(self.subject.floats, self.claimed, strict=True):
            places = self._places(k, options)
            if not places:
                continue
            x, scales = self.subject.inputs[k], self.scales[k]
            rounding = self._noise({k: self._random(x.shape) * scales})
            for at in places:
                one = np.zeros(x.shape)
                one[at] = 1.0
                found = self._slope({k: one}, float(scales[at]), rounding, options)
                found = self._without_meaning(found, k, at, one)
                entries.append(
                    self._entry("formula", self.subject.names[k], at, float(claimed[at]), found, largest[k], options)
                )
        if not entries and options.index is not None:
            shapes = ", ".join(f"{self.subject.names[k]} {self.subject.inputs[k].shape}" for k in self.subject.floats)
            raise ArgumentError(f"gradcheck: no input has an element {options.index}; their shapes are {shapes}")
        return part_of("formula", entries)

    def _places(self, k: int, options: Options) -> list[tuple[int, ...]]:
        if options.input is not None and options.input not in self.subject.names:
            known = ", ".join(self.subject.names[k] for k in self.subject.floats)
            raise ArgumentError(f"gradcheck: no input {options.input!r}, expected one of {known}")
        if options.input not in (None, self.subject.names[k]):
            return []
        shape = self.subject.inputs[k].shape
        if options.index is None:
            return list(np.ndindex(shape))
        if len(options.index) != len(shape) or any(not -n <= i < n for i, n in zip(options.index, shape, strict=True)):
            if options.input is None:
                return []
            raise ArgumentError(f"gradcheck: index {options.index} is none of {self.subject.names[k]}, shape {shape}")
        return [tuple(i % n for i, n in zip(options.index, shape, strict=True))]

    def _noise(self, directions: dict[int, Array]) -> float:
        return differences.noise(self.line(directions), self.base, self.weights)

    def _slope(self, directions: dict[int, Array], scale: float, rounding: float, options: Options) -> Slope:
        line = self.line(directions)
        if options.mode == "complex" and self._is_analytic():
            return differences.complex_slope(line, self.weights, scale)
        found = differences.slope(line, self.base, self.weights, scale, rounding, options.step)
        if found.error > LIMIT * abs(found.value) and self.subject.analytic and not found.kink and not options.step:
            exact = differences.complex_slope(line, self.weights, scale)
            return exact if abs(exact.value - found.value) <= 4 * found.error else found
        return found

    def _is_analytic(self) -> bool:
        """Whether complex steps may be taken: for NumPy functions, whether one in some direction is the difference."""
        if self._analytic is None:
            self._analytic = self.subject.analytic
            if self._analytic and not isinstance(self.subject, GraphSubject):
                direction = self._direction()
                line = self.line(direction)
                real = differences.slope(line, self.base, self.weights, 1.0, self._noise(direction))
                try:
                    turned = differences.complex_slope(line, self.weights)
                except TypeError:  # a function that complex numbers do not have
                    self._analytic = False
                else:
                    self._analytic = abs(real.value - turned.value) <= 1e-6 * abs(real.value) + 4 * real.error
        return self._analytic

    def _without_meaning(self, found: Slope, k: int, at: tuple[int, ...], one: Array) -> Slope:
        """NaN, for certain, where the element is no number or a result that is NaN depends on it."""
        x = self.subject.inputs[k][at]
        lost = np.isnan(self.base)
        depends = not math.isfinite(x)
        if lost.any() and not depends:
            scale = float(self.scales[k][at])
            moved = self.line({k: one})(np.array([0.75, 1.625, -1.375, -2 * x / scale]) * scale)
            depends = bool((~np.isnan(moved[:, lost])).any())
        return replace(found, value=math.nan, error=0.0, kink=False) if depends else found

    def _largest(self, gradients: Sequence[Array]) -> dict[int, float]:
        """For each input the size by which errors of its gradient are measured: its largest entry, or what would matter
        beside the other inputs and the value."""
        floats, inputs = self.subject.floats, self.subject.inputs
        most = {k: _most(g) for k, g in zip(floats, gradients, strict=True)}
        usual = {k: max(2.0**-7, _usual(inputs[k])) for k in floats}
        beside = max(most[k] * usual[k] for k in floats) * 2.0**-10
        value = _most(self.base * self.weights) * 2.0**-7
        return {k: max(most[k], min(max(beside, value) / usual[k], 1e300)) for k in floats}

    def _entry(
        self, part: str, name: str, at: tuple[int, ...] | None, claimed: float, found: Slope, largest: float,
        options: Options,
    ) -> Entry:  # fmt: skip
        verdict, note = judge(claimed, found, largest, options.rtol)
        return Entry(
            part, name, at, claimed, found.value, verdict, found.step, found.error, found.left, found.right, note
        )

    # ---- directions

    def _direction(self) -> dict[int, Array]:
        return {k: self._random(self.subject.inputs[k].shape) * self.scales[k] for k in self.subject.floats}

    def _along(self, part: str, name: str, direction: dict[int, Array], options: Options) -> Entry:
        found = self._slope(direction, 1.0, self._noise(direction), options)
        parts = [np.abs(g * direction[k]) for k, g in zip(self.subject.floats, self.claimed, strict=True)]
        claimed = differences.inner(self.claimed, [direction[k] for k in self.subject.floats])
        return self._entry(part, name, None, claimed, found, max(map(_most, parts), default=0.0), options)

    def _directions(self, options: Options) -> Part:
        entries = [
            self._along("directions", f"direction {n}", self._direction(), options) for n in range(options.directions)
        ]
        return part_of("directions", entries)

    def _inner(self, options: Options) -> Part:
        """<J v, u> = <v, vjp(u)>, each time for another u and v."""
        entries = []
        for n in range(options.directions):
            u = [self._random(c.shape) for c in self.cotangents]
            point = Point(self.subject, options.seed + n, u)
            entries.append(point._along("inner", f"pair {n}", self._direction(), options))
        return part_of("inner", entries, "<J v, u> = <v, vjp(u)>")

    def _linear(self, options: Options) -> Part:
        """vjp(u + 2 w) = vjp(u) + 2 vjp(w)."""
        others = [self._random(c.shape) for c in self.cotangents]
        both = self.subject.gradients([u + 2 * w for u, w in zip(self.cotangents, others, strict=True)])
        parts = self.subject.gradients(others)
        entries = []
        for k, got, a, b in zip(self.subject.floats, both, self.claimed, parts, strict=True):
            want, size = a + 2 * b, _most(a) + 2 * _most(b)
            entries += _compared("linearity", self.subject.names[k], got, want, max(options.rtol, 1e-6) * size)
        return part_of("linearity", entries, "vjp(u + 2 w) = vjp(u) + 2 vjp(w)")

    # ---- the device

    def device_parts(self, runs: list[list[Array]] | VkdnnError, options: Options) -> list[Part]:
        """Of gradients that a device gave in two runs and under other schedules: their errors, and their bits."""
        if isinstance(runs, VkdnnError):
            return [Part("device", FAILED, note=str(runs))]
        first = runs[0]
        entries: list[Entry] = []
        largest = self._largest(self.claimed)
        bounds = [units(g.dtype) * largest[k] + 2.0**-126 for k, g in zip(self.subject.floats, first, strict=True)]
        close = [np.abs(a - b) <= c for a, b, c in zip(first, self.claimed, bounds, strict=True)]
        if not all(c.all() for c in close):
            spreads = self._spreads()
            bounds = [b + SENSITIVITY * s for b, s in zip(bounds, spreads, strict=True)]
        for k, got, want, bound in zip(self.subject.floats, first, self.claimed, bounds, strict=True):
            compared = _compared("device", self.subject.names[k], got.astype(np.float64), want, bound)
            if options.index is not None or options.input is not None:
                places = set(self._places(k, options))
                compared = [e for e in compared if e.index in places]
            entries += compared
        return [
            part_of("device", entries),
            self._same_bits(first, list(zip(("again", "other schedules"), runs[1:], strict=False))),
        ]

    def _spreads(self) -> list[float]:
        """How far each gradient moves when inputs and cotangents move by less than a float32's last place."""
        moved = [self.claimed]
        subject, rng = self.subject, np.random.default_rng(0)
        kept, cotangents = list(subject.inputs), self.cotangents
        for _ in range(8):

            def near(x: Array) -> Array:
                return x * (1 + rng.uniform(-1, 1, x.shape) * 2.0**-24)

            subject.inputs = [near(x) if k in subject.floats else x for k, x in enumerate(kept)]
            moved.append(subject.gradients([near(c) for c in cotangents]))
        subject.inputs = kept
        return [max(_most(g[n] - self.claimed[n]) for g in moved) for n in range(len(self.claimed))]

    def _same_bits(self, first: Sequence[Array], others: Sequence[tuple[str, Sequence[Array]]]) -> Part:
        entries, count = [], 0
        for how, gradients in others:
            for k, a, b in zip(self.subject.floats, first, gradients, strict=True):
                same = bits_equal(a, b) if a.dtype.itemsize < 8 else (a.view(np.uint64) == b.view(np.uint64)) | (
                    np.isnan(a) & np.isnan(b)
                )  # fmt: skip
                count += same.size
                for at in map(tuple, np.argwhere(~same)):
                    entries.append(
                        Entry("determinism", self.subject.names[k], at, float(a[at]), float(b[at]), FAILED, note=how)
                    )
        return replace(part_of("determinism", entries), checked=count)


def judge(claimed: float, found: Slope, largest: float, rtol: float) -> tuple[str, str]:
    """The verdict on a claimed derivative, and what is to be said of it. ``largest`` is the size of its neighbours."""
    certain = found.error < math.inf
    if math.isnan(claimed) or math.isnan(found.value):
        if math.isnan(claimed) and math.isnan(found.value):
            return OK, ""
        if not certain:
            return INCONCLUSIVE, "no finite values beside the point"
        return FAILED, "NaN against a number"
    size = max(abs(claimed), abs(found.value))
    if math.isinf(claimed):
        steep = found.error > LIMIT * abs(found.value)
        return (INCONCLUSIVE, "infinitely steep") if steep else (FAILED, "infinite, though differences are finite")
    if found.kink:
        low, high = sorted((found.left, found.right))
        slack = rtol * max(abs(low), abs(high), abs(claimed)) + 4 * found.error
        inside = low - slack <= claimed <= high + slack
        return KINK, f"slopes {found.left:.6g} and {found.right:.6g}" + ("" if inside else ", the gradient outside")
    apart = abs(claimed - found.value)
    if apart > rtol * size + 4 * found.error + ROUNDING * largest:
        flat = abs(found.value) < 1e-2 * abs(claimed) and abs(found.coarse - claimed) < 0.25 * abs(claimed)
        return (INCONCLUSIVE, "flat near by: a staircase?") if flat else (FAILED, "")
    if 4 * found.error > LIMIT * max(size, 1e-2 * largest):
        return INCONCLUSIVE, "the noise is larger"
    return OK, ""


def units(dtype: Any) -> float:
    """The error that a kernel's gradient in a dtype may have, relative to the largest entry."""
    bound = DEVICE_UNITS * 2.0**-23
    bits = {"float16": 10, "bfloat16": 7}.get(np.dtype(dtype).name)
    return bound if bits is None else bound + 8 * 2.0**-bits


def _compared(part: str, name: str, got: Array, want: Array, bound: float) -> list[Entry]:
    """An entry for each element; it failed where the two are further apart than ``bound``, or one alone is NaN."""
    with np.errstate(all="ignore"):
        wrong = ~(np.abs(got - want) <= bound) & (got != want) & ~(np.isnan(got) & np.isnan(want))
    largest = float(np.finfo(np.float32).max)
    wrong &= ~((np.abs(want) > largest) & (got == np.where(want > 0, np.inf, -np.inf)))  # float32 ends there
    return [
        Entry(part, name, at, float(got[at]), float(want[at]), FAILED if wrong[at] else OK)
        for at in np.ndindex(got.shape)
    ]


def _flat(arrays: Sequence[Array]) -> Array:
    """Arrays with an axis of copies in front as rows, one for each copy."""
    return np.concatenate([x.reshape(x.shape[0], -1) for x in arrays], 1)


def _most(x: Array) -> float:
    finite = np.abs(x[np.isfinite(x)]) if x.size else x
    return float(finite.max(initial=0.0))


def _usual(x: Array) -> float:
    finite = x[np.isfinite(x)] if x.size else x
    return math.sqrt(float(np.mean(finite * finite))) if finite.size else 0.0
