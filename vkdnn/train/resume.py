"""Going on with a run: what its checkpoint holds, and whether the text is still the one it was trained on.

It must never go on with anything else than what the run began with: what differs is an error that names it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.array import array
from vkdnn.checkpoint import CheckpointError
from vkdnn.device import Device
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.nn import NO_LEVERS, Levers
from vkdnn.train.data import Corpus, load_text, sample_text, standard_library
from vkdnn.train.job import Job

CHECKPOINT_NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class Start:
    """A run as its checkpoint left it: where that is, the job, the losses so far, the trees on the reference,
    the text's name, path (None: no file of the user's), size and SHA-256, and the levers, which change no bit.
    """

    path: Path
    job: Job
    losses: tuple[float, ...]
    whole: dict[str, Any]
    text: str
    text_path: str | None
    text_bytes: int
    text_sha256: str
    version: str
    levers: Levers = NO_LEVERS


def load_start(folder: str | os.PathLike[str]) -> Start:
    """What a run's folder holds. Raises ArgumentError where there is no checkpoint, and CheckpointError for one
    that is damaged or keeps no run.
    """
    place = Path(folder)
    path = place / CHECKPOINT_NAME if place.is_dir() else place
    if not path.is_file():
        raise ArgumentError(
            f"--resume: {path} does not exist; name the folder of a run of vkdnn train that wrote a checkpoint"
        )
    saved = checkpoint.load(path, vk.device("cpu"))
    found, state = saved.metadata, saved.state
    try:
        job = Job.from_record(found["job"])
        whole = {"params": saved.params, "state": state["optimizer"]}
        if job.ema is not None:
            whole["average"] = state["average"]
        losses = tuple(map(float, state["losses"].numpy()))
        text = (found["text"], found["text_path"], int(found["text_bytes"]), found["text_sha256"])
        version = str(found["vkdnn"])
        levers = Levers(**found.get("levers", {}))
    except (KeyError, TypeError, VkdnnError) as error:
        raise CheckpointError(
            f"checkpoint: {path} keeps no run to go on with ({error}); start a new one with vkdnn train"
        ) from error
    return Start(path, job, losses, whole, *text, version, levers)


def same_text(start: Start, given: str | os.PathLike[str] | None = None) -> Corpus:
    """The run's text, loaded again, from ``given`` if that is a path.

    Raises ArgumentError when its bytes are not those that the run began with.
    """
    path = given if given is not None else start.text_path
    if path is not None:
        corpus = load_text(path)
    else:
        corpus = sample_text() if start.text == sample_text().name else standard_library()
    if corpus.sha256 != start.text_sha256:
        raise ArgumentError(
            f"text: {corpus.name} differs from the run's: {corpus.data.size} bytes with SHA-256 "
            f"{corpus.sha256[:16]}..., the run in {start.path.parent} began with {start.text_bytes} bytes of "
            f"{start.text} with {start.text_sha256[:16]}...; give that text with --text, or start a new run"
        )
    return corpus


def moved(start: Start, like: dict[str, Any], device: Device) -> dict[str, Any]:
    """The trees of a start as arrays on ``device``, each with memory of its own.

    Raises CheckpointError unless names, shapes and dtypes are those of ``like``.
    """
    expected, found = _kinds(like), _kinds(start.whole)
    if expected != found:
        name = sorted(set(expected.items()) ^ set(found.items()))[0][0]
        raise CheckpointError(
            f"checkpoint: {start.path} has {name} as {found.get(name)}, expected {expected.get(name)}; "
            "start a new run with vkdnn train"
        )
    return {
        part: tree.map_leaves(lambda x: array(x.numpy(), dtype=x.dtype, device=device), whole)
        for part, whole in start.whole.items()
    }


def _kinds(whole: dict[str, Any]) -> dict[str, str]:
    leaves = tree.flatten(whole)[0]
    return {n: f"{x.dtype} {list(x.shape)}" for n, x in zip(tree.paths(whole), leaves, strict=True)}
