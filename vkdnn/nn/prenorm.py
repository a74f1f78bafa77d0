"""What blocks of pre-norm residuals share, whatever their attention, norm and layers are."""

from __future__ import annotations

import math
from typing import Any

from vkdnn.nn.layers import Params
from vkdnn.streams import Stream


class PreNormBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)); subclasses say which ``norm``, ``attention`` and ``mlp``."""

    config: Any

    @property
    def norm(self) -> Any:
        raise NotImplementedError

    @property
    def attention(self) -> Any:
        raise NotImplementedError

    @property
    def mlp(self) -> Any:
        raise NotImplementedError

    @property
    def _residual_gain(self) -> float:
        return 1.0 / math.sqrt(2.0 * self.config.layers)  # 2 additions a layer keep the variance near 1

    def init(self, stream: Stream) -> Params:
        """{"attention_norm", "attention", "mlp_norm", "mlp"}."""
        return {
            "attention_norm": self.norm.init(stream.child("attention_norm")),
            "attention": self.attention.init(stream.child("attention")),
            "mlp_norm": self.norm.init(stream.child("mlp_norm")),
            "mlp": self.mlp.init(stream.child("mlp")),
        }
