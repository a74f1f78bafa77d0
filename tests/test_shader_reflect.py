"""Reflection: what the SPIR-V of a kernel says agrees with its spec, and damaged modules are refused."""

import json
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkdnn import show
from vkdnn.errors import CompileError
from vkdnn.kernels.base import Target
from vkdnn.shader import Compiler, compile_many
from vkdnn.shader.reflect import Binding, PushMember, Reflection, limits_needed, reflect
from vkdnn.shader.spirv import MAGIC, instructions

EVERYTHING = """#version 450
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
layout(local_size_x = 8, local_size_y = 4, local_size_z = 2) in;
struct Pair { float key; uvec2 value; };
layout(std430, set = 1, binding = 7) readonly buffer Table { Pair rows[]; } table;
layout(std430, set = 1, binding = 3) buffer Header { uint count; vec4 items[]; };
layout(std430, binding = 2) writeonly buffer Result { float result[16]; };
layout(push_constant) uniform Push { uint first; layout(offset = 16) vec3 middle; ivec2 last; float line[3]; };
shared float row[33];
shared vec3 point;
shared Pair pairs[3];
shared bool done;
void main() {
    row[gl_LocalInvocationID.x] = subgroupAdd(table.rows[first].key);
    point = middle * line[last.x];
    pairs[0].value = table.rows[1].value;
    done = count > 3u;
    barrier();
    result[gl_LocalInvocationIndex & 15u] = row[0] + point.x + float(pairs[0].value.x) + items[0].x + float(done);
}
"""
PLAIN = """#version 450
layout(local_size_x = 1) in;
layout(binding = 0) buffer Data { float data[]; };
void main() { data[0] = 1.0; }
"""


@cache
def compiled(glsl):
    return Compiler.find().compile_glsl(glsl, "test")


@cache
def shown_kernels():
    """Every kernel of the examples with its SPIR-V, by request."""
    kernels = [k for example in show.EXAMPLES.values() for k in show.kernels(example.outputs())]
    return list(zip(kernels, compile_many([k.request for k in kernels]), strict=True))


def test_everything_that_a_module_declares():
    found = reflect(compiled(EVERYTHING))
    assert found.bindings == (
        Binding(0, 2, "result", "float", readonly=False, runtime_array=False),
        Binding(1, 3, "Header", "Header", readonly=False, runtime_array=True),
        Binding(1, 7, "table", "Pair", readonly=True, runtime_array=True),
    )
    assert found.push_members == (
        PushMember("first", 0, "uint"),
        PushMember("middle", 16, "vec3"),
        PushMember("last", 32, "ivec2"),
        PushMember("line", 40, "float[3]"),
    )
    assert found.push_bytes == 52 and found.local_size == (8, 4, 2)
    # row 132 bytes, point at 144, pairs of 16 bytes, done in 4; in the order of the module.
    assert found.shared_bytes == 132 + 12 + 12 + 4 + 3 * 16 + 4
    assert found.spirv_version == "1.3" and found.entry_point == "main"
    assert found.words == len(compiled(EVERYTHING)) // 4
    assert found.uses_subgroups and found.subgroup_features == ("BASIC", "ARITHMETIC")
    assert set(found.capabilities) == {"Shader", "GroupNonUniform", "GroupNonUniformArithmetic"}
    assert limits_needed(found) == {
        "maxComputeWorkGroupInvocations": 64,
        "maxComputeWorkGroupSize": [8, 4, 2],
        "maxComputeSharedMemorySize": found.shared_bytes,
        "maxPerStageDescriptorStorageBuffers": 3,
        "maxPushConstantsSize": 52,
        "subgroupSupportedOperations": ["VK_SUBGROUP_FEATURE_BASIC_BIT", "VK_SUBGROUP_FEATURE_ARITHMETIC_BIT"],
    }


def test_the_record_is_json():
    record = reflect(compiled(EVERYTHING)).record()
    assert json.loads(json.dumps(record)) == record
    assert record["bindings"][0] == {
        "set": 0, "binding": 2, "name": "result", "element": "float", "readonly": False, "runtime_array": False
    }  # fmt: skip
    assert record["push_constants"]["members"][1] == {"name": "middle", "offset": 16, "type": "vec3"}


def test_every_kernel_agrees_with_its_spec():
    for kernel, spirv in shown_kernels():
        spec, found = kernel.step.spec, reflect(spirv)
        dtypes = [*spec.inputs, *spec.outputs]
        names = [f"in{i}" for i in range(len(spec.inputs))] + [f"out{i}" for i in range(len(spec.outputs))]
        assert found.bindings == tuple(
            Binding(0, i, name, dtype.storage, readonly=name.startswith("in"), runtime_array=True)
            for i, (name, dtype) in enumerate(zip(names, dtypes, strict=True))
        )
        words = [*(f"base_{name}" for name in names), *spec.size_names]
        assert found.push_members == tuple(PushMember(name, 4 * i, "uint") for i, name in enumerate(words))
        assert found.push_bytes == 4 * len(words)
        schedule = spec.schedules(Target(software=False))[0]
        assert found.local_size == (*spec.context(schedule)["local_size"][:2], 1)
        assert found.shared_bytes <= Target(software=False).shared_bytes
        assert found.capabilities == ("Shader",) and not found.uses_subgroups


def test_shared_memory_of_a_kernel():
    (softmax,) = show.kernels(show.example("softmax").outputs((4, 256)))
    words = [int(n) for n in re.findall(r"^shared (?:float|int|uint) \w+\[(\d+)\];", softmax.request.glsl, re.M)]
    assert words and reflect(softmax.spirv()).shared_bytes == 4 * sum(words)


def test_what_is_older_than_spirv_1_3_and_a_local_size_by_ids():
    """A BufferBlock of the class Uniform, LocalSizeId, names left out."""
    module = [
        MAGIC, 0x00010200, 0, 20, 0,
        (2 << 16) | 17, 1,  # OpCapability Shader
        (2 << 16) | 17, 9999,
        (5 << 16) | 15, 5, 1, 0x6E69616D, 0,  # OpEntryPoint GLCompute %1 "main"
        (6 << 16) | 331, 1, 38, 7, 8, 8,  # OpExecutionModeId %1 LocalSizeId %7 %8 %8
        (3 << 16) | 71, 11, 3,  # OpDecorate %11 BufferBlock
        (4 << 16) | 71, 13, 33, 2,  # OpDecorate %13 Binding 2
        (3 << 16) | 71, 13, 24,  # OpDecorate %13 NonWritable
        (2 << 16) | 19, 2,  # %2 = OpTypeVoid
        (3 << 16) | 33, 3, 2,  # %3 = OpTypeFunction %2
        (4 << 16) | 21, 4, 32, 0,  # %4 = OpTypeInt 32 0
        (4 << 16) | 43, 4, 7, 16,  # %7 = OpConstant %4 16
        (4 << 16) | 43, 4, 8, 1,
        (3 << 16) | 29, 10, 4,  # %10 = OpTypeRuntimeArray %4
        (3 << 16) | 30, 11, 10,  # %11 = OpTypeStruct %10
        (4 << 16) | 32, 12, 2, 11,  # %12 = OpTypePointer Uniform %11
        (4 << 16) | 59, 12, 13, 2,  # %13 = OpVariable %12 Uniform
        (5 << 16) | 54, 2, 1, 0, 3,
        (2 << 16) | 248, 14,
        (1 << 16) | 253,
        (1 << 16) | 56,
    ]  # fmt: skip
    found = reflect(np.array(module, "<u4").tobytes())
    assert found.bindings == (Binding(0, 2, "struct_11", "uint", readonly=True, runtime_array=True),)
    assert found.local_size == (16, 1, 1) and found.push_members == () and found.push_bytes == 0
    assert found.spirv_version == "1.2" and found.capabilities == ("Shader", "Capability9999")


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("layout(binding = 1) uniform Sizes { uint n; };", "binding 1 is no storage buffer"),
        ("layout(binding = 1) buffer Many { float n; } many[2];", r"binding 1, variable .* is Many\[2\], expected"),
        ("layout(binding = 1, r32f) uniform image2D n;", "binding 1.* expected a block"),
    ],
)
def test_what_no_kernel_has_is_refused(declaration, message):
    use = {"u": "n", "b": "many[1].n", "r": "imageLoad(n, ivec2(0)).x"}
    read = use["b" if "many" in declaration else "r" if "image" in declaration else "u"]
    glsl = PLAIN.replace("void main", declaration + "\nvoid main").replace("1.0", f"float({read})")
    with pytest.raises(CompileError, match=message):
        reflect(compiled(glsl))


@pytest.mark.parametrize(
    ("access", "wide", "message"),
    [
        ("readonly ", "vec4", None),
        ("", "vec4", "declared twice, as float .only read. and as vec4;"),
        ("readonly ", "uvec4", "declared twice, as float .only read. and as uvec4 .only read.;"),
    ],
)
def test_a_buffer_read_by_elements_and_by_vectors_is_one_binding(access, wide, message):
    declarations = "".join(
        f"layout(std430, binding = 1) {rights}buffer B{name} {{ {element} {name}[]; }};\n"
        for rights, element, name in ((access, wide, "wide"), ("readonly ", "float", "narrow"))
    )
    glsl = PLAIN.replace("void main", declarations + "void main").replace("1.0", "narrow[5] + float(wide[1].x)")
    if message:
        with pytest.raises(CompileError, match=message):
            reflect(compiled(glsl))
    else:
        found = reflect(compiled(glsl))
        assert found.bindings[1] == Binding(0, 1, "narrow", "float", readonly=True, runtime_array=True)
        assert len(found.bindings) == limits_needed(found)["maxPerStageDescriptorStorageBuffers"] == 2


HEADER = [MAGIC, 0x00010300, 0, 20, 0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "has 0 words"),
        ([0x03022307, 0, 0, 1, 0], "magic number"),
        (HEADER, "ends with opcode 0, expected the end of a function"),
        ([*HEADER, (1 << 16) | 56], "has 0 entry points"),
        ([*HEADER, (5 << 16) | 15, 4, 1, 0, 0], "execution model 4, expected 5"),
        ([*HEADER, (4 << 16) | 15, 5, 1, 0x6E69616D], "has no end"),
        ([*HEADER, (3 << 16) | 29, 2, 2], "type %2, which is not defined before it"),
        ([*HEADER, (3 << 16) | 22, 2, 24], "has 24 bits"),
        ([*HEADER, (3 << 16) | 22, 2, 32, (4 << 16) | 23, 3, 2, 5], "is 5 of float"),
        ([*HEADER, (3 << 16) | 22, 2, 32, (4 << 16) | 24, 3, 2, 2], "is 2 of float, expected 2 to 4 vectors"),
        ([*HEADER, (3 << 16) | 22, 2, 32, (4 << 16) | 28, 3, 2, 9], "length that is no constant"),
        ([*HEADER, (2 << 16) | 73, 2], "decoration groups"),
        ([*HEADER, (2 << 16) | 71, 2], "expected at least 3"),
        ([*HEADER, (2 << 16) | 20, 2, *(w for i in range(2, 40) for w in ((3 << 16) | 29, i + 1, i))], "17 deep"),
    ],
)  # fmt: skip
def test_malformed_modules_are_refused(words, message):
    with pytest.raises(CompileError, match=message):
        reflect(np.array(words, "<u4").tobytes())


def test_bytes_that_are_no_words():
    with pytest.raises(CompileError, match=f"has {len(compiled(PLAIN)) - 1} bytes, expected a multiple of 4"):
        reflect(compiled(PLAIN)[:-1])


@pytest.mark.parametrize("glsl", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_every_truncation_is_noticed(glsl):
    whole = compiled(glsl)
    last = max(start for _, start, _ in instructions(np.frombuffer(whole, "<u4").tolist()))
    for length in range(0, 4 * last + 1, 4):
        try:
            found = reflect(whole[:length])
        except CompileError:
            continue
        # Ends just behind another function of the module: the declarations are whole.
        assert isinstance(found, Reflection) and length > 4 * 5


@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_damaged_words_give_an_answer_or_a_compile_error(data):
    """Never another exception, never a hang."""
    words = np.frombuffer(compiled(EVERYTHING), "<u4").copy()
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(words) - 1))
        kind = data.draw(st.sampled_from(["bit", "small", "any", "swap"]))
        if kind == "bit":
            words[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
        elif kind == "small":
            words[place] = data.draw(st.integers(0, 80))
        elif kind == "any":
            words[place] = data.draw(st.integers(0, 2**32 - 1))
        else:
            words[place] = words[data.draw(st.integers(0, len(words) - 1))]
    keep = data.draw(st.sampled_from([len(words), data.draw(st.integers(0, len(words)))]))
    try:
        found = reflect(words[:keep].tobytes())
    except CompileError:
        return
    json.dumps([found.record(), limits_needed(found)])
