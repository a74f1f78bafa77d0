"""Manifests of bundles: written and read back alike, refused with a reason when anything in them is off."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkdnn as vk
from vkdnn.aot.formulas import evaluate
from vkdnn.aot.manifest import SCHEMA, schema_text
from vkdnn.aot.reading import read_manifest
from vkdnn.aot.records import to_json
from vkdnn.shader.bundle import Archive, BundleError, KernelTable

SPIRV = b"\x03\x02\x23\x07" + bytes(36)
SHAPE = ["tokens", 4]
WORDS = ["*", "tokens", 4]


def example():
    """A manifest of one kernel that doubles x [tokens, 4]."""
    array = {"dtype": "float32", "shape": SHAPE}
    kernel = {
        "label": "expr", "family": "ExprSpec", "spec": "expr\n", "identity": "1" * 64, "file": "kernels/a.spv",
        "sha256": hashlib.sha256(SPIRV).hexdigest(), "size": len(SPIRV), "local_size": [128, 1, 1], "shared_bytes": 0,
        "bindings": [{"element": "float", "access": "read"}, {"element": "float", "access": "write"}],
        "push": ["base_in0", "base_out0", "count"], "workgroups": [["//", ["+", "count", 127], 128], 1, 1],
    }  # fmt: skip
    program = {
        "buffers": [{"kind": k, "memory": "device", "words": WORDS} for k in ("input", "output")],
        "values": [
            {"buffer": 0, "offset": 0, "words": WORDS, **array, "first": None, "last": 0},
            {"buffer": 1, "offset": 0, "words": WORDS, **array, "first": 0, "last": None},
        ],
        "inputs": [{"name": "x", **array, "value": 0, "donated": False, "initial": None}],
        "constants": [],
        "outputs": [{"name": "result", **array, "value": 1, "replaces": None}],
        "arguments": {"list": [0]},
        "keywords": {"dict": {}},
        "result": 0,
        "dispatches": [
            {
                "kernel": 0, "values": [0, 1], "push": [0, 0, WORDS], "barrier": False, "flops": WORDS, "bytes": 0,
                "groups": [["//", ["+", WORDS, 127], 128], 1, 1],
            }
        ],
        "submissions": [[0, 1]],
    }  # fmt: skip
    return {
        "format": "vkdnn-bundle",
        "version": 1,
        "name": "double",
        "producer": {"vkdnn": "0.1.0", "generator": "0" * 64, "compiler": "glslang", "target": ""},
        "symbols": [{"name": "tokens", "low": 1, "high": 512}],
        "numerics": {
            "mode": "exact", "contract": "binary32", "subnormals": "software", "division": "remainder",
            "square_root": "remainder", "host_flush": False,
        },
        "limits": {
            "maxComputeWorkGroupInvocations": 128, "maxComputeWorkGroupSize": [128, 1, 1],
            "maxComputeWorkGroupCount": [16, 1, 1], "maxComputeSharedMemorySize": 0,
            "maxPerStageDescriptorStorageBuffers": 2, "maxPushConstantsSize": 12, "maxStorageBufferRange": 8192,
            "memory": 16384,
        },
        "kernels": [kernel],
        "probe": None,
        "weights": None,
        "program": program,
    }  # fmt: skip


def write(folder, manifest, spirv=SPIRV):
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "a.spv").write_bytes(spirv)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    manifest = read_manifest(write(tmp_path / "b", example()))
    assert manifest.ranges == {"tokens": (1, 512)}
    assert evaluate(manifest.program.dispatches[0].groups[0], {"tokens": 33}) == 2
    assert to_json(manifest) == example()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "manifest.json").write_text(manifest.text())
    assert read_manifest(tmp_path / "c") == manifest
    assert json.loads(manifest.text())["$schema"] == SCHEMA


def test_a_zip_is_a_bundle_too(tmp_path):
    folder = write(tmp_path / "b", example())
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as file:
        for name in ("manifest.json", "kernels/a.spv"):
            file.write(folder / name, name)
    assert read_manifest(tmp_path / "b.zip") == read_manifest(folder)
    assert Archive(tmp_path / "b.zip").spirv("kernels/a.spv", hashlib.sha256(SPIRV).hexdigest()) == SPIRV


def put(path, value):
    """An edit of the manifest: sets or, with ..., removes what a path such as program.values.0.offset names."""

    def edit(manifest):
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        for parent in parents:
            manifest = manifest[parent]
        if value is ...:
            del manifest[last]
        else:
            manifest[last] = value

    return edit


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", "other", "has format 'other', expected 'vkdnn-bundle'"),
        ("version", 2, "version 2 of the format, expected 1"),
        ("name", ..., "has no 'name'"),
        ("extra", 1, "has 'extra', which this version"),
        ("name", 3, "name is 3, expected string"),
        ("probe", True, "probe is True, expected integer"),
        ("probe", 1, "probe is 1, expected a number below 1"),
        ("numerics.mode", "fast", "numerics.mode is 'fast', expected one of 'exact'"),
        ("symbols.0.low", 513, "symbol tokens has the range 513 to 512"),
        ("program.buffers.0.words", "batch", "buffers[0].words: the symbol 'batch' is not declared"),
        ("program.buffers.0.words", ["^", 1, 2], "is no formula"),
        ("program.buffers.0.words", ["//", 1, 0], "divides by zero"),
        ("program.buffers.0.words", ["-", WORDS, 4], "buffers[0].words is 0, expected 1 or more"),
        ("program.buffers.0.words", ["//", 1, ["-", "tokens", 1]], "divides by zero"),
        ("program.values.0.words", ["+", WORDS, ["-", 512, "tokens"]], "values[0] ends outside of its buffer"),
        ("program.values.0.words", "tokens", "values[0].words is 512, but float32 of its shape takes 2048"),
        ("program.values.0.shape", [["-", 0, "tokens"], 4], "values[0].shape has a negative length"),
        ("program.inputs.0.dtype", "int32", "inputs[0] is another array than its value"),
        ("program.outputs.0.shape", ["tokens", 3], "outputs[0] is another array than its value"),
        ("program.inputs.0.shape", [WORDS], "inputs do not have each symbol as a length of its own"),
        ("symbols", [{"name": n, "low": 1, "high": 9} for n in ("tokens", "batch")], "have each symbol as a length"),
        ("program.buffers.0.words", 0, "buffers[0].words is 0, expected 1 or more"),
        ("program.values.1.offset", 1, "values[1] ends outside of its buffer"),
        ("program.values.1.offset", -1, "program.values[1].offset is -1, expected 0 or more"),
        ("program.values.1.buffer", 2, "values[1].buffer is 2, expected a number below 2"),
        ("program.values.1.dtype", "float64", "program.values[1].dtype is 'float64', expected one of"),
        ("program.dispatches.0.values", [0], "dispatches[0].values has 1 entries, but its kernel 2"),
        ("program.dispatches.0.values", [0, 2], "dispatches[0].values is 2"),
        ("program.dispatches.0.push", [0, 0], "dispatches[0].push has 2 entries, but its kernel 3"),
        ("program.dispatches.0.push", [0, 0, -1], "a number outside of 32 bits"),
        ("program.dispatches.0.groups", [1, 1], "expected an array of 3"),
        ("program.dispatches.0.groups", [0, 1, 1], "dispatches[0].groups is 0"),
        ("program.dispatches.0.kernel", 1, "dispatches[0].kernel is 1"),
        ("program.submissions", [], "submissions do not cover"),
        ("program.submissions", [[0, 1], [0, 1]], "submissions do not cover"),
        ("program.arguments", {"list": [1]}, "arguments and keywords name [1], expected 0 to 0"),
        ("program.result", {"set": [0]}, "result: no tree"),
        ("program.result", {"list": [0], "dict": {}}, "result: no tree"),
        ("program.result", {"list": {"a": 0}}, "result: no tree"),
        ("program.result", {"tuple": [0], "name": "A", "fields": ["class"]}, "result: no tree"),
        ("program.result", {"tuple": [0], "name": "A", "fields": ["a", "b"]}, "result: no tree"),
        ("program.result", {"tuple": [0], "name": "A"}, "result: no tree"),
        ("program.arguments", {"tuple": [0]}, "arguments is no list"),
        ("program.outputs.0.replaces", 1, "outputs[0].replaces is 1"),
        ("kernels.0.workgroups", [["//", "n", 2]], "kernels[0].workgroups: the symbol 'n' is not declared"),
        ("program", 4, "program is 4, expected an object"),
    ],
)
def test_what_is_off_is_refused_by_name(tmp_path, path, value, said):
    manifest = example()
    put(path, value)(manifest)
    with pytest.raises(BundleError) as error:
        read_manifest(write(tmp_path / "b", manifest))
    assert said in str(error.value) and "write the bundle again" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff", "[" * 100_000])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(BundleError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_a_path_that_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match="does not exist"):
        read_manifest(tmp_path / "none")
    with pytest.raises(BundleError, match=r"manifest\.json is missing"):
        read_manifest(tmp_path)
    (tmp_path / "file").write_text("no zip")
    with pytest.raises(BundleError, match=r"no folder and no \.zip"):
        read_manifest(tmp_path / "file")
    with pytest.raises(ValueError, match="expected the path"):
        read_manifest(3)


@pytest.mark.parametrize("name", ["../a.spv", "/etc/passwd", "kernels/../../a", "a\\b", "c:a", ""])
def test_files_outside_of_the_bundle_are_not_read(tmp_path, name):
    folder = write(tmp_path / "b", example())
    (tmp_path / "a.spv").write_bytes(SPIRV)
    with pytest.raises(BundleError, match="outside of it"):
        Archive(folder).read(name)


def test_a_link_that_leads_outside_is_not_followed(tmp_path):
    folder = write(tmp_path / "b", example())
    (tmp_path / "secret").write_bytes(SPIRV)
    (folder / "kernels" / "link.spv").symlink_to(tmp_path / "secret")
    with pytest.raises(BundleError, match="leads outside"):
        Archive(folder).read("kernels/link.spv")


def test_a_kernel_that_is_missing_or_changed_is_refused(tmp_path):
    folder = write(tmp_path / "b", example())
    right = hashlib.sha256(SPIRV).hexdigest()
    with pytest.raises(BundleError, match=r"file kernels/b\.spv is missing"):
        Archive(folder).spirv("kernels/b.spv", right)
    (folder / "kernels" / "a.spv").write_bytes(SPIRV[:-1] + b"\1")
    with pytest.raises(BundleError, match="has SHA-256"):
        Archive(folder).spirv("kernels/a.spv", right)
    (folder / "kernels" / "a.spv").write_bytes(b"text")
    with pytest.raises(BundleError, match="no SPIR-V"):
        Archive(folder).spirv("kernels/a.spv", hashlib.sha256(b"text").hexdigest())


def test_the_schema_describes_every_field():
    schema = json.loads(schema_text())
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["required"]) == set(example())
    for name, body in {"Manifest": schema, **schema["$defs"]}.items():
        for field, rule in body.get("properties", {}).items():
            assert field == "$schema" or rule.get("description"), f"{name}.{field}"


def test_the_format_s_page_explains_every_field():
    page = (Path(__file__).parent.parent / "docs" / "aot.md").read_text()
    schema = json.loads(schema_text())
    for name, body in {"Manifest": schema, **schema["$defs"]}.items():
        if name == "Limits":
            continue  # they have Vulkan's own names
        for field in body.get("properties", {}):
            assert field == "$schema" or f"`{field}`" in page, f"docs/aot.md does not say what {name}.{field} is"


def places(value, path=()):
    """The path of everything in JSON."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.sampled_from(["", "tokens", "*", "//"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["list", "dict", "x"]), inner),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_manifest_ends_in_another_error(tmp_path, data):
    """Anything in place of any part of a manifest: it is read, or refused with a BundleError."""
    manifest = json.loads(json.dumps(example()))  # which shares nothing
    *parents, last = data.draw(st.sampled_from([p for p in places(manifest) if p]))
    part = manifest
    for key in parents:
        part = part[key]
    part[last] = data.draw(VALUES)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with contextlib.suppress(BundleError):
        read_manifest(tmp_path)
    with contextlib.suppress(BundleError):
        KernelTable.read(tmp_path)


def problems(data, rule, schema, where="manifest"):
    """What a JSON Schema has against data; of the keywords, those that ours has."""
    if "$ref" in rule:
        yield from problems(data, schema["$defs"][rule["$ref"].rpartition("/")[2]], schema, where)
    types = {"integer": int, "string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
    named = rule.get("type", list(types))
    fits = [isinstance(data, types[n]) and (n == "boolean") == isinstance(data, bool) for n in _listed(named)]
    if not any(fits):
        yield f"{where}: {data!r} is no {named}"
        return
    if "enum" in rule and data not in rule["enum"]:
        yield f"{where}: {data!r}"
    if "oneOf" in rule and sum(not list(problems(data, r, schema, where)) for r in rule["oneOf"]) != 1:
        yield f"{where}: {data!r} is none of {rule['oneOf']}"
    if isinstance(data, int) and data < rule.get("minimum", data):
        yield f"{where}: {data!r} is too small"
    if isinstance(data, list):
        first = rule.get("prefixItems", [])
        if not rule.get("minItems", 0) <= len(data) <= rule.get("maxItems", len(data)):
            yield f"{where}: {len(data)} items"
        for i, x in enumerate(data):
            yield from problems(x, first[i] if i < len(first) else rule.get("items", {}), schema, f"{where}[{i}]")
    if isinstance(data, dict):
        yield from (f"{where}.{n} is missing" for n in rule.get("required", ()) if n not in data)
        for n, x in data.items():
            inner = rule.get("properties", {}).get(n, rule.get("additionalProperties", {}))
            yield from [f"{where}.{n} is unknown"] if inner is False else problems(x, inner, schema, f"{where}.{n}")


def _listed(x):
    return x if isinstance(x, list) else [x]


def test_the_schema_takes_what_is_read_and_nothing_else(tmp_path):
    schema = json.loads(schema_text())
    assert list(problems(example(), schema, schema)) == []
    vk.aot.export(lambda x: {"y": vk.softmax(x)}, [vk.aot.Spec(("n", 3))], tmp_path / "b", ranges={"n": (1, 9)})
    assert json.loads((tmp_path / "b" / SCHEMA).read_text()) == schema
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert list(problems(manifest, schema, schema)) == []
    for path, value in (
        ("program.dispatches.0.push.0", ["^", 1, 2]), ("program.values.0.dtype", "float64"), ("kernels.0.size", 1),
        ("program.dispatches.0.groups", [1, 1]), ("probe", True), ("extra", 1), ("program.submissions.0.0", "a"),
    ):  # fmt: skip
        wrong = json.loads(json.dumps(manifest))
        put(path, value)(wrong)
        assert list(problems(wrong, schema, schema)), path
    del manifest["limits"]["memory"]
    assert list(problems(manifest, schema, schema)) == ["manifest.limits.memory is missing"]
