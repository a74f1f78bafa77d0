"""RAPT: a language model of ReLU linear attention and SwiGLU blocks, and the configuration of the main job.

Decoding with a state of fixed size must give the logits of the whole sequence bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn import tree
from vkdnn.array import Array, array, asarray
from vkdnn.device import Device, current_device
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir.arguments import settings
from vkdnn.nn.attention import ReLULinearAttention
from vkdnn.nn.layers import Embedding, Linear, Params, SwiGLU, token_array
from vkdnn.nn.levers import NO_LEVERS, Levers, apply_blocks
from vkdnn.nn.losses import cross_entropy
from vkdnn.nn.norms import RMSNorm
from vkdnn.nn.prenorm import PreNormBlock
from vkdnn.streams import Stream


@dataclass(frozen=True)
class RAPTConfig:
    """Sizes and choices of a RAPTModel; ``order``, ``variant``, ``decay`` and ``features`` are those of
    ReLULinearAttention.
    """

    vocab: int = 256
    width: int = 96
    layers: int = 2
    heads: int = 3
    key_width: int = 32
    value_width: int = 32
    hidden: int = 192
    order: str = "sequential"
    variant: str = "rla2"
    eps: float = 1e-6  # of every RMSNorm
    rope_base: float = 10_000.0
    decay: float = 1.0
    features: int | None = None

    def __post_init__(self) -> None:
        settings(self)
        for name in ("vocab", "width", "layers", "heads", "key_width", "value_width", "hidden"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        RAPTBlock(self).attention  # noqa: B018  (a layer refuses what does not go together when it is made)


@dataclass(frozen=True)
class TrainDefaults:
    """How the main job trains the default RAPTConfig on bytes of text."""

    steps: int = 700
    batch: int = 16
    tokens: int = 64
    learning_rate: float = 5e-3
    warmup_steps: int = 40
    min_ratio: float = 0.1
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 0


TRAIN_DEFAULTS = TrainDefaults()


@dataclass(frozen=True)
class RAPTBlock(PreNormBlock):
    """x + attention(norm(x)), then x + mlp(norm(x)): pre-norm residuals."""

    config: RAPTConfig

    @property
    def norm(self) -> RMSNorm:
        return RMSNorm(self.config.width, self.config.eps)

    @property
    def attention(self) -> ReLULinearAttention:
        c = self.config
        return ReLULinearAttention(
            c.width, c.heads, c.key_width, c.value_width, c.variant, c.order,
            eps=c.eps, rope_base=c.rope_base, gain=self._residual_gain, decay=c.decay, features=c.features,
        )  # fmt: skip

    @property
    def mlp(self) -> SwiGLU:
        return SwiGLU(self.config.width, self.config.hidden, self._residual_gain)

    def __call__(self, params: Params, x: Array, boundary: Any = None) -> Array:
        """x [B, T, width] float32 -> the same shape; ``boundary`` [B, T] nonzero where documents start."""
        x = x + self.attention(params["attention"], self.norm(params["attention_norm"], x), boundary)
        return x + self.mlp(params["mlp"], self.norm(params["mlp_norm"], x))

    def forward_step(
        self, params: Params, x: Array, state: Params, position: Array, boundary: Any = None
    ) -> tuple[Array, Params]:
        """The next tokens: x [B, T, width] and the attention's state so far -> the same."""
        normed = self.norm(params["attention_norm"], x)
        y, state = self.attention.forward_step(params["attention"], normed, state, position, boundary)
        x = x + y
        return x + self.mlp(params["mlp"], self.norm(params["mlp_norm"], x)), state


@dataclass(frozen=True)
class RAPTModel:
    """Embedding, ``layers`` blocks, a last RMSNorm and an output projection of its own (not tied to the
    embedding).

    >>> import numpy as np
    >>> model = RAPTModel(RAPTConfig(width=16, layers=1, heads=2, key_width=8, value_width=8, hidden=16))
    >>> model(model.init(seed=0), np.zeros((1, 4), np.int32)).shape
    (1, 4, 256)
    """

    config: RAPTConfig = RAPTConfig()

    @property
    def embedding(self) -> Embedding:
        return Embedding(self.config.vocab, self.config.width)

    @property
    def block(self) -> RAPTBlock:
        return RAPTBlock(self.config)

    @property
    def norm(self) -> RMSNorm:
        return RMSNorm(self.config.width, self.config.eps)

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
            "norm": self.norm.init(stream.child("norm")),
            "head": self.head.init(stream.child("head")),
        }
        moved: Params = tree.map_leaves(lambda p: array(p, device=device), params)
        return moved

    def __call__(self, params: Params, tokens: Any, boundary: Any = None, levers: Levers = NO_LEVERS) -> Array:
        """tokens [B, T] int32 -> logits [B, T, vocab] float32.

        ``boundary`` [B, T] int32 is nonzero where a document starts. Raises ShapeError and DtypeError for
        other tokens.
        """
        tokens = token_array(tokens, 2, "[B, T]")
        x = self.embedding(params["embedding"], tokens)
        x = apply_blocks(lambda layer, x: self.block(layer, x, boundary), params["layers"], x, levers)
        return self.head(params["head"], self.norm(params["norm"], x))

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
        """The state before the first token: {"position": int32 [1], "layers": one attention state a
        layer}. Its size is fixed: ``max_tokens`` is there for models whose state grows, and is not read."""
        with device or current_device():
            layers = [self.block.attention.init_state(batch) for _ in range(self.config.layers)]
            return {"position": array(np.zeros(1, np.int32)), "layers": layers}

    def forward_step(self, params: Params, token: Any, state: Params, boundary: Any = None) -> tuple[Array, Params]:
        """The next token [B] int32 and the state so far -> logits [B, vocab] and the state after.

        Several tokens at once [B, T] give logits [B, T, vocab]: a prompt. Logits equal those of the whole
        sequence bit for bit. ``boundary`` has the shape of the tokens. Put it inside vk.jit, and donate the
        state.
        """
        token = asarray(token)
        tokens = token_array(token.reshape(-1, 1) if token.ndim == 1 else token, 2, "[B] or [B, T]")
        if boundary is not None:
            boundary = asarray(boundary).reshape(*tokens.shape)
        x = self.embedding(params["embedding"], tokens)
        layers = []
        for layer, before in zip(params["layers"], state["layers"], strict=True):
            x, after = self.block.forward_step(layer, x, before, state["position"], boundary)
            layers.append(after)
        logits = self.head(params["head"], self.norm(params["norm"], x))
        after = {"position": state["position"] + tokens.shape[1], "layers": layers}
        return logits.reshape(*token.shape, self.config.vocab), after
