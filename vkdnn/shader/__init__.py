"""GLSL to SPIR-V: requests compiled in parallel, each at most once per process and once per store.

It must never return SPIR-V that another compiler, other flags or another text produced.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from vkdnn.errors import CompileError
from vkdnn.shader import bundle
from vkdnn.shader.compiler import Compiler, compile_count
from vkdnn.shader.entry import Entry, key_of, short
from vkdnn.shader.missing import forbidden
from vkdnn.shader.reflect import limits_needed, reflect
from vkdnn.shader.request import ShaderRequest, Source, generator_fingerprint
from vkdnn.shader.store import LOCK_SECONDS, Store, default_store
from vkdnn.shader.upkeep import after_storing

__all__ = ["Compiler", "ShaderRequest", "Source", "Store", "compile_count", "compile_many", "generator_fingerprint"]

Progress = Callable[[int, int, str], None]
KIND = "shaders"

_STARTED = time.time()
_lock = threading.Lock()
_memo: dict[str, bytes] = {}


def compile_many(requests: Sequence[ShaderRequest], progress: Progress | None = None) -> list[bytes]:
    """SPIR-V for each request, in order, from VKDNN_AOT's bundles, from memory, from the store, or else compiled.

    `progress(done, total, label)` is called in this thread after each shader that had to be compiled. Raises
    CompileError for the first shader that does not compile, if there is no compiler, or if a shader is neither in
    a bundle nor stored while VKDNN_AOT_ONLY=1 forbids compiling, and BundleError for a damaged or foreign bundle.
    """
    bundled = [bundle.find(request.identity) for request in requests]
    others = _compiled([r for r, spirv in zip(requests, bundled, strict=True) if spirv is None], progress)[::-1]
    return [others.pop() if spirv is None else spirv for spirv in bundled]


def _compiled(requests: Sequence[ShaderRequest], progress: Progress | None) -> list[bytes]:
    """What no bundle has."""
    if not requests:
        return []
    only_stored = os.environ.get("VKDNN_AOT_ONLY") == "1"
    try:
        compiler = Compiler.find()
    except CompileError:
        if only_stored:  # without its version nothing is found in the store
            raise forbidden(requests, None, None) from None
        raise
    store = default_store(KIND)
    components = [request.components(compiler.version, compiler.flags) for request in requests]
    keys = [key_of(KIND, parts) for parts in components]
    with _lock:
        ready = {key: _memo[key] for key in keys if key in _memo}
    missing: dict[str, ShaderRequest] = {}
    for key, request in zip(keys, requests, strict=True):
        if key in ready or key in missing:
            continue
        stored = store.load_key(key) if store else None
        if stored is None or "spirv" not in stored.contents:
            missing[key] = request
        else:
            ready[key] = stored.contents["spirv"]
    if missing:
        if only_stored:
            parts = dict(zip(keys, components, strict=True))
            raise forbidden(list(missing.values()), store, [parts[key] for key in missing])
        ready.update(_Compilation(compiler, store).run(missing, progress))
    with _lock:
        _memo.update(ready)
    return [ready[key] for key in keys]


class _Compilation:
    """Makes shaders that are in no store, with all cores and beside other processes that may want the same.

    A thread only waits for its own compiler process, so the cores do the work. What another process is just making
    is put off; when nothing else is left, its lock is waited for.
    """

    def __init__(self, compiler: Compiler, store: Store | None) -> None:
        self.compiler, self.store = compiler, store
        self.trouble: OSError | None = None  # of the last write that failed
        self.stored: set[str] = set()
        self.stuck: set[str] = set()  # shards whose lock was waited for in vain: not again

    def run(self, missing: Mapping[str, ShaderRequest], progress: Progress | None) -> dict[str, bytes]:
        done: dict[str, bytes] = {}
        with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1), "vkdnn-glslang") as pool:
            try:
                for patience in (0.0, LOCK_SECONDS):
                    left = {key: request for key, request in missing.items() if key not in done}
                    futures = {pool.submit(self._make, key, left[key], patience): key for key in left}
                    for future in as_completed(futures):
                        spirv = future.result()
                        if spirv is not None:
                            key = futures[future]
                            done[key] = spirv
                            if progress is not None:
                                progress(len(done), len(missing), missing[key].label)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        if self.store is not None:
            if self.trouble is not None:
                self.store.warn(self.trouble)
            if self.stored:
                after_storing(self.store, min(self.stored)[:2])
        return done

    def _make(self, key: str, request: ShaderRequest, patience: float) -> bytes | None:
        """The SPIR-V; None if another process is making it and there is no patience to wait."""
        if self.store is None:
            return self._compile(request).contents["spirv"]
        shard = key[:2]
        with self.store.locked(key, 0.0 if shard in self.stuck else patience) as held:
            if not held and not patience:
                return None
            if not held:
                self.stuck.add(shard)
            entry = self.store.load_key(key)  # another may have made it meanwhile
            if entry is None or "spirv" not in entry.contents:
                entry = self._compile(request)
                error = self.store.write(entry)
                if error is None:
                    self.stored.add(key)
                else:
                    self.trouble = error
            return entry.contents["spirv"]

    def _compile(self, request: ShaderRequest) -> Entry:
        begun, clock = time.time(), time.perf_counter()
        spirv = self.compiler.compile_glsl(request.glsl, request.label)
        reflection = reflect(spirv)
        record = {
            "label": request.label,
            "family": request.family,
            "compiled": begun,
            "seconds": time.perf_counter() - clock,
            "compiler_path": self.compiler.path,
            "process": f"{os.getpid()}-{_STARTED:.3f}",
            "reflection": reflection.record(),
            "limits": limits_needed(reflection),
            "workgroups": request.workgroups(),
        }
        contents = {"spirv": spirv, "glsl": request.glsl.encode(), "spec": request.spec.encode()}
        return Entry(KIND, short(request.components(self.compiler.version, self.compiler.flags)), record, contents)
