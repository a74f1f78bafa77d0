"""ScanSpec: running sums of outer products, read out token by token; the kernel of ``order="sequential"``.

It must never let a schedule touch the order: each element of the state is one sequence over the tokens, each
readout one sequence over the state's columns.

For every batch entry and head, with columns c, rows r and tokens t::

    state[r][c] = add(state[r][c], D_t[r][c])
    D_t[r][c]   = mul(u_t[r], w_t[c]) for a term (u, w), the array's element for a dense term; several terms
                  are added to each other in their order first
    out_t[r]    = sum over c of mul(state[r][c], read_t[c]): from +0 in sequence inside blocks of 128, block
                  sums added in sequence (the order of a matrix product)

Tokens are visited from the first to the last, with ``reverse`` from the last to the first. The state starts
from ``initial`` or +0 and is set to +0 between two tokens of which the later one starts a document; forward
also before token 0, in reverse also after it (``final`` is +0 then), so that the two directions are each
other's gradients. At the same places a ``decay`` other than 1 multiplies every element of the state, which is
+0 by then where a document starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, float32
from vkdnn.ir import build
from vkdnn.ir.body import Affine
from vkdnn.ir.dims import minimum
from vkdnn.ir.node import Node, Shape
from vkdnn.kernels.base import MAX_GROUPS, Array, Cost, Groups, KernelSpec, Operand, Results, Target

FAMILY = "scan"
MAX_COLUMNS = 256  # an invocation holds a row of the state
PARTS = ((16, 16), (8, 16), (16, 8), (8, 8))  # columns of a part, tokens of a stage: fastest first (H200)
UNROLLED_COLUMNS = 64  # wider rows stay an array: unrolled they spill out of the registers
OUT, FINAL, STATES = range(3)
RESULT_NAMES = ("out", "final", "states")

Term = tuple[Node, Node] | Node


@dataclass(frozen=True)
class ScanCall:
    """Parameters of a call node: sizes, direction, and which arguments there are (terms first, in order)."""

    batches: int
    tokens: int
    heads: int
    rows: int
    columns: int
    reverse: bool
    dense: tuple[bool, ...]  # of each term: one dense argument instead of two factors
    read: bool
    initial: bool
    boundary: bool
    decay: float = 1.0


def scan(
    terms: Sequence[Term],
    shape: Shape,
    read: Node | None = None,
    initial: Node | None = None,
    boundary: Node | None = None,
    reverse: bool = False,
    decay: float = 1.0,
) -> list[Node]:
    """The nodes (out, final, states) of a scan over ``shape`` = (B, T, H, R, C); what nobody uses is not
    computed.

    A term is a pair u [B, T, H, R], w [B, T, H, C] or a dense D [B, T, H, R, C]. ``read`` [B, T, H, C],
    ``initial`` [B, H, R, C] and ``boundary`` [B, T] (int32; nonzero where a document starts) may be left out.
    ``out`` is [B, T, H, R], ``final`` [B, H, R, C], ``states`` [B, T, H, R, C]; all arrays float32.
    """
    batches, tokens, heads, rows, columns = shape
    args: list[Node] = []
    for term in terms:
        args += [term] if isinstance(term, Node) else term
    args += [x for x in (read, initial, boundary) if x is not None]
    dense = tuple(isinstance(term, Node) for term in terms)
    given = (read is not None, initial is not None, boundary is not None)
    parameters = ScanCall(batches, tokens, heads, rows, columns, reverse, dense, *given, decay)
    per_token, state = (batches, tokens, heads), (heads, rows, columns)
    results = (
        ((*per_token, rows), float32),
        ((batches, *state), float32),
        ((batches, tokens, *state), float32),
    )
    return build.call(FAMILY, tuple(args), parameters, results)


def split_arguments(parameters: ScanCall, args: Sequence[Any]) -> tuple[list[Any], Any, Any, Any]:
    """(terms, read, initial, boundary) of a call's arguments; None for what is left out."""
    rest = iter(args)
    terms = [next(rest) if dense else (next(rest), next(rest)) for dense in parameters.dense]
    read, initial, boundary = (
        next(rest) if given else None for given in (parameters.read, parameters.initial, parameters.boundary)
    )
    return terms, read, initial, boundary


@dataclass(frozen=True)
class ScanSchedule:
    """Invocations a workgroup, rows an invocation holds, whether columns are unrolled into registers, and how
    many tokens' columns the workgroup loads into shared memory at a time (0: none, every row loads them
    itself).

    Several rows share the loads of w and read: best where loads are dear (software devices). With a ``part`` 32
    neighbours have so many columns of 32 rows, and the next 32 the next columns (0: an invocation has whole rows).
    """

    invocations: int
    own_rows: int
    unrolled: bool
    stage: int
    part: int = 0


@dataclass(frozen=True)
class ScanSpec(KernelSpec):
    """See the module. Indices are over the operand's own axes; batches and tokens come from ``sizes``.

    Operands are (binding, index): terms hold one (dense) or two, ``results`` the numbers of the results
    wanted.
    """

    heads: int
    rows: int
    columns: int
    reverse: bool
    terms: tuple[tuple[tuple[int, Affine], ...], ...]
    read: tuple[int, Affine] | None
    initial: tuple[int, Affine] | None
    boundary: tuple[int, Affine] | None
    input_dtypes: tuple[DType, ...]
    results: tuple[int, ...]
    decay: float = 1.0

    template = "scan_rows.comp.j2"
    fixed = ("heads", "rows", "columns")
    size_names = ("batches", "tokens")

    @property
    def outputs(self) -> tuple[DType, ...]:
        return (float32,) * len(self.results)

    def text(self) -> str:
        def operand(at: tuple[int, Affine]) -> str:
            return f"in{at[0]}[{at[1]}]"

        direction = "reverse" if self.reverse else "forward"
        lines = [f"scan {direction} (batches, tokens) heads {self.heads} rows {self.rows} columns {self.columns}"]
        lines += [f"  term {' x '.join(map(operand, term))}" for term in self.terms]
        for name in ("read", "initial", "boundary"):
            at = getattr(self, name)
            if at is not None:
                lines.append(f"  {name} {operand(at)}")
        if self.decay != 1.0:
            lines.append(f"  decay {np.float32(self.decay).item().hex()}")
        lines += [f"  out{k} = {RESULT_NAMES[r]}" for k, r in enumerate(self.results)]
        dtypes = ", ".join(map(str, self.input_dtypes))
        return "\n".join([*lines, f"  inputs {dtypes}", ""])

    def schedules(self, target: Target) -> tuple[ScanSchedule, ...]:
        stage = min(16, 2048 // self.columns)
        single = ScanSchedule(32, 1, self.columns <= UNROLLED_COLUMNS, stage)
        looped, several = ScanSchedule(64, 1, False, 0), ScanSchedule(8, 4, False, 0)
        parts = self._parts(target)
        if target.software:  # spare rows cost as much as real ones there
            return (several if self.rows > 8 else ScanSchedule(8, 1, False, 0), looped, single, *parts[:2])
        return (*parts, single, looped, several)

    def _parts(self, target: Target) -> tuple[ScanSchedule, ...]:
        """The schedules that share the columns of a row out, where whole parts hold them all and one block does."""
        if STATES in self.results or not self.terms or any(len(term) == 1 for term in self.terms):
            return ()
        found = []
        for part, stage in PARTS if self.columns >= 8 else ((self.columns, 32),):
            parts, rest = divmod(self.columns, part)
            words = 2 * stage * ((len(self.terms) + 1) * self.columns + parts + 32 * (parts - 1))
            fits = 32 * parts <= target.max_invocations and 4 * words <= target.shared_bytes
            if parts and not rest and self.columns <= 128 and fits:
                found.append(ScanSchedule(32 * parts, 1, not target.software, stage, part))
        # Where little is known of the device, what compiles fast goes first.
        return tuple(found if target.subgroup_size >= 32 else found[::-1])

    def groups(self, sizes: tuple[int, ...], schedule: ScanSchedule) -> Groups:
        tiles = -(-self.rows // (32 if schedule.part else schedule.invocations * schedule.own_rows))
        return (minimum(tiles, MAX_GROUPS), minimum(sizes[0] * self.heads, MAX_GROUPS), 1)

    def context(self, schedule: ScanSchedule) -> dict[str, Any]:
        def at(operand: tuple[int, Affine] | None, dims: list[str]) -> str:
            """GLSL of an element; ROW stands for the row."""
            if operand is None:
                return ""
            slot, index = operand
            return f"in{slot}[{glsl.affine(index, dims, f'base_in{slot}')}]"

        def split(operand: tuple[int, Affine], dims: list[str]) -> dict[str, str]:
            """An element whose column is the last axis: what the columns share, and the column's step."""
            slot, index = operand
            shared = Affine(index.offset, (*index.strides[:-1], 0))
            return {
                "name": f"in{slot}",
                "base": glsl.affine(shared, dims, f"base_in{slot}"),
                "step": f"{index.strides[-1]}u" if index.strides[-1] >= 0 else f"uint({index.strides[-1]})",
            }

        token = ["b", "t", "h"]
        terms = [
            {"factor": "", "columns": split(term[0], [*token, "ROW", "0u"])}
            if len(term) == 1
            else {"factor": at(term[0], [*token, "ROW"]), "columns": split(term[1], [*token, "0u"])}
            for term in self.terms
        ]
        per_column = {f"w{k}": term["columns"] for k, term in enumerate(terms) if term["factor"]}
        read = split(self.read, [*token, "0u"]) if self.read and OUT in self.results else None
        if read:
            per_column["read"] = read
        return {
            "local_size": (schedule.invocations, 1),
            "own_rows": schedule.own_rows,
            "tile_rows": schedule.own_rows * schedule.invocations,
            "unrolled": schedule.unrolled,
            "parts": self.columns // schedule.part if schedule.part else 0,
            "own": schedule.part,
            "heads": self.heads,
            "rows": self.rows,
            "columns": self.columns,
            "reverse": self.reverse,
            "terms": terms,
            "read": read,
            "per_column": per_column,
            "stage": schedule.stage if per_column else 0,
            "initial": split(self.initial, ["b", "h", "ROW", "0u"]) if self.initial else None,
            "decay": glsl.literal(int(np.float32(self.decay).view(np.uint32)), float32) if self.decay != 1.0 else "",
            "boundary": at(self.boundary, ["b", "t"]),
            "boundary_next": at(self.boundary, ["b", "(t + 1u)"]),
            "boundary_first": at(self.boundary, ["b", "0u"]),
            "stores": {
                name: f"out{self.results.index(r)}" if r in self.results else "" for r, name in enumerate(RESULT_NAMES)
            },
        }

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        from vkdnn.kernels.scan_reference import run_scan

        run_scan(self, sizes, inputs, outputs)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        batches, tokens = sizes
        elements = batches * tokens * self.heads * self.rows * self.columns
        per_row, per_column = (batches * tokens * self.heads * n for n in (self.rows, self.columns))
        flops = (sum(1 if len(term) == 1 else 2 for term in self.terms) + (self.decay != 1.0)) * elements
        words = sum(elements if len(term) == 1 else per_row + per_column for term in self.terms)
        if OUT in self.results:
            flops += 2 * elements
            words += per_row + per_column
        words += elements * (STATES in self.results)
        words += elements // tokens * ((FINAL in self.results) + (self.initial is not None))
        return Cost(flops, 4 * words)


def build_scan(
    parameters: ScanCall, operands: Sequence[Operand], results: Results, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec of a call; see vkdnn.kernels.calls."""
    indexed = [(i, operand.index) for i, operand in enumerate(operands)]
    terms, read, initial, boundary = split_arguments(parameters, indexed)
    spec = ScanSpec(
        parameters.heads,
        parameters.rows,
        parameters.columns,
        parameters.reverse,
        tuple((term,) if dense else term for term, dense in zip(terms, parameters.dense, strict=True)),
        read,
        initial,
        boundary,
        tuple(operand.dtype for operand in operands),
        wanted,
        parameters.decay,
    )
    return spec, (parameters.batches, parameters.tokens)
