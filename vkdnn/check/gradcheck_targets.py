"""What a command line names for gradcheck, made into subjects: operations, and things of a user's modules.

It must never trace a function before its turn comes: there are hundreds.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from vkdnn.aot.targets import find_value
from vkdnn.check.gradcheck_points import Options
from vkdnn.check.gradcheck_report import NONE, Part, Report
from vkdnn.check.gradcheck_run import case_subject, check_all, error_part, find_subject
from vkdnn.check.operator import Array, Case
from vkdnn.check.subjects import Subject
from vkdnn.check.subjects_torch import as_tensor
from vkdnn.check.targets import function_case, own_case, resolve, shape_arguments
from vkdnn.check.users import is_torch_thing, uses_torch, wants_tensors
from vkdnn.device import Device
from vkdnn.errors import ArgumentError

TOGETHER = 16  # subjects that share a Program
COMPOSED = ("layers", "models")


@dataclass(frozen=True)
class Target:
    """Something to check: its name and group, and how its subject and the line that checks it again are made.

    ``make`` is None for what has no gradient. ``device`` says whether it runs on one: pairs and PyTorch's do not.
    """

    name: str
    group: str
    make: Callable[[], tuple[Subject, str]] | None
    device: bool = True


def targets(
    names: Sequence[str], shapes: Sequence[str] = (), every: bool = False, seed: int = 0, tensors: bool = False
) -> list[Target]:
    """The targets of names, as vkdnn.check.targets.resolve() knows them; of ``module:thing`` also a pair (forward, vjp)
    of NumPy functions, a torch.autograd.Function, a torch.nn.Module or a function of tensors.

    A function is one of tensors if ``tensors``, if its annotations say so, or if its module uses PyTorch and no vkdnn.
    Raises ArgumentError for what there is not.
    """
    found: list[Target] = []
    plain = [n for n in names if ":" not in n]
    if plain or every or not names:
        found += [_of_case(_seeded(case, seed), f"vkdnn gradcheck {case.name}") for case in resolve(plain, (), every)]
    own = [n for n in dict.fromkeys(names) if ":" in n]
    return found + [_of_thing(n, find_value(n), shapes, seed, tensors) for n in own]


def _seeded(case: Case, seed: int) -> Case:
    return replace(case, fields={**case.fields, "seed": seed}) if seed else case


def _of_case(case: Case, again: str) -> Target:
    make = (lambda: (case_subject(case), again)) if case.differentiable else None
    return Target(case.name, case.operator.group, make)


def _of_thing(name: str, thing: Any, shapes: Sequence[str], seed: int, tensors: bool) -> Target:
    options = [*(f"--shape {shlex.quote(s)}" for s in shapes), *(["--torch"] if tensors else [])]
    again = " ".join(["vkdnn gradcheck", name, *options])
    if (case := own_case(name, thing)) is not None:
        return _of_case(_seeded(case, seed), again)
    pair = isinstance(thing, (tuple, list)) and len(thing) == 2
    function = thing[0] if pair else thing
    try:
        arrays = _seeded(function_case(name, function, shapes), seed).arrays()
        narrow = any(a.written and a.dtype == "float32" for a in shape_arguments(name, function, shapes))
    except ArgumentError as error:
        return Target(name, "functions", functools.partial(_refuse, error), False)
    theirs = not pair and (tensors or is_torch_thing(thing) or (callable(thing) and wants_tensors(thing)))

    def subject(given: Sequence[Any]) -> tuple[Subject, str]:
        return find_subject(thing, given, name=name, narrow=narrow)[0], again

    def make() -> tuple[Subject, str]:
        if pair or theirs:
            return subject(_tensors(arrays) if theirs else arrays)
        try:
            return subject(arrays)
        except Exception:
            if uses_torch(thing):
                with contextlib.suppress(Exception):  # then the error is that of vkdnn's arrays
                    return subject(_tensors(arrays))
            raise

    return Target(name, "functions", make, not (pair or theirs))


def _refuse(error: ArgumentError) -> tuple[Subject, str]:
    """What stands for a thing that does not fit the shapes: an error of that target alone, when its turn comes."""
    raise error


def _tensors(arrays: Sequence[Array]) -> list[Any]:
    try:
        return [as_tensor(a) for a in arrays]
    except ImportError:
        raise ArgumentError("PyTorch is not here: pip install 'vkdnn[torch]'") from None


def check_targets(
    found: Sequence[Target], device: Device, options: Options, second_order: bool = False
) -> Iterator[Report]:
    """The reports of targets, in order; some of them share Programs. See vkdnn.check.gradcheck(). What a
    function raises is the verdict of its report.

    Of more targets than share a Program one in four runs under other schedules, too, and none of the groups COMPOSED:
    their kernels are those of the others.
    """
    many = len(found) > TOGETHER
    for _, same in groupby(found, lambda t: t.group):
        group = list(same)
        own = replace(options, schedules=0 if group[0].group in COMPOSED else 4) if many else options
        for first in range(0, len(group), TOGETHER):
            chunk = group[first : first + TOGETHER]
            made: dict[str, tuple[Subject, str]] = {}
            parts: dict[str, Part] = {}
            for target in chunk:
                try:
                    with device:
                        if target.make is None:
                            parts[target.name] = Part("formula", NONE, note="no gradient")
                        else:
                            made[target.name] = target.make()
                except Exception as error:  # whatever a user's function does, the others are still checked
                    parts[target.name] = error_part(error)
            reports = iter(check_all(list(made.values()), device, own, second_order, keep=True))
            for target in chunk:
                alone = target.name not in made
                yield _of_part(target, parts[target.name], options, second_order) if alone else next(reports)


def _of_part(target: Target, part: Part, options: Options, second_order: bool) -> Report:
    order = 2 if second_order else 1
    return Report(target.name, options.mode, order, options.seed, None, (part,), f"vkdnn gradcheck {target.name}")
