"""Numbers of a manifest that depend on symbolic sizes: formulas in prefix form, as JSON holds them.

A formula must never mean anything that a runtime in another language cannot compute with 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkdnn.ir.dims import OPERATIONS, Formula
from vkdnn.ir.dims import evaluate as evaluate


def problem(formula: Any, symbols: Mapping[str, Any]) -> str | None:
    """What is wrong with a formula over these symbols, None for a good one."""
    if isinstance(formula, int) and not isinstance(formula, bool):
        return None
    if isinstance(formula, str):
        return None if formula in symbols else f"the symbol {formula!r} is not declared"
    if not isinstance(formula, list) or len(formula) != 3 or formula[0] not in OPERATIONS:
        return f"{formula!r} is no formula: an int, the name of a symbol, or [operator, a, b]"
    return problem(formula[1], symbols) or problem(formula[2], symbols)


__all__ = ["OPERATIONS", "Formula", "evaluate", "problem"]
