"""The operations of vkdnn as the checks know them, one module a group, each with its float64 twin.

OPERATORS is the one list; an operation of vkdnn.catalogue without a row here must be named in WITHOUT.
"""

from __future__ import annotations

from vkdnn.check.library import arrays, attention, indices, norms, orders, products, reductions, rows, scans, shapes
from vkdnn.check.operator import Operator

GROUPS = (rows, arrays, shapes, indices, reductions, norms, products, orders, attention, scans)
OPERATORS: dict[str, Operator] = {row.name: row for module in GROUPS for row in module.ROWS}
