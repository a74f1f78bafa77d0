"""The manifest of a bundle: everything that a runtime must know, as frozen records. docs/aot.md explains the format.

Records say nothing twice; vkdnn.aot.reading checks that they fit together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from vkdnn.aot.formulas import Formula
from vkdnn.aot.records import Tree, about, schema, to_json
from vkdnn.shader.bundle import FORMAT, VERSION

SCHEMA = "manifest.schema.json"
WEIGHTS = "weights.safetensors"
DTYPES = ("float32", "int32", "uint32", "bool", "float16", "bfloat16")


@dataclass(frozen=True)
class Producer:
    """What wrote the bundle."""

    vkdnn: Annotated[str, about("Version of vkdnn.")]
    generator: Annotated[str, about("SHA-256 over the sources that turn specs into GLSL.")]
    compiler: Annotated[str, about("Version of the GLSL compiler.")]
    target: Annotated[str, about("The device it was built for; empty for a portable bundle.")]


@dataclass(frozen=True)
class Symbol:
    """A size that is chosen at run time, the same wherever it stands."""

    name: Annotated[str, about("Its name in formulas.")]
    low: Annotated[int, about("The smallest value.", minimum=0)]
    high: Annotated[int, about("The largest value.", minimum=0)]


@dataclass(frozen=True)
class Numerics:
    """How the kernels get the right bits, and what they ask of the device for it."""

    mode: Annotated[str, about("Always exact: results are the same bits on every device.", enum=["exact"])]
    contract: Annotated[str, about("The rules that the device's own + - * and, where native, / and sqrt must keep.")]
    subnormals: Annotated[
        str, about("software: kernels flush subnormals; native: the device must.", enum=["software", "native"])
    ]
    division: Annotated[
        str,
        about(
            "remainder: in software; native: the device's must be right; fma: its fma() must be fused.",
            enum=["remainder", "fma", "native"],
        ),
    ]
    square_root: Annotated[str, about("As division.", enum=["remainder", "fma", "native"])]
    host_flush: Annotated[
        bool,
        about(
            "Whether the thread that opens the (software) device must have flush-to-zero and denormals-are-zero set."
        ),
    ]


@dataclass(frozen=True)
class Limits:
    """What the device must offer: names as in VkPhysicalDeviceLimits, at the largest values of the symbols."""

    maxComputeWorkGroupInvocations: Annotated[int, about("Invocations of a workgroup.", minimum=0)]
    maxComputeWorkGroupSize: Annotated[tuple[int, int, int], about("Local size by axis.")]
    maxComputeWorkGroupCount: Annotated[tuple[int, int, int], about("Workgroups of a dispatch by axis.")]
    maxComputeSharedMemorySize: Annotated[int, about("Bytes of shared memory.", minimum=0)]
    maxPerStageDescriptorStorageBuffers: Annotated[int, about("Bindings of a kernel.", minimum=0)]
    maxPushConstantsSize: Annotated[int, about("Bytes of push constants.", minimum=0)]
    maxStorageBufferRange: Annotated[int, about("Bytes of the largest buffer.", minimum=0)]
    memory: Annotated[int, about("Bytes of all buffers in the device's memory.", minimum=0)]


@dataclass(frozen=True)
class Binding:
    """A storage buffer of a kernel; bindings are numbered from 0 in set 0, as they stand in the list."""

    element: Annotated[str, about("Type of a word (float, int, uint), or of a vector of them, in the shader.")]
    access: Annotated[str, about("Whether the kernel reads or writes it.", enum=["read", "write"])]


@dataclass(frozen=True)
class Kernel:
    """A compute shader. Its entry point is main; its push constants are 32-bit words."""

    label: Annotated[str, about("A name for messages.")]
    family: Annotated[str, about("The kind of kernel.")]
    spec: Annotated[str, about("The canonical text of spec and schedule, from which it was made.")]
    identity: Annotated[str, about("What names it before it is rendered: SHA-256 over spec and strategies.")]
    file: Annotated[str, about("The SPIR-V, inside the bundle.")]
    sha256: Annotated[str, about("SHA-256 of the file.")]
    size: Annotated[int, about("Bytes of the file.", minimum=4)]
    local_size: Annotated[tuple[int, int, int], about("Invocations of a workgroup by axis.")]
    shared_bytes: Annotated[int, about("Bytes of shared memory.", minimum=0)]
    bindings: Annotated[tuple[Binding, ...], about("Its storage buffers.")]
    push: Annotated[tuple[str, ...], about("Names of the words of its push constants, in order.")]
    workgroups: Annotated[
        tuple[Formula, ...] | None,
        about("How many a launch takes by axis, over words of push; null where that is no formula. Dispatches say."),
    ]


@dataclass(frozen=True)
class Buffer:
    """Memory of 32-bit words, bound whole."""

    kind: Annotated[
        str,
        about(
            "input: written by the host before each run; output: read after it; constant: written once; arena: "
            "intermediates, undefined before a run.",
            enum=["input", "output", "constant", "arena"],
        ),
    ]
    memory: Annotated[str, about("Of the device, or of the host where shaders reach it.", enum=["device", "host"])]
    words: Annotated[Formula, about("Its size, at least 1.")]


@dataclass(frozen=True)
class Value:
    """An array inside a buffer, from the dispatch that writes it to the last that reads it."""

    buffer: Annotated[int, about("Number of its buffer.", minimum=0)]
    offset: Annotated[int, about("Word of the buffer where it begins.", minimum=0)]
    words: Annotated[Formula, about("Words that it takes, at least 1.")]
    dtype: Annotated[str, about("Of its elements.", enum=list(DTYPES))]
    shape: Annotated[tuple[Formula, ...], about("Its lengths; elements lie in row-major order.")]
    first: Annotated[int | None, about("Number of the dispatch that writes it; null: there before the first.")]
    last: Annotated[
        int | None, about("Number of the last dispatch that reads or writes it; null: there after the last.")
    ]


@dataclass(frozen=True)
class Input:
    """An argument."""

    name: Annotated[str, about("Path in the arguments of the function, such as params.layers.0.weight.")]
    dtype: Annotated[str, about("Of the elements.", enum=list(DTYPES))]
    shape: Annotated[tuple[Formula, ...], about("Lengths; a name alone gives the symbol its value.")]
    value: Annotated[int, about("Number of the value to write it to.", minimum=0)]
    donated: Annotated[bool, about("Whether the run may write another value over it.")]
    initial: Annotated[str | None, about("Tensor of the weights file with a value to begin with.")]


@dataclass(frozen=True)
class Constant:
    """An array that belongs to the bundle."""

    name: Annotated[str, about("Tensor of the weights file.")]
    dtype: Annotated[str, about("Of the elements.", enum=list(DTYPES))]
    shape: Annotated[tuple[int, ...], about("Lengths.")]
    value: Annotated[int, about("Number of the value to write it to.", minimum=0)]


@dataclass(frozen=True)
class Output:
    """A result."""

    name: Annotated[str, about("Path in the result of the function, such as result.0.")]
    dtype: Annotated[str, about("Of the elements.", enum=list(DTYPES))]
    shape: Annotated[tuple[Formula, ...], about("Lengths.")]
    value: Annotated[int, about("Number of the value to read it from; several outputs may share one.", minimum=0)]
    replaces: Annotated[int | None, about("Number of the donated input whose memory it is in.")]


@dataclass(frozen=True)
class Dispatch:
    """A kernel run once."""

    kernel: Annotated[int, about("Number of the kernel.", minimum=0)]
    values: Annotated[tuple[int, ...], about("Number of the value at each binding; its buffer is bound whole.")]
    push: Annotated[tuple[Formula, ...], about("The words of the push constants.")]
    groups: Annotated[tuple[Formula, Formula, Formula], about("Workgroups by axis.")]
    barrier: Annotated[bool, about("Whether it must wait until all dispatches before it have ended and written.")]
    flops: Annotated[Formula, about("Float operations.")]
    bytes: Annotated[Formula, about("Bytes that it must move.")]


@dataclass(frozen=True)
class Program:
    """What a run does."""

    buffers: Annotated[tuple[Buffer, ...], about("All memory.")]
    values: Annotated[tuple[Value, ...], about("All arrays.")]
    inputs: Annotated[tuple[Input, ...], about("Arguments in order.")]
    constants: Annotated[tuple[Constant, ...], about("Arrays of the weights file.")]
    outputs: Annotated[tuple[Output, ...], about("Results in order.")]
    arguments: Annotated[Tree, about("The function's positional arguments (a list), of numbers of inputs.")]
    keywords: Annotated[Tree, about("Its keyword arguments (a dict), of numbers of inputs.")]
    result: Annotated[Tree, about("Its result, of numbers of outputs.")]
    dispatches: Annotated[tuple[Dispatch, ...], about("In order.")]
    submissions: Annotated[
        tuple[tuple[int, int], ...],
        about("Ranges [first, end) of dispatches; each is submitted, and ends, before the next."),
    ]


@dataclass(frozen=True, repr=False)
class Manifest:
    """An AOT bundle of vkdnn."""

    format: Annotated[str, about("Always vkdnn-bundle.", enum=[FORMAT])]
    version: Annotated[int, about("Of the format.", enum=[VERSION])]
    name: Annotated[str, about("What the function is called.")]
    producer: Annotated[Producer, about("What wrote it.")]
    symbols: Annotated[tuple[Symbol, ...], about("Sizes chosen at run time.")]
    numerics: Annotated[Numerics, about("Strategies of the kernels.")]
    limits: Annotated[Limits, about("What the device must offer.")]
    kernels: Annotated[tuple[Kernel, ...], about("Compute shaders; there may be more than the program runs.")]
    probe: Annotated[int | None, about("Number of the kernel with which vkdnn probes a device's arithmetic.")]
    weights: Annotated[str | None, about("SHA-256 of weights.safetensors, null where there is none.")]
    program: Annotated[Program | None, about("What a run does; null for a set of kernels.")]

    def __repr__(self) -> str:
        """One line: the whole is text()."""
        runs = "no program" if self.program is None else f"{len(self.program.dispatches)} dispatches"
        target = self.producer.target or "any device"
        return f"<manifest of {self.name} for {target}: {len(self.kernels)} kernels, {runs}>"

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Symbol -> smallest and largest value."""
        return {s.name: (s.low, s.high) for s in self.symbols}

    @property
    def largest(self) -> dict[str, int]:
        """Symbol -> largest value."""
        return {s.name: s.high for s in self.symbols}

    def text(self) -> str:
        """The manifest as JSON."""
        return json.dumps({"$schema": SCHEMA, **to_json(self)}, indent=1, ensure_ascii=False) + "\n"


def schema_text() -> str:
    """The JSON Schema of manifests."""
    found = schema(Manifest, "vkdnn AOT bundle")
    found["properties"] = {"$schema": {"type": "string"}, **found["properties"]}
    return json.dumps(found, indent=1) + "\n"
