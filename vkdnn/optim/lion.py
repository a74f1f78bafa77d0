"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): steps by the sign of a momentum.

Its learning rate wants to be three to ten times smaller than AdamW's, its weight decay as much larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkdnn.array import Array
from vkdnn.ops.elementwise import where
from vkdnn.optim.base import Optimizer, State, each, zero_step, zeros_like


def lion_update(
    p: Array,
    g: Array,
    m: Array,
    learning_rate: Any,
    scale: Any = 1.0,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
) -> tuple[Array, Array]:
    """One tensor's step: new (p, m), of the shape of ``p``, float32, from one kernel.

    g' = g scale; p' = p - learning_rate (sign(beta1 m + (1 - beta1) g') + weight_decay p);
    m' = beta2 m + (1 - beta2) g'. The sign of 0 is 0 and of NaN NaN. ``learning_rate`` and ``scale`` are
    numbers or scalar arrays.
    """
    beta1, beta2 = betas
    g = g * scale
    mixed = m * beta1 + g * (1.0 - beta1)
    update = where(mixed > 0.0, 1.0, where(mixed < 0.0, -1.0, mixed))
    if weight_decay:
        update = update + p * weight_decay
    return p - update * learning_rate, m * beta2 + g * (1.0 - beta2)


@dataclass(frozen=True)
class Lion(Optimizer):
    """See Optimizer for the settings that all share; weight decay is decoupled from the gradient.

    betas  of the average whose sign is taken, and of the momentum that is kept

    >>> import vkdnn as vk
    >>> optimizer = Lion(learning_rate=0.25, weight_decay=0.0)
    >>> x = vk.array([4.0, 0.0])
    >>> x, state = optimizer.update(x, 2.0 * x, optimizer.init(x))
    >>> x.numpy().tolist()
    [3.75, 0.0]
    """

    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("betas", len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "two numbers in [0, 1)")

    def init(self, params: Any) -> State:
        """The state before the first step, on the device of the parameters.

        "step" is int32 [], "m" a tree like ``params``. Every array has memory of its own, so that the state
        can be donated.
        """
        step, device = zero_step(params)
        return {"step": step, "m": zeros_like(params, device)}

    def update(self, params: Any, grads: Any, state: State) -> tuple[Any, State]:
        """One step: new parameters and state, of the same trees. ``grads`` is a tree like ``params``."""
        self._state(state, "step", "m")
        rate, scale = self.rate(state["step"]), self._scale(grads)

        def one(p: Array, g: Array, m: Array) -> tuple[Array, Array]:
            return lion_update(p, g, m, rate, scale, betas=self.betas, weight_decay=self._decay(p))

        params, m = each(one, params, grads, state["m"])
        return params, {"step": state["step"] + 1, "m": m}
