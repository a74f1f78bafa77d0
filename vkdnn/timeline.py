"""Stretches of this thread's time by name (trace, plan, compile, record, submit, ...), told to whoever listens.

It must never hold anything back or change what it measures: with no listener a stretch costs a look at a variable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Listener = Callable[[str, float, float, Any], None]
"""Hears of a stretch when it is over: its name, its beginning and end by time.perf_counter(), and what it was about."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within, ``listener`` hears of every stretch of this thread; inner ones come first."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stretch(name: str, what: Any = None) -> Iterator[None]:
    """The time within, under a name. One that an error ends is not told."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    begun = time.perf_counter()
    yield
    listener(name, begun, time.perf_counter(), what)
