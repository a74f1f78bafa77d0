"""Rows of the op table: one operator each, and one for integers where a row takes those too.

A row is known by the name of its public function, or by its own where it has none. TRUE is float64 truth, row by row;
rows that vkdnn.check.ulp measures have theirs from there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

import vkdnn as vk
from vkdnn.check import ulp
from vkdnn.check.operator import Array, Fill, Input, Operator, Rng
from vkdnn.ir.ops import OPS, Op
from vkdnn.ops import elementwise

_MULTIPLIERS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)  # of Philox (Salmon et al. 2011)


@functools.cache
def _library() -> Any:
    return ulp.numpy_library()


def _measured(row: str) -> Callable[..., Any]:
    return lambda *xs: ulp.TRUTH[row](_library(), *xs)


def _logistic(x: Array) -> Array:
    return np.asarray(ulp.TRUTH["sigmoid"](_library(), x))


def _normal_density(x: Array) -> Array:
    return np.asarray(np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


def _gelu_slope(x: Array) -> Array:
    return np.asarray(0.5 * _library().erfc(-x / np.sqrt(2)) + x * _normal_density(x))


def _gelu_tanh_slope(x: Array) -> Array:
    u, slope = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3), np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return np.asarray(0.5 * (1 + np.tanh(u)) + 0.5 * x * (1 - np.tanh(u) ** 2) * slope)


def _mish_slope(x: Array) -> Array:
    t = np.tanh(np.logaddexp(0, x))
    return np.asarray(t + x * (1 - t * t) * _logistic(x))


def philox_blocks(counter: Any, key: Any) -> list[Array]:
    """The four words of Philox 4x32-10 for a counter of four words and a key of two, uint32 arrays."""
    x = [np.asarray(c, np.uint64) for c in counter]
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for turn in range(10):
        k = [(np.asarray(k, np.uint64) + np.uint64(turn * s)) & low for k, s in zip(key, _STEPS, strict=True)]
        first, second = x[0] * np.uint64(_MULTIPLIERS[0]), x[2] * np.uint64(_MULTIPLIERS[1])
        x = [(second >> shift) ^ x[1] ^ k[0], second & low, (first >> shift) ^ x[3] ^ k[1], first & low]
    return [part.astype(np.uint32) for part in x]


def random_bits(index: Any, stream: Any, low: Any, high: Any) -> Array:
    """Word ``index`` of a stream: word index mod 4 of the block whose counter is (index // 4, 0, stream, 0)."""
    index = np.asarray(index, np.uint32)
    words = philox_blocks((index >> 2, 0 * index, 0 * index + np.uint32(stream), 0 * index), (low, high))
    return np.choose(index & 3, words)


def _mul_high(a: Array, b: Array) -> Array:
    return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _clip(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _nextafter(a: Array, b: Array) -> Array:
    return np.nextafter(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)


def _rounded(dtype: Any) -> Callable[[Array], Array]:
    return lambda x: x.astype(dtype).astype(x.dtype)


def _bits(dtype: Any) -> Callable[[Array], Array]:
    return lambda x: (x.astype(np.float32) if x.dtype.kind == "f" else x).view(dtype)


def _shift(function: Any) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, b & 31)


_N, _D = ("normal",), ("distinct",)

TRUE: dict[str, tuple[Callable[..., Any], *tuple[str, ...]]] = {
    "add": (np.add, *_N * 2),
    "sub": (np.subtract, *_N * 2),
    "mul": (np.multiply, *_N * 2),
    "div": (np.divide, *_D * 2),
    "square": (np.square, *_N),
    "sign": (np.sign, *_D),
    "remainder": (np.remainder, *_D * 2),
    "fmod": (np.fmod, *_D * 2),
    "floor_divide": (np.floor_divide, *_D * 2),
    "clip": (_clip, *_D, "inside", "positive"),
    "copysign": (np.copysign, *_D * 2),
    "nextafter": (_nextafter, *_N * 2),
    "neg": (np.negative, *_N),
    "abs": (np.abs, *_D),
    "maximum": (np.maximum, *_N * 2),
    "minimum": (np.minimum, *_N * 2),
    "floor": (np.floor, *_D),
    "ceil": (np.ceil, *_D),
    "trunc": (np.trunc, *_D),
    "round": (np.rint, *_D),
    "stop_gradient": (np.positive, *_N),
    "softmax_rescale": (lambda part, top: np.exp(part - top), *_N * 2),
    "less": (np.less, *_N * 2),
    "less_equal": (np.less_equal, *_N * 2),
    "equal": (np.equal, *_N * 2),
    "not_equal": (np.not_equal, *_N * 2),
    "where": (np.where, "bools", *_N * 2),
    "isnan": (np.isnan, *_N),
    "isinf": (np.isinf, *_N),
    "isfinite": (np.isfinite, *_N),
    "to_float32": (np.positive, *_N),
    "to_float16": (_rounded(np.float16), *_N),
    "to_bfloat16": (_rounded(ml_dtypes.bfloat16), *_N),
    "to_int32": (lambda x: x.astype(np.int32), *_D),
    "to_uint32": (lambda x: x.astype(np.uint32), "positive"),
    "to_bool": (lambda x: x != 0, *_N),
    "bits_int32": (_bits(np.int32), *_N),
    "bits_uint32": (_bits(np.uint32), *_N),
    "silu_slope": (lambda x: _logistic(x) * (1 + x * (1 - _logistic(x))), *_N),
    "gelu_slope": (_gelu_slope, *_N),
    "gelu_tanh_slope": (_gelu_tanh_slope, *_N),
    "mish_slope": (_mish_slope, *_N),
    **{row: (_measured(row), "normal") for row in (
        "exp", "exp2", "expm1", "sin", "cos", "atan", "sinh", "cosh", "tanh", "erf", "erfc", "sigmoid", "log_sigmoid",
        "softplus", "silu", "gelu", "gelu_tanh", "mish", "hardswish")},
    **{row: (_measured(row), "positive") for row in ("log", "log2", "sqrt", "rsqrt")},
    **{row: (_measured(row), "inside") for row in ("log1p", "tan", "asin", "acos")},
    **{row: (_measured(row), "distinct") for row in ("reciprocal", "relu")},
    "pow": (_measured("pow"), "positive", "normal"),
    "atan2": (_measured("atan2"), *_N * 2),
    "leaky_relu": (_measured("leaky_relu"), "distinct", "normal"),
    "elu": (_measured("elu"), "distinct", "normal"),
}  # fmt: skip
"""Row -> its function in float64, and for each argument the kind of values on which it is checked."""


def _exponents(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.integers(0, 12, shape, dtype=np.int32)


def _float_bits(rng: Rng, shape: tuple[int, ...], _: Mapping[str, Any]) -> Array:
    return rng.standard_normal(shape).astype(np.float32).view(np.uint32)


_INTEGERS: dict[str, tuple[Callable[..., Any], *tuple[str | Fill, ...]]] = {
    **{row: (TRUE[row][0], *["integers"] * (len(TRUE[row]) - 1)) for row in (
        "add", "sub", "mul", "square", "sign", "remainder", "fmod", "floor_divide", "clip", "neg", "abs", "maximum",
        "minimum", "less", "less_equal", "equal", "not_equal", "to_bool", "bits_uint32", "stop_gradient")},
    "where": (np.where, "bools", "integers", "integers"),
    "to_float32": (lambda x: x.astype(np.float64), "integers"),
    "to_int32": (lambda x: x.astype(np.int32), "words"),
    "to_uint32": (lambda x: x.astype(np.uint32), "integers"),
    "integer_power": (np.power, "integers", _exponents),
    "mul_high": (_mul_high, "words", "words"),
    "logical_and": (np.logical_and, "bools", "integers"),
    "logical_or": (np.logical_or, "bools", "integers"),
    "logical_xor": (np.logical_xor, "bools", "integers"),
    "logical_not": (np.logical_not, "integers"),
    "bitwise_and": (np.bitwise_and, "integers", "integers"),
    "bitwise_or": (np.bitwise_or, "integers", "integers"),
    "bitwise_xor": (np.bitwise_xor, "integers", "integers"),
    "bitwise_not": (np.bitwise_not, "integers"),
    "left_shift": (_shift(np.left_shift), "integers", "integers"),
    "right_shift": (_shift(np.right_shift), "integers", "integers"),
    "bits_float32": (lambda x: x.view(np.float32).astype(np.float64), _float_bits),
    "random_bits": (random_bits, *["words"] * 4),
    "philox": (lambda *w: philox_blocks(w[:4], w[4:])[0], *["words"] * 6),
}  # fmt: skip
"""The same for integers and bools."""

NAMES = {"leaky_relu": ("x", "slope"), "elu": ("x", "alpha"), "clip": ("x", "low", "high"), "where": ("c", "a", "b")}
UNCHECKED_GRADIENTS = {"stop_gradient": "its gradient is 0 by definition, whatever its slope is"}
"""Rows whose gradient is right, and yet no slope -> why."""


@functools.cache
def public_names() -> dict[str, str]:
    """Row -> the first public function that is this row."""
    found: dict[str, str] = {}
    for name in elementwise.__all__:
        found.setdefault(getattr(getattr(elementwise, name), "row", name), name)
    return {row: name for row, name in found.items() if row in OPS}


def apply(row: str, *xs: Any) -> Any:
    """A row of vkdnn on arrays, by its public function if it has one."""
    name = public_names().get(row)
    if name:
        return getattr(vk, name)(*xs)
    first = vk.asarray(xs[0])
    return first._map(row, first, *xs[1:])


def differentiable(op: Op) -> bool:
    """Whether the row has a gradient that differences should find."""
    if op.derivative is None or op.name in UNCHECKED_GRADIENTS:
        return False
    return op.types[-1] in "=fhe"


def _operator(row: str, true: tuple[Any, ...], suffix: str) -> Operator:
    function, *kinds = true
    names = NAMES.get(row, ("a", "b", "c", "d", "e", "f")[: len(kinds)] if len(kinds) > 1 else ("x",))
    inputs = tuple(Input(n, "n", kind) for n, kind in zip(names, kinds, strict=True))
    name, floats = public_names().get(row, row) + suffix, any(i.is_float for i in inputs)
    return Operator(
        name, "rows", inputs, functools.partial(apply, row), _quiet(function), {"n": 7},
        gradient=floats and differentiable(OPS[row]), halves=floats,
    )  # fmt: skip


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without warnings of what is defined in vkdnn, such as a remainder by 0."""

    def run(*xs: Array) -> Any:
        with np.errstate(all="ignore"):
            return function(*xs)

    return run


ROWS = (
    *(_operator(row, true, "") for row, true in TRUE.items()),
    *(_operator(row, true, ".integers" if row in TRUE else "") for row, true in _INTEGERS.items()),
)
