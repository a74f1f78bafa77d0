"""One case from inputs to verdicts, in this process: golden, results of each backend, rule, what is said of failures.

An exception of vkdnn or of a twin must become the verdict of its case, never end the run.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.accuracy import backends
from vkdnn.check.accuracy.analysis import axis_names, first_elements, heatmap, where
from vkdnn.check.accuracy.backends import NotHere, Results
from vkdnn.check.accuracy.cases import Spec, file_name
from vkdnn.check.accuracy.golden import Golden, provided
from vkdnn.check.accuracy.rules import Judgement, judge
from vkdnn.check.accuracy.subjects import Array, Operators
from vkdnn.check.library import OPERATORS
from vkdnn.check.operator import Case
from vkdnn.errors import VkdnnError

GOOD = ("pass", "skip")
VERDICTS = ("pass", "fail", "skip", "error", "timeout", "crash")


@dataclass(frozen=True)
class Settings:
    """What a run of cases does beside comparing; plain data, the same for every worker."""

    backends: tuple[str, ...] = ("device",)
    device: str | None = None
    save_golden: str | None = None
    load_golden: str | None = None
    dump: str | None = None
    images: str | None = None
    perf: int = 0
    """Replays to take the median of; 0 measures nothing."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def settings_from(record: Mapping[str, Any]) -> Settings:
    return Settings(**(dict(record) | {"backends": tuple(record["backends"])}))


@dataclass(frozen=True)
class Row:
    """What a backend's results came to in one case; the figures are those of its worst result."""

    case: str
    backend: str
    verdict: str
    rule: str
    key: str
    reason: str = ""
    seconds: float = 0.0
    result: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    elements: Sequence[Mapping[str, Any]] = ()
    image: str = ""
    perf: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    """What the backend ran on, with its version."""
    factor: float = 2.0

    @property
    def good(self) -> bool:
        return self.verdict in GOOD

    def record(self) -> dict[str, Any]:
        return asdict(self)


def row_from(record: Mapping[str, Any]) -> Row:
    return Row(**record)


def without_results(spec: Spec, settings: Settings, verdict: str, reason: str, seconds: float = 0.0) -> list[Row]:
    """The rows of a case that gave none."""
    rows = [Row(spec.name, b, verdict, spec.rule, spec.key, reason, seconds) for b in settings.backends]
    return [replace(row, factor=spec.factor) for row in rows]


@dataclass(frozen=True)
class Prepared:
    """A case with everything that backends are given and compared with."""

    spec: Spec
    draws: Sequence[Case]
    inputs: Sequence[list[Array]]
    golden: Golden
    reference: Results | None


def run_case(spec: Spec, settings: Settings, operators: Operators = OPERATORS) -> list[Row]:
    """Run a case on every backend of the settings; a row for each."""
    begun = time.perf_counter()
    if any(name.startswith("torch") for name in settings.backends):
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401  (beside NVIDIA's driver it has to come before Kompute)
    try:
        prepared = _prepared(spec, settings, operators)
    except Exception as error:  # a user's twin may raise anything
        return without_results(spec, settings, "error", _said(error), time.perf_counter() - begun)
    return [_row(prepared, settings, name) for name in settings.backends]


def _prepared(spec: Spec, settings: Settings, operators: Operators) -> Prepared:
    draws = spec.draws(operators)
    inputs = [case.arrays() for case in draws]
    golden = _golden(spec, settings, draws, inputs)
    reference = None
    if spec.rule == "bits":
        reference = backends.on_device(vk.device("cpu"), spec, draws, inputs)
        if not golden.names:
            golden = _without_twin(spec, draws, inputs, reference)
    return Prepared(spec, draws, inputs, golden, reference)


def _golden(spec: Spec, settings: Settings, draws: Sequence[Case], inputs: Sequence[list[Array]]) -> Golden:
    if spec.rule == "bits" and draws[0].operator.golden is None and not spec.gradient:
        return Golden([], [], None)

    def folder(name: str | None) -> Path | None:
        return None if name is None else Path(name)

    return provided(spec, draws, inputs, folder(settings.load_golden), folder(settings.save_golden))


def _without_twin(spec: Spec, draws: Sequence[Case], inputs: Sequence[list[Array]], reference: Results) -> Golden:
    """For the rule `bits` of an operator without a twin, errors are those against the reference."""
    wide = [[x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in leaves] for leaves in reference]
    return Golden(backends.names_of(spec, draws, inputs), wide, None)


def _row(prepared: Prepared, settings: Settings, name: str) -> Row:
    spec, case = prepared.spec, prepared.draws[0]
    begun = time.perf_counter()
    blank = Row(spec.name, name, "pass", spec.rule, spec.key, factor=spec.factor)
    try:
        blank = replace(blank, device=backends.place(name, settings.device))
        perf: Mapping[str, Any] = {}
        if settings.perf and name == "device":  # before anything has compiled its kernels
            from vkdnn.check.accuracy.perf import measured

            perf = measured(spec, case, prepared.inputs[0], settings.device, settings.perf)
        found = backends.results(name, spec, prepared.draws, prepared.inputs, prepared.golden, settings.device)
        if settings.dump is not None and name in ("device", "reference"):
            backends.dump(Path(settings.dump), spec, prepared.golden.names, found)
        row = replace(_judged(blank, settings, prepared, found), perf=perf)
    except NotHere as error:
        row = replace(blank, verdict="skip", reason=str(error))
    except Exception as error:
        row = replace(blank, verdict="error", reason=_said(error))
    return replace(row, seconds=time.perf_counter() - begun)


def _judged(blank: Row, settings: Settings, prepared: Prepared, found: Results) -> Row:
    spec, golden, reference = prepared.spec, prepared.golden, prepared.reference
    counts = {len(leaves) for leaves in found}
    if counts != {len(golden.names)}:
        reason = f"{sorted(counts)} results, expected {len(golden.names)}: {', '.join(golden.names)}"
        return replace(blank, verdict="fail", reason=reason)
    judged: list[tuple[str, Judgement, Array, Array]] = []
    for k, name in enumerate(golden.names):
        got, true = _stacked(found, k), _stacked(golden.true, k)
        plain = None if golden.plain is None else _stacked(golden.plain, k)
        bits = None if reference is None else _stacked(reference, k)
        judged.append((name, judge(spec.rule, got, true, plain, bits, spec.factor), got, true))
    if not judged:
        return replace(blank, verdict="error", reason="no results, so nothing was compared")
    name, worst, got, true = next((j for j in judged if not j[1].ok), None) or max(judged, key=lambda j: _weight(j[1]))
    row = replace(blank, result=name, figures=worst.figures.record())
    if worst.ok:
        return row
    axes = _axes(prepared, golden.names.index(name), got.shape)
    row = replace(
        row, verdict="fail", reason=worst.reason, where=where(worst.wrong, axes if worst.wrong.ndim else None),
        elements=[e.record() for e in first_elements(worst.wrong, got, true, worst.error)],
    )  # fmt: skip
    if settings.images is not None and worst.wrong.ndim:
        path = Path(settings.images) / f"{file_name(f'{spec.name}-{blank.backend}-{name}')}.png"
        row = replace(row, image=str(heatmap(path, worst.wrong, worst.error, f"{spec.name}: {worst.reason}", axes)))
    return row


def _stacked(parts: Sequence[list[Array]], k: int) -> Array:
    """A result of all draws; with several, they are the first axis."""
    leaves = [np.asarray(leaves[k]) for leaves in parts]
    return leaves[0] if len(leaves) == 1 else np.stack(leaves)


def _weight(judgement: Judgement) -> float:
    """How near a passing result is to failing, for the choice of the one whose figures are shown."""
    figures = judgement.figures
    if figures.plain_max is not None:
        return figures.max_abs / (figures.plain_max + 1e-37)
    return figures.max_rel


def _axes(prepared: Prepared, k: int, shape: tuple[int, ...]) -> list[str]:
    """Names of the axes of the result number ``k``."""
    spec, case = prepared.spec, prepared.draws[0]
    front = ["draw"] if spec.seeds > 1 else []
    if spec.gradient:
        given = case.operator.inputs[case.differentiable[k]]
        names = [n if not n.isdigit() else f"axis {a}" for a, n in enumerate(given.dims.split())]
    else:
        names = axis_names(case, [leaf.shape for leaf in prepared.golden.true[0]])[k]
    return front + (
        names if len(front) + len(names) == len(shape) else [f"axis {a}" for a in range(len(shape))][len(front) :]
    )


def _said(error: BaseException) -> str:
    """An exception in one line; of one that is not vkdnn's, the place where it was raised, too."""
    if isinstance(error, (VkdnnError, OSError)):
        return str(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
