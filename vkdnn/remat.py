"""Levers on memory and on the length of submissions: functions that change when and where values exist.

They must never change a bit of a value or of a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn import tree
from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError
from vkdnn.ir import memory
from vkdnn.ir.arguments import short

__all__ = ["flush", "remat"]


def remat(function: Callable[..., Any], *, offload: bool = False) -> Callable[..., Any]:
    """``function``, with its values inside computed again by differentiation instead of kept for it (rematerialization,
    activation checkpointing: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").

    It takes and gives what ``function`` does: trees of arrays of any shapes and dtypes; what is no array in them goes
    through as it is. Its values and gradients are those of ``function`` bit for bit; only its arguments wait for
    the gradient of its results, at which everything else is computed again. With ``offload`` arguments that are
    computed wait in the host's memory; parameters and other data that exists stay where they are. Give it parameters
    as arguments: what is computed before from arrays that the function captured is kept. Segments may contain others.
    Raises ArgumentError for what is no
    function or no bool.

    >>> import vkdnn as vk
    >>> vk.grad(vk.remat(lambda x: vk.sum(vk.exp(x))))(vk.array([0.0])).numpy().tolist()
    [1.0]
    """
    if not callable(function):
        raise ArgumentError(f"remat: got {short(function)}, expected a function")
    if not isinstance(offload, (bool, np.bool_)):
        raise ArgumentError(f"remat: offload: got {short(offload)}, expected True or False")

    @functools.wraps(function)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        leaves, structure = tree.flatten((arguments, keywords))
        arrays = [asarray(x, leaves, "remat: argument") if _is_array(x) else x for x in leaves]
        inputs = [Array(memory.input_of(x.node), x._device) if isinstance(x, Array) else x for x in arrays]
        segment = memory.Segment(tuple(x.node for x in inputs if isinstance(x, Array)), bool(offload))
        positional, named = tree.unflatten(structure, list(inputs))
        results, out_structure = tree.flatten(function(*positional, **named))
        return tree.unflatten(
            out_structure,
            [Array(memory.kept(r.node, segment), r._device) if isinstance(r, Array) else r for r in results],
        )

    return wrapped


def _is_array(x: Any) -> bool:
    return isinstance(x, (Array, np.ndarray))


def flush(x: Any) -> Array:
    """x, an array of any shape and dtype; the submission that computes it ends with it, and the rest is another one.

    So is that of its gradient. A Program that would run for seconds is cut so into parts, each of which ends before the
    watchdog of a graphics driver resets the device. Inside vk.jit, and where values are computed, the parts follow each
    other in one call; donated arguments and results are those of the whole. Raises what vk.asarray does.

    >>> import vkdnn as vk
    >>> vk.jit(lambda x: vk.exp(vk.flush(x * 2)))(vk.array([0.0])).numpy().tolist()
    [1.0]
    """
    x = asarray(x, name="flush: x")
    return Array(memory.flush(x.node), x._device)
