"""Dropout (Srivastava et al. 2014), scaled in training, so that evaluation is the identity.

Its mask is a function of a key: no state, the same elements on every device, forward and backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError, DtypeError
from vkdnn.ops.elementwise import where
from vkdnn.random import bernoulli


def dropout(x: Any, p: float, key: Any) -> Array:
    """x with each element 0 with probability p, and else times 1 / (1 - p); float, any shape.

    ``key`` is one of vk.random.key(), split() or fold_in(), a new one for each use; None is evaluation: x as it
    is. What is dropped is 0, and gets gradient 0, even where x is NaN. Raises ArgumentError for a p outside
    [0, 1) and DtypeError for integers.

    >>> import vkdnn as vk
    >>> x = vk.full((8,), 3.0)
    >>> sorted(set(dropout(x, 0.25, vk.random.key(0)).numpy().tolist()))
    [0.0, 4.0]
    """
    _check(p)
    x = asarray(x, [key])
    if x.dtype.category != "f":
        raise DtypeError(f"x: got {x.dtype}, expected a float (convert with .astype)")
    if key is None or not p:
        return x
    return where(bernoulli(key, 1.0 - p, x.shape), x * (1.0 / (1.0 - p)), 0.0)


@dataclass(frozen=True)
class Dropout:
    """dropout() with a fixed p: ``layer(x, key)`` in training, ``layer(x)`` in evaluation. It has no parameters."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _check(self.p)

    def __call__(self, x: Any, key: Any = None) -> Array:
        """x, float, any shape -> the same shape. Raises DtypeError for integers."""
        return dropout(x, self.p, key)


def _check(p: Any) -> None:
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not (math.isfinite(p) and 0 <= p < 1):
        raise ArgumentError(f"p: got {p!r}, expected a number in [0, 1)")
