"""Which of its legal schedules a kernel takes on a Vulkan device: one that is asked for, the tuned one, the default.

No bit depends on it; nothing here runs or times a kernel.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from vkdnn.errors import ArgumentError
from vkdnn.kernels.base import KernelSpec
from vkdnn.schedules.winners import Winners

__all__ = ["Choice", "Winners", "asked", "current_choice", "generation", "outdate", "pick", "scheduled"]

Choice = Callable[[KernelSpec, Sequence[Any]], Any]
"""Of a spec and its legal schedules on a device, the default first, the one to take."""

_choice: ContextVar[Choice | None] = ContextVar("choice", default=None)
_generations = itertools.count(1)
_generation = 0
_ASKED = {"": None, "0": False, "1": True}


@contextmanager
def scheduled(choice: Choice | None) -> Iterator[None]:
    """Within, Programs are made ready on Vulkan devices with the schedules of ``choice``; None: as anywhere else."""
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


def current_choice() -> Choice | None:
    """What takes the schedules here and now; None: tuned ones, or the defaults."""
    return _choice.get()


def pick(spec: KernelSpec, sizes: tuple[int, ...], legal: Sequence[Any], winners: Winners | None) -> Any:
    """The schedule of a kernel here and now, out of its legal ones."""
    choice = _choice.get()
    if choice is not None:
        return choice(spec, legal)
    tuned = winners.find(spec, sizes, legal) if winners is not None and len(legal) > 1 else None
    return legal[0] if tuned is None else tuned


def asked() -> bool | None:
    """VKDNN_AUTOTUNE: whether kernels are to be tuned (1), their tuned schedules left aside (0), or neither (None).

    Raises ArgumentError for anything else.
    """
    text = os.environ.get("VKDNN_AUTOTUNE", "").strip()
    if text not in _ASKED:
        raise ArgumentError(
            f"VKDNN_AUTOTUNE is {text!r}, expected 1 (tune kernels that are not yet), 0 (leave tuned schedules aside) "
            "or nothing (use them)"
        )
    return _ASKED[text]


def generation() -> int:
    """Of recordings: those of another one are made anew when they are wanted again."""
    return _generation


def outdate() -> None:
    """Programs that are ready are made ready anew, with the schedules of then."""
    global _generation
    _generation = next(_generations)
