"""What the checks know of an operation: its arguments by sizes, kinds of values and a seed, and its float64 twin.

It must never compute a result itself, nor give two inputs for one case.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.errors import ArgumentError
from vkdnn.ir.arguments import short

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Fill = Callable[[Rng, tuple[int, ...], Mapping[str, Any]], Array]
FRAMEWORK_FIELDS = ("dtype", "seed")
"""Fields that every case has beside those of its operator; with them NAME_range for each input NAME of floats."""


def _normal(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.standard_normal(shape)


def _positive(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return np.exp(rng.standard_normal(shape))


def _unit(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.uniform(0.05, 0.95, shape)


def _inside(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.uniform(-0.95, 0.95, shape)


def _distinct(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    """Values no two of which are close: away from the kinks of extremes and sorts."""
    count = math.prod(shape)
    return ((rng.permutation(count) - count / 2 + 0.25) * (3.0 / max(1, count))).reshape(shape)


def _small(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.standard_normal(shape) * 0.4


def _words(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.integers(0, 2**32, shape, dtype=np.uint32)


def _integers(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.integers(-9, 10, shape, dtype=np.int32)


def _bools(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.random(shape) < 0.5


FLOATS: dict[str, Fill] = {
    "normal": _normal, "positive": _positive, "unit": _unit, "inside": _inside, "distinct": _distinct,
    "small": _small,
}  # fmt: skip
OTHERS: dict[str, Fill] = {"words": _words, "integers": _integers, "bools": _bools}


def index(of: str) -> Fill:
    """Indices of an axis whose length is the field ``of``."""

    def fill(rng: Rng, shape: tuple[int, ...], fields: Mapping[str, Any]) -> Array:
        return rng.integers(0, max(1, fields[of]), shape, dtype=np.int32)

    return fill


def unique(of: str) -> Fill:
    """As index(), none of them twice along the last axis."""

    def fill(rng: Rng, shape: tuple[int, ...], fields: Mapping[str, Any]) -> Array:
        rows = [rng.permutation(fields[of])[: shape[-1]] for _ in range(math.prod(shape[:-1]))]
        return np.array(rows, np.int32).reshape(shape)

    return fill


@dataclass(frozen=True)
class Input:
    """An argument: its name, its lengths as names of sizes, numbers and products ("batch 2*half"), how it is filled.

    ``kind`` is a key of FLOATS (dtype of the case, differentiable) or of OTHERS, or a function of (generator, shape,
    fields) that gives the array. ``gradient`` says whether differentiation reaches a float input.
    """

    name: str
    dims: str
    kind: str | Fill = "normal"
    gradient: bool = True

    def __post_init__(self) -> None:
        for name, value, example in (("name", self.name, '"x"'), ("dims", self.dims, '"rows columns"')):
            if not isinstance(value, str):
                raise ArgumentError(f"Input {self.name}: {name}: got {short(value)}, expected text such as {example}")
        if not callable(self.kind) and self.kind not in (*FLOATS, *OTHERS):
            known = ", ".join((*FLOATS, *OTHERS))
            raise ArgumentError(
                f"Input {self.name}: kind: got {short(self.kind)}, expected a function or one of {known}"
            )

    @property
    def is_float(self) -> bool:
        return isinstance(self.kind, str) and self.kind in FLOATS

    def shape(self, fields: Mapping[str, Any]) -> tuple[int, ...]:
        def length(factor: str) -> int:
            return int(factor if factor.isdigit() else fields[factor])

        return tuple(math.prod(map(length, d.split("*"))) for d in self.dims.split())


@dataclass(frozen=True)
class Operator:
    """An operation for checks.

    ``function`` takes the arrays of ``inputs`` by position and, by keyword, the fields that are no sizes; ``golden``
    takes the same in float64 NumPy, and gives the same tree of results. ``fields`` are names with default values, of a
    case small enough for differences of every element. ``takes`` names sizes that the functions are given as well;
    ``forms`` are further cases that are worth a check of their own: a name and the fields that differ.
    """

    name: str
    group: str
    inputs: tuple[Input, ...]
    function: Callable[..., Any]
    golden: Callable[..., Any] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    hard: bool = True  # whether NaN, infinities and the like may come as floats
    gradient: bool = True  # whether the results have a derivative with respect to some input
    halves: bool = True  # whether float16 and bfloat16 are taken
    takes: tuple[str, ...] = ()
    forms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, tuple) or not all(isinstance(i, Input) for i in self.inputs):
            raise ArgumentError(
                f"Operator {self.name}: inputs: got {short(self.inputs)}, expected a tuple of Inputs, "
                'such as (Input("x", "rows columns"),)'
            )
        if missing := [size for size in self.sizes if size not in self.fields]:
            raise ArgumentError(
                f"Operator {self.name}: fields: {missing[0]} has no value there, expected a default size"
            )

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the fields that are sizes."""
        found = [f for i in self.inputs for d in i.dims.split() for f in d.split("*") if not f.isdigit()]
        return tuple(dict.fromkeys(found))

    def cases(self) -> list[Case]:
        """The case of the defaults, then the forms, named NAME.FORM."""
        return [self.case(), *(self.case(f"{self.name}.{form}", **fields) for form, fields in self.forms.items())]

    def case(self, name: str | None = None, /, **fields: Any) -> Case:
        """The case of these fields, defaults for all others. Raises ArgumentError for a field it does not have."""
        ranges = [f"{i.name}_range" for i in self.inputs if i.is_float]
        for given in fields:
            if given not in (*self.fields, *FRAMEWORK_FIELDS, *ranges):
                known = ", ".join((*self.fields, *FRAMEWORK_FIELDS, *ranges))
                raise ArgumentError(f"field {given}: {self.name} has no such field, expected one of {known}")
        for size in self.sizes:
            value = fields.get(size, self.fields[size])
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ArgumentError(f"field {size}: got {short(value)}, expected a size of 0 or more")
        whole = {**self.fields, "dtype": "float32", "seed": 0, **fields}
        dtypes.as_dtype(whole["dtype"])
        return Case(name or self.name, self, whole)


@dataclass(frozen=True)
class Case:
    """An operator with values for all its fields: what one check works on."""

    name: str
    operator: Operator
    fields: Mapping[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """The fields that the functions take."""
        aside = {*self.operator.sizes, *FRAMEWORK_FIELDS} - {*self.operator.takes}
        return {k: v for k, v in self.fields.items() if k not in aside and k in self.operator.fields}

    def arrays(self) -> list[Array]:
        """The arguments, the same in every process: each has a stream of its own, of the seed and the input's name."""
        return [self._array(i) for i in self.operator.inputs]

    def _array(self, given: Input) -> Array:
        streams = map(stream_number, (self.operator.name, given.name))
        rng = np.random.default_rng([int(self.fields["seed"]), *streams])
        shape = given.shape(self.fields)
        if not given.is_float:
            fill = OTHERS[given.kind] if isinstance(given.kind, str) else given.kind
            return np.asarray(fill(rng, shape, self.fields))
        limits = self.fields.get(f"{given.name}_range")
        assert isinstance(given.kind, str)
        if limits is None:
            values = FLOATS[given.kind](rng, shape, self.fields)
        else:
            low, high = limits
            values = rng.uniform(low, high, shape)
        return np.asarray(values).astype(dtypes.as_dtype(self.fields["dtype"]).numpy)

    def run(self, *arrays: Any) -> Any:
        """The results of vkdnn, for NumPy arrays or Arrays."""
        return self.operator.function(*arrays, **self.options)

    def golden(self, *arrays: Array) -> Any:
        """The results in float64. Raises ArgumentError where the operator has no twin."""
        if self.operator.golden is None:
            raise ArgumentError(f"{self.name}: {self.operator.name} has no float64 twin")
        wide = [a.astype(np.float64) if i.is_float else a for i, a in zip(self.operator.inputs, arrays, strict=True)]
        return self.operator.golden(*wide, **self.options)

    @property
    def differentiable(self) -> list[int]:
        """Numbers of the inputs that have a gradient."""
        if not self.operator.gradient:
            return []
        return [k for k, i in enumerate(self.operator.inputs) if i.is_float and i.gradient]


def stream_number(text: str) -> int:
    """A word for a generator's seed, the same in every process, that keeps streams of different names apart."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
