"""The exponential moving average of weights (as averaged parameters in Adam, Kingma and Ba 2015).

It must own its memory: the parameters it starts from are donated by the next training step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkdnn import tree
from vkdnn.array import Array, array, asarray
from vkdnn.errors import ArgumentError
from vkdnn.ir.arguments import settings


@dataclass(frozen=True)
class Average:
    """average' = decay average + (1 - decay) parameter, for every leaf, beginning with the parameters.

    Both are pure functions of trees; put ``update`` after the optimizer's inside vk.jit and donate the
    average.

    >>> import vkdnn as vk
    >>> ema = Average(decay=0.75)
    >>> average = ema.init({"w": vk.array([4.0])})
    >>> ema.update(average, {"w": vk.array([0.0])})["w"].item()
    3.0
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        settings(self)
        if not 0 <= self.decay < 1:
            raise ArgumentError(f"decay: got {self.decay}, expected a number in [0, 1)")

    def init(self, params: Any) -> Any:
        """A copy of the parameters, on their device."""
        return tree.map_leaves(lambda p: array(asarray(p).numpy(), device=asarray(p).device), params)

    def update(self, average: Any, params: Any) -> Any:
        """The average after one more step. Raises ArgumentError when the trees differ."""
        if tree.flatten(average)[1] != tree.flatten(params)[1]:
            raise ArgumentError("average: its tree differs from that of params; start it with init(params)")
        rest = 1.0 - self.decay

        def one(a: Array, p: Array) -> Array:
            return a * self.decay + p * rest

        return tree.map_leaves(one, average, params)
