"""Gradients of functions that no case of the library has: by gradcheck, and with the same bits on two devices."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check import gradcheck


def check_gradient(function: Any, *arrays: Any, both: Any) -> None:
    """``function`` of vkdnn has the right gradient at ``arrays``, and the same on the reference and the device."""
    given = [np.asarray(a, np.float32) for a in arrays]
    gradcheck(function, given, device="cpu").raise_if_failed()

    def slopes(*xs: Any) -> Any:
        value, pull = vk.vjp(function, *xs)
        return pull(np.random.default_rng(7).uniform(0.5, 1.5, value.shape).astype(np.float32))

    both(slopes, *given)
