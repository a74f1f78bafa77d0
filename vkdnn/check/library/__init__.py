"""The operations of vkdnn as the checks know them, one module a group, each with its float64 twin.

OPERATORS is the one list; an operation of vkdnn.catalogue without a row here must be named in WITHOUT. Rows that only
exist in another form have a suffix: "attention.sinks" takes sinks as well, "sum.integers" sums integers.
"""

from __future__ import annotations

from vkdnn.check.library import (
    arrays,
    attention,
    draws,
    indices,
    layers,
    models,
    norms,
    optimizers,
    orders,
    products,
    reductions,
    rows,
    scans,
    shapes,
)  # fmt: skip
from vkdnn.check.operator import Operator

GROUPS = (
    rows, arrays, shapes, indices, reductions, norms, products, orders, attention, scans, draws, layers, models,
    optimizers,
)  # fmt: skip
OPERATORS: dict[str, Operator] = {row.name: row for module in GROUPS for row in module.ROWS}

WITHOUT = {
    "mod": "another name of remainder",
    "absolute": "another name of abs",
    "invert": "another name of bitwise_not",
    "concat": "another name of concatenate",
    "gather": "another name of take",
    "array": "it moves data of the host, and computes nothing",
    "asarray": "it moves data of the host, and computes nothing",
}
"""Operations of the catalogue that have no row -> why."""
