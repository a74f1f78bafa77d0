"""The vocabulary in which elementary functions are defined: helper functions over symbolic values.

It must stay free of arrays and devices: a definition written with it is traced once, printed as a GLSL function and
interpreted in NumPy, so the two can never drift apart.
"""

from __future__ import annotations

from typing import Any

Value = Any  # a symbolic value with Python's operators (vkdnn.ir.node.Operators), or a Python number


def where(condition: Value, a: Value, b: Value) -> Value:
    """``a`` where ``condition`` holds, else ``b``; both are evaluated."""
    return condition._map("where", condition, a, b)


def cast(x: Value, dtype: str) -> Value:
    """The value of ``x`` in another dtype (float to int truncates and saturates, NaN gives 0)."""
    return x._map(f"to_{dtype}", x)


def bitcast(x: Value, dtype: str) -> Value:
    """The bits of ``x`` read as another dtype; a subnormal float32 result is flushed."""
    return x._map(f"bits_{dtype}", x)


def sqrt(x: Value) -> Value:
    return x._map("sqrt", x)


def maximum(a: Value, b: Value) -> Value:
    return a._map("maximum", a, b)


def minimum(a: Value, b: Value) -> Value:
    return a._map("minimum", a, b)


def floor(x: Value) -> Value:
    return x._map("floor", x)


def round_even(x: Value) -> Value:
    return x._map("round", x)


def call(name: str, *args: Value) -> Value:
    """Another row of the op table, by name: ``call("exp", x)``."""
    return args[0]._map(name, *args)
