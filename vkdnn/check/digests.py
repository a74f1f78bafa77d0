"""Digest files: what targets gave on one machine, by SHA-256, for another machine to compare with.

A file must never be taken for whole when it is not: it bears a digest of itself and is written in one go.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import checkpoint
from vkdnn.check.work import Results, quiet
from vkdnn.device import Device, VulkanDevice
from vkdnn.errors import VkdnnError
from vkdnn.shader import generator_fingerprint
from vkdnn.shader.entry import digest
from vkdnn.shader.store import replaced

FORMAT, VERSION = "vkdnn-parity", 1
_AGAIN = "record it again with `vkdnn parity --record FILE`"

Digests = dict[str, dict[str, str]]
"""Name of the inputs -> name of a result -> SHA-256."""


class DigestFileError(VkdnnError):
    """A digest file is none, is damaged, or is of another version."""


@dataclass(frozen=True)
class Recorded:
    """One target: digests of its inputs' arrays, and of its results on each of them (of a model: after each step)."""

    inputs: dict[str, list[str]]
    results: Digests


@dataclass(frozen=True)
class DigestFile:
    """Targets by name, and where they ran. ``complete`` is false where the run was broken off; ``request`` is what was
    asked for on the command line."""

    machine: dict[str, str]
    targets: dict[str, Recorded] = field(default_factory=dict)
    complete: bool = True
    request: dict[str, Any] = field(default_factory=dict)

    def write(self, path: str | os.PathLike[str]) -> None:
        """The file is there whole or not at all. Raises DigestFileError where it cannot be written."""
        path = Path(path)
        whole = {"format": FORMAT, "version": VERSION, **asdict(self)}
        text = json.dumps({**whole, "sha256": _own(whole)}, indent=1, sort_keys=True) + "\n"
        try:
            with replaced(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise DigestFileError(
                f"digest file {path}: cannot be written ({error.strerror}); name a file in a folder that is there"
            ) from None

    @staticmethod
    def read(path: str | os.PathLike[str]) -> DigestFile:
        """Raises DigestFileError for what is no whole digest file of this version."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise DigestFileError(f"digest file {path}: cannot be read ({error.strerror}); {_AGAIN}") from None
        except (ValueError, RecursionError) as error:
            raise DigestFileError(f"digest file {path}: is damaged ({error}); copy it again, or {_AGAIN}") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise DigestFileError(f"digest file {path}: is no file of vkdnn parity; {_AGAIN}")
        if found.get("version") != VERSION:
            raise DigestFileError(
                f"digest file {path}: has version {found.get('version')!r}, expected {VERSION}; {_AGAIN}"
            )
        own = found.pop("sha256", None)
        if own != _own(found):
            raise DigestFileError(
                f"digest file {path}: is damaged (its own digest differs); copy it again, or {_AGAIN}"
            )
        targets = {name: Recorded(**parts) for name, parts in found["targets"].items()}
        return DigestFile(found["machine"], targets, found["complete"], found["request"])


def _own(whole: Mapping[str, Any]) -> str:
    return digest(json.dumps(whole, sort_keys=True))


def digests_of(results: Results) -> Digests:
    """NaN counts as one value."""
    with quiet():
        return {name: {k: checkpoint.digest([x]) for k, x in values.items()} for name, values in results.items()}


def machine(device: Device) -> dict[str, str]:
    """What a digest file says of where it was made."""
    found = {"device": device.name, "driver": "", "api": "", "strategies": ""}
    if isinstance(device, VulkanDevice):
        info = device.opened.info
        found["driver"], found["api"] = f"{info.driver} {info.driver_version}", info.api_version
        found["strategies"] = device.opened.strategies.text
    return found | {"vkdnn": vk.__version__, "numpy": np.__version__, "fingerprint": generator_fingerprint()}
