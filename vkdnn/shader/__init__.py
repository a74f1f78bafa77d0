"""GLSL to SPIR-V: requests compiled in parallel, each at most once per process and once per store.

It must never return SPIR-V that another compiler, other flags or another text produced.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from vkdnn.errors import CompileError
from vkdnn.shader.compiler import Compiler, compile_count
from vkdnn.shader.store import ShaderStore, default_store

__all__ = ["Compiler", "ShaderRequest", "ShaderStore", "compile_count", "compile_many"]

Progress = Callable[[int, int, str], None]

_lock = threading.Lock()
_memo: dict[str, bytes] = {}


@dataclass(frozen=True)
class ShaderRequest:
    """A shader to compile: its whole GLSL, the spec and strategies it was rendered from, a name for messages.

    The label is no part of the key.
    """

    glsl: str
    spec_text: str
    strategies: str
    label: str

    def components(self, compiler_identity: str) -> Mapping[str, str]:
        """The named parts that key this shader's entry in the store, in their order."""
        return {
            "spec": self.spec_text,
            "glsl": self.glsl,
            "compiler": compiler_identity,
            "strategies": self.strategies,
        }


def compile_many(requests: Sequence[ShaderRequest], progress: Progress | None = None) -> list[bytes]:
    """SPIR-V for each request, in order, from memory, from the store, or else compiled in parallel.

    `progress(done, total, label)` is called in this thread after each shader that had to be compiled. Raises
    CompileError for the first shader that does not compile, if there is no compiler, or if a shader is not
    stored while VKDNN_NO_COMPILE=1 forbids compiling (which proves a store complete).
    """
    if not requests:
        return []
    compiler = Compiler.find()
    store = default_store("shaders", ".spv")
    keys = [ShaderStore.key(request.components(compiler.identity)) for request in requests]
    with _lock:
        ready = {key: _memo[key] for key in keys if key in _memo}
    missing: dict[str, ShaderRequest] = {}
    for key, request in zip(keys, requests, strict=True):
        if key in ready or key in missing:
            continue
        stored = store.load(request.components(compiler.identity)) if store else None
        if stored is None:
            missing[key] = request
        else:
            ready[key] = stored
    ready.update(_compile_missing(missing, compiler, store, progress))
    with _lock:
        _memo.update(ready)
    return [ready[key] for key in keys]


def _compile_missing(
    missing: Mapping[str, ShaderRequest],
    compiler: Compiler,
    store: ShaderStore | None,
    progress: Progress | None,
) -> dict[str, bytes]:
    """Compiles and stores; each thread only waits for its own compiler process, so the cores do the work."""
    if not missing:
        return {}
    if os.environ.get("VKDNN_NO_COMPILE") == "1":
        count = "1 shader is" if len(missing) == 1 else f"{len(missing)} shaders are"
        labels = ", ".join(request.label for request in missing.values())
        raise CompileError(
            f"{count} not stored and VKDNN_NO_COMPILE=1 forbids compiling: {labels}; "
            "fill the store first or unset VKDNN_NO_COMPILE"
        )

    def compile_one(request: ShaderRequest) -> tuple[bytes, OSError | None]:
        spirv = compiler.compile_glsl(request.glsl, request.label)
        return spirv, store.write(request.components(compiler.identity), spirv) if store is not None else None

    compiled: dict[str, bytes] = {}
    with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1), "vkdnn-glslang") as pool:
        futures = {pool.submit(compile_one, request): key for key, request in missing.items()}
        try:
            for future in as_completed(futures):
                key = futures[future]
                compiled[key], error = future.result()
                if store is not None and error is not None:
                    store.warn(error)
                if progress is not None:
                    progress(len(compiled), len(missing), missing[key].label)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return compiled
