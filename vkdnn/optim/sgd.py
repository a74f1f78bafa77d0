"""Stochastic gradient descent with momentum (Polyak 1964; Nesterov's form as in Sutskever et al. 2013).

The formulas and names are PyTorch's, with dampening 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkdnn.array import Array
from vkdnn.optim.base import Optimizer, State, each, zero_step, zeros_like


def sgd_update(
    p: Array,
    g: Array,
    velocity: Array | None,
    learning_rate: Any,
    scale: Any = 1.0,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Array, ...]:
    """One tensor's step: new (p, velocity), or (p,) without momentum; shapes of ``p``, float32, one kernel.

    g' = g scale + weight_decay p; v' = momentum v + g'; p' = p - learning_rate d with d = g' without
    momentum, v' with it, g' + momentum v' with ``nesterov``. ``learning_rate`` and ``scale`` are numbers or
    scalar arrays; ``velocity`` starts at 0.
    """
    g = g * scale
    if weight_decay:
        g = g + p * weight_decay
    if velocity is None:
        return (p - g * learning_rate,)
    velocity = velocity * momentum + g
    direction = g + velocity * momentum if nesterov else velocity
    return p - direction * learning_rate, velocity


@dataclass(frozen=True)
class SGD(Optimizer):
    """See Optimizer for the settings that all share; weight decay is part of the gradient (L2).

    momentum  of the velocity; 0 keeps none
    nesterov  steps by the gradient after the velocity's own step; needs momentum

    >>> import vkdnn as vk
    >>> optimizer = SGD(learning_rate=0.25, momentum=0.0, weight_decay=0.0, clip_norm=None)
    >>> x = vk.array([4.0])
    >>> x, state = optimizer.update(x, 2.0 * x, optimizer.init(x))
    >>> x.item()
    2.0
    """

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", 0 <= self.momentum < 1, "a number in [0, 1)")
        self._check("nesterov", not self.nesterov or self.momentum > 0, "False, or a momentum over 0")

    def init(self, params: Any) -> State:
        """The state before the first step, on the device of the parameters.

        "step" is int32 []; with momentum "velocity" is a tree like ``params``. Every array has memory of its
        own, so that the state can be donated.
        """
        step, device = zero_step(params)
        return {"step": step, "velocity": zeros_like(params, device)} if self.momentum else {"step": step}

    def update(self, params: Any, grads: Any, state: State) -> tuple[Any, State]:
        """One step: new parameters and state, of the same trees. ``grads`` is a tree like ``params``."""
        self._state(state, "step", *(["velocity"] if self.momentum else []))
        rate, scale = self.rate(state["step"]), self._scale(grads)

        def one(p: Array, g: Array, velocity: Array | None = None) -> tuple[Array, ...]:
            return sgd_update(
                p, g, velocity, rate, scale,
                momentum=self.momentum, nesterov=self.nesterov, weight_decay=self._decay(p),
            )  # fmt: skip

        after: State = {"step": state["step"] + 1}
        if self.momentum:
            params, after["velocity"] = each(one, params, grads, state["velocity"])
        else:
            (params,) = each(one, params, grads)
        return params, after
