"""Renders a kernel spec through its Jinja template. One environment, one place where strategies become #defines.

It must be a pure function: the same spec, schedule and strategies give the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import jinja2

from vkdnn.codegen import glsl, resources
from vkdnn.dtypes import DType


class Renderable(Protocol):
    """What the renderer asks of a kernel spec (vkdnn.kernels.base.KernelSpec)."""

    @property
    def template(self) -> str: ...
    @property
    def inputs(self) -> tuple[DType, ...]: ...
    @property
    def outputs(self) -> tuple[DType, ...]: ...
    @property
    def size_names(self) -> tuple[str, ...]: ...

    def context(self, schedule: Any) -> dict[str, Any]: ...
    def ops(self) -> Sequence[str]: ...


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([resources.folder("templates"), resources.folder("shaders")]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _indented(lines: Sequence[str], depth: int) -> str:
    return "\n".join("    " * depth + line for line in lines)


def render(spec: Renderable, schedule: Any, defines: Sequence[str]) -> str:
    """GLSL of a kernel: ``defines`` are the numerics strategies (e.g. VKDNN_DIVIDE_REMAINDER)."""
    bindings = [{"name": f"in{i}", "storage": d.storage, "access": "readonly "} for i, d in enumerate(spec.inputs)] + [
        {"name": f"out{i}", "storage": d.storage, "access": ""} for i, d in enumerate(spec.outputs)
    ]
    words = [f"base_{b['name']}" for b in bindings] + list(spec.size_names)
    context = {
        "bindings": bindings,
        "push_words": words,
        "defines": sorted(defines),
        "functions": glsl.functions(spec.ops()),
        "indented": _indented,
        **spec.context(schedule),
    }
    return _environment().get_template(spec.template).render(context)
