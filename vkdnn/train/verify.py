"""The parity check: the same training steps on a device and on the NumPy reference, compared by their bits.

It must never allow a tolerance: one differing bit in any parameter or optimizer state is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.device import Device, Progress
from vkdnn.errors import ArgumentError
from vkdnn.nn import NO_LEVERS, Levers
from vkdnn.train.data import Corpus
from vkdnn.train.job import Job
from vkdnn.train.loop import Trainer
from vkdnn.train.resume import Start

OnStep = Callable[[str, int], None]
"""(device name, steps done)"""


@dataclass(frozen=True)
class State:
    """Where a run stands: the digest of everything, one for each array, and the losses of the steps compared."""

    digest: str
    arrays: dict[str, str]
    losses: tuple[float, ...]

    @staticmethod
    def of(trainer: Trainer, since: int = 0) -> State:
        """Where a trainer stands, with the losses after step ``since``."""
        names, leaves = tree.paths(trainer.whole), tree.flatten(trainer.whole)[0]
        arrays = {name: checkpoint.digest({name: leaf}) for name, leaf in zip(names, leaves, strict=True)}
        return State(trainer.digest(), arrays, tuple(trainer.losses[since:]))


@dataclass(frozen=True)
class Parity:
    """The digests of a device's run and of the reference's, and where they part."""

    steps: int
    device: str
    digest: str
    reference: str
    first_step: int | None
    """The first step whose losses differ; None if none does."""
    arrays: tuple[str, ...]
    """Names of the arrays that differ."""

    @property
    def equal(self) -> bool:
        return self.digest == self.reference


def run_steps(
    job: Job,
    corpus: Corpus,
    device: Device,
    steps: int,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
    start: Start | None = None,
    levers: Levers = NO_LEVERS,
) -> State:
    """The state after ``steps`` steps of a job, from ``start`` on if there is one.

    Raises ArgumentError unless steps is 1 or more.
    """
    if steps < 1:
        raise ArgumentError(f"verify: got {steps} steps, expected 1 or more")
    trainer = Trainer(job, corpus, device, progress, start, levers)
    for number in range(steps):
        trainer.step()
        if on_step is not None:
            on_step(device.name, number + 1)
    return State.of(trainer, len(start.losses) if start is not None else 0)


def compare(device: str, found: State, reference: State) -> Parity:
    """The verdict on two runs of as many steps."""
    pairs = zip(found.losses, reference.losses, strict=True)
    parted = [i for i, (a, b) in enumerate(pairs, 1) if a != b]
    arrays = tuple(name for name, digest in reference.arrays.items() if found.arrays.get(name) != digest)
    return Parity(len(found.losses), device, found.digest, reference.digest, parted[0] if parted else None, arrays)


def verify(
    job: Job,
    corpus: Corpus,
    device: Device,
    steps: int,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
    levers: Levers = NO_LEVERS,
) -> Parity:
    """Run the first ``steps`` steps of a job on a device, with ``levers``, and on the reference, without."""
    found = run_steps(job, corpus, device, steps, on_step, progress, levers=levers)
    reference = run_steps(job, corpus, vk.device("cpu"), steps, on_step)
    return compare(device.name, found, reference)
