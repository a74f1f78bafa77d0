"""vk.aot.load: a bundle as a function of arrays, run on a Vulkan device without a compiler.

It must never run a kernel on arguments or on a device for which the bundle was not made.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors

from vkdnn import dtypes, tracing
from vkdnn.aot import arguments
from vkdnn.aot import manifest as m
from vkdnn.aot.checks import check_kernels, check_program
from vkdnn.aot.export import Spec
from vkdnn.aot.formulas import evaluate
from vkdnn.aot.reading import read_manifest
from vkdnn.aot.trees import build
from vkdnn.array import Array, array, host_words
from vkdnn.device import Device, Progress, Run, Storage, Task, VulkanDevice, Words, current_device
from vkdnn.device import device as find_device
from vkdnn.errors import ArgumentError
from vkdnn.ir.memory import copy
from vkdnn.ir.node import Node, leaf
from vkdnn.plan import ArenaPlan
from vkdnn.program import Program
from vkdnn.runtime import Launch, Region
from vkdnn.runtime.info import SOFTWARE
from vkdnn.runtime.probe import PROBE
from vkdnn.shader.bundle import Archive, BundleError, provide
from vkdnn.shader.request import generator_fingerprint

# The names of safetensors.
_TENSORS = {
    "F32": "float32", "I32": "int32", "U32": "uint32", "BOOL": "bool", "F16": "float16", "BF16": "bfloat16",
}  # fmt: skip
KEPT_SIZES = 8  # programs kept ready: one for each choice of symbolic sizes


def load(path: str | os.PathLike[str], device: Device | str | int | None = None) -> Bundle:
    """The bundle at ``path`` (a folder or .zip), ready on a Vulkan device (default: the current one).

    No compiler is needed. Raises BundleError for a bundle that is damaged or of another version, whose kernels or plan
    of memory and barriers are not as they must be, or that asks more of the device than it offers; ArgumentError for
    the reference, which runs no shaders.

    >>> import tempfile, vkdnn as vk
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = vk.aot.export(lambda x: vk.sum(x, axis=1), [vk.aot.Spec((3, 4))], f"{folder}/b")
    ...     sums = vk.aot.load(f"{folder}/b")
    ...     sums(vk.ones((3, 4))).numpy().tolist()
    [4.0, 4.0, 4.0]
    """
    archive = Archive(path)
    manifest = read_manifest(archive)
    if manifest.program is None:
        raise BundleError(
            f"bundle {archive.path}: is a set of kernels without a program; name it in VKDNN_AOT, or build one with "
            "vk.aot.export"
        )
    check_kernels(archive, manifest)
    check_program(archive, manifest)
    spirv = [archive.spirv(kernel.file, kernel.sha256) for kernel in manifest.kernels]
    if manifest.producer.generator == generator_fingerprint():
        for kernel, words in zip(manifest.kernels, spirv, strict=True):
            if kernel.identity == PROBE.identity:  # a device is probed when it opens
                provide(kernel.identity, words)
    place = device if isinstance(device, Device) else current_device() if device is None else find_device(device)
    if not isinstance(place, VulkanDevice):
        raise ArgumentError(
            f"device: {place.name}, the NumPy reference, runs no shaders; name a Vulkan device, or call the function "
            "that the bundle was made of"
        )
    check_device(manifest, place, str(archive.path))
    return Bundle(archive, manifest, manifest.program, spirv, place)


def check_device(manifest: m.Manifest, device: VulkanDevice, name: str) -> None:
    """Raises BundleError if the device offers less than the bundle asks for."""
    limits, needed = device.opened.info.limits, manifest.limits
    pairs: list[tuple[str, int, int]] = [
        ("invocations of a workgroup", needed.maxComputeWorkGroupInvocations, limits.max_workgroup_invocations),
        ("bytes of shared memory", needed.maxComputeSharedMemorySize, limits.shared_memory_bytes),
        ("bindings", needed.maxPerStageDescriptorStorageBuffers, limits.max_bindings),
        ("bytes of push constants", needed.maxPushConstantsSize, limits.push_constant_bytes),
        ("bytes in one buffer", needed.maxStorageBufferRange, limits.max_buffer_bytes),
        ("bytes of memory", needed.memory, limits.memory_bytes),
    ]
    for axis, size, count in zip("xyz", needed.maxComputeWorkGroupSize, needed.maxComputeWorkGroupCount, strict=True):
        pairs.append((f"invocations in {axis}", size, limits.max_workgroup_size["xyz".index(axis)]))
        pairs.append((f"workgroups in {axis}", count, limits.max_workgroup_count["xyz".index(axis)]))
    for what, wanted, offered in pairs:
        if wanted > offered:
            raise BundleError(
                f"bundle {name}: needs {wanted} {what}, but {device.name} offers {offered}; choose another device, or "
                "build the bundle for this one with its --device"
            )
    for rule in ("subnormals", "division", "square_root"):
        built, own = getattr(manifest.numerics, rule), getattr(device.opened.strategies, rule)
        if built not in (getattr(SOFTWARE, rule), own):
            raise BundleError(
                f"bundle {name}: was built for {manifest.producer.target or 'another device'}, with {rule} {built}; "
                f"on {device.name} it is {own}: build the bundle without a device (portable), or for this one"
            )


@dataclass(frozen=True)
class _Launched:
    """What stands in for a spec in the steps of a loaded program."""

    label: str
    spirv: bytes
    push: tuple[int, ...]
    groups: tuple[int, int, int]


@dataclass(frozen=True)
class _Step:
    """A dispatch as a Program sees it."""

    spec: Any
    sizes: tuple[int, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


class _Loaded(Program):
    """The program of a manifest for one choice of symbolic sizes."""

    def __init__(self, bundle: Bundle, values: Mapping[str, int]):
        program, self.device = bundle.program, bundle.device
        hosts = {i for i, b in enumerate(program.buffers) if b.memory == "host"}
        nodes = [_node(v, values, v.buffer in hosts) for v in program.values]
        self.inputs = [nodes[i.value] for i in program.inputs]
        self.donated = [k for k, i in enumerate(program.inputs) if i.donated]
        self.results = [nodes[o.value] for o in program.outputs]
        self.returned = set(self.results)
        self.captured = {}
        for constant in program.constants:
            buffer = program.values[constant.value].buffer
            for node, value in zip(nodes, program.values, strict=True):
                if value.buffer == buffer:
                    self.captured[node] = bundle.constants[constant.name]
        owner = {program.values[i.value].buffer: nodes[i.value] for i in program.inputs}
        self.taken, self.roots = {}, []
        arenas: dict[bool, list[int]] = {False: [], True: []}
        for i, b in enumerate(program.buffers):
            if b.kind == "arena":
                arenas[b.memory == "host"].append(i)
        places: dict[bool, dict[Node, tuple[int, int]]] = {False: {}, True: {}}
        for node, value in zip(nodes, program.values, strict=True):
            kind, host = program.buffers[value.buffer].kind, value.buffer in hosts
            if kind == "arena":
                places[host][node] = (arenas[host].index(value.buffer), value.offset)
            elif kind == "output" or (kind == "input" and node is not owner[value.buffer]):
                self.roots.append(node)
                if kind == "input":
                    self.taken[node] = owner[value.buffer]
        plans = [
            ArenaPlan(tuple(evaluate(program.buffers[i].words, values) for i in arenas[host]), places[host], 0)
            for host in (False, True)
        ]
        self.plan, self.host_plan = plans
        steps: list[Any] = [_step(bundle, d, nodes, values) for d in program.dispatches]
        self.steps = steps
        self.cuts = [end for _, end in program.submissions[:-1]]
        if not bundle.arenas:
            bundle.arenas = {
                host: [self.device.allocate(words, host=False, remote=host) for words in plan.arenas]
                for host, plan in ((False, self.plan), (True, self.host_plan))
            }
        self._arenas = bundle.arenas  # one for all sizes, large enough for the largest
        self._bound = OrderedDict()

    def _prepare(self, tasks: list[Task], uploads: list[Any], downloads: list[Any], progress: Progress | None) -> Run:
        assert isinstance(self.device, VulkanDevice)
        return self.device.recorded([_launch(t) for t in tasks], uploads, downloads, self.cuts)


def _node(value: m.Value, values: Mapping[str, int], host: bool) -> Node:
    shape = tuple(evaluate(n, values) for n in value.shape)
    node = leaf(shape, dtypes.as_dtype(value.dtype), "value")
    return copy(node, "host") if host else node


def _step(bundle: Bundle, d: m.Dispatch, nodes: Sequence[Node], values: Mapping[str, int]) -> _Step:
    kernel = bundle.manifest.kernels[d.kernel]
    push = tuple(evaluate(word, values) for word in d.push)
    x, y, z = (evaluate(n, values) for n in d.groups)
    bound = [nodes[v] for v in d.values]
    reads = tuple(n for n, b in zip(bound, kernel.bindings, strict=True) if b.access == "read")
    writes = tuple(n for n, b in zip(bound, kernel.bindings, strict=True) if b.access == "write")
    return _Step(_Launched(kernel.label, bundle.spirv[d.kernel], push, (x, y, z)), (), reads, writes)


def _launch(task: Task) -> Launch:
    made: Any = task.spec
    reads, writes = (
        tuple(Region(p.handle, p.start, p.start + p.words) for p in part) for part in (task.inputs, task.outputs)
    )
    handles = tuple(p.handle for p in (*task.inputs, *task.outputs))
    return Launch(made.spirv, made.label, handles, made.push, made.groups, reads, writes)


class Bundle:
    """A loaded bundle; made by load(). Called with the arguments of the function, it gives the function's result."""

    def __init__(
        self, archive: Archive, manifest: m.Manifest, program: m.Program, spirv: list[bytes], device: VulkanDevice
    ):
        self.archive, self.manifest, self.program = archive, manifest, program
        self.spirv, self.device = spirv, device
        self.arenas: dict[bool, list[Any]] = {}
        self._programs: OrderedDict[tuple[int, ...], _Loaded] = OrderedDict()
        tensors = self._tensors()
        self.constants: dict[str, Storage] = {}
        for constant in program.constants:
            host = self._tensor(tensors, constant.name, constant.dtype, constant.shape)
            self.constants[constant.name] = device.upload(dtypes.words(host, dtypes.as_dtype(constant.dtype)))
        self._initial = {i.initial: tensors.get(i.initial) for i in program.inputs if i.initial is not None}

    def __repr__(self) -> str:
        called = ", ".join(arguments.names(self.program))
        return f"<bundle {self.manifest.name}({called}) of {self.archive.path} on {self.device.name!r}>"

    def initial(self) -> list[Any]:
        """The positional arguments with the values that the bundle has for them to begin with; where it has none there
        is a Spec of what to give: ``params, state, tokens = bundle.initial()`` of a training step, whose tokens are
        ``Spec(shape=(8, 129), dtype='int32')``. None is an argument that is None."""
        found = [Spec(_lengths(i), i.dtype) if i.initial is None else self.first_value(i) for i in self.program.inputs]
        given: list[Any] = build(self.program.arguments, found)
        return given

    def first_value(self, i: m.Input) -> Array:
        """The value that an input has to begin with."""
        assert i.initial is not None
        shape = tuple(n if isinstance(n, int) else -1 for n in i.shape)
        return array(self._tensor(self._initial, i.initial, i.dtype, shape), dtype=i.dtype, device=self.device)

    def __call__(self, *given: Any, **keywords: Any) -> Any:
        """The function's result. Raises ArgumentError, ShapeError or DtypeError that names the argument which does not
        fit, and DeviceError for arrays of another device."""
        if tracing.active():
            raise ArgumentError(
                "bundle: called inside a traced function; a bundle is compiled already, call it outside"
            )
        leaves = arguments.checked(self.manifest, self.device, given, keywords)
        values = arguments.sizes(self.manifest, leaves)
        key = tuple(values.values())
        with self.device.lock:
            if key not in self._programs:
                self._programs[key] = _Loaded(self, values)
                if len(self._programs) > KEPT_SIZES:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            stored = self._programs[key]([_argument(x, i) for x, i in zip(leaves, self.program.inputs, strict=True)])
        results = []
        for storage, output in zip(stored, self.program.outputs, strict=True):
            shape = tuple(evaluate(n, values) for n in output.shape)
            node = leaf(shape, dtypes.as_dtype(output.dtype))
            node.buffer = storage
            results.append(Array(node, self.device))
        return build(self.program.result, results)

    # ---- weights

    def _tensors(self) -> dict[str, Any]:
        if self.manifest.weights is None:
            return {}
        data = self.archive.checked(m.WEIGHTS, self.manifest.weights)
        try:
            # Not safetensors.numpy.load(), which knows no bfloat16.
            return {
                name: np.frombuffer(t["data"], dtypes.as_dtype(_TENSORS[t["dtype"]]).numpy).reshape(t["shape"])
                for name, t in safetensors.deserialize(data)
            }
        except (safetensors.SafetensorError, KeyError) as error:
            raise BundleError(
                f"bundle {self.archive.path}: {m.WEIGHTS} is damaged ({error}); write the bundle again"
            ) from None

    def _tensor(
        self, tensors: Mapping[str, Any], name: str, dtype: str, shape: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        found = tensors.get(name)
        if found is None or (found.dtype.name, found.shape) != (dtype, shape):
            got = "is missing" if found is None else f"is {found.dtype} {found.shape}, expected {dtype} {shape}"
            raise BundleError(f"bundle {self.archive.path}: tensor {name} of {m.WEIGHTS} {got}; write the bundle again")
        host: np.ndarray[Any, Any] = found
        return host


def _lengths(i: m.Input) -> tuple[int | str, ...]:
    """The shape of an input, which has no formulas in it."""
    return tuple(n for n in i.shape if not isinstance(n, list))


def _argument(x: Any, i: m.Input) -> Storage | Words:
    return x.storage() if isinstance(x, Array) else host_words(x, dtypes.as_dtype(i.dtype))
