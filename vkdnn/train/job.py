"""What determines a run besides its text, as data: printable, comparable, kept in every checkpoint.

Equal jobs on equal texts must give equal bits, whenever and wherever they are run.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from vkdnn.errors import ArgumentError
from vkdnn.nn import TRAIN_DEFAULTS, RAPTConfig
from vkdnn.optim import SGD, AdamW, Average, Lion, Optimizer
from vkdnn.train.models import MODELS, Config, Kind, Model, make_config, make_model, model_name

OPTIMIZERS: dict[str, tuple[type[Optimizer], float, float]] = {
    "adamw": (AdamW, TRAIN_DEFAULTS.learning_rate, TRAIN_DEFAULTS.weight_decay),
    "sgd": (SGD, 0.5, 1e-4),  # weight decay is part of the gradient there
    "lion": (Lion, TRAIN_DEFAULTS.learning_rate / 10, 10 * TRAIN_DEFAULTS.weight_decay),
}
"""Name -> class, learning rate for the default model, weight decay."""


@dataclass(frozen=True)
class Job:
    """The model, the batches, the optimizer and its schedule, the seed.

    A step trains ``accumulate`` micro-batches of ``batch`` windows of ``length`` bytes. ``ema`` is the decay
    of averaged weights that are kept beside the others, None for none.
    """

    config: Config = field(default_factory=RAPTConfig)
    steps: int = TRAIN_DEFAULTS.steps
    batch: int = TRAIN_DEFAULTS.batch
    length: int = TRAIN_DEFAULTS.tokens
    learning_rate: float = TRAIN_DEFAULTS.learning_rate
    seed: int = TRAIN_DEFAULTS.seed
    optimizer: str = "adamw"
    accumulate: int = 1
    ema: float | None = None

    def __post_init__(self) -> None:
        model_name(self.config)
        for name in ("steps", "batch", "length", "accumulate"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        if not 0 <= self.seed < 2**64:
            raise ArgumentError(f"seed: got {self.seed}, expected 0 to 2**64 - 1")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ArgumentError(f"learning_rate: got {self.learning_rate}, expected a finite positive number")
        if self.optimizer not in OPTIMIZERS:
            raise ArgumentError(f"optimizer: got {self.optimizer!r}, expected one of {', '.join(OPTIMIZERS)}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ArgumentError(f"ema: got {self.ema}, expected a number in [0, 1)")

    @property
    def model(self) -> str:
        """The name of the model in MODELS."""
        return model_name(self.config)

    @property
    def kind(self) -> Kind:
        """The row of the model in MODELS."""
        return MODELS[self.model]

    def make_model(self) -> Model:
        return make_model(self.config)

    def make_optimizer(self) -> Optimizer:
        kind, _, weight_decay = OPTIMIZERS[self.optimizer]
        defaults = self.kind.defaults
        return kind(
            learning_rate=self.learning_rate,
            warmup_steps=min(defaults.warmup_steps, self.steps // 5),
            total_steps=self.steps,
            min_ratio=defaults.min_ratio,
            weight_decay=weight_decay,
            clip_norm=defaults.clip_norm,
        )

    def make_average(self) -> Average | None:
        return None if self.ema is None else Average(self.ema)

    def record(self) -> dict[str, Any]:
        """The job as JSON can hold it; from_record() gives it back."""
        return {"model": self.model, **dataclasses.asdict(self)}

    @staticmethod
    def from_record(record: Any) -> Job:
        """Raises TypeError, or ArgumentError, for what record() did not make."""
        values = dict(record)
        config = make_config(str(values.pop("model", "rapt")), values.pop("config"))  # records without a name are old
        return Job(config, **values)
