"""Scans of outer products: the running states of linear attention, read out token by token.

The order of every addition is part of the operation; batch size, splits of the sequence and devices never
change a bit.

Orders
------
D_t is the outer product that token t adds to the state S; a boundary marks the first token of a document. All
sums "over k" of products run in sequence from +0 inside blocks of 128, block sums added in sequence (the
order of a matrix product). p . (A p) and r . (B p) are such sums as well.

sequential
    S[v][k] = add(S[v][k], D_t[v][k]), token by token, from the initial state or +0. Prefix scans visit tokens
    in ascending order and set S to +0 before a boundary token; suffix scans visit them in descending order
    and set S to +0 before token t if t + 1 is a boundary. A prefix scan with ``decay`` multiplies S by it
    before every token, also before token 0. A readout is a sum over k. D of several terms is
    add(add(D1, D2), D3), each a product p[v] r[k] (``scale`` multiplies p first).

chunked
    Chunks are 64 tokens by absolute position from token 0; everything inside a chunk is added in ascending
    order. Prefix, with S the state before the chunk:
        score(t, i) = sum over k of k_i[k] p_t[k]
        inner_t[v]  = sum, from +0, over the tokens i of the chunk from the start of t's document to t of
                      score(t, i) v_i[v]
        inter_t[v]  = sum over k of S[v][k] p_t[k]
        out_t       = add(inter_t, inner_t), or inner_t alone if a boundary lies in the chunk at or before t
        D[v][k]     = sum, from +0, over the tokens i of the chunk from its last boundary on of v_i[v] k_i[k]
        S           = add(S, D), or D alone if the chunk has a boundary
    B^T r is the same with v and k exchanged and p = r; A is the same with v = k.
    Suffix, chunks visited from the last: i runs from t to the last token of t's document in the chunk; inter
    is left out if a boundary lies in the chunk after t; D is over the tokens before its first boundary.
    Each term of a sum of outer columns is scanned by itself, and results are added in the order of the terms.

``causal=False`` reads the state after the last token for all tokens (prefix), or D_t itself (suffix).

float16 and bfloat16 operands are scanned in float32; what is read out token by token is rounded once to their dtype,
if they share one, and states stay float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from vkdnn.array import Array, asarray, common_device
from vkdnn.device import Device
from vkdnn.dtypes import DType, as_dtype, float32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.node import Node, Shape
from vkdnn.kernels.scan import MAX_COLUMNS, Term
from vkdnn.kernels.scan_dot import row_dot
from vkdnn.ops.reduce import wide
from vkdnn.ops.scan_orders import ChunkedSum, SequentialSum, outer, readout, spans, where

ORDERS = ("sequential", "chunked")
STATES = ("a", "b", "s")  # results that are states
MAX_TERMS = 3


class ScanPrefix(NamedTuple):
    """Lazy results of scan_prefix_outer(); what is never asked for is never computed. ``btr`` and ``rbp`` are
    None without r; after scan_step() with a state that has no A, ``ap``, ``pap`` and ``a`` are None.
    """

    bp: Array
    """B_t p_t [B, T, H, V]"""
    ap: Array | None
    """A_t p_t [B, T, H, K]"""
    btr: Array | None
    """B_t^T r_t [B, T, H, K]"""
    pap: Array | None
    """p_t . (A_t p_t) [B, T, H]"""
    rbp: Array | None
    """r_t . (B_t p_t) [B, T, H]"""
    a: Array | None
    """A after the last token [B, H, K, K]"""
    b: Array
    """B after the last token [B, H, V, K]"""


class ScanSuffix(NamedTuple):
    """Lazy results of scan_suffix_outer(); None where x or y was not given, and ``sy`` unless K is V."""

    sx: Array | None
    """S_t x_t [B, T, H, V]"""
    sty: Array | None
    """S_t^T y_t [B, T, H, K]"""
    sy: Array | None
    """S_t y_t [B, T, H, V]"""
    s: Array
    """S_0 [B, H, V, K]"""


# ---- arguments


def check_operand(name: str, value: Any, like: Any, shape: Shape) -> Array:
    """``value`` as a float32 Array; ``shape`` may hold -1 for lengths that are free."""
    x = asarray(value, [like], name)
    if x.dtype.half:
        x = wide(x)
    if x.dtype is not float32:
        raise DtypeError(f"{name}: got {x.dtype}, expected float32 (convert with .astype)")
    if x.ndim != len(shape) or any(n not in (-1, m) for n, m in zip(shape, x.shape, strict=True)):
        expected = ", ".join("any" if n == -1 else str(n) for n in shape)
        raise ShapeError(f"{name}: got shape {x.shape}, expected [{expected}] (batch first: see the docstring)")
    if 0 in x.shape:
        raise ShapeError(f"{name}: got shape {x.shape}, expected at least one element along each axis")
    return x


def storage_type(*values: Any) -> DType:
    """The storage type that all given operands have, else float32."""
    names = {str(getattr(x, "dtype", "float32")) for x in values if x is not None}
    found = names.pop() if len(names) == 1 else "float32"
    return as_dtype(found) if found in ("float16", "bfloat16") else float32


def rounded(results: Any, dtype: DType) -> Any:
    """Named results with all but the states in a storage type."""
    if not dtype.half:
        return results
    per_token = {name: x.astype(dtype) for name, x in results._asdict().items() if name not in STATES and x is not None}
    return results._replace(**per_token)


def check_order(order: str, widths: dict[str, int]) -> None:
    if order not in ORDERS:
        raise ArgumentError(f"order: got {order!r}, expected one of {', '.join(ORDERS)}")
    for name, width in widths.items():
        if order == "sequential" and width > MAX_COLUMNS:
            raise ArgumentError(
                f"{name}: width {width}, but order='sequential' takes 1 to {MAX_COLUMNS}; use order='chunked'"
            )


def check_decay(decay: float, order: str, causal: bool) -> None:
    if not (isinstance(decay, (int, float)) and 2.0**-126 <= decay <= 1.0):
        raise ArgumentError(f"decay: got {decay!r}, expected a number over 0, up to 1")
    if decay != 1.0 and (order != "sequential" or not causal):
        raise ArgumentError(f"decay: got {decay} with order={order!r}, causal={causal}; needs 'sequential' and True")


def check_boundary(boundary: Any, like: Array, causal: bool) -> Node | None:
    """int32 [B, T], or None."""
    if boundary is None:
        return None
    if not causal:
        raise ArgumentError("boundary: got an array, but with causal=False there are no documents; leave it out")
    x = asarray(boundary, [like], "boundary")
    if x.dtype is float32:
        raise DtypeError("boundary: got float32, expected bool or integers (nonzero where a document starts)")
    if x.shape != like.shape[:2]:
        raise ShapeError(f"boundary: got shape {x.shape}, expected {like.shape[:2]} (batch, tokens)")
    return build.apply("to_int32", x.node)


def check_state(name: str, value: Any, like: Array, rows: int, columns: int) -> Node | None:
    """[B, H, rows, columns] of that or of [H, rows, columns]; None stays None."""
    if value is None:
        return None
    batches, _, heads, _ = like.shape
    x = asarray(value, [like], name)
    shape = (heads, rows, columns) if x.ndim == 3 else (batches, heads, rows, columns)
    return build.broadcast_to(check_operand(name, x, like, shape).node, (batches, heads, rows, columns))


# ---- prefix


def scan_prefix_outer(
    k: Any,
    v: Any,
    p: Any,
    r: Any = None,
    a0: Any = None,
    b0: Any = None,
    *,
    causal: bool = True,
    boundary: Any = None,
    order: str = "sequential",
    decay: float = 1.0,
) -> ScanPrefix:
    """A_t = A0 + sum of k_i k_i^T and B_t = B0 + sum of v_i k_i^T over i <= t of t's document, read out; see
             ScanPrefix.

    k, p [B, T, H, K]; v, r [B, T, H, V]; a0 [B, H, K, K] or [H, K, K], b0 [B, H, V, K] or [H, V, K], else
    zero; all float32. ``boundary`` [B, T] (bool or integers): nonzero where a document starts; the state is
    +0 before that token, so a0 and b0 serve the tokens before the first boundary. With ``causal=False`` all
    tokens read the total. ``order``: "sequential" (K and V up to 256) or "chunked" (parallel over chunks of
    64 tokens); see the module. ``decay`` (over 0 up to 1; sequential and causal only) weighs token i by
    decay^(t-i), the initial states by decay^(t+1). Raises ArgumentError, ShapeError or DtypeError for
    arguments that do not fit.
    """
    kept = storage_type(k, v, p, r)
    k = check_operand("k", k, None, (-1, -1, -1, -1))
    v = check_operand("v", v, k, (*k.shape[:3], -1))
    p = check_operand("p", p, k, k.shape)
    r = None if r is None else check_operand("r", r, k, v.shape)
    arrays = [k, v, p] + [x for x in (r, a0, b0, boundary) if isinstance(x, Array)]
    device = common_device("scan_prefix_outer", arrays)
    width, value_width = k.shape[-1], v.shape[-1]
    check_order(order, {"k": width, "v": value_width})
    check_decay(decay, order, causal)
    limits = check_boundary(boundary, k, causal)
    a_start = check_state("a0", a0, k, width, width)
    b_start = check_state("b0", b0, k, value_width, width)
    a_sum = _sum(k.node, k.node, a_start, limits, order, decay)
    b_sum = _sum(v.node, k.node, b_start, limits, order, decay)
    a_final = a_sum.final
    b_final = b_sum.final_beside(p.node) if causal and isinstance(b_sum, SequentialSum) else b_sum.final
    if causal:
        bp, ap = b_sum.out(p.node), a_sum.out(p.node)
        btr = None if r is None else b_sum.out(r.node, transpose=True)
    else:
        bp, ap = readout(b_final, p.node), readout(a_final, p.node)
        btr = None if r is None else readout(b_final, r.node, transpose=True)
    results = prefix_results(device, p.node, None if r is None else r.node, bp, ap, btr, a_final, b_final)
    return cast(ScanPrefix, rounded(results, kept))


def _sum(
    u: Node, w: Node, initial: Node | None, boundary: Node | None, order: str, decay: float
) -> SequentialSum | ChunkedSum:
    if order == "chunked":
        return ChunkedSum(u, w, initial, None if boundary is None else spans(boundary), False)
    return SequentialSum(((u, w),), (*u.shape, w.shape[-1]), initial, boundary, False, decay)


def prefix_results(
    device: Device | None,
    p: Node,
    r: Node | None,
    bp: Node,
    ap: Node | None,
    btr: Node | None,
    a: Node | None,
    b: Node,
) -> ScanPrefix:
    """The results as Arrays, with the scalars p . (A p) and r . (B p)."""

    def wrapped(node: Node | None) -> Array | None:
        return None if node is None else Array(node, device)

    return ScanPrefix(
        Array(bp, device),
        wrapped(ap),
        wrapped(btr),
        None if ap is None else Array(row_dot(p, ap), device),
        None if r is None else Array(row_dot(r, bp), device),
        wrapped(a),
        Array(b, device),
    )


# ---- outer columns


class OuterColumn:
    """Outer products p r^T of each token [B, T, H, P, R], or a sum of up to three, kept as their factors.

    scan_suffix_outer() takes it without ever storing the products; materialize() gives them as an Array.
    """

    def __init__(self, terms: tuple[tuple[Array, Array], ...]):
        self.terms = terms

    @property
    def shape(self) -> Shape:
        p, r = self.terms[0]
        return (*p.shape, r.shape[-1])

    def materialize(self) -> Array:
        """The products as an Array [B, T, H, P, R]; terms added in their order."""
        total: Array | None = None
        for p, r in self.terms:
            product = Array(outer(p.node, r.node), common_device("outer_col", [p, r]))
            total = product if total is None else total + product
        assert total is not None
        return total

    def __add__(self, other: OuterColumn) -> OuterColumn:
        if not isinstance(other, OuterColumn):
            return NotImplemented
        if other.shape != self.shape:
            raise ShapeError(f"outer_col: sums need equal shapes, got {self.shape} and {other.shape}")
        if len(self.terms) + len(other.terms) > MAX_TERMS:
            raise ArgumentError(f"outer_col: a sum holds at most {MAX_TERMS} terms; call .materialize() to add more")
        return OuterColumn(self.terms + other.terms)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.materialize().__array__(dtype)

    def __repr__(self) -> str:
        return f"<outer column {list(self.shape)}, {len(self.terms)} terms>"


def outer_col(p: Any, r: Any, scale: Any = None) -> OuterColumn:
    """p r^T of each token, times ``scale``: p [B, T, H, P], r [B, T, H, R], scale [B, T, H], float32.

    Elements are (p[i] scale) r[j]. The result is lazy: see OuterColumn.
    """
    p = check_operand("p", p, None, (-1, -1, -1, -1))
    r = check_operand("r", r, p, (*p.shape[:3], -1))
    if scale is not None:
        factor = check_operand("scale", scale, p, p.shape[:3])
        p = p * factor.reshape(*factor.shape, 1)
    return OuterColumn(((p, r),))


# ---- suffix


def scan_suffix_outer(
    d: Any,
    x: Any = None,
    y: Any = None,
    *,
    causal: bool = True,
    boundary: Any = None,
    order: str = "sequential",
) -> ScanSuffix:
    """S_i = sum of D_t over t >= i of i's document, read out; see ScanSuffix.

    ``d`` is an array [B, T, H, V, K] or an outer_col() (a sum of up to three), which is never stored. x [B,
    T, H, K] and y [B, T, H, V] may be left out; float32. ``boundary`` [B, T]: nonzero where a document
    starts. With ``causal=False`` S_i is D_i. ``order="chunked"`` takes outer columns only. Raises
    ArgumentError, ShapeError or DtypeError.
    """
    kept = storage_type(*(x for x in (x, y) if x is not None))
    columns = d if isinstance(d, OuterColumn) else check_operand("d", d, x if x is not None else y, (-1,) * 5)
    batches, tokens, heads, value_width, width = shape = columns.shape
    like = columns.terms[0][0] if isinstance(columns, OuterColumn) else columns
    x = None if x is None else check_operand("x", x, like, (batches, tokens, heads, width))
    y = None if y is None else check_operand("y", y, like, (batches, tokens, heads, value_width))
    arrays = [a for pair in columns.terms for a in pair] if isinstance(columns, OuterColumn) else [columns]
    device = common_device("scan_suffix_outer", [*arrays, *(a for a in (x, y, boundary) if isinstance(a, Array))])
    check_order(order, {"d": max(width, value_width)})
    limits = check_boundary(boundary, like, causal)
    terms: list[Term]
    if isinstance(columns, OuterColumn):
        terms = [(p.node, r.node) for p, r in columns.terms]
    else:
        terms = [columns.node]
    sums = _suffix_sums(terms, shape, limits, order) if causal else [_each_token(terms, shape)]

    def out(read: Array | None, transpose: bool) -> Array | None:
        if read is None:
            return None
        node = read.node if causal else build.reshape(read.node, (batches * tokens, 1, heads, read.shape[-1]))
        total = _added([s.out(node, transpose) for s in sums])
        return Array(build.reshape(total, (batches, tokens, heads, total.shape[-1])), device)

    final = _added([s.final for s in sums])
    if not causal:
        first = build.reshape(final, (batches, tokens, heads, value_width, width))
        first = build.slice_(first, (0,) * 5, (batches, 1, *first.shape[2:]), (1,) * 5)
        final = build.reshape(first, (batches, heads, value_width, width))
    square = width == value_width
    results = ScanSuffix(out(x, False), out(y, True), out(y, False) if square else None, Array(final, device))
    return cast(ScanSuffix, rounded(results, kept))


def _suffix_sums(
    terms: list[Term], shape: Shape, boundary: Node | None, order: str
) -> list[SequentialSum] | list[ChunkedSum]:
    """The sums whose results add up to the scan's."""
    if boundary is not None:
        # That token 0 starts a document takes nothing from S_0; the kernels would clear the state they leave.
        boundary = where(build.apply("equal", build.iota(boundary.shape, 1), 0), 0, boundary)
    if order == "sequential":
        return [SequentialSum(tuple(terms), shape, None, boundary, True)]
    limits = None if boundary is None else spans(boundary)
    chunked = []
    for term in terms:
        if isinstance(term, Node):
            raise ArgumentError(
                "d: got an array, but order='chunked' takes vk.outer_col(p, r); use it or order='sequential'"
            )
        chunked.append(ChunkedSum(term[0], term[1], None, limits, True))
    return chunked


def _each_token(terms: list[Term], shape: Shape) -> SequentialSum:
    """Every token a sequence of its own: the state is its D."""

    def alone(x: Node) -> Node:
        return build.reshape(x, (x.shape[0] * x.shape[1], 1, *x.shape[2:]))

    own: list[Term] = [alone(t) if isinstance(t, Node) else (alone(t[0]), alone(t[1])) for t in terms]
    return SequentialSum(tuple(own), (shape[0] * shape[1], 1, *shape[2:]), None, None, True)


def _added(nodes: list[Node]) -> Node:
    total = nodes[0]
    for node in nodes[1:]:
        total = total + node
    return total


__all__ = ["OuterColumn", "ScanPrefix", "ScanSuffix", "outer_col", "scan_prefix_outer", "scan_suffix_outer"]
