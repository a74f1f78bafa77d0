"""The op table: every elementwise operation of vkdnn, one row each. Printer, reference, autodiff and tests read it.

A row must say everything about its operation; nothing else in vkdnn may treat an op by its name.

types      one letter an argument, a colon, the result: f float32, i int32 or uint32, n a number, x an integer or bool,
           b bool, a anything; '=' is the dtype of the arguments of the first letter that is not b
glsl       a format of the argument texts; a dict gives it by dtype category (f, i, u, b)
numpy      function of flushed arrays, run inside numerics.exact()
define     instead of glsl and numpy: the function in terms of other rows (vkdnn.ir.elementary)
derivative (gradient of the result, result, *arguments) -> gradients of the arguments, None where it is zero;
           a row without one is refused by differentiation if its result is float32
cost       1 for one or two machine instructions, 10 for a function: decides what fusion recomputes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.ir import elementary
from vkdnn.ir.scalar import call, sqrt, where
from vkdnn.numerics import basic

Derivative = Callable[..., tuple[Any, ...]]
LN_2 = 0.6931471805599453
_ZERO = np.zeros(1, np.float32)


@dataclass(frozen=True)
class Op:
    """One row. See the module's docstring for the fields."""

    name: str
    types: str
    doc: str
    glsl: str | dict[str, str] = ""
    numpy: Callable[..., Any] | None = None
    define: Callable[..., Any] | None = None
    derivative: Derivative | None = None
    cost: int = 1

    @property
    def arity(self) -> int:
        return self.types.index(":")

    def glsl_for(self, category: str) -> str:
        """The GLSL format for arguments of a dtype category."""
        if self.define is not None:
            return f"{self.function}({', '.join(f'{{{i}}}' for i in range(self.arity))})"
        return self.glsl if isinstance(self.glsl, str) else self.glsl[category]

    @property
    def function(self) -> str:
        """Name of the GLSL function of a defined op (a suffix keeps clear of GLSL's own functions)."""
        return f"{self.name}_"


def _by_category(f: str, i: str, b: str | None = None) -> dict[str, str]:
    return {"f": f, "i": i, "u": i} | ({"b": b} if b else {})


def _no_gradient(count: int) -> Derivative:
    return lambda g, y, *xs: (None,) * count


def _zero_where(condition: Any, g: Any) -> Any:
    return where(condition, g, 0.0)


_ROWS = (
    # arithmetic
    Op("add", "nn:=", "a + b", _by_category("add({0}, {1})", "({0} + {1})"), basic.add,
       derivative=lambda g, y, a, b: (g, g)),
    Op("sub", "nn:=", "a - b", _by_category("sub({0}, {1})", "({0} - {1})"), basic.sub,
       derivative=lambda g, y, a, b: (g, -g)),
    Op("mul", "nn:=", "a b", _by_category("mul({0}, {1})", "({0} * {1})"), basic.mul,
       derivative=lambda g, y, a, b: (g * b, g * a)),
    Op("div", "ff:=", "a / b, correctly rounded", "divide({0}, {1})", basic.div, cost=8,
       derivative=lambda g, y, a, b: (g / b, -(g * y / b))),
    Op("neg", "n:=", "-x", _by_category("negate({0})", "(-{0})"), basic.neg, derivative=lambda g, y, x: (-g,)),
    Op("abs", "n:=", "|x|; gradient 0 at 0", {"f": "absolute({0})", "i": "abs({0})", "u": "{0}"}, basic.abs,
       derivative=lambda g, y, x: (where(x < 0.0, -g, _zero_where(x != 0.0, g)),)),
    Op("sqrt", "f:=", "square root, correctly rounded", "square_root({0})", basic.sqrt, cost=8,
       derivative=lambda g, y, x: (g * 0.5 / y,)),
    Op("maximum", "nn:=", "the larger; NaN if either is; -0 below +0; the gradient at a tie goes to a",
       _by_category("maximum({0}, {1})", "max({0}, {1})"), basic.maximum,
       derivative=lambda g, y, a, b: (_zero_where(a >= b, g), _zero_where(a < b, g))),
    Op("minimum", "nn:=", "the smaller; NaN if either is; -0 below +0; the gradient at a tie goes to a",
       _by_category("minimum({0}, {1})", "min({0}, {1})"), basic.minimum,
       derivative=lambda g, y, a, b: (_zero_where(a <= b, g), _zero_where(b < a, g))),
    Op("floor", "f:=", "the largest integer not above x", "floor_({0})", basic.floor, derivative=_no_gradient(1)),
    Op("ceil", "f:=", "the smallest integer not below x", "ceil_({0})", basic.ceil, derivative=_no_gradient(1)),
    Op("trunc", "f:=", "the integer part", "trunc_({0})", basic.trunc, derivative=_no_gradient(1)),
    Op("round", "f:=", "the nearest integer, halves to even", "round_even({0})", basic.round_even,
       derivative=_no_gradient(1)),
    Op("stop_gradient", "a:=", "x, taken as a constant by differentiation", "{0}", lambda x: x,
       derivative=_no_gradient(1)),
    # comparison and choice
    Op("less", "nn:b", "a < b", _by_category("is_less({0}, {1})", "({0} < {1})"), np.less),
    Op("less_equal", "nn:b", "a <= b", _by_category("is_less_equal({0}, {1})", "({0} <= {1})"), np.less_equal),
    Op("equal", "aa:b", "a == b", _by_category("is_equal({0}, {1})", "({0} == {1})", "({0} == {1})"), np.equal),
    Op("not_equal", "aa:b", "a != b; true where either is NaN",
       _by_category("!is_equal({0}, {1})", "({0} != {1})", "({0} != {1})"), np.not_equal),
    Op("where", "baa:=", "a where the condition holds, else b", "({0} ? {1} : {2})", np.where,
       derivative=lambda g, y, c, a, b: (None, _zero_where(c, g), where(c, 0.0, g))),
    Op("isnan", "f:b", "x is NaN, by its bits", "is_nan({0})", basic.is_nan),
    # bits
    Op("bitwise_and", "xx:=", "a & b", _by_category("", "({0} & {1})", "({0} && {1})"), np.bitwise_and),
    Op("bitwise_or", "xx:=", "a | b", _by_category("", "({0} | {1})", "({0} || {1})"), np.bitwise_or),
    Op("bitwise_xor", "xx:=", "a ^ b", _by_category("", "({0} ^ {1})", "({0} ^^ {1})"), np.bitwise_xor),
    Op("bitwise_not", "x:=", "~a", _by_category("", "(~{0})", "(!{0})"), np.invert),
    Op("left_shift", "ii:=", "a << (b mod 32)", "shift_left({0}, {1})", basic.left_shift),
    Op("right_shift", "ii:=", "a >> (b mod 32); arithmetic for int32", "shift_right({0}, {1})", basic.right_shift),
    # conversion
    Op("to_float32", "a:f", "the nearest float32", "to_float({0})", basic.to_float32,
       derivative=_no_gradient(1)),
    Op("to_int32", "a:i", "truncated and saturated; NaN gives 0", "to_int({0})", basic.to_int32),
    Op("to_uint32", "a:u", "truncated and saturated; NaN gives 0; int32 wraps", "to_uint({0})", basic.to_uint32),
    Op("to_bool", "a:b", "x != 0", "to_bool({0})", basic.to_bool),
    Op("bits_float32", "n:f", "bits read as float32, subnormals flushed", "bits_to_float({0})", basic.bits_float32),
    Op("bits_int32", "n:i", "bits read as int32", "bits_to_int({0})", basic.bits_int32),
    Op("bits_uint32", "n:u", "bits read as uint32", "bits_to_uint({0})", basic.bits_uint32),
    # elementary functions, defined in vkdnn.ir.elementary
    Op("exp", "f:=", "e^x", define=elementary.exp, cost=10, derivative=lambda g, y, x: (g * y,)),
    Op("exp2", "f:=", "2^x", define=elementary.exp2, cost=10, derivative=lambda g, y, x: (g * (y * LN_2),)),
    Op("expm1", "f:=", "e^x - 1", define=elementary.expm1, cost=15, derivative=lambda g, y, x: (g * (y + 1.0),)),
    Op("log", "f:=", "natural logarithm", define=elementary.log, cost=15, derivative=lambda g, y, x: (g / x,)),
    Op("log2", "f:=", "logarithm to base 2", define=elementary.log2, cost=20,
       derivative=lambda g, y, x: (g / (x * LN_2),)),
    Op("log1p", "f:=", "log(1 + x)", define=elementary.log1p, cost=20, derivative=lambda g, y, x: (g / (x + 1.0),)),
    Op("pow", "ff:=", "x^y; NaN for x < 0 unless y is an integer", define=elementary.pow, cost=40,
       derivative=lambda g, z, x, y: (g * y * call("pow", x, y - 1.0), where(x == 0.0, 0.0, g * z * call("log", x)))),
    Op("sin", "f:=", "sine of x radians", define=elementary.sin, cost=40,
       derivative=lambda g, y, x: (g * call("cos", x),)),
    Op("cos", "f:=", "cosine of x radians", define=elementary.cos, cost=40,
       derivative=lambda g, y, x: (-(g * call("sin", x)),)),
    Op("tan", "f:=", "tangent of x radians", define=elementary.tan, cost=50,
       derivative=lambda g, y, x: (g * (1.0 + y * y),)),
    Op("asin", "f:=", "arc sine, NaN outside [-1, 1]", define=elementary.asin, cost=30,
       derivative=lambda g, y, x: (g / sqrt(1.0 - x * x),)),
    Op("acos", "f:=", "arc cosine, NaN outside [-1, 1]", define=elementary.acos, cost=30,
       derivative=lambda g, y, x: (-(g / sqrt(1.0 - x * x)),)),
    Op("atan", "f:=", "arc tangent", define=elementary.atan, cost=30,
       derivative=lambda g, y, x: (g / (1.0 + x * x),)),
    Op("atan2", "ff:=", "angle of the point (x, y), arguments y and x", define=elementary.atan2, cost=40,
       derivative=lambda g, z, y, x: (g * x / (x * x + y * y), -(g * y / (x * x + y * y)))),
    Op("sinh", "f:=", "hyperbolic sine", define=elementary.sinh, cost=20,
       derivative=lambda g, y, x: (g * call("cosh", x),)),
    Op("cosh", "f:=", "hyperbolic cosine", define=elementary.cosh, cost=20,
       derivative=lambda g, y, x: (g * call("sinh", x),)),
    Op("tanh", "f:=", "hyperbolic tangent", define=elementary.tanh, cost=20,
       derivative=lambda g, y, x: (g * (1.0 - y * y),)),
    Op("erf", "f:=", "error function", define=elementary.erf, cost=30,
       derivative=lambda g, y, x: (g * (call("exp", -(x * x)) * 1.1283791670955126),)),
    Op("erfc", "f:=", "1 - erf(x), without cancellation", define=elementary.erfc, cost=40,
       derivative=lambda g, y, x: (-(g * (call("exp", -(x * x)) * 1.1283791670955126)),)),
    Op("rsqrt", "f:=", "1 / sqrt(x)", define=elementary.rsqrt, cost=16,
       derivative=lambda g, y, x: (g * -0.5 * y * y * y,)),
    Op("reciprocal", "f:=", "1 / x", define=elementary.reciprocal, cost=8, derivative=lambda g, y, x: (-(g * y * y),)),
    # activations
    Op("relu", "f:=", "max(x, 0); gradient 0 at 0; NaN stays", "maximum({0}, ZERO)",
       lambda x: basic.maximum(x, _ZERO), derivative=lambda g, y, x: (_zero_where(x > 0.0, g),)),
    Op("sigmoid", "f:=", "1 / (1 + e^-x)", define=elementary.sigmoid, cost=20,
       derivative=lambda g, y, x: (g * (y * (1.0 - y)),)),
    Op("log_sigmoid", "f:=", "log(sigmoid(x)), without cancellation", define=elementary.log_sigmoid, cost=30,
       derivative=lambda g, y, x: (g * call("sigmoid", -x),)),
    Op("softplus", "f:=", "log(1 + e^x)", define=elementary.softplus, cost=30,
       derivative=lambda g, y, x: (g * call("sigmoid", x),)),
    Op("silu", "f:=", "x sigmoid(x) (Ramachandran et al. 2017)", define=elementary.silu, cost=20,
       derivative=lambda g, y, x: (g * call("silu_slope", x),)),
    Op("silu_slope", "f:=", "derivative of silu", define=elementary.silu_slope, cost=30),
    Op("gelu", "f:=", "x Phi(x), Phi the normal distribution (Hendrycks and Gimpel 2016)", define=elementary.gelu,
       cost=40, derivative=lambda g, y, x: (g * call("gelu_slope", x),)),
    Op("gelu_slope", "f:=", "derivative of gelu", define=elementary.gelu_slope, cost=50),
    Op("gelu_tanh", "f:=", "gelu's approximation by tanh", define=elementary.gelu_tanh, cost=40,
       derivative=lambda g, y, x: (g * call("gelu_tanh_slope", x),)),
    Op("gelu_tanh_slope", "f:=", "derivative of gelu_tanh", define=elementary.gelu_tanh_slope, cost=50),
)  # fmt: skip

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
