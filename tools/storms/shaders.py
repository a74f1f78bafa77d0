"""The shaders of a storm, what they compile to, and a compiler that takes milliseconds.

The quick compiler must give what the real one gives: both are known before the storm begins.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from vkdnn.shader import Compiler, ShaderRequest

_GLSL = """#version 450
// shader {number}
layout(local_size_x = {size}) in;
layout(binding = 0) buffer Data {{ float data[]; }};
layout(push_constant) uniform Push {{ uint count; }};
float step_{number}(float x) {{ return x * {number}.5 + x / {size}.0; }}
void main() {{
    uint i = gl_GlobalInvocationID.x;
    if (i < count) data[i] = step_{number}(data[i]);
}}
"""
# The number stands in the second line of the GLSL, which is the one but last argument but two: FILE -o OUT.
_QUICK = """#!/bin/sh
[ "$1" = --version ] && {{ echo "Glslang Version: quick"; exit 0; }}
for argument; do before=$text; text=$last; last=$argument; done
{{ read -r line; read -r line; }} < "$before"
{log}
exec cp {folder}/"${{line#// shader }}" "$last"
"""


@dataclass(frozen=True)
class Shaders:
    """Requests, and the SHA-256 that the SPIR-V of each must have."""

    requests: tuple[ShaderRequest, ...]
    known: tuple[str, ...]

    def wrong(self, number: int, spirv: bytes) -> bool:
        return digest(spirv) != self.known[number]


def digest(spirv: bytes) -> str:
    return hashlib.sha256(spirv).hexdigest()


def requests_of(count: int) -> tuple[ShaderRequest, ...]:
    """That many different small shaders."""
    texts = (_GLSL.format(number=number, size=1 << number % 7) for number in range(count))
    return tuple(
        ShaderRequest.of_glsl(glsl, f"storm {number}", "native", f"shader {number}")
        for number, glsl in enumerate(texts)
    )


def make(count: int, folder: Path, log: Path | None = None) -> tuple[Shaders, Path]:
    """The shaders, compiled by the real compiler without any store; and the quick compiler, made in a folder.

    The quick compiler appends the number of each shader to ``log``. Raises CompileError without a compiler.
    """
    requests, compiler = requests_of(count), Compiler.find()
    known = []
    for number, request in enumerate(requests):
        spirv = compiler.compile_glsl(request.glsl, request.label)
        (folder / str(number)).write_bytes(spirv)
        known.append(digest(spirv))
    quick = folder / "quick"
    line = f'echo "${{line#// shader }}" >> {shlex.quote(str(log))}' if log else ""
    quick.write_text(_QUICK.format(folder=shlex.quote(str(folder)), log=line))
    quick.chmod(0o755)
    return Shaders(requests, tuple(known)), quick
