"""Layers: their parameters are inputs of their own, named by their paths, in the order of vkdnn.tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkdnn import nn, tree
from vkdnn.check.library import nn_float64 as f64
from vkdnn.check.library import norms
from vkdnn.check.library.draws import dropout
from vkdnn.check.library.scans import starts
from vkdnn.check.operator import Array, Input, Operator, index

Dims = dict[str, Any]


def layer(
    name: str, params: Any, inputs: tuple[Input, ...], run: Callable[..., Any], golden: Callable[..., Any],
    fields: dict[str, Any], group: str = "layers", **settings: Any,
) -> Operator:  # fmt: skip
    """``params`` is a tree of lengths as in Input; ``run`` and ``golden`` get a tree of arrays, then the ``inputs``.

    Weights of norms are positive, all others small: nothing saturates, and no rounding is made large.
    """
    leaves, structure = tree.flatten(params)
    own = [
        Input(path, dims, "unit" if "norm" in path and path.endswith("weight") else "small")
        for path, dims in zip(tree.paths(params), leaves, strict=True)
    ]

    def bound(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays: Any, **options: Any) -> Any:
            parameters = tree.unflatten(structure, list(arrays[len(inputs) :]))
            return function(parameters, *arrays[: len(inputs)], **options)

        return call

    return Operator(name, group, (*inputs, *own), bound(run), bound(golden), fields, **settings)


def linear(inputs: str, outputs: str, bias: bool = False) -> Dims:
    return {"weight": f"{inputs} {outputs}"} | ({"bias": outputs} if bias else {})


def swiglu(width: str, hidden: str) -> Dims:
    return {"gate": linear(width, hidden), "up": linear(width, hidden), "down": linear(hidden, width)}


def gelu_layers(width: str, hidden: str, bias: bool) -> Dims:
    return {"up": linear(width, hidden, bias), "down": linear(hidden, width, bias)}


def projections(width: str, queries: str, keys: str, values: str, bias: bool = False) -> Dims:
    """Of ``queries``, ``keys`` and ``values`` elements of all heads; the output has as many as the values."""
    parts = {"query": queries, "key": keys, "value": values}
    return {name: linear(width, n, bias) for name, n in parts.items()}


def affine(width: str, bias: bool = True) -> Dims:
    return {"weight": width} | ({"bias": width} if bias else {})


# ---- settings of layers from the fields of a case


def _image_norm(p: Any, x: Array, groups: int, eps: float) -> Array:
    return norms.group_norm(x, p["norm"]["weight"], p["norm"]["bias"], groups, eps)


def _group_norm(p: Any, x: Any, groups: int, eps: float) -> Any:
    return nn.GroupNorm(groups, x.shape[1], eps)(p["norm"], x)


def _batch_norm(p: Any, x: Any, mean: Any, var: Any, training: bool) -> Any:
    y, state = nn.BatchNorm(x.shape[1])(p["norm"], x, {"mean": mean, "var": var}, training)
    return y, state["mean"], state["var"]


def _batch_norm_64(p: Any, x: Array, mean: Array, var: Array, training: bool) -> Any:
    found = norms.batch_norm(x, mean, var, p["norm"]["weight"], p["norm"]["bias"], training)
    return found if training else (found, mean, var)


def self_attention(x: Any, heads: int, kv_heads: int, half: int, **options: Any) -> nn.CausalSelfAttention:
    return nn.CausalSelfAttention(x.shape[-1], kv_heads * heads, kv_heads, 2 * half, **options)


def relu_attention(x: Any, heads: int, half: int, value: int, **options: Any) -> nn.ReLULinearAttention:
    return nn.ReLULinearAttention(x.shape[-1], heads, 2 * half, value, **options)


def _of(make: Callable[..., Any], golden: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The layer that the fields make, on parameters and arrays; with ``golden`` its twin of the same settings."""

    def call(p: Any, x: Any, *more: Any, **options: Any) -> Any:
        made = make(x, **options)
        return made(p, x, *more) if golden is None else golden(made, p, x, *more)

    return call


_X = Input("x", "batch width")
_SIZES = {"batch": 3, "width": 5}
_IMAGE = Input("x", "batch groups*part positions")
_OF_CHANNELS = {"batch": 3, "groups": 2, "part": 2, "positions": 3}
_CHANNELS = {"norm": affine("groups*part")}
_TOKENS = Input("x", "batch tokens width")
_BOUNDARY = Input("boundary", "batch tokens", starts)

SELF_SIZES = {"batch": 2, "tokens": 4, "width": 5, "kv_heads": 1, "heads": 2, "half": 1}
_SELF_FIELDS = {**SELF_SIZES, "positions": "rope", "window": None, "softcap": None}
_SELF_FORMS: dict[str, dict[str, Any]] = {
    "alibi": {"positions": "alibi", "softcap": 2.0}, "window": {"window": 2, "kv_heads": 2, "heads": 1},
}  # fmt: skip


def self_attention_dims(bias: bool = False) -> Dims:
    queries, keys = "kv_heads*heads*2*half", "kv_heads*2*half"
    return projections("width", queries, keys, keys, bias) | {"output": linear(queries, "width", bias)}


RELU_SIZES = {"batch": 2, "tokens": 4, "width": 5, "heads": 2, "half": 1, "value": 3}
_RELU_FIELDS = {**RELU_SIZES, "variant": "rla2", "order": "sequential", "causal": True, "decay": 1.0}
_RELU_TAKES = ("heads", "half", "value")


def relu_attention_dims() -> Dims:
    keys, values = "heads*2*half", "heads*value"
    return projections("width", keys, keys, values) | {"output": linear(values, "width")}


def feature_map_dims(width: str, features: str) -> Dims:
    outer = linear(features, features, bias=True)
    return {"inner": linear(width, features), "norm": affine(features), "outer": outer}


def _feature_map(p: Any, x: Any) -> Any:
    return nn.FeatureMap(x.shape[-1], p["outer"]["weight"].shape[0])(p, x)


def _lrla(x: Any, heads: int, half: int, value: int, features: int, order: str) -> nn.ReLULinearAttention:
    return relu_attention(x, heads, half, value, variant="lrla", order=order, features=features)


ROWS = (
    layer("nn.Linear", linear("width", "outputs", bias=True), (_X,),
          lambda p, x: nn.Linear(x.shape[-1], p["weight"].shape[-1], bias=True)(p, x), f64.linear,
          {**_SIZES, "outputs": 4}),
    layer("nn.Embedding", linear("vocab", "width"), (Input("tokens", "batch tokens", index("vocab")),),
          lambda p, tokens: nn.Embedding(*p["weight"].shape)(p, tokens), lambda p, tokens: p["weight"][tokens],
          {"batch": 2, "tokens": 4, "vocab": 5, "width": 3}),
    layer("nn.RoPE", {}, (Input("x", "batch tokens heads 2*half"),),
          lambda p, x, base: nn.RoPE(x.shape[-1], base)(x, np.arange(x.shape[1], dtype=np.int32)),
          lambda p, x, base: f64.rope(x, np.arange(x.shape[1]), base),
          {"batch": 2, "tokens": 4, "heads": 1, "half": 3, "base": 10_000.0}),
    layer("nn.SwiGLU", swiglu("width", "hidden"), (_X,),
          lambda p, x: nn.SwiGLU(*p["gate"]["weight"].shape)(p, x), f64.swiglu, {**_SIZES, "hidden": 4}),
    layer("nn.GELULayers", gelu_layers("width", "hidden", True), (_X,),
          lambda p, x: nn.GELULayers(x.shape[-1], len(p["down"]["weight"]), bias=True)(p, x), f64.gelu_layers,
          {**_SIZES, "hidden": 4}),
    layer("nn.RMSNorm", {"norm": affine("width", False)}, (_X,),
          lambda p, x, eps: nn.RMSNorm(x.shape[-1], eps)(p["norm"], x),
          lambda p, x, eps: f64.rms_norm(x, **p["norm"], eps=eps), {**_SIZES, "eps": 1e-6}),
    layer("nn.LayerNorm", {"norm": affine("width")}, (_X,),
          lambda p, x, eps: nn.LayerNorm(x.shape[-1], eps)(p["norm"], x),
          lambda p, x, eps: f64.layer_norm(x, **p["norm"], eps=eps), {**_SIZES, "eps": 1e-5}),
    layer("nn.GroupNorm", _CHANNELS, (_IMAGE,), _group_norm, _image_norm, {**_OF_CHANNELS, "eps": 1e-5},
          takes=("groups",)),
    layer("nn.BatchNorm", _CHANNELS,
          (_IMAGE, Input("mean", "groups*part", gradient=False), Input("var", "groups*part", "positive", False)),
          _batch_norm, _batch_norm_64, {**_OF_CHANNELS, "training": True}, forms={"inference": {"training": False}}),
    layer("nn.Dropout", {}, (_X, Input("key", "2", "words")), lambda p, x, key, rate: nn.Dropout(rate)(x, key),
          lambda p, x, key, rate: dropout(x, key, rate), {**_SIZES, "rate": 0.3}),
    layer("nn.CausalSelfAttention", self_attention_dims(), (_TOKENS,), _of(self_attention),
          _of(self_attention, f64.self_attention), _SELF_FIELDS, takes=("kv_heads", "heads", "half"), halves=False,
          forms=_SELF_FORMS),
    layer("nn.CausalSelfAttention.bias", self_attention_dims(bias=True), (_TOKENS, _BOUNDARY),
          lambda p, x, ids, **o: self_attention(x, bias=True, **o)(p, x, ids),
          lambda p, x, ids, **o: f64.self_attention(self_attention(x, bias=True, **o), p, x, ids),
          _SELF_FIELDS, takes=("kv_heads", "heads", "half"), halves=False),
    layer("nn.ReLULinearAttention", relu_attention_dims(), (_TOKENS,), _of(relu_attention),
          _of(relu_attention, f64.attention), _RELU_FIELDS, takes=_RELU_TAKES, halves=False,
          forms={"chunked": {"order": "chunked"}, "whole": {"causal": False}, "rla": {"variant": "rla"},
                 "rla_chunked": {"variant": "rla", "order": "chunked"}, "decay": {"variant": "rla", "decay": 0.75}}),
    layer("nn.ReLULinearAttention.documents", relu_attention_dims(), (_TOKENS, _BOUNDARY), _of(relu_attention),
          _of(relu_attention, f64.attention), {**RELU_SIZES, "variant": "rla2", "order": "sequential"},
          takes=_RELU_TAKES, halves=False, forms={"chunked": {"order": "chunked"}}),
    layer("nn.ReLULinearAttention.lrla", relu_attention_dims() | {"features": feature_map_dims("2*half", "features")},
          (_TOKENS,), _of(_lrla), _of(_lrla, f64.attention), {**RELU_SIZES, "features": 3, "order": "sequential"},
          takes=(*_RELU_TAKES, "features"), halves=False),
    layer("nn.FeatureMap", feature_map_dims("width", "features"), (_X,), _feature_map, f64.feature_map,
          {**_SIZES, "features": 4}),
)  # fmt: skip
