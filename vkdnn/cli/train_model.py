"""The options of vkdnn train that describe a model: from a command line to a configuration, and back.

An option of one model must never be ignored by another: it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from vkdnn.cli.console import counted
from vkdnn.nn import GPTConfig, RAPTConfig
from vkdnn.nn.attention import VARIANTS
from vkdnn.nn.gpt import MLPS, NORMS
from vkdnn.nn.self_attention import POSITIONS
from vkdnn.train import MODELS, OPTIMIZERS, Job, make_config, model_name

SHARED = ("width", "layers", "heads")
OWN = {
    "rapt": ("order", "variant", "decay"),
    "gpt": ("kv_heads", "positions", "mlp", "norm", "window", "softcap"),
}
"""Model -> its own options, which are fields of its configuration."""
CHOICES = {
    "order": ("sequential", "chunked"),
    "variant": tuple(VARIANTS),
    "positions": POSITIONS,
    "mlp": MLPS,
    "norm": NORMS,
}


def configure(model: str, options: Mapping[str, Any], given: Mapping[str, Any], length: int) -> Any:
    """The configuration of a model for windows of ``length`` bytes.

    ``options`` are all of the command line by name, ``given`` those that the user wrote. Raises BadParameter for
    what does not go together.
    """
    if model not in MODELS:
        raise typer.BadParameter(f"got {model!r}, expected {' or '.join(MODELS)}", param_hint="--model")
    for other, names in OWN.items():
        wrong = [_flag(name) for name in names if other != model and name in given]
        if wrong:
            raise typer.BadParameter(f"belongs to --model {other}, got --model {model}", param_hint=wrong[0])
    for name in OWN[model]:
        if name in CHOICES and options[name] not in CHOICES[name]:
            raise typer.BadParameter(
                f"got {options[name]!r}, expected {', '.join(CHOICES[name])}", param_hint=_flag(name)
            )
    default = make_config(model, {})
    values = _sizes(default, options) | {name: options[name] for name in OWN[model]}
    if isinstance(default, RAPTConfig):
        if 0 < options["decay"] < 1 and (options["variant"], options["order"]) != ("rla", "sequential"):
            raise typer.BadParameter("--decay below 1 needs --variant rla and --order sequential")
    else:
        kv_heads = options["kv_heads"]
        if kv_heads is not None and options["heads"] % kv_heads:
            raise typer.BadParameter(
                f"got {kv_heads}, expected a divisor of --heads {options['heads']}", param_hint="--kv-heads"
            )
        values["max_tokens"] = max(default.max_tokens, length)
    return replace(default, **values)


def job_of(options: Mapping[str, Any], given: Mapping[str, Any], steps: int) -> Job:
    """The job that the options of vkdnn train describe; ``given`` as in configure(). Raises BadParameter."""
    optimizer, rate = options["optimizer"], options["learning_rate"]
    if optimizer not in OPTIMIZERS:
        raise typer.BadParameter(f"got {optimizer!r}, expected {', '.join(OPTIMIZERS)}", param_hint="--optimizer")
    config = configure(options["model"], options, given, options["length"])
    rate = OPTIMIZERS[optimizer][1] if rate is None else rate
    plain = (options[name] for name in ("accumulate", "ema"))
    return Job(config, steps, options["batch"], options["length"], rate, options["seed"], optimizer, *plain)


def _sizes(default: RAPTConfig | GPTConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of another size than the default's: hidden layers grow with the width, heads share it."""
    width, layers, heads = (options[name] for name in SHARED)
    turned = isinstance(default, RAPTConfig) or options["positions"] == "rope"
    if width % (2 * heads if turned else heads):
        what, why = ("twice the heads", ", as positions turn pairs of each head's elements") if turned else ("them", "")
        raise typer.BadParameter(
            f"--heads {heads} does not fit --width {width}: the width must be a multiple of {what} "
            f"({2 * heads if turned else heads}){why}"
        )
    if (width, heads) == (default.width, default.heads):
        return {"layers": layers}
    sizes = {"layers": layers, "width": width, "heads": heads, "hidden": width * default.hidden // default.width}
    head = width // heads
    return sizes | ({"key_width": head, "value_width": head} if isinstance(default, RAPTConfig) else {})


def model_options(config: RAPTConfig | GPTConfig) -> dict[str, Any]:
    """The options that describe a configuration."""
    name = model_name(config)
    return {"model": name} | {field: getattr(config, field) for field in (*SHARED, *OWN[name])}


def layers_of(config: RAPTConfig | GPTConfig) -> str:
    """The size of a model in words."""
    return f"{counted(config.layers, 'layer')} of width {config.width}"


def mixing_of(config: RAPTConfig | GPTConfig) -> str:
    """How the tokens of a model meet, in words."""
    return f"{config.order} scans" if isinstance(config, RAPTConfig) else f"{config.positions} positions"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
