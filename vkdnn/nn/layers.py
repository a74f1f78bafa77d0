"""Layers as frozen dataclasses: ``init(stream)`` makes parameters (NumPy), calling one applies it to
parameters.

A layer must never hold an array: parameters are plain nested dicts that the caller keeps, moves and
differentiates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray
from vkdnn.dtypes import float32, int32, uint32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.ir.arguments import settings
from vkdnn.ops.elementwise import cos, exp, log, negative, silu, sin, where
from vkdnn.ops.index import take
from vkdnn.ops.linear import matmul
from vkdnn.ops.shape import arange_along, flip
from vkdnn.streams import Stream

Params = dict[str, Any]


@dataclass(frozen=True)
class Linear:
    """x [..., inputs] @ weight [inputs, outputs] (+ bias [outputs]) -> [..., outputs], float32.

    Weights are uniform with standard deviation ``gain`` / sqrt(inputs), biases 0.
    """

    inputs: int
    outputs: int
    bias: bool = False
    gain: float = 1.0

    def init(self, stream: Stream) -> Params:
        """{"weight": [inputs, outputs]} and with ``bias`` {"bias": [outputs]}."""
        bound = self.gain * math.sqrt(3.0 / self.inputs)  # a square root is exact to the last bit on every machine
        params: Params = {"weight": stream.child("weight").uniform((self.inputs, self.outputs), -bound, bound)}
        if self.bias:
            params["bias"] = np.zeros(self.outputs, np.float32)
        return params

    def __call__(self, params: Params, x: Any) -> Array:
        """Raises ShapeError when the last axis of x is not ``inputs``."""
        y = matmul(x, params["weight"])
        return y + params["bias"] if self.bias else y


@dataclass(frozen=True)
class Embedding:
    """Rows of a table [vocab, width] by number: int32 [...] -> float32 [..., width]; numbers outside are
    clamped.

    Rows are uniform with standard deviation ``gain``.
    """

    vocab: int
    width: int
    gain: float = 1.0

    def init(self, stream: Stream) -> Params:
        """{"weight": [vocab, width]}."""
        bound = self.gain * math.sqrt(3.0)
        return {"weight": stream.child("weight").uniform((self.vocab, self.width), -bound, bound)}

    def __call__(self, params: Params, tokens: Any) -> Array:
        """Raises DtypeError unless tokens are integers."""
        return take(params["weight"], tokens)


@dataclass(frozen=True)
class RoPE:
    """Rotary position embedding (Su et al. 2021), rotate-half form: element i and i + head_dim/2 turn by
    the angle position · base^(-2i/head_dim).

    Frequencies, angles, cos and sin are vkdnn's own functions of float32 numbers, so their bits are defined.
    """

    head_dim: int
    base: float = 10_000.0

    def __post_init__(self) -> None:
        settings(self)
        if self.head_dim < 2 or self.head_dim % 2:
            raise ArgumentError(f"head_dim: got {self.head_dim}, expected an even number of 2 or more")

    def tables(self, positions: Any) -> tuple[Array, Array]:
        """cos [T, 1, 1, head_dim/2] and signed sin [T, 1, 2, head_dim/2] for int32 positions [T].

        The sign of sin is that with which the other half enters: - for the first half, + for the second.
        """
        half = self.head_dim // 2
        ratio = arange_along((half,), 0).astype(float32) * (-2.0 / self.head_dim)
        frequency = exp(ratio * log(asarray(float(self.base))))
        angle = asarray(positions).astype(float32).reshape(-1, 1, 1, 1) * frequency
        sine = sin(angle)
        first = arange_along((2, 1), 0) < 1
        return cos(angle), where(first, negative(sine), sine)

    def __call__(self, x: Any, positions: Any) -> Array:
        """x [B, T, H, head_dim] float32 turned by int32 positions [T] -> the same shape."""
        x = asarray(x)
        if x.ndim != 4 or x.shape[-1] != self.head_dim:
            raise ShapeError(f"x: got shape {x.shape}, expected [B, T, H, {self.head_dim}]")
        cosine, sine = self.tables(positions)
        halves = x.reshape(*x.shape[:3], 2, self.head_dim // 2)
        return (halves * cosine + flip(halves, 3) * sine).reshape(*x.shape)


@dataclass(frozen=True)
class SwiGLU:
    """down(silu(gate(x)) · up(x)) (Shazeer 2020): [..., width] -> [..., hidden] -> [..., width].

    ``gain`` scales the weights of the last projection (deep models start with small residuals).
    """

    width: int
    hidden: int
    gain: float = 1.0

    def _parts(self) -> dict[str, Linear]:
        return {
            "gate": Linear(self.width, self.hidden),
            "up": Linear(self.width, self.hidden),
            "down": Linear(self.hidden, self.width, gain=self.gain),
        }

    def init(self, stream: Stream) -> Params:
        """{"gate", "up", "down"}: parameters of three Linear layers."""
        return {name: part.init(stream.child(name)) for name, part in self._parts().items()}

    def __call__(self, params: Params, x: Any) -> Array:
        """x [..., width] float32 -> the same shape."""
        part = self._parts()
        inner = silu(part["gate"](params["gate"], x)) * part["up"](params["up"], x)
        return part["down"](params["down"], inner)


def token_array(tokens: Any, ndim: int, expected: str) -> Array:
    """The tokens of a model as an Array. Raises DtypeError and ShapeError, which say what was ``expected``."""
    tokens = asarray(tokens)
    if tokens.dtype not in (int32, uint32):
        raise DtypeError(f"tokens: got {tokens.dtype}, expected int32 {expected}")
    if tokens.ndim != ndim:
        raise ShapeError(f"tokens: got shape {tokens.shape}, expected {expected}")
    return tokens
