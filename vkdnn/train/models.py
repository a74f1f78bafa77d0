"""The models that vkdnn train knows, one row each: everything else in training and decoding is generic over them.

Nothing here may hold parameters or touch a device.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from vkdnn.array import Array
from vkdnn.device import Device
from vkdnn.errors import ArgumentError
from vkdnn.nn import NO_LEVERS, TRAIN_DEFAULTS, GPTConfig, GPTModel, Levers, RAPTConfig, RAPTModel, TrainDefaults

Config = RAPTConfig | GPTConfig
"""A configuration of one of the models."""


class Model(Protocol):
    """What training and decoding need of a model."""

    def init(self, seed: int, device: Device | None = None) -> Any:
        """Parameters of a seed."""

    def loss(self, params: Any, tokens: Any, boundary: Any = None, levers: Levers = NO_LEVERS) -> Array:
        """Mean cross entropy (nats) of tokens [B, T + 1] int32."""

    def init_state(self, batch: int, device: Device | None = None, max_tokens: int | None = None) -> Any:
        """The state before the first of at most ``max_tokens`` tokens."""

    def forward_step(self, params: Any, token: Any, state: Any, boundary: Any = None) -> tuple[Array, Any]:
        """Logits for the next tokens and the state after, with the bits of the whole sequence."""


class Kind(NamedTuple):
    """A row of MODELS: what people call the model, its classes, how its default configuration is trained."""

    title: str
    config: type[Any]
    model: type[Any]
    defaults: TrainDefaults


MODELS: dict[str, Kind] = {
    "rapt": Kind("RAPT", RAPTConfig, RAPTModel, TRAIN_DEFAULTS),
    "gpt": Kind("GPT", GPTConfig, GPTModel, TRAIN_DEFAULTS),
}
"""Name -> row; the name is what checkpoints and --model say."""


def model_name(config: Any) -> str:
    """The name in MODELS of the model that a configuration describes. Raises ArgumentError for anything else."""
    for name, kind in MODELS.items():
        if type(config) is kind.config:
            return name
    known = ", ".join(kind.config.__name__ for kind in MODELS.values())
    raise ArgumentError(f"config: got {type(config).__name__}, expected one of {known}")


def make_model(config: Config) -> Model:
    """The model that a configuration describes."""
    model: Model = MODELS[model_name(config)].model(config)
    return model


def make_config(name: str, values: Any) -> Config:
    """The configuration with these values (a dict, as a checkpoint keeps it) of a model of MODELS.

    Raises TypeError for values that are no such dict, and ArgumentError for an unknown name or what the
    configuration refuses.
    """
    if name not in MODELS:
        raise ArgumentError(f"model: got {name!r}, expected one of {', '.join(MODELS)}")
    config: Config = MODELS[name].config(**values)
    return config
