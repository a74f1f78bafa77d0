"""What is asked of the compiler: a kernel known by its spec, its GLSL rendered only when it has to be.

Everything that can change the SPIR-V must be in a request's components; nothing else may be.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

from vkdnn.codegen import resources
from vkdnn.codegen.render import render, template_hashes
from vkdnn.ir.dims import Formula, formula, guards, symbol
from vkdnn.kernels.base import KernelSpec
from vkdnn.shader.entry import digest

# Packages and modules that turn a spec into GLSL.
_GENERATOR = ("dtypes.py", "numerics", "ir", "codegen", "kernels")
_LARGE = 1 << 29
_LABEL = 70  # characters
_INSTRUCTION, _REDUCTION = re.compile(r"^  %\d+ = (\w+)", re.M), re.compile(r"^  reduced \d+ = (\w+)", re.M)
_NO_OPERATION = ("load", "const", "reduced", "stop_gradient")
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Source:
    """The GLSL of a kernel, with the name and the SHA-256 of each template and library that it was rendered from."""

    glsl: str
    templates: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ShaderRequest:
    """A shader to compile: how to get its GLSL, the canonical text of its spec and schedule, the numerics strategies.

    ``label``, ``family`` and ``workgroups`` (formulas over the spec's size names of how many are launched, None if
    there are none) are for people and part of no key.
    """

    source: Source | Callable[[], Source]
    spec: str
    strategies: str
    label: str
    family: str = ""
    workgroups: Callable[[], list[Formula] | None] = lambda: None

    @staticmethod
    def of_glsl(glsl: str, spec: str, strategies: str, label: str, family: str = "") -> ShaderRequest:
        """The request for a shader that is written, not rendered."""
        return ShaderRequest(Source(glsl), spec, strategies, label, family)

    @cached_property
    def rendered(self) -> Source:
        """The source, rendered once."""
        return self.source if isinstance(self.source, Source) else self.source()

    @property
    def glsl(self) -> str:
        return self.rendered.glsl

    @cached_property
    def identity(self) -> str:
        """What names the kernel before it is rendered; with generator_fingerprint() it determines the GLSL."""
        return digest(f"{len(self.spec)}\n{self.spec}{self.strategies}")

    def components(self, compiler: str, flags: str) -> dict[str, str]:
        """The named parts that key this shader's entry in the store, in their order."""
        named = {f"template {name}": sha256 for name, sha256 in self.rendered.templates}
        return {
            "spec": self.spec,
            "strategies": self.strategies,
            **named,
            "glsl": self.glsl,
            "compiler": compiler,
            "flags": flags,
        }


class Strategies(Protocol):
    """How a device keeps the numerics contract (vkdnn.runtime.info.Strategies)."""

    @property
    def text(self) -> str: ...
    @property
    def defines(self) -> tuple[str, ...]: ...


def kernel_request(spec: KernelSpec, schedule: Any, strategies: Strategies) -> ShaderRequest:
    """The request for a kernel."""

    def rendered() -> Source:
        return Source(render(spec, schedule, strategies.defines), template_hashes(spec.template))

    text = spec.text()
    whole, family = f"{text}\nschedule {schedule}", type(spec).__name__
    return ShaderRequest(rendered, whole, strategies.text, label_of(text), family, lambda: _workgroups(spec, schedule))


def label_of(spec: str) -> str:
    """What people call a kernel: the first line of its spec with the operations in it, which tell it from others.

    >>> label_of("expr dims (count, )\\n  %0 = load float32 in0[1*i0]\\n  %1 = exp float32 %0")
    'expr dims (count, ): exp'
    """
    first, _, body = spec.partition("\n")
    counts = Counter(_INSTRUCTION.findall(body))
    operations = {name: n for name, n in counts.items() if name not in _NO_OPERATION} or counts
    over = dict.fromkeys(_REDUCTION.findall(body))
    label = first + (f" by {', '.join(over)}" if over else "")
    if operations:
        label += ": " + " ".join(f"{n} {name}" if n > 1 else name for name, n in operations.items())
    return label if len(label) <= _LABEL else label[: _LABEL - 1] + "…"


def _workgroups(spec: KernelSpec, schedule: Any) -> list[Formula] | None:
    with guards() as found:
        sizes = tuple(symbol(name, _LARGE, 1, 2 * _LARGE) for name in spec.size_names)
        formulas = list(map(formula, spec.groups(sizes, schedule)))
    return None if found.found else formulas


@cache
def generator_fingerprint() -> str:
    """SHA-256 over the sources that turn specs into GLSL: kernels of two vkdnns with the same one are the same."""
    whole = hashlib.sha256()
    roots = [_PACKAGE / name for name in _GENERATOR] + [resources.folder(kind) for kind in ("templates", "shaders")]
    for root in roots:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix in (".py", ".j2", ".glsl"):
                name = f"{root.name}/{path.relative_to(root).as_posix()}"
                whole.update(f"{name} {digest(path.read_bytes())}\n".encode())
    return whole.hexdigest()
