"""The layers of vkdnn.nn in float64 NumPy, from their formulas; for comparisons with a tolerance only."""

import numpy as np


def rms_norm(x, weight=1.0, eps=1e-6):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * weight + bias


def silu(x):
    return x / (1 + np.exp(-x))


def rope(x, positions, base=10_000.0):
    """x [B, T, H, K]: elements i and i + K/2 as a complex number, turned by the angle position
    base^(-2i/K)."""
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None, None] * base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def feature_map(p, x):
    """FeatureMap: Linear, LayerNorm, SiLU, Linear, ReLU."""
    inner = layer_norm(x @ p["inner"]["weight"], p["norm"]["weight"], p["norm"]["bias"])
    return np.maximum(silu(inner) @ p["outer"]["weight"] + p["outer"]["bias"], 0)


def attention(layer, p, x, boundary=None):
    """ReLULinearAttention by its T x T scores."""
    batch, tokens, _ = x.shape

    def heads(name):
        return (x @ p[name]["weight"]).reshape(batch, tokens, layer.heads, -1)

    def mapped(x):
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


def swiglu(p, x):
    return (silu(x @ p["gate"]["weight"]) * (x @ p["up"]["weight"])) @ p["down"]["weight"]


def cross_entropy(logits, targets):
    shifted = logits - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return np.mean(np.log(np.exp(shifted).sum(-1)) - chosen)


def logits(model, p, tokens, boundary=None):
    """RAPTModel."""
    eps = model.config.eps
    x = p["embedding"]["weight"][tokens]
    for layer in p["layers"]:
        normed = rms_norm(x, layer["attention_norm"]["weight"], eps)
        x = x + attention(model.block.attention, layer["attention"], normed, boundary)
        x = x + swiglu(layer["mlp"], rms_norm(x, layer["mlp_norm"]["weight"], eps))
    return rms_norm(x, p["norm"]["weight"], eps) @ p["head"]["weight"]


def loss(model, p, tokens, boundary=None):
    return cross_entropy(logits(model, p, tokens[:, :-1], boundary), tokens[:, 1:])
