"""What can be seen of kernels without running them: float operations that a driver may fuse, barriers that are missing.

It must never trust the pass that decorates, nor the planner of barriers: both are looked at by other means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vkdnn.device import Prepared
from vkdnn.errors import CompileError
from vkdnn.runtime.interface import Launch, Region
from vkdnn.shader.entry import digest
from vkdnn.shader.request import label_of
from vkdnn.shader.spirv import undecorated_float_ops


@dataclass(frozen=True)
class Flaw:
    """A fault of a kernel, or between kernels, that no bit has shown yet."""

    label: str
    family: str
    schedule: str
    what: str


class Walk:
    """Looks at what was made ready, each kernel once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], str | None] = {}

    @property
    def kernels(self) -> int:
        """How many kernels were looked at."""
        return len(self._known)

    def flaws(self, made: Iterable[Prepared]) -> list[Flaw]:
        """What is wrong with kernels and recordings."""
        found: dict[Flaw, None] = {}
        for ready in made:
            for task, schedule, launch in zip(ready.tasks, ready.schedules, ready.launches, strict=True):
                if text := self._trouble(launch.spirv, ready.fma):
                    found[Flaw(label_of(task.spec.text()), type(task.spec).__name__, str(schedule), text)] = None
            for flaw in _unordered(ready):
                found[flaw] = None
        return list(found)

    def _trouble(self, spirv: bytes, fma: bool) -> str | None:
        key = digest(spirv), fma
        if key not in self._known:
            self._known[key] = fusible(spirv, fma)
        return self._known[key]


def fusible(spirv: bytes, fma: bool = False) -> str | None:
    """Which float operation of a module a driver may fuse; None if none. ``fma``: whether its strategies need fma()."""
    try:
        bare = undecorated_float_ops(np.frombuffer(spirv, "<u4").tolist(), fused=fma)
    except (CompileError, ValueError) as error:
        return str(error)
    if not bare:
        return None
    first, more = bare[0], f", and {len(bare) - 1} more have none" if len(bare) > 1 else ""
    return f"{first.name} %{first.result_id} at word {first.word} of its SPIR-V has no NoContraction{more}"


# ---- barriers


def _unordered(ready: Prepared) -> list[Flaw]:
    """Launches that touch what others have touched since the last barrier that was recorded."""
    found, start = [], 0
    for recording in ready.recordings:
        plan = list(recording.plan)
        launches = ready.launches[start : start + len(plan)]
        for early, late, why in conflicts(launches, plan):
            task, schedule = ready.tasks[start + late], ready.schedules[start + late]
            what = (
                f"no barrier between kernel {start + early + 1} ({label_of(ready.tasks[start + early].spec.text())}) "
                f"and kernel {start + late + 1}, which {why}"
            )
            found.append(Flaw(label_of(task.spec.text()), type(task.spec).__name__, str(schedule), what))
        start += len(plan)
    return found


def conflicts(launches: Sequence[Launch], plan: Sequence[bool]) -> list[tuple[int, int, str]]:
    """Pairs of launches that a plan of barriers leaves unordered although one writes what the other touches."""
    found, first = [], 0
    for late, (launch, barrier) in enumerate(zip(launches, plan, strict=True)):
        first = late if barrier else first
        for early in range(first, late):
            before = launches[early]
            if _meet(before.writes, launch.reads):
                found.append((early, late, "reads what it writes"))
            elif _meet(before.writes, launch.writes):
                found.append((early, late, "writes where it writes"))
            elif _meet(before.reads, launch.writes):
                found.append((early, late, "writes what it reads"))
    return found


def _meet(some: Sequence[Region], others: Sequence[Region]) -> bool:
    return any(a.buffer is b.buffer and a.start < b.stop and b.start < a.stop for a in some for b in others)
