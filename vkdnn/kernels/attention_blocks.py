"""Schedules of attention's roles "split" and "merge": few queries of many keys, block by block, then made one.

A schedule must never touch the orders of vkdnn.kernels.attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vkdnn.kernels.base import Target

INVOCATIONS = 128  # of a workgroup that has a block of keys: as many


@dataclass(frozen=True)
class SplitSchedule:
    """A workgroup has a block of keys and ``rows`` rows of the key head's queries; it stages ``stage`` columns of keys
    at a time in shared memory and has loads of ``ahead`` values under way.
    """

    rows: int
    stage: int
    ahead: int
    unroll: bool = True


@dataclass(frozen=True)
class MergeSchedule:
    """``lanes`` invocations have a row of the result and loads of ``step`` blocks under way."""

    lanes: int
    step: int


def split_schedules(target: Target, group: int, key_width: int) -> tuple[SplitSchedule, ...]:
    """Those that fit into the device's shared memory, the best first."""

    def fits(one: SplitSchedule) -> bool:
        keys, queries = one.stage * (128 + 32 // one.stage), _columns(key_width, one.stage) * one.rows
        return 4 * (keys + queries + one.rows * (144 + 17 + 1 + 128) + 2) <= target.shared_bytes

    wide, narrow = SplitSchedule(8, 16, 16), SplitSchedule(4, 16, 32)
    found = (wide, narrow) if group > 4 else (narrow, wide)
    # Compilers of software devices take long over unrolled loops.
    wanted = (replace(one, unroll=not target.software) for one in (*found, SplitSchedule(4, 32, 32)))
    return tuple(filter(fits, wanted))


def merge_schedules(target: Target, value_width: int) -> tuple[MergeSchedule, ...]:
    """Wide workgroups, whose loads are coalesced; on software devices, which load lane by lane, several columns for
    each invocation, which share what a block needs.
    """
    columns = min(128, max(32, power_of_two(value_width)))
    wide, narrow = MergeSchedule(columns, 8), MergeSchedule(max(8, columns // 8), 1)
    return (narrow, wide) if target.software else (wide, narrow)


def power_of_two(size: int) -> int:
    """The next one, not below ``size``."""
    return 1 << (size - 1).bit_length()


def context(schedule: SplitSchedule | MergeSchedule, key_width: int, value_width: int) -> dict[str, Any]:
    """What the templates get of a schedule. Where values are narrower than a workgroup of "split", it has several
    sides, each with some of the rows.
    """
    if isinstance(schedule, MergeSchedule):
        return {"local_size": (schedule.lanes, 1), "together": False, "rows": 1, **vars(schedule)}
    sides = 1
    while sides < schedule.rows and INVOCATIONS // (2 * sides) >= value_width:
        sides *= 2
    return {
        "local_size": (INVOCATIONS, 1),
        "by_blocks": True,
        "together": False,
        "step": 1,
        **vars(schedule),
        "key_columns": _columns(key_width, schedule.stage),
        "columns": INVOCATIONS // sides,
        "sides": sides,
        "each": schedule.rows // sides,
    }


def _columns(width: int, stage: int) -> int:
    """Columns of queries and keys, filled up to whole stages."""
    return -(-width // stage) * stage
