"""Elementwise functions: one for each row of the op table that users call by name. Operands broadcast.

No function here may compute anything but its row; what a row means is written in vkdnn.ir.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkdnn.array import Array, asarray
from vkdnn.dtypes import DType
from vkdnn.errors import ArgumentError
from vkdnn.ir.ops import OPS, Op

_TAKES = {
    "f": "float32 (others are converted)",
    "i": "int32 or uint32",
    "n": "a number (a bool counts as int32)",
    "x": "an integer or bool",
    "b": "bool",
    "a": "any dtype",
}
_GIVES = {"b": "bool", "f": "float32"}


def _function(row: str, name: str | None = None) -> Callable[..., Array]:
    op = OPS[row]
    title = name or row

    def function(*operands: Any) -> Array:
        if len(operands) != op.arity:
            takes = f"{op.arity} argument" + "s" * (op.arity > 1)
            raise ArgumentError(f"{title}: got {len(operands)} arguments, expected {takes}")
        return _apply(op, *operands)

    function.__name__ = function.__qualname__ = title
    vars(function)["row"] = row
    function.__doc__ = (
        f"{op.doc}.\n\nElementwise, broadcasting; {_dtypes(op)}. Raises ArgumentError for another number of arguments, "
        "DtypeError and ShapeError for dtypes and shapes that do not fit."
    )
    return function


def _dtypes(op: Op) -> str:
    """The row's types in words."""
    takes = ", ".join(_TAKES[letter] for letter in op.types[: op.arity])
    gives = _GIVES.get(op.types[-1], "of the arguments' dtype")
    return f"takes {takes}; the result is {gives}"


def _apply(op: Op, *operands: Any) -> Array:
    first = next((o for o in operands if isinstance(o, Array)), None)
    if first is None:
        first = asarray(operands[0], name=op.name)
        operands = (first, *operands[1:])
    result: Array = first._map(op.name, *operands)
    return result


add = _function("add")
subtract = _function("sub", "subtract")
multiply = _function("mul", "multiply")
divide = _function("div", "divide")
remainder = _function("remainder")
mod = _function("remainder", "mod")
fmod = _function("fmod")
floor_divide = _function("floor_divide")
negative = _function("neg", "negative")
abs = _function("abs")
absolute = _function("abs", "absolute")
sign = _function("sign")
copysign = _function("copysign")
nextafter = _function("nextafter")
square = _function("square")
sqrt = _function("sqrt")
rsqrt = _function("rsqrt")
reciprocal = _function("reciprocal")
maximum = _function("maximum")
minimum = _function("minimum")
floor = _function("floor")
ceil = _function("ceil")
trunc = _function("trunc")
round = _function("round")
exp = _function("exp")
exp2 = _function("exp2")
expm1 = _function("expm1")
log = _function("log")
log2 = _function("log2")
log1p = _function("log1p")
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
mish = _function("mish")
hardswish = _function("hardswish")
where = _function("where")
equal = _function("equal")
not_equal = _function("not_equal")
less = _function("less")
less_equal = _function("less_equal")
isnan = _function("isnan")
isinf = _function("isinf")
isfinite = _function("isfinite")
logical_and = _function("logical_and")
logical_or = _function("logical_or")
logical_xor = _function("logical_xor")
logical_not = _function("logical_not")
bitwise_and = _function("bitwise_and")
bitwise_or = _function("bitwise_or")
bitwise_xor = _function("bitwise_xor")
bitwise_not = _function("bitwise_not")
invert = _function("bitwise_not", "invert")
left_shift = _function("left_shift")
right_shift = _function("right_shift")
stop_gradient = _function("stop_gradient")


def greater(a: Any, b: Any) -> Array:
    """a > b. Elementwise, broadcasting; false where either is NaN."""
    return less(b, a)


def greater_equal(a: Any, b: Any) -> Array:
    """a >= b. Elementwise, broadcasting; false where either is NaN."""
    return less_equal(b, a)


def power(x: Any, y: Any) -> Array:
    """x to the power y; the same as ``x ** y``. Elementwise, broadcasting.

    float32: the row pow, within 1 ULP, with the special cases of C99; but exponents that are Python integers from 1 to
    8 multiply, and 0.5 is the square root. Where both are integers the result is an integer and wraps; a negative
    exponent gives the integer part (0 unless x is 1 or -1). An integer with a float becomes float32.

    >>> import vkdnn as vk
    >>> vk.power(vk.array([4.0, 9.0]), 1.5).numpy().tolist()
    [8.0, 27.0]
    >>> vk.power(2, vk.array([0, 1, 10])).numpy().tolist()
    [1, 2, 1024]
    """
    result: Array = asarray(x, [y], name="power") ** y
    return result


def astype(x: Any, dtype: DType | str) -> Array:
    """x in another dtype; the same as ``x.astype(dtype)``. Floats round to nearest even; to integers they are truncated
    and saturated, NaN gives 0. Elementwise.

    >>> import vkdnn as vk
    >>> vk.astype(vk.array([1.7, -1.7]), "int32").numpy().tolist()
    [1, -1]
    """
    return asarray(x, name="astype").astype(dtype)


def divmod(a: Any, b: Any) -> tuple[Array, Array]:
    """(floor_divide(a, b), remainder(a, b)), as ``divmod(a, b)`` of arrays.

    >>> import vkdnn as vk
    >>> [r.numpy().tolist() for r in vk.divmod(vk.array([7, -7]), 2)]
    [[3, -4], [1, 1]]
    """
    return floor_divide(a, b), remainder(a, b)


def clip(x: Any, low: Any = None, high: Any = None) -> Array:
    """x limited to [low, high]; None is no limit. Where low > high the result is high; NaN stays NaN.

    Elementwise, broadcasting. The gradient goes to x inside and at the limits, to the limit outside. Raises
    ArgumentError if neither limit is given.

    >>> import vkdnn as vk
    >>> vk.clip(vk.array([-2.0, 0.5, 3.0]), 0.0, 1.0).numpy().tolist()
    [0.0, 0.5, 1.0]
    """
    if low is None and high is None:
        raise ArgumentError("clip: got neither low nor high, expected at least one limit")
    x = asarray(x, [low, high], name="clip")
    if low is None:
        return minimum(x, high)
    return maximum(x, low) if high is None else _apply(OPS["clip"], x, low, high)


def leaky_relu(x: Any, slope: Any = 0.01) -> Array:
    """x above 0, else slope x; the gradient at 0 is slope (Maas et al. 2013). Elementwise, float32."""
    return _apply(OPS["leaky_relu"], x, slope)


def elu(x: Any, alpha: Any = 1.0) -> Array:
    """x above 0, else alpha (e^x - 1); the gradient at 0 is alpha (Clevert et al. 2015). Elementwise, float32."""
    return _apply(OPS["elu"], x, alpha)


__all__ = [name for name, value in list(globals().items()) if callable(value) and not name.startswith("_")]
__all__ = [
    name for name in __all__ if name not in ("Any", "ArgumentError", "Array", "Callable", "DType", "Op", "asarray")
]
