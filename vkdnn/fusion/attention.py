"""Turns an attention call into its spec: the expressions of its mods are lowered to the body of the kernel.

What mods capture are arguments of the call; their views become indices, as in every other kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vkdnn.dtypes import float32
from vkdnn.fusion.kernel import Kernel
from vkdnn.fusion.lower import Lowering, MustRealise, resolve
from vkdnn.fusion.views import Coords, Space, SplitNeeded
from vkdnn.ir import build
from vkdnn.ir.body import Affine, Guard
from vkdnn.ir.dims import largest, smallest
from vkdnn.ir.node import Node, make, never_arrays, toposort
from vkdnn.ir.rewrite import substitute
from vkdnn.kernels.attention import BLOCK, FAMILY, AttentionCall, AttentionSpec
from vkdnn.kernels.base import KernelSpec

Realised = Callable[[Node], bool]


class _BodyLowering(Lowering):
    """Lowering over [B, H, Tq, Tk] that never splits a dim: what would need it is realised instead."""

    def _view(self, node: Node, coords: Coords, guards: tuple[Guard, ...]) -> int:
        try:
            return super()._view(node, coords, guards)
        except SplitNeeded:
            raise MustRealise(node.args[0]) from None


def attention_spec(
    kernel: Kernel, realised: Realised, wanted: tuple[int, ...]
) -> tuple[KernelSpec, tuple[int, ...], list[Node]]:
    """Spec, sizes and the arrays read by the call that is ``kernel``'s one member."""
    (node,) = kernel.members
    call: AttentionCall = node.attrs[1]
    slots: dict[Node, int] = {}
    operands: list[tuple[str, int, Affine]] = []
    for name, arg in zip(call.names, node.args, strict=False):
        base, index = resolve(arg, realised)
        operands.append((name, slots.setdefault(base, len(slots)), _spread(name, index, call.packed)))
    mods = call.mods
    captured = node.args[len(call.names) :]
    held = _bases(captured, realised)
    swapped = dict(zip(mods.captured, captured, strict=False))
    named = {} if call.role == "merge" else mods.roots  # there, what happens to scores is over
    with never_arrays():
        roots = substitute(list(named.values()), swapped)
    leaves = [n for n in (mods.dot, mods.upstream) if n is not None]
    coords = Space(call.space).coords()
    reduced = {n: (k, coords) for k, n in enumerate(leaves)}
    lowering = _BodyLowering(Space(call.space), lambda n: n in held, reduced, list(slots))
    positions = []
    for name, root in zip(named, roots, strict=True):
        at = tuple(Affine.zero(4) if n == 1 else c for n, c in zip(root.shape, coords, strict=True))
        positions.append((name, lowering.lower(root, at)))
    spec = AttentionSpec(
        call.role,
        call.heads,
        call.group,
        call.key_width,
        call.value_width,
        tuple(operands),
        tuple(n.dtype for n in lowering.inputs),
        lowering.builder.finish(),
        tuple(positions),
        wanted,
        call.keep_scale,
    )
    return spec, (call.batches, call.queries, call.keys, call.tokens), lowering.inputs


def _spread(name: str, index: Affine, packed: bool) -> Affine:
    """An operand's index over (b, h, t, c), as far as it has these axes; packed arrays do not step with b."""
    if name not in ("q", "k", "v", "do", "peak", "inverse", "delta"):
        return index
    strides = (0, *index.strides) if packed else index.strides
    if name in ("q", "k", "v", "do"):  # [B, T, H, C]
        strides = (strides[0], strides[2], strides[1], strides[3])
    return Affine(index.offset, strides)


def _bases(nodes: Sequence[Node], realised: Realised) -> set[Node]:
    """The arrays in memory that ``nodes``, which may be views, lie in."""
    return {n for n in toposort(nodes, stop=realised) if realised(n)}


# ---- few queries of many keys: blocks side by side, then merged in the order in which one kernel would

FEW_QUERIES = 8  # up to which a kernel that goes along the keys has little to do at a time
FEW_KEYS = 256  # from here on there are blocks to share out
SPLIT_ROWS = 4096  # queries times heads times batches below which one kernel leaves a device idle, with
SPLIT_KEYS = 1024  # and more keys


def is_long_attention(node: Node) -> bool:
    """Whether a call is spread over the blocks of its keys."""
    if node.kind != "call" or node.attrs[0] != FAMILY:
        return False
    call: AttentionCall = node.attrs[1]
    if call.role != "forward" or call.packed:
        return False
    queries = largest(call.queries)
    if queries <= FEW_QUERIES and queries * call.group <= BLOCK:  # so that what blocks give is less than the values
        return largest(call.keys) >= FEW_KEYS
    return smallest(call.keys) >= SPLIT_KEYS and largest(call.batches * call.heads * call.queries) < SPLIT_ROWS


def split_attention(node: Node, args: Sequence[Node]) -> Node:
    """The call whose results are those of ``node``, with ``args`` as its arguments."""
    call: AttentionCall = node.attrs[1]
    given = dict(zip(call.names, args, strict=False))
    sinks = given.pop("sinks", None)
    line = (call.batches, call.heads, call.queries, -(-call.keys // BLOCK))
    shapes = ((line, float32), (line, float32), ((*line, call.value_width), float32))
    split = replace(call, role="split", names=tuple(given))
    parts = build.call(FAMILY, (*given.values(), *args[len(call.names) :]), split, shapes)
    names = ("peaks", "sums", "parts", *(("sinks",) if sinks is not None else ()))
    merged = replace(call, role="merge", names=names)
    return make(
        "call", (*parts, *((sinks,) if sinks is not None else ())), (FAMILY, merged, node.attrs[2]), (), float32
    )
