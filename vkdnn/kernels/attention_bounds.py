"""Whether a mask is no more than its bounds: blocks that lie inside them need no look at single pairs then.

It reads the body of an attention kernel and must never take a mask for bounds that is narrower than they are.
"""

from __future__ import annotations

import numpy as np

from vkdnn.ir.body import Body
from vkdnn.ir.dims import Dim

Linear = tuple[int, int, int]  # multiples of i and of j, and a constant
_LARGEST = 1 << 30  # of a constant: positions with it added stay in int32


def constant(body: Body, position: int | None) -> int | None:
    """The value of an int32 constant; None for anything else."""
    if position is None or body.instrs[position].kind != "const":
        return None
    return int(np.uint32(body.instrs[position].attrs[0]).view(np.int32))


def only_bounds(body: Body, visible: int, low: int | None, high: int | None) -> bool:
    """Whether every pair with low <= j - i <= high is visible, positions of the body given; bounds may be missing."""
    lowest, highest = constant(body, low), constant(body, high)

    def holds(position: int) -> bool:
        instr = body.instrs[position]
        row = instr.attrs[0] if instr.kind == "op" else ""
        if row in ("bitwise_and", "logical_and"):
            return all(holds(a) for a in instr.args)
        if row not in ("less", "less_equal"):
            return False
        left, right = (_linear(body, a) for a in instr.args)
        if left is None or right is None:
            return False
        i, j, rest = (x - y for x, y in zip(left, right, strict=True))
        rest += row == "less"  # i and j times their multiples, plus rest, is at most 0
        if (i, j) == (-1, 1):
            return highest is not None and highest <= -rest
        return (i, j) == (1, -1) and lowest is not None and lowest >= rest

    return holds(visible)


def _linear(body: Body, position: int) -> Linear | None:
    instr = body.instrs[position]
    if instr.kind == "index":
        index = instr.attrs[0]
        if not isinstance(index.offset, Dim) and index.offset == 0 and index.strides in ((0, 0, 1, 0), (0, 0, 0, 1)):
            return (index.strides[2], index.strides[3], 0)
        return None
    if instr.kind == "const" and instr.dtype.category == "i":
        value = constant(body, position)
        return (0, 0, value) if value is not None and abs(value) <= _LARGEST else None
    if instr.kind == "op" and instr.attrs[0] in ("add", "sub"):
        parts = [_linear(body, a) for a in instr.args]
        if all(p is not None and (p[:2] == (0, 0)) == (n == 1) for n, p in enumerate(parts)):
            sign = 1 if instr.attrs[0] == "add" else -1
            (i, j, rest), (_, _, more) = parts  # type: ignore[misc]
            return (i, j, rest + sign * more) if abs(rest + sign * more) <= _LARGEST else None
    return None
