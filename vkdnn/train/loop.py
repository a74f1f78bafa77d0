"""The training loop: one compiled step (forward, backward, optimizer), its parameters and losses.

It must never lose what was trained: interrupts are heard between steps, checkpoints are written whole.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.device import Device, Progress
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.nn import TRAIN_DEFAULTS, RAPTConfig, RAPTModel
from vkdnn.optim import AdamW
from vkdnn.train.data import Corpus, batch_at


class TrainingError(VkdnnError):
    """A run that cannot go on: its loss is no finite number any more."""


@dataclass(frozen=True)
class Job:
    """What determines a run, together with the text: the model, the batches, the schedule, the seed."""

    config: RAPTConfig = field(default_factory=RAPTConfig)
    steps: int = TRAIN_DEFAULTS.steps
    batch: int = TRAIN_DEFAULTS.batch
    length: int = TRAIN_DEFAULTS.tokens
    learning_rate: float = TRAIN_DEFAULTS.learning_rate
    seed: int = TRAIN_DEFAULTS.seed

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "length"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        if not 0 <= self.seed < 2**64:
            raise ArgumentError(f"seed: got {self.seed}, expected 0 to 2**64 - 1")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ArgumentError(f"learning_rate: got {self.learning_rate}, expected a finite positive number")

    @property
    def optimizer(self) -> AdamW:
        return AdamW(
            learning_rate=self.learning_rate,
            warmup_steps=min(TRAIN_DEFAULTS.warmup_steps, self.steps // 5),
            total_steps=self.steps,
            min_ratio=TRAIN_DEFAULTS.min_ratio,
            weight_decay=TRAIN_DEFAULTS.weight_decay,
            clip_norm=TRAIN_DEFAULTS.clip_norm,
        )


class Trainer:
    """A run on a device: step() trains one batch. ``progress`` hears of kernels compiled in the first step.

    ``params`` and ``state`` are those after the last step; a later step takes over their memory.
    """

    def __init__(self, job: Job, corpus: Corpus, device: Device, progress: Progress | None = None):
        corpus.check(job.length)
        self.job, self.corpus, self.device = job, corpus, device
        self.losses: list[float] = []
        model, optimizer = RAPTModel(job.config), job.optimizer
        with device:
            self.params = model.init(job.seed)
            self.state: Any = optimizer.init(self.params)

        def step(params: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
            loss, gradients = vk.value_and_grad(model.loss)(params, tokens)
            params, state = optimizer.update(params, gradients, state)
            return params, state, loss

        self._step = vk.jit(step, donate_argnums=(0, 1), progress=progress)

    def step(self) -> float:
        """Train one batch; gives its loss in nats a byte, and keeps it in ``losses``.

        Raises TrainingError when the loss is NaN or infinite.
        """
        job, number = self.job, len(self.losses)
        tokens = batch_at(self.corpus, number, job.batch, job.length, job.seed)
        with self.device:
            self.params, self.state, loss = self._step(self.params, self.state, tokens)
        value = float(loss.item())
        if not math.isfinite(value):
            raise TrainingError(
                f"loss: got {value} at step {number + 1}, expected a finite number; lower the learning rate"
            )
        self.losses.append(value)
        return value

    @property
    def parameter_count(self) -> int:
        return sum(p.size for p in tree.flatten(self.params)[0])

    def digest(self) -> str:
        """SHA-256 over all parameters and optimizer state."""
        return checkpoint.digest({"params": self.params, "state": self.state})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with all that generate() needs."""
        metadata = {
            "config": dataclasses.asdict(self.job.config),
            "seed": self.job.seed,
            "step": len(self.losses),
            "text": self.corpus.name,
            "vkdnn": vk.__version__,
        }
        checkpoint.save(path, self.params, self.state, metadata)


class Stop:
    """Within this context, once ``armed``, Ctrl-C only sets ``asked``; a second one interrupts at once.

    An interrupt inside a step would leave parameters half donated. Before the first step is done there is
    nothing to lose, and compiling may take long.
    """

    def __init__(self) -> None:
        self.armed = self.asked = False
        self._before: Any = None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.armed:
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
