"""Masks and score changes for vk.attention, as the functions that it takes; its named arguments are made of these.

A mask_mod(b, h, q, k) says which keys a query sees, a score_mod(score, b, h, q, k) changes its scores. b, h, q and k
are int32 Arrays that broadcast over [B, H, Tq, Tk]: numbers of the sequence, the query head, and the query and key
inside their sequence. Whatever is written in such a function becomes part of the kernel, captured arrays included.

>>> import vkdnn as vk
>>> q = k = v = vk.ones((1, 4, 1, 2))
>>> vk.attention(q, k, v, mask_mod=vk.masks.either(vk.masks.causal(), vk.masks.prefix([2]))).shape
(1, 4, 1, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir.arguments import function, integer, number, short
from vkdnn.ir.dims import same
from vkdnn.ops.elementwise import abs as abs_
from vkdnn.ops.elementwise import tanh

LOWEST, HIGHEST = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
MaskMod = Callable[[Array, Array, Array, Array], Any]
ScoreMod = Callable[[Array, Array, Array, Array, Array], Any]

__all__ = ["alibi", "both", "causal", "documents", "either", "prefix", "sliding_window", "softcap"]


def causal(shift: Any = 0) -> MaskMod:
    """Keys up to the query's own position q + shift. ``shift`` is an int, or int32 of one for each sequence [B].

    vk.attention(causal=True) takes the number of keys less that of queries: the last query sees the last key.
    """
    return lambda b, h, q, k: k <= _moved(q, shift, b)


def sliding_window(left: int | None, right: int | None, shift: Any = 0) -> MaskMod:
    """Keys from q + shift - left to q + shift + right, both included: left + 1 + right of them. None is no bound.

    Raises ArgumentError for negative bounds.
    """
    left, right = window_side("left", left), window_side("right", right)

    def mod(b: Array, h: Array, q: Array, k: Array) -> Any:
        own = _moved(q, shift, b)
        after = k >= own - left if left is not None else None
        before = k <= (own + right if right else own) if right is not None else None
        if after is None or before is None:
            return True if before is after else (after if before is None else before)
        return before & after

    return mod


def window_side(name: str, side: Any) -> int | None:
    """A bound of a window, checked. One past every sequence is kept small enough for int32 positions."""
    if side is None:
        return None
    value = integer(f"window: {name}", side, "an int of 0 or more, or None")
    if value < 0:
        raise ArgumentError(f"window: {name}: got {side}, expected 0 or more, or None for no bound")
    return min(value, 1 << 30)


def documents(ids_q: Any, ids_k: Any) -> MaskMod:
    """Keys of the query's own document: ids_q [B, Tq] and ids_k [B, Tk] integers. Raises ShapeError and DtypeError."""
    pair = [asarray(x, name=f"document_ids: {name}") for x, name in ((ids_q, "queries"), (ids_k, "keys"))]
    for x in pair:
        if x.dtype.category not in "iu":
            raise DtypeError(f"document_ids: got {x.dtype}, expected integers")
        if x.ndim != 2:
            raise ShapeError(f"document_ids: got shape {x.shape}, expected [B, T]")
    if pair[0].dtype is not pair[1].dtype:
        raise DtypeError(f"document_ids: got {pair[0].dtype} and {pair[1].dtype}, expected one dtype")
    return lambda b, h, q, k: _at(pair[0], b, q, 2) == _at(pair[1], b, k, 3)


def prefix(lengths: Any) -> MaskMod:
    """The first lengths[b] keys, [B] integers: with causal() the mask of a prefix language model."""
    return lambda b, h, q, k: k < _of_sequence(lengths, b)


def either(*mods: MaskMod) -> MaskMod:
    """Keys that at least one of the masks lets be seen. Raises ArgumentError for what is no mask."""
    for m in mods:
        function("either", m, 4)

    def mod(b: Array, h: Array, q: Array, k: Array) -> Any:
        seen: Any = False
        for m in mods:
            seen = _seen("either", m(b, h, q, k)) | seen
        return seen

    return mod


def both(*mods: MaskMod) -> MaskMod:
    """Keys that all of the masks let be seen. Raises ArgumentError for what is no mask."""
    for m in mods:
        function("both", m, 4)

    def mod(b: Array, h: Array, q: Array, k: Array) -> Any:
        seen: Any = True
        for m in mods:
            seen = _seen("both", m(b, h, q, k)) & seen
        return seen

    return mod


def alibi(slopes: Any, shift: Any = 0) -> ScoreMod:
    """score - slope |q + shift - k| (Press et al. 2022); slopes [H] or [B, H] float32, which get gradients.

    Raises ShapeError and DtypeError for other slopes.
    """
    slopes = asarray(slopes, name="alibi_slopes")
    if slopes.dtype.category != "f":
        raise DtypeError(f"alibi_slopes: got {slopes.dtype}, expected float32")
    if slopes.ndim not in (1, 2):
        raise ShapeError(f"alibi_slopes: got shape {slopes.shape}, expected [H] or [B, H]")

    def mod(score: Array, b: Array, h: Array, q: Array, k: Array) -> Any:
        if slopes.shape[-1] != h.shape[1] or (slopes.ndim == 2 and slopes.shape[0] not in (1, b.shape[0])):
            raise ShapeError(
                f"alibi_slopes: got shape {slopes.shape}, expected [{h.shape[1]}] or [{b.shape[0]}, {h.shape[1]}]"
            )
        slope = slopes.reshape(*(1,) * (2 - slopes.ndim), *slopes.shape, 1, 1)
        return score - slope * abs_(_moved(q, shift, b) - k).astype("float32")

    return mod


def softcap(cap: float) -> ScoreMod:
    """cap tanh(score / cap): scores stay within (-cap, cap). Raises ArgumentError unless cap is positive and finite."""
    value = number("softcap", cap, "a positive number")
    if isinstance(value, bool) or not LOWEST <= value <= HIGHEST:
        raise ArgumentError(f"softcap: got {short(cap)}, expected a positive number, normal and finite in float32")
    return lambda score, b, h, q, k: tanh(score / value) * value


def _seen(name: str, value: Any) -> Any:
    """What a mask returned: bools, of one pair or of all."""
    if isinstance(value, bool) or (isinstance(value, Array) and value.dtype.category == "b"):
        return value
    what = value.dtype if isinstance(value, Array) else short(value)
    raise DtypeError(f"{name}: a mask returned {what}, expected bool")


def _moved(q: Array, shift: Any, b: Array) -> Any:
    """q + shift."""
    return q if isinstance(shift, int) and same(shift, 0) else q + _of_sequence(shift, b)


def _of_sequence(value: Any, b: Array) -> Any:
    """An int as it is, or integers [B] (or [1]) as [B, 1, 1, 1]."""
    if not isinstance(value, Array):
        if not hasattr(value, "__len__"):
            shift = integer("mask", value, "an int or integers, one for each sequence")
            return max(-(2**30), min(shift, 2**30))  # positions are below: sums of the two do not wrap
        value = asarray(value, name="mask")
    if value.dtype.category != "i":
        raise DtypeError(f"mask: got {value.dtype}, expected int32")
    if value.ndim > 1 or value.size not in (1, b.shape[0]):
        raise ShapeError(f"mask: got shape {value.shape}, expected one number for each of {b.shape[0]} sequences")
    return value.reshape(-1, 1, 1, 1)


def _at(ids: Array, b: Array, position: Array, axis: int) -> Array:
    """ids [B, T] at every position of a token axis, as an array that broadcasts over [B, H, Tq, Tk]."""
    tokens = position.shape[axis]
    if ids.shape[1] != tokens or ids.shape[0] not in (1, b.shape[0]):
        raise ShapeError(f"document_ids: got shape {ids.shape}, expected [{b.shape[0]}, {tokens}]")
    shape = [ids.shape[0], 1, 1, 1]
    shape[axis] = tokens
    return ids.reshape(*shape)
