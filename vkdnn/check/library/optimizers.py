"""Steps of optimizers: of one tensor, and of a tree with schedule, clipping and state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import optim, tree
from vkdnn.check.operator import Array, Input, Operator

BETAS = (0.9, 0.95)


def adamw_update(
    p: Array, g: Array, m: Array, v: Array, rate: Any, bias1: Any, bias2: Any, scale: Any, *, betas: Any = BETAS,
    eps: float = 1e-8, weight_decay: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    g = g * scale
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
    step = m / (bias1 * (np.sqrt(v / bias2) + eps)) + weight_decay * p
    return p - rate * step, m, v


def lion_update(
    p: Array, g: Array, m: Array, rate: Any, scale: Any, *, betas: Any = BETAS, weight_decay: float
) -> tuple[Array, Array]:
    g = g * scale
    step = np.sign(betas[0] * m + (1 - betas[0]) * g) + weight_decay * p
    return p - rate * step, betas[1] * m + (1 - betas[1]) * g


def sgd_update(
    p: Array, g: Array, velocity: Array, rate: Any, scale: Any, *, momentum: float, nesterov: bool, weight_decay: float
) -> tuple[Array, Array]:
    g = g * scale + weight_decay * p
    velocity = momentum * velocity + g
    return p - rate * (g + momentum * velocity if nesterov else velocity), velocity


# ---- whole steps: a matrix and a vector, the state as arrays

SETTINGS: dict[str, Any] = {
    "learning_rate": 0.5, "warmup_steps": 3, "total_steps": 9, "min_ratio": 0.25, "weight_decay": 0.1, "clip_norm": 1.0,
}  # fmt: skip


def _rate(step: int) -> float:
    """Linear warm-up, then a cosine down to its floor."""
    s = SETTINGS
    if step < s["warmup_steps"]:
        return float(s["learning_rate"] * (step + 1) / s["warmup_steps"])
    done = min((step - s["warmup_steps"]) / (s["total_steps"] - s["warmup_steps"]), 1)
    low = s["min_ratio"]
    return float(s["learning_rate"] * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2))


def _optimizer(name: str) -> optim.AdamW | optim.Lion | optim.SGD:
    if name == "SGD":
        return optim.SGD(**SETTINGS, momentum=0.9, nesterov=True)
    return optim.AdamW(**SETTINGS, betas=BETAS) if name == "AdamW" else optim.Lion(**SETTINGS, betas=BETAS)


_SLOTS = {"AdamW": ("m", "v"), "Lion": ("m",), "SGD": ("velocity",)}


def _run(name: str) -> Any:
    def run(w: Any, b: Any, gw: Any, gb: Any, *state: Any, steps: int) -> Any:
        """One update after ``steps`` others, as far as schedule and powers of betas know."""
        before: dict[str, Any] = {"step": np.int32(steps)}
        if name == "AdamW":
            before |= {f"beta{k + 1}_power": np.float32(beta**steps) for k, beta in enumerate(BETAS)}
        before = {k: vk.array(v) for k, v in before.items()}
        for k, slot in enumerate(_SLOTS[name]):
            before[slot] = {"w": state[2 * k], "b": state[2 * k + 1]}
        params, grads = ({"w": x, "b": y} for x, y in ((w, b), (gw, gb)))
        after, held = _optimizer(name).update(params, grads, before)
        return [*tree.flatten(after)[0], *(leaf for s in _SLOTS[name] for leaf in tree.flatten(held[s])[0])]

    return run


def _golden(name: str) -> Any:
    def golden(w: Array, b: Array, gw: Array, gb: Array, *state: Array, steps: int) -> list[Array]:
        norm = math.sqrt((gw * gw).sum() + (gb * gb).sum())
        rate, scale = _rate(steps), min(1.0, SETTINGS["clip_norm"] / norm)
        found: list[tuple[Array, ...]] = []
        for p, g, mine, decay in ((b, gb, state[1::2], 0.0), (w, gw, state[::2], SETTINGS["weight_decay"])):
            if name == "AdamW":
                bias = [1 - beta ** (steps + 1) for beta in BETAS]
                found.append(adamw_update(p, g, mine[0], mine[1], rate, bias[0], bias[1], scale, weight_decay=decay))
            elif name == "Lion":
                found.append(lion_update(p, g, mine[0], rate, scale, weight_decay=decay))
            else:
                step: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": decay}
                found.append(sgd_update(p, g, mine[0], rate, scale, **step))
        return [leaf for column in zip(*found, strict=True) for leaf in column]

    return golden


def _whole(name: str) -> Operator:
    kinds = {"m": "small", "v": "positive", "velocity": "normal"}
    inputs = [Input("w", "rows columns"), Input("b", "columns"), Input("gw", "rows columns"), Input("gb", "columns")]
    for slot in _SLOTS[name]:
        inputs += [Input(f"{slot}.w", "rows columns", kinds[slot]), Input(f"{slot}.b", "columns", kinds[slot])]
    return Operator(
        f"optim.{name}", "optimizers", tuple(inputs), _run(name), _golden(name), {"rows": 3, "columns": 5, "steps": 1},
        gradient=False, halves=False, forms={"later": {"steps": 5}},
    )  # fmt: skip


_P, _G, _RATE, _SCALE = Input("p", "n"), Input("g", "n"), Input("learning_rate", "", "unit"), Input("scale", "", "unit")
_M, _V = Input("m", "n"), Input("v", "n", "positive")

ROWS = (
    Operator("optim.adamw_update", "optimizers",
             (_P, _G, _M, _V, _RATE, Input("bias1", "", "unit"), Input("bias2", "", "unit"), _SCALE),
             optim.adamw_update, adamw_update, {"n": 7, "betas": BETAS, "eps": 1e-8, "weight_decay": 0.1},
             halves=False),
    Operator("optim.lion_update", "optimizers", (_P, _G, _M, _RATE, _SCALE), optim.lion_update, lion_update,
             {"n": 7, "betas": BETAS, "weight_decay": 0.1}, halves=False),
    Operator("optim.sgd_update", "optimizers", (_P, _G, Input("velocity", "n"), _RATE, _SCALE), optim.sgd_update,
             sgd_update, {"n": 7, "momentum": 0.9, "nesterov": False, "weight_decay": 0.1}, halves=False,
             forms={"nesterov": {"nesterov": True}}),
    *map(_whole, _SLOTS),
    Operator("optim.Average", "optimizers", (Input("average", "n"), Input("p", "n")),
             lambda average, p, decay: optim.Average(decay).update(average, p),
             lambda average, p, decay: average * decay + (1 - decay) * p, {"n": 7, "decay": 0.75}, halves=False),
)  # fmt: skip
