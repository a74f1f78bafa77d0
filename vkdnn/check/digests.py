"""Digest files: what targets gave on one machine, by SHA-256, for another machine to compare with.

A file must never be taken for whole when it is not: it bears a digest of itself and is written in one go.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn import checkpoint
from vkdnn.check.work import Results, quiet
from vkdnn.device import Device, VulkanDevice
from vkdnn.errors import VkdnnError
from vkdnn.ir.arguments import short
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

    def asked(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The request, where it is whole. Raises DigestFileError that names ``path``, the file it was read from."""
        missing = [name for name in _REQUEST if name not in self.request]
        if missing:
            raise DigestFileError(
                f"digest file {path}: field request: has no {missing[0]}, so it does not say what was run; name targets"
            )
        return self.request

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
        for name, holds in _FIELDS.items():
            _demand(path, name, found.get(name), holds)
        targets = {name: Recorded(parts["inputs"], parts["results"]) for name, parts in found["targets"].items()}
        return DigestFile(found["machine"], targets, found["complete"], found["request"])


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _table(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(holds, value.values()))


def _words(value: Any) -> bool:
    return _table(value, lambda v: isinstance(v, str))


def _target(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"inputs", "results"}
        and _table(value["inputs"], _texts)
        and _table(value["results"], _words)
    )


_REQUEST: dict[str, Callable[[Any], bool]] = {
    "targets": _texts,
    "shapes": _texts,
    "all": lambda v: isinstance(v, bool),
    "grid_size": lambda v: isinstance(v, str),
    "steps": lambda v: type(v) is int and v > 0,
}
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "machine": _words,
    "targets": lambda v: _table(v, _target),
    "complete": lambda v: isinstance(v, bool),
    "request": lambda v: isinstance(v, dict) and all(holds(v[k]) for k, holds in _REQUEST.items() if k in v),
}


def _demand(path: str | os.PathLike[str], name: str, value: Any, holds: Callable[[Any], bool]) -> None:
    """Raises DigestFileError for a field of another kind, with the first of its entries that is wrong."""
    if holds(value):
        return
    if isinstance(value, dict):
        inside: dict[str, Mapping[str, Callable[[Any], bool]]]
        inside = {"request": _REQUEST, "targets": dict.fromkeys(value, _target)}
        checks = inside.get(name, {})
        wrong = [k for k, entry in value.items() if k in checks and not checks[k](entry)]
        if wrong:
            name, value = f"{name}, {wrong[0]}", value[wrong[0]]
    raise DigestFileError(f"digest file {path}: field {name}: is wrong or missing (got {short(value)}); {_AGAIN}")


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
