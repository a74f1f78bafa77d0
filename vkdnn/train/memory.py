"""What a training step needs of memory and submissions under the levers, from its plan: nothing is run.

It must never estimate: the numbers are those of the Programs that training would run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vkdnn.device import Device
from vkdnn.nn import Levers
from vkdnn.train.data import Corpus
from vkdnn.train.job import Job
from vkdnn.train.loop import Trainer


@dataclass(frozen=True)
class Usage:
    """A setting's name and levers; bytes of intermediates on the device at their peak, of parameters, optimizer state
    and what else lasts from step to step there, of intermediates in the host's memory; submissions a step.
    """

    setting: str
    levers: Levers
    device_bytes: int
    state_bytes: int
    host_bytes: int
    submissions: int


def memory_report(job: Job, corpus: Corpus, device: Device, levers: Levers) -> list[Usage]:
    """The use of a step without levers, and with more and more of them: those of ``levers``, or of every block."""
    every = levers.checkpoint_every or 1
    recompute = Levers(checkpoint_every=every)
    offload = replace(recompute, offload=True)
    settings = {
        "plain": Levers(),
        "recompute": recompute,
        "recompute, offload": offload,
        "recompute, offload, flush": replace(offload, flush_every=levers.flush_every or every),
    }
    return [_usage(name, Trainer(job, corpus, device, levers=chosen)) for name, chosen in settings.items()]


def _usage(name: str, trainer: Trainer) -> Usage:
    programs = trainer.programs()
    return Usage(
        name,
        trainer.levers,
        4 * sum(p.peak_words for p in programs),  # each keeps its arenas
        trainer.state_bytes,
        4 * sum(p.host_words for p in programs),
        sum(p.submissions * count for p, count in programs.items()),
    )
