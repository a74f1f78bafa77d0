"""What parity runs: operations with their gradients, groups of the grid, training steps, each on several inputs.

It must never look at a result, nor give two devices different inputs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

import vkdnn as vk
from vkdnn import checkpoint, dtypes, tracing, tree
from vkdnn.check.grid import Group
from vkdnn.check.hard import HARD_FLOATS
from vkdnn.check.operator import FLOATS, OTHERS, Array, Case
from vkdnn.check.steps import believed, words
from vkdnn.device import Device, ReferenceDevice, VulkanDevice
from vkdnn.errors import ArgumentError
from vkdnn.ir.arguments import short
from vkdnn.ir.node import leaf, toposort
from vkdnn.ops.elementwise import stop_gradient
from vkdnn.shader.entry import digest
from vkdnn.train import Job, Trainer, sample_text
from vkdnn.train.models import MODELS, make_config
from vkdnn.transform import Jitted

Results = dict[str, dict[str, Array]]
"""Name of the inputs -> name of a result -> values."""

LIGHT = 24  # nodes of an operation that is run with others
RANDOM, WIDE, HARD = "random", "wide", "hard"
"""Inputs: ordinary; with zeros of both signs, subnormals, ties and huge values among them; with NaN and infinities."""


class Session(Protocol):
    """A work made ready on a device."""

    def run(self) -> Results:
        """All results, of the same recordings each time where the work allows it."""

    def expected(self) -> Results | None:
        """The results of the reference, by the kernels that run() has made ready; None where it has to run itself."""


class Subject(Protocol):
    """What can be run on a device and compared."""

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...

    def digests(self) -> dict[str, list[str]]:
        """SHA-256 of each array of the inputs, by their name."""

    def session(self, device: Device) -> Session: ...


@dataclass(frozen=True, eq=False)
class Work:
    """A function of arrays that gives results by name, and inputs for it by name, all of the same shapes and dtypes."""

    name: str
    group: str
    inputs: Mapping[str, Sequence[Array]]
    function: Callable[..., dict[str, Any]]
    light: bool = False
    """Whether it is so small that it is better run with others."""

    def digests(self) -> dict[str, list[str]]:
        with quiet():
            return {name: [checkpoint.digest([x]) for x in arrays] for name, arrays in self.inputs.items()}

    def session(self, device: Device) -> Session:
        return _FunctionSession(self, device)


class _FunctionSession:
    def __init__(self, work: Work, device: Device):
        self.work, self.device = work, device
        self.compiled = vk.jit(lambda *arrays: work.function(*arrays))
        self.traced = True
        self.names: list[str] = []

    def run(self) -> Results:
        with self.device, quiet():
            return {name: self._results(arrays) for name, arrays in self.work.inputs.items()}

    def expected(self) -> Results | None:
        if not self.traced:
            return None
        found: Results = {}
        with quiet():
            for name, arrays in self.work.inputs.items():
                with self.device:
                    program = self.compiled.program(*arrays)
                with vk.device("cpu"):
                    values = believed(program, [words(vk.array(a)) for a in arrays])
                found[name] = dict(zip(self.names, values, strict=True))
        return found

    def _results(self, arrays: Sequence[Array]) -> dict[str, Array]:
        found = None
        if self.traced:
            try:
                found = self.compiled(*arrays)
            except ArgumentError:  # a function that reads values
                self.traced = False
        if found is None:
            found = self.work.function(*map(vk.array, arrays))
            vk.realize(list(found.values()))
        self.names = sorted(found)  # the order in which a tree is flattened
        return {name: found[name].numpy() for name in self.names}


@contextmanager
def quiet() -> Iterator[None]:
    """Within, NumPy says nothing of overflows and invalid values: they are among the cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with np.errstate(all="ignore"):
            yield


def fresh(device: Device) -> Device:
    """The same device as another object: what is compiled for it is traced and recorded anew."""
    if isinstance(device, VulkanDevice):
        return VulkanDevice(device.opened)
    return ReferenceDevice() if isinstance(device, ReferenceDevice) else device


# ---- operations


def of_case(case: Case, gradient: bool = True) -> Work:
    """An operation's results and, with random weights for them, the gradients of its inputs."""
    arrays, inputs = _arrays(case), case.operator.inputs
    function, slopes = _plain(case), case.differentiable if gradient else []
    results, nodes = _traced(case.name, function, arrays)
    shapes = [(x.shape, x.dtype) for x in results if x.dtype.category == "f"] if slopes else []
    kinds = [i.is_float for i in inputs] + [True] * len(shapes)
    whole = [*arrays, *(_rng(case, k).standard_normal(s).astype(d.numpy) for k, (s, d) in enumerate(shapes, 100))]

    def values(name: str) -> tuple[Array, ...]:
        if name == RANDOM:
            return tuple(whole)
        pairs = enumerate(zip(whole, kinds, strict=True))
        return tuple(hard_floats(_rng(case, k, name), x, name == HARD) if hard else x for k, (x, hard) in pairs)

    def run(*given: Any) -> dict[str, Any]:
        xs, weights = list(given[: len(arrays)]), given[len(arrays) :]
        if not shapes:
            return _named(function(*xs))
        kept: list[Any] = []

        def floats(*chosen: Any) -> list[Any]:
            whole = list(xs)
            for number, x in zip(slopes, chosen, strict=True):
                whole[number] = x
            kept.append(_named(function(*whole)))
            return [x for x in kept[-1].values() if x.dtype.category == "f"]

        _, pull = vk.vjp(floats, *(xs[number] for number in slopes))
        gradients = pull(list(weights))
        return kept[-1] | {f"gradient of {inputs[n].name}": g for n, g in zip(slopes, gradients, strict=True)}

    hard = case.operator.hard and any(i.is_float for i in inputs)
    names = (RANDOM, WIDE, HARD) if hard else (RANDOM,)
    return Work(case.name, case.operator.group, {name: values(name) for name in names}, run, nodes <= LIGHT)


def _plain(case: Case) -> Callable[..., Any]:
    """What a case runs; a jitted function without its traces, which belong to devices."""
    function, options = case.operator.function, case.options
    if isinstance(function, Jitted):
        function = function.function
    return lambda *xs: function(*xs, **options)


def _named(results: Any) -> dict[str, Any]:
    """The arrays among results, by their place in the tree."""
    leaves = zip(tree.paths(results), tree.flatten(results)[0], strict=True)
    return {f"result {path}".rstrip(): x for path, x in leaves if isinstance(x, vk.Array)}


def _arrays(case: Case) -> list[Array]:
    """The arguments of a case, but that plain inputs of one kind, place and shape are the same for all operations."""
    found = case.arrays()
    for k, (given, x) in enumerate(zip(case.operator.inputs, found, strict=True)):
        if isinstance(given.kind, str) and f"{given.name}_range" not in case.fields:
            values = (FLOATS | OTHERS)[given.kind](_rng(case, k, given.kind), x.shape, case.fields)
            found[k] = np.asarray(values).astype(x.dtype)
    return found


def _rng(case: Case, place: int, what: str = "") -> np.random.Generator:
    return np.random.default_rng([int(case.fields["seed"]), place, *what.encode()])


def _traced(name: str, function: Callable[..., Any], arrays: Sequence[Array]) -> tuple[list[Any], int]:
    """The results of a function, traced (computed where that cannot be), and the number of their nodes.

    Raises ArgumentError for a function without any: nothing could be compared.
    """
    nodes = 0
    with vk.device("cpu"):
        try:
            with tracing.trace():
                found = function(*(vk.Array(leaf(a.shape, dtypes.of_numpy(a))) for a in arrays))
        except ArgumentError:
            found, nodes = function(*map(vk.array, arrays)), LIGHT + 1
    results = list(_named(found).values())
    if not results:
        raise ArgumentError(f"{name} gives no array of vkdnn (it gave {short(found)}), so nothing can be compared")
    return results, nodes or len(toposort(x.node for x in results))


def hard_floats(rng: np.random.Generator, like: Array, infinite: bool) -> Array:
    """Hard values in about half of an array's places, with NaN and infinities or without; some values twice."""
    if like.dtype == np.float32:
        pool = HARD_FLOATS
    else:
        pool = rng.integers(0, 1 << 16, 512, dtype=np.uint16).view(like.dtype)
    pool = pool[np.isfinite(pool.astype(np.float32))]
    found = np.where(rng.random(like.shape) < 0.5, rng.choice(pool, like.shape), like).astype(like.dtype)
    if infinite:
        special = np.array([np.nan, np.inf, -np.inf, -0.0]).astype(like.dtype)
        found = np.where(rng.random(like.shape) < 0.25, rng.choice(special, like.shape), found).astype(like.dtype)
    ties = rng.random(like.shape) < 0.2
    return np.where(ties, np.roll(found, 1), found).astype(like.dtype)


# ---- the grid


def of_group(group: Group) -> Work:
    """A group of the grid."""

    def run(*arrays: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, results in zip(group.names, group.function(*arrays), strict=True):
            leaves = zip(tree.paths(results), tree.flatten(results)[0], strict=True)
            found |= {f"{name} {path}".rstrip(): x for path, x in leaves}
        return found

    # Rows of the op table come in several groups of a length.
    few = f" {group.names[0]}" if group.family.startswith("rows") else ""
    return Work(
        f"grid:{slug(group.family)} {group.length}{few}", f"grid:{slug(group.family)}", {HARD: group.arrays}, run
    )


def slug(family: str) -> str:
    """The name of a family of the grid on a command line."""
    return family.replace(" ", "-")


# ---- several at once


def together(works: Sequence[Work]) -> Work:
    """Several works as one, whose results bear numbers: one Program where each would be one.

    Equal inputs are one argument, which all of them read, so that operations of one shape share kernels.
    """
    names = list(dict.fromkeys(name for w in works for name in w.inputs))
    places: dict[Any, int] = {}
    columns: list[list[Array]] = []
    of_work: list[list[int]] = []
    for work in works:
        plain = next(iter(work.inputs.values()))
        numbers = []
        for k in range(len(plain)):
            column = [work.inputs.get(name, plain)[k] for name in names]
            key = (plain[k].shape, plain[k].dtype.name, b"|".join(x.tobytes() for x in column))
            numbers.append(places.setdefault(key, len(columns)))
            if numbers[-1] == len(columns):
                columns.append(column)
        of_work.append(numbers)
    uses = Counter(k for numbers in of_work for k in numbers)

    def run(*arrays: Any) -> dict[str, Any]:
        # A row of its own, which elementwise kernels that read it can join.
        given = [stop_gradient(x) if uses[k] > 1 else x for k, x in enumerate(arrays)]
        found: dict[str, Any] = {}
        for number, (work, numbers) in enumerate(zip(works, of_work, strict=True)):
            results = work.function(*(given[k] for k in numbers))
            found |= {f"{number}|{name}": x for name, x in results.items()}
        return found

    inputs = {name: [column[row] for column in columns] for row, name in enumerate(names)}
    return Work(" + ".join(w.name for w in works), works[0].group, inputs, run)


def apart(results: Results, works: Sequence[Work]) -> list[Results]:
    """The results of each of several works, from those of together()."""
    found: list[Results] = [{name: {} for name in work.inputs} for work in works]
    for name, values in results.items():
        for whole, x in values.items():
            number, _, plain = whole.partition("|")
            if name in found[int(number)]:
                found[int(number)][name][plain] = x
    return found


# ---- models


@dataclass(frozen=True)
class ModelWork:
    """Training steps of a model: after each, its loss, parameters and the optimizer's state."""

    name: str
    job: Job
    steps: int = 2
    group: str = "models"

    def digests(self) -> dict[str, list[str]]:
        return {"job": [digest(repr(asdict(self.job)))]}

    def session(self, device: Device) -> Session:
        return _ModelSession(self, device)


class _ModelSession:
    def __init__(self, work: ModelWork, device: Device):
        self.work, self.device = work, device

    def expected(self) -> Results | None:
        return None

    def run(self) -> Results:
        trainer, found = Trainer(self.work.job, sample_text(), self.device), {}
        for number in range(1, self.work.steps + 1):
            loss = trainer.step()
            leaves = zip(tree.paths(trainer.whole), tree.flatten(trainer.whole)[0], strict=True)
            values = {name: x.numpy() for name, x in leaves}
            found[f"step {number}"] = {"loss": np.float32(loss), **values}
        return found


def of_model(name: str, steps: int = 2) -> ModelWork:
    """Training steps of ``rapt`` or ``gpt``, small. Raises ArgumentError for another name."""
    if name not in MODELS:
        raise ArgumentError(f"target: no model {name!r}, expected one of {', '.join(f'model:{m}' for m in MODELS)}")
    sizes = {"width": 16, "layers": 1, "heads": 2, "hidden": 32}
    sizes |= {"key_width": 8, "value_width": 8} if name == "rapt" else {}
    job = Job(make_config(name, sizes), steps=max(steps, 1), batch=2, length=32, learning_rate=1e-2)
    return ModelWork(f"model:{name}", job, steps)
