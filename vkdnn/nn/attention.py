"""ReLU linear attention (RLA): attention without softmax, whose state has a fixed size, over vkdnn.ops.scan.

Decoding token by token must give the bits of the whole sequence at once, in every scan order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkdnn.array import Array, arange, asarray, full
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.nn.layers import Linear, Params, RoPE
from vkdnn.ops.elementwise import relu, sqrt, where
from vkdnn.ops.reduce import rms_norm
from vkdnn.ops.reduce import sum as sum_
from vkdnn.ops.scan import ScanPrefix, scan_prefix_outer
from vkdnn.ops.scan_step import scan_state, scan_step
from vkdnn.random import Stream

VARIANTS = {"rla2": 1e-4, "rla": 1e-6}
"""Name -> the epsilon in the denominator."""


@dataclass(frozen=True)
class ReLULinearAttention:
    """q', k' = relu(RoPE(RMSNorm(x Wq, x Wk))) per head, v = x Wv; output rows are weighted means of v,
    then x Wo.

    rla2   sum_i (q'·k_i') v_i / (sum_i q'·k_i' + 1e-4)
    rla    sum_i (q'·k_i') v_i / (sqrt(sum_i (q'·k_i')²) + 1e-6)

    Sums run over tokens i <= t of the same document, with ``causal=False`` over all tokens. ``order`` is
    that of the scans: "sequential" or "chunked".
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

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ArgumentError(f"variant: got {self.variant!r}, expected one of {', '.join(VARIANTS)}")
        if self.order not in ("sequential", "chunked"):
            raise ArgumentError(f"order: got {self.order!r}, expected 'sequential' or 'chunked'")

    def _parts(self) -> dict[str, Linear]:
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        return {
            "query": Linear(self.width, keys),
            "key": Linear(self.width, keys),
            "value": Linear(self.width, values),
            "output": Linear(values, self.width, gain=self.gain),
        }

    def init(self, stream: Stream) -> Params:
        """{"query", "key", "value", "output"}: parameters of four Linear layers."""
        return {name: part.init(stream.child(name)) for name, part in self._parts().items()}

    def __call__(self, params: Params, x: Any, boundary: Any = None) -> Array:
        """x [B, T, width] float32 -> the same shape.

        ``boundary`` [B, T] int32 or bool is nonzero where a document starts: causal sums start there anew.
        Raises ShapeError for other shapes of x.
        """
        x = asarray(x)
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ShapeError(f"x: got shape {x.shape}, expected [B, T, {self.width}]")
        q, k, v = self._project(params, x, arange(x.shape[1]))
        one = full((*k.shape[:3], 1), 1.0)

        def scan(keys: Array, values: Array, queries: Array) -> ScanPrefix:
            return scan_prefix_outer(keys, values, queries, boundary=boundary, causal=self.causal, order=self.order)

        main = scan(k, v, q)
        if self.variant == "rla":
            return self._output(params, main.bp, _l2(main.pap))
        # z = sum of k' as a state of one column: its rows, not its one readout, run in parallel.
        z = scan(one, k, one).bp
        return self._output(params, main.bp, sum_(q * z, axis=-1, keepdims=True))

    def init_state(self, batch: int) -> Params:
        """The state before the first token, on the current device: {"b": ScanState} and, for rla2, {"z":
        ScanState}.

        Raises ArgumentError for a layer that is not causal.
        """
        if not self.causal:
            raise ArgumentError("forward_step: got causal=False, expected True: the future has no state")
        sizes = (batch, self.heads, self.key_width, self.value_width)
        if self.variant == "rla":
            return {"b": scan_state(*sizes, order=self.order, with_a=True)}
        z = scan_state(batch, self.heads, 1, self.key_width, order=self.order)
        return {"b": scan_state(*sizes, order=self.order), "z": z}

    def forward_step(
        self, params: Params, x: Any, state: Params, position: Any, boundary: Any = None
    ) -> tuple[Array, Params]:
        """The next tokens: x [B, T, width] and the state so far -> [B, T, width] and the state after.

        ``position`` int32 [1] is the number of tokens before; T may be 1. Bits are those of the whole
        sequence.
        """
        x = asarray(x)
        q, k, v = self._project(params, x, arange(x.shape[1]) + position)
        main, after = scan_step(state["b"], k, v, q, boundary=boundary)
        if self.variant == "rla":
            return self._output(params, main.bp, _l2(main.pap)), {"b": after}
        one = full((*k.shape[:3], 1), 1.0)
        z, z_after = scan_step(state["z"], one, k, one, boundary=boundary)
        y = self._output(params, main.bp, sum_(q * z.bp, axis=-1, keepdims=True))
        return y, {"b": after, "z": z_after}

    def _project(self, params: Params, x: Array, positions: Any) -> tuple[Array, Array, Array]:
        """q', k' [B, T, H, K] and v [B, T, H, V] of x [B, T, width]."""
        part, rope = self._parts(), RoPE(self.key_width, self.rope_base)

        def heads(name: str) -> Array:
            return part[name](params[name], x).reshape(*x.shape[:2], self.heads, -1)

        q, k = (relu(rope(rms_norm(heads(name), eps=self.eps), positions)) for name in ("query", "key"))
        return q, k, heads("value")

    def _output(self, params: Params, numerator: Array, denominator: Array) -> Array:
        """[B, T, H, V] over [B, T, H, 1], heads joined and projected: [B, T, width]."""
        y = numerator / (denominator + VARIANTS[self.variant])
        joined = y.reshape(*y.shape[:2], self.heads * self.value_width)
        return self._parts()["output"](params["output"], joined)


def _l2(squares: Array | None) -> Array:
    """sqrt of q . (A q) = sum of squared scores, [B, T, H] -> [B, T, H, 1]; gradient 0 where no score is
    positive."""
    assert squares is not None
    squares = squares.reshape(*squares.shape, 1)
    positive = squares > 0.0
    return where(positive, sqrt(where(positive, squares, 1.0)), 0.0)
