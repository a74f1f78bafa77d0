"""Causal softmax attention as a layer: projections, positions, and decoding with a cache of keys and values.

Decoding token by token must give the bits of the whole sequence at once, with every choice of positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.array import Array, array, asarray
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir.arguments import integer, settings
from vkdnn.kernels.attention import MAX_KEY_WIDTH
from vkdnn.nn.layers import Linear, Params, RoPE
from vkdnn.ops import masks
from vkdnn.ops.attention import attention
from vkdnn.ops.create import arange
from vkdnn.ops.elementwise import where
from vkdnn.ops.index import take
from vkdnn.streams import Stream

POSITIONS = ("rope", "alibi", "learned")


@dataclass(frozen=True)
class CausalSelfAttention:
    """softmax(q k / sqrt(head_dim)) v over the tokens so far (Vaswani et al. 2017), ``heads`` of them, then projected.

    Query head h reads key head h // (heads / kv_heads) (Ainslie et al. 2023). ``positions`` "rope" turns queries and
    keys (Su et al. 2021), "alibi" lowers scores by slope · (query - key) (Press et al. 2022), and any other adds
    nothing. Raises ArgumentError for settings that do not go together.
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: str = "rope"
    bias: bool = False
    window: int | None = None
    softcap: float | None = None
    rope_base: float = 10_000.0
    gain: float = 1.0  # of the output projection

    def __post_init__(self) -> None:
        settings(self)
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ArgumentError(f"kv_heads: got {self.kv_heads} for {self.heads} heads, expected a divisor of them")
        if not 1 <= self.head_dim <= MAX_KEY_WIDTH:
            raise ArgumentError(f"head_dim: got {self.head_dim}, expected 1 to {MAX_KEY_WIDTH}")
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise ArgumentError(f"softcap: got {self.softcap}, expected a finite positive number or None")
        if self.positions == "rope":
            RoPE(self.head_dim, self.rope_base)

    def _parts(self) -> dict[str, Linear]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "query": Linear(self.width, queries, self.bias),
            "key": Linear(self.width, keys, self.bias),
            "value": Linear(self.width, keys, self.bias),
            "output": Linear(queries, self.width, self.bias, self.gain),
        }

    def init(self, stream: Stream) -> Params:
        """{"query", "key", "value", "output"}: parameters of four Linear layers."""
        return {name: part.init(stream.child(name)) for name, part in self._parts().items()}

    def __call__(self, params: Params, x: Any, document_ids: Any = None) -> Array:
        """x [B, T, width] float32 -> the same shape; ``document_ids`` int32 [B, T]: tokens see their own document."""
        x = asarray(x)
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ShapeError(f"x: got shape {x.shape}, expected [B, T, {self.width}]")
        q, k, v = self._project(params, x, arange(x.shape[1]))
        slopes = alibi_slopes(self.heads) if self.positions == "alibi" else None
        window = None if self.window is None else (self.window - 1, 0)
        y = attention(
            q, k, v, causal=True, alibi_slopes=slopes, document_ids=document_ids, window=window, softcap=self.softcap
        )
        return self._output(params, y)

    def init_state(self, batch: int, max_tokens: int) -> Params:
        """An empty cache on the current device: {"k", "v"}, each [batch, max_tokens, kv_heads, head_dim] float32."""
        shape = (batch, max_tokens, self.kv_heads, self.head_dim)
        return {name: array(np.zeros(shape, np.float32)) for name in ("k", "v")}

    def forward_step(
        self, params: Params, x: Any, state: Params, position: Any, first: Any = None
    ) -> tuple[Array, Params]:
        """The next tokens: x [B, T, width] and the cache -> [B, T, width] and the cache with their keys and values.

        ``position`` int32 [1] is the number of tokens before; ``first`` int32 [B, T] is the first token that each may
        see. Bits are those of the whole sequence.
        """
        x = asarray(x)
        at = arange(x.shape[1]) + position
        q, k, v = self._project(params, x, at)
        cache = {"k": _written(state["k"], k, position), "v": _written(state["v"], v, position)}
        near = masks.sliding_window(None if self.window is None else self.window - 1, 0, position)

        def seen(b: Array, h: Array, query: Array, key: Array) -> Any:
            own = True if first is None else key >= first.reshape(first.shape[0], 1, first.shape[1], 1)
            return near(b, h, query, key) & own

        lowered = masks.alibi(alibi_slopes(self.heads), position) if self.positions == "alibi" else None
        y = attention(q, cache["k"], cache["v"], mask_mod=seen, score_mod=lowered, softcap=self.softcap)
        return self._output(params, y), cache

    def _project(self, params: Params, x: Array, positions: Array) -> tuple[Array, Array, Array]:
        """q [B, T, heads, head_dim], k and v [B, T, kv_heads, head_dim] of x [B, T, width]."""
        part, counts = self._parts(), {"query": self.heads, "key": self.kv_heads, "value": self.kv_heads}
        q, k, v = (
            part[name](params[name], x).reshape(*x.shape[:2], count, self.head_dim) for name, count in counts.items()
        )
        if self.positions != "rope":
            return q, k, v
        rope = RoPE(self.head_dim, self.rope_base)
        return rope(q, positions), rope(k, positions), v

    def _output(self, params: Params, y: Array) -> Array:
        """Heads [B, T, heads, head_dim] joined and projected: [B, T, width]."""
        return self._parts()["output"](params["output"], y.reshape(*y.shape[:2], self.heads * self.head_dim))


def alibi_slopes(heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Slopes [heads] of ALiBi: 2^(-8/n), 2^(-16/n), ... for n heads, a power of two; between two powers, those of the
    lower, then every other one of the higher (Press et al. 2022). Raises ArgumentError unless heads are 1 or more.

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    heads = integer("alibi_slopes: heads", heads)
    if heads < 1:
        raise ArgumentError(f"alibi_slopes: heads: got {heads}, expected 1 or more")
    lower = 1 << (heads.bit_length() - 1)

    def geometric(n: int) -> list[float]:
        ratio = 2.0**-8
        for _ in range(n.bit_length() - 1):
            ratio = math.sqrt(ratio)  # exact to the last bit on every machine, which a power is not
        return [math.prod([ratio] * i) for i in range(1, n + 1)]

    return np.array(geometric(lower) + geometric(2 * lower)[::2][: heads - lower], np.float32)


def _written(cache: Array, new: Array, position: Any) -> Array:
    """cache [B, room, Hk, D] with new [B, T, Hk, D] at ``position``: elementwise, so that it can stay in place."""
    if not new.shape[1]:
        return cache
    at = arange(cache.shape[1]) - position
    rows = new if new.shape[1] == 1 else take(new, at, axis=1)
    return where(((at >= 0) & (at < new.shape[1])).reshape(1, -1, 1, 1), rows, cache)
