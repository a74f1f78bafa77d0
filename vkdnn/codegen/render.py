"""Renders a kernel spec through its Jinja template. One environment, one place where strategies become #defines.

It must be a pure function: the same spec, schedule and strategies give the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from vkdnn.codegen import glsl, resources
from vkdnn.dtypes import DType
from vkdnn.errors import ArgumentError
from vkdnn.ir.dims import named
from vkdnn.ir.forms import Symbol
from vkdnn.ir.symbolic import definitions, symbols

MAX_WORDS = 32  # push-constant words that every device has
_MARKER = "// sizes"

if TYPE_CHECKING:
    import jinja2  # loaded when a kernel is rendered: bundles and programs of them run without it


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

    @property
    def fixed(self) -> tuple[str, ...]: ...

    def context(self, schedule: Any) -> dict[str, Any]: ...
    def ops(self) -> Sequence[str]: ...


@cache
def template_hashes(name: str) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of a template and of all that it extends and includes, in alphabetical order."""
    from jinja2 import meta

    found: dict[str, str] = {}
    todo = [name]
    while todo:
        current = todo.pop()
        if current not in found:
            text, _, _ = _loader().get_source(_environment(), current)
            found[current] = hashlib.sha256(text.encode()).hexdigest()
            todo += [other for other in meta.find_referenced_templates(_environment().parse(text)) if other]
    return tuple(sorted(found.items()))


def _loader() -> jinja2.BaseLoader:
    loader = _environment().loader
    assert loader is not None
    return loader


@cache
def _environment() -> jinja2.Environment:
    import jinja2

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
    sizes = _symbols(spec)
    words = [f"base_{b['name']}" for b in bindings] + list(spec.size_names) + [f"symbol_{s.name}" for s in sizes]
    if sizes and len(words) > MAX_WORDS:
        raise ArgumentError(
            f"{spec.template}: {len(bindings)} buffers and the symbolic sizes {', '.join(s.name for s in sizes)} take "
            f"{len(words)} push-constant words, expected at most {MAX_WORDS}; make fewer axes symbolic"
        )
    with named() as names:
        context = {
            "bindings": bindings,
            "push_words": words,
            "defines": sorted(defines),
            "functions": glsl.functions(spec.ops()),
            "indented": _indented,
            "size_marker": _MARKER if sizes else "",
            "wide": (),  # names of bindings that the template reads or writes by four elements at once
            "fours": glsl.FOURS,
            **spec.context(schedule),
        }
        text = _environment().get_template(spec.template).render(context)
    return text.replace(_MARKER, "\n".join(definitions(names)))


def _symbols(spec: Renderable) -> tuple[Symbol, ...]:
    """The symbols of a spec's sizes. Raises ArgumentError where its shader needs a constant."""
    for name in spec.fixed:
        if symbols(getattr(spec, name)):
            raise ArgumentError(
                f"{type(spec).__name__}: {name} is {getattr(spec, name)}, expected a plain number: the shader is made "
                "for it; keep that axis concrete"
            )
    return symbols(spec)
