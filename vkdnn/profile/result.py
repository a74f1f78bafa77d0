"""What a profile found, as data: stretches of the host, launches of the device, kernels by their share of a step.

Nothing here measures; every figure follows from the stretches and the walls.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from vkdnn.kernels.base import Cost
from vkdnn.profile.ceilings import Ceilings

SUBMIT = "submit"


@dataclass(frozen=True)
class Kernel:
    """A kernel: what it computes and how, and the work of one launch."""

    title: str
    family: str
    spec: str
    schedule: str
    cost: Cost


@dataclass(frozen=True)
class Ran:
    """A launch: its kernel's number, its beginning and end in seconds since the first of its submission began."""

    kernel: int
    start: float
    stop: float

    @property
    def seconds(self) -> float:
        return self.stop - self.start


@dataclass(frozen=True)
class Stretch:
    """Time of the host under a name, in seconds since the profile began; of a submission also its launches."""

    name: str
    start: float
    stop: float
    launches: tuple[Ran, ...] = ()
    barriers: int = 0

    @property
    def seconds(self) -> float:
        return self.stop - self.start

    @property
    def device_seconds(self) -> float:
        """From the beginning of the first launch to the end of the last."""
        return self.launches[-1].stop - self.launches[0].start if self.launches else 0.0


@dataclass(frozen=True)
class Call:
    """A call of the function: when it began and ended, and its stretches in the order in which they began."""

    start: float
    stop: float
    stretches: tuple[Stretch, ...]

    @property
    def seconds(self) -> float:
        return self.stop - self.start

    @cached_property
    def submissions(self) -> tuple[Stretch, ...]:
        return tuple(s for s in self.stretches if s.name == SUBMIT)

    @property
    def launches(self) -> list[Ran]:
        return [ran for s in self.submissions for ran in s.launches]

    @property
    def busy(self) -> float:
        """Seconds in launches."""
        return sum(ran.seconds for ran in self.launches)

    @property
    def device_seconds(self) -> float:
        """Seconds from first launches to ends of last ones."""
        return sum(s.device_seconds for s in self.submissions)

    @property
    def submit_seconds(self) -> float:
        """Seconds in which the host submits and waits."""
        return sum(s.seconds for s in self.submissions)


@dataclass(frozen=True)
class Share:
    """A kernel in a step: how often it is launched, seconds of all its launches (median over the steps), its share of
    all kernels, and the share of those seconds that the ceilings allow at best."""

    kernel: Kernel
    launches: int
    seconds: float
    share: float
    fraction: float
    bound: str

    @property
    def flops_per_s(self) -> float:
        return self.launches * self.kernel.cost.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.launches * self.kernel.cost.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """What profile() found. ``first`` is the first call, which traces, plans and compiles; ``calls`` have stamps
    between launches; ``plain`` calls have none, and are what a user sees. Print it for a table.
    """

    name: str
    device: str
    ceilings: Ceilings
    kernels: tuple[Kernel, ...]
    first: Call
    calls: tuple[Call, ...]
    plain: tuple[Call, ...]

    @property
    def wall(self) -> float:
        """Seconds of a call as a user sees it."""
        return statistics.median(c.seconds for c in self.plain)

    @property
    def busy(self) -> float:
        """Seconds of it in kernels."""
        return statistics.median(c.busy for c in self.calls)

    @property
    def busy_share(self) -> float:
        """The share of the wall time in which the device computes, at most 1: launches that could overlap are timed
        apart."""
        return min(1.0, self.busy / self.wall)

    @property
    def gaps(self) -> dict[str, float]:
        """Where the rest of a call goes, in seconds: between launches on the device, around the launches of submissions
        (their way there and back, with what they carry), and in the host's own work."""
        between = statistics.median(c.device_seconds - c.busy for c in self.calls)
        submitted = statistics.median(c.submit_seconds for c in self.plain)
        host = statistics.median(c.seconds - c.submit_seconds for c in self.plain)
        return {
            "between launches": between,
            "submitting": max(0.0, submitted - between - self.busy),
            "host": host,
        }

    @property
    def submissions(self) -> int:
        return len(self.calls[-1].submissions)

    @property
    def dispatches(self) -> int:
        return len(self.calls[-1].launches)

    @property
    def barriers(self) -> int:
        return sum(s.barriers for s in self.calls[-1].submissions)

    def shares(self) -> list[Share]:
        """Every kernel of a step, the one that takes most first."""
        seconds, counts = self._totals()
        whole = sum(seconds.values())
        found = []
        for number, took in sorted(seconds.items(), key=lambda item: -item[1]):
            kernel, count = self.kernels[number], counts[number]
            flops, moved = count * kernel.cost.flops, count * kernel.cost.bytes
            fraction = self.ceilings.seconds(flops, moved) / took if took else 0.0
            share = took / whole if whole else 0.0
            found.append(Share(kernel, count, took, share, fraction, self.ceilings.bound(flops, moved)))
        return found

    def families(self) -> dict[str, float]:
        """Of each kernel family its share of the time in kernels, the largest first."""
        found: dict[str, float] = {}
        for s in self.shares():
            found[s.kernel.family] = found.get(s.kernel.family, 0.0) + s.share
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def fraction(self) -> float:
        """What the ceilings allow all kernels of a step at best, as a share of the time in kernels."""
        ideal = sum(s.fraction * s.seconds for s in self.shares())
        return ideal / self.busy if self.busy else 0.0

    def record(self) -> dict[str, Any]:
        """For JSON; seconds are medians of a call."""
        return {
            "name": self.name,
            "device": self.device,
            "ceilings": self.ceilings.record(),
            "calls": len(self.calls),
            "wall_s": self.wall,
            "busy_s": self.busy,
            "busy_share": self.busy_share,
            "gaps_s": self.gaps,
            "roofline_fraction": self.fraction,
            "submissions": self.submissions,
            "dispatches": self.dispatches,
            "barriers": self.barriers,
            "first_call_s": {"whole": self.first.seconds, **totals(self.first.stretches)},
            "kernels": [
                {
                    **{k: v for k, v in asdict(s.kernel).items() if k != "cost"},
                    "launches": s.launches,
                    "seconds": s.seconds,
                    "share": s.share,
                    "flops": s.launches * s.kernel.cost.flops,
                    "bytes": s.launches * s.kernel.cost.bytes,
                    "roofline_fraction": s.fraction,
                    "bound": s.bound,
                }
                for s in self.shares()
            ],
        }

    def __str__(self) -> str:
        from vkdnn.profile.table import table

        return table(self)

    def _totals(self) -> tuple[dict[int, float], dict[int, int]]:
        """Of each kernel that calls launch, seconds a call (the median) and launches of the last one."""
        per: dict[int, list[float]] = {}
        for number, call in enumerate(self.calls):
            for ran in call.launches:
                per.setdefault(ran.kernel, [0.0] * len(self.calls))[number] += ran.seconds
        last = [ran.kernel for ran in self.calls[-1].launches]
        return {k: statistics.median(v) for k, v in per.items()}, {k: last.count(k) for k in per}


def totals(stretches: Sequence[Stretch]) -> dict[str, float]:
    """Seconds by name."""
    found: dict[str, float] = {}
    for s in stretches:
        found[s.name] = found.get(s.name, 0.0) + s.seconds
    return found
