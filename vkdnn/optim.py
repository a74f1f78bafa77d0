"""AdamW (Loshchilov and Hutter 2019): warm-up, cosine schedule, global-norm clipping, as functions of arrays.

It must never read a value on the host: a training step that contains it stays one submission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn import dtypes, tree
from vkdnn.array import Array, array, asarray
from vkdnn.errors import ArgumentError
from vkdnn.ops.elementwise import clip, cos, maximum, minimum, sqrt, where
from vkdnn.ops.reduce import sum as sum_


def adamw_update(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    learning_rate: Any,
    bias1: Any,
    bias2: Any,
    scale: Any = 1.0,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Array, Array, Array]:
    """One tensor's step: new (p, m, v), all of the shape of ``p``, float32, from one kernel.

    g' = g scale; m' = beta1 m + (1 - beta1) g'; v' = beta2 v + (1 - beta2) g' g';
    p' = p - learning_rate (m' / (bias1 (sqrt(v' / bias2) + eps)) + weight_decay p).
    ``learning_rate``, ``bias1`` = 1 - beta1^t, ``bias2`` = 1 - beta2^t and ``scale`` are numbers or scalar
    arrays.
    """
    beta1, beta2 = betas
    g = g * scale
    m = m * beta1 + g * (1.0 - beta1)
    v = v * beta2 + g * g * (1.0 - beta2)
    update = m / (bias1 * (sqrt(v / bias2) + eps))
    if weight_decay:
        update = update + p * weight_decay
    return p - update * learning_rate, m, v


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
class AdamW:
    """The optimizer's settings. ``init`` and ``update`` are pure: put ``update`` inside vk.jit and donate
    its state.

    learning_rate  the highest, reached after ``warmup_steps`` linear steps from 0
    total_steps    where the cosine schedule ends, at min_ratio learning_rate; it stays there afterwards
    weight_decay   of arrays of two axes or more (matrices), decoupled from the gradient
    clip_norm      gradients are scaled down to this global norm; None leaves them alone
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 0
    total_steps: int = 1000
    min_ratio: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        checks = (
            ("learning_rate", self.learning_rate, self.learning_rate >= 0, "zero or more"),
            ("warmup_steps", self.warmup_steps, self.warmup_steps >= 0, "zero or more"),
            (
                "total_steps",
                self.total_steps,
                self.warmup_steps < self.total_steps < 2**24,
                "over warmup_steps, under 2**24",
            ),
            ("min_ratio", self.min_ratio, 0 <= self.min_ratio <= 1, "0 to 1"),
            (
                "betas",
                self.betas,
                all(0 <= b < 1 for b in self.betas) and len(self.betas) == 2,
                "two numbers in [0, 1)",
            ),
            ("eps", self.eps, self.eps > 0, "a positive number"),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0, "zero or more"),
            (
                "clip_norm",
                self.clip_norm,
                self.clip_norm is None or self.clip_norm > 0,
                "None or a positive number",
            ),
        )
        for name, value, good, expected in checks:
            if not good:
                raise ArgumentError(f"{name}: got {value}, expected {expected}")

    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step, on the device of the parameters.

        "step" is int32 [], "beta1_power" and "beta2_power" float32 [], "m" and "v" trees like ``params``.
        Every array has memory of its own, so that the state can be donated.
        """
        device = asarray(tree.flatten(params)[0][0]).device

        def zeros(p: Any) -> Array:
            return array(np.zeros(asarray(p).shape, np.float32), device=device)

        return {
            "step": array(np.zeros((), np.int32), device=device),
            "beta1_power": array(np.ones((), np.float32), device=device),
            "beta2_power": array(np.ones((), np.float32), device=device),
            "m": tree.map_leaves(zeros, params),
            "v": tree.map_leaves(zeros, params),
        }

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

    def update(self, params: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """One step: new parameters and state, of the same trees. ``grads`` is a tree like ``params``."""
        beta1, beta2 = self.betas
        power1, power2 = state["beta1_power"] * beta1, state["beta2_power"] * beta2
        rate, bias1, bias2 = self.rate(state["step"]), 1.0 - power1, 1.0 - power2
        scale: Any = 1.0
        if self.clip_norm is not None:
            # maximum passes NaN on: a gradient that is NaN must show, not be scaled as if it were small.
            scale = self.clip_norm / maximum(global_norm(grads), self.clip_norm)

        def one(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            decay = self.weight_decay if asarray(p).ndim >= 2 else 0.0
            return adamw_update(
                p, g, m, v, rate, bias1, bias2, scale, betas=self.betas, eps=self.eps, weight_decay=decay
            )

        leaves, structure = tree.flatten(params)
        columns = [tree.flatten(t)[0] for t in (grads, state["m"], state["v"])]
        moved = [one(*row) for row in zip(leaves, *columns, strict=True)]
        new_p, new_m, new_v = (tree.unflatten(structure, [row[i] for row in moved]) for i in range(3))
        new_state = {
            "step": state["step"] + 1,
            "beta1_power": power1,
            "beta2_power": power2,
            "m": new_m,
            "v": new_v,
        }
        return new_p, new_state
