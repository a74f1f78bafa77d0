"""How long a case takes on a device: cold, with everything compiled anew, and hot, a Program replayed.

It must say which clock it read: that of the device (launches alone) or that of the wall (with submission and wait).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import vkdnn as vk
from vkdnn.check.accuracy.cases import Spec
from vkdnn.check.accuracy.subjects import Array, subject
from vkdnn.check.operator import Case
from vkdnn.profile.ceilings import seconds_of


def measured(spec: Spec, case: Case, arrays: list[Array], device: str | None, replays: int) -> dict[str, Any]:
    """Milliseconds: ``cold_ms`` of the first run by the wall clock, from the graph to the results with compilation and
    without the store; ``hot_ms``, the median of ``replays`` of the Program, by ``clock``."""
    run = subject(spec.gradient)
    place = vk.device(device)
    with place:
        given = [vk.array(a) for a in arrays]
        jitted = vk.jit(lambda *xs: run(case, list(xs))[1])
        with _without_store(), place.timing() as watch:
            begun = time.perf_counter()
            _wait(jitted(*given))
            cold = time.perf_counter() - begun
            times = [seconds_of(lambda: jitted(*given), watch) for _ in range(max(1, replays))]
    clock = "wall" if watch is None else "device"
    return {"cold_ms": 1e3 * cold, "hot_ms": 1e3 * statistics.median(times), "clock": clock, "replays": len(times)}


def _wait(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, vk.Array):
            result.numpy()


@contextmanager
def _without_store() -> Iterator[None]:
    """Within, no compiled shader is found on disk."""
    before = os.environ.get("VKDNN_CACHE_DISABLE")
    os.environ["VKDNN_CACHE_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["VKDNN_CACHE_DISABLE"]
        else:
            os.environ["VKDNN_CACHE_DISABLE"] = before
