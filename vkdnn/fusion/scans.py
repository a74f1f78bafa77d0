"""Finds in a graph what the tokens of a chunked scan read, and makes one call of it: products inside a chunk, plus the
state before it (vkdnn.kernels.scan_readout).

Chunked scans and their gradients are built of these parts, added wherever the reverse pass meets them; so they are put
together here, after differentiation, where no bit can change. What is not found stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkdnn.dtypes import float32
from vkdnn.ir import build
from vkdnn.ir.node import Node, make, toposort
from vkdnn.kernels.scan_chunk import CHUNK, PRODUCT
from vkdnn.kernels.scan_readout import FAMILY, ReadoutCall

CHUNKS, TOKENS, HEADS, ROWS = 1, 2, 3, 4  # axes of what a product inside chunks gives
PLAIN = {0: 0, 1: 1, 2: HEADS, 3: TOKENS, 4: ROWS}  # axis of a matrix product -> axis of that
TURNED = {0: 0, 1: 1, 2: HEADS, 3: ROWS, 4: TOKENS}


def join_scans(outputs: Sequence[Node]) -> list[Node]:
    """The same values, with one call for each product inside chunks that meets its state."""
    order = toposort(outputs, stop=lambda n: n.buffer is not None)
    if not any(n.kind == "call" and n.attrs[0] == PRODUCT for n in order):
        return list(outputs)
    new: dict[Node, Node] = {}
    for node in order:
        found = _readout(node)
        if found is not None:
            new[node] = found.joined(new)
            continue
        args = tuple(new[a] for a in node.args) if node.buffer is None else node.args
        if all(a is b for a, b in zip(args, node.args, strict=True)):
            new[node] = node
        elif node.kind == "permute":
            new[node] = build.permute(args[0], node.attrs[0])
        else:
            new[node] = make(node.kind, args, node.attrs, node.shape, node.dtype)
    return [new[n] for n in outputs]


@dataclass(frozen=True, eq=False)
class _Readout:
    """The parts of a node that is a readout: arguments and parameters of its call."""

    call: ReadoutCall
    args: tuple[Node, ...]
    turned: bool  # the state is [B, C, H, K, R]
    axes: tuple[int, ...]  # the node is the call's result with its axes in that order

    def joined(self, new: dict[Node, Node]) -> Node:
        """The call's result; ``new`` has what the arguments became."""
        q, w, u, state, *rest = (new[a] for a in self.args)
        if self.turned:
            state = build.permute(state, (0, 1, 2, 4, 3))
        batches, chunks, heads, tokens, _ = q.shape
        shape = (batches, chunks, tokens, heads, u.shape[-1])
        result = build.call(FAMILY, (q, w, u, state, *rest), self.call, ((shape, float32),))[0]
        return build.permute(result, self.axes)


def _readout(node: Node) -> _Readout | None:
    """What a node is made of, if it adds a product inside chunks and a product with states."""
    if node.kind != "map" or node.op != "add" or node.ndim != 5 or node.buffer is not None:
        return None
    a, b = node.args
    return _parts(a, b) or _parts(b, a)


def _parts(inner: Node, inter: Node) -> _Readout | None:
    axes, result = _permuted(inner)
    if result.kind != "result" or result.buffer is not None or result.args[0].attrs[0] != PRODUCT:
        return None
    product, parameters = result.args[0], result.args[0].attrs[1]
    _, u, w, q, *limits = product.args
    if parameters.direction == "range" or q.shape[-2] != CHUNK:
        return None
    reached, unreached = None, None
    if inter.kind == "map" and inter.op == "where" and inter.buffer is None:
        condition, inter, other = inter.args
        reached, unreached = _per_token(condition, axes), _zero(other)
        if reached is None or unreached is None:
            return None
    inter_axes, matmul = _permuted(inter)
    if matmul.kind != "matmul" or matmul.buffer is not None or any(n.ndim != 5 for n in matmul.args):
        return None
    placed = dict(zip(inter_axes, axes, strict=True))
    if placed == PLAIN:
        read, state, turned = *matmul.args, True
    elif placed == TURNED:
        state, read, turned = *matmul.args, False
        read = build.permute(read, (0, 1, 2, 4, 3))
    else:
        return None
    if not _reads(read, q, reached):
        return None
    limits = [limits[1 if parameters.direction == "reverse" else 0]] if limits else []
    call = ReadoutCall(parameters.direction == "reverse", bool(limits), unreached)
    return _Readout(call, (q, w, u, state, *limits, *([] if reached is None else [reached])), turned, axes)


def _permuted(node: Node) -> tuple[tuple[int, ...], Node]:
    """(axes, x): the node is x with its axes in that order."""
    axes = tuple(range(node.ndim))
    while node.kind == "permute" and node.buffer is None:
        axes = tuple(node.attrs[0][a] for a in axes)
        node = node.args[0]
    return axes, node


def _zero(node: Node) -> int | None:
    """The bits of a zero that is broadcast; None for anything else."""
    while node.kind in ("broadcast", "reshape"):
        node = node.args[0]
    return node.attrs[0] if node.kind == "const" and node.attrs[0] in (0, 1 << 31) else None


def _per_token(condition: Node, axes: tuple[int, ...]) -> Node | None:
    """The condition as [B, C, M], if it is one of tokens; ``axes`` tells what its five axes are."""
    if condition.kind == "broadcast" and condition.buffer is None:
        condition = condition.args[0]
    if condition.kind != "reshape" or condition.buffer is not None or condition.ndim != 5:
        return None
    alone = all(n == 1 for n, axis in zip(condition.shape, axes, strict=True) if axis in (HEADS, ROWS))
    kept = [axis for axis in axes if axis not in (HEADS, ROWS)]
    tokens = condition.args[0]
    return tokens if alone and kept == [0, CHUNKS, TOKENS] and tokens.ndim == 3 else None


def _reads(read: Node, q: Node, reached: Node | None) -> bool:
    """Whether ``read`` is q where the state reaches the token."""
    axes, chosen = _permuted(read)
    if reached is not None and chosen.kind == "map" and chosen.op == "where" and chosen.buffer is None:
        condition, value, _ = chosen.args
        meaning = dict(zip(axes, PLAIN.values(), strict=True))
        if _per_token(condition, tuple(meaning[a] for a in range(5))) is not reached:
            return False
        read = build.permute(value, axes)
    return read is q
