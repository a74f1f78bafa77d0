"""vkdnn aot inspect: what it says of a bundle is so, it checks the kernels, and it draws the plan."""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn import show
from vkdnn.aot.checks import check_kernels
from vkdnn.aot.inspect import formula_text, groups, inspect
from vkdnn.aot.picture import plot_memory, sized
from vkdnn.aot.reading import read_manifest
from vkdnn.cli import app
from vkdnn.errors import ArgumentError
from vkdnn.ir.node import toposort
from vkdnn.ir.rewrite import substitute
from vkdnn.shader.bundle import Archive, BundleError

WEIGHTS = {"w": np.ones((8, 16), np.float32), "b": np.ones(16, np.float32), "v": np.ones((16, 4), np.float32)}


def predict(params, x):
    return vk.softmax(vk.gelu(x @ params["w"] + params["b"]) @ params["v"])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A product with epilogue, a product, a softmax: three kernels, two values in an arena."""
    path = tmp_path_factory.mktemp("bundles") / "predict"
    vk.aot.export(vk.jit(predict), [WEIGHTS, vk.aot.Spec((3, 5, 8))], path, weights=0)
    return path


@pytest.fixture(scope="module")
def symbolic(tmp_path_factory):
    """exp of x [tokens, 4] to an arena, and exp of that, by hand."""
    path = tmp_path_factory.mktemp("bundles") / "twice"
    (kernel,) = show.kernels(show.example("exp").outputs((8,)))
    spirv = kernel.spirv()
    words = ["*", "tokens", 4]
    array = {"dtype": "float32", "shape": ["tokens", 4]}
    buffers = [{"kind": kind, "memory": "device", "words": words} for kind in ("input", "arena", "output")]
    values = [{"buffer": i, "offset": 0, "words": words, **array, "first": i - 1, "last": i} for i in range(3)]
    values[0]["first"] = values[2]["last"] = None
    dispatch = {"kernel": 0, "push": [0, 0, words], "groups": [["//", ["+", words, 127], 128], 1, 1]}
    manifest = {
        "format": "vkdnn-bundle", "version": 1, "name": "twice",
        "producer": {"vkdnn": "0.1.0", "generator": "0" * 64, "compiler": "glslang | more", "target": ""},
        "symbols": [{"name": "tokens", "low": 1, "high": 512}],
        "numerics": {
            "mode": "exact", "contract": "binary32", "subnormals": "software", "division": "remainder",
            "square_root": "remainder", "host_flush": False,
        },
        "limits": {
            "maxComputeWorkGroupInvocations": 128, "maxComputeWorkGroupSize": [128, 1, 1],
            "maxComputeWorkGroupCount": [16, 1, 1], "maxComputeSharedMemorySize": 0,
            "maxPerStageDescriptorStorageBuffers": 2, "maxPushConstantsSize": 12, "maxStorageBufferRange": 8192,
            "memory": 3 * 8192,
        },
        "kernels": [{
            "label": "[bold]exp\x1b[31m", "family": "ExprSpec", "spec": "expr\n", "identity": "1" * 64,
            "file": "kernels/a.spv", "sha256": hashlib.sha256(spirv).hexdigest(), "size": len(spirv),
            "local_size": [128, 1, 1], "shared_bytes": 0, "push": ["base_in0", "base_out0", "count"],
            "workgroups": [["//", ["+", "count", 127], 128], 1, 1],
            "bindings": [binding("float", "read"), binding("float", "write")],
        }],
        "probe": None, "weights": None,
        "program": {
            "buffers": buffers, "values": values, "constants": [],
            "inputs": [{"name": "x", **array, "value": 0, "donated": False, "initial": None}],
            "outputs": [{"name": "result", **array, "value": 2, "replaces": None}],
            "arguments": {"list": [0]}, "keywords": {"dict": {}}, "result": 0,
            "dispatches": [
                {**dispatch, "values": [i, i + 1], "barrier": i == 1, "flops": words, "bytes": ["*", 8, words]}
                for i in range(2)
            ],
            "submissions": [[0, 1], [1, 2]],
        },
    }  # fmt: skip
    (path / "kernels").mkdir(parents=True)
    (path / "kernels" / "a.spv").write_bytes(spirv)
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def binding(element, access):
    return {"element": element, "access": access}


def changed(bundle, tmp_path, edit):
    """A copy of a bundle with an edited manifest."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    edit(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def test_what_a_bundle_holds(bundle):
    found = inspect(bundle)
    program = found.manifest.program
    assert [(k.family, k.dispatches) for k in found.kernels if k.dispatches] == [
        ("MatmulSpec", 1), ("MatmulSpec", 1), ("FoldSpec", 1),
    ]  # fmt: skip
    assert all(k.flops > 0 and k.bytes > 0 for k in found.kernels if k.dispatches)
    assert (found.dispatches, found.barriers, found.submissions) == (3, 2, 1)
    assert found.kernels[2].workgroups == ("min((rows + 127)//128, 65535)", "1", "1")
    assert sum(k.flops for k in found.kernels) == sum(d.flops for d in program.dispatches)
    assert [(a.name, a.shape, a.bytes) for a in found.inputs] == [("x", (3, 5, 8), 480)]
    assert {(a.name.rpartition(".")[2], a.bytes) for a in found.constants} == {("w", 512), ("b", 64), ("v", 256)}
    assert [(a.dtype, a.shape, a.bytes) for a in found.outputs] == [("float32", (3, 5, 4), 240)]


def test_the_memory_of_a_bundle(bundle):
    memory = inspect(bundle).memory
    (arena,) = memory.arenas
    hidden, logits = 4 * 15 * 16, 4 * 15 * 4
    assert arena.alive == (hidden, hidden + logits, logits)
    assert arena.bytes == memory.of("arena") == memory.lower_bound("device") == hidden + logits
    assert [(v.first, v.last, v.bytes, v.shape) for v in arena.values] == [
        (0, 1, hidden, (3, 5, 16)), (1, 2, logits, (3, 5, 4)),
    ]  # fmt: skip
    assert (memory.of("input"), memory.of("constant"), memory.of("output")) == (480, 512 + 64 + 256, 240)
    assert memory.total == memory.of("arena") + 480 + 832 + 240
    assert memory.of("arena", "host") == memory.lower_bound("host") == 0


def test_the_record_is_json(bundle, symbolic):
    for path in (bundle, symbolic):
        record = inspect(path).record()
        assert json.loads(json.dumps(record))["totals"] == record["totals"]
        assert record["memory"]["total"] == record["limits"]["memory"]


def test_values_of_symbols(symbolic):
    most, some = inspect(symbolic), inspect(symbolic, {"tokens": 33})
    assert most.symbols == {"tokens": 512} and some.symbols == {"tokens": 33}
    assert most.kernels[0].flops == 2 * 2048 and some.kernels[0].flops == 2 * 132
    assert some.inputs[0].written == ("tokens", "4") and some.inputs[0].shape == (33, 4)
    assert most.memory.total == 3 * 8192 and some.memory.total == 3 * 4 * 132
    assert some.memory.arenas[0].alive == (528, 528)
    assert some.record()["symbols"] == [{"name": "tokens", "low": 1, "high": 512, "value": 33}]


def test_a_bundle_of_a_range_of_lengths(tmp_path):
    path = tmp_path / "b.zip"
    x = vk.aot.Spec(("batch", "tokens", 8))
    vk.aot.export(vk.jit(predict), [WEIGHTS, x], path, weights=0, ranges={"batch": (1, 4), "tokens": (1, 100)})
    most, some = inspect(path), inspect(path, {"batch": 2, "tokens": 7})
    assert most.inputs[0].written == ("batch", "tokens", "8") and some.outputs[0].shape == (2, 7, 4)
    assert some.memory.lower_bound("device") == 4 * 14 * (16 + 4) < most.memory.lower_bound("device") == 4 * 400 * 20
    assert 0 < sum(k.flops for k in some.kernels) < sum(k.flops for k in most.kernels) / 20


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"batch": 1}, "batch: is no symbol .* its symbols: tokens"),
        ({"tokens": 513}, "tokens: got 513, expected 1 to 512"),
    ],
)
def test_values_that_do_not_fit(symbolic, values, said):
    with pytest.raises(ArgumentError, match=said):
        inspect(symbolic, values)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("local_size", [64, 1, 1], r"kernels\[0\]\.local_size is \(64, 1, 1\), but file kernels/a\.spv has \(128, "),
        ("shared_bytes", 4, r"shared_bytes is 4, but .* has 0"),
        ("push", ["base_out0", "base_in0", "count"], r"push is \['base_out0', .*\], but .* has \['base_in0'"),
        ("size", 8, r"size is 8, but"),
        ("bindings", [binding("int", "read"), binding("float", "write")], r"'int', 'read'.* but .*'float', 'read'"),
        ("bindings", [binding("float", "write"), binding("float", "write")], r"bindings is"),
        ("sha256", "0" * 64, "has SHA-256"),
    ],
)  # fmt: skip
def test_a_kernel_that_is_not_as_the_manifest_says(symbolic, tmp_path, field, value, said):
    copy = changed(symbolic, tmp_path, lambda manifest: manifest["kernels"][0].__setitem__(field, value))
    with pytest.raises(BundleError, match=said):
        inspect(copy)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (
            ("dispatches", 1, "groups"),
            [16, 1, 2],
            r"dispatches\[1\]\.groups is \[16, 1, 2\], but .* takes \[16, 1, 1",
        ),
        (("limits", "maxComputeWorkGroupCount"), [15, 1, 1], r"is \(15, 1, 1\), but dispatches\[0\] has \[16, 1, 1\]"),
        (("limits", "maxStorageBufferRange"), 8191, r"is 8191, but a buffer has 8192 bytes"),
        (("limits", "memory"), 24575, r"is 24575, but the buffers of the device have 24576 bytes"),
    ],
)
def test_counts_that_are_wrong(symbolic, tmp_path, place, value, said):
    def edit(manifest):
        target = manifest if place[0] == "limits" else manifest["program"]
        for parent in place[:-1]:
            target = target[parent]
        target[place[-1]] = value

    with pytest.raises(BundleError, match=said):
        inspect(changed(symbolic, tmp_path, edit))


@pytest.mark.parametrize(
    ("limit", "value"), [("maxComputeWorkGroupSize", [64, 1, 1]), ("maxPerStageDescriptorStorageBuffers", 1)]
)
def test_limits_that_are_too_low(symbolic, tmp_path, limit, value):
    copy = changed(symbolic, tmp_path, lambda manifest: manifest["limits"].__setitem__(limit, value))
    with pytest.raises(BundleError, match=rf"limits\.{limit} is .*, but kernels\[0\] needs"):
        inspect(copy)


def test_spirv_that_is_damaged_though_its_checksum_is_right(symbolic, tmp_path):
    def cut(manifest):
        data = (tmp_path / "copy" / "kernels" / "a.spv").read_bytes()[:-8]
        (tmp_path / "copy" / "kernels" / "a.spv").write_bytes(data)
        manifest["kernels"][0]["sha256"] = hashlib.sha256(data).hexdigest()

    with pytest.raises(BundleError, match=r"file kernels/a\.spv: SPIR-V.* write the bundle again"):
        inspect(changed(symbolic, tmp_path, cut))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ((1, "last"), 9, r"values\[1\]\.last is 9, expected a number of the 2 dispatches"),
        ((1, "first"), None, r"values\[1\] lies in an arena, but has no first"),
        ((1, "last"), 0, r"dispatches\[1\] uses values\[1\], which is there from 0 to 0"),
    ],
)
def test_lifetimes_that_are_wrong(symbolic, tmp_path, place, value, said):
    with pytest.raises(BundleError, match=said):
        inspect(changed(symbolic, tmp_path, lambda m: m["program"]["values"][place[0]].__setitem__(place[1], value)))


def test_a_barrier_that_is_missing(symbolic, tmp_path):
    def edit(manifest, barrier):
        manifest["program"]["submissions"] = [[0, 2]]
        manifest["program"]["dispatches"][1]["barrier"] = barrier

    inspect(changed(symbolic, tmp_path, lambda manifest: edit(manifest, True)))
    with pytest.raises(BundleError, match=r"dispatches\[1\] must wait for dispatches\[0\], but there is no barrier"):
        inspect(changed(symbolic, tmp_path / "other", lambda manifest: edit(manifest, False)))


def test_values_that_overlap_while_both_are_there(bundle, tmp_path):
    def edit(manifest):
        values = [v for v in manifest["program"]["values"] if v["first"] is not None and v["last"] is not None]
        values[1]["offset"] = values[0]["offset"] + 1

    with pytest.raises(BundleError, match=r"overlap in an arena"):
        inspect(changed(bundle, tmp_path, edit))


def test_a_formula_that_divides_by_zero_for_some_values(symbolic, tmp_path):
    flops = ["//", 8, ["-", "tokens", 33]]
    copy = changed(symbolic, tmp_path, lambda m: m["program"]["dispatches"][0].__setitem__("flops", flops))
    assert inspect(copy).dispatches == 2
    with pytest.raises(BundleError, match="divides by zero for tokens 33"):
        inspect(copy, {"tokens": 33})


def places(value, path=()):
    """Paths of everything in JSON."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


NONSENSE = st.one_of(
    st.integers(-2, 600).map(str),
    st.sampled_from(["null", "true", '""', '"x"', '"tokens"', "[]", "{}", "1.5", str(2**31), str(2**32), str(10**30)]),
    st.sampled_from(['["//", 1, "tokens"]', '["-", "tokens", 600]', '["*", ["*", "tokens", 1000000000], 1000000000]']),
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_manifest_is_refused_or_makes_sense(symbolic, tmp_path_factory, data):
    """Never another exception than BundleError."""
    manifest = json.loads((symbolic / "manifest.json").read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(list(places(manifest))))
        target = manifest
        for parent in parents:
            target = target[parent]
        target[last] = json.loads(data.draw(NONSENSE))  # a list of its own, which the next round may change
    copy = tmp_path_factory.mktemp("damaged")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    (copy / "kernels").symlink_to(symbolic / "kernels")
    try:
        found = inspect(copy, {"tokens": 1} if data.draw(st.booleans()) else {})
    except (BundleError, ArgumentError) as error:
        assert "bundle" in str(error)
        return
    json.dumps(found.record())


@pytest.mark.parametrize("name", ["scatter_add", "attention_gradient", "scan_suffix_chunked", "argsort"])
def test_plans_of_many_kinds_are_right(name, tmp_path):
    results = [a.node for a in show.example(name).outputs()]
    leaves = [n for n in toposort(results) if n.kind == "leaf"]

    def function(*arrays):
        return [vk.Array(n) for n in substitute(results, {n: a.node for n, a in zip(leaves, arrays, strict=True)})]

    vk.aot.export(vk.jit(function), [vk.aot.Spec(n.shape, str(n.dtype)) for n in leaves], tmp_path / "b.zip")
    assert inspect(tmp_path / "b.zip").dispatches > 1


def test_all_kernels_of_a_bundle_are_checked(bundle):
    archive = Archive(bundle)
    assert len(check_kernels(archive, read_manifest(archive))) == len(inspect(bundle).kernels)


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (3, "3"),
        ("tokens", "tokens"),
        (["+", ["*", 2, "n"], 1], "2*n + 1"),
        (["*", 2, ["+", "n", 1]], "2*(n + 1)"),
        (["-", "a", ["-", "b", "c"]], "a - (b - c)"),
        (["-", ["-", "a", "b"], "c"], "a - b - c"),
        (["//", "a", ["*", "b", "c"]], "a//(b*c)"),
        (["*", ["*", "a", "b"], ["*", "c", 4]], "a*b*c*4"),
        (["min", ["+", "a", 1], ["max", "b", 2]], "min(a + 1, max(b, 2))"),
        (["%", ["min", "a", "b"], 4], "min(a, b)%4"),
    ],
)
def test_formulas_as_people_write_them(formula, text):
    assert formula_text(formula) == text


# ---- the picture


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_plan_is_drawn(bundle, symbolic, tmp_path, suffix, magic):
    for number, path in enumerate((bundle, symbolic)):
        place = tmp_path / f"{number}{suffix}"
        plot_memory(place, inspect(path))
        assert place.read_bytes().startswith(magic) and place.stat().st_size > 5000


def test_the_picture_says_what_it_shows(symbolic, tmp_path):
    plot_memory(tmp_path / "plan.svg", inspect(symbolic))
    comments = "".join(re.findall("<!-- .* -->", (tmp_path / "plan.svg").read_text()))  # the texts that are drawn
    for said in (
        "twice: 2 dispatches; 2 submissions (dotted); tokens 512; 24.00 KiB in all, arenas 8.00 KiB",
        "at most: device 8.00 KiB at dispatch 0, of 8.00 KiB", "buffer 1 in device memory, 8.00 KiB, 1 value",
        "512x4", "inputs, 8.00 KiB in 1 buffer", "ExprSpec",
    ):  # fmt: skip
        assert said in comments, said


def test_what_cannot_be_drawn(symbolic, tmp_path):
    with pytest.raises(ArgumentError, match=r"plan\.pdf', expected a name that ends in \.png or \.svg"):
        plot_memory(tmp_path / "plan.pdf", inspect(symbolic))
    kernels = changed(symbolic, tmp_path, lambda manifest: manifest.__setitem__("program", None))
    with pytest.raises(ArgumentError, match="runs no kernels"):
        plot_memory(tmp_path / "plan.png", inspect(kernels))


def test_sizes_as_people_read_them():
    assert [sized(n) for n in (0, 1023, 1024, 5 << 30)] == ["0 bytes", "1023 bytes", "1.00 KiB", "5.00 GiB"]


# ---- the command


def run(*arguments):
    return CliRunner().invoke(app, ["aot", "inspect", *map(str, arguments)])


def test_the_command_prints_all_of_it(bundle):
    result = run(bundle)
    assert result.exit_code == 0, result.stderr
    for part in ("for every device", "matmul ", "3 dispatches, 2 barriers, 1 submission", "[3, 5, 8]", "constants",
                 "maxPushConstantsSize", "lower bound", "1.17 KiB alive at dispatch 1"):  # fmt: skip
        assert part in result.stdout, part


def test_symbols_at_the_command(symbolic):
    result = run(symbolic, "--set", "tokens=33")
    assert result.exit_code == 0
    assert (
        "symbol tokens: 1 to 512; the numbers below are for 33" in result.stdout and "[tokens=33, 4]" in result.stdout
    )
    for bad, said in (("tokens", "--set: got 'tokens'"), ("tokens=0", "tokens: got 0"), ("n=1", "n: is no symbol")):
        wrong = run(symbolic, "--set", bad)
        assert wrong.exit_code == 1 and said in wrong.stderr
    twice = run(symbolic, "--set", "tokens=1", "--set", "tokens=2")
    assert twice.exit_code == 1 and "given twice" in twice.stderr


def test_text_of_a_bundle_cannot_colour_the_terminal(symbolic):
    result = run(symbolic)
    assert "[bold]exp" in result.stdout and "\x1b" not in result.stdout


def test_json_at_the_command(bundle):
    found = json.loads(run(bundle, "--json", "--sort", "flops").stdout)
    flops = [k["flops"] for k in found["kernels"]]
    assert flops == sorted(flops, reverse=True) and found["totals"]["dispatches"] == 3


def test_a_picture_at_the_command(symbolic, tmp_path):
    result = run(symbolic, "--plot", tmp_path / "plan.svg")
    assert result.exit_code == 0 and (tmp_path / "plan.svg").exists()
    wrong = run(symbolic, "--plot", tmp_path / "plan.txt")
    assert wrong.exit_code == 1 and "expected a name that ends in" in wrong.stderr


def test_a_set_of_kernels(symbolic, tmp_path):
    copy = changed(symbolic, tmp_path, lambda manifest: manifest.__setitem__("program", None))
    result = run(copy)
    assert result.exit_code == 0 and "a set of kernels" in result.stdout and "memory\n" not in result.stdout
    assert json.loads(run(copy, "--json").stdout)["memory"] is None


def test_many_arrays_are_counted_by_their_names(tmp_path):
    many = {f"p{i:02d}": vk.aot.Spec((2,)) for i in range(30)}
    path = tmp_path / "many.zip"
    vk.aot.export(vk.jit(lambda params, x: sum(params.values()) * x), [many, vk.aot.Spec((2,))], path)
    assert [(g.name, len(g.arrays), g.bytes) for g in groups(inspect(path).inputs)] == [
        ("params", 30, 240),
        ("x", 1, 8),
    ]
    result = run(path)
    assert "params.*" in result.stdout and "30 arrays" in result.stdout and "31 arrays, 248 bytes" in result.stdout


def test_no_bundle_is_one_line(tmp_path):
    result = run(tmp_path / "nothing")
    assert result.exit_code == 1 and "does not exist" in result.stderr and "Traceback" not in result.stderr
