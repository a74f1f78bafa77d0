"""shaders/numerics.glsl and the elementary functions on a device, bit for bit against NumPy, in every strategy."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vkdnn.check.hard import HARD_FLOATS, HARD_INTS, bits_equal, random_bits
from vkdnn.codegen import resources
from vkdnn.codegen.glsl import functions
from vkdnn.ir.define import evaluate
from vkdnn.ir.ops import OPS
from vkdnn.numerics import basic
from vkdnn.numerics.flush import HARDWARE_FLUSH, exact, flush
from vkdnn.runtime import Launch, Region, open_device
from vkdnn.shader import ShaderRequest, compile_many

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SOFTWARE = "#define VKDNN_SUBNORMALS_SOFTWARE\n"
REMAINDER = "#define VKDNN_DIVIDE_REMAINDER\n#define VKDNN_SQRT_REMAINDER\n"
FMA = "#define VKDNN_DIVIDE_FMA\n#define VKDNN_SQRT_FMA\n"
VARIANTS = {
    "native": "", "remainder": REMAINDER, "fma": FMA,
    "software": SOFTWARE, "both": SOFTWARE + REMAINDER, "software, fma": SOFTWARE + FMA,
}  # fmt: skip

# A fused multiply and add for devices without: the sum in 53 bits, rounded to odd, rounds to 24 as if once.
FUSED = "float fused(float a, float b, float c) { return fma(a, b, c); }"
FUSED_IN_DOUBLE = """float fused(float a, float b, float c) {
    double product = double(a) * double(b), more = double(c), total = product + more, seen = total - product;
    double error = (product - (total - seen)) + (more - seen);
    uvec2 bits = unpackDouble2x32(total);
    if (error != 0.0 && (bits.x & 1u) == 0u) {
        bool outward = (error > 0.0) == (total > 0.0);
        bits.y -= !outward && bits.x == 0u ? 1u : 0u;
        bits.x += outward ? 1u : 0xffffffffu;
    }
    return veiled(float(packDouble2x32(bits)));  // veiled: double(float(x)) would become x
}"""

DEFINED = sorted(name for name, op in OPS.items() if op.define is not None and op.types[0] == "f")

# GLSL expression over floats a and b, and its twin.
TWINS = {
    "add(a, b)": basic.add,
    "sub(a, b)": basic.sub,
    "mul(a, b)": basic.mul,
    "divide(a, b)": basic.div,
    "square_root(a)": lambda a, b: basic.sqrt(a),
    "negate(a)": lambda a, b: basic.neg(a),
    "absolute(a)": lambda a, b: basic.abs(a),
    "maximum(a, b)": basic.maximum,
    "minimum(a, b)": basic.minimum,
    "floor_(a)": lambda a, b: basic.floor(a),
    "ceil_(a)": lambda a, b: basic.ceil(a),
    "trunc_(a)": lambda a, b: basic.trunc(a),
    "round_even(a)": lambda a, b: basic.round_even(a),
    "to_float(bits_to_int(a))": lambda a, b: basic.to_float32(basic.bits_int32(a)),
    "to_float(bits_to_uint(a))": lambda a, b: basic.to_float32(basic.bits_uint32(a)),
    "to_float(a < b)": lambda a, b: basic.to_float32(basic.less(a, b)),
    "to_float(a <= b)": lambda a, b: basic.to_float32(basic.less_equal(a, b)),
    "to_float(a == b)": lambda a, b: basic.to_float32(basic.equal(a, b)),
    "to_float(a != b)": lambda a, b: basic.to_float32(basic.not_equal(a, b)),
    "to_float(to_bool(a))": lambda a, b: basic.to_float32(basic.to_bool(a)),
    "of_order(max(order_of(a), order_of(b)))": basic.maximum,
    "negate(of_order(max(order_of_negative(a), order_of_negative(b))))": basic.minimum,
    "to_float(is_less(a, b))": lambda a, b: basic.to_float32(basic.less(a, b)),
    "to_float(is_less_equal(a, b))": lambda a, b: basic.to_float32(basic.less_equal(a, b)),
    "to_float(is_equal(a, b))": lambda a, b: basic.to_float32(basic.equal(a, b)),
    "to_int(a)": lambda a, b: basic.to_int32(a),
    "to_uint(a)": lambda a, b: basic.to_uint32(a),
    "bits_to_float(bits_to_uint(a) - bits_to_uint(b))": lambda a, b: basic.bits_float32(
        basic.bits_uint32(a) - basic.bits_uint32(b)
    ),
    "uint(is_nan(a)) + 2u * uint(is_inf(a)) + 4u * uint(is_finite(a))": lambda a, b: (
        basic.is_nan(a) + 2 * basic.is_inf(a) + 4 * basic.is_finite(a)
    ).astype(np.uint32),
}


def numerics():
    """The library, its fma() in terms of double on llvmpipe, whose own is not fused."""
    text = resources.read("shaders", "numerics.glsl")
    assert FUSED in text
    return text.replace(FUSED, FUSED_IN_DOUBLE) if open_device().info.driver == "llvmpipe" else text


def run(expressions, a, b, defines, library=""):
    """Words of each GLSL expression over a and b, one row an expression."""
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    stores = "\n".join(f"        result[i + {k}u * count] = bits_to_uint({e});" for k, e in enumerate(expressions))
    source = f"""#version 450
{defines}layout(local_size_x = 64) in;
layout(push_constant) uniform Sizes {{ uint count; }};
layout(std430, binding = 0) readonly buffer InputA {{ uint in_a[]; }};
layout(std430, binding = 1) readonly buffer InputB {{ uint in_b[]; }};
layout(std430, binding = 2) writeonly buffer Output {{ uint result[]; }};
#define ZERO_BITS (count >> 31u)
{numerics()}
{library}
void main() {{
    for (uint i = gl_GlobalInvocationID.x; i < count; i += gl_NumWorkGroups.x * 64u) {{
        float a = uintBitsToFloat(in_a[i]), b = uintBitsToFloat(in_b[i]);
{stores}
    }}
}}
"""
    device = open_device()
    (spirv,) = compile_many([ShaderRequest.of_glsl(source, "numerics test", defines, "numerics test")])
    buffers = [device.allocate(n, host=True) for n in (a.size, b.size, a.size * len(expressions))]
    whole = [Region.whole(buffer) for buffer in buffers]
    launch = Launch(spirv, "numerics test", tuple(buffers), (a.size,), (64, 1, 1), tuple(whole[:2]), tuple(whole[2:]))
    recording = device.record([launch], uploads=buffers[:2], downloads=buffers[2:])
    recording.stage(buffers[0], a)
    recording.stage(buffers[1], b)
    recording.run()
    return recording.fetch(buffers[2]).reshape(len(expressions), a.size)


def operands():
    """Flushed: all pairs of hard values, random bits, and products and quotients at the border of flushing."""
    a, b = (m.ravel() for m in np.meshgrid(HARD_FLOATS, HARD_FLOATS))
    rng = np.random.default_rng(8)
    n = 1 << 15
    border = 2.0**-126 * (1 - rng.uniform(-1, 3, n) * 2.0**-24)
    factor = rng.uniform(1, 2, n).astype(np.float32) * np.float32(2.0**-60)
    divisor = rng.uniform(1, 2, n).astype(np.float32) * np.float32(2.0**40)
    near_one = rng.uniform(1, 2, (2, n)).astype(np.float32)
    near_two = np.float32(2) - rng.integers(1, 64, n).astype(np.float32) * np.float32(2.0**-23)
    beside = (rng.integers(2**24, 2**25, n) | 1) * 2.0**-24 * near_two  # over near_two: next to a tie
    ints = HARD_INTS.view(np.float32)
    return tuple(
        flush(np.concatenate(parts).astype(np.float32))
        for parts in (
            [a, random_bits(n, 1), factor, border * divisor, near_one[0], beside, ints],
            [b, random_bits(n, 2), border / factor, divisor, near_one[1], near_two, ints[::-1]],
        )
    )


def usable(defines):
    """Whether the device may run a variant: a native form is only right where the device's own is."""
    device = open_device()
    if FMA in defines:  # a device that needs no software has native forms whether it fuses or not
        forms = device.info.driver == "llvmpipe" or device.strategies.division == "fma"
    else:
        forms = REMAINDER in defines or device.strategies.division == device.strategies.square_root == "native"
    return forms and (device.strategies.subnormals == "native" or SOFTWARE in defines)


def assert_twins(expressions, words, truths, inputs):
    for expression, row, truth in zip(expressions, words, truths, strict=True):
        wrong = ~bits_equal(row.view(truth.dtype), truth)
        shown = [x[wrong][:3] for x in (*inputs, row.view(truth.dtype), truth)]
        assert not wrong.any(), f"{expression}: {np.count_nonzero(wrong)} differ: {shown}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_operations_have_the_bits_of_numpy(variant):
    if not usable(VARIANTS[variant]):
        pytest.skip(f"the device's strategies are {open_device().strategies.text}")
    a, b = operands()
    with exact():
        truths = [twin(a, b) for twin in TWINS.values()]
    assert_twins(TWINS, run(list(TWINS), a, b, VARIANTS[variant]), truths, (a, b))


# The two ends are enough here: the definitions see no strategy, only the operations tested above do.
@pytest.mark.parametrize("variant", ["native", "fma", "both"])
def test_elementary_functions_have_the_bits_of_numpy(variant):
    if not usable(VARIANTS[variant]) or (variant == "fma" and open_device().strategies.division != "fma"):
        pytest.skip(f"the device's strategies are {open_device().strategies.text}")
    rng = np.random.default_rng(9)
    spread = [rng.uniform(-limit, limit, 4000) for limit in (1.2, 15, 100)]
    a = flush(np.concatenate([HARD_FLOATS, random_bits(20000, 3), *spread]).astype(np.float32))
    b = flush(np.random.default_rng(10).permutation(a))
    # A shader each: SwiftShader's compiler takes minutes over all of them in one.
    for name in DEFINED:
        call = f"{OPS[name].function}({'a, b'[: 3 * OPS[name].arity - 2]})"
        with exact():
            truth = evaluate(name, *(a, b)[: OPS[name].arity])
        words = run([call], a, b, VARIANTS[variant], "\n\n".join(functions([name])))
        assert_twins([call], words, [truth], (a, b))


def run_again(**environment):
    """This file once more, in a process of its own with another environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "VKDNN_STRATEGIES"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", "have_the_bits"]
    done = subprocess.run(
        [*command, str(Path(__file__))],
        cwd=Path(__file__).parent.parent, env={**inherited, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not HARDWARE_FLUSH, reason="the device opened without hardware flush already")
def test_the_same_on_a_device_opened_without_hardware_flush():
    assert " passed" in run_again(VKDNN_REFERENCE_FLUSH="software")


ICD = os.environ.get("VKDNN_SWIFTSHADER_ICD", "")


@pytest.mark.skipif(not Path(ICD).is_file(), reason="VKDNN_SWIFTSHADER_ICD names no driver")
def test_the_same_on_swiftshader():
    assert "6 passed" in run_again(VK_DRIVER_FILES=ICD, VKDNN_DEVICE="SwiftShader")
