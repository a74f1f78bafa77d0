"""What a case prepares: a jitted function with its arguments, and peers that compute the same.

Nothing here may depend on a clock.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.program import Program

Call = Callable[[], Any]
SCALES = ("quick", "default", "large")


class Missing(Exception):
    """A case cannot be measured here; the text says what it lacks."""


@dataclass
class Setup:
    """The device, how large cases are, and random numbers."""

    device: vk.Device
    scale: str
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def pick(self, quick: Any, default: Any, large: Any) -> Any:
        """The value of this scale."""
        return (quick, default, large)[SCALES.index(self.scale)]

    def normal(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.random.standard_normal(shape, dtype=np.float32)


@dataclass
class Work:
    """A case made ready. ``variants`` are peers on the device itself. ``repeatable``: nothing is donated, so that its
    kernels may be recorded several times over.
    """

    what: str
    call: Call
    program: Callable[[], Program]
    peers: dict[str, Call] = field(default_factory=dict)
    variants: dict[str, Call] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    repeatable: bool = True
    tokens: int = 0


def jitted(setup: Setup, what: str, function: Callable[..., Any], arrays: Sequence[Any], **peers: Call) -> Work:
    """A function of NumPy arrays on the device; underscores in the peers' names become spaces."""
    call, program = on_device(setup.device, function, arrays)
    return Work(what, call, program, {name.replace("_", " "): peer for name, peer in peers.items()})


def on_device(
    device: vk.Device, function: Callable[..., Any], arrays: Sequence[Any]
) -> tuple[Call, Callable[[], Program]]:
    """One replay of the function on a device, and the Program that it runs."""
    compiled = vk.jit(function)
    with device:
        arguments = [vk.array(a) for a in arrays]
    return lambda: compiled(*arguments), lambda: compiled.program(*arguments)


def with_gradients(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Value and gradients of sum(function(*x) * g) with respect to the first ``count`` arguments; g is the last."""

    def both(*arguments: Any) -> Any:
        *x, g = arguments
        return vk.value_and_grad(lambda *y: vk.sum(function(*y) * g), argnums=tuple(range(count)))(*x)

    return both


def has(module: str) -> bool:
    """Whether an optional package is installed."""
    return importlib.util.find_spec(module) is not None
