"""Whether a bundle is right in what its manifest's form does not show: SPIR-V, lifetimes, overlaps, barriers.

It must believe the manifest nowhere that something else can be asked; it repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from vkdnn.aot.formulas import evaluate
from vkdnn.aot.manifest import Kernel, Manifest, Program
from vkdnn.errors import CompileError
from vkdnn.shader.bundle import Archive, BundleError
from vkdnn.shader.reflect import Reflection, limits_needed, reflect

AGAIN = "write the bundle again with `vkdnn aot build` or vk.aot.export"


def check_kernels(archive: Archive, manifest: Manifest) -> list[Reflection]:
    """What the SPIR-V of each kernel says of itself.

    Raises BundleError where a file is missing or damaged, or says something else than the manifest.
    """
    found = []
    limits = asdict(manifest.limits)
    for number, kernel in enumerate(manifest.kernels):
        try:
            seen = reflect(archive.spirv(kernel.file, kernel.sha256))
        except CompileError as error:
            raise BundleError(f"bundle {archive.path}: file {kernel.file}: {error}; {AGAIN}") from None
        for what, says, is_so in _claims(kernel, seen):
            if says != is_so:
                raise BundleError(
                    f"bundle {archive.path}: kernels[{number}].{what} is {says}, but file {kernel.file} has {is_so}; "
                    f"{AGAIN}"
                )
        for name, needed in limits_needed(seen).items():
            offered = limits.get(name, needed)
            if not all(n <= o for n, o in zip(_as_list(needed), _as_list(offered), strict=False)):
                raise BundleError(
                    f"bundle {archive.path}: limits.{name} is {offered}, but kernels[{number}] needs {needed}; {AGAIN}"
                )
        found.append(seen)
    return found


def _claims(kernel: Kernel, seen: Reflection) -> list[tuple[str, Any, Any]]:
    """(field, what the manifest says, what the SPIR-V says)."""
    return [
        ("size", kernel.size, 4 * seen.words),
        ("local_size", kernel.local_size, seen.local_size),
        ("shared_bytes", kernel.shared_bytes, seen.shared_bytes),
        (
            "bindings",
            [(i, b.element, b.access) for i, b in enumerate(kernel.bindings)],
            [(b.binding, b.element, "read" if b.readonly else "write") for b in seen.bindings],
        ),
        ("push", list(kernel.push), [m.name for m in seen.push_members]),
    ]


def _as_list(limit: Any) -> Sequence[Any]:
    return limit if isinstance(limit, (list, tuple)) else [limit]


def check_program(archive: Archive, manifest: Manifest) -> None:
    """Raises BundleError where values overlap in an arena while both are there, a dispatch uses a value outside of its
    lifetime, a barrier is missing, or counts of workgroups and bytes are not as kernels and limits say. Sizes are those
    at the largest values of the symbols."""
    if manifest.program is None:
        return
    for problem in (_lifetimes(manifest.program), _overlaps(manifest), _hazards(manifest), _counts(manifest)):
        for what in problem:
            raise BundleError(f"bundle {archive.path}: {what}; {AGAIN}")


def _lifetimes(program: Program) -> Iterator[str]:
    count = len(program.dispatches)
    for i, v in enumerate(program.values):
        arena = program.buffers[v.buffer].kind == "arena"
        if arena and (v.first is None or v.last is None):
            yield f"values[{i}] lies in an arena, but has no first or no last dispatch"
        for name, at in (("first", v.first), ("last", v.last)):
            if at is not None and not 0 <= at < count:
                yield f"values[{i}].{name} is {at}, expected a number of the {count} dispatches"
    for i, dispatch in enumerate(program.dispatches):
        for number in dispatch.values:
            v = program.values[number]
            if not (v.first is None or v.first <= i) or not (v.last is None or i <= v.last):
                yield f"dispatches[{i}] uses values[{number}], which is there from {v.first} to {v.last}"


def _overlaps(manifest: Manifest) -> Iterator[str]:
    program = manifest.program
    assert program is not None
    alive: dict[int, list[tuple[int, int, int, int]]] = {}  # buffer -> (last dispatch, start, stop, value)
    order = sorted(range(len(program.values)), key=lambda i: program.values[i].first or 0)
    for i in order:
        v = program.values[i]
        if v.first is None or v.last is None or program.buffers[v.buffer].kind != "arena":
            continue
        start, stop = v.offset, v.offset + evaluate(v.words, manifest.largest)
        still = [other for other in alive.get(v.buffer, []) if other[0] >= v.first]
        for _, other_start, other_stop, other in still:
            if start < other_stop and other_start < stop:
                yield f"values[{i}] and values[{other}] overlap in an arena, and are there at once"
        alive[v.buffer] = [*still, (v.last, start, stop, i)]


def _hazards(manifest: Manifest) -> Iterator[str]:
    """Pairs of dispatches that touch the same words, one of them writing, with no barrier between."""
    program = manifest.program
    assert program is not None
    starts = {first for first, _ in program.submissions}
    touched: dict[int, list[tuple[int, int, bool, int]]] = {}  # buffer -> (start, stop, written, dispatch)
    for i, dispatch in enumerate(program.dispatches):
        if dispatch.barrier or i in starts:
            touched = {}
        own = []
        for number, binding in zip(dispatch.values, manifest.kernels[dispatch.kernel].bindings, strict=True):
            v, writes = program.values[number], binding.access == "write"
            start, stop = v.offset, v.offset + evaluate(v.words, manifest.largest)
            for other_start, other_stop, written, other in touched.get(v.buffer, []):
                if (writes or written) and start < other_stop and other_start < stop:
                    yield f"dispatches[{i}] must wait for dispatches[{other}], but there is no barrier between them"
            own.append((v.buffer, (start, stop, writes, i)))
        for buffer, region in own:
            touched.setdefault(buffer, []).append(region)


def _counts(manifest: Manifest) -> Iterator[str]:
    program, limits = manifest.program, manifest.limits
    most = limits.maxComputeWorkGroupCount
    assert program is not None
    for i, dispatch in enumerate(program.dispatches):
        kernel = manifest.kernels[dispatch.kernel]
        groups = [evaluate(n, manifest.largest) for n in dispatch.groups]
        if kernel.workgroups is not None:
            push = {name: evaluate(n, manifest.largest) for name, n in zip(kernel.push, dispatch.push, strict=True)}
            expected = [evaluate(n, push) for n in kernel.workgroups]
            if groups != expected:
                yield f"dispatches[{i}].groups is {groups}, but its kernel takes {expected} for its push constants"
        if any(n > m for n, m in zip(groups, most, strict=True)):
            yield f"limits.maxComputeWorkGroupCount is {most}, but dispatches[{i}] has {groups}"
    sizes = [4 * evaluate(b.words, manifest.largest) for b in program.buffers]
    if max(sizes, default=0) > limits.maxStorageBufferRange:
        yield f"limits.maxStorageBufferRange is {limits.maxStorageBufferRange}, but a buffer has {max(sizes)} bytes"
    on_device = sum(size for size, b in zip(sizes, program.buffers, strict=True) if b.memory == "device")
    if on_device > limits.memory:
        yield f"limits.memory is {limits.memory}, but the buffers of the device have {on_device} bytes"
