"""Levers of a model: what its gradient costs in memory and in the length of submissions.

They must never change a bit of a loss or of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vkdnn.array import Array
from vkdnn.errors import ArgumentError
from vkdnn.ir.arguments import settings
from vkdnn.remat import flush, remat


@dataclass(frozen=True)
class Levers:
    """How a model of blocks computes its gradient; the bits are those of Levers(), which does nothing.

    ``checkpoint_every``: segments of so many blocks keep their inputs alone for the gradient and are computed again,
    one after the other (vk.remat); the root of the number of blocks or less needs the least memory. ``offload``: these
    inputs wait in the host's memory; without ``checkpoint_every`` segments are single blocks then. ``flush_every``: a
    submission ends after so many blocks, forward and backward (vk.flush), so that none runs into the watchdog of a
    graphics driver. Raises ArgumentError for numbers below 1.

    >>> Levers(checkpoint_every=2, offload=True)
    Levers(checkpoint_every=2, offload=True, flush_every=None)
    """

    checkpoint_every: int | None = None
    offload: bool = False
    flush_every: int | None = None

    def __post_init__(self) -> None:
        settings(self)
        for name in ("checkpoint_every", "flush_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name}: got {value}, expected 1 or more")

    @property
    def segment(self) -> int | None:
        """Blocks of a segment; None where nothing is computed again."""
        return 1 if self.offload and self.checkpoint_every is None else self.checkpoint_every


NO_LEVERS = Levers()
"""No levers."""


def apply_blocks(
    block: Callable[[Any, Array], Array], layers: Sequence[Any], x: Array, levers: Levers = NO_LEVERS
) -> Array:
    """x through ``block(layer, x)`` for each of the parameters ``layers``, in order."""
    if not isinstance(levers, Levers):
        raise ArgumentError(f"levers: got {type(levers).__name__}, expected vk.nn.Levers")
    length = levers.segment or max(1, len(layers))

    def segment(part: Sequence[Any], x: Array, first: int) -> Array:
        for number, layer in enumerate(part, first + 1):
            x = block(layer, x)
            if levers.flush_every is not None and number % levers.flush_every == 0:
                x = flush(x)
        return x

    run = segment if levers.segment is None else remat(segment, offload=levers.offload)
    for first in range(0, len(layers), length):
        x = run(layers[first : first + length], x, first)
    return x
