"""What a compute shader's SPIR-V says of itself: bindings, push constants, local size, shared memory, capabilities.

It reads words alone, no GLSL and no spec, so it can check both; it must refuse what it cannot read, never guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from vkdnn.shader.module import (
    BINDING,
    BLOCK,
    BUFFER_BLOCK,
    BUILT_IN,
    DESCRIPTOR_SET,
    NON_WRITABLE,
    OFFSET,
    OP_ARRAY,
    OP_POINTER,
    OP_RUNTIME_ARRAY,
    OP_STRUCT,
    Module,
    Type,
    damaged,
    read_module,
    round_up,
)

# Numbers of the SPIR-V specification, version 1.6, section 3: storage classes, a built-in.
_UNIFORM_CONSTANT, _UNIFORM, _WORKGROUP, _PUSH_CONSTANT, _STORAGE_BUFFER = 0, 2, 4, 9, 12
_WORKGROUP_SIZE = 25

# What a buffer may be declared as beside its elements: several are loaded or stored at once.
_WIDER = {"float": ("vec2", "vec4"), "int": ("ivec2", "ivec4"), "uint": ("uvec2", "uvec4")}

# Capability: its name, and the bit of Vulkan's subgroup features that a device needs for it.
_SUBGROUP = {
    61: ("GroupNonUniform", "BASIC"),
    62: ("GroupNonUniformVote", "VOTE"),
    63: ("GroupNonUniformArithmetic", "ARITHMETIC"),
    64: ("GroupNonUniformBallot", "BALLOT"),
    65: ("GroupNonUniformShuffle", "SHUFFLE"),
    66: ("GroupNonUniformShuffleRelative", "SHUFFLE_RELATIVE"),
    67: ("GroupNonUniformClustered", "CLUSTERED"),
    68: ("GroupNonUniformQuad", "QUAD"),
}
_CAPABILITIES = {
    0: "Matrix", 1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 12: "Int64Atomics", 22: "Int16", 39: "Int8",
    4433: "StorageBuffer16BitAccess", 4434: "UniformAndStorageBuffer16BitAccess", 4448: "StorageBuffer8BitAccess",
    5345: "VulkanMemoryModel", 5346: "VulkanMemoryModelDeviceScope",
} | {number: name for number, (name, _) in _SUBGROUP.items()}  # fmt: skip


@dataclass(frozen=True)
class Binding:
    """A storage buffer: set and binding number, the name in the GLSL, its element's type (``float``, ``uvec4``, a
    struct's name), whether the shader only reads it, whether its length is the buffer's (``float in0[]``)."""

    set: int
    binding: int
    name: str
    element: str
    readonly: bool
    runtime_array: bool


@dataclass(frozen=True)
class PushMember:
    """A member of the push constants: its name, offset in bytes and type."""

    name: str
    offset: int
    type: str


@dataclass(frozen=True)
class Reflection:
    """A compute shader, seen from outside."""

    spirv_version: str
    words: int
    entry_point: str
    local_size: tuple[int, int, int]
    shared_bytes: int  # std430 layout, padding between variables included
    bindings: tuple[Binding, ...]  # by set and number
    push_members: tuple[PushMember, ...]  # by offset
    push_bytes: int
    capabilities: tuple[str, ...]
    extensions: tuple[str, ...]
    subgroup_features: tuple[str, ...]  # BASIC, VOTE, ...: what the capabilities ask of the device
    uses_subgroups: bool  # whether an instruction is one of a subgroup

    def record(self) -> dict[str, Any]:
        """Everything as JSON has it: dicts, lists, numbers, strings."""
        return {
            "spirv_version": self.spirv_version,
            "words": self.words,
            "entry_point": self.entry_point,
            "local_size": list(self.local_size),
            "shared_bytes": self.shared_bytes,
            "bindings": [dict(vars(b)) for b in self.bindings],
            "push_constants": {"bytes": self.push_bytes, "members": [dict(vars(m)) for m in self.push_members]},
            "capabilities": list(self.capabilities),
            "extensions": list(self.extensions),
            "subgroup_features": list(self.subgroup_features),
            "uses_subgroups": self.uses_subgroups,
        }


def reflect(spirv: bytes) -> Reflection:
    """Reads a module with one compute entry point (little-endian words).

    Raises CompileError for a module that is truncated or damaged, or holds what vkdnn's shaders never have: images,
    uniform buffers, arrays of buffers, decoration groups, other entry points.

    >>> from vkdnn.shader import Compiler
    >>> glsl = '''#version 450
    ... layout(local_size_x = 64) in;
    ... layout(std430, binding = 0) readonly buffer A { float a[]; };
    ... layout(std430, binding = 1) buffer B { uint b[]; };
    ... layout(push_constant) uniform Push { uint count; };
    ... void main() { if (gl_GlobalInvocationID.x < count) b[gl_GlobalInvocationID.x] = floatBitsToUint(a[0]); }
    ... '''
    >>> found = reflect(Compiler.find().compile_glsl(glsl, "example"))
    >>> [(b.binding, b.name, b.element, b.readonly) for b in found.bindings]
    [(0, 'a', 'float', True), (1, 'b', 'uint', False)]
    >>> found.push_members, found.push_bytes, found.local_size
    ((PushMember(name='count', offset=0, type='uint'),), 4, (64, 1, 1))
    """
    if len(spirv) % 4:
        raise damaged(f"the module has {len(spirv)} bytes, expected a multiple of 4")
    module = read_module(np.frombuffer(spirv, dtype="<u4").tolist())
    if len(module.entry_points) != 1:
        raise damaged(f"the module has {len(module.entry_points)} entry points, expected 1")
    entry, entry_name = module.entry_points[0]
    bindings: dict[tuple[int, int], Binding] = {}
    shared = 0
    push_members: tuple[PushMember, ...] = ()
    push_bytes = 0
    for found, pointer, storage in module.variables:
        if storage in (_UNIFORM_CONSTANT, _UNIFORM, _STORAGE_BUFFER):
            one = _binding(module, found, pointer, storage)
            known = bindings.setdefault((one.set, one.binding), one)
            if known is not one:
                bindings[one.set, one.binding] = _merged(known, one)
        elif storage == _WORKGROUP:
            held = _pointee(module, found, pointer)
            if held.size is None:
                raise damaged(f"shared variable %{found} is {held.name}, which has no size")
            shared = round_up(shared, held.align) + held.size
        elif storage == _PUSH_CONSTANT:
            if push_members:
                raise damaged("the module has two blocks of push constants, expected 1 at most")
            push_members, push_bytes = _push(module, found, pointer)
    version, capabilities = module.words[1], module.capabilities
    return Reflection(
        spirv_version=f"{version >> 16 & 0xFF}.{version >> 8 & 0xFF}",
        words=len(module.words),
        entry_point=entry_name,
        local_size=_local_size(module, entry),
        shared_bytes=shared,
        bindings=tuple(bindings[place] for place in sorted(bindings)),
        push_members=push_members,
        push_bytes=push_bytes,
        capabilities=tuple(_CAPABILITIES.get(c, f"Capability{c}") for c in capabilities),
        extensions=tuple(module.extensions),
        subgroup_features=tuple(_SUBGROUP[c][1] for c in sorted(set(capabilities)) if c in _SUBGROUP),
        uses_subgroups=module.uses_subgroups,
    )


def limits_needed(reflection: Reflection) -> dict[str, Any]:
    """What a device must offer to run the shader, under Vulkan's own names (``VkPhysicalDeviceLimits``, and
    ``subgroupSupportedOperations`` of ``VkPhysicalDeviceVulkan11Properties`` as names of bits)."""
    x, y, z = reflection.local_size
    return {
        "maxComputeWorkGroupInvocations": x * y * z,
        "maxComputeWorkGroupSize": [x, y, z],
        "maxComputeSharedMemorySize": reflection.shared_bytes,
        "maxPerStageDescriptorStorageBuffers": len({(b.set, b.binding) for b in reflection.bindings}),
        "maxPushConstantsSize": reflection.push_bytes,
        "subgroupSupportedOperations": [f"VK_SUBGROUP_FEATURE_{name}_BIT" for name in reflection.subgroup_features],
    }


def _pointee(module: Module, found: int, pointer: int) -> Type:
    held = module.types.get(pointer)
    if held is None or held.opcode != OP_POINTER:
        raise damaged(f"the type %{pointer} of variable %{found} is no pointer")
    return held.parts[0]


def _struct(module: Module, found: int, pointer: int, what: str) -> tuple[int, Type]:
    """Id and type of the block that a variable is."""
    held = _pointee(module, found, pointer)
    if held.opcode != OP_STRUCT or not held.parts:
        raise damaged(f"{what} %{found} is {held.name}, expected a block with members")
    return module.pointees[pointer], held


def _binding(module: Module, found: int, pointer: int, storage: int) -> Binding:
    number = module.decorations.get((found, BINDING))
    if number is None:
        raise damaged(f"variable %{found} is a buffer without a binding")
    struct, held = _struct(module, found, pointer, f"binding {number}, variable")
    # Before SPIR-V 1.3 a storage buffer was a BufferBlock of the class Uniform.
    wanted = BLOCK if storage == _STORAGE_BUFFER else BUFFER_BLOCK
    if storage == _UNIFORM_CONSTANT or (struct, wanted) not in module.decorations:
        raise damaged(f"binding {number} is no storage buffer (storage class {storage})")
    member = held.parts[0]
    lone = len(held.parts) == 1 and member.opcode in (OP_ARRAY, OP_RUNTIME_ARRAY)
    name = module.names.get(found, "") or (module.member_names.get((struct, 0), "") if len(held.parts) == 1 else "")
    return Binding(
        module.decorations.get((found, DESCRIPTOR_SET), 0), number, name or held.name,
        member.parts[0].name if lone else held.name,
        (found, NON_WRITABLE) in module.decorations
        or all((struct, i, NON_WRITABLE) in module.member_decorations for i in range(len(held.parts))),
        held.parts[-1].opcode == OP_RUNTIME_ARRAY,
    )  # fmt: skip


def _merged(a: Binding, b: Binding) -> Binding:
    """Two declarations of one buffer, of elements and of vectors of them, as that of the elements."""
    narrow, wide = (a, b) if a.element in _WIDER else (b, a)
    if a.readonly != b.readonly or wide.element not in _WIDER.get(narrow.element, ()):
        access = [f"{x.element}{' (only read)' if x.readonly else ''}" for x in (a, b)]
        raise damaged(f"binding {a.binding} is declared twice, as {access[0]} and as {access[1]}")
    return narrow


def _push(module: Module, found: int, pointer: int) -> tuple[tuple[PushMember, ...], int]:
    struct, held = _struct(module, found, pointer, "the push constants' variable")
    members, size = [], 0
    for number, member in enumerate(held.parts):
        offset = module.member_decorations.get((struct, number, OFFSET))
        if offset is None or member.size is None:
            raise damaged(f"member {number} of the push constants, {member.name}, has no offset or no size")
        name = module.member_names.get((struct, number), "") or f"member{number}"
        members.append((PushMember(name, offset, member.name), offset + member.size))
        size = max(size, offset + member.size)
    members.sort(key=lambda m: m[0].offset)
    for (_, end), (later, _) in pairwise(members):
        if later.offset < end:
            raise damaged(f"member {later.name} of the push constants lies over the one before it")
    return tuple(member for member, _ in members), size


def _local_size(module: Module, entry: int) -> tuple[int, int, int]:
    found: tuple[int | None, ...] | None = module.local_sizes.get(entry)
    if entry in module.local_size_ids:
        found = tuple(module.constants.get(size) for size in module.local_size_ids[entry])
    # A constant decorated as gl_WorkGroupSize wins over the execution mode.
    for composite, parts in module.composites.items():
        if module.decorations.get((composite, BUILT_IN)) == _WORKGROUP_SIZE:
            found = tuple(module.constants.get(part) for part in parts)
    if found is None or len(found) != 3 or not all(found):
        raise damaged(f"the entry point has local size {found}, expected three constants of 1 or more")
    x, y, z = (size or 0 for size in found)
    return x, y, z
