"""Text from a trained model, byte by byte, and loading such a model from its checkpoint.

Bytes must not depend on the machine: probabilities come from the device, the draw is made with integers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import checkpoint, streams, tree
from vkdnn.array import Array, array
from vkdnn.checkpoint import CheckpointError
from vkdnn.device import Device, Progress
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.train.models import MODELS, Model, make_config, make_model
from vkdnn.train.resume import CHECKPOINT_NAME

PIECE = 64
"""Bytes of a prompt that are read at once; what is left is read byte by byte, with the kernels of the rest."""


def load_model(
    path: str | os.PathLike[str], device: Device, averaged: bool = True
) -> tuple[Model, Any, dict[str, Any]]:
    """(model, parameters on ``device``, metadata) of a checkpoint or of the folder of a run.

    With ``averaged`` the parameters are averaged ones, if the run kept them. Raises ArgumentError when there is
    no such file, and CheckpointError when it holds no model of MODELS.
    """
    place = Path(path)
    if place.is_dir():
        place = place / CHECKPOINT_NAME
    if not place.is_file():
        raise ArgumentError(
            f"checkpoint: {place} does not exist; name a checkpoint or the folder of a run of vkdnn train"
        )
    try:
        saved = checkpoint.load(place, vk.device("cpu"))  # the optimizer's state stays off the device
    except CheckpointError as error:
        raise CheckpointError(f"{error}; or name {CHECKPOINT_NAME} of a run, or its folder") from error
    name = str(saved.metadata.get("model", "rapt"))  # checkpoints without a name are old
    try:
        model = make_model(make_config(name, saved.metadata.get("config")))
    except (TypeError, VkdnnError) as error:
        title = f"{MODELS[name].title} model" if name in MODELS else "known model"
        raise CheckpointError(
            f"checkpoint: {place} describes no {title} ({error}); write it with vkdnn train"
        ) from error
    average = saved.state.get("average") if averaged and isinstance(saved.state, dict) else None
    params = saved.params if average is None else average
    expected, found = _shapes(model.init(0, vk.device("cpu"))), _shapes(params)
    if expected != found:
        name = sorted(set(expected.items()) ^ set(found.items()))[0][0]
        raise CheckpointError(
            f"checkpoint: {place} has {name} of shape {found.get(name)}, expected {expected.get(name)}; "
            "write it again with vkdnn train"
        )
    return model, tree.map_leaves(lambda p: array(p, device=device), params), saved.metadata


def _shapes(params: Any) -> dict[str, tuple[int, ...]]:
    return dict(zip(tree.paths(params), (p.shape for p in tree.flatten(params)[0]), strict=True))


def generate(
    model: Model,
    params: Any,
    prompt: bytes,
    count: int,
    temperature: float = 0.8,
    seed: int = 0,
    progress: Progress | None = None,
) -> Iterator[int]:
    """``count`` bytes that follow ``prompt``, one at a time, on the device of the parameters.

    Byte i is drawn from softmax(logits / temperature) with number i of the seed's stream; temperature 0
    takes the most probable one, the smallest at a tie. Raises ArgumentError for an empty prompt, a negative
    count or temperature, and what the model's init_state raises for too many bytes, before the first byte is asked
    for; VkdnnError when the model gives NaN.
    """
    if not prompt:
        raise ArgumentError("prompt: got no bytes, expected at least one; a newline will do")
    if count < 0:
        raise ArgumentError(f"bytes: got {count}, expected 0 or more")
    if not 0 <= temperature < float("inf"):
        raise ArgumentError(f"temperature: got {temperature}, expected a finite number, 0 or more")
    with tree.flatten(params)[0][0].device:
        state = model.init_state(1, max_tokens=len(prompt) + max(count - 1, 0))  # the last byte is never read
    return _bytes(model, params, state, prompt, count, temperature, seed, progress)


def _bytes(
    model: Model,
    params: Any,
    state: Any,
    prompt: bytes,
    count: int,
    temperature: float,
    seed: int,
    progress: Progress | None,
) -> Iterator[int]:
    def step(params: Any, token: Any, state: Any, divisor: Any) -> tuple[Array, Any]:
        logits, state = model.forward_step(params, token, state)
        logits = logits.reshape(1, -1, logits.shape[-1])[:, -1]
        return (vk.softmax(logits / divisor) if temperature else logits), state

    device = tree.flatten(params)[0][0].device
    jitted = vk.jit(step, donate_argnums=2, progress=progress)
    divisor = np.float32(max(temperature, 2.0**-20))  # below that, softmax is the maximum's alone
    scores, at = None, 0
    while at < len(prompt):
        length = PIECE if len(prompt) - at >= PIECE else 1
        tokens = np.frombuffer(prompt, np.uint8, length, at).astype(np.int32)
        with device:
            scores, state = jitted(params, tokens if length == 1 else tokens[None], state, divisor)
        at += length
    for number in range(count):
        assert scores is not None
        token = _choose(scores.numpy()[0], temperature, seed, number)
        yield token
        if number + 1 < count:
            with device:
                scores, state = jitted(params, np.array([token], np.int32), state, divisor)


def _choose(scores: np.ndarray[Any, np.dtype[np.float32]], temperature: float, seed: int, number: int) -> int:
    """The byte for logits (temperature 0) or probabilities: weights are integers, so no sum is rounded."""
    if np.isnan(scores).any():
        raise VkdnnError("checkpoint: the model gives NaN; train it again with a smaller learning rate")
    if not temperature:
        return int(np.argmax(scores))
    weights = (scores.astype(np.float64) * 2.0**30).astype(np.int64)  # exact, then cut
    bounds = np.cumsum(weights)
    drawn = streams.integers(seed, f"byte.{number}", (), int(bounds[-1]))
    return int(np.searchsorted(bounds, int(drawn), side="right"))
