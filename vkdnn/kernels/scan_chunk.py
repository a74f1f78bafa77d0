"""The kernels of ``order="chunked"`` that are no plain matrix products: masked products inside chunks, and
running states.

They must never read what a token does not see: a masked token contributes nothing, even if it is NaN.

Chunks are CHUNK tokens by position from token 0. A chunked scan is five steps (vkdnn.ops.scan_orders), of
which the scores, the chunk sums and the readout of the states are matrix products; here are the two others::

    product   out_t[r] = sum over the tokens i that t sees, ascending, from +0, of mul(scores[t][i], u_i[r])
    states    S_c = state before chunk c; S_next = add(S_c, D_c), or D_c alone if the chunk drops what came
    before

Where invocations share memory fast, scores, products and readouts are one kernel (vkdnn.kernels.scan_readout).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, float32
from vkdnn.ir import build
from vkdnn.ir.body import Affine
from vkdnn.ir.dims import minimum, same
from vkdnn.ir.node import Node
from vkdnn.kernels.base import MAX_GROUPS, Array, Cost, Groups, KernelSpec, Operand, Results, Target, group_count
from vkdnn.kernels.expr import decompose
from vkdnn.kernels.scan_reference import operand
from vkdnn.numerics import basic

CHUNK = 64  # tokens
PRODUCT, STATES = "scan_product", "scan_states"


# ---- products inside chunks


@dataclass(frozen=True)
class ProductCall:
    """Parameters of a product: whom token t sees, and whether that is limited by ``low`` and ``high``.

    forward: i from low[t] (else 0) to t. reverse: i from t to high[t] - 1 (else the last). range: low[t] to
    high[t] - 1.
    """

    direction: str
    limited: bool


def product(
    scores: Node, u: Node, w: Node, q: Node, direction: str, low: Node | None = None, high: Node | None = None
) -> Node:
    """[B, C, M, H, R]: sums of the rows of u that each of M tokens sees, times its scores.

    ``scores`` [B, C, H, M, N] are q [B, C, H, M, K] times w [B, C, H, N, K], u is [B, C, H, N, R]. w and q
    are given for the derivative: through the scores it would multiply what is masked. ``low`` and ``high``
    are int32 [B, C, M].
    """
    batches, chunks, heads, rows, _ = scores.shape
    limits = () if low is None or high is None else (low, high)
    shape = (batches, chunks, rows, heads, u.shape[-1])
    return build.call(PRODUCT, (scores, u, w, q, *limits), ProductCall(direction, bool(limits)), ((shape, float32),))[0]


@dataclass(frozen=True)
class ProductSchedule:
    """Invocations a workgroup along columns and rows; rows and columns an invocation computes."""

    local: tuple[int, int]
    rows: int
    columns: int


@dataclass(frozen=True)
class ProductSpec(KernelSpec):
    """One product. ``scores``, ``u``, ``low`` and ``high`` are (binding, index over the operand's own
    axes).
    """

    chunks: int
    heads: int
    rows: int
    inner: int
    columns: int
    direction: str
    scores: tuple[int, Affine]
    u: tuple[int, Affine]
    low: tuple[int, Affine] | None
    high: tuple[int, Affine] | None
    input_dtypes: tuple[DType, ...]

    template = "scan_product.comp.j2"
    size_names = ("batches",)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return (float32,)

    def text(self) -> str:
        limits = [f"{n} in{x[0]}[{x[1]}]" for n, x in (("low", self.low), ("high", self.high)) if x]
        return "\n".join(
            [
                f"scan product {self.direction} (batches, {self.chunks}, {self.heads}) rows {self.rows} "
                f"inner {self.inner} columns {self.columns}",
                f"  scores in{self.scores[0]}[{self.scores[1]}] u in{self.u[0]}[{self.u[1]}]",
                f"  limits {' '.join(limits) or 'none'} inputs {', '.join(map(str, self.input_dtypes))}",
                "",
            ]
        )

    def schedules(self, target: Target) -> tuple[ProductSchedule, ...]:
        tiled, wide, single = (
            ProductSchedule((16, 1), 4, 4),
            ProductSchedule((32, 4), 4, 2),
            ProductSchedule((64, 1), 1, 1),
        )
        return (tiled, single, wide) if target.software else (wide, single, tiled)

    def groups(self, sizes: tuple[int, ...], schedule: ProductSchedule) -> Groups:
        across = -(-self.columns // (schedule.local[0] * schedule.columns))
        down = -(-self.rows // (schedule.local[1] * schedule.rows))
        batch = sizes[0] * self.chunks * self.heads
        return (minimum(across, MAX_GROUPS), minimum(down, MAX_GROUPS), minimum(batch, MAX_GROUPS))

    def context(self, schedule: ProductSchedule) -> dict[str, Any]:
        def at(x: tuple[int, Affine] | None, dims: list[str]) -> str:
            return f"in{x[0]}[{glsl.affine(x[1], dims, f'base_in{x[0]}')}]" if x else ""

        batch = ["b", "chunk", "h"]
        low, high = (at(x, ["b", "chunk", "ROW"]) for x in (self.low, self.high))
        return {
            "local_size": schedule.local,
            "own_rows": schedule.rows,
            "own_columns": schedule.columns,
            "chunks": self.chunks,
            "heads": self.heads,
            "rows": self.rows,
            "columns": self.columns,
            "score": at(self.scores, [*batch, "ROW", "i"]),
            "u": at(self.u, [*batch, "i", "COLUMN"]),
            "low": {"forward": f"uint({low})" if low else "0u", "reverse": "ROW", "range": f"uint({low})"}[
                self.direction
            ],
            "high": {
                "forward": "ROW + 1u",
                "reverse": f"uint({high})" if high else f"{self.inner}u",
                "range": f"uint({high})",
            }[self.direction],
        }

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        batch = (sizes[0], self.chunks, self.heads)
        scores = operand(inputs, self.scores, (*batch, self.rows, self.inner))
        u = operand(inputs, self.u, (*batch, self.inner, self.columns))
        low, high = (operand(inputs, at, (*batch[:2], self.rows)) for at in (self.low, self.high))
        total = masked_sums(scores, u, self.direction, low, high)
        outputs[0].reshape(*batch[:2], self.rows, self.heads, self.columns)[:] = np.swapaxes(total, 2, 3)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        batch = sizes[0] * self.chunks * self.heads
        pairs = self.rows * (self.rows + 1) // 2 if self.rows > 1 else self.inner
        words = self.rows * self.inner + (self.inner + self.rows) * self.columns
        return Cost(2 * batch * pairs * self.columns, 4 * batch * words)


def masked_sums(scores: Array, u: Array, direction: str, low: Array | None, high: Array | None) -> Array:
    """[B, C, H, M, R]: scores [B, C, H, M, N] times u [B, C, H, N, R], over what each row sees (limits [B, C, M])."""
    low, high = (x if x is None else x[:, :, None] for x in (low, high))
    t = np.arange(scores.shape[-2])
    first = t if direction == "reverse" else 0 if low is None else low
    stop = t + 1 if direction == "forward" else scores.shape[-1] if high is None else high
    total = np.zeros((*scores.shape[:-1], u.shape[-1]), np.float32)
    for i in range(scores.shape[-1]):
        seen = np.broadcast_to((first <= i) & (i < stop), scores.shape[:-1])[..., None]
        added = basic.add(total, basic.mul(scores[..., i, None], u[..., i, None, :]))
        total = np.where(seen, added, total)
    return total


def build_product(
    parameters: ProductCall, operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a call; see vkdnn.kernels.calls."""
    scores, u = operands[:2]
    limits = [(i, operands[i].index) if parameters.limited else None for i in (4, 5)]
    batches, chunks, heads, rows, inner = scores.shape
    spec = ProductSpec(
        chunks,
        heads,
        rows,
        inner,
        u.shape[-1],
        parameters.direction,
        (0, scores.index),
        (1, u.index),
        limits[0] if parameters.direction != "reverse" else None,
        limits[1] if parameters.direction != "forward" else None,
        tuple(o.dtype for o in operands),
    )
    return spec, (batches,)


# ---- states before each chunk


@dataclass(frozen=True)
class StatesCall:
    """Parameters: direction, and which optional arguments there are."""

    reverse: bool
    initial: bool
    drops: bool


def states(sums: Node, initial: Node | None, drops: Node | None, reverse: bool) -> list[Node]:
    """The nodes (states before each chunk [B, C, H, R, K], final [B, H, R, K]) of chunk sums [B, C, H, R, K].

    ``initial`` [B, H, R, K] (else +0); ``drops`` [B, C] int32: nonzero where the chunk's sum replaces the
    state instead of being added. ``reverse`` visits chunks from the last; "before" means in the order
    visited.
    """
    if sums.kind == "permute" and sums.attrs == ((0, 1, 2, 4, 3),):  # the states lie as their sums do
        initial = None if initial is None else build.permute(initial, (0, 1, 3, 2))
        before, after = states(sums.args[0], initial, drops, reverse)
        return [build.permute(before, (0, 1, 2, 4, 3)), build.permute(after, (0, 1, 3, 2))]
    given = tuple(x for x in (initial, drops) if x is not None)
    parameters = StatesCall(reverse, initial is not None, drops is not None)
    final = (sums.shape[0], *sums.shape[2:])
    return build.call(STATES, (sums, *given), parameters, ((sums.shape, float32), (final, float32)))


@dataclass(frozen=True)
class StatesSchedule:
    """Invocations a workgroup, each of which has one element of the state, and chunks whose sums it loads at a time:
    several hide the time that memory takes.
    """

    invocations: int = 64
    ahead: int = 1


@dataclass(frozen=True)
class StatesSpec(KernelSpec):
    """Running states over chunks; ``results`` are the numbers of the results wanted (0 states, 1 final)."""

    chunks: int
    state: tuple[int, int, int]  # H, R, K
    reverse: bool
    sums: Affine
    initial: tuple[int, Affine] | None
    drops: tuple[int, Affine] | None
    input_dtypes: tuple[DType, ...]
    results: tuple[int, ...]

    template = "scan_states.comp.j2"
    size_names = ("count",)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return (float32,) * len(self.results)

    def text(self) -> str:
        given = [f"{n} in{x[0]}[{x[1]}]" for n, x in (("initial", self.initial), ("drops", self.drops)) if x]
        direction = "reverse" if self.reverse else "forward"
        return "\n".join(
            [
                f"scan states {direction} (batches, {self.chunks}, {', '.join(map(str, self.state))})",
                f"  sums in0[{self.sums}] {' '.join(given)}",
                f"  results {', '.join(('states', 'final')[r] for r in self.results)}",
                "",
            ]
        )

    def schedules(self, target: Target) -> tuple[StatesSchedule, ...]:
        single, several = StatesSchedule(64), StatesSchedule(128, 8)
        return (single, several) if target.software else (several, single)

    def groups(self, sizes: tuple[int, ...], schedule: StatesSchedule) -> Groups:
        return (group_count(sizes[0], schedule.invocations), 1, 1)

    def context(self, schedule: StatesSchedule) -> dict[str, Any]:
        element = ["h", "r", "k"]
        lines = decompose("e", self.state, ["b", *element])
        initial, drops = self.initial, self.drops
        return {
            "local_size": (schedule.invocations, 1),
            "coordinates": lines,
            "chunks": self.chunks,
            "ahead": schedule.ahead,
            "ragged": not same(self.chunks % schedule.ahead, 0),
            "elements": math.prod(self.state),
            "reverse": self.reverse,
            "sum": f"in0[{glsl.affine(self.sums, ['b', 'chunk', *element], 'base_in0')}]",
            "initial": f"in{initial[0]}[{glsl.affine(initial[1], ['b', *element], f'base_in{initial[0]}')}]"
            if initial
            else "ZERO",
            "drop": f"in{drops[0]}[{glsl.affine(drops[1], ['b', 'chunk'], f'base_in{drops[0]}')}]" if drops else "",
            "states": f"out{self.results.index(0)}" if 0 in self.results else "",
            "final": f"out{self.results.index(1)}" if 1 in self.results else "",
        }

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        batches = sizes[0] // math.prod(self.state)
        sums = operand(inputs, (0, self.sums), (batches, self.chunks, *self.state))
        initial = operand(inputs, self.initial, (batches, *self.state))
        drops = operand(inputs, self.drops, (batches, self.chunks))
        before, final = (outputs[self.results.index(r)] if r in self.results else None for r in (0, 1))
        state = np.zeros((batches, *self.state), np.float32) if initial is None else initial.copy()
        for step in range(self.chunks):
            c = self.chunks - 1 - step if self.reverse else step
            if before is not None:
                before.reshape(sums.shape)[:, c] = state
            added = basic.add(state, sums[:, c])
            state = added if drops is None else np.where(drops[:, c, None, None, None] != 0, sums[:, c], added)
        if final is not None:
            final.reshape(state.shape)[:] = state

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        moved = sizes[0] * (self.chunks * (1 + (0 in self.results)) + (1 in self.results) + (self.initial is not None))
        return Cost(sizes[0] * self.chunks, 4 * moved)


def build_states(
    parameters: StatesCall, operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a call; see vkdnn.kernels.calls."""
    optional = list(enumerate(operands))[1:]
    initial = optional.pop(0) if parameters.initial else None
    drops = optional.pop(0) if parameters.drops else None
    batches, chunks, *state = operands[0].shape
    spec = StatesSpec(
        chunks,
        (state[0], state[1], state[2]),
        parameters.reverse,
        operands[0].index,
        (initial[0], initial[1].index) if initial else None,
        (drops[0], drops[1].index) if drops else None,
        tuple(o.dtype for o in operands),
        wanted,
    )
    return spec, (batches * math.prod(state),)
