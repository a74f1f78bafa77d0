"""Whether an entry of shaders is what it says: texts against components, SPIR-V walked, compiled again.

It must never believe a checksum alone: whoever made a file also made its checksum.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from vkdnn.codegen import resources
from vkdnn.errors import CompileError
from vkdnn.shader.compiler import Compiler
from vkdnn.shader.entry import Entry, digest, short
from vkdnn.shader.reflect import reflect
from vkdnn.shader.spirv import undecorated_float_ops

_SECONDS = 60.0


def trouble(entry: Entry, validate: bool = True) -> str | None:
    """What is wrong with a decoded entry of shaders, None if nothing is.

    With ``validate``, spirv-val is asked too where it is installed.
    """
    missing = [name for name in ("spirv", "glsl", "spec") if name not in entry.contents]
    if missing or not {"compiler", "flags"} <= set(entry.components):
        return f"it has no {' and no '.join(missing or ['compiler'])}"
    for name in ("glsl", "spec"):
        if short({name: entry.text(name)}).get(name) != entry.components.get(name):
            return f"its {name} is not that of its components"
    return spirv_trouble(entry.contents["spirv"]) or (spirv_val(entry.contents["spirv"]) if validate else None)


def spirv_trouble(spirv: bytes) -> str | None:
    """What is wrong with SPIR-V, seen from its words: damage, or a float operation that a driver may fuse."""
    if len(spirv) % 4:
        return f"its SPIR-V has {len(spirv)} bytes, expected a multiple of 4"
    words = np.frombuffer(spirv, "<u4").tolist()
    try:
        bare = undecorated_float_ops(words)
        reflect(spirv)
    except CompileError as error:
        return str(error).removesuffix("; compile the shader again")
    return f"{len(bare)} float operations of its SPIR-V have no NoContraction" if bare else None


@cache
def validator() -> str | None:
    """Where spirv-val is."""
    return shutil.which("spirv-val")


def spirv_val(spirv: bytes) -> str | None:
    """What spirv-val has to say against SPIR-V; None also where it is not installed."""
    program = validator()
    if program is None:
        return None
    try:
        with tempfile.NamedTemporaryFile(prefix="vkdnn-", suffix=".spv") as file:
            file.write(spirv)
            file.flush()
            command = [program, "--target-env", "vulkan1.1", file.name]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None  # nothing is known against it
    said = " ".join((done.stdout + done.stderr).split()).replace(file.name, "SPIR-V")
    return f"spirv-val refuses it: {said[:200]}" if done.returncode else None


def recompiled(entry: Entry, compiler: Compiler) -> str | None:
    """What is wrong with an entry whose GLSL this compiler, of the entry's version, compiles again."""
    label = str(entry.record.get("label", entry.key[:12]))
    try:
        spirv = compiler.compile_glsl(entry.text("glsl"), label)
    except CompileError as error:
        return f"its GLSL does not compile: {error}"
    return None if spirv == entry.contents.get("spirv") else "compiled again, its GLSL gives other SPIR-V"


def same_compiler(components: Mapping[str, str], compiler: Compiler) -> bool:
    """Whether an entry is of this compiler's version and flags: only those can be compared."""
    return short({"c": compiler.version, "f": compiler.flags}) == {
        "c": components.get("compiler"),
        "f": components.get("flags"),
    }


@cache
def _template(name: str) -> str | None:
    for kind in ("templates", "shaders"):
        path = Path(resources.folder(kind), name)
        if path.is_file():
            return digest(path.read_text(encoding="utf-8"))
    return None


def not_found_here(components: Mapping[str, str], compiler: Compiler | None) -> str | None:
    """Why this vkdnn with this compiler would not find an entry with these components; None where it may."""
    if compiler is None:
        return "there is no GLSL compiler here, whose version is part of the key"
    if not same_compiler(components, compiler):
        return "they are of another compiler or other flags"
    for name, sha256 in components.items():
        if name.startswith("template ") and _template(name.removeprefix("template ")) != sha256:
            if _template(name.removeprefix("template ")) is None:
                return f"they need {name}, which this version of vkdnn has not"
            return f"they are of another {name}: of another version of vkdnn"
    return None
