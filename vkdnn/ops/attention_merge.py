"""Attention to parts of the keys made attention to all of them, from what each part gives: out and lse."""

from __future__ import annotations

import math
from typing import Any

from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir.arguments import short
from vkdnn.ops.elementwise import log, maximum, where
from vkdnn.ops.reduce import narrow, wide


def merge_attention(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, *, layout: str = "BTHD") -> tuple[Array, Array]:
    """(out, lse) of attention to two sets of keys, from those of vk.attention(..., return_lse=True) to each of them.

    out [B, T, H, V] and lse [B, H, T] ("BHTD": out [B, H, T, V]; "THD": [T, H, V] and [H, T]), float. With
    top = max(lse_a, lse_b), weights e^(lse - top) and their sum s: out = (weight_a out_a + weight_b out_b) / s and
    lse = top + log s (Dao et al. 2022). A part of lse -inf saw no key: the other one is the result as it is, whatever
    the empty one holds; two of them are empty. For keys spread over devices or in time; inside one call vk.attention
    splits by itself, without a bit's difference, which this function does not promise. Raises ArgumentError, ShapeError
    and DtypeError.

    >>> import vkdnn as vk
    >>> q, k, v = vk.zeros((1, 1, 1, 2)), vk.zeros((1, 3, 1, 2)), vk.array([3.0, 6.0, 0.0]).reshape(1, 3, 1, 1)
    >>> parts = [vk.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 2), slice(2, 3))]
    >>> vk.merge_attention(*parts[0], *parts[1])[0].item()
    3.0
    """
    axes = {"BTHD": (0, 2, 1), "BHTD": (0, 1, 2), "THD": (1, 0)}
    if not isinstance(layout, str) or layout not in axes:
        raise ArgumentError(f"layout: got {short(layout)}, expected one of {', '.join(axes)}")
    given = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    arrays = {name: asarray(x, list(given.values()), name) for name, x in given.items()}
    for name, x in arrays.items():
        if x.dtype.category != "f":
            raise DtypeError(f"{name}: got {x.dtype}, expected a float dtype")
        first = arrays[name[:-1] + "a"]
        if x.shape != first.shape:
            raise ShapeError(f"{name}: got shape {x.shape}, expected {first.shape} as in {name[:-1]}a")
    out, lse = arrays["out_a"], arrays["lse_a"]
    if out.ndim != len(layout) or lse.ndim != out.ndim - 1:
        raise ShapeError(f"out_a: got shapes {out.shape} and {lse.shape}, expected those of layout {layout!r}")
    rows = tuple(out.shape[axes[layout].index(a)] for a in range(lse.ndim))
    if lse.shape != rows:
        raise ShapeError(f"lse_a: got shape {lse.shape}, expected {rows} for out of shape {out.shape}")
    a, b = wide(arrays["lse_a"]), wide(arrays["lse_b"])
    empty_a, empty_b = a == -math.inf, b == -math.inf
    top = maximum(a, b)
    weight_a, weight_b = a._map("softmax_rescale", a, top), b._map("softmax_rescale", b, top)
    total = where(empty_a & empty_b, 1.0, weight_a + weight_b)
    lse_both = where(empty_a, b, where(empty_b, a, top + log(total)))

    def of_rows(x: Array) -> Array:
        return x.transpose(axes[layout]).reshape(*out.shape[:-1], 1)

    a_wide, b_wide = wide(arrays["out_a"]), wide(arrays["out_b"])
    both = (a_wide * of_rows(weight_a) + b_wide * of_rows(weight_b)) / of_rows(total)
    nothing = where(of_rows(empty_b), 0.0, b_wide)
    merged = where(of_rows(empty_a), nothing, where(of_rows(empty_b), a_wide, both))
    return narrow(merged, out), lse_both
