"""Compiles the kernels of a described program and puts everything into the files of a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import vkdnn
from vkdnn import dtypes
from vkdnn.aot import manifest as m
from vkdnn.aot.describe import Described
from vkdnn.aot.formulas import Formula, evaluate
from vkdnn.aot.reading import check
from vkdnn.aot.target import BuildTarget
from vkdnn.aot.write import write_bundle
from vkdnn.array import Array
from vkdnn.device import Progress
from vkdnn.runtime.probe import PROBE
from vkdnn.shader import Compiler, compile_many
from vkdnn.shader.bundle import FORMAT, MANIFEST, VERSION
from vkdnn.shader.entry import digest
from vkdnn.shader.reflect import Reflection, reflect
from vkdnn.shader.request import ShaderRequest, generator_fingerprint

CONTRACT = "binary32, round to nearest even, subnormals as zero with tininess after rounding, no contraction"


def package(
    place: Path,
    name: str,
    target: BuildTarget,
    symbols: tuple[m.Symbol, ...],
    described: Described | None,
    initial: Mapping[str, Array],
    overwrite: bool = False,
    progress: Progress | None = None,
    more: Sequence[ShaderRequest] = (),
) -> m.Manifest:
    """Writes a bundle of a program, and of ``more`` kernels that it does not run. Gives the manifest."""
    wanted = {request.identity: request for request in (*(described.requests if described else ()), *more, PROBE)}
    compiled = compile_many(list(wanted.values()), progress=progress)
    files: dict[str, bytes] = {}
    kernels, reflections = [], []
    for request, spirv in zip(wanted.values(), compiled, strict=True):
        # Sizes of a kernel and symbols may have the same name.
        kernel, reflection = _kernel(request, spirv, None if symbols else request.workgroups())
        files[kernel.file] = spirv
        kernels.append(kernel)
        reflections.append(reflection)
    weights = _weights(described, initial)
    if weights is not None:
        files[m.WEIGHTS] = weights
    program = described.program if described else None
    strategies = target.strategies
    manifest = m.Manifest(
        format=FORMAT,
        version=VERSION,
        name=name,
        producer=m.Producer(vkdnn.__version__, generator_fingerprint(), _compiler_version(), target.name),
        symbols=symbols,
        numerics=m.Numerics(
            "exact", CONTRACT, strategies.subnormals, strategies.division, strategies.square_root, target.host_flush
        ),
        limits=_limits(reflections, program, {s.name: s.high for s in symbols}),
        kernels=tuple(kernels),
        probe=list(wanted).index(PROBE.identity),
        weights=None if weights is None else digest(weights),
        program=program,
    )
    files[m.SCHEMA] = m.schema_text().encode()
    files[MANIFEST] = manifest.text().encode()
    check(manifest)
    write_bundle(place, files, overwrite)
    return manifest


def _kernel(request: ShaderRequest, spirv: bytes, workgroups: Sequence[Formula] | None) -> tuple[m.Kernel, Reflection]:
    reflection = reflect(spirv)
    sha256 = digest(spirv)
    kernel = m.Kernel(
        label=request.label,
        family=request.family,
        spec=request.spec,
        identity=request.identity,
        file=f"kernels/{sha256[:32]}.spv",
        sha256=sha256,
        size=len(spirv),
        local_size=reflection.local_size,
        shared_bytes=reflection.shared_bytes,
        bindings=tuple(m.Binding(b.element, "read" if b.readonly else "write") for b in reflection.bindings),
        push=tuple(member.name for member in reflection.push_members),
        workgroups=None if workgroups is None else tuple(workgroups),
    )
    return kernel, reflection


def _compiler_version() -> str:
    return Compiler.find().version


def _weights(described: Described | None, initial: Mapping[str, Array]) -> bytes | None:
    """The weights file: constants, and values that arguments begin with."""
    tensors = {name: x.numpy() for name, x in initial.items()}
    if described is not None:
        for constant in described.program.constants:
            words = described.storages[constant.name].read()
            tensors[constant.name] = dtypes.from_words(words, dtypes.as_dtype(constant.dtype), constant.shape)
    if not tensors:
        return None
    whole = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in tensors.items()}
    data: bytes = safetensors.numpy.save(whole, {"format": FORMAT})
    return data


def _limits(reflections: Sequence[Reflection], program: m.Program | None, largest: Mapping[str, int]) -> m.Limits:
    """What all kernels, dispatches and buffers need at once."""
    sizes = [r.local_size for r in reflections]
    groups = [[evaluate(n, largest) for n in d.groups] for d in program.dispatches] if program else []
    words = [(b, evaluate(b.words, largest)) for b in program.buffers] if program else []

    def by_axis(rows: Sequence[Any]) -> tuple[int, int, int]:
        x, y, z = (max((row[axis] for row in rows), default=1) for axis in range(3))
        return (x, y, z)

    return m.Limits(
        maxComputeWorkGroupInvocations=max((x * y * z for x, y, z in sizes), default=1),
        maxComputeWorkGroupSize=by_axis(sizes),
        maxComputeWorkGroupCount=by_axis(groups),
        maxComputeSharedMemorySize=max((r.shared_bytes for r in reflections), default=0),
        maxPerStageDescriptorStorageBuffers=max((len(r.bindings) for r in reflections), default=0),
        maxPushConstantsSize=max((r.push_bytes for r in reflections), default=0),
        maxStorageBufferRange=4 * max((n for _, n in words), default=0),
        memory=4 * sum(n for b, n in words if b.memory == "device"),
    )
