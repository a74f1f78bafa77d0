"""Kernels of bundles that VKDNN_AOT names: taken before anything is rendered or compiled, if they are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import CompileError
from vkdnn.shader import bundle, compile_count, compile_many
from vkdnn.shader.bundle import BundleError, KernelTable, find, provide
from vkdnn.shader.request import ShaderRequest, generator_fingerprint


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle of a function, for the default device."""
    place = tmp_path_factory.mktemp("made") / "b"
    vk.aot.export(lambda x: vk.softmax(x @ x) + 3, [vk.aot.Spec((6, 6))], place, device=vk.device())
    return place


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No tables and no kernels from before."""
    monkeypatch.setattr(bundle, "_tables", {})
    monkeypatch.setattr(bundle, "_provided", {})
    monkeypatch.setattr("vkdnn.shader._memo", {})


def test_kernels_of_bundles_are_not_compiled(made, monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VKDNN_AOT", str(made))
    monkeypatch.setenv("VKDNN_AOT_ONLY", "1")
    monkeypatch.setattr("vkdnn.codegen.render.render", lambda *a: pytest.fail("rendered"))
    before = compile_count()
    x = vk.array(np.eye(6, dtype=np.float32))
    assert (vk.softmax(x @ x) + 3).shape == (6, 6)
    (vk.softmax(x @ x) + 3).numpy()
    assert compile_count() == before


def test_what_no_bundle_has_is_an_error_under_aot_only(made, monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VKDNN_AOT", str(made))
    monkeypatch.setenv("VKDNN_AOT_ONLY", "1")
    with pytest.raises(CompileError, match=r"VKDNN_AOT_ONLY=1 forbids compiling: expr dims \(count, \)"):
        vk.tanh(vk.array([1.0])).numpy()


def test_the_first_of_several_bundles_that_has_a_kernel_gives_it(made, monkeypatch, tmp_path):
    vk.aot.export(lambda x: x + 1, [vk.aot.Spec((3,))], tmp_path / "other.zip")
    monkeypatch.setenv("VKDNN_AOT", os.pathsep.join([str(tmp_path / "other.zip"), "", str(made)]))
    for path in (made, tmp_path / "other.zip"):
        for identity, (file, sha256) in KernelTable.read(path).files.items():
            assert find(identity) == bundle.Archive(path).spirv(file, sha256)
    assert find("0" * 64) is None


def test_without_bundles_there_are_no_kernels(monkeypatch):
    monkeypatch.delenv("VKDNN_AOT", raising=False)
    assert find("0" * 64) is None
    provide("0" * 64, b"spirv")
    assert find("0" * 64) == b"spirv"


def edited(made, tmp_path, change):
    """A copy of the bundle with its manifest edited."""
    place = tmp_path / "edited"
    for file in made.rglob("*"):
        if file.is_file():
            (place / file.relative_to(made)).parent.mkdir(parents=True, exist_ok=True)
            (place / file.relative_to(made)).write_bytes(file.read_bytes())
    manifest = json.loads((place / "manifest.json").read_text())
    change(manifest)
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def test_kernels_of_other_sources_are_refused(made, monkeypatch, tmp_path):
    place = edited(made, tmp_path, lambda m: m["producer"].update(generator="f" * 64))
    monkeypatch.setenv("VKDNN_AOT", str(place))
    with pytest.raises(BundleError) as error:
        find("0" * 64)
    assert "f" * 16 in str(error.value) and generator_fingerprint()[:16] in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.pop("kernels"), "table of kernels in manifest.json is damaged"),
        (lambda m: m["kernels"][0].pop("file"), "table of kernels in manifest.json is damaged"),
        (lambda m: m.update(kernels=3), "table of kernels in manifest.json is damaged"),
        (lambda m: m.update(version=99), "version 99 of the format"),
        (lambda m: m.update(format="x"), "format 'x'"),
    ],
)
def test_damaged_tables_are_refused(made, monkeypatch, tmp_path, change, said):
    monkeypatch.setenv("VKDNN_AOT", str(edited(made, tmp_path, change)))
    with pytest.raises(BundleError, match=said):
        find("0" * 64)


def test_damaged_kernels_and_paths_that_leave_are_refused(made, monkeypatch, tmp_path):
    def change(manifest):
        manifest["kernels"][0]["file"] = "../made/b/kernels/a.spv"

    place = edited(made, tmp_path, change)
    monkeypatch.setenv("VKDNN_AOT", str(place))
    first, second, *_ = KernelTable.read(place).files.items()
    with pytest.raises(BundleError, match="lies outside"):
        find(first[0])
    (place / second[1][0]).write_bytes(b"\x03\x02\x23\x07")
    with pytest.raises(BundleError, match="has SHA-256"):
        find(second[0])
    monkeypatch.setenv("VKDNN_AOT", str(tmp_path / "none"))
    with pytest.raises(BundleError, match="does not exist"):
        compile_many([ShaderRequest.of_glsl("", "spec", "none", "label")])


# A process that has no Jinja, no compiler and an empty store.
BARE = """
import os, sys
sys.modules["jinja2"] = None
os.environ.update(PATH="", VKDNN_GLSLANG="/nonexistent")
import numpy as np
import vkdnn as vk
from vkdnn.shader import compile_count
"""


def bare(code, tmp_path, **environment):
    done = subprocess.run(
        [sys.executable, "-c", BARE + code],
        env={**os.environ, "VKDNN_CACHE_DIR": str(tmp_path / "store"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bundle_runs_without_compiler_and_jinja(tmp_path):
    weight = vk.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    function = vk.jit(lambda x: vk.softmax(x @ weight))
    vk.aot.export(function, [x], tmp_path / "b")
    np.save(tmp_path / "x.npy", x)
    code = f"""
bundle = vk.aot.load({str(tmp_path / "b")!r})
np.save({str(tmp_path / "y.npy")!r}, bundle(np.load({str(tmp_path / "x.npy")!r})).numpy())
assert compile_count() == 0
assert "vkdnn.codegen.render" not in sys.modules or "jinja2" not in vars(sys.modules["vkdnn.codegen.render"])
"""
    bare(code, tmp_path)
    assert (np.load(tmp_path / "y.npy").view(np.uint32) == function(x).numpy().view(np.uint32)).all()


def test_vkdnn_is_imported_without_jinja(tmp_path):
    assert bare("print(vk.float32)", tmp_path).strip() == "float32"


def test_a_process_computes_with_the_kernels_of_a_bundle_alone(made, tmp_path):
    code = """
x = vk.array(np.eye(6, dtype=np.float32))
print((vk.softmax(x @ x) + 3).numpy().view(np.uint32).sum(), compile_count())
"""
    x = vk.array(np.eye(6, dtype=np.float32))
    expected = (vk.softmax(x @ x) + 3).numpy().view(np.uint32).sum()
    found = bare(code, tmp_path, VKDNN_AOT=str(made), VKDNN_AOT_ONLY="1")
    assert found.split() == [str(expected), "0"]
