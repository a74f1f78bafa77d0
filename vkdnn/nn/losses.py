"""Losses: scalars to be minimised. They must stay finite wherever the inputs are."""

from __future__ import annotations

from typing import Any

from vkdnn.array import Array, asarray
from vkdnn.errors import ShapeError
from vkdnn.ops.index import take_along_axis
from vkdnn.ops.normalize import logsumexp
from vkdnn.ops.reduce import mean
from vkdnn.ops.shape import expand_dims


def cross_entropy(logits: Any, targets: Any) -> Array:
    """Mean over all positions of logsumexp(logits) - logits[target], in nats.

    logits [..., V] float32, targets [...] int32 or uint32 (clamped to 0 ... V-1) -> a scalar. Raises
    ShapeError unless targets have the shape of logits without the last axis.
    """
    logits = asarray(logits, [targets], "logits")
    targets = asarray(targets, [logits], "targets")
    if logits.ndim < 1 or targets.shape != logits.shape[:-1]:
        raise ShapeError(f"targets: got shape {targets.shape} for logits {logits.shape}, expected {logits.shape[:-1]}")
    chosen = take_along_axis(logits, expand_dims(targets, -1), -1)
    return mean(logsumexp(logits, keepdims=True) - chosen)
