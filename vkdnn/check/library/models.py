"""Blocks and small models, with parameters as inputs of their own; losses beside logits, so that both are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import nn
from vkdnn.check.library import nn_float64 as f64
from vkdnn.check.library.layers import (
    RELU_SIZES,
    SELF_SIZES,
    Dims,
    affine,
    feature_map_dims,
    gelu_layers,
    layer,
    linear,
    relu_attention_dims,
    self_attention_dims,
    swiglu,
)  # fmt: skip
from vkdnn.check.library.scans import starts
from vkdnn.check.operator import Array, Input, index

_X = Input("x", "batch tokens width")
_TOKENS = Input("tokens", "batch tokens", index("vocab"))
_BOUNDARY = Input("boundary", "batch tokens", starts)
_WORDS = {"vocab": 6, "tokens": 5}  # the last one is a target only: the layers see 4, and share kernels with other rows


def _gpt_config(
    p: Any, vocab: int, width: int, hidden: int, kv_heads: int, heads: int, half: int, **options: Any
) -> nn.GPTConfig:
    return nn.GPTConfig(
        vocab=vocab, width=width, layers=1, heads=kv_heads * heads, kv_heads=kv_heads, head_dim=2 * half, hidden=hidden,
        **options,
    )  # fmt: skip


def _rapt_config(
    p: Any, vocab: int, width: int, hidden: int, heads: int, half: int, value: int, **options: Any
) -> nn.RAPTConfig:
    return nn.RAPTConfig(
        vocab=vocab, width=width, layers=1, heads=heads, key_width=2 * half, value_width=value, hidden=hidden, **options
    )


def _block(config: Callable[..., Any], kind: Any, golden: Callable[..., Any] | None = None) -> Callable[..., Any]:
    def call(p: Any, x: Any, boundary: Any, **options: Any) -> Any:
        block = kind(config(p, vocab=1, **options))
        if kind is nn.RAPTBlock:
            inside = boundary
        elif golden is None:
            inside = vk.cumsum(vk.asarray(boundary), axis=1)
        else:
            inside = np.cumsum(boundary, axis=1)
        return block(p, x, inside) if golden is None else golden(block, p, x, inside)

    return call


def _model(config: Callable[..., Any], kind: Any) -> Callable[..., Any]:
    def run(p: Any, tokens: Any, boundary: Any, **options: Any) -> Any:
        model = kind(config(p, **options))
        inside = boundary[:, :-1]
        return model(p, tokens[:, :-1], inside), model.loss(p, tokens, inside)

    return run


def _twin(config: Callable[..., Any], kind: Any, logits: Callable[..., Any]) -> Callable[..., Any]:
    def golden(p: Any, tokens: Array, boundary: Array, **options: Any) -> Any:
        found = logits(kind(config(p, **options)), p, tokens[:, :-1], boundary[:, :-1])
        return found, f64.cross_entropy(found, tokens[:, 1:])

    return golden


def _prenorm(attention: Dims, mlp: Dims, bias: bool = False) -> Dims:
    norm = affine("width", bias)
    return {"attention_norm": norm, "attention": attention, "mlp_norm": norm, "mlp": mlp}


_GPT = {**SELF_SIZES, "hidden": 3}
_GPT_TAKES = ("width", "hidden", "kv_heads", "heads", "half")
_GPT_BLOCK = _prenorm(self_attention_dims(), swiglu("width", "hidden"))
_GPT_PARTS = {"embedding": linear("vocab", "width"), "layers": [_GPT_BLOCK], "norm": affine("width", False)}
_LEARNED: dict[str, Any] = {"positions": "learned", "mlp": "gelu", "norm": "layer", "bias": True, "tied": False}
_LEARNED_PARTS = {
    "embedding": linear("vocab", "width"), "positions": linear("tokens", "width"), "norm": affine("width"),
    "layers": [_prenorm(self_attention_dims(bias=True), gelu_layers("width", "hidden", True), bias=True)],
    "head": linear("width", "vocab"),
}  # fmt: skip
_RAPT = {**RELU_SIZES, "hidden": 3}
_RAPT_TAKES = ("width", "hidden", "heads", "half", "value")
_RAPT_BLOCK = _prenorm(relu_attention_dims(), swiglu("width", "hidden"))
_LRLA_BLOCK = _prenorm(
    relu_attention_dims() | {"features": feature_map_dims("2*half", "2*half")}, swiglu("width", "hidden")
)


def _rapt_parts(block: Dims) -> Dims:
    outside = {"embedding": linear("vocab", "width"), "norm": affine("width", False), "head": linear("width", "vocab")}
    return outside | {"layers": [block]}


def _learned(p: Any, **options: Any) -> nn.GPTConfig:
    return _gpt_config(p, max_tokens=p["positions"]["weight"].shape[0], **_LEARNED, **options)


def _lrla(p: Any, **options: Any) -> nn.RAPTConfig:
    return _rapt_config(p, variant="lrla", **options)


def _row(name: str, params: Dims, given: Input, run: Any, golden: Any, fields: Dims, takes: Any, **more: Any) -> Any:
    return layer(
        name, params, (given, _BOUNDARY), run, golden, fields, "models", takes=takes, hard=False, halves=False, **more
    )


ROWS = (
    _row("nn.GPTBlock", _GPT_BLOCK, _X, _block(_gpt_config, nn.GPTBlock),
         _block(_gpt_config, nn.GPTBlock, f64.gpt_block), _GPT, _GPT_TAKES),
    _row("nn.RAPTBlock", _RAPT_BLOCK, _X, _block(_rapt_config, nn.RAPTBlock),
         _block(_rapt_config, nn.RAPTBlock, f64.rapt_block), _RAPT, _RAPT_TAKES),
    _row("nn.GPTModel", _GPT_PARTS, _TOKENS, _model(_gpt_config, nn.GPTModel),
         _twin(_gpt_config, nn.GPTModel, f64.gpt_logits),
         {**_GPT, **_WORDS, "positions": "rope", "window": None, "softcap": None}, ("vocab", *_GPT_TAKES),
         forms={"alibi": {"positions": "alibi", "softcap": 2.0}, "window": {"window": 2}}),
    _row("nn.GPTModel.learned", _LEARNED_PARTS, _TOKENS, _model(_learned, nn.GPTModel),
         _twin(_learned, nn.GPTModel, f64.gpt_logits), {**_GPT, **_WORDS}, ("vocab", *_GPT_TAKES)),
    _row("nn.RAPTModel", _rapt_parts(_RAPT_BLOCK), _TOKENS, _model(_rapt_config, nn.RAPTModel),
         _twin(_rapt_config, nn.RAPTModel, f64.logits),
         {**_RAPT, **_WORDS, "variant": "rla2", "order": "sequential"}, ("vocab", *_RAPT_TAKES),
         forms={"chunked": {"order": "chunked"}, "rla": {"variant": "rla"}}),
    _row("nn.RAPTModel.lrla", _rapt_parts(_LRLA_BLOCK), _TOKENS, _model(_lrla, nn.RAPTModel),
         _twin(_lrla, nn.RAPTModel, f64.logits), {**_RAPT, **_WORDS, "order": "sequential"},
         ("vocab", *_RAPT_TAKES)),
)  # fmt: skip
