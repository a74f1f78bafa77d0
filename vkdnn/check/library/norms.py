"""Softmax and its kin, norms of layers, cross entropy."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import nn
from vkdnn.check.operator import Array, Input, Operator, index


def softmax(x: Array, axis: Any = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def logsumexp(x: Array, axis: Any = -1, keepdims: bool = False, one_pass: bool = False) -> Array:
    top = x.max(axis, keepdims=True)
    whole = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
    return np.asarray(whole if keepdims else whole.squeeze(axis))


def log_softmax(x: Array, axis: Any = -1) -> Array:
    return np.asarray(x - logsumexp(x, axis, keepdims=True))


def standardised(x: Array, axis: Any = -1, eps: float = 1e-5) -> Array:
    return np.asarray((x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps))


def rms_norm(x: Array, weight: Any = 1.0, axis: Any = -1, eps: float = 1e-6) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis, keepdims=True) + eps) * weight)


def layer_norm(x: Array, weight: Any = 1.0, bias: Any = 0.0, axis: Any = -1, eps: float = 1e-5) -> Array:
    return np.asarray(standardised(x, axis, eps) * weight + bias)


def l2_norm(x: Array, axis: Any = -1, eps: float = 1e-12) -> Array:
    return np.asarray(x / np.maximum(np.sqrt((x * x).sum(axis, keepdims=True)), eps))


def group_norm(x: Array, weight: Any, bias: Any, groups: int, eps: float = 1e-5) -> Array:
    parts = standardised(x.reshape(x.shape[0], groups, -1), -1, eps).reshape(x.shape)
    return np.asarray(parts * weight[:, None] + bias[:, None])


def batch_norm(
    x: Array, mean: Any, var: Any, weight: Any, bias: Any, training: bool, momentum: float = 0.1, eps: float = 1e-5
) -> Any:
    """x [N, C, P]; in training also the statistics, moved to those of the batch (the variance unbiased)."""
    if not training:
        return (x - mean[:, None]) / np.sqrt(var[:, None] + eps) * weight[:, None] + bias[:, None]
    y = standardised(x, (0, 2), eps) * weight[:, None] + bias[:, None]
    moved = (mean + (x.mean((0, 2)) - mean) * momentum, var + (x.var((0, 2), ddof=1) - var) * momentum)
    return (y, *moved)


def cross_entropy(logits: Array, targets: Array) -> Array:
    chosen = np.take_along_axis(log_softmax(logits), targets[..., None], -1)
    return np.asarray(-chosen.mean())


_X = Input("x", "rows columns")
_SIZES = {"rows": 3, "columns": 5}
_IMAGE = Input("x", "batch groups*width positions")
_OF_CHANNELS = {"batch": 3, "groups": 2, "width": 2, "positions": 3, "eps": 1e-5}


def _channels(name: str, kind: str = "normal", gradient: bool = True) -> Input:
    return Input(name, "groups*width", kind, gradient)


ROWS = (
    Operator("softmax", "norms", (_X,), vk.softmax, softmax, {**_SIZES, "axis": -1},
             forms={"first": {"axis": 0}, "both": {"axis": (0, 1)}}),
    Operator("log_softmax", "norms", (_X,), vk.log_softmax, log_softmax, {**_SIZES, "axis": -1},
             forms={"first": {"axis": 0}}),
    Operator("logsumexp", "norms", (_X,), vk.logsumexp, logsumexp,
             {**_SIZES, "axis": -1, "keepdims": False, "one_pass": False},
             forms={"first": {"axis": 0}, "one_pass": {"one_pass": True}}),
    Operator("rms_norm", "norms", (_X, Input("weight", "columns")), vk.rms_norm, rms_norm,
             {**_SIZES, "axis": -1, "eps": 1e-6}, forms={"first": {"axis": 0}}),
    Operator("layer_norm", "norms", (_X, Input("weight", "columns"), Input("bias", "columns")), vk.layer_norm,
             layer_norm, {**_SIZES, "axis": -1, "eps": 1e-5}, forms={"both": {"axis": (0, 1)}}),
    Operator("l2_norm", "norms", (_X,), vk.l2_norm, l2_norm, {**_SIZES, "axis": -1, "eps": 1e-12},
             forms={"first": {"axis": 0}}),
    Operator("group_norm", "norms", (_IMAGE, _channels("weight"), _channels("bias")),
             lambda x, weight, bias, groups, eps: vk.group_norm(x, groups, weight, bias, eps), group_norm,
             _OF_CHANNELS, takes=("groups",)),
    Operator("batch_norm", "norms",
             (_IMAGE, _channels("running_mean", gradient=False), _channels("running_var", "positive", False),
              _channels("weight"), _channels("bias")),
             vk.batch_norm, batch_norm, {**_OF_CHANNELS, "training": True, "momentum": 0.1},
             forms={"inference": {"training": False}}),
    Operator("nn.cross_entropy", "norms", (Input("logits", "rows columns"), Input("targets", "rows", index("columns"))),
             nn.cross_entropy, cross_entropy, _SIZES),
)  # fmt: skip
