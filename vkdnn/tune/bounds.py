"""What the cost model says before anything is timed: the least time that a kernel, or a schedule of it, can take.

A bound must be one: a schedule is left out only if it cannot win, never because it looks slow.
"""

from __future__ import annotations

import math
from typing import Any

from vkdnn.device import VulkanDevice
from vkdnn.errors import MemoryLimitError
from vkdnn.kernels.base import Cost, KernelSpec
from vkdnn.profile.awake import on_hardware
from vkdnn.profile.ceilings import Ceilings, measured
from vkdnn.schedules import scheduled

# Operations that one invocation does in a second at most. On a graphics card one a cycle, below 4 GHz; on a processor
# two vector units may do a lane's operations at once, below 6 GHz.
_RATE = {"software": 12e9}
_HARDWARE_RATE = 4e9
# Costs count a function such as exp by its weight, which is about right: a bound must be passed by so much to count.
_MARGIN = 2.0
_CACHED = 1 << 28  # bytes below which a kernel may run in a cache, faster than memory
_NEAR = 0.95  # of the bandwidth of copying: nothing worth having is left


def too_few(kind: str, spec: KernelSpec, sizes: tuple[int, ...], schedule: Any, best: float) -> str:
    """Why a schedule cannot win against one that takes ``best`` seconds; empty if it may.

    Each of its invocations has to do its share of the operations, one after the other.
    """
    local = spec.context(schedule).get("local_size")
    if local is None:
        return ""
    invocations = math.prod(spec.groups(sizes, schedule)) * math.prod(local)
    share = spec.cost(sizes).flops / max(1, invocations)
    least = share / _RATE.get(kind, _HARDWARE_RATE)
    if least < _MARGIN * best:
        return ""
    return (
        f"cannot win: {invocations:,} invocations with {share:,.0f} operations each, at least {1e3 * least:.3g} ms; "
        f"the default takes {1e3 * best:.3g} ms"
    )


def at_the_ceiling(cost: Cost, seconds: float, ceilings: Ceilings | None) -> str:
    """Why no schedule can be better than one that takes so long; empty if one may."""
    if ceilings is None or cost.bytes < _CACHED:
        return ""
    share = cost.bytes / ceilings.bytes_per_s / seconds
    return f"cannot win: the default moves its bytes at {share:.0%} of the rate of copying" if share >= _NEAR else ""


def ceilings_of(device: VulkanDevice) -> Ceilings | None:
    """What a graphics card can do at best; None of others, whose caches blur it, and where there is no room."""
    if not on_hardware(device):
        return None
    try:
        with scheduled(lambda spec, legal: legal[0]):  # what measures is not tuned
            return measured(device)
    except MemoryLimitError:
        return None
