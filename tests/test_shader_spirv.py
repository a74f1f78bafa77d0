"""The NoContraction pass over SPIR-V: it decorates every float operation and refuses damaged modules."""

import shutil
import subprocess

import numpy as np
import pytest

from vkdnn.errors import CompileError
from vkdnn.shader.compiler import FLAGS, Compiler
from vkdnn.shader.spirv import FLOAT_OPS, MAGIC, decorate_no_contraction, is_whole, undecorated_float_ops

ALL_OPERATIONS = """#version 450
layout(local_size_x = 1) in;
layout(binding = 0) buffer Data { float data[]; };
void main() {
    float a = data[0], b = data[1];
    vec3 v = vec3(a, b, data[2]);
    mat3 m = outerProduct(v, v) * a;
    data[3] = a + b; data[4] = a - b; data[5] = a * b; data[6] = a / b; data[7] = -a; data[8] = mod(a, b);
    data[9] = (v * b).x; data[10] = dot(v, v); data[11] = (m * v).x; data[12] = (v * m).x;
    data[13] = (m * m)[0][0];
}
"""


def raw_words(glsl, folder):
    """What the compiler says before the pass."""
    source, binary = folder / "raw.comp", folder / "raw.spv"
    source.write_text(glsl)
    subprocess.run([Compiler.find().path, *FLAGS, source, "-o", binary], check=True, capture_output=True)
    return np.frombuffer(binary.read_bytes(), "<u4").tolist()


def test_every_float_operation_is_decorated_once(tmp_path):
    words = raw_words(ALL_OPERATIONS, tmp_path)
    before = undecorated_float_ops(words)
    assert {op.name for op in before} >= {
        "OpFAdd", "OpFSub", "OpFMul", "OpFDiv", "OpFNegate", "OpVectorTimesScalar", "OpDot", "OpOuterProduct",
        "OpMatrixTimesScalar", "OpMatrixTimesVector", "OpVectorTimesMatrix", "OpMatrixTimesMatrix",
    }  # fmt: skip
    decorated = decorate_no_contraction(words)
    assert undecorated_float_ops(decorated) == []
    assert len(decorated) == len(words) + 3 * len(before)
    assert decorate_no_contraction(decorated) == decorated


def test_what_is_precise_already_is_left_alone(tmp_path):
    glsl = """#version 450
layout(binding = 0) buffer Data { float data[]; };
void main() { precise float kept = data[0] * data[1]; data[2] = kept; }
"""
    words = raw_words(glsl, tmp_path)
    assert undecorated_float_ops(words) == []
    assert decorate_no_contraction(words) == words


def test_nothing_else_of_the_module_changes(tmp_path):
    words = raw_words(ALL_OPERATIONS, tmp_path)
    count = 3 * len(undecorated_float_ops(words))
    decorated = decorate_no_contraction(words)
    place = next(i for i, (old, new) in enumerate(zip(words, decorated, strict=False)) if old != new)
    assert decorated[:place] + decorated[place + count :] == words


@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="spirv-val is not installed")
def test_the_result_is_valid_spirv(tmp_path):
    decorated = decorate_no_contraction(raw_words(ALL_OPERATIONS, tmp_path))
    binary = tmp_path / "decorated.spv"
    binary.write_bytes(np.array(decorated, "<u4").tobytes())
    done = subprocess.run(
        ["spirv-val", "--target-env", "vulkan1.1", binary], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_decoration_group_counts():
    module = [
        MAGIC, 0x00010300, 0, 20, 0,
        (3 << 16) | 71, 9, 42,  # OpDecorate %9 NoContraction
        (2 << 16) | 73, 9,  # %9 = OpDecorationGroup
        (3 << 16) | 74, 9, 5,  # OpGroupDecorate %9 %5
        (5 << 16) | 129, 1, 5, 2, 3,  # %5 = OpFAdd %1 %2 %3
        (5 << 16) | 133, 1, 6, 2, 3,  # %6 = OpFMul %1 %2 %3
    ]  # fmt: skip
    assert [(op.name, op.result_id) for op in undecorated_float_ops(module)] == [("OpFMul", 6)]


def test_fma_is_refused(tmp_path):
    glsl = """#version 450
layout(binding = 0) buffer Data { float data[]; };
void main() { data[0] = fma(data[1], data[2], data[3]); }
"""
    with pytest.raises(CompileError, match=r"fma\(\).*write a \* b \+ c"):
        decorate_no_contraction(raw_words(glsl, tmp_path))


def test_fma_may_stand_in_fused_alone(tmp_path):
    glsl = """#version 450
layout(binding = 0) buffer Data { float data[]; };
float %s(float a, float b, float c) { return fma(a, b, c); }
void main() { data[0] = %s(data[1], data[2], data[3]); }
"""
    assert undecorated_float_ops(raw_words(glsl.replace("%s", "fused"), tmp_path)) == []
    with pytest.raises(CompileError, match=r"fma\(\)"):
        undecorated_float_ops(raw_words(glsl.replace("%s", "another"), tmp_path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "has 0 words"),
        ([MAGIC, 0, 0], "has 3 words"),
        ([0x03022307, 0, 0, 1, 0], "0x03022307, expected the magic number"),
        ([MAGIC, 0, 0, 1, 0, 0], "says it has 0 words"),
        ([MAGIC, 0, 0, 1, 0, (3 << 16) | 71, 4], "truncated"),
        ([MAGIC, 0, 0, 1, 0, (2 << 16) | 129, 4], "expected at least 3"),
    ],
)
def test_malformed_modules_are_refused(words, message):
    with pytest.raises(CompileError, match=message):
        decorate_no_contraction(words)


def test_table_names_the_contractible_operations():
    assert FLOAT_OPS[129] == "OpFAdd" and FLOAT_OPS[133] == "OpFMul" and FLOAT_OPS[127] == "OpFNegate"


def test_a_module_that_is_cut_anywhere_is_not_whole(tmp_path):
    """Between two functions, too: the entry point calls what is missing."""
    glsl = ALL_OPERATIONS.replace("void main", "float f(float x) { return x + 1.0; }\nvoid main").replace(
        "a + b", "f(b)"
    )
    spirv = np.array(raw_words(glsl, tmp_path), "<u4").tobytes()
    assert is_whole(spirv)
    assert not any(is_whole(spirv[:cut]) for cut in range(len(spirv)))
    assert not is_whole(b"\0" * 40)
