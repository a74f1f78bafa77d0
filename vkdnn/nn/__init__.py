"""Layers and models. They are made of vkdnn's array functions and hold no arrays themselves."""

from vkdnn.nn.attention import FeatureMap, ReLULinearAttention
from vkdnn.nn.dropout import Dropout, dropout
from vkdnn.nn.gpt import GELULayers, GPTBlock, GPTConfig, GPTModel
from vkdnn.nn.gpt2 import load_gpt2
from vkdnn.nn.layers import Embedding, Linear, RoPE, SwiGLU
from vkdnn.nn.levers import NO_LEVERS, Levers
from vkdnn.nn.losses import cross_entropy
from vkdnn.nn.norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from vkdnn.nn.rapt import TRAIN_DEFAULTS, RAPTBlock, RAPTConfig, RAPTModel, TrainDefaults
from vkdnn.nn.self_attention import CausalSelfAttention, alibi_slopes

__all__ = [
    "NO_LEVERS",
    "TRAIN_DEFAULTS",
    "BatchNorm",
    "CausalSelfAttention",
    "Dropout",
    "Embedding",
    "FeatureMap",
    "GELULayers",
    "GPTBlock",
    "GPTConfig",
    "GPTModel",
    "GroupNorm",
    "LayerNorm",
    "Levers",
    "Linear",
    "RAPTBlock",
    "RAPTConfig",
    "RAPTModel",
    "RMSNorm",
    "ReLULinearAttention",
    "RoPE",
    "SwiGLU",
    "TrainDefaults",
    "alibi_slopes",
    "cross_entropy",
    "dropout",
    "load_gpt2",
]
