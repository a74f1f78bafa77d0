"""A profile as a trace file for chrome://tracing and ui.perfetto.dev: Google's Trace Event format, complete events.

Host and device have clocks of their own: the launches of a submission are put so that the last one ends with the wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from vkdnn.profile.result import SUBMIT, Call, Profile, Stretch

HOST, DEVICE = 1, 2  # lanes
_PROCESS = 1


def trace(profile: Profile) -> dict[str, Any]:
    """The first call and those that count, with stamps, as they followed upon each other."""
    events = [_named("process_name", 0, "vkdnn"), _named("thread_name", HOST, "host")]
    events.append(_named("thread_name", DEVICE, profile.device))
    for number, call in enumerate((profile.first, *profile.calls)):
        name = "first call" if number == 0 else f"call {number}"
        events.append(_event(name, HOST, call.start, call.seconds))
        events += _call(profile, call)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"profile": profile.name}}


def write(profile: Profile, path: str | os.PathLike[str]) -> None:
    """trace() as a file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace(profile), file)


def _call(profile: Profile, call: Call) -> Iterator[dict[str, Any]]:
    for stretch in call.stretches:
        if stretch.name != SUBMIT:
            yield _event(stretch.name, HOST, stretch.start, stretch.seconds)
            continue
        began = stretch.stop - stretch.device_seconds
        yield _event("submit", HOST, stretch.start, began - stretch.start)
        yield _event("wait", HOST, began, stretch.device_seconds)
        yield from _launches(profile, stretch, began)


def _launches(profile: Profile, stretch: Stretch, began: float) -> Iterator[dict[str, Any]]:
    for number, ran in enumerate(stretch.launches):
        kernel = profile.kernels[ran.kernel]
        rates = {
            "GFLOP/s": round(kernel.cost.flops / ran.seconds / 1e9, 3) if ran.seconds else None,
            "GB/s": round(kernel.cost.bytes / ran.seconds / 1e9, 3) if ran.seconds else None,
        }
        more = {"launch": number, "kernel": kernel.title, "schedule": kernel.schedule, **rates}
        yield _event(kernel.family, DEVICE, began + ran.start, ran.seconds, more)


def _event(name: str, lane: int, start: float, seconds: float, more: dict[str, Any] | None = None) -> dict[str, Any]:
    event = {"ph": "X", "pid": _PROCESS, "tid": lane, "name": name, "ts": 1e6 * start, "dur": 1e6 * max(0.0, seconds)}
    return event | ({"args": more} if more else {})


def _named(what: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": lane, "name": what, "args": {"name": name}}
