"""What the optimizers share: a schedule of the learning rate, clipping by the global norm, walking the trees.

A setting must be refused when the optimizer is made, never in the middle of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn import dtypes, tree
from vkdnn.array import Array, array, asarray
from vkdnn.device import Device
from vkdnn.errors import ArgumentError, DtypeError
from vkdnn.ir.arguments import settings
from vkdnn.ops.elementwise import clip, cos, maximum, minimum, sqrt, where
from vkdnn.ops.reduce import sum as sum_

State = dict[str, Any]


def global_norm(grads: Any) -> Array:
    """sqrt of the sum of squares over all leaves: each leaf's sum in vkdnn's order, leaves added in tree
    order."""
    total = None
    for g in map(asarray, tree.flatten(grads)[0]):
        square = sum_(g * g)
        total = square if total is None else total + square
    if total is None:
        raise ArgumentError("grads: got a tree without leaves, expected at least one array")
    return sqrt(total)


@dataclass(frozen=True)
class Optimizer:
    """Settings of every optimizer. ``init`` and ``update`` are pure: put ``update`` inside vk.jit and donate
    its state.

    learning_rate  the highest, reached after ``warmup_steps`` linear steps from 0
    total_steps    where the cosine schedule ends, at min_ratio learning_rate; it stays there afterwards
    weight_decay   of arrays of two axes or more (matrices)
    clip_norm      gradients are scaled down to this global norm; None leaves them alone
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 0
    total_steps: int = 1000
    min_ratio: float = 0.1
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        settings(self)
        within = self.warmup_steps < self.total_steps < 2**24
        clipped = self.clip_norm is None or self.clip_norm > 0
        self._check("learning_rate", 0 <= self.learning_rate < math.inf, "zero or more")
        self._check("warmup_steps", self.warmup_steps >= 0, "zero or more")
        self._check("total_steps", within, "over warmup_steps, under 2**24")
        self._check("min_ratio", 0 <= self.min_ratio <= 1, "0 to 1")
        self._check("weight_decay", 0 <= self.weight_decay < math.inf, "zero or more")
        self._check("clip_norm", clipped, "None or a positive number")

    def _check(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise ArgumentError(f"{name}: got {getattr(self, name)}, expected {expected}")

    def init(self, params: Any) -> State:
        """The state before the first step, on the device of the parameters.

        Every array has memory of its own, so that the state can be donated.
        """
        raise NotImplementedError

    def update(self, params: Any, grads: Any, state: State) -> tuple[Any, State]:
        """One step: new parameters and state, of the same trees. ``grads`` is a tree like ``params``."""
        raise NotImplementedError

    def _state(self, state: Any, *keys: str) -> None:
        """Raise ArgumentError unless ``state`` is what init() gives."""
        if not isinstance(state, dict) or any(key not in state for key in keys):
            raise ArgumentError(
                f"state: got {type(state).__name__}, expected what {type(self).__name__}.init() or update() gave, with "
                f"{', '.join(keys)}; the order of arguments is update(params, grads, state)"
            )

    def rate(self, step: Any) -> Array:
        """The learning rate of step number ``step`` (int32, from 0)."""
        at = asarray(step).astype(dtypes.float32)
        span = float(self.total_steps - self.warmup_steps)
        done = clip((at - float(self.warmup_steps)) / span, 0.0, 1.0)
        low = self.min_ratio
        decayed = self.learning_rate * (low + (1.0 - low) * 0.5 * (1.0 + cos(done * math.pi)))
        if not self.warmup_steps:
            return decayed
        warm = self.learning_rate * minimum((at + 1.0) / float(self.warmup_steps), 1.0)
        return where(at < float(self.warmup_steps), warm, decayed)

    def _scale(self, grads: Any) -> Any:
        """The factor of the gradients: 1, or what brings their global norm down to clip_norm."""
        if self.clip_norm is None:
            return 1.0
        # maximum passes NaN on: a gradient that is NaN must show, not be scaled as if it were small.
        return self.clip_norm / maximum(global_norm(grads), self.clip_norm)

    def _decay(self, p: Any) -> float:
        return self.weight_decay if asarray(p).ndim >= 2 else 0.0


def zero_step(params: Any) -> tuple[Array, Device]:
    """The number of steps done, int32 [], and the device of the parameters."""
    leaves = tree.flatten(params)[0]
    if not leaves:
        raise ArgumentError("params: got a tree without leaves, expected at least one array")
    device = asarray(leaves[0]).device
    return array(np.zeros((), np.int32), device=device), device


def zeros_like(params: Any, device: Device) -> Any:
    """A tree like ``params`` of float32 zeros, each with memory of its own."""
    return tree.map_leaves(lambda p: array(np.zeros(asarray(p).shape, np.float32), device=device), params)


def each(function: Callable[..., tuple[Array, ...]], params: Any, grads: Any, *slots: Any) -> list[Any]:
    """``function`` of each parameter, its gradient and its slots; gives as many trees as it gives arrays.

    Raises ArgumentError when a tree differs from that of ``params``.
    """
    leaves, structure = tree.flatten(params)
    columns = []
    for name, other in (("grads", grads), *(("state", slot) for slot in slots)):
        found, shape = tree.flatten(other)
        if shape != structure:
            raise ArgumentError(f"{name}: its tree differs from that of params; expected a leaf for each parameter")
        columns.append(found)
    for path, g in zip(tree.paths(params), columns[0], strict=True):
        if asarray(g).dtype.category != "f":
            raise DtypeError(f"grads: {path} is {asarray(g).dtype}, expected a float dtype, as vk.grad gives")
    moved = [function(*row) for row in zip(leaves, *columns, strict=True)]
    return [tree.unflatten(structure, list(column)) for column in zip(*moved, strict=True)]
