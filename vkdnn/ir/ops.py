"""The op table: every elementwise operation of vkdnn, one row each. Printer, reference, autodiff and tests read it.

A row must say everything about its operation; nothing else in vkdnn may treat an op by its name.

types      one letter an argument, a colon, the result: f float32, i int32 or uint32, u uint32, n a number, x an integer
           or bool, b bool, a anything, h float16, e bfloat16; '=' is the dtype of the arguments of the first letter
           that is not b
glsl       a format of the argument texts; a dict gives it by dtype category (f, i, u, b)
numpy      function of flushed arrays, run inside numerics.exact()
define     instead of glsl and numpy: the function in terms of other rows (vkdnn.ir.elementary)
derivative (gradient of the result, result, *arguments) -> gradients of the arguments, None where it is zero;
           a row without one is refused by differentiation if its result is float32
cost       1 for one or two machine instructions, 10 for a function: decides what fusion recomputes
ulp        bound of the error of a float32 result where the true value is a normal number, in units of its last place
           (0.5: correctly rounded); None where the result is exact, or no such bound holds
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.ir import elementary
from vkdnn.ir.scalar import call, sqrt, where
from vkdnn.numerics import basic, division

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
    ulp: float | None = None

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
    Op("add", "nn:=", "a + b", _by_category("add({0}, {1})", "({0} + {1})"), basic.add, ulp=0.5,
       derivative=lambda g, y, a, b: (g, g)),
    Op("sub", "nn:=", "a - b", _by_category("sub({0}, {1})", "({0} - {1})"), basic.sub, ulp=0.5,
       derivative=lambda g, y, a, b: (g, -g)),
    Op("mul", "nn:=", "a b", _by_category("mul({0}, {1})", "({0} * {1})"), basic.mul, ulp=0.5,
       derivative=lambda g, y, a, b: (g * b, g * a)),
    Op("div", "ff:=", "a / b, correctly rounded", "divide({0}, {1})", basic.div, cost=8, ulp=0.5,
       derivative=lambda g, y, a, b: (g / b, -(g * y / b))),
    Op("neg", "n:=", "-x", _by_category("negate({0})", "(-{0})"), basic.neg, derivative=lambda g, y, x: (-g,)),
    Op("abs", "n:=", "|x|; gradient 0 at 0", {"f": "absolute({0})", "i": "abs({0})", "u": "{0}"}, basic.abs,
       derivative=lambda g, y, x: (where(x < 0.0, -g, _zero_where(x != 0.0, g)),)),
    Op("sqrt", "f:=", "square root, correctly rounded", "square_root({0})", basic.sqrt, cost=8, ulp=0.5,
       derivative=lambda g, y, x: (g * 0.5 / y,)),
    Op("square", "n:=", "x x", _by_category("mul({0}, {0})", "({0} * {0})"), lambda x: basic.mul(x, x), ulp=0.5,
       derivative=lambda g, y, x: (g * (x + x),)),
    Op("sign", "n:=", "-1, 0 or 1 by the sign; +0 for both zeros; NaN stays", "sign_({0})", basic.sign,
       derivative=_no_gradient(1)),
    Op("remainder", "nn:=", "a - b floor(a / b), with the sign of b: fmod, and b added once where the signs differ "
       "(rounded then); NaN, of integers 0, for b = 0; the derivatives at its jumps are those beside them",
       "remainder_({0}, {1})", division.remainder, cost=30, ulp=0.5,
       derivative=lambda g, y, a, b: (g, -(g * call("floor_divide", a, b)))),
    Op("fmod", "nn:=", "a - b trunc(a / b), with the sign of a, exact; NaN, of integers 0, for b = 0; the derivatives "
       "at its jumps are those beside them", "fmod_({0}, {1})", division.fmod, cost=30,
       derivative=lambda g, y, a, b: (g, -(g * call("round", (a - y) / b)))),
    Op("floor_divide", "nn:=", "floor(a / b) by NumPy's rule: (a - fmod) / b, one less where fmod has the other sign, "
       "to the nearest integer; for b = 0 a / b, of integers 0; -2**31 // -1 wraps; gradient 0",
       "floor_divide_({0}, {1})", division.floor_divide, cost=40, derivative=_no_gradient(2)),
    Op("integer_power", "ii:=", "a^b of integers, wrapping; for b < 0 its integer part (0 for a = 0)",
       "power_({0}, {1})", division.power, cost=40),
    Op("mul_high", "uu:=", "the high 32 bits of the product", "multiply_high({0}, {1})", division.mul_high),
    Op("maximum", "nn:=", "the larger; NaN if either is; -0 below +0; the gradient at a tie goes to a",
       _by_category("maximum({0}, {1})", "max({0}, {1})"), basic.maximum,
       derivative=lambda g, y, a, b: (_zero_where(a >= b, g), _zero_where(a < b, g))),
    Op("minimum", "nn:=", "the smaller; NaN if either is; -0 below +0; the gradient at a tie goes to a",
       _by_category("minimum({0}, {1})", "min({0}, {1})"), basic.minimum,
       derivative=lambda g, y, a, b: (_zero_where(a <= b, g), _zero_where(b < a, g))),
    Op("clip", "nnn:=", "min(max(x, low), high): high where low > high; NaN if any is; the gradient goes to x from low "
       "to high, both included, and to the limit taken elsewhere",
       _by_category("minimum(maximum({0}, {1}), {2})", "min(max({0}, {1}), {2})"),
       lambda x, low, high: basic.minimum(basic.maximum(x, low), high),
       derivative=lambda g, y, x, low, high: (
           _zero_where((x >= low) & (x <= high), g), _zero_where((x < low) & (low <= high), g),
           _zero_where((x > high) | (low > high), g))),
    Op("copysign", "ff:=", "|a| with the sign of b, a NaN counting as +; gradient 0 at a = 0", "copy_sign({0}, {1})",
       basic.copysign, derivative=lambda g, y, a, b: (g * (call("sign", a) * call("sign", y)), None)),
    Op("nextafter", "ff:=", "the next float32 after a in the direction of b; next to 0 are +-2^-126",
       "next_after({0}, {1})", basic.nextafter),
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
    Op("isinf", "f:b", "x is infinite, by its bits", "is_inf({0})", basic.is_inf),
    Op("isfinite", "f:b", "x is neither infinite nor NaN, by its bits", "is_finite({0})", basic.is_finite),
    Op("logical_and", "aa:b", "a != 0 and b != 0", "both(to_bool({0}), to_bool({1}))", np.logical_and),
    Op("logical_or", "aa:b", "a != 0 or b != 0", "either(to_bool({0}), to_bool({1}))", np.logical_or),
    Op("logical_xor", "aa:b", "(a != 0) != (b != 0)", "(to_bool({0}) != to_bool({1}))", np.logical_xor),
    Op("logical_not", "a:b", "x == 0", "!to_bool({0})", np.logical_not),
    # bits
    Op("bitwise_and", "xx:=", "a & b", _by_category("", "({0} & {1})", "({0} && {1})"), np.bitwise_and),
    Op("bitwise_or", "xx:=", "a | b", _by_category("", "({0} | {1})", "({0} || {1})"), np.bitwise_or),
    Op("bitwise_xor", "xx:=", "a ^ b", _by_category("", "({0} ^ {1})", "({0} ^^ {1})"), np.bitwise_xor),
    Op("bitwise_not", "x:=", "~a", _by_category("", "(~{0})", "(!{0})"), np.invert),
    Op("left_shift", "ii:=", "a << (b mod 32)", "shift_left({0}, {1})", basic.left_shift),
    Op("right_shift", "ii:=", "a >> (b mod 32); arithmetic for int32", "shift_right({0}, {1})", basic.right_shift),
    # conversion
    Op("to_float32", "a:f", "the nearest float32", "to_float({0})", basic.to_float32, ulp=0.5,
       derivative=lambda g, y, x: (g,)),
    Op("to_float16", "f:h", "the nearest float16, ties to even", "round_float16({0})", basic.to_float16,
       derivative=lambda g, y, x: (g,)),
    Op("to_bfloat16", "f:e", "the nearest bfloat16, ties to even", "round_bfloat16({0})", basic.to_bfloat16,
       derivative=lambda g, y, x: (g,)),
    Op("to_int32", "a:i", "truncated and saturated; NaN gives 0", "to_int({0})", basic.to_int32),
    Op("to_uint32", "a:u", "truncated and saturated; NaN gives 0; int32 wraps", "to_uint({0})", basic.to_uint32),
    Op("to_bool", "a:b", "x != 0", "to_bool({0})", basic.to_bool),
    Op("bits_float32", "n:f", "bits read as float32, subnormals flushed", "bits_to_float({0})", basic.bits_float32),
    Op("bits_int32", "n:i", "bits read as int32", "bits_to_int({0})", basic.bits_int32),
    Op("bits_uint32", "n:u", "bits read as uint32", "bits_to_uint({0})", basic.bits_uint32),
    # elementary functions, defined in vkdnn.ir.elementary
    Op("exp", "f:=", "e^x", define=elementary.exp, cost=10, ulp=1.0, derivative=lambda g, y, x: (g * y,)),
    Op("exp2", "f:=", "2^x", define=elementary.exp2, cost=10, ulp=1.0, derivative=lambda g, y, x: (g * (y * LN_2),)),
    Op("softmax_rescale", "ff:=", "e^(part - top), 0 where part is -inf: brings a partial sum of exponentials to "
       "another maximum", define=elementary.softmax_rescale, cost=12,
       derivative=lambda g, y, part, top: (g * y, -(g * y))),
    Op("expm1", "f:=", "e^x - 1", define=elementary.expm1, cost=15, ulp=1.0,
       derivative=lambda g, y, x: (g * (y + 1.0),)),
    Op("log", "f:=", "natural logarithm", define=elementary.log, cost=15, ulp=1.0, derivative=lambda g, y, x: (g / x,)),
    Op("log2", "f:=", "logarithm to base 2", define=elementary.log2, cost=20, ulp=1.0,
       derivative=lambda g, y, x: (g / (x * LN_2),)),
    Op("log1p", "f:=", "log(1 + x)", define=elementary.log1p, cost=20, ulp=1.0,
       derivative=lambda g, y, x: (g / (x + 1.0),)),
    Op("pow", "ff:=", "x^y; NaN for x < 0 unless y is an integer", define=elementary.pow, cost=40, ulp=1.0,
       derivative=lambda g, z, x, y: (g * y * call("pow", x, y - 1.0), where(x == 0.0, 0.0, g * z * call("log", x)))),
    Op("sin", "f:=", "sine of x radians", define=elementary.sin, cost=40, ulp=1.0,
       derivative=lambda g, y, x: (g * call("cos", x),)),
    Op("cos", "f:=", "cosine of x radians", define=elementary.cos, cost=40, ulp=1.0,
       derivative=lambda g, y, x: (-(g * call("sin", x)),)),
    Op("tan", "f:=", "tangent of x radians", define=elementary.tan, cost=50, ulp=1.0,
       derivative=lambda g, y, x: (g * (1.0 + y * y),)),
    Op("asin", "f:=", "arc sine, NaN outside [-1, 1]", define=elementary.asin, cost=30, ulp=1.0,
       derivative=lambda g, y, x: (g / sqrt(1.0 - x * x),)),
    Op("acos", "f:=", "arc cosine, NaN outside [-1, 1]", define=elementary.acos, cost=30, ulp=1.0,
       derivative=lambda g, y, x: (-(g / sqrt(1.0 - x * x)),)),
    Op("atan", "f:=", "arc tangent", define=elementary.atan, cost=30, ulp=1.0,
       derivative=lambda g, y, x: (g / (1.0 + x * x),)),
    Op("atan2", "ff:=", "angle of the point (x, y), arguments y and x", define=elementary.atan2, cost=40, ulp=1.0,
       derivative=lambda g, z, y, x: (g * x / (x * x + y * y), -(g * y / (x * x + y * y)))),
    Op("sinh", "f:=", "hyperbolic sine", define=elementary.sinh, cost=20, ulp=1.0,
       derivative=lambda g, y, x: (g * call("cosh", x),)),
    Op("cosh", "f:=", "hyperbolic cosine", define=elementary.cosh, cost=20, ulp=1.0,
       derivative=lambda g, y, x: (g * call("sinh", x),)),
    Op("tanh", "f:=", "hyperbolic tangent", define=elementary.tanh, cost=20, ulp=1.0,
       derivative=lambda g, y, x: (g * (1.0 - y * y),)),
    Op("erf", "f:=", "error function", define=elementary.erf, cost=30, ulp=1.0,
       derivative=lambda g, y, x: (g * (call("exp", -(x * x)) * 1.1283791670955126),)),
    Op("erfc", "f:=", "1 - erf(x), without cancellation", define=elementary.erfc, cost=40, ulp=1.0,
       derivative=lambda g, y, x: (-(g * (call("exp", -(x * x)) * 1.1283791670955126)),)),
    Op("rsqrt", "f:=", "1 / sqrt(x)", define=elementary.rsqrt, cost=16, ulp=1.0,
       derivative=lambda g, y, x: (g * -0.5 * y * y * y,)),
    Op("reciprocal", "f:=", "1 / x", define=elementary.reciprocal, cost=8, ulp=0.5,
       derivative=lambda g, y, x: (-(g * y * y),)),
    # activations
    Op("relu", "f:=", "max(x, 0); gradient 0 at 0; NaN stays", "maximum({0}, ZERO)",
       lambda x: basic.maximum(x, _ZERO), derivative=lambda g, y, x: (_zero_where(x > 0.0, g),)),
    Op("leaky_relu", "ff:=", "x above 0, else slope x; gradient slope at 0 (Maas et al. 2013)",
       define=elementary.leaky_relu, cost=2, ulp=0.5,
       derivative=lambda g, y, x, slope: (where(x > 0.0, g, slope * g), where(x > 0.0, 0.0, g * x))),
    Op("elu", "ff:=", "x above 0, else alpha (e^x - 1); gradient alpha at 0 (Clevert et al. 2015)",
       define=elementary.elu, cost=20, ulp=2.0,
       derivative=lambda g, y, x, alpha: (
           where(x > 0.0, g, g * (alpha * call("exp", x))), where(x > 0.0, 0.0, g * call("expm1", x)))),
    Op("hardswish", "f:=", "x min(max(x + 3, 0), 6) / 6; gradient 0 at -3, 1 at 3 (Howard et al. 2019)",
       define=elementary.hardswish, cost=10, ulp=3.0,
       derivative=lambda g, y, x: (g * where(x <= -3.0, 0.0, where(x >= 3.0, 1.0, x / 3.0 + 0.5)),)),
    Op("mish", "f:=", "x tanh(softplus(x)), without cancellation (Misra 2019)", define=elementary.mish, cost=50,
       ulp=1.0, derivative=lambda g, y, x: (g * call("mish_slope", x),)),
    Op("mish_slope", "f:=", "derivative of mish", define=elementary.mish_slope, cost=50),
    Op("sigmoid", "f:=", "1 / (1 + e^-x)", define=elementary.sigmoid, cost=20, ulp=1.0,
       derivative=lambda g, y, x: (g * (y * (1.0 - y)),)),
    Op("log_sigmoid", "f:=", "log(sigmoid(x)), without cancellation", define=elementary.log_sigmoid, cost=30, ulp=1.0,
       derivative=lambda g, y, x: (g * call("sigmoid", -x),)),
    Op("softplus", "f:=", "log(1 + e^x)", define=elementary.softplus, cost=30, ulp=1.0,
       derivative=lambda g, y, x: (g * call("sigmoid", x),)),
    Op("silu", "f:=", "x sigmoid(x) (Ramachandran et al. 2017)", define=elementary.silu, cost=20, ulp=1.0,
       derivative=lambda g, y, x: (g * call("silu_slope", x),)),
    Op("silu_slope", "f:=", "derivative of silu", define=elementary.silu_slope, cost=30),
    Op("gelu", "f:=", "x Phi(x), Phi the normal distribution (Hendrycks and Gimpel 2016)", define=elementary.gelu,
       cost=40, ulp=1.0, derivative=lambda g, y, x: (g * call("gelu_slope", x),)),
    Op("gelu_slope", "f:=", "derivative of gelu", define=elementary.gelu_slope, cost=50),
    Op("gelu_tanh", "f:=", "gelu's approximation by tanh", define=elementary.gelu_tanh, cost=40, ulp=1.0,
       derivative=lambda g, y, x: (g * call("gelu_tanh_slope", x),)),
    Op("gelu_tanh_slope", "f:=", "derivative of gelu_tanh", define=elementary.gelu_tanh_slope, cost=50),
    # random words
    Op("random_bits", "uuuu:=", "word `index` of the stream of a key of two words (Philox 4x32-10, Salmon et al. "
       "2011); arguments index, stream, key_0, key_1", define=elementary.random_bits, cost=90),
    Op("philox", "uuuuuu:=", "the first word of the Philox 4x32-10 block of a counter of four words and a key of two "
       "(Salmon et al. 2011)", define=elementary.philox_word, cost=90),
)  # fmt: skip

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
