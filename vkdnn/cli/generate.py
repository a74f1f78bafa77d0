"""vkdnn generate: text from a checkpoint.

It must never print a control character that a model made up to a terminal.
"""

from __future__ import annotations

import codecs
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from vkdnn.cli.console import DeviceOption, JsonOption, find_device, print_json, printable
from vkdnn.errors import ArgumentError
from vkdnn.train.decode import generate as generate_bytes
from vkdnn.train.decode import load_model

EXAMPLES = """\
[bold]Examples[/]

  vkdnn generate runs/mine                      the default prompt, 200 bytes

  vkdnn generate runs/mine --prompt 'import '   another beginning

  vkdnn generate runs/mine --temperature 0      always the most probable byte

The same checkpoint, prompt and seed give the same text on every device."""


def generate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or the folder of a run of vkdnn train.")],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The text to go on from.")] = "def ",
    count: Annotated[int, typer.Option("--bytes", "-n", min=0, help="Bytes to generate.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 more probable bytes gain; 0 takes the most probable.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    last: Annotated[
        bool, typer.Option("--last", help="Take the weights of the last step where a run kept averaged ones (--ema).")
    ] = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text with a trained model."""
    start = prompt.encode(errors="surrogateescape")
    if not start:
        raise ArgumentError("--prompt: got no text, expected at least one character; leave it out for the default")
    model, params, metadata = load_model(checkpoint, find_device(device), averaged=not last)
    made = generate_bytes(model, params, start, count, temperature, seed)
    if as_json:
        text = bytes(made)
        print_json(
            {
                "prompt": prompt,
                "text": text.decode(errors="replace"),
                "bytes": text.hex(),
                "seed": seed,
                "temperature": temperature,
                "step": metadata.get("step"),
            }
        )
        return
    clean = printable if sys.stdout.isatty() else str
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    first = list(islice(made, 1))  # before the prompt, which would stand above an error
    sys.stdout.write(clean(start.decode(errors="replace")))
    for byte in chain(first, made):
        sys.stdout.write(clean(decoder.decode(bytes([byte]))))
        sys.stdout.flush()
    sys.stdout.write(clean(decoder.decode(b"", final=True)) + "\n")
