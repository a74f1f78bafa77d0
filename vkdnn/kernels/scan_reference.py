"""The scans in NumPy: the oracle of the kernels in vkdnn.kernels.scan, in the same orders.

It must stay plain: each loop is one sequence of the contract, everything independent of it is vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkdnn.ir.body import Affine, strided
from vkdnn.kernels.base import Array
from vkdnn.kernels.matmul import BLOCK_K
from vkdnn.numerics import basic

if TYPE_CHECKING:
    from vkdnn.kernels.scan import ScanSpec


def operand(inputs: Sequence[Array], at: tuple[int, Affine] | None, extents: tuple[int, ...]) -> Any:
    """The elements an affine index reads, as an array of these extents; None for an operand left out."""
    if at is None:
        return None
    slot, index = at
    view = strided(inputs[slot], index.offset, index.strides, extents)
    return np.broadcast_to(view, extents)


def row_sums(products: Array) -> Array:
    """``products`` [N, ...] summed over the first axis in the order of a matrix product."""
    total: Array | None = None
    for start in range(0, products.shape[0], BLOCK_K):
        block = np.zeros(products.shape[1:], np.float32)
        for row in products[start : start + BLOCK_K]:
            block = basic.add(block, row)
        total = block if total is None else basic.add(total, block)
    assert total is not None
    return total


def run_scan(spec: ScanSpec, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """A ScanSpec. The state is kept as [C, B, H, R], so that a readout adds whole arrays over its first
    axis.
    """
    from vkdnn.kernels.scan import FINAL, OUT, STATES

    batches, tokens = sizes
    heads, rows, columns = spec.heads, spec.rows, spec.columns
    per_token, per_state = (batches, tokens, heads), (batches, heads, rows, columns)
    terms = [
        tuple(
            operand(inputs, at, (*per_token, *last))
            for at, last in zip(term, [(rows, columns)] if len(term) == 1 else [(rows,), (columns,)], strict=True)
        )
        for term in spec.terms
    ]
    out, final, states = (
        outputs[spec.results.index(r)].reshape(shape) if r in spec.results else None
        for r, shape in (
            (OUT, (*per_token, rows)),
            (FINAL, per_state),
            (STATES, (batches, tokens, heads, rows, columns)),
        )
    )
    read = operand(inputs, spec.read, (*per_token, columns)) if out is not None else None
    boundary = operand(inputs, spec.boundary, (batches, tokens))
    initial = operand(inputs, spec.initial, per_state)
    decay = None if spec.decay == 1.0 else np.asarray(spec.decay, np.float32)
    state = np.zeros((columns, batches, heads, rows), np.float32)
    if initial is not None:
        state[:] = np.moveaxis(initial, -1, 0)

    def cross(at: int) -> None:
        if boundary is not None:
            state[:, boundary[:, at] != 0] = 0.0
        if decay is not None:
            state[:] = basic.mul(state, decay)

    for step in range(tokens):
        t = tokens - 1 - step if spec.reverse else step
        if not spec.reverse:
            cross(t)
        elif step:
            cross(t + 1)
        increment: Array | None = None
        for term in terms:
            if len(term) == 1:
                d = np.moveaxis(term[0][:, t], -1, 0)
            else:
                d = basic.mul(term[0][:, t][None], np.moveaxis(term[1][:, t], -1, 0)[..., None])
            increment = d if increment is None else basic.add(increment, d)
        if increment is not None:
            state = basic.add(state, increment)
        if out is not None:
            assert read is not None
            out[:, t] = row_sums(basic.mul(state, np.moveaxis(read[:, t], -1, 0)[..., None]))
        if states is not None:
            states[:, t] = np.moveaxis(state, 0, -1)
    if final is not None:
        if spec.reverse:
            cross(0)
        final[:] = np.moveaxis(state, 0, -1)
