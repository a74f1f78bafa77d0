"""Gradients against differences: functions of vkdnn, pairs of NumPy functions, functions and modules of PyTorch.

Three questions are asked apart: is the formula right (float64 against differences), does the device compute it
(float32 against the formula), does it give the same bits each time. What noise hides must never be called wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from vkdnn.check.gradcheck_points import Options, Point
from vkdnn.check.gradcheck_report import ERROR, NONE, OK, Part, Report, joined
from vkdnn.check.operator import Case, Operator
from vkdnn.check.subjects import Array, GraphSubject, NumpySubject, Subject, device_gradients, graph_subject
from vkdnn.check.subjects_torch import is_torch, torch_subject
from vkdnn.check.users import described, refuse_class
from vkdnn.device import Device, current_device
from vkdnn.device import device as find_device
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.ir.arguments import integers, number, short
from vkdnn.kernels.attention import AttentionSpec
from vkdnn.kernels.expr import ExprSpec
from vkdnn.schedules import Choice

MODES = ("full", "fast", "inner", "complex")


def gradcheck(
    function: Any,
    inputs: Any = None,
    *,
    vjp: Callable[..., Any] | None = None,
    mode: str = "full",
    second_order: bool = False,
    seed: int = 0,
    device: Device | str | int | None = None,
    input: str | None = None,
    index: Sequence[int] | int | None = None,
    step: float | None = None,
    rtol: float = 1e-6,
    directions: int = 5,
    complex_step: bool = False,
    name: str = "",
) -> Report:
    """Compare a gradient with differences, and report every doubt.

    ``function`` is one of vkdnn's arrays, to be differentiated by vkdnn and run on ``device``; or of NumPy arrays, with
    ``vjp(cotangent, *inputs)`` that gives the gradient of sum(result . cotangent) for each input (of several results
    the cotangent has the same tree); or a torch.autograd.Function, a torch.nn.Module or a function of tensors; or an
    Operator or Case of vkdnn.check. ``inputs`` are its arguments (none for an Operator or Case). Every function is
    evaluated in float64; results are weighted by random cotangents of ``seed``.

    Modes: "full" compares every element; "fast" takes ``directions`` random directions, and the full report if one of
    them disagrees or meets a kink; "inner" tests <J v, u> = <v, vjp(u)> for several u and v, and that vjp is linear in
    u; "complex" takes complex steps instead of differences where the function is analytic (NumPy functions by
    ``complex_step=True``). ``second_order`` checks the gradient of the gradient. ``input`` and ``index`` pick one
    element; ``step`` takes central differences of that size only. A mismatch counts above ``rtol`` of the value and
    four times the estimated error.

    Raises ArgumentError, ShapeError or DtypeError for arguments that do not fit.

    >>> import numpy as np
    >>> import vkdnn as vk
    >>> from vkdnn.check import gradcheck
    >>> gradcheck(vk.tanh, [np.array([0.1, 2.0], np.float32)]).ok
    True
    >>> report = gradcheck(np.sin, [np.ones(3)], vjp=lambda g, x: -g * np.cos(x))
    >>> report.verdict, report.worst.index
    ('failed', (0,))
    """
    if mode not in MODES:
        raise ArgumentError(f"gradcheck: mode is {short(mode)}, expected one of {', '.join(MODES)}")
    if directions < 1:
        raise ArgumentError(f"gradcheck: directions is {short(directions)}, expected 1 or more")
    at = None if index is None else (index,) if isinstance(index, int) else integers("gradcheck: index", index)
    small = 0.0 if step is None else float(number("gradcheck: step", step))
    if not (small >= 0 and math.isfinite(small) and rtol >= 0):
        raise ArgumentError(f"gradcheck: step is {short(step)} and rtol {short(rtol)}, expected numbers above 0")
    options = Options(mode, seed, directions, rtol, small, input, at)
    others = vjp is not None or isinstance(function, (tuple, list)) or is_torch(function, inputs)
    if isinstance(device, Device):
        place = device
    else:  # what is not vkdnn's needs no Vulkan
        place = find_device("cpu") if others else current_device() if device is None else find_device(device)
    with place:
        if second_order and (vjp is not None or isinstance(function, (tuple, list))):
            raise ArgumentError("gradcheck: second_order needs a vjp of the vjp; check the pair of these two instead")
        subject, again = find_subject(function, inputs, vjp, complex_step, name, seed)
    return check_all([(subject, again)], place, options, second_order)[0]


def find_subject(
    function: Any, inputs: Any, vjp: Any = None, complex_step: bool = False, name: str = "", seed: int = 0,
    narrow: bool = False,
) -> tuple[Subject, str]:  # fmt: skip
    """The subject of what gradcheck() is given, and the beginning of a line that checks it again. ``narrow``: functions
    of NumPy's and PyTorch's are evaluated in float32."""
    if isinstance(function, Operator):
        function = function.case(seed=seed)
    if isinstance(function, Case):
        if inputs is not None:
            raise ArgumentError(f"gradcheck: {function.name} brings its inputs, expected none; set fields of the case")
        return case_subject(function), f"vkdnn gradcheck {function.name}"
    if isinstance(function, (tuple, list)) and len(function) == 2 and vjp is None:
        function, vjp = function
    if not callable(function) or not (vjp is None or callable(vjp)):
        raise ArgumentError(f"gradcheck: got {short(function)}, expected a function, or a pair of it and its vjp")
    refuse_class(f"gradcheck: {name or short(function)}", function)
    if not isinstance(inputs, (list, tuple)):
        inputs = [inputs]
    if not inputs or any(x is None for x in inputs):
        raise ArgumentError("gradcheck: inputs are missing, expected a list with an array for each argument")
    if vjp is not None:
        subject: Subject = NumpySubject(function, vjp, inputs, name, complex_step, narrow)
        return subject, f"gradcheck({subject.name}, inputs, vjp=...)"
    if is_torch(function, inputs):
        subject = torch_subject(function, inputs, name, narrow)
    else:
        subject = graph_subject(function, inputs, name)
    return subject, f"gradcheck({subject.name}, inputs)"


def case_subject(case: Case) -> GraphSubject:
    """The subject of a case. Raises ArgumentError where it has no gradient."""
    if not case.differentiable:
        raise ArgumentError(f"gradcheck: {case.name} has no gradient: no float input that a float result depends on")
    subject: GraphSubject = graph_subject(case.run, case.arrays(), case.name, case.differentiable)
    subject.names = [i.name for i in case.operator.inputs]
    return subject


def check_all(
    subjects: Sequence[tuple[Subject, str]],
    device: Device,
    options: Options,
    second_order: bool = False,
    keep: bool = False,
) -> list[Report]:
    """A report for each subject, with what starts the line that checks it again; see gradcheck().

    What a function of theirs raises is raised, or with ``keep`` the verdict of its report. One Program computes the
    gradients of all subjects, on a thread of its own while differences are taken.
    """
    points: list[Point | Part] = []
    for subject, _ in subjects:
        points.append(_kept(keep, _point, subject, options.seed, second_order))
    graphs = [p for p in points if isinstance(p, Point) and isinstance(p.subject, GraphSubject)]
    with ThreadPoolExecutor(1) as other:
        running = other.submit(copy_context().run, _on_device, graphs, device, options.schedules)
        parts = [p if isinstance(p, Part) else _kept(keep, p.parts, options) for p in points]
        computed = dict(zip(map(id, graphs), running.result(), strict=True))
    found = []
    for which, given, (subject, again) in zip(points, parts, subjects, strict=True):
        own: list[Part] = [given] if isinstance(given, Part) else given
        if isinstance(which, Point):
            own[0] = replace(own[0], note=joined(own[0].note, which.subject.note))
            if id(which) in computed and own[0].verdict not in (NONE, ERROR):
                more = _kept(keep, which.device_parts, computed[id(which)], options)
                own += [more] if isinstance(more, Part) else more
        where = device.name if isinstance(subject, GraphSubject) else None
        report = Report(subject.name, options.mode, 2 if second_order else 1, options.seed, where, tuple(own), "")
        found.append(replace(report, reproduce=_again(report, again, options.step)))
    return found


def _kept(keep: bool, work: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives; with ``keep``, instead of an exception, a part that has it."""
    try:
        return work(*arguments)
    except Exception as error:  # whatever a user's function does
        if not keep:
            raise
        return error_part(error)


def error_part(error: BaseException) -> Part:
    """The part of something that could not be checked."""
    return Part("formula", ERROR, note=described(error).removeprefix("gradcheck: "))


def _point(subject: Subject, seed: int, second_order: bool) -> Point | Part:
    try:
        point = _first_point(subject, seed)
        return point.second(seed) if second_order else point
    except VkdnnError as error:
        if not second_order or isinstance(subject, NumpySubject):
            raise
        return Part("formula", NONE, note=str(error))


def _first_point(subject: Subject, seed: int) -> Point:
    """In float32 where functions of NumPy's fail in float64, and do not so."""
    try:
        return Point(subject, seed)
    except VkdnnError:
        raise
    except Exception as error:  # whatever a user's function does
        if not isinstance(subject, NumpySubject) or subject.narrow:
            raise
        try:
            return Point(subject.narrowed(), seed)
        except Exception:
            raise error from None


def _on_device(points: Sequence[Point], device: Device, apart: int) -> list[list[list[Array]] | VkdnnError]:
    """For each point its gradients: of two runs, and for every ``apart``-th of one under other schedules. An error is
    kept for its point."""
    if not points:
        return []

    def gradients(chosen: Sequence[Point], choice: Choice | None, runs: int) -> list[list[list[Array]]]:
        subjects = [p.subject for p in chosen if isinstance(p.subject, GraphSubject)]
        return device_gradients(subjects, [p.cotangents for p in chosen], device, choice, runs)

    try:
        found = [list(runs) for runs in zip(*gradients(points, None, 2), strict=True)]
        if apart:
            (others,) = gradients(points[::apart], _other_schedule, 1)
            for runs, other in zip(found[::apart], others, strict=True):
                runs.append(other)
    except VkdnnError as error:
        if len(points) == 1:
            return [error]
        return [_on_device([p], device, apart)[0] for p in points]
    return list(found)


def _other_schedule(spec: Any, legal: Sequence[Any]) -> Any:
    """Another than the best, one that software devices compile quickly. Elementwise kernels keep theirs: there is no
    order in them to get wrong."""
    if isinstance(spec, ExprSpec) or len(legal) == 1:
        return legal[0]
    return legal[-1] if isinstance(spec, AttentionSpec) else legal[1]


def _again(report: Report, again: str, step: float) -> str:
    """The line that checks the worst element again."""
    worst = report.worst
    if report.verdict == OK or worst is None:
        worst = None
    if again.startswith("vkdnn "):
        words = [again, f"--seed {report.seed}"]
        if report.mode != "full" and (worst is None or worst.index is None):
            words.append(f"--mode {report.mode}")
        if worst is not None and worst.index is not None:
            words.append(f"--input '{worst.input}'" if " " in worst.input else f"--input {worst.input}")
            words += [f"--index {','.join(map(str, worst.index))}"] if worst.index else []
        words += [f"--step {step:g}"] if step else []
        return " ".join([*words, *(["--second-order"] if report.order == 2 else [])])
    given = [f"seed={report.seed}"]
    if report.mode != "full" and (worst is None or worst.index is None):
        given.append(f"mode={report.mode!r}")
    if worst is not None and worst.index is not None:
        given += [f"input={worst.input!r}", f"index={worst.index}"]
    given += [f"step={step:g}"] if step else []
    given += ["second_order=True"] if report.order == 2 else []
    return f"vkdnn.check.{again[:-1]}, {', '.join(given)})"
