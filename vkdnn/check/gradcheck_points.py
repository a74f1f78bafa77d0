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
from vkdnn.check.gradcheck_report import FAILED, INCONCLUSIVE, KINK, NONE, OK, Entry, Part, part_of
from vkdnn.check.hard import bits_equal
from vkdnn.check.subjects import Array, GraphSubject, NumpySubject, Subject
from vkdnn.check.users import described
from vkdnn.errors import ArgumentError, VkdnnError

NOT_ANALYTIC = "differences after all, it is not analytic"
LIMIT = 1e-3  # an estimate above this share of a slope decides nothing
ROUNDING = 1e-11  # of the largest entry: what float64 itself may lose in a formula
SENSITIVITY = 64.0  # roundings inside a kernel, for one of its inputs
EMPTY = "no elements, so nothing was compared"
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
        first = self._values()
        self.first, self.steady = first, _equal(first, self._values())
        self.cotangents = [self._random(x.shape) for x in first] if cotangents is None else list(cotangents)
        self.base = _flat([x[None] for x in first])[0]
        self.weights = _flat([c[None] for c in self.cotangents])[0]
        self.claimed = subject.gradients(self.cotangents)
        self.scales = {k: differences.scale_of(subject.inputs[k]) for k in subject.floats}
        self._analytic = subject.analytic or isinstance(subject, NumpySubject)

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
        """The parts that need no device. Raises ArgumentError for complex steps of what takes no complex numbers."""
        if options.mode == "complex" and not isinstance(self.subject, (GraphSubject, NumpySubject)):
            raise ArgumentError(
                f"gradcheck: {self.subject.name} is PyTorch's, which is given no complex numbers, so there are no "
                'complex steps; take mode "full"'
            )
        if not self.steady:
            note = "the function gave two results for one input; fix its seed, or switch dropout off"
            return [Part("determinism", FAILED, note=note)]
        if all(self.subject.inputs[k].size == 0 for k in self.subject.floats):
            return [Part("formula", NONE, note=EMPTY)]
        steady = self._steady()
        found = self._compared(options)
        if not isinstance(self.subject, GraphSubject) and not _equal(self.first, self._values()):
            steady = [Part("determinism", FAILED, note="the function gave other values at the same inputs")]
        return [*found, *steady]

    def _compared(self, options: Options) -> list[Part]:
        if options.mode == "fast":
            along = self._directions(options)
            if along.verdict == OK and not along.kinks:
                return [along]
            return [along, self._elements(options)]
        if options.mode == "inner":
            return [self._inner(options), self._linear(options)]
        return [self._elements(options)]

    def _steady(self) -> list[Part]:
        """That the claimed gradient is the same when it is asked for again; graphs are asked on the device."""
        if isinstance(self.subject, GraphSubject):
            return []
        return [self._same_bits(self.claimed, [("again", self.subject.gradients(self.cotangents))])]

    def _elements(self, options: Options) -> Part:
        entries: list[Entry] = []
        largest, beside = self._largest(self.claimed), self._largest(self.claimed, alone=True)
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
                sizes = largest[k], beside[k]
                doubt = judge(float(claimed[at]), found, sizes[0], options.rtol, sizes[1])[0] != OK
                if doubt and math.isfinite(x[at]) and not options.step:
                    found = differences.finer(
                        self.line({k: one}), self.base, self.weights, found, rounding, float(x[at]), float(scales[at]),
                        LIMIT, float(claimed[at]),
                    )  # fmt: skip
                found = self._without_meaning(found, k, at, one, float(claimed[at]))
                entries.append(
                    self._entry("formula", self.subject.names[k], at, float(claimed[at]), found, sizes, options)
                )
        if not entries and options.index is not None:
            shapes = ", ".join(f"{self.subject.names[k]} {self.subject.inputs[k].shape}" for k in self.subject.floats)
            raise ArgumentError(f"gradcheck: no input has an element {options.index}; their shapes are {shapes}")
        if not entries:
            return Part("formula", NONE, note=EMPTY)
        return part_of("formula", entries, NOT_ANALYTIC if options.mode == "complex" and not self._analytic else "")

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
        line, complex_mode = self.line(directions), options.mode == "complex"
        graph = isinstance(self.subject, GraphSubject)
        if complex_mode and graph and self._analytic:
            return differences.complex_slope(line, self.weights, scale)
        found = differences.slope(line, self.base, self.weights, scale, rounding, options.step)
        doubtful = found.error > LIMIT * abs(found.value) and self.subject.analytic and not options.step
        if found.kink or not (doubtful or (complex_mode and not graph)):
            return found
        try:
            exact = differences.complex_slope(line, self.weights, scale)
        except Exception as error:  # whatever a function without complex numbers does
            if not complex_mode:
                return found
            raise ArgumentError(
                f"gradcheck: {self.subject.name} takes no complex numbers ({described(error)}), so there are "
                'no complex steps; take mode "full"'
            ) from None
        # The functions of pairs may be analytic in one element and in another not; 0 is what abs and real give.
        same = abs(exact.value - found.value) <= 1e-6 * abs(found.value) + 4 * found.error
        if same and (graph or exact.value != 0 or found.value == 0):
            return exact
        self._analytic = False
        return found

    def _without_meaning(self, found: Slope, k: int, at: tuple[int, ...], one: Array, claimed: float) -> Slope:
        """NaN, for certain, where the element is no number or a result that is NaN depends on it; where it is infinite
        there are no differences, and 0 is right."""
        x = self.subject.inputs[k][at]
        if math.isinf(x):
            zero = replace(found, value=0.0, error=0.0, kink=False)
            return zero if claimed == 0 else replace(zero, value=math.nan, error=math.inf)
        lost = np.isnan(self.base)
        depends = not math.isfinite(x)
        if lost.any() and not depends:
            scale = float(self.scales[k][at])
            moved = self.line({k: one})(np.array([0.75, 1.625, -1.375, -2 * x / scale]) * scale)
            depends = bool((~np.isnan(moved[:, lost])).any())
        return replace(found, value=math.nan, error=0.0, kink=False) if depends else found

    def _largest(self, gradients: Sequence[Array], alone: bool = False) -> dict[int, float]:
        """For each input the size by which errors of its gradient are measured: its largest entry, or what would matter
        beside the other inputs and the value (not the value if ``alone``)."""
        floats, inputs = self.subject.floats, self.subject.inputs
        most = {k: _most(g) for k, g in zip(floats, gradients, strict=True)}
        usual = {k: max(2.0**-7, _usual(inputs[k])) for k in floats}
        beside = max(most[k] * usual[k] for k in floats) * 2.0**-10
        value = _most(self.base * self.weights) * 2.0**-7
        if alone and beside:  # nothing but zeros is as small as the value's roundings leave it
            value = 0.0
        return {k: max(most[k], min(max(beside, value) / usual[k], 1e300)) for k in floats}

    def _entry(
        self, part: str, name: str, at: tuple[int, ...] | None, claimed: float, found: Slope,
        sizes: tuple[float, float], options: Options,
    ) -> Entry:  # fmt: skip
        verdict, note = judge(claimed, found, sizes[0], options.rtol, sizes[1])
        if found.kink and at is None:  # many elements at once may bend apart; elements will tell
            verdict = KINK
        return Entry(
            part, name, at, claimed, found.value, verdict, found.step, found.error, found.left, found.right, note
        )

    # ---- directions

    def _direction(self) -> dict[int, Array]:
        return {k: self._random(self.subject.inputs[k].shape) * self.scales[k] for k in self.subject.floats}

    def _along(self, part: str, name: str, direction: dict[int, Array], options: Options) -> Entry:
        line, rounding = self.line(direction), self._noise(direction)
        found = self._slope(direction, 1.0, rounding, options)
        parts = [np.abs(g * direction[k]) for k, g in zip(self.subject.floats, self.claimed, strict=True)]
        claimed = differences.inner(self.claimed, [direction[k] for k in self.subject.floats])
        if found.error < math.inf and not options.step:
            found = differences.finer(line, self.base, self.weights, found, rounding, 1.0, 1.0, LIMIT, claimed)
        size = max(map(_most, parts), default=0.0)
        return self._entry(part, name, None, claimed, found, (size, size), options)

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


def judge(claimed: float, found: Slope, largest: float, rtol: float, beside: float | None = None) -> tuple[str, str]:
    """The verdict on a claimed derivative, and what is to be said of it. ``largest`` is the size of its neighbours, or
    of the values if these are larger; ``beside``, of its neighbours alone, is the size that an estimate may not drown.
    """
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
        sizes = [abs(x) for x in (low, high, claimed) if math.isfinite(x)]
        slack = rtol * max(sizes) + 4 * found.beside + ROUNDING * largest
        inside = low - slack <= claimed <= high + slack
        slopes = f"slopes {found.left:.6g} and {found.right:.6g}"
        return (KINK, slopes) if inside else (FAILED, f"{slopes}, the gradient is outside")
    apart = abs(claimed - found.value)
    if apart > rtol * size + 4 * found.error + ROUNDING * largest:
        flat = abs(found.value) < 1e-2 * abs(claimed) and abs(found.coarse - claimed) < 0.25 * abs(claimed)
        return (INCONCLUSIVE, "flat near by: a staircase?") if flat else (FAILED, "")
    if 4 * found.error > LIMIT * max(size, 1e-2 * (largest if beside is None else beside)):
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


def _equal(first: Sequence[Array], again: Sequence[Array]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True))


def _flat(arrays: Sequence[Array]) -> Array:
    """Arrays with an axis of copies in front as rows, one for each copy."""
    return np.concatenate([x.reshape(x.shape[0], -1) for x in arrays], 1)


def _most(x: Array) -> float:
    finite = np.abs(x[np.isfinite(x)]) if x.size else x
    return float(finite.max(initial=0.0))


def _usual(x: Array) -> float:
    finite = x[np.isfinite(x)] if x.size else x
    return math.sqrt(float(np.mean(finite * finite))) if finite.size else 0.0
