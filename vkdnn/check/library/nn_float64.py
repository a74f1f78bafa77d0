"""The layers and models of vkdnn.nn in float64 NumPy, from their formulas; for comparisons with a tolerance only.

Layers and configurations give settings alone; nothing here may call them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def rms_norm(x: Array, weight: Any = 1.0, eps: float = 1e-6) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x: Array, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * weight + bias


def silu(x: Array) -> Any:
    return x / (1 + np.exp(-x))


def rope(x: Array, positions: Any, base: float = 10_000.0) -> Array:
    """x [B, T, H, K]: elements i and i + K/2 as a complex number, turned by the angle position base^(-2i/K)."""
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None, None] * base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def feature_map(p: Any, x: Array) -> Any:
    """FeatureMap: Linear, LayerNorm, SiLU, Linear, ReLU."""
    inner = layer_norm(x @ p["inner"]["weight"], p["norm"]["weight"], p["norm"]["bias"])
    return np.maximum(silu(inner) @ p["outer"]["weight"] + p["outer"]["bias"], 0)


def attention(layer: Any, p: Any, x: Array, boundary: Any = None) -> Array:
    """ReLULinearAttention by its T x T scores."""
    batch, tokens, _ = x.shape

    def heads(name: str) -> Array:
        return (x @ p[name]["weight"]).reshape(batch, tokens, layer.heads, -1)

    def mapped(x: Array) -> Any:
        return feature_map(p["features"], x) if layer.variant == "lrla" else np.maximum(x, 0)

    q, k = (
        mapped(rope(rms_norm(heads(n), eps=layer.eps), np.arange(tokens), layer.rope_base)) for n in ("query", "key")
    )
    scores = np.einsum("bthk,bihk->bhti", q, k)
    if layer.causal:
        document = np.zeros((batch, tokens)) if boundary is None else np.cumsum(np.asarray(boundary) != 0, axis=1)
        seen = np.tril(np.ones((tokens, tokens))) * (document[:, :, None] == document[:, None, :])
        age = np.subtract.outer(np.arange(tokens), np.arange(tokens))
        scores = scores * (seen * layer.decay ** np.maximum(age, 0))[:, None]
    if layer.variant == "rla":
        below = np.sqrt((scores**2).sum(-1)) + 1e-6
    else:
        below = scores.sum(-1) + 1e-4
    y = np.einsum("bhti,bihv->bthv", scores / below[..., None], heads("value"))
    return y.reshape(batch, tokens, -1) @ p["output"]["weight"]


def swiglu(p: Any, x: Array) -> Array:
    return (silu(x @ p["gate"]["weight"]) * (x @ p["up"]["weight"])) @ p["down"]["weight"]


def cross_entropy(logits: Array, targets: Array) -> Any:
    shifted = logits - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return np.mean(np.log(np.exp(shifted).sum(-1)) - chosen)


def rapt_block(block: Any, p: Any, x: Array, boundary: Any = None) -> Array:
    eps = block.config.eps
    x = x + attention(block.attention, p["attention"], rms_norm(x, p["attention_norm"]["weight"], eps), boundary)
    return x + swiglu(p["mlp"], rms_norm(x, p["mlp_norm"]["weight"], eps))


def logits(model: Any, p: Any, tokens: Array, boundary: Any = None) -> Array:
    """RAPTModel."""
    eps = model.config.eps
    x = p["embedding"]["weight"][tokens]
    for layer in p["layers"]:
        x = rapt_block(model.block, layer, x, boundary)
    return rms_norm(x, p["norm"]["weight"], eps) @ p["head"]["weight"]


def loss(model: Any, p: Any, tokens: Array, boundary: Any = None) -> Any:
    return cross_entropy(logits(model, p, tokens[:, :-1], boundary), tokens[:, 1:])


# ---- GPT


def linear(p: Any, x: Array) -> Any:
    return x @ p["weight"] + p.get("bias", 0.0)


def gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_layers(p: Any, x: Array) -> Any:
    return linear(p["down"], gelu_tanh(linear(p["up"], x)))


def alibi_slopes(heads: int) -> Array:
    lower = 2 ** int(math.log2(heads))
    powers = [2 ** (-8 * (i + 1) / lower) for i in range(lower)]
    return np.array((powers + [2 ** (-8 * (i + 1) / (2 * lower)) for i in range(0, 2 * lower, 2)])[:heads])


def self_attention(layer: Any, p: Any, x: Array, documents: Any = None) -> Any:
    """CausalSelfAttention by its T x T scores; ``documents`` [B, T] numbers."""
    batch, length, _ = x.shape
    q, k, v = (linear(p[n], x).reshape(batch, length, -1, layer.head_dim) for n in ("query", "key", "value"))
    if layer.positions == "rope":
        q, k = (rope(y, np.arange(length), layer.rope_base) for y in (q, k))
    k, v = (np.repeat(y, layer.heads // y.shape[2], axis=2) for y in (k, v))
    scores = np.einsum("bthk,bihk->bhti", q, k) / math.sqrt(q.shape[-1])
    if layer.softcap is not None:
        scores = layer.softcap * np.tanh(scores / layer.softcap)
    age = np.subtract.outer(np.arange(length), np.arange(length))
    if layer.positions == "alibi":
        scores = scores - alibi_slopes(layer.heads)[:, None, None] * age
    documents = np.zeros((batch, length)) if documents is None else documents
    seen = (age >= 0) & (age < (layer.window or length)) & (documents[:, :, None] == documents[:, None, :])
    weights = np.exp(np.where(seen[:, None], scores, -np.inf))
    y = np.einsum("bhti,bihv->bthv", weights / weights.sum(-1, keepdims=True), v)
    return linear(p["output"], y.reshape(batch, length, -1))


def gpt_norm(c: Any, p: Any, x: Array) -> Any:
    return rms_norm(x, p["weight"], c.eps) if c.norm == "rms" else layer_norm(x, **p, eps=c.eps)


def gpt_block(block: Any, p: Any, x: Array, documents: Any = None) -> Any:
    c = block.config
    x = x + self_attention(block.attention, p["attention"], gpt_norm(c, p["attention_norm"], x), documents)
    y = gpt_norm(c, p["mlp_norm"], x)
    return x + (swiglu(p["mlp"], y) if c.mlp == "swiglu" else gelu_layers(p["mlp"], y))


def gpt_logits(model: Any, p: Any, tokens: Array, boundary: Any = None) -> Any:
    """GPTModel."""
    c = model.config
    documents = None if boundary is None else np.cumsum(np.asarray(boundary) != 0, axis=1)
    x = p["embedding"]["weight"][tokens]
    if c.positions == "learned":
        x = x + p["positions"]["weight"][: tokens.shape[1]]
    for layer in p["layers"]:
        x = gpt_block(model.block, layer, x, documents)
    x = gpt_norm(c, p["norm"], x)
    return x @ p["embedding"]["weight"].T if c.tied else linear(p["head"], x)


def gpt_loss(model: Any, p: Any, tokens: Array, boundary: Any = None) -> Any:
    return cross_entropy(gpt_logits(model, p, tokens[:, :-1], boundary), tokens[:, 1:])
