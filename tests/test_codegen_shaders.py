"""What is rendered: golden GLSL of each family, valid SPIR-V with NoContraction, a list of kernel keys."""

import hashlib
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import tree
from vkdnn.check.hard import HARD_FLOATS, random_bits
from vkdnn.check.library import OPERATORS
from vkdnn.codegen import glsl, resources
from vkdnn.codegen.render import render
from vkdnn.dtypes import bfloat16, bool_, float16, float32, int32, uint32
from vkdnn.fusion.schedule import schedule
from vkdnn.fusion.spans import cut_long
from vkdnn.ir.body import Affine
from vkdnn.ir.node import leaf
from vkdnn.ir.ops import OPS
from vkdnn.kernels.attention_blocks import SplitSchedule
from vkdnn.kernels.base import Target
from vkdnn.kernels.matmul_schedules import ThinSchedule, TileSchedule
from vkdnn.numerics.flush import flush
from vkdnn.shader import ShaderRequest, compile_many
from vkdnn.shader.spirv import undecorated_float_ops
from vkdnn.shader.verify import spirv_val

TARGETS = (
    Target(software=True),
    Target(software=False, max_invocations=1024, shared_bytes=49152),
    Target(software=True, subgroup_size=8),
)
SOFTWARE = ("VKDNN_DIVIDE_REMAINDER", "VKDNN_SQRT_REMAINDER", "VKDNN_SUBNORMALS_SOFTWARE")


def argument(*shape, dtype=float32):
    return vk.Array(leaf(shape, dtype))


def cumulations():
    x = argument(3, 300)
    first = vk.linear_recurrence(argument(2, 17000), argument(2, 17000))
    return [vk.cumsum(x, axis=1), vk.cumprod(x), vk.cummax(argument(130, 4, dtype=int32), axis=0), first]


def gathered_gradient():
    index = argument(6, 9, dtype=int32)
    pull = vk.vjp(lambda x: vk.take_along_axis(x, index, 1), X)[1]
    counts = vk.scatter_add(argument(5, dtype=uint32), argument(9, dtype=int32), 1)
    return [pull(argument(6, 9))[0], vk.scatter_add(X, argument(4, dtype=uint32), argument(4, 200)), counts]


def embedding_gradient():
    table, index = argument(50, 8), argument(40, dtype=int32)
    return [vk.vjp(lambda t: vk.take(t, index), table)[1](argument(40, 8))[0]]


def attention_gradients():
    """All that can happen to a pair, and gradients also of what a mod captures."""
    q, k, v, table = argument(2, 9, 4, 20), argument(2, 13, 2, 20), argument(2, 13, 2, 6), argument(4, 21)

    def attend(q, k, v, table):
        return vk.attention(
            q, k, v, window=(5, 0), softcap=20.0, sinks=argument(4), dropout_p=0.1, dropout_seed=3, return_lse=True,
            score_mod=lambda s, b, h, q, k: s + vk.take(table, h * 21 + (q - k + 12), axis=None),
        )  # fmt: skip

    results, pull = vk.vjp(attend, q, k, v, table)
    return [*results, *pull((argument(2, 9, 4, 6), argument(2, 4, 9)))]


def causal_attention():
    arrays = [argument(1, 9, 4, 20), argument(1, 13, 2, 20), argument(1, 13, 2, 6), argument(4, 1, 13)]
    result, pull = vk.vjp(lambda q, k, v, bias: vk.attention(q, k, v, causal=True, bias=bias), *arrays)
    return [result, *pull(argument(1, 9, 4, 6))]


def packed_attention():
    rows = [argument(30, 2, 160), argument(40, 1, 160), argument(40, 1, 300)]
    bounds = {"cu_seqlens_q": argument(4, dtype=int32), "cu_seqlens_k": argument(4, dtype=int32)}
    result, pull = vk.vjp(lambda *x: vk.attention(*x, causal=True, layout="THD", **bounds), *rows)
    return [result, *pull(argument(30, 2, 300))]


def decoding():
    q, k, v, position = argument(1, 1, 4, 64), argument(1, 2048, 2, 64), argument(1, 2048, 2, 64), argument(dtype=int32)
    return [vk.attention(q, k, v, mask_mod=lambda b, h, q, k: k <= position)]


ALLOWED = {"f": "f", "i": "iu", "u": "u", "n": "fiu", "x": "iub", "b": "b", "a": "fiub"}
KINDS = {"f": float32, "i": int32, "u": uint32, "b": bool_}


def every_row():
    """For each dtype category, each row of the op table that takes it; neighbours share a kernel."""
    for category, dtype in KINDS.items():
        operands, flags = (
            [vk.stop_gradient(argument(64, dtype=dtype)) for _ in range(6)],
            argument(64, dtype=bool_),
        )
        for op in OPS.values():
            if category in ALLOWED[next((t for t in op.types[: op.arity] if t != "b"), "b")]:
                condition = [flags] if op.types[0] == "b" and op.arity == 3 else []
                yield operands[0]._map(op.name, *condition, *operands[: op.arity - len(condition)])


X, W, B = argument(6, 200), argument(200, 40), argument(40)
HALF = argument(6, 200, dtype=float16)

GRAPHS = {
    "expr": lambda: [vk.where(X > 0.0, vk.exp(X), 0.25) + vk.transpose(argument(200, 6))],
    "views": lambda: [vk.concatenate([X[:, ::-2], vk.pad(X[:, :50], [(0, 0), (50, 0)])], axis=1) * vk.arange(200)],
    "softmax": lambda: [vk.softmax(X * 2 + argument(200))],
    "norms": lambda: [vk.rms_norm(X, argument(200)), vk.layer_norm(X)],
    "sums": lambda: [
        vk.sum(X, axis=0),
        vk.sum(X, axis=1),
        vk.sum(X),
        vk.max(X),
        vk.min(X, axis=0),
        vk.mean(X),
    ],
    "long": lambda: [vk.sum(argument(70000)), vk.max(argument(3, 40000), axis=1)],
    "matmul": lambda: [vk.gelu(X @ W + B)],
    "product": lambda: [vk.relu(X @ W + B)],
    "heads": lambda: [
        vk.transpose(argument(2, 9, 3, 20), (0, 2, 1, 3)) @ vk.transpose(argument(2, 9, 3, 20), (0, 2, 3, 1))
    ],
    "thin": lambda: [argument(1, 300) @ argument(300, 2)],
    "take": lambda: [
        vk.take(argument(50, 8), argument(40, dtype=uint32)),
        argument(5, dtype=bool_) & argument(5, dtype=bool_),
    ],
    "halves": lambda: [HALF * 2 + vk.transpose(argument(200, 6, dtype=bfloat16)), vk.gelu(HALF)],
    "half_softmax": lambda: [vk.softmax(HALF)],
    "positions": lambda: [vk.argmax(X, axis=1), vk.sum(argument(6, 200, dtype=int32), axis=1)],
    "tuples": lambda: [vk.logsumexp(X, one_pass=True), *vk.moments(argument(6, 200), axis=1)],
    "scatter": embedding_gradient,
    "gathered": gathered_gradient,
    "cumulate": cumulations,
    "sort": lambda: [*vk.top_k(argument(5, 100), 40), vk.argsort(argument(70, dtype=uint32))],
    "attention": attention_gradients,
    "packed attention": packed_attention,
    "decoding": decoding,
    "gradients": lambda: list(vk.grad(lambda x, w: vk.sum(vk.silu(vk.rms_norm(x) @ w)), (0, 1))(X, W)),
}


def specs(name):
    return specs_of(GRAPHS[name]())


def specs_of(results):
    return [step.spec for step in schedule(cut_long([r.node for r in results]))]


def rendered(name):
    """(spec, schedule, strategies, GLSL) of every variant of a graph's kernels."""
    for spec in specs(name):
        schedules = {s for target in TARGETS for s in spec.schedules(target)}
        for one in sorted(schedules, key=repr):
            yield spec, one, (), render(spec, one, ())
        first = spec.schedules(TARGETS[0])[0]
        yield spec, first, SOFTWARE, render(spec, first, SOFTWARE)


def without_library(text):
    """A shader's own part: the include is one file, tested by itself."""
    library = resources.read("shaders", "numerics.glsl")
    assert library.strip() in text
    return text.replace(library.strip(), "// numerics.glsl")


# ---- golden files


def test_a_kernel_is_rendered_as_recorded(golden):
    (spec,) = specs("expr")
    golden("expr.comp", without_library(render(spec, spec.schedules(TARGETS[0])[0], ())))


@pytest.mark.parametrize(
    ("graph", "target", "place", "name"),
    [
        ("softmax", 0, 0, "fold_by_invocation"),
        ("softmax", 1, 0, "fold_holding"),
        ("softmax", 1, 1, "fold_by_workgroup"),
        ("product", 0, 0, "matmul_direct"),
        ("views", 0, 0, "expr_views"),
        ("views", 1, 0, "expr_several"),
    ],
)
def test_each_family_is_rendered_as_recorded(golden, graph, target, place, name):
    (spec,) = specs(graph)
    golden(f"{name}.comp", without_library(render(spec, spec.schedules(TARGETS[target])[place], ())))


def test_forms_of_a_product_are_rendered_as_recorded(golden):
    (spec,) = specs("product")
    forms = {
        "staged": TileSchedule(4, 4, (8, 4), 8),
        "sliced": TileSchedule(4, 4, (8, 4), 8, unroll=2, slices=2),
        "thin": ThinSchedule(2, 4, 8, 4, 8, 4),
    }
    for name, chosen in forms.items():
        golden(f"matmul_{name}.comp", without_library(render(spec, chosen, ())))


def test_halves_and_integer_folds_are_rendered_as_recorded(golden):
    spec = specs("halves")[-1]
    golden("expr_halves.comp", without_library(render(spec, spec.schedules(TARGETS[0])[0], ())))
    spec = specs("positions")[0]
    golden("fold_positions.comp", without_library(render(spec, spec.schedules(TARGETS[1])[0], ())))


def test_folds_of_tuples_are_rendered_as_recorded(golden):
    for spec in specs("tuples"):
        ((name, _),) = spec.folds
        golden(f"fold_{name}.comp", without_library(render(spec, spec.schedules(TARGETS[0])[0], ())))


def test_scatter_stages_are_rendered_as_recorded(golden):
    for spec in specs("scatter"):
        golden(f"scatter_{spec.stage}.comp", without_library(render(spec, spec.schedules(TARGETS[1])[0], ())))


def test_the_stages_of_other_ways_are_rendered_as_recorded(golden):
    named = {f"scatter_{spec.stage}_rows": spec for spec in specs("gathered") if "batches" in spec.text()}
    named |= {f"sort_{spec.stage}": spec for spec in specs("sort") if spec.template == "sort.comp.j2"}
    cumulated = [spec for spec in specs("cumulate") if spec.form in ("add", "recurrence")]
    named |= {f"cumulate_{spec.form}_{spec.stage}": spec for spec in cumulated}
    assert len(named) == 8
    for name, spec in named.items():
        golden(f"{name}.comp", without_library(render(spec, spec.schedules(TARGETS[0])[0], ())))


def test_kernels_of_attention_are_rendered_as_recorded(golden):
    found = {spec.role: spec for spec in specs_of(causal_attention()) + specs("decoding") if hasattr(spec, "role")}
    assert sorted(found) == ["forward", "keys", "merge", "pairs", "queries", "split"]
    for role, spec in found.items():
        for kind, chosen in {form_of(s): s for s in reversed(spec.schedules(TARGETS[1])) if is_small(s)}.items():
            golden(f"attention_{role}{kind}.comp", without_library(render(spec, chosen, ())))


def test_a_defined_function_is_printed_as_recorded(golden):
    golden("silu.glsl", "\n\n".join(glsl.functions(["silu"])) + "\n")


def test_specs_are_printed_as_recorded(golden):
    golden(
        "specs.txt",
        "\n".join(spec.text() for name in ("softmax", "product", "views") for spec in specs(name)),
    )


def test_kernel_keys_are_as_recorded(golden):
    """A refactor changes no shader; a change of this list is deliberate and says why."""
    library = resources.read("shaders", "numerics.glsl")
    lines = [f"{hashlib.sha256(library.encode()).hexdigest()} numerics.glsl"]
    for name in GRAPHS:
        for spec, one, defines, text in rendered(name):
            label = spec.text().split("\n", 1)[0].strip()
            digest = hashlib.sha256(without_library(text).encode()).hexdigest()
            lines.append(f"{digest} {name}: {label} | {one} | {'software' if defines else 'native'}")
    golden("kernels.txt", "\n".join(lines) + "\n")


# ---- SPIR-V


def form_of(chosen):
    """Which template of its role a schedule of attention takes."""
    return "_tiles" if getattr(chosen, "tiled", False) else "_blocks" if isinstance(chosen, SplitSchedule) else ""


def is_small(chosen):
    """Larger tiles of attention hold the same instructions more often."""
    return not getattr(chosen, "tiled", False) or chosen.lanes == 64


def registered():
    """(operation, spec) of each kernel of each operation, layer and model of the checks, but for rows: every_row()."""
    found = {}
    with vk.device("cpu"):
        for name, operator in OPERATORS.items():
            if operator.group != "rows":
                case = operator.case()
                results = tree.flatten(case.run(*(vk.array(a) for a in case.arrays())))[0]
                found |= {spec: name for spec in specs_of([r for r in results if isinstance(r, vk.Array)])}
    return [(name, spec) for spec, name in found.items()]


@cache
def all_shaders():
    """Every schedule of GRAPHS with the native forms, every row and every registered kernel with those in software."""
    texts = {text: name for name in GRAPHS for _, one, d, text in rendered(name) if is_small(one) and not d}
    results = [r.node for r in every_row()]
    rows = [("row", step.spec) for k in range(0, len(results), 8) for step in schedule(results[k : k + 8])]
    portable = [*rows, *registered()]
    texts |= {render(spec, spec.schedules(TARGETS[0])[0], SOFTWARE): name for name, spec in portable}
    requests = [ShaderRequest.of_glsl(text, text, "test", label) for text, label in texts.items()]
    return requests, compile_many(requests)


def test_every_float_instruction_has_no_contraction():
    requests, compiled = all_shaders()
    assert len(requests) > 500
    for request, spirv in zip(requests, compiled, strict=True):
        assert undecorated_float_ops(np.frombuffer(spirv, "<u4").tolist()) == [], request.label


@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="spirv-val is not installed")
def test_all_shaders_are_valid():
    requests, compiled = all_shaders()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        troubles = dict(zip((r.label for r in requests), pool.map(spirv_val, compiled), strict=True))
    assert {label: trouble for label, trouble in troubles.items() if trouble} == {}


def test_no_shader_trusts_what_compilers_break():
    forbidden = re.compile(r"\b(fma|isnan|isinf|mix|dot|inversesqrt|mod|pow|exp|exp2|log|log2|sin|cos|tan|tanh)\s*\(")
    sources = [r.glsl for r in all_shaders()[0]]
    for folder, ending in (("templates", ".j2"), ("shaders", ".glsl")):
        sources += [p.read_text() for p in resources.folder(folder).iterdir() if p.name.endswith(ending)]
    for text in sources:
        # But for the estimate of a root, and the fma() of devices that fuse it.
        own = r"#if defined\(VKDNN_DIVIDE_FMA\).*?#endif|#ifdef VKDNN_SQRT_FMA.*?#elif"
        code = re.sub(rf"//[^\n]*|{own}", "", text, flags=re.S)
        assert forbidden.search(code) is None, forbidden.search(code)


def test_every_row_of_the_table_prints():
    assert len(list(every_row())) > len(OPS)


# ---- the printer


@pytest.mark.parametrize("op", ["less", "less_equal", "equal"])
@pytest.mark.parametrize("swapped", [False, True])
def test_comparisons_with_constants_are_ranges_of_bits(op, swapped):
    x = flush(np.concatenate([HARD_FLOATS, random_bits(2000, 3)]).astype(np.float32))
    bits = x.view(np.uint32).astype(np.int64)
    for constant in flush(HARD_FLOATS.astype(np.float32)):
        found = np.zeros(x.size, np.bool_)
        for low, high in glsl._ranges(op, int(constant.view(np.uint32)), swapped):
            found |= (bits >= low) & (bits <= high)
        with np.errstate(invalid="ignore"):
            want = getattr(np, op)(*((constant, x) if swapped else (x, constant)))
        assert np.array_equal(found, want), constant


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.0, float32, "1.0"),
        (0.1, float32, "0.1"),
        (1000015.0, float32, "1000015.0"),
        (1000025.0, float32, "1000025.0"),
        (np.inf, float32, "uintBitsToFloat(0x7f800000u)"),
        (-5, int32, "-5"),
        (-(2**31), int32, "int(0x80000000u)"),
        (7, uint32, "7u"),
        (2**32 - 1, uint32, "0xffffffffu"),
        (True, bool_, "true"),
    ],
)
def test_literals(value, dtype, text):
    bits = int(np.array(value, np.int64).astype(dtype.numpy).view(np.uint32)) if dtype.category in "iu" else None
    if bits is None:
        bits = int(value) if dtype is bool_ else int(np.float32(value).view(np.uint32))
    assert glsl.literal(bits, dtype) == text


def test_literals_read_back_as_the_same_bits():
    rng = np.random.default_rng(0)
    for bits in [*rng.integers(0, 2**32, 3000), *np.float32(rng.uniform(-1e8, 1e8, 2000)).view(np.uint32)]:
        text = glsl.literal(int(bits), float32)
        if "uintBitsToFloat" in text:
            assert f"0x{int(bits):08x}u" in text
        else:
            assert int(np.float32(float(text)).view(np.uint32)) == bits


def test_affine_indices_are_printed_without_negative_numbers():
    assert glsl.affine(Affine(0, (0, 0)), ["i", "j"]) == "0u"
    assert glsl.affine(Affine(3, (1, 20)), ["i", "j"], "base") == "base + i + j * 20u + 3u"
    assert glsl.affine(Affine(-1, (-2, 1)), ["i", "j"]) == "0u - i * 2u + j - 1u"
