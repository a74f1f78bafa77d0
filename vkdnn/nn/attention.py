"""ReLU linear attention (RLA): attention without softmax, whose state has a fixed size, over vkdnn.ops.scan.

Decoding token by token must give the bits of the whole sequence at once, in every variant and scan order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkdnn.array import Array, asarray, full
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir.arguments import settings
from vkdnn.nn.layers import Linear, Params, RoPE
from vkdnn.nn.norms import LayerNorm
from vkdnn.ops.create import arange
from vkdnn.ops.elementwise import relu, silu, sqrt, where
from vkdnn.ops.normalize import rms_norm
from vkdnn.ops.reduce import sum as sum_
from vkdnn.ops.scan import scan_prefix_outer
from vkdnn.ops.scan_step import ScanState, scan_state, scan_step
from vkdnn.streams import Stream

VARIANTS = {"rla2": 1e-4, "rla": 1e-6, "lrla": 1e-4}
"""Name -> the epsilon in the denominator."""


@dataclass(frozen=True)
class FeatureMap:
    """The learnable map of lrla, of each head's queries and keys alike: relu(outer(silu(norm(inner(x))))) with
    a LayerNorm, from [..., width] to [..., features]. The last relu keeps scores from being negative.
    """

    width: int
    features: int

    def _parts(self) -> dict[str, Any]:
        return {
            "inner": Linear(self.width, self.features),
            "norm": LayerNorm(self.features),
            "outer": Linear(self.features, self.features, bias=True),
        }

    def init(self, stream: Stream) -> Params:
        """{"inner", "norm", "outer"}."""
        return {name: part.init(stream.child(name)) for name, part in self._parts().items()}

    def __call__(self, params: Params, x: Array) -> Array:
        """x [..., width] float32 -> [..., features], all of it 0 or more."""
        part = self._parts()
        inner = part["norm"](params["norm"], part["inner"](params["inner"], x))
        return relu(part["outer"](params["outer"], silu(inner)))


@dataclass(frozen=True)
class ReLULinearAttention:
    """q', k' = map(RoPE(RMSNorm(x Wq, x Wk))) per head, v = x Wv; output rows are weighted means of v, then
    x Wo. With scores s_i = q'·k_i' the variants are

    rla2   map = relu          sum_i s_i v_i / (sum_i s_i + 1e-4)
    lrla   map = FeatureMap    the same, over ``features`` (default: key_width) elements a head
    rla    map = relu          sum_i s_i v_i / (sqrt(sum_i s_i²) + 1e-6), with ``decay`` g: s_i = g^(t-i) q'·k_i'

    Sums run over tokens i <= t of the same document, with ``causal=False`` over all tokens. ``order`` is
    that of the scans: "sequential" or "chunked"; a decay below 1 needs the first. Raises ArgumentError for
    settings that do not go together.
    """

    width: int
    heads: int
    key_width: int
    value_width: int
    variant: str = "rla2"
    order: str = "sequential"
    causal: bool = True
    eps: float = 1e-6  # of the RMSNorm of queries and keys
    rope_base: float = 10_000.0
    gain: float = 1.0  # of the output projection
    decay: float = 1.0
    features: int | None = None

    def __post_init__(self) -> None:
        settings(self)
        if self.variant not in VARIANTS:
            raise ArgumentError(f"variant: got {self.variant!r}, expected one of {', '.join(VARIANTS)}")
        if self.order not in ("sequential", "chunked"):
            raise ArgumentError(f"order: got {self.order!r}, expected 'sequential' or 'chunked'")
        if not 0 < self.decay <= 1:
            raise ArgumentError(f"decay: got {self.decay}, expected a number over 0, up to 1")
        if self.decay != 1 and (self.variant != "rla" or self.order != "sequential" or not self.causal):
            raise ArgumentError(
                f"decay: got {self.decay} with variant={self.variant!r}, order={self.order!r}, causal={self.causal}; "
                "expected variant 'rla', order 'sequential' and causal=True, or decay=1"
            )
        if self.features is not None and (self.variant != "lrla" or self.features < 1):
            raise ArgumentError(
                f"features: got {self.features} with variant={self.variant!r}, expected 1 or more with 'lrla', "
                "else None"
            )

    @property
    def feature_width(self) -> int:
        """Elements of q' and k' of a head."""
        return self.features or self.key_width

    def _parts(self) -> dict[str, Any]:
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        parts = {
            "query": Linear(self.width, keys),
            "key": Linear(self.width, keys),
            "value": Linear(self.width, values),
            "output": Linear(values, self.width, gain=self.gain),
        }
        if self.variant == "lrla":
            return parts | {"features": FeatureMap(self.key_width, self.feature_width)}
        return parts

    def init(self, stream: Stream) -> Params:
        """{"query", "key", "value", "output"}: parameters of four Linear layers; with lrla {"features"} too."""
        return {name: part.init(stream.child(name)) for name, part in self._parts().items()}

    def __call__(self, params: Params, x: Any, boundary: Any = None) -> Array:
        """x [B, T, width] float32 -> the same shape.

        ``boundary`` [B, T] int32 or bool is nonzero where a document starts: causal sums start there anew.
        Raises ShapeError for other shapes of x.
        """
        x = asarray(x)
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ShapeError(f"x: got shape {x.shape}, expected [B, T, {self.width}]")
        if not x.size:
            return x  # no row or no token: there is nothing to scan
        q, k, v = self._project(params, x, arange(x.shape[1]))
        settings = {"boundary": boundary, "causal": self.causal, "order": self.order}
        main = scan_prefix_outer(k, v, q, decay=self.decay, **settings)
        if self.variant != "rla":
            # z = sum of k' as a state of one column: its rows, not its one readout, run in parallel.
            one = full((*k.shape[:3], 1), 1.0)
            return self._output(params, main.bp, _dot(q, scan_prefix_outer(one, k, one, **settings).bp))
        if self.decay == 1:
            return self._output(params, main.bp, _root(_column(main.pap)))
        squares = scan_prefix_outer(k, k, q, decay=self.decay**2, **settings).bp
        return self._output(params, main.bp, _root(_dot(q, squares)))

    def init_state(self, batch: int) -> Params:
        """The state before the first token, on the current device: {"b": ScanState} and {"z": ScanState}, or
        for rla with a decay {"a": ScanState}; without one A is part of "b".

        Raises ArgumentError for a layer that is not causal.
        """
        if not self.causal:
            raise ArgumentError("forward_step: got causal=False, expected True: the future has no state")
        keys = self.feature_width

        def state(key_width: int, value_width: int, with_a: bool = False) -> ScanState:
            return scan_state(batch, self.heads, key_width, value_width, order=self.order, with_a=with_a)

        if self.variant != "rla":
            return {"b": state(keys, self.value_width), "z": state(1, keys)}
        if self.decay == 1:
            return {"b": state(keys, self.value_width, with_a=True)}
        return {"b": state(keys, self.value_width), "a": state(keys, keys)}

    def forward_step(
        self, params: Params, x: Any, state: Params, position: Any, boundary: Any = None
    ) -> tuple[Array, Params]:
        """The next tokens: x [B, T, width] and the state so far -> [B, T, width] and the state after.

        ``position`` int32 [1] is the number of tokens before; T may be 1, or 0. Bits are those of the whole
        sequence.
        """
        x = asarray(x)
        if not x.size:
            return x, state
        q, k, v = self._project(params, x, arange(x.shape[1]) + position)
        main, b = scan_step(state["b"], k, v, q, boundary=boundary, decay=self.decay)
        if self.variant != "rla":
            one = full((*k.shape[:3], 1), 1.0)
            sums, z = scan_step(state["z"], one, k, one, boundary=boundary)
            return self._output(params, main.bp, _dot(q, sums.bp)), {"b": b, "z": z}
        if self.decay == 1:
            return self._output(params, main.bp, _root(_column(main.pap))), {"b": b}
        squares, a = scan_step(state["a"], k, k, q, boundary=boundary, decay=self.decay**2)
        return self._output(params, main.bp, _root(_dot(q, squares.bp))), {"b": b, "a": a}

    def _project(self, params: Params, x: Array, positions: Any) -> tuple[Array, Array, Array]:
        """q', k' [B, T, H, feature_width] and v [B, T, H, V] of x [B, T, width]."""
        part, rope = self._parts(), RoPE(self.key_width, self.rope_base)

        def heads(name: str, width: int) -> Array:
            return part[name](params[name], x).reshape(*x.shape[:2], self.heads, width)

        def mapped(name: str) -> Array:
            turned = rope(rms_norm(heads(name, self.key_width), eps=self.eps), positions)
            return part["features"](params["features"], turned) if self.variant == "lrla" else relu(turned)

        return mapped("query"), mapped("key"), heads("value", self.value_width)

    def _output(self, params: Params, numerator: Array, denominator: Array) -> Array:
        """[B, T, H, V] over [B, T, H, 1], heads joined and projected: [B, T, width]."""
        y = numerator / (denominator + VARIANTS[self.variant])
        joined = y.reshape(*y.shape[:2], self.heads * self.value_width)
        output: Array = self._parts()["output"](params["output"], joined)
        return output


def _column(x: Array | None) -> Array:
    """[B, T, H] -> [B, T, H, 1]."""
    assert x is not None
    return x.reshape(*x.shape, 1)


def _dot(a: Array, b: Array) -> Array:
    """a · b over the last axis, [..., 1]."""
    return sum_(a * b, axis=-1, keepdims=True)


def _root(squares: Array) -> Array:
    """The root of q' · (A q') = sum of squared scores; gradient 0 where no score is positive."""
    positive = squares > 0.0
    return where(positive, sqrt(where(positive, squares, 1.0)), 0.0)
