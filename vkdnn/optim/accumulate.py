"""Gradient accumulation: one step's value and gradient from several micro-batches.

Micro-batches are added in their order, from the first to the last, never as a tree: the order is part of the
operation, so that a digest does not depend on how the step is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkdnn import tree
from vkdnn.errors import ArgumentError
from vkdnn.transform import value_and_grad

REDUCTIONS = ("mean", "sum")


def accumulated(
    function: Callable[..., Any], params: Any, batches: Sequence[Any], reduction: str = "mean"
) -> tuple[Any, Any]:
    """(value, gradient) of a scalar ``function(params, batch)`` over several micro-batches.

    Values and gradients are added left to right, ((1 + 2) + 3) + ..., and with ``reduction="mean"`` divided
    by their number at the end. With micro-batches of equal size and a function that is a mean, "mean" is the
    gradient of the whole batch, up to rounding; "sum" suits functions that are sums. ``batches`` is a list of
    what the function takes, and one element gives the bits of vk.value_and_grad(). Inside vk.jit all of it is
    one submission. Raises ArgumentError for no batches and an unknown reduction.

    >>> import vkdnn as vk
    >>> def loss(w, x):
    ...     return vk.mean(w * x)
    >>> value, slope = accumulated(loss, vk.array(2.0), [vk.array([1.0, 3.0]), vk.array([4.0, 6.0])])
    >>> value.item(), slope.item()
    (7.0, 3.5)
    """
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction: got {reduction!r}, expected 'mean' or 'sum'")
    if not len(batches):
        raise ArgumentError("batches: got none, expected at least one micro-batch")
    each = value_and_grad(function)
    value, gradient = each(params, batches[0])
    for batch in batches[1:]:
        more, slope = each(params, batch)
        value, gradient = value + more, tree.map_leaves(lambda a, b: a + b, gradient, slope)
    count = len(batches)
    if reduction == "mean" and count > 1:
        value, gradient = value / float(count), tree.map_leaves(lambda g: g / float(count), gradient)
    return value, gradient
