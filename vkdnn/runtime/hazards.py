"""Where barriers go between launches: before each one that touches words another has touched since the last.

It must never leave a read after a write, a write after a read or a write after a write unordered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from vkdnn.runtime.interface import Launch, Region


def plan_barriers(launches: Sequence[Launch]) -> list[bool]:
    """For each launch, whether a barrier must come right before it.

    A barrier orders everything before it with everything after it, so only what came since the last one
    counts; launches that touch disjoint words, or only read the same ones, stay unordered and may overlap.
    """
    read, written = _Touched(), _Touched()
    plan: list[bool] = []
    for launch in launches:
        barrier = written.meets(launch.reads) or written.meets(launch.writes) or read.meets(launch.writes)
        if barrier:
            read, written = _Touched(), _Touched()
        plan.append(barrier)
        read.add(launch.reads)
        written.add(launch.writes)
    return plan


class _Touched:
    """A set of words of buffers, as disjoint spans in ascending order, so that long recordings stay cheap."""

    def __init__(self) -> None:
        # Buffers by identity: the launches keep them alive while this module looks at them.
        self._spans: dict[int, tuple[list[int], list[int]]] = {}

    def meets(self, regions: Iterable[Region]) -> bool:
        """Whether any region has a word in the set."""
        for region in regions:
            starts, stops = self._spans.get(id(region.buffer), ((), ()))
            place = bisect_right(stops, region.start)
            if region.start < region.stop and place < len(starts) and starts[place] < region.stop:
                return True
        return False

    def add(self, regions: Iterable[Region]) -> None:
        """Puts the regions into the set, merging spans that overlap or touch."""
        for region in regions:
            if region.start >= region.stop:
                continue
            starts, stops = self._spans.setdefault(id(region.buffer), ([], []))
            first = bisect_left(stops, region.start)
            last = bisect_right(starts, region.stop)
            start = min([region.start, *starts[first:last][:1]])
            stop = max([region.stop, *stops[first:last][-1:]])
            starts[first:last] = [start]
            stops[first:last] = [stop]
