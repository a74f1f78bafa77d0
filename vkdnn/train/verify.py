"""The parity check: the same training steps on a device and on the NumPy reference, compared by their bits.

It must never allow a tolerance: one differing bit in any parameter or optimizer state is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.device import Device, Progress
from vkdnn.errors import ArgumentError
from vkdnn.train.data import Corpus
from vkdnn.train.loop import Job, Trainer

OnStep = Callable[[str, int], None]
"""(device name, steps done)"""


@dataclass(frozen=True)
class State:
    """Where a run stands: the digest of everything, one for each array, and the losses so far."""

    digest: str
    arrays: dict[str, str]
    losses: tuple[float, ...]

    @staticmethod
    def of(trainer: Trainer) -> State:
        whole: Any = {"params": trainer.params, "state": trainer.state}
        names, leaves = tree.paths(whole), tree.flatten(whole)[0]
        arrays = {name: checkpoint.digest({name: leaf}) for name, leaf in zip(names, leaves, strict=True)}
        return State(trainer.digest(), arrays, tuple(trainer.losses))


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
) -> State:
    """The state after ``steps`` steps of a job. Raises ArgumentError unless steps is 1 or more."""
    if steps < 1:
        raise ArgumentError(f"verify: got {steps} steps, expected 1 or more")
    trainer = Trainer(job, corpus, device, progress)
    for number in range(steps):
        trainer.step()
        if on_step is not None:
            on_step(device.name, number + 1)
    return State.of(trainer)


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
) -> Parity:
    """Run the first ``steps`` steps of a job on a device and on the reference."""
    found = run_steps(job, corpus, device, steps, on_step, progress)
    reference = run_steps(job, corpus, vk.device("cpu"), steps, on_step)
    return compare(device.name, found, reference)
