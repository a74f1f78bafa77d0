"""What the cost model says before anything is timed: the least time that a kernel, or a schedule of it, can take.

A bound must be one: a schedule is left out only if it cannot win, never because it looks slow.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import numpy as np

from vkdnn.array import Array
from vkdnn.device import Place, Task, VulkanDevice
from vkdnn.dtypes import float32
from vkdnn.errors import MemoryLimitError
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.node import leaf
from vkdnn.kernels.base import Cost, KernelSpec
from vkdnn.tune.stopwatch import Stopwatch

# Operations that one invocation does in a second at most. On a graphics card one a cycle, below 4 GHz; on a processor
# two vector units may do a lane's operations at once, below 6 GHz.
_RATE = {"software": 12e9}
_HARDWARE_RATE = 4e9
# Costs count a function such as exp by its weight, which is about right: a bound must be passed by so much to count.
_MARGIN = 2.0
_CACHED = 1 << 28  # bytes below which a kernel may run in a cache, faster than memory
_NEAR = 0.95  # of the bandwidth of copying: nothing worth having is left
_COPIED = 1 << 26  # words
_WARM_SECONDS = 1.0  # of copying: graphics cards raise their clocks, and fresh memory is slow for about as long


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


def at_the_ceiling(cost: Cost, seconds: float, bandwidth: float | None) -> str:
    """Why no schedule can be better than one that takes so long; empty if one may."""
    if bandwidth is None or cost.bytes < _CACHED or cost.bytes / bandwidth < _NEAR * seconds:
        return ""
    return f"cannot win: the default moves its bytes at {cost.bytes / bandwidth / seconds:.0%} of the rate of copying"


def copy_bandwidth(device: VulkanDevice, watch: Stopwatch) -> float | None:
    """Bytes a second, read and written, of copying with a change of sign; None where caches would blur it.

    It also warms a graphics card up.
    """
    words = min(_COPIED, device.max_words)
    if device.kind == "software" or watch.clock != "device" or 8 * words < 2 * _CACHED:
        return None
    (step,) = schedule([(-Array(leaf((words,), float32))).node])
    try:
        source, result = (Place(device.allocate(words, host=False), 0, words) for _ in range(2))
    except MemoryLimitError:
        return None
    task = Task(step.spec, step.sizes, (source,), (result,))
    (launch,) = device.launches([task], [step.spec.schedules(device.target)[0]])
    begun, times = time.perf_counter(), [0.0]
    while time.perf_counter() - begun < _WARM_SECONDS:
        (times,) = watch.times([launch], 20)
    return float(np.float64(step.spec.cost(step.sizes).bytes) / statistics.median(times))
