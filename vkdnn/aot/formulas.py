"""Numbers of a manifest that depend on symbolic sizes: formulas in prefix form, as JSON holds them.

A formula must never mean anything that a runtime in another language cannot compute with 64-bit integers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

Formula = int | str | list[Any]
"""An int, the name of a symbol, or [operator, a, b]."""

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


def evaluate(formula: Formula, values: Mapping[str, int]) -> int:
    """The number that a formula gives for values of the symbols.

    >>> evaluate(["//", ["+", "tokens", 127], 128], {"tokens": 300})
    3
    """
    if isinstance(formula, int):
        return formula
    if isinstance(formula, str):
        return values[formula]
    name, a, b = formula
    return OPERATORS[name](evaluate(a, values), evaluate(b, values))


def problem(formula: Any, symbols: Mapping[str, Any]) -> str | None:
    """What is wrong with a formula over these symbols, None for a good one."""
    if isinstance(formula, int) and not isinstance(formula, bool):
        return None
    if isinstance(formula, str):
        return None if formula in symbols else f"the symbol {formula!r} is not declared"
    if not isinstance(formula, list) or len(formula) != 3 or formula[0] not in list(OPERATORS):
        return f"{formula!r} is no formula: an int, the name of a symbol, or [operator, a, b]"
    return problem(formula[1], symbols) or problem(formula[2], symbols)
