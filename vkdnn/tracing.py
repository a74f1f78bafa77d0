"""Whether a transformation (jit, vjp) is tracing a function on this thread.

While one is, arrays keep their expressions when their value is read, and jitted functions are traced through.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


def active() -> bool:
    """True inside a traced function."""
    return getattr(_thread, "depth", 0) > 0


@contextmanager
def trace() -> Iterator[None]:
    """Marks a function being traced."""
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _thread.depth -= 1
