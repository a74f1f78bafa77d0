"""What a command line names for gradcheck, made into subjects: operations, and things of a user's modules.

It must never trace a function before its turn comes: there are hundreds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from vkdnn.aot.targets import find_value
from vkdnn.check.gradcheck_points import Options
from vkdnn.check.gradcheck_report import NONE, Part, Report
from vkdnn.check.gradcheck_run import case_subject, check_all, find_subject
from vkdnn.check.operator import Case, Operator
from vkdnn.check.subjects import Subject
from vkdnn.check.targets import function_case, resolve
from vkdnn.device import Device

TOGETHER = 16  # subjects that share a Program
COMPOSED = ("layers", "models")


@dataclass(frozen=True)
class Target:
    """Something to check: its name and group, and how its subject and the line that checks it again are made.

    ``make`` is None for what has no gradient.
    """

    name: str
    group: str
    make: Callable[[], tuple[Subject, str]] | None


def targets(names: Sequence[str], shapes: Sequence[str] = (), every: bool = False, seed: int = 0) -> list[Target]:
    """The targets of names, as vkdnn.check.targets.resolve() knows them; of ``module:thing`` also a pair (forward, vjp)
    of NumPy functions, a torch.autograd.Function, a torch.nn.Module, an Operator or a Case.

    Raises ArgumentError for what there is not.
    """
    found: list[Target] = []
    plain = [n for n in names if ":" not in n]
    if plain or every or not names:
        found += [_of_case(_seeded(case, seed), f"vkdnn gradcheck {case.name}") for case in resolve(plain, (), every)]
    return found + [_of_thing(n, find_value(n), shapes, seed) for n in dict.fromkeys(names) if ":" in n]


def _seeded(case: Case, seed: int) -> Case:
    return replace(case, fields={**case.fields, "seed": seed}) if seed else case


def _of_case(case: Case, again: str) -> Target:
    make = (lambda: (case_subject(case), again)) if case.differentiable else None
    return Target(case.name, case.operator.group, make)


def _of_thing(name: str, thing: Any, shapes: Sequence[str], seed: int) -> Target:
    again = " ".join(["vkdnn gradcheck", name, *(f"--shape {shlex.quote(s)}" for s in shapes)])
    if isinstance(thing, Operator):
        thing = thing.case()
    if isinstance(thing, Case):
        return _of_case(_seeded(thing, seed), again)
    arrays = _seeded(function_case(name, lambda: None, shapes), seed).arrays()
    return Target(name, "functions", lambda: (find_subject(thing, arrays, name=name)[0], again))


def check_targets(
    found: Sequence[Target], device: Device, options: Options, second_order: bool = False
) -> Iterator[Report]:
    """The reports of targets, in order; some of them share Programs. See vkdnn.check.gradcheck().

    Of more targets than share a Program one in four runs under other schedules, too, and none of the groups COMPOSED:
    their kernels are those of the others.
    """
    many = len(found) > TOGETHER
    for _, same in groupby(found, lambda t: t.group):
        group = list(same)
        own = replace(options, schedules=0 if group[0].group in COMPOSED else 4) if many else options
        for first in range(0, len(group), TOGETHER):
            chunk = group[first : first + TOGETHER]
            with device:
                subjects = [t.make() for t in chunk if t.make is not None]
            reports = iter(check_all(subjects, device, own, second_order))
            for target in chunk:
                yield next(reports) if target.make is not None else _none(target, options, second_order)


def _none(target: Target, options: Options, second_order: bool) -> Report:
    part = Part("formula", NONE, note="no gradient")
    order = 2 if second_order else 1
    return Report(target.name, options.mode, order, options.seed, None, (part,), f"vkdnn gradcheck {target.name}")
