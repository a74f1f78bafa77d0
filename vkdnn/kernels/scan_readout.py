"""ReadoutSpec: what the tokens of chunks read from a chunked scan, in one kernel: the products inside a chunk and the
state before it.

It must never let a schedule touch the order, and never use what a token does not see.

For every batch entry, chunk and head, with tokens t, i < CHUNK, rows r of the state and columns k::

    score(t, i) = sum over k of mul(q_t[k], w_i[k])
    inner_t[r]  = sum over the tokens i that t sees, ascending, from +0, of mul(score(t, i), u_i[r])
    inter_t[r]  = sum over k of mul(q_t[k], S[r][k]), or a zero where the state does not reach token t
    out_t[r]    = add(inter_t[r], inner_t[r])

Sums over k run in sequence from +0 inside blocks of 128, block sums added in sequence. Token t sees the tokens from
low[t] (else 0) to t, with ``reverse`` those from t to high[t] - 1 (else the last). Graphs are built of the parts
(vkdnn.ops.scan_orders); vkdnn.fusion.scans finds them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, float32
from vkdnn.ir.body import Affine
from vkdnn.ir.dims import minimum, same
from vkdnn.kernels.base import MAX_GROUPS, Array, Cost, Groups, KernelSpec, Operand, Results, Target
from vkdnn.kernels.matmul import product
from vkdnn.kernels.scan_chunk import CHUNK, masked_sums
from vkdnn.kernels.scan_reference import operand
from vkdnn.numerics import basic

FAMILY = "scan_readout"
_TILES = ((8, 4, True), (4, 8, False), (8, 4, False), (4, 8, True))  # own, step, wide: fastest first (H200)
BATCH = ("b", "chunk", "h")
At = tuple[int, Affine]  # a binding, and where an operand's elements lie in it


@dataclass(frozen=True)
class ReadoutCall:
    """Parameters of a call. Arguments: q [B, C, H, M, K], w [B, C, H, M, K], u [B, C, H, M, R], state [B, C, H, R, K];
    then, if ``limited``, low [B, C, M] (int32), with ``reverse`` high; then, if there is an ``unreached``, reached
    [B, C, M] (bool), false where inter is the zero ``unreached`` instead. The result is [B, C, M, H, R].
    """

    reverse: bool
    limited: bool
    unreached: int | None  # its bits


@dataclass(frozen=True)
class ReadoutSchedule:
    """Rows of the state an invocation has (4 or 8, of 4 tokens), columns of operands in shared memory at a time and how
    many of them are unrolled, and whether operands are read by vectors of four.
    """

    own: int
    stage: int
    step: int
    wide: bool
    unroll: bool


@dataclass(frozen=True)
class ReadoutSpec(KernelSpec):
    """See the module. Operands are (binding, index over the operand's own axes, as ReadoutCall names them)."""

    chunks: int
    heads: int
    rows: int
    columns: int
    reverse: bool
    unreached: int | None  # its bits
    q: At
    w: At
    u: At
    state: At
    limit: At | None  # low, or high if ``reverse``
    reached: At | None
    input_dtypes: tuple[DType, ...]

    template = "scan_readout.comp.j2"
    fixed = ("heads", "rows", "columns")
    size_names = ("batches",)

    @property
    def outputs(self) -> tuple[DType, ...]:
        return (float32,)

    def text(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in _PLAIN]
        return "\n".join(
            [
                f"scan readout {'reverse' if self.reverse else 'forward'} (batches, {self.chunks}, {self.heads}) "
                f"rows {self.rows} columns {self.columns}",
                *(f"  {name} in{at[0]}[{at[1]}]" for name, at in given if at is not None),
                *([] if self.unreached is None else [f"  unreached {self.unreached:#010x}"]),
                f"  inputs {', '.join(map(str, self.input_dtypes))}",
                "",
            ]
        )

    def schedules(self, target: Target) -> tuple[ReadoutSchedule, ...]:
        unroll = not target.software
        found = [ReadoutSchedule(own, 8, step, wide, unroll) for own, step, wide in _TILES]
        return tuple(x for x in found if not x.wide or self._wide(x.stage))

    def groups(self, sizes: tuple[int, ...], schedule: ReadoutSchedule) -> Groups:
        return (-(-self.rows // 64), 1, minimum(sizes[0] * self.chunks * self.heads, MAX_GROUPS))

    def context(self, schedule: ReadoutSchedule) -> dict[str, Any]:
        def at(x: At | None, *dims: str) -> str:
            return f"in{x[0]}[{glsl.affine(x[1], [*BATCH, *dims], f'base_in{x[0]}')}]" if x else ""

        def staged(name: str, x: At, *dims: str) -> dict[str, Any]:
            """An operand at k and the token or row ``place``, and which of the two are neighbours in memory."""
            index, along_k = at(x, *dims), name != "u" and abs(x[1].strides[-1]) <= abs(x[1].strides[-2])
            return {
                "name": name,
                "at": f"wide_{index[:-1].replace('[', '[(')}) / 4u]" if wide else index,
                "along_k": along_k,
            }

        wide = schedule.wide
        return {
            "wide": [f"in{n}" for n in sorted({x[0] for x in (self.q, self.w, self.u, self.state)})] if wide else (),
            "local_size": (1024 // schedule.own, 1),
            "stage": schedule.stage,
            "unroll": schedule.unroll,
            "own": schedule.own,
            "step": schedule.step,
            "chunks": self.chunks,
            "heads": self.heads,
            "rows": self.rows,
            "columns": self.columns,
            "reverse": self.reverse,
            "operands": [
                staged("q", self.q, "place", "k"),
                staged("w", self.w, "place", "k"),
                staged("s", self.state, "place", "k"),
                staged("u", self.u, "k", "place"),
            ],
            "limit": self._per_token(self.limit),
            "reached": self._per_token(self.reached),
            "unreached": "" if self.unreached is None else glsl.literal(self.unreached, float32),
        }

    def _wide(self, stage: int) -> bool:
        """Whether operands can be read by vectors of four: neighbours in memory lie along an axis, in whole fours."""

        def fours(x: At, unit: int) -> bool:
            rest = [n for a, n in enumerate(x[1].strides) if a != len(x[1].strides) + unit]
            return x[1].strides[unit] == 1 and all(same(n % 4, 0) for n in (*rest, x[1].offset))

        whole = self.rows % 64 == 0 and self.columns % stage == 0
        state = fours(self.state, -1) or fours(self.state, -2)
        return whole and state and all(fours(x, -1) for x in (self.q, self.w, self.u))

    @staticmethod
    def _per_token(x: At | None) -> str:
        return f"in{x[0]}[{glsl.affine(x[1], ['b', 'chunk', 'place'], f'base_in{x[0]}')}]" if x else ""

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        batch = (sizes[0], self.chunks, self.heads)
        q, w = (operand(inputs, x, (*batch, CHUNK, self.columns)) for x in (self.q, self.w))
        u = operand(inputs, self.u, (*batch, CHUNK, self.rows))
        state = operand(inputs, self.state, (*batch, self.rows, self.columns))
        limit, reached = (operand(inputs, x, (*batch[:2], CHUNK)) for x in (self.limit, self.reached))
        inner = masked_sums(_products(q, w), u, "reverse" if self.reverse else "forward", limit, limit)
        inter = _products(q, state)
        if reached is not None:
            zero = np.asarray(self.unreached, np.uint32).view(np.float32)
            inter = np.where(reached[:, :, None, :, None] != 0, inter, zero)
        total = outputs[0].reshape(*batch[:2], CHUNK, self.heads, self.rows)
        total[:] = np.swapaxes(basic.add(inter, inner), 2, 3)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        batch = sizes[0] * self.chunks * self.heads
        pairs = CHUNK * (CHUNK + 1) // 2
        products = pairs * (self.columns + self.rows) + CHUNK * self.rows * self.columns
        words = 2 * CHUNK * self.columns + 2 * CHUNK * self.rows + self.rows * self.columns
        return Cost(batch * (2 * products + CHUNK * self.rows), 4 * batch * words)


_PLAIN = ("chunks", "heads", "rows", "columns", "reverse", "unreached", "input_dtypes")


def _products(a: Array, b: Array) -> Array:
    """[..., M, N]: rows of a [..., M, K] times rows of b [..., N, K]."""
    pairs = zip(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), strict=True)
    return np.stack([product(x, np.ascontiguousarray(y.T)) for x, y in pairs]).reshape(*a.shape[:-1], b.shape[-2])


def build_readout(
    parameters: ReadoutCall, operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a call; see vkdnn.kernels.calls."""
    at = [(i, x.index) for i, x in enumerate(operands)]
    zero = parameters.unreached
    batches, chunks, heads, rows, columns = operands[3].shape
    spec = ReadoutSpec(
        chunks,
        heads,
        rows,
        columns,
        parameters.reverse,
        zero,
        at[0],
        at[1],
        at[2],
        at[3],
        at[4] if parameters.limited else None,
        None if zero is None else at[-1],
        tuple(x.dtype for x in operands),
    )
    return spec, (batches,)
