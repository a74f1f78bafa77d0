"""Derivatives of the call families, in terms of the same families: so they can be differentiated again.

A rule must keep masks: what a token did not see gives and gets no gradient, even if it is NaN. Gradients of
the scans run in the other direction, in the order documented for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkdnn.errors import VkdnnError
from vkdnn.ir import build
from vkdnn.ir.node import Node
from vkdnn.kernels import scan, scan_chunk, scan_dot

CallRule = Callable[[Node, dict[int, Node], dict[int, Node]], Sequence[Node | None]]
"""(call, its result nodes, gradients of the results by number) -> a gradient or None for each argument."""


def _swapped(x: Node) -> Node:
    """x with its last two axes exchanged."""
    return build.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _transposed(terms: Sequence[scan.Term]) -> list[scan.Term]:
    """The terms of the transposed state."""
    return [_swapped(term) if isinstance(term, Node) else (term[1], term[0]) for term in terms]


def scan_rule(call: Node, results: dict[int, Node], gradients: dict[int, Node]) -> Sequence[Node | None]:
    """With state S_t, G_t (the gradient of S_t's increment) is the scan of g read^T in the other
    direction.
    """
    parameters = call.attrs[1]
    terms, read, initial, boundary = scan.split_arguments(parameters, call.args)
    g_out, g_final, g_states = (gradients.get(k) for k in (scan.OUT, scan.FINAL, scan.STATES))
    shape = (parameters.batches, parameters.tokens, parameters.heads, parameters.rows, parameters.columns)
    turned = (*shape[:3], shape[4], shape[3])
    back: list[scan.Term] = []
    if g_out is not None:
        back.append((g_out, read))
    if g_states is not None:
        back.append(g_states)
    reverse, decay = parameters.reverse, parameters.decay

    def gradient_scan(factor: Node | None, transpose: bool) -> list[Node]:
        if transpose:
            start = None if g_final is None else _swapped(g_final)
            return scan.scan(_transposed(back), turned, factor, start, boundary, not reverse, decay)
        return scan.scan(back, shape, factor, g_final, boundary, not reverse, decay)

    found: list[Node | None] = []
    total: Node | None = None
    for term in terms:
        if isinstance(term, Node):
            parts = gradient_scan(None, False)
            found.append(parts[scan.STATES])
        else:
            u, w = term
            parts = gradient_scan(w, False)
            found += [parts[scan.OUT], gradient_scan(u, True)[scan.OUT]]
        total = parts[scan.FINAL]
    if read is not None:
        if g_out is None:
            found.append(None)
        else:
            start = None if initial is None else _swapped(initial)
            found.append(scan.scan(_transposed(terms), turned, g_out, start, boundary, reverse, decay)[scan.OUT])
    if initial is not None:
        found.append(gradient_scan(None, False)[scan.FINAL] if total is None else total)
    if boundary is not None:
        found.append(None)
    return found


def product_rule(call: Node, results: dict[int, Node], gradients: dict[int, Node]) -> Sequence[Node | None]:
    """out_t = sum over seen i of (w_i . q_t) u_i; the sums over t that see i run in the other direction."""
    parameters = call.attrs[1]
    scores, u, w, q, *limits = call.args
    if parameters.direction == "range":
        raise VkdnnError("grad: scan_step has no derivative; differentiate scan_prefix_outer instead")
    g = build.permute(gradients[0], (0, 1, 3, 2, 4))
    other = "reverse" if parameters.direction == "forward" else "forward"

    def product(scores: Node, u: Node, w: Node, q: Node, direction: str) -> Node:
        out = scan_chunk.product(scores, u, w, q, direction, *limits)
        return build.permute(out, (0, 1, 3, 2, 4))

    along = build.matmul(g, _swapped(u))
    du = product(_swapped(scores), g, q, w, other)
    dw = product(_swapped(along), q, g, u, other)
    dq = product(along, w, u, g, parameters.direction)
    return [None, du, dw, dq, *(None for _ in limits)]


def states_rule(call: Node, results: dict[int, Node], gradients: dict[int, Node]) -> Sequence[Node | None]:
    """The gradient of a chunk's sum is the state of the gradients before it, coming from the other side."""
    parameters = call.attrs[1]
    sums, *rest = call.args
    initial = rest.pop(0) if parameters.initial else None
    drops = rest.pop(0) if parameters.drops else None
    g_states = gradients.get(0)
    if g_states is None:
        g_states = build.full(sums.shape, 0.0)
    d_sums, d_initial = scan_chunk.states(g_states, gradients.get(1), drops, not parameters.reverse)
    found: list[Node | None] = [d_sums]
    if initial is not None:
        found.append(d_initial)
    if drops is not None:
        found.append(None)
    return found


def dot_rule(call: Node, results: dict[int, Node], gradients: dict[int, Node]) -> Sequence[Node | None]:
    """d(a . b) = g b, g a."""
    a, b = call.args
    g = build.reshape(gradients[0], (*gradients[0].shape, 1))
    return [g * b, g * a]


CALL_RULES: dict[str, CallRule] = {
    scan.FAMILY: scan_rule,
    scan_chunk.PRODUCT: product_rule,
    scan_chunk.STATES: states_rule,
    scan_dot.FAMILY: dot_rule,
}
