"""Layers and models. They are made of vkdnn's array functions and hold no arrays themselves."""

from vkdnn.nn.attention import FeatureMap, ReLULinearAttention
from vkdnn.nn.layers import Embedding, LayerNorm, Linear, RMSNorm, RoPE, SwiGLU
from vkdnn.nn.losses import cross_entropy
from vkdnn.nn.rapt import TRAIN_DEFAULTS, RAPTBlock, RAPTConfig, RAPTModel, TrainDefaults

__all__ = [
    "TRAIN_DEFAULTS",
    "Embedding",
    "FeatureMap",
    "LayerNorm",
    "Linear",
    "RAPTBlock",
    "RAPTConfig",
    "RAPTModel",
    "RMSNorm",
    "ReLULinearAttention",
    "RoPE",
    "SwiGLU",
    "TrainDefaults",
    "cross_entropy",
]
