"""AttentionSpec: softmax attention by blocks of keys, which never holds the matrix of scores; one spec, six kernels.

What a pair of query and key does to its score and whether it is seen is a body (traced from expressions of the DSL), so
every mask is the same kernel. A schedule must never touch the orders below.

For every sequence b, head h, query i and key j (both counted inside the sequence), keys in blocks of 128 from key 0::

    dot    = sum over c of q_i[c] k_j[c], in the order of a matrix product
    score  = body(dot, b, h, i, j); the pair is live if the body sees it and score is not -inf
    forward, per block with a live key: peak = max score; w_j = exp(score_j - peak); weight = fold of w_j over the
             block's 128 lanes, +0 where not live; part[c] = sum of w_j v_j[c] from +0 over the live keys that dropout
             keeps, in sequence. Blocks are merged left to right: top = max(m, peak), a = rescale(m, top),
             b = rescale(peak, top); l = l a + weight b; o[c] = o[c] a + part[c] b; m = top. A sink is merged last.
             out = o / l (times 1 / (1 - p) with dropout), lse = m + log(l)
    backward p = exp(score - m) r with r = 1 / l; dp = sum over c of do_i[c] v_j[c] (+0 where dropout drops);
             g = p (dp - delta_i); ds = derivative of the body (g). Per block of 128 keys dq_i[c] = sum of ds k_j[c];
             per block of 128 queries, and in it per head of the group, dk_j[c] = sum of ds q_i[c] and dv_j[c] = sum of
             p do_i[c]: each in sequence from +0 over live pairs (dv: over those that dropout keeps); the first such
             sum, then the others added in sequence, those without a pair left out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, constant_bits, float32
from vkdnn.ir.body import Affine, Body
from vkdnn.ir.dims import Dim, minimum
from vkdnn.ir.node import Node, Shape
from vkdnn.kernels import attention_blocks as of_blocks
from vkdnn.kernels.attention_bounds import constant, only_bounds
from vkdnn.kernels.base import MAX_GROUPS, Array, Cost, Groups, KernelSpec, Target, group_count

FAMILY = "attention"
BLOCK = 128
MAX_KEY_WIDTH, MAX_VALUE_WIDTH = 256, 512
OUT, LSE, PEAK, WEIGHT = range(4)  # results of "forward"
RESULTS = {
    "forward": ("out", "lse", "peak", "weight"),
    "split": ("peaks", "sums", "parts"),
    "merge": ("out", "lse", "peak", "weight"),
    "queries": ("dq",),
    "keys": ("dk", "dv"),
    "pairs": ("dot", "g", "live"),
}
TILES = (256, 128, 64)  # invocations of a tile, the best first; each holds four rows
_SUMMED = {"forward": "v", "queries": "k", "keys": "kv"}  # widths of the rows that a role sums up
_PLAIN = 12  # float operations of a body up to which loops over it are unrolled
_PRIVATE_WORDS = 1536  # about what an invocation of a software device keeps close by


@dataclass(frozen=True)
class Mods:
    """The body of attention as expressions over [B, H, Tq, Tk]: what happens between the dot product and the softmax.

    ``dot`` and ``upstream`` are leaves that stand for the dot product and for the gradient of ``score``; ``captured``
    stand for the arguments of the call behind the fixed ones. ``low`` and ``high`` bound j - i of pairs to be seen.
    """

    dot: Node
    score: Node
    visible: Node | None
    kept: Node | None
    low: Node | None
    high: Node | None
    captured: tuple[Node, ...]
    upstream: Node | None = None
    gradient: Node | None = None

    @property
    def roots(self) -> dict[str, Node]:
        """Name -> expression, of those there are."""
        names = ("score", "visible", "kept", "low", "high", "gradient")
        return {name: node for name in names if (node := getattr(self, name)) is not None}


@dataclass(frozen=True)
class AttentionCall:
    """Parameters of a call node. The fixed arguments come first, in the order of ``names``; then what mods capture.

    q [B, Tq, H, K], k [B, Tk, Hk, K], v [B, Tk, Hk, V], do as out [B, Tq, H, V], peak, inverse and delta [B, H, Tq];
    packed, B and T are one axis of all tokens, and ``queries`` and ``keys`` bound the lengths of the sequences that the
    int32 arrays starts_q and starts_k [B + 1] cut out of it. sinks [H].
    """

    role: str
    names: tuple[str, ...]
    batches: int
    heads: int
    group: int
    queries: int
    keys: int
    key_width: int
    value_width: int
    tokens: int  # rows of queries in all
    mods: Mods
    keep_scale: float = 1.0

    @property
    def packed(self) -> bool:
        return "starts_q" in self.names

    @property
    def space(self) -> Shape:
        return (self.batches, self.heads, self.queries, self.keys)


@dataclass(frozen=True)
class AttentionSchedule:
    """Invocations a workgroup, rows an invocation holds, and how many of the others it meets at a time.

    ``together``: the workgroup is one subgroup, whose invocations load the others' elements for all, each a different
    one. ``tiled``: a workgroup of 16 by lanes / 16 invocations stages columns of its rows and of the others, and the
    half the scores of a block, in shared memory; ``rows`` is a multiple of 4. ``unroll``: inner loops are unrolled.
    """

    lanes: int
    rows: int
    step: int
    together: bool = False
    tiled: bool = False
    unroll: bool = False

    @property
    def tile(self) -> int:
        """Rows that a workgroup has at a time."""
        return self.lanes * self.rows // (16 if self.tiled else 1)


Schedule = AttentionSchedule | of_blocks.SplitSchedule | of_blocks.MergeSchedule


@dataclass(frozen=True)
class AttentionSpec(KernelSpec):
    """See the module. ``operands`` are (name, binding, index over b, h, t, c as far as the operand has these axes);
    ``positions`` say where in the body the value of each name is.
    """

    role: str
    heads: int
    group: int
    key_width: int
    value_width: int
    operands: tuple[tuple[str, int, Affine], ...]
    input_dtypes: tuple[DType, ...]
    body: Body
    positions: tuple[tuple[str, int], ...]
    results: tuple[int, ...]
    keep_scale: float = 1.0

    size_names = ("batches", "queries", "keys", "tokens")
    fixed = ("heads", "group", "key_width", "value_width")

    @property
    def template(self) -> str:  # type: ignore[override]
        return f"attention_{self.role}.comp.j2"

    @property
    def outputs(self) -> tuple[DType, ...]:
        return (float32,) * len(self.results)

    @property
    def packed(self) -> bool:
        return any(name == "starts_q" for name, _, _ in self.operands)

    def text(self) -> str:
        lines = [
            f"attention {self.role} (batches, queries, keys, tokens) heads {self.heads} group {self.group} "
            f"widths {self.key_width} {self.value_width}"
        ]
        lines += [f"  {name} in{slot}[{index}]" for name, slot, index in self.operands]
        lines += [self.body.text(), *(f"  {name} = %{at}" for name, at in self.positions)]
        lines += [f"  out{k} = {RESULTS[self.role][r]}" for k, r in enumerate(self.results)]
        if self.keep_scale != 1.0:
            lines.append(f"  keep scale {np.float32(self.keep_scale).item().hex()}")
        return "\n".join([*lines, f"  inputs {', '.join(map(str, self.input_dtypes))}", ""])

    def schedules(self, target: Target) -> tuple[Schedule, ...]:
        if self.role == "merge":
            return of_blocks.merge_schedules(target, self.value_width)
        if self.role == "split":
            alone = (AttentionSchedule(8, 1, 8),)  # each invocation has a block of its own
            shared = of_blocks.split_schedules(target, self.group, self.key_width)
            return (*alone, *shared) if target.software else (*shared, *alone)
        own = {
            "forward": self.key_width + 2 * self.value_width + BLOCK,
            "queries": 3 * self.key_width + self.value_width + 2 * BLOCK,
            "keys": 3 * (self.key_width + self.value_width) + 2 * BLOCK,
            "pairs": self.key_width + self.value_width + 2 * BLOCK,
        }[self.role]
        rows = max(1, min(4, _PRIVATE_WORDS // own))
        several, single = AttentionSchedule(8, rows, 8), AttentionSchedule(32, 1, 4)
        tiles = self._tiles(target)
        if not target.software:
            return (*tiles, single, several)
        # Loads are made lane by lane there, also of one element for all lanes.
        width = target.subgroup_size
        together = (AttentionSchedule(width, rows, width // 2, True),) if width in (4, 8) else ()
        return (*together, several, single, *tiles)

    def _tiles(self, target: Target) -> tuple[AttentionSchedule, ...]:
        """The tiles that the device's shared memory and an invocation's registers have room for."""
        if self.role not in _SUMMED:
            return ()
        widths = {"k": self.key_width, "v": self.value_width}
        columns = sum(4 * -(-widths[letter] // 64) for letter in _SUMMED[self.role])

        def fits(lanes: int) -> bool:
            across = lanes // 16 + 1  # vectors over the tile's rows, and one to spare
            words = 4 * (max(64 * across, 16 * (across + 33)) + 256 + 5 * across) + (384 if self.role == "keys" else 0)
            wide = 2 if max(widths.values()) > 128 else 1
            return 4 * words <= target.shared_bytes and columns + 8 * wide <= 32

        unroll = not target.software
        return tuple(AttentionSchedule(n, 4, 8, tiled=True, unroll=unroll) for n in TILES if fits(n))

    def groups(self, sizes: tuple[int, ...], schedule: Schedule) -> Groups:
        batches, queries, keys, _ = sizes
        if isinstance(schedule, of_blocks.MergeSchedule):
            return (group_count(batches * self.heads * queries, 1), 1, 1)
        if isinstance(schedule, of_blocks.SplitSchedule):
            parts = -(-(queries * self.group) // schedule.rows) * (self.heads // self.group)
            return (minimum(parts, MAX_GROUPS), minimum(-(-keys // BLOCK), MAX_GROUPS), minimum(batches, MAX_GROUPS))
        if self.role == "split":
            queries *= -(-keys // BLOCK)
        rows, heads = (keys, self.heads // self.group) if self.role == "keys" else (queries, self.heads)
        tiles = -(-rows // schedule.tile)
        return (minimum(tiles, MAX_GROUPS), minimum(heads, MAX_GROUPS), minimum(batches, MAX_GROUPS))

    # ---- template

    def context(self, schedule: Schedule) -> dict[str, Any]:
        at = dict(self.positions)
        dims = ["b", "h", "i", "j"]
        fixed = [n for n in self.body.needed(at.values()) if n not in self.body.varying((2, 3))]
        names: dict[int, str] = {
            i: ("dot", "g")[instr.attrs[0]] for i, instr in enumerate(self.body.instrs) if instr.kind == "reduced"
        }
        fixed = [i for i in self.body.needed(fixed) if not self._reaches_dot(i)]
        per_head = glsl.statements(self.body, fixed, names, dims)

        def part(name: str, known: dict[int, str]) -> dict[str, Any] | None:
            """Statements for one value of the body, and its name; ``known`` learns what they compute."""
            if name not in at:
                return None
            lines = glsl.statements(self.body, self.body.needed([at[name]]), known, dims)
            return {"lines": lines, "value": known[at[name]]}

        scored = dict(names)
        parts = {"visible": part("visible", dict(names)), "kept": part("kept", dict(names))}
        parts["score"] = part("score", scored)
        parts["gradient"] = part("gradient", scored)
        parts["slope"] = part("gradient", dict(names))
        bounded = "visible" not in at or only_bounds(self.body, at["visible"], at.get("low"), at.get("high"))
        operands = {name: (slot, index) for name, slot, index in self.operands}

        def element(name: str, **axes: str) -> str:
            """GLSL of an operand's element; axes not given are their GLSL names b, h, t, c."""
            slot, index = operands[name]
            given = {5: "bhtnc", 4: "bhtc", 3: "bht", 1: "n"}[len(index.strides)]
            return f"in{slot}[{glsl.affine(index, [axes.get(a, a) for a in given], f'base_in{slot}')}]"

        def step(name: str) -> tuple[str, str, str]:
            """Name of an operand's buffer, the index of a row's first element, and the stride of its columns."""
            slot, index = operands[name]
            first = Affine(index.offset, (*index.strides[:-1], 0))
            stride = index.strides[-1]
            columns = f"{stride}u" if stride >= 0 else f"uint({stride})"
            return f"in{slot}", glsl.affine(first, ["b", "HEAD", "TOKEN", "0u"], f"base_in{slot}"), columns

        rows = {name: step(name) for name in ("q", "k", "v", "do") if name in operands}
        if isinstance(schedule, AttentionSchedule):
            how = {
                "local_size": (schedule.lanes, 1),
                "lanes": schedule.lanes,
                "rows": schedule.rows,
                "step": schedule.step,
                "together": schedule.together,
                "tile": schedule.tile if schedule.tiled else 0,
                "unrolled": "[[unroll]]" if schedule.unroll else "[[dont_unroll]]",
                "body_loop": "[[unroll]]" if schedule.unroll and self.body.flops() <= _PLAIN else "[[dont_unroll]]",
                "by_blocks": False,
            }
        else:
            how = of_blocks.context(schedule, self.key_width, self.value_width)
        return {
            **how,
            "heads": self.heads,
            "group": self.group,
            "key_width": self.key_width,
            "value_width": self.value_width,
            "packed": self.packed,
            "own_keys": self.role == "keys",
            "bounded": bounded,
            "separable": "kept" not in at and not ("gradient" in at and self._reaches_dot(at["gradient"], (0,))),
            "element": element,
            "operands": operands,
            "row_of": rows,
            "per_head": per_head,
            "low": names.get(at["low"]) if "low" in at else None,
            "high": names.get(at["high"]) if "high" in at else None,
            **parts,
            "keep_scale": glsl.literal(constant_bits(self.keep_scale, float32), float32)
            if self.keep_scale != 1.0
            else "",
            "dropout": "kept" in at,
            "stores": {
                name: f"out{self.results.index(r)}" if r in self.results else ""
                for r, name in enumerate(RESULTS[self.role])
            },
        }

    def _reaches_dot(self, position: int, leaves: tuple[int, ...] = (0, 1)) -> bool:
        """Whether a value needs the dot product, 0, or the gradient of the score, 1."""
        needed = (self.body.instrs[i] for i in self.body.needed([position]))
        return any(instr.kind == "reduced" and instr.attrs[0] in leaves for instr in needed)

    def ops(self) -> Sequence[str]:
        own = ["exp", "softmax_rescale", "log"] if self.role in ("forward", "split", "merge") else ["exp"]
        return [*own, *glsl.ops_of(self.body)]

    # ---- reference and cost

    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        from vkdnn.kernels.attention_reference import run_attention

        run_attention(self, sizes, inputs, outputs)

    def cost(self, sizes: tuple[int, ...]) -> Cost:
        """Pairs that the bounds allow, where these and the lengths are constants; all pairs else."""
        batches, queries, keys, _ = sizes
        at = dict(self.positions)

        def bound(name: str, otherwise: int) -> int:
            found = constant(self.body, at.get(name))
            return otherwise if found is None else found

        pairs = batches * self.heads * queries * keys
        if not isinstance(pairs, Dim):
            i = np.arange(queries)
            first = np.clip(i + bound("low", -queries), 0, keys)
            stop = np.clip(i + bound("high", keys) + 1, first, keys)
            pairs = batches * self.heads * int((stop - first).sum())
        wide, long = self.key_width, self.value_width
        parts = batches * self.heads * queries * -(-keys // BLOCK) * (long + 2)
        if self.role == "merge":
            return Cost(3 * parts, 4 * (parts + batches * self.heads * queries * long))
        products = {
            "forward": wide + long, "split": wide + long, "queries": 2 * wide + long, "keys": 2 * wide + 2 * long,
            "pairs": wide + long,
        }[self.role]  # fmt: skip
        per_query = batches * queries * self.heads
        per_key = batches * keys * self.heads // self.group
        words = per_query * (wide + long) + per_key * (wide + long)
        words += {
            "forward": 0, "split": parts, "queries": per_query * wide, "keys": per_key * (wide + long),
            "pairs": 2 * per_query * keys,
        }[self.role]  # fmt: skip
        return Cost(pairs * (2 * products + self.body.flops() + 10), 4 * words)
