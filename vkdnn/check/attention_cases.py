"""Calls of vk.attention by name of what they combine, for tests and the grid; in NumPy, too, for the oracle.

It must never leave out one of the kinds of masks and scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import vkdnn as vk
from vkdnn.ir.elementary.counter import philox

Arrays = dict[str, np.ndarray[Any, Any]]

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MASKS = ("none", "causal", "window", "causal window", "prefix", "boolean", "position")
SCORES = ("none", "bias", "bias of keys", "bias of rows", "alibi", "alibi of sequences", "softcap", "table", "all")
SLOPED = ("q", "k", "v", "bias", "slopes", "table", "sinks")  # what has gradients
CAP, WINDOW, SEED = 1.5, (6, 3), 0x9E3779B97F4A7C15
# lengths: sides of a block of 128 and of a tile
FACTORS: dict[str, tuple[Any, ...]] = {
    "lengths": ((5, 7), (1, 129), (129, 128), (2, 300), (127, 1), (128, 127)),
    "mask": MASKS,
    "score": SCORES,
    "documents": (False, True),
    "sinks": (False, True),
    "dropout": (0.0, 0.3),
    "layout": ("BTHD", "BHTD", "THD"),
    "group": (1, 3, 8),
    "dtype": ("float32", "float16", "bfloat16"),
    "widths": ((5, 3), (1, 1), (64, 80)),
}


@dataclass(frozen=True)
class Case:
    """One call: a mask and a change of scores by name, and everything else that can be combined with them."""

    mask: str = "none"
    score: str = "none"
    documents: bool = False
    sinks: bool = False
    dropout: float = 0.0
    layout: str = "BTHD"
    group: int = 2
    dtype: str = "float32"
    lengths: tuple[int, int] = (5, 7)
    widths: tuple[int, int] = (5, 3)
    batches: int = 2
    key_heads: int = 1
    size: float = 1.0  # standard deviation of q and k

    def __repr__(self) -> str:
        return ", ".join(f"{k} {v}" for k, v in vars(self).items() if v != getattr(Case, k)) or "plain"

    @property
    def heads(self) -> int:
        return self.key_heads * self.group

    @property
    def space(self) -> tuple[int, int, int, int]:
        return (self.batches, self.heads, *self.lengths)

    def bounds(self) -> tuple[list[int], list[int]]:
        """Of packed sequences: a full one first, then one without queries or without keys, the last one shorter."""
        found = []
        for n, empty in zip(self.lengths, (2, 3), strict=True):
            each = [n] + [0 if s % 4 == empty else (n + 1) // 2 for s in range(1, self.batches)]
            found.append([0, *itertools.accumulate(each)])
        return found[0], found[1]

    def values(self, seed: int = 0) -> Arrays:
        """The arrays of the call by name; ``do`` and ``dlse`` are gradients for its results."""
        rng = np.random.default_rng([seed, *self.lengths, *self.widths])
        (queries, keys), (wide, long) = self.lengths, self.widths

        def normal(*shape: int) -> np.ndarray[Any, Any]:
            return rng.standard_normal(shape).astype(np.float32)

        def rows(n: int, axis: int, heads: int, width: int) -> np.ndarray[Any, Any]:
            if self.layout == "THD":
                return normal(self.bounds()[axis][-1], heads, width)
            return normal(*((self.batches, heads, n) if self.layout == "BHTD" else (self.batches, n, heads)), width)

        found: Arrays = {
            "q": rows(queries, 0, self.heads, wide) * np.float32(self.size),
            "k": rows(keys, 1, self.key_heads, wide) * np.float32(self.size),
            "v": rows(keys, 1, self.key_heads, long),
            "do": rows(queries, 0, self.heads, long),
        }
        found = {name: x.astype(DTYPES[self.dtype]) for name, x in found.items()}
        packed = self.layout == "THD"
        found["dlse"] = normal(*((self.heads, len(found["q"])) if packed else self.space[:3]))
        if self.mask == "boolean":
            found["seen"] = rng.random(self.space) < 0.6
            found["seen"][..., queries // 2, :] = False
        if self.mask == "position":
            found["position"] = rng.integers(0, keys, self.batches).astype(np.int32)
        if self.mask == "prefix":
            found["prefix"] = rng.integers(0, keys + 1, self.batches).astype(np.int32)
        shapes = {
            "bias": self.space, "bias of keys": (1, self.heads, 1, keys), "bias of rows": (self.batches, 1, queries, 1),
            "all": (queries, keys),
        }  # fmt: skip
        if self.score in shapes:
            found["bias"] = normal(*shapes[self.score])
            found["bias"][..., -1] = -np.inf
        if self.score in ("alibi", "alibi of sequences", "all"):
            shape = (self.batches, self.heads) if self.score == "alibi of sequences" else (self.heads,)
            found["slopes"] = rng.uniform(0.1, 1, shape).astype(np.float32)
        if self.score in ("table", "all"):
            found["table"] = normal(self.heads, queries + keys - 1)
        if self.documents:
            for name, axis in (("ids_q", 0), ("ids_k", 1)):
                shape = (self.bounds()[axis][-1],) if packed else (self.batches, self.lengths[axis])
                found[name] = (rng.random(shape) < 0.2).astype(np.int32).cumsum(-1).astype(np.int32)
        if self.sinks:
            found["sinks"] = normal(self.heads)
        return found

    def keywords(self, x: dict[str, Any]) -> dict[str, Any]:
        """Of vk.attention, for the arrays of values() as they are or as Arrays."""
        given: dict[str, Any] = {"layout": self.layout, "return_lse": True, "causal": "causal" in self.mask}
        if self.layout == "THD":
            given["cu_seqlens_q"], given["cu_seqlens_k"] = self.bounds()
        if "window" in self.mask:
            given["window"] = (WINDOW[0], None) if "causal" in self.mask else WINDOW
        if self.mask == "boolean":
            given["mask"] = x["seen"]
        if self.mask == "position":
            given["mask_mod"] = lambda b, h, q, k: k <= x["position"].reshape(-1, 1, 1, 1)
        if self.mask == "prefix":
            given["mask_mod"] = vk.masks.either(vk.masks.causal(), vk.masks.prefix(x["prefix"]))
        if "bias" in x:
            given["bias"] = x["bias"]
        if "slopes" in x:
            given["alibi_slopes"] = x["slopes"]
        if self.score in ("softcap", "all"):
            given["softcap"] = CAP
        if "table" in x:
            columns, last = sum(self.lengths) - 1, self.lengths[1] - 1
            given["score_mod"] = lambda s, b, h, q, k: s + vk.take(x["table"], h * columns + (q - k + last), axis=None)
        if self.documents:
            given["document_ids"] = (x["ids_q"], x["ids_k"])
        if self.sinks:
            given["sinks"] = x["sinks"]
        if self.dropout:
            given |= {"dropout_p": self.dropout, "dropout_seed": SEED}
        return given

    def names(self) -> list[str]:
        return list(self.values())

    def run(self) -> Callable[..., list[Any]]:
        """A function of the arrays of values(), in order: out, lse, and the gradients of what has any."""
        names = self.names()
        sloped = [n for n in names if n in SLOPED]

        def function(*arrays: Any) -> list[Any]:
            x = dict(zip(names, arrays, strict=True))

            def attend(*given: Any) -> tuple[Any, Any]:
                now = x | dict(zip(sloped, given, strict=True))
                return vk.attention(now["q"], now["k"], now["v"], **self.keywords(now))

            results, pull = vk.vjp(attend, *(x[n] for n in sloped))
            return [*results, *pull((x["do"], x["dlse"]))]

        return function

    def truth(self, x: Arrays, dtype: Any = np.float64) -> dict[str, Any]:
        """Arguments of attention_float64.attention for a call that is not packed, of layout BTHD."""
        queries, keys = self.lengths
        i, j = np.arange(queries)[:, None], np.arange(keys)
        away = i + (keys - queries) - j
        seen: Any = np.ones(self.space, bool)
        if "causal" in self.mask:
            seen = seen & (away >= 0)
        if "window" in self.mask:
            seen = seen & (away <= WINDOW[0]) & (away >= (0 if "causal" in self.mask else -WINDOW[1]))
        if self.mask == "boolean":
            seen = seen & x["seen"]
        if self.mask == "position":
            seen = seen & (j <= x["position"][:, None, None, None])
        if self.mask == "prefix":
            seen = seen & ((j <= i) | (j < x["prefix"][:, None, None, None]))
        if self.documents:
            seen = seen & (x["ids_q"][:, None, :, None] == x["ids_k"][:, None, None, :])
        added = np.zeros(self.space, dtype)
        if "bias" in x:
            added = added + x["bias"].astype(dtype)
            seen = seen & (x["bias"] != -np.inf)
            added[added == -np.inf] = 0
        if "slopes" in x:
            added = added - x["slopes"].astype(dtype)[..., None, None] * abs(away).astype(dtype)
        if "table" in x:
            added = added + x["table"].astype(dtype)[:, i - j + keys - 1]
        given = {"seen": seen, "added": added, "softcap": CAP if self.score in ("softcap", "all") else None}
        given |= {"upstream": (x["do"], x["dlse"]), "sinks": x.get("sinks"), "dtype": dtype}
        if self.dropout:
            given |= {"kept": kept(self.space, self.dropout, SEED), "keep_scale": 1 / (1 - self.dropout)}
        return given

    def slopes(self, x: Arrays, g: np.ndarray[Any, Any]) -> Arrays:
        """Gradients of bias, slopes and table from those of what is added to scores, [B, H, Tq, Tk]."""
        queries, keys = self.lengths
        i, j = np.arange(queries)[:, None], np.arange(keys)
        found = {}
        if "bias" in x:
            found["bias"] = to_shape(g, x["bias"].shape)
        if "slopes" in x:
            found["slopes"] = to_shape((-g * abs(i + keys - queries - j)).sum(axis=(2, 3)), x["slopes"].shape)
        if "table" in x:
            table = np.zeros((queries + keys - 1, self.heads), g.dtype)
            np.add.at(table, i - j + keys - 1, np.moveaxis(g.sum(axis=0), 0, -1))
            found["table"] = table.T
        return found


def to_shape(g: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The sum of ``g`` over the axes along which ``shape`` was broadcast."""
    lead = g.ndim - len(shape)
    g = g.sum(axis=tuple(range(lead)))
    return g.sum(axis=tuple(a for a, n in enumerate(shape) if n == 1), keepdims=True)


def kept(space: tuple[int, ...], p: float, seed: int) -> np.ndarray[Any, Any]:
    """Which weights dropout leaves: by the first word of the Philox block with counter (k, q, h, b + 2**31)."""
    with vk.device("cpu"):
        b, h, i, j = (vk.array(x.astype(np.uint32)) for x in np.indices(space, np.int64))
        words = (vk.array(np.uint32(w)) for w in (seed & 0xFFFFFFFF, seed >> 32))
        word = philox((j, i, h, b + vk.array(np.uint32(1 << 31))), tuple(words))[0]
        return word.numpy() >= np.uint32(round(p * 2**32))


def covering(factors: dict[str, tuple[Any, ...]] = FACTORS) -> list[dict[str, Any]]:
    """Rows of a level for each factor in which every pair of levels of two factors occurs; greedy, always the same."""
    names = list(factors)
    levels = [(name, level) for name in names for level in factors[name]]
    order = [(a, b) for a, b in itertools.combinations(levels, 2) if a[0] != b[0]]
    left = set(order)
    rows = []
    for first in order:
        if first not in left:
            continue
        row = dict(first)
        for name in names:
            if name in row:
                continue
            gains = [
                sum(((n, x), (name, y)) in left or ((name, y), (n, x)) in left for n, x in row.items())
                for y in factors[name]
            ]
            row[name] = factors[name][int(np.argmax(gains))]
        rows.append({name: row[name] for name in names})
        left -= set(itertools.combinations(rows[-1].items(), 2))
    return rows


def pairwise() -> list[Case]:
    """The covering set as calls; packed ones have four sequences, of which one has no queries and one no keys."""
    return [Case(**row, batches=4 if row["layout"] == "THD" else 2) for row in covering()]


SEEN = [Case(mask) for mask in MASKS] + [Case(documents=True), Case(sinks=True), Case(dropout=0.3)]
SCORED = [Case(score=score) for score in SCORES[1:]]
DEEP = [
    Case("causal", lengths=(2, 130), widths=(80, 64)),
    Case("causal", lengths=(3, 130), widths=(128, 128)),
    Case(lengths=(130, 3), widths=(256, 512), group=1),
    Case("window", dropout=0.3, lengths=(300, 300), widths=(64, 64), group=8),
    Case(layout="THD", batches=9, lengths=(40, 140), group=3),
    # Few queries, whose blocks of keys are computed side by side.
    Case("position", "softcap", sinks=True, lengths=(1, 300), widths=(128, 128), group=4),
    Case("causal window", dropout=0.3, lengths=(3, 450), widths=(140, 130), group=1),
]
