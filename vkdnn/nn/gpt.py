"""GPT: a decoder of causal softmax attention and gated or GELU layers, with the choices that its family has made.

Decoding with a cache of keys and values must give the logits of the whole sequence bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn import dtypes, tree
from vkdnn.array import Array, array, asarray
from vkdnn.device import Device, current_device
from vkdnn.errors import ArgumentError, DtypeError, MemoryLimitError, ShapeError
from vkdnn.ir.arguments import integer, settings
from vkdnn.kernels.attention import MAX_KEY_WIDTH
from vkdnn.nn.layers import Embedding, Linear, Params, SwiGLU, token_array
from vkdnn.nn.levers import NO_LEVERS, Levers, apply_blocks
from vkdnn.nn.losses import cross_entropy
from vkdnn.nn.norms import LayerNorm, RMSNorm
from vkdnn.nn.prenorm import PreNormBlock
from vkdnn.nn.self_attention import POSITIONS, CausalSelfAttention
from vkdnn.ops.create import arange
from vkdnn.ops.elementwise import gelu_tanh, maximum, where
from vkdnn.ops.linear import matmul
from vkdnn.ops.order import cummax, cumsum
from vkdnn.streams import Stream

MLPS = ("swiglu", "gelu")
NORMS = ("rms", "layer")
CACHE_STEP = 64
"""Caches hold a multiple of this many tokens, so that texts of nearly one length share their kernels."""


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and choices of a GPTModel.

    ``heads`` query heads of ``head_dim`` elements (None: width / heads) share ``kv_heads`` heads of keys and values
    (None: as many). ``positions``: "rope" turns queries and keys, "alibi" lowers scores with the distance, "learned"
    adds a table of ``max_tokens`` rows to the embedding. ``mlp``: "swiglu" or "gelu" (by tanh); ``norm``: "rms" or
    "layer". ``bias``: of attention's projections, the GELU layers and LayerNorm. ``tied``: the embedding is the
    output projection too. ``window``: a token sees so many tokens, itself included. ``softcap`` c: c tanh(score / c).
    """

    vocab: int = 256
    width: int = 96
    layers: int = 2
    heads: int = 3
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int = 192
    positions: str = "rope"
    mlp: str = "swiglu"
    norm: str = "rms"
    bias: bool = False
    tied: bool = True
    max_tokens: int = 256  # of learned positions, and of a cache unless it is told otherwise
    window: int | None = None
    softcap: float | None = None
    rope_base: float = 10_000.0
    eps: float = 1e-6  # of every norm

    def __post_init__(self) -> None:
        settings(self)
        for name in ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "hidden", "max_tokens", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name}: got {value}, expected 1 or more")
        for name, known in (("positions", POSITIONS), ("mlp", MLPS), ("norm", NORMS)):
            if getattr(self, name) not in known:
                raise ArgumentError(f"{name}: got {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if self.head_dim is None and self.width % self.heads:
            raise ArgumentError(f"heads: got {self.heads} for a width of {self.width}, expected a divisor, or head_dim")
        if self.head_dim is None and self.width // self.heads > MAX_KEY_WIDTH:
            raise ArgumentError(
                f"heads: got {self.heads} for a width of {self.width}, which gives each {self.width // self.heads} "
                f"elements, expected at most {MAX_KEY_WIDTH}; take more heads, or a head_dim"
            )
        for name in ("eps", "rope_base"):
            if not is_positive(getattr(self, name)):
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected a finite positive float32 number")
        GPTBlock(self).attention  # noqa: B018  (a layer refuses what does not go together when it is made)


def is_positive(value: float) -> bool:
    """Whether float32 holds this number as a finite positive one."""
    limits = np.finfo(np.float32)
    return bool(float(limits.tiny) <= value <= float(limits.max))


@dataclass(frozen=True)
class GELULayers:
    """down(gelu(up(x))), gelu by tanh as in GPT-2: [..., width] -> [..., hidden] -> [..., width].

    ``gain`` scales the weights of the last projection.
    """

    width: int
    hidden: int
    bias: bool = False
    gain: float = 1.0

    def _parts(self) -> dict[str, Linear]:
        return {
            "up": Linear(self.width, self.hidden, self.bias),
            "down": Linear(self.hidden, self.width, self.bias, self.gain),
        }

    def init(self, stream: Stream) -> Params:
        """{"up", "down"}: parameters of two Linear layers."""
        return {name: part.init(stream.child(name)) for name, part in self._parts().items()}

    def __call__(self, params: Params, x: Any) -> Array:
        """x [..., width] float32 -> the same shape."""
        part = self._parts()
        return part["down"](params["down"], gelu_tanh(part["up"](params["up"], x)))


@dataclass(frozen=True)
class GPTBlock(PreNormBlock):
    """x + attention(norm(x)), then x + mlp(norm(x)): pre-norm residuals."""

    config: GPTConfig

    @property
    def norm(self) -> RMSNorm | LayerNorm:
        c = self.config
        return RMSNorm(c.width, c.eps) if c.norm == "rms" else LayerNorm(c.width, c.eps, c.bias)

    @property
    def attention(self) -> CausalSelfAttention:
        c = self.config
        return CausalSelfAttention(
            c.width, c.heads, c.kv_heads or c.heads, c.head_dim or c.width // c.heads, c.positions, c.bias,
            window=c.window, softcap=c.softcap, rope_base=c.rope_base, gain=self._residual_gain,
        )  # fmt: skip

    @property
    def mlp(self) -> SwiGLU | GELULayers:
        c = self.config
        if c.mlp == "swiglu":
            return SwiGLU(c.width, c.hidden, self._residual_gain)
        return GELULayers(c.width, c.hidden, c.bias, self._residual_gain)

    def __call__(self, params: Params, x: Array, document_ids: Any = None) -> Array:
        """x [B, T, width] float32 -> the same shape; ``document_ids`` [B, T] as in CausalSelfAttention."""
        x = x + self.attention(params["attention"], self.norm(params["attention_norm"], x), document_ids)
        return x + self.mlp(params["mlp"], self.norm(params["mlp_norm"], x))

    def forward_step(
        self, params: Params, x: Array, state: Params, position: Array, first: Any = None
    ) -> tuple[Array, Params]:
        """The next tokens: x [B, T, width] and the attention's cache so far -> the same."""
        normed = self.norm(params["attention_norm"], x)
        y, state = self.attention.forward_step(params["attention"], normed, state, position, first)
        x = x + y
        return x + self.mlp(params["mlp"], self.norm(params["mlp_norm"], x)), state


@dataclass(frozen=True)
class GPTModel:
    """Embedding (with learned positions: plus theirs), ``layers`` blocks, a last norm and the output projection.

    >>> import numpy as np
    >>> model = GPTModel(GPTConfig(width=16, layers=1, heads=2, hidden=16))
    >>> model(model.init(seed=0), np.zeros((1, 4), np.int32)).shape
    (1, 4, 256)
    """

    config: GPTConfig = GPTConfig()

    @property
    def embedding(self) -> Embedding:
        """Tied, its rows give logits of the same spread as a projection of their own."""
        gain = 0.5 / math.sqrt(self.config.width) if self.config.tied else 1.0
        return Embedding(self.config.vocab, self.config.width, gain)

    @property
    def positions(self) -> Embedding:
        return Embedding(self.config.max_tokens, self.config.width, self.embedding.gain / 2)

    @property
    def block(self) -> GPTBlock:
        return GPTBlock(self.config)

    @property
    def head(self) -> Linear:
        return Linear(self.config.width, self.config.vocab, gain=0.5)

    def init(self, seed: int, device: Device | None = None) -> Params:
        """Parameters of a seed as Arrays on ``device`` (default: the current one); the same bits
        everywhere."""
        stream = Stream(seed)
        params = {
            "embedding": self.embedding.init(stream.child("embedding")),
            "layers": [self.block.init(stream.child("layers").child(i)) for i in range(self.config.layers)],
            "norm": self.block.norm.init(stream.child("norm")),
        }
        if self.config.positions == "learned":
            params["positions"] = self.positions.init(stream.child("positions"))
        if not self.config.tied:
            params["head"] = self.head.init(stream.child("head"))
        moved: Params = tree.map_leaves(lambda p: array(p, device=device), params)
        return moved

    def __call__(self, params: Params, tokens: Any, boundary: Any = None, levers: Levers = NO_LEVERS) -> Array:
        """tokens [B, T] int32 -> logits [B, T, vocab] float32.

        ``boundary`` [B, T] int32 or bool is nonzero where a document starts; positions run on through it. Raises
        ShapeError and DtypeError for other tokens, and ShapeError for more than ``max_tokens`` learned positions.
        """
        tokens = token_array(tokens, 2, "[B, T]")
        if self.config.positions == "learned" and tokens.shape[1] > self.config.max_tokens:
            raise ShapeError(
                f"tokens: got shape {tokens.shape}, expected at most {self.config.max_tokens} tokens a row"
            )
        documents = None if boundary is None else cumsum(_starts(boundary, tokens).astype(dtypes.int32), axis=1)
        x = self._embedded(params, tokens, arange(tokens.shape[1]))
        x = apply_blocks(lambda layer, x: self.block(layer, x, documents), params["layers"], x, levers)
        return self._logits(params, x)

    def loss(self, params: Params, tokens: Any, boundary: Any = None, levers: Levers = NO_LEVERS) -> Array:
        """Mean cross entropy (nats) of predicting tokens[:, 1:] from tokens[:, :-1]; tokens [B, T + 1] int32.

        ``boundary`` [B, T] belongs to tokens[:, :-1]. ``levers`` say how the gradient is computed; the bits are the
        same with all of them.
        """
        tokens = token_array(tokens, 2, "[B, T + 1] with T of 1 or more")
        if tokens.shape[1] < 2:
            raise ShapeError(f"tokens: got shape {tokens.shape}, expected [B, T + 1] with T of 1 or more")
        return cross_entropy(self(params, tokens[:, :-1], boundary, levers), tokens[:, 1:])

    def init_state(self, batch: int, device: Device | None = None, max_tokens: int | None = None) -> Params:
        """The state before the first token: {"position": int32 [1], "first": int32 [batch, 1], "layers": one cache of
        keys and values a layer}, with room for ``max_tokens`` (default: the configuration's) or a few more.

        Raises ArgumentError for more tokens than there are learned positions, and MemoryLimitError for a cache beyond
        the memory of the device.
        """
        device = device or current_device()
        batch = integer("init_state: batch", batch)
        wanted = self.config.max_tokens if max_tokens is None else integer("init_state: max_tokens", max_tokens)
        if batch < 0 or wanted < 1:
            raise ArgumentError(f"init_state: got batch {batch} and max_tokens {wanted}, expected 0 and 1 or more")
        room = -(-wanted // CACHE_STEP) * CACHE_STEP
        if self.config.positions == "learned":
            if wanted > self.config.max_tokens:
                raise ArgumentError(
                    f"init_state: max_tokens: got {wanted}, but this model learned {self.config.max_tokens} positions; "
                    "give it fewer tokens, or train one with a larger max_tokens"
                )
            room = min(room, self.config.max_tokens)
        attention = self.block.attention
        size = 4 * max(1, batch) * room * attention.kv_heads * attention.head_dim  # bytes of all keys of a layer
        what = f"init_state: a cache of {max(1, batch)} x {room} tokens takes two arrays of {size} bytes a layer"
        if size > 4 * device.max_words:
            raise MemoryLimitError(
                f"{what}, but one buffer of {device.name} holds {4 * device.max_words}; give a smaller max_tokens"
            )
        try:
            with device:
                return {
                    "position": array(np.zeros(1, np.int32)),
                    "first": array(np.zeros((batch, 1), np.int32)),
                    "layers": [attention.init_state(batch, room) for _ in range(self.config.layers)],
                }
        except MemoryError:
            raise MemoryLimitError(f"{what}, more than there is memory for; give a smaller max_tokens") from None

    def forward_step(self, params: Params, token: Any, state: Params, boundary: Any = None) -> tuple[Array, Params]:
        """The next token [B] int32 and the state so far -> logits [B, vocab] and the state after.

        Several tokens at once [B, T] give logits [B, T, vocab]: a prompt. Logits equal those of the whole
        sequence bit for bit. ``boundary`` has the shape of the tokens. Put it inside vk.jit, and donate the
        state. How full a cache is, only the device knows: logits of tokens beyond its room are NaN, and the caller,
        who knows how many there will be, asks init_state for enough. Raises ShapeError for more tokens at once.
        """
        token = asarray(token)
        tokens = token_array(token.reshape(-1, 1) if token.ndim == 1 else token, 2, "[B] or [B, T]")
        room, position = state["layers"][0]["k"].shape[1], state["position"]
        if tokens.shape[1] > room:
            raise ShapeError(
                f"tokens: got shape {tokens.shape} for a cache of {room} tokens; give init_state a larger max_tokens"
            )
        if tokens.shape[0] != state["first"].shape[0]:
            raise ShapeError(
                f"tokens: got shape {token.shape}, expected {state['first'].shape[0]} rows, the batch of the state"
            )
        at = arange(tokens.shape[1]) + position
        first = state["first"]
        if boundary is not None and tokens.shape[1]:
            starts = where(_starts(boundary, token).reshape(*tokens.shape), at, 0)
            first = maximum(first, cummax(starts, axis=1))
        x = self._embedded(params, tokens, at)
        layers = []
        for layer, before in zip(params["layers"], state["layers"], strict=True):
            x, after = self.block.forward_step(layer, x, before, position, first)
            layers.append(after)
        logits = where((at < room).reshape(1, -1, 1), self._logits(params, x), math.nan)
        after = {"position": position + tokens.shape[1], "first": first[:, -1:], "layers": layers}
        return logits.reshape(*token.shape, self.config.vocab), after

    def _embedded(self, params: Params, tokens: Array, at: Array) -> Array:
        x = self.embedding(params["embedding"], tokens)
        return x + self.positions(params["positions"], at) if self.config.positions == "learned" else x

    def _logits(self, params: Params, x: Array) -> Array:
        x = self.block.norm(params["norm"], x)
        return matmul(x, params["embedding"]["weight"].T) if self.config.tied else self.head(params["head"], x)


def _starts(boundary: Any, tokens: Array) -> Array:
    """bool [B, T]: where a document starts."""
    boundary = asarray(boundary)
    if boundary.dtype.category not in "biu":
        raise DtypeError(f"boundary: got {boundary.dtype}, expected bool or integers (nonzero where a document starts)")
    if boundary.shape != tokens.shape:
        raise ShapeError(f"boundary: got shape {boundary.shape}, expected {tokens.shape}, that of the tokens")
    return boundary != 0
