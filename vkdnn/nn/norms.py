"""Norms as layers: RMSNorm, LayerNorm, GroupNorm, and BatchNorm with its running statistics.

Running statistics are no parameters: they have no gradient, and the caller carries them from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.array import Array, asarray
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir.arguments import settings
from vkdnn.nn.layers import Params
from vkdnn.ops.normalize import batch_norm, group_norm, layer_norm, rms_norm
from vkdnn.streams import Stream


def _affine(width: int, bias: bool) -> Params:
    params: Params = {"weight": np.ones(width, np.float32)}
    if bias:
        params["bias"] = np.zeros(width, np.float32)
    return params


@dataclass(frozen=True)
class RMSNorm:
    """x / sqrt(mean(x²) + eps) over the last axis, times weight [width], which starts at 1."""

    width: int
    eps: float = 1e-6

    def init(self, stream: Stream) -> Params:
        """{"weight": [width]}."""
        return _affine(self.width, False)

    def __call__(self, params: Params, x: Any) -> Array:
        """x [..., width] float32 -> the same shape."""
        return rms_norm(x, params["weight"], eps=self.eps)


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) over the last axis (Ba et al. 2016), times weight [width], which starts
    at 1, plus bias [width], which starts at 0.
    """

    width: int
    eps: float = 1e-5
    bias: bool = True

    def init(self, stream: Stream) -> Params:
        """{"weight": [width]} and with ``bias`` {"bias": [width]}."""
        return _affine(self.width, self.bias)

    def __call__(self, params: Params, x: Any) -> Array:
        """x [..., width] float32 -> the same shape. Raises ShapeError for another last axis."""
        x = asarray(x)
        if not x.ndim or x.shape[-1] != self.width:
            raise ShapeError(f"x: got shape {x.shape}, expected [..., {self.width}]")
        return layer_norm(x, params["weight"], params["bias"] if self.bias else None, eps=self.eps)


@dataclass(frozen=True)
class GroupNorm:
    """LayerNorm of each of ``groups`` groups of channels over all positions (Wu and He 2018); weight and bias
    [channels].
    """

    groups: int
    channels: int
    eps: float = 1e-5

    def __post_init__(self) -> None:
        settings(self)
        if self.groups < 1 or self.channels < 1 or self.channels % self.groups:
            raise ArgumentError(
                f"groups: got {self.groups} for {self.channels} channels, expected a positive divisor of them"
            )

    def init(self, stream: Stream) -> Params:
        """{"weight": [channels], "bias": [channels]}."""
        return _affine(self.channels, True)

    def __call__(self, params: Params, x: Any) -> Array:
        """x [N, channels, ...] float32 -> the same shape. Raises ShapeError for other channels."""
        return group_norm(_of_channels(x, self.channels), self.groups, params["weight"], params["bias"], eps=self.eps)


@dataclass(frozen=True)
class BatchNorm:
    """Standardised channel by channel over the batch and all positions (Ioffe and Szegedy 2015), times weight
    plus bias [channels]; in inference with running statistics, which ``momentum`` moves towards each batch's.
    """

    channels: int
    eps: float = 1e-5
    momentum: float = 0.1

    def __post_init__(self) -> None:
        settings(self)
        if self.channels < 1:
            raise ArgumentError(f"channels: got {self.channels}, expected 1 or more")
        if not 0 <= self.momentum <= 1:
            raise ArgumentError(f"momentum: got {self.momentum}, expected a number from 0 to 1")

    def init(self, stream: Stream) -> Params:
        """{"weight": [channels], "bias": [channels]}."""
        return _affine(self.channels, True)

    def init_state(self) -> Params:
        """The running statistics before the first batch: {"mean": zeros, "var": ones}, NumPy [channels]."""
        return {"mean": np.zeros(self.channels, np.float32), "var": np.ones(self.channels, np.float32)}

    def __call__(self, params: Params, x: Any, state: Params, training: bool = False) -> tuple[Array, Params]:
        """x [N, channels, ...] float32 and the running statistics -> the same shape and the statistics after.

        In inference they stay as they are. Raises ShapeError for other channels, and ArgumentError in training
        for a batch of one element a channel.
        """
        x = _of_channels(x, self.channels)
        settings: dict[str, Any] = {"momentum": self.momentum, "eps": self.eps}
        statistics = (state["mean"], state["var"], params["weight"], params["bias"])
        if not training:
            return batch_norm(x, *statistics, **settings), state
        y, mean, var = batch_norm(x, *statistics, training=True, **settings)
        return y, {"mean": mean, "var": var}


def _of_channels(x: Any, channels: int) -> Array:
    x = asarray(x)
    if x.ndim < 2 or x.shape[1] != channels:
        raise ShapeError(f"x: got shape {x.shape}, expected [N, {channels}, ...]")
    return x
