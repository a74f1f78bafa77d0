"""Keeping a graphics card at its full clock: with little to do it lowers it, and then everything takes longer.

Seen on an H200 that was given a kernel of 0.14 ms each millisecond: from 1,980 to 345 MHz within three seconds, and a
copy at a third of its bandwidth; a load brings the clock back within half a second, where it stays for some seconds.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable

import numpy as np

from vkdnn.array import Array, array
from vkdnn.device import Device, Run, prepared
from vkdnn.ops.create import arange
from vkdnn.ops.reduce import sum as sum_
from vkdnn.transform import jit

CHAINS, LENGTH = 4, 10  # independent chains an element, so that one hides the other's latency; they fit in one kernel
_NUMBERS, _REPEATS = 2**26, 64  # of a load: some 13 ms on an H200
_SHORTEST, _LONGEST = 0.5, 3.0  # seconds
_STEADY = 5  # loads in a row that are no faster than the best before

_loads: weakref.WeakKeyDictionary[Device, Run] = weakref.WeakKeyDictionary()


def on_hardware(device: Device) -> bool:
    """Whether it is a graphics card rather than a processor that plays one."""
    return device.kind not in ("software", "reference")


def awake(device: Device) -> None:
    """Give a graphics card work on registers until it does it as fast as it can. Other devices are let alone."""
    if not on_hardware(device):
        return
    load = _loads.get(device)
    if load is None:
        load = _loads[device] = _load(device)
    begun, best, steady = time.perf_counter(), math.inf, 0
    while True:
        start = time.perf_counter()
        load()
        now = time.perf_counter()
        steady = steady + 1 if now - start > 0.98 * best else 0
        best = min(best, now - start)
        if now - begun > (_SHORTEST if steady >= _STEADY else _LONGEST):
            return


def _load(device: Device) -> Run:
    with prepared() as log, device:
        jit(chains(_NUMBERS))(array(np.zeros(1, np.float32)))
    return device.prepare([*log[-1].tasks] * _REPEATS, [], [])


def chains(count: int) -> Callable[[Array], Array]:
    """A function whose work is on registers alone: numbers made there, multiplied and added, summed up."""

    def function(x: Array) -> Array:
        numbers = arange(count).astype("float32") + x
        made = [numbers * 0.5 + float(c) for c in range(1, CHAINS + 1)]
        for _ in range(LENGTH - 1):
            made = [y * 0.5 + 1.0 for y in made]
        return sum_((made[0] + made[1]) + (made[2] + made[3]))

    return function
