"""Sums over what is seen, for the families that mask: what is not seen gives nothing, even if it is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def masked_product(weights: Array, seen: Array, rows: Array) -> Array:
    """weights [..., M, N] times rows [..., N, C] over the n that ``seen`` [..., M, N] allows: [..., M, C]."""
    if np.isfinite(weights).all() and np.isfinite(rows).all():
        return np.asarray(np.matmul(np.where(seen, weights, 0.0), rows))
    products = weights[..., :, :, None] * rows[..., None, :, :]
    return np.asarray(np.sum(np.where(seen[..., None], products, 0.0), -2))
