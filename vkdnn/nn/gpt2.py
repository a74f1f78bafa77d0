"""GPT-2's parameters from a safetensors file in Hugging Face's layout.

A file must be read whole or refused: no tensor may be missing, of another shape, or left over.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from vkdnn import tree
from vkdnn.array import array
from vkdnn.checkpoint import CheckpointError
from vkdnn.device import Device
from vkdnn.errors import ArgumentError
from vkdnn.ir.arguments import short
from vkdnn.nn.gpt import GPTConfig, GPTModel, is_positive
from vkdnn.nn.layers import Params

HEAD_DIM = 64  # of every GPT-2, unless config.json has another number of heads
FILE_NAME = "model.safetensors"
_PREFIX = "transformer."
_BUFFERS = (".attn.bias", ".attn.masked_bias")  # masks, which are no parameters
_REFUSED = {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "add_cross_attention": True}
_GELU = ("gelu_new", "gelu_pytorch_tanh")


def load_gpt2(path: str | os.PathLike[str], device: Device | None = None) -> tuple[GPTModel, Params]:
    """(model, parameters on ``device``) of a GPT-2 (Radford et al. 2019) in ``path``: a safetensors file with the names
    of Hugging Face's GPT2Model or GPT2LMHeadModel, or a folder with model.safetensors.

    float16 and bfloat16 are widened. ``config.json`` beside the file gives the number of heads (without it: width / 64)
    and the eps of the norms (without it: 1e-5); what it says of other sizes must be what the file holds. The head is
    tied unless the file holds another lm_head.weight. Raises ArgumentError when there is no such file, and
    CheckpointError when it holds no GPT-2, or another one than config.json says.

    The model reads token numbers; what text they stand for is the business of GPT-2's tokenizer.
    """
    try:
        place = Path(path)
    except TypeError:
        raise ArgumentError(f"load_gpt2: path: got {type(path).__name__}, expected a path") from None
    try:
        place = place / FILE_NAME if place.is_dir() else place
        there = place.is_file()
    except OSError as error:  # a name too long, a folder that is closed
        raise ArgumentError(f"load_gpt2: path: cannot look at {str(place)[:80]} ({error.strerror})") from None
    if not there:
        raise ArgumentError(f"load_gpt2: {place} does not exist; name a safetensors file, or a folder with {FILE_NAME}")
    tensors = _Tensors(place)
    described = place.parent / "config.json"
    settings = _settings(described)
    embedding, positions = tensors.take("wte.weight", (None, None)), tensors.take("wpe.weight", (None, None))
    vocab, width = embedding.shape
    layers = len({name.split(".")[1] for name in tensors.left if name.startswith("h.")})
    hidden = tensors.peek("h.0.mlp.c_fc.weight", (width, None)).shape[1]
    inner = settings.get("n_inner", hidden)
    sizes = {"n_embd": width, "vocab_size": vocab, "n_positions": positions.shape[0], "n_layer": layers}
    for name, size in (sizes | {"n_inner": hidden}).items():
        said = 4 * width if name == "n_inner" and inner is None else settings.get(name, size)
        if said != size:
            raise CheckpointError(f"load_gpt2: {described} has {name} {short(said)}, but {place} holds one of {size}")
    head = tensors.take("lm_head.weight", (vocab, width)) if "lm_head.weight" in tensors.left else embedding
    tied = np.array_equal(head, embedding)
    try:
        config = GPTConfig(
            vocab, width, layers, settings.get("n_head", max(1, width // HEAD_DIM)), hidden=hidden,
            positions="learned", mlp="gelu", norm="layer", bias=True, tied=tied, max_tokens=positions.shape[0],
            eps=settings.get("layer_norm_epsilon", 1e-5),
        )  # fmt: skip
    except ArgumentError as error:
        raise CheckpointError(f"load_gpt2: {place} and its config.json do not fit ({error})") from error

    def norm(name: str) -> Params:
        return {part: tensors.take(f"{name}.{part}", (width,)) for part in ("weight", "bias")}

    def linear(name: str, inputs: int, outputs: int) -> Params:
        weight = tensors.take(f"{name}.weight", (inputs, outputs))  # a "Conv1D": inputs first, as in Linear
        return {"weight": weight, "bias": tensors.take(f"{name}.bias", (outputs,))}

    def block(name: str) -> Params:
        joined = linear(f"{name}.attn.c_attn", width, 3 * width)
        columns = {part: np.split(value, 3, axis=-1) for part, value in joined.items()}
        attention = {
            role: {part: values[i] for part, values in columns.items()}
            for i, role in enumerate(("query", "key", "value"))
        }
        return {
            "attention_norm": norm(f"{name}.ln_1"),
            "attention": attention | {"output": linear(f"{name}.attn.c_proj", width, width)},
            "mlp_norm": norm(f"{name}.ln_2"),
            "mlp": {
                "up": linear(f"{name}.mlp.c_fc", width, hidden),
                "down": linear(f"{name}.mlp.c_proj", hidden, width),
            },
        }

    params: Params = {
        "embedding": {"weight": embedding},
        "positions": {"weight": tensors.check("wpe.weight", positions, (None, width))},
        "layers": [block(f"h.{i}") for i in range(layers)],
        "norm": norm("ln_f"),
    }
    if not tied:
        params["head"] = {"weight": head.T}
    if tensors.left:
        raise CheckpointError(f"load_gpt2: {place} holds {min(tensors.left)}, which is no part of GPT-2")
    moved: Params = tree.map_leaves(lambda p: array(np.ascontiguousarray(p), device=device), params)
    return GPTModel(config), moved


class _Tensors:
    """The tensors of a file by their names without the prefix, float32; ``left`` are those not taken yet."""

    def __init__(self, place: Path):
        self.place = place
        try:
            with safetensors.safe_open(str(place), framework="numpy") as file:
                names = sorted(file.keys())
                found = {name.removeprefix(_PREFIX): file.get_tensor(name) for name in names}
        except (safetensors.SafetensorError, OSError) as error:
            raise CheckpointError(f"load_gpt2: {place} is damaged or no safetensors file ({error})") from None
        twice = [name for name in names if _PREFIX + name in names]
        if twice:
            raise CheckpointError(
                f"load_gpt2: {place} holds both {twice[0]} and {_PREFIX}{twice[0]}, expected one of them"
            )
        self.left = {name: x for name, x in found.items() if not name.endswith(_BUFFERS)}

    def peek(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray[Any, Any]:
        """A tensor of this shape (None: any length). Raises CheckpointError unless it is there."""
        if name not in self.left:
            raise CheckpointError(f"load_gpt2: {self.place} holds no {name}; expected the names of a GPT-2")
        return self.check(name, self.left[name], shape)

    def take(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray[Any, Any]:
        tensor = self.peek(name, shape)
        del self.left[name]
        return tensor.astype(np.float32)

    def check(self, name: str, tensor: np.ndarray[Any, Any], shape: tuple[int | None, ...]) -> np.ndarray[Any, Any]:
        fits = tensor.ndim == len(shape) and all(m in (None, n) for m, n in zip(shape, tensor.shape, strict=True))
        if not fits or tensor.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            expected = ", ".join("any" if n is None else str(n) for n in shape)
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise CheckpointError(f"load_gpt2: {self.place} has {name} as {found}, expected floats [{expected}]")
        return tensor


def _settings(place: Path) -> dict[str, Any]:
    """What config.json says; {} without one. Raises CheckpointError for what GPTModel does not compute."""
    if not place.is_file():
        return {}
    try:
        settings = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"load_gpt2: {place} is no JSON object ({error})") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"load_gpt2: {place} is no JSON object (it holds {short(settings)})")
    activation = settings.get("activation_function", _GELU[0])
    if activation not in _GELU:
        raise CheckpointError(
            f"load_gpt2: {place} has activation_function {activation!r}, expected {' or '.join(_GELU)}"
        )
    for name, refused in _REFUSED.items():
        if settings.get(name) is refused:
            raise CheckpointError(f"load_gpt2: {place} has {name} {refused}, expected {not refused}")
    eps = settings.get("layer_norm_epsilon", 1e-5)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not is_positive(eps):
        raise CheckpointError(
            f"load_gpt2: {place} has layer_norm_epsilon {short(eps)}, expected a finite positive number"
        )
    return settings
