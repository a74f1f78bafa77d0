"""The training loop: one compiled step (forward, backward, optimizer), its parameters and losses.

It must never lose what was trained: interrupts are heard between steps, checkpoints are written whole.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from dataclasses import asdict
from types import FrameType, TracebackType
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.device import Device, Progress
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.nn import NO_LEVERS, Levers
from vkdnn.optim import Accumulation
from vkdnn.program import Program
from vkdnn.train.data import Corpus, batch_at
from vkdnn.train.job import Job
from vkdnn.train.resume import Start, moved


class TrainingError(VkdnnError):
    """A run that cannot go on: its loss is no finite number any more."""


class Trainer:
    """A run on a device: step() trains one batch. ``progress`` hears of kernels compiled in the first step.

    ``params``, ``state`` and ``average`` (None without ``job.ema``) are those after the last step; a later
    step takes over their memory. With ``start`` the run goes on from a checkpoint, which may have been written
    on another device; its bits are those of a run that was never broken off. ``levers`` change no bit.
    """

    def __init__(
        self,
        job: Job,
        corpus: Corpus,
        device: Device,
        progress: Progress | None = None,
        start: Start | None = None,
        levers: Levers = NO_LEVERS,
    ):
        corpus.check(job.length)
        self.job, self.corpus, self.device, self.levers = job, corpus, device, levers
        self.losses: list[float] = []
        model, optimizer, ema = job.make_model(), job.make_optimizer(), job.make_average()
        with device:
            self.params = model.init(job.seed)
            self.state: Any = optimizer.init(self.params)
            self.average: Any = None if ema is None else ema.init(self.params)
        if start is not None:
            found = moved(start, self.whole, device)
            self.params, self.state, self.average = found["params"], found["state"], found.get("average")
            self.losses = list(start.losses)

        def update(params: Any, state: Any, average: Any, gradients: Any) -> tuple[Any, Any, Any]:
            params, state = optimizer.update(params, gradients, state)
            return params, state, average if ema is None else ema.update(average, params)

        def loss_of(params: Any, tokens: Any) -> vk.Array:
            return model.loss(params, tokens, levers=levers)

        def step(params: Any, state: Any, average: Any, tokens: Any) -> tuple[Any, ...]:
            loss, gradients = vk.value_and_grad(loss_of)(params, tokens)
            return (*update(params, state, average, gradients), loss)

        micro = Accumulation(loss_of, job.accumulate)

        def last(params: Any, state: Any, average: Any, sums: Any) -> tuple[Any, ...]:
            loss, gradients = micro.take(sums)
            return (*update(params, state, average, gradients), loss)

        if job.accumulate == 1:
            self._step = vk.jit(step, donate_argnums=(0, 1, 2), progress=progress)
        else:  # a submission for each micro-batch, so that only one of them has to fit into memory
            self._sums = micro.init(self.params)
            self._add = vk.jit(micro.add, donate_argnums=0, progress=progress)
            self._last = vk.jit(last, donate_argnums=(0, 1, 2), progress=progress)

    def step(self) -> float:
        """Train one batch; gives its loss in nats a byte, and keeps it in ``losses``.

        Raises TrainingError when the loss is NaN or infinite.
        """
        job, number = self.job, len(self.losses)
        batches = [
            batch_at(self.corpus, number * job.accumulate + i, job.batch, job.length, job.seed)
            for i in range(job.accumulate)
        ]
        with self.device:
            loss = self._train(batches)
        value = float(loss.item())
        if not math.isfinite(value):
            raise TrainingError(
                f"loss: got {value} at step {number + 1}, expected a finite number; lower the learning rate"
            )
        self.losses.append(value)
        return value

    def step_function(self) -> tuple[Any, tuple[Any, ...]]:
        """The jitted function of a step and its first arguments; the last one is tokens [B, T + 1] int32.

        Of (params, state, tokens) it gives (params, state, loss), and with ``job.ema``, of (params, state, average,
        tokens), (params, state, average, loss). It takes over the memory of all arguments but the tokens. Raises
        ArgumentError for a step of several micro-batches, which is no single function.
        """
        if self.job.accumulate > 1:
            raise ArgumentError(
                f"accumulate: got {self.job.accumulate}, expected 1: a step of several micro-batches is no one program"
            )
        if self.average is not None:
            return self._step, (self.params, self.state, self.average)

        def step(params: Any, state: Any, tokens: Any) -> tuple[Any, ...]:
            params, state, _, loss = self._step(params, state, None, tokens)
            return params, state, loss

        return vk.jit(step, donate_argnums=(0, 1)), (self.params, self.state)

    def programs(self) -> dict[Program, int]:
        """The Programs of a step, planned but not compiled, and how often each runs."""
        tokens, whole = (
            np.zeros((self.job.batch, self.job.length + 1), np.int32),
            (self.params, self.state, self.average),
        )
        with self.device:
            if self.job.accumulate == 1:
                return {self._step.program(*whole, tokens): 1}
            add = self._add.program(self._sums, self.params, tokens, np.int32(0))
            return {add: self.job.accumulate, self._last.program(*whole, self._sums): 1}

    @property
    def state_bytes(self) -> int:
        """Bytes of everything on the device that lasts from step to step."""
        sums = {} if self.job.accumulate == 1 else self._sums
        return sum(4 * leaf.node.words for leaf in tree.flatten([self.whole, sums])[0])

    def _train(self, batches: list[Any]) -> Any:
        whole = (self.params, self.state, self.average)
        if self.job.accumulate == 1:
            self.params, self.state, self.average, loss = self._step(*whole, batches[0])
            return loss
        for number, tokens in enumerate(batches):
            self._sums = self._add(self._sums, self.params, tokens, np.int32(number))
        self.params, self.state, self.average, loss = self._last(*whole, self._sums)
        return loss

    @property
    def best(self) -> Any:
        """The parameters to decode with: averaged ones, if the job keeps them."""
        return self.params if self.average is None else self.average

    @property
    def whole(self) -> dict[str, Any]:
        """Everything that later steps depend on: {"params", "state"} and, with ``job.ema``, {"average"}."""
        whole = {"params": self.params, "state": self.state}
        return whole if self.average is None else {**whole, "average": self.average}

    @property
    def parameter_count(self) -> int:
        return sum(p.size for p in tree.flatten(self.params)[0])

    @property
    def checkpoint_bytes(self) -> int:
        """About how large a checkpoint becomes by the end of the run, and never less."""
        names = tree.paths(self.whole)
        arrays = sum(4 * leaf.size for leaf in tree.flatten(self.whole)[0])
        return arrays + 4 * self.job.steps + 200 * len(names) + 8192

    def digest(self) -> str:
        """SHA-256 over all parameters and optimizer state, and averaged weights where there are any."""
        return checkpoint.digest(self.whole)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with all that generate() and a later Trainer need."""
        state = {"optimizer": self.state, "losses": np.asarray(self.losses, np.float32)}
        if self.average is not None:
            state["average"] = self.average
        record = self.job.record()
        metadata = {
            "model": record["model"],
            "config": record["config"],
            "job": record,
            "levers": asdict(self.levers),
            "seed": self.job.seed,
            "step": len(self.losses),
            "text": self.corpus.name,
            "text_path": self.corpus.path,
            "text_bytes": self.corpus.data.size,
            "text_sha256": self.corpus.sha256,
            "vkdnn": vk.__version__,
        }
        checkpoint.save(path, self.params, state, metadata)


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
