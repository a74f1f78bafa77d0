"""Elementary functions in terms of exact operations: the only definition of each, for NumPy and for every device.

A definition must use nothing but the vocabulary of vkdnn.ir.scalar; its order of operations is part of the contract.

How they stay below 1 ULP without fma: a value that matters beyond 24 bits is a pair (head, tail) whose sum it is; the
last operation of a function adds a small tail to a head, so the result carries hardly more than its own rounding.
`where` evaluates both sides: the side not taken may hold anything.
"""

from vkdnn.ir.elementary.activations import elu, hardswish, leaky_relu, mish, mish_slope
from vkdnn.ir.elementary.counter import philox_word, random_bits
from vkdnn.ir.elementary.exponential import (
    cosh,
    exp,
    exp2,
    expm1,
    sigmoid,
    silu,
    silu_slope,
    sinh,
    softmax_rescale,
    tanh,
)
from vkdnn.ir.elementary.logarithm import log, log1p, log2, log_sigmoid, pow, softplus
from vkdnn.ir.elementary.normal import erf, erfc, gelu, gelu_slope, gelu_tanh, gelu_tanh_slope
from vkdnn.ir.elementary.roots import reciprocal, rsqrt
from vkdnn.ir.elementary.trigonometric import acos, asin, atan, atan2, cos, sin, tan

__all__ = [
    "acos", "asin", "atan", "atan2", "cos", "cosh", "elu", "erf", "erfc", "exp", "exp2", "expm1", "gelu", "gelu_slope",
    "gelu_tanh", "gelu_tanh_slope", "hardswish", "leaky_relu", "log", "log1p", "log2", "log_sigmoid", "mish",
    "mish_slope", "philox_word", "pow", "random_bits", "reciprocal", "rsqrt", "sigmoid", "silu", "silu_slope", "sin",
    "sinh", "softmax_rescale", "softplus", "tan", "tanh",
]  # fmt: skip
