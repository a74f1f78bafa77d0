"""Finds the templates and shader libraries: inside the installed package, or beside it in a checkout.

It must never read them from the current folder.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from vkdnn.errors import VkdnnError

_PACKAGE = Path(__file__).resolve().parent.parent


@cache
def folder(kind: str) -> Path:
    """The folder of one kind of resource: "templates" or "shaders"."""
    for place in (_PACKAGE / kind, _PACKAGE.parent / kind):
        if place.is_dir():
            return place
    raise VkdnnError(f"{kind}: not found inside or beside {_PACKAGE}; reinstall vkdnn")


def read(kind: str, name: str) -> str:
    """The text of one resource: ``read("shaders", "numerics.glsl")``."""
    return (folder(kind) / name).read_text(encoding="utf-8")
