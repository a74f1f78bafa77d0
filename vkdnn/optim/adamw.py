"""AdamW (Loshchilov and Hutter 2019).

Its powers of the betas are carried as arrays: no step depends on a number known to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.array import Array, array
from vkdnn.ops.elementwise import sqrt
from vkdnn.optim.base import Optimizer, State, each, zero_step, zeros_like


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


@dataclass(frozen=True)
class AdamW(Optimizer):
    """See Optimizer for the settings that all share; weight decay is decoupled from the gradient.

    betas  of the averages of the gradient and of its square
    eps    added to the root of the latter

    >>> import vkdnn as vk
    >>> optimizer = AdamW(learning_rate=0.5, weight_decay=0.0, total_steps=8)
    >>> x = vk.array([4.0])
    >>> x, state = optimizer.update(x, 2.0 * x, optimizer.init(x))
    >>> x.item()
    3.5
    """

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("betas", len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "two numbers in [0, 1)")
        self._check("eps", self.eps > 0, "a positive number")

    def init(self, params: Any) -> State:
        """The state before the first step, on the device of the parameters.

        "step" is int32 [], "beta1_power" and "beta2_power" float32 [], "m" and "v" trees like ``params``.
        Every array has memory of its own, so that the state can be donated.
        """
        step, device = zero_step(params)
        return {
            "step": step,
            "beta1_power": array(np.ones((), np.float32), device=device),
            "beta2_power": array(np.ones((), np.float32), device=device),
            "m": zeros_like(params, device),
            "v": zeros_like(params, device),
        }

    def update(self, params: Any, grads: Any, state: State) -> tuple[Any, State]:
        """One step: new parameters and state, of the same trees. ``grads`` is a tree like ``params``."""
        self._state(state, "step", "beta1_power", "beta2_power", "m", "v")
        beta1, beta2 = self.betas
        power1, power2 = state["beta1_power"] * beta1, state["beta2_power"] * beta2
        rate, bias1, bias2 = self.rate(state["step"]), 1.0 - power1, 1.0 - power2
        scale = self._scale(grads)

        def one(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            return adamw_update(
                p, g, m, v, rate, bias1, bias2, scale, betas=self.betas, eps=self.eps, weight_decay=self._decay(p)
            )

        params, m, v = each(one, params, grads, state["m"], state["v"])
        step = state["step"] + 1
        return params, {"step": step, "beta1_power": power1, "beta2_power": power2, "m": m, "v": v}
