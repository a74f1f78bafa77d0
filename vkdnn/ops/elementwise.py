"""Elementwise functions: one for each row of the op table that users call by name. Operands broadcast.

No function here may compute anything but its row; what a row means is written in vkdnn.ir.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkdnn.array import Array, asarray
from vkdnn.ir.ops import OPS


def _function(row: str, name: str | None = None) -> Callable[..., Array]:
    op = OPS[row]

    def function(*operands: Any) -> Array:
        first = next((o for o in operands if isinstance(o, Array)), None)
        if first is None:
            first = asarray(operands[0])
            operands = (first, *operands[1:])
        result: Array = first._map(row, *operands)
        return result

    function.__name__ = function.__qualname__ = name or row
    function.__doc__ = f"{op.doc}. Elementwise, broadcasting; dtypes {op.types} (see vkdnn.ir.ops)."
    return function


add = _function("add")
subtract = _function("sub", "subtract")
multiply = _function("mul", "multiply")
divide = _function("div", "divide")
negative = _function("neg", "negative")
abs = _function("abs")
sqrt = _function("sqrt")
rsqrt = _function("rsqrt")
maximum = _function("maximum")
minimum = _function("minimum")
floor = _function("floor")
ceil = _function("ceil")
trunc = _function("trunc")
round = _function("round")
reciprocal = _function("reciprocal")
exp = _function("exp")
exp2 = _function("exp2")
expm1 = _function("expm1")
log = _function("log")
log2 = _function("log2")
log1p = _function("log1p")
power = _function("pow", "power")
sin = _function("sin")
cos = _function("cos")
tan = _function("tan")
asin = _function("asin")
acos = _function("acos")
atan = _function("atan")
atan2 = _function("atan2")
sinh = _function("sinh")
cosh = _function("cosh")
tanh = _function("tanh")
erf = _function("erf")
erfc = _function("erfc")
relu = _function("relu")
sigmoid = _function("sigmoid")
log_sigmoid = _function("log_sigmoid")
softplus = _function("softplus")
silu = _function("silu")
gelu = _function("gelu")
gelu_tanh = _function("gelu_tanh")
where = _function("where")
equal = _function("equal")
not_equal = _function("not_equal")
less = _function("less")
less_equal = _function("less_equal")
isnan = _function("isnan")
logical_not = _function("bitwise_not", "logical_not")
stop_gradient = _function("stop_gradient")


def greater(a: Any, b: Any) -> Array:
    """a > b. Elementwise, broadcasting."""
    return less(b, a)


def greater_equal(a: Any, b: Any) -> Array:
    """a >= b. Elementwise, broadcasting."""
    return less_equal(b, a)


def square(x: Any) -> Array:
    """x x. Elementwise."""
    return multiply(x, x)


def clip(x: Any, low: Any, high: Any) -> Array:
    """x limited to [low, high]; NaN stays NaN."""
    return minimum(maximum(x, low), high)


__all__ = [name for name, value in list(globals().items()) if callable(value) and not name.startswith("_")]
__all__ = [name for name in __all__ if name not in ("Array", "Any", "Callable", "asarray")]
