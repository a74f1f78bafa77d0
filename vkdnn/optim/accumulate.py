"""Gradient accumulation: one step's value and gradient from several micro-batches.

Micro-batches are added in their order, from the first to the last, never as a tree: the order is part of the
operation, so that a digest does not depend on how the step is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkdnn import tree
from vkdnn.array import asarray
from vkdnn.errors import ArgumentError
from vkdnn.ops.elementwise import where
from vkdnn.optim.base import zero_step, zeros_like
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
    one submission, which needs memory for all micro-batches; Accumulation needs it for one. Raises
    ArgumentError for no batches and an unknown reduction.

    >>> import vkdnn as vk
    >>> def loss(w, x):
    ...     return vk.mean(w * x)
    >>> value, slope = accumulated(loss, vk.array(2.0), [vk.array([1.0, 3.0]), vk.array([4.0, 6.0])])
    >>> value.item(), slope.item()
    (7.0, 3.5)
    """
    _check(reduction)
    if not len(batches):
        raise ArgumentError("batches: got none, expected at least one micro-batch")
    each = value_and_grad(function)
    value, gradient = each(params, batches[0])
    for batch in batches[1:]:
        more, slope = each(params, batch)
        value, gradient = value + more, tree.map_leaves(lambda a, b: a + b, gradient, slope)
    return _reduced(value, gradient, len(batches), reduction)


class Accumulation:
    """accumulated() in pieces, with the memory of one micro-batch: ``add`` each, then ``take`` the result.

    Sums are a tree {"value", "gradient"}; the first micro-batch replaces what they held, so the bits are those
    of accumulated(). ``add`` and ``take`` are pure: put each inside vk.jit, and donate the sums to ``add``.

    >>> import vkdnn as vk
    >>> both = Accumulation(lambda w, x: vk.mean(w * x), count=2)
    >>> w = vk.array(2.0)
    >>> sums = both.init(w)
    >>> for number, x in enumerate(([1.0, 3.0], [4.0, 6.0])):
    ...     sums = both.add(sums, w, vk.array(x), number)
    >>> value, slope = both.take(sums)
    >>> value.item(), slope.item()
    (7.0, 3.5)
    """

    def __init__(self, function: Callable[..., Any], count: int, reduction: str = "mean"):
        _check(reduction)
        if count < 1:
            raise ArgumentError(f"count: got {count}, expected at least one micro-batch")
        self.function, self.count, self.reduction = function, count, reduction

    def init(self, params: Any) -> dict[str, Any]:
        """Sums before the first micro-batch, on the device of the parameters; each array has memory of its own."""
        step, device = zero_step(params)
        return {"value": step.astype("float32"), "gradient": zeros_like(params, device)}

    def add(self, sums: dict[str, Any], params: Any, batch: Any, number: Any) -> dict[str, Any]:
        """The sums with micro-batch ``number`` (int32, from 0)."""
        value, gradient = value_and_grad(self.function)(params, batch)
        first = asarray(number) == 0
        new = {"value": value, "gradient": gradient}
        added: dict[str, Any] = tree.map_leaves(lambda total, x: where(first, x, total + x), sums, new)
        return added

    def take(self, sums: dict[str, Any]) -> tuple[Any, Any]:
        """(value, gradient) after ``count`` micro-batches."""
        return _reduced(sums["value"], sums["gradient"], self.count, self.reduction)


def _check(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction: got {reduction!r}, expected 'mean' or 'sum'")


def _reduced(value: Any, gradient: Any, count: int, reduction: str) -> tuple[Any, Any]:
    if reduction == "sum" or count == 1:
        return value, gradient
    return value / float(count), tree.map_leaves(lambda g: g / float(count), gradient)
