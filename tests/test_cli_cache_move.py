"""vkdnn cache warm, export and import: a store filled before it is needed, and moved."""

import json
import re
import subprocess
import sys
import zipfile

import pytest
from typer.testing import CliRunner

from vkdnn.cli import app
from vkdnn.cli.job_options import parse_job
from vkdnn.errors import ArgumentError
from vkdnn.shader import Compiler, Store, compile_count
from vkdnn.shader.entry import Entry, decode, encode
from vkdnn.shader.upkeep import items

SMALL = ("--width", "32", "--heads", "2", "--layers", "1", "--batch", "2", "--length", "16")


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*arguments, status=0):
    result = run("cache", *arguments, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setattr("vkdnn.shader._memo", {})
    return Store(tmp_path / "store")


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "warm_me.py").write_text(
        "import vkdnn as vk\n"
        "def f(x, w): return {'y': vk.softmax(x @ w), 'n': 3}\n"
        "def wrong(x): raise KeyError('no')\n"
        "step = vk.jit(lambda x: vk.exp(x) + 1)\n"
    )
    yield "warm_me"
    sys.modules.pop("warm_me", None)


# ---- warm


def test_a_warm_model_compiles_nothing(store, tmp_path, monkeypatch):
    """A run with the same options, from the first parameter to the sample."""
    found = told("warm", "--model", "rapt", "--train", *SMALL, "--steps", "2")
    assert found["compiled"] == found["shaders"] > 30 and found["stored"] == 0
    assert told("warm", "--model", "rapt", "--train", *SMALL, "--steps", "2")["stored"] == found["shaders"]
    monkeypatch.setattr("vkdnn.shader._memo", {})
    before = compile_count()
    (tmp_path / "text").write_text("any text will do. " * 99)
    result = run("train", *SMALL, "--steps", "2", "--out", tmp_path / "run", "--text", tmp_path / "text")
    assert result.exit_code == 0, result.output
    assert compile_count() == before


def test_a_model_that_only_decodes(store):
    few = told("warm", "--model", "gpt", "--width", "32", "--heads", "2", "--layers", "1")
    assert 5 < few["shaders"] < 60


def test_a_function(store, module):
    found = told("warm", f"{module}:f", "--shape", "8,32", "--shape", "w=32,16")
    assert (found["shaders"], found["compiled"], found["store"]) == (2, 2, str(store.root))
    assert (
        "compiled 0 shaders of 2; 2 were in the store"
        in run("cache", "warm", f"{module}:f", "-s", "8x32", "-s", "32x16").stdout
    )
    assert told("warm", f"{module}:step", "--shape", "7")["shaders"] == 1
    again = run("cache", "warm", f"{module}:step", "--shape", "7").stdout
    assert "compiled 0 shaders of 1; 1 was in the store" in again


def test_a_script(store, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport numpy as np, vkdnn as vk\nassert sys.argv == [__file__] and __name__ == '__main__'\n"
        "print(vk.tanh(vk.array(np.zeros(3, np.float32))).numpy())\n"
    )
    assert told("warm", "--script", script)["compiled"] == 1
    result = run("cache", "warm", "--script", script)
    assert "[0. 0. 0.]" in result.stdout and "compiled 0 shaders" in result.stdout
    script.write_text("1 / 0")
    assert "failed with ZeroDivisionError" in run("cache", "warm", "--script", script).stderr
    script.write_text("raise SystemExit(3)")
    assert "ended with 3" in run("cache", "warm", "--script", script).stderr
    assert "is no file" in run("cache", "warm", "--script", tmp_path / "none.py").stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "name one thing"),
        (("--model", "rapt", "--script", "x.py"), 2, "name one thing"),
        (("warm_me:f", "--width", "3"), 2, "belongs to --model"),
        (("warm_me:f", "--train"), 2, "belongs to --model"),
        (("--model", "rapt", "--shape", "3"), 2, "belongs to MODULE:FUNCTION"),
        (("--model", "bert"), 2, "expected rapt or gpt"),
        (("--model", "gpt", "--bogus", "3"), 2, "No such option"),
        (("--model", "gpt", "--order", "chunked"), 2, "belongs to --model rapt"),
        (("--model", "gpt", "--optimizer", "x"), 2, "expected adamw"),
        (("--model", "gpt", "--verify", "3"), 1, "--verify: belongs to a run"),
        (("warm_me:f", "--shape", "3"), 1, "give a --shape for each argument"),
        (("warm_me:wrong", "--shape", "3"), 1, "failed with KeyError"),
        (("warm_me:f", "--shape", "n,3", "--shape", "3,3"), 1, "compile for each size"),
        (("warm_me:f", "--shape", "8,32", "--shape", "16,32"), 1, "matmul"),
        (("warm_me:f", "--device", "cpu"), 1, "runs no shaders"),
        (("nowhere_to_be_found:f",), 1, "cannot import"),
    ],
)
def test_what_warm_refuses(store, module, words, status, message):
    result = run("cache", "warm", *words)
    assert result.exit_code == status and message in " ".join(result.stderr.split()), result.stderr


def test_jobs_of_command_lines():
    job, levers = parse_job("rapt", [*SMALL, "--learning-rate", "0.5", "--steps", "7", "--recompute-every", "1"], "x")
    assert (job.config.width, job.batch, job.length, job.learning_rate, job.steps) == (32, 2, 16, 0.5, 7)
    assert levers.checkpoint_every == 1
    with pytest.raises(ArgumentError, match="--out"):
        parse_job("gpt", ["--out", "x"], "x")


# ---- export, import


@pytest.fixture
def full(store, module):
    told("warm", f"{module}:f", "--shape", "8,32", "--shape", "w=32,16")
    return store


def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "other"))
    return Store(tmp_path / "other")


@pytest.mark.parametrize("name", ["warm.tar.gz", "warm.zip"])
def test_a_warm_store_on_another_machine(full, tmp_path, monkeypatch, module, name):
    count = len(list(items(full)))
    found = told("export", tmp_path / name)
    assert found["entries"] == count and found["damaged"] == 0 and found["archive"].endswith(name)
    other = elsewhere(monkeypatch, tmp_path)
    assert told("import", tmp_path / name, "--dry-run")["imported"] == count and not list(items(other))
    found = told("import", tmp_path / name)
    assert found["imported"] == found["recompiled"] == count
    assert found["refused"] == [] and found["not_found_here"] == {}
    assert found["compilers"] == {Compiler.find().version: count}
    monkeypatch.setattr("vkdnn.shader._memo", {})
    assert told("warm", f"{module}:f", "--shape", "8,32", "--shape", "w=32,16")["compiled"] == 0
    assert f"imported 0 shaders (0 bytes), {count} known before" in run("cache", "import", tmp_path / name).stdout
    assert "only imported ones" in run("cache", "explain-miss").stdout
    one = next(items(other)).key
    assert told("explain-miss", one)["shaders"][0]["imported"] > 0
    assert re.search(
        rf"imported from the archive {name} on \d{{4}}-\S+ \S+, compiled elsewhere",
        run("cache", "explain-miss", one).stdout,
    )


def test_export_says_what_the_other_machine_needs():
    text = " ".join(run("cache", "export", "--help").stdout.replace("│", " ").split())
    assert "a GLSL compiler of the same version" in text and "vkdnn aot build --device" in text


def test_export_of_a_family_and_over_a_file(full, tmp_path):
    assert told("export", tmp_path / "a.zip", "--family", "matmul")["entries"] == 1
    assert len(zipfile.ZipFile(tmp_path / "a.zip").namelist()) == 1
    assert "give --overwrite" in run("cache", "export", tmp_path / "a.zip").stderr
    result = run("cache", "export", tmp_path / "a.zip", "--overwrite")
    assert "on the other machine: vkdnn cache import a.zip" in result.stdout
    assert "no shaders of family nothing" in run("cache", "export", tmp_path / "b.zip", "--family", "nothing").stderr
    assert "ends in .tar.gz" in run("cache", "export", tmp_path / "b.rar").stderr
    assert run("cache", "export", tmp_path / "no" / "b.zip").exit_code == 1
    assert not (tmp_path / "b.zip").exists()


def test_what_cannot_be_believed_is_named(full, tmp_path, monkeypatch):
    whole = [decode(i.path.read_bytes()) for i in items(full)]
    wrong = Entry("shaders", whole[0].components, whole[0].record, whole[0].contents | {"glsl": b"evil"})
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(f"shaders/{wrong.key}", encode(wrong))
        packed.writestr("../../evil\x1b[2J", b"")
        packed.writestr(f"shaders/{whole[1].key}", encode(whole[1]))
    other = elsewhere(monkeypatch, tmp_path)
    found = told("import", tmp_path / "a.zip", status=1)
    assert found["imported"] == 1 and len(found["refused"]) == 2
    assert [i.key for i in items(other)] == [whole[1].key]
    result = run("cache", "import", tmp_path / "a.zip")
    assert result.exit_code == 1 and "refused 1: its glsl is not that of its components" in result.stdout
    assert "\x1b" not in result.stdout and wrong.key in result.stdout


def test_another_compiler_here(full, tmp_path, monkeypatch):
    told("export", tmp_path / "a.zip")
    elsewhere(monkeypatch, tmp_path)
    found = Compiler.find()
    monkeypatch.setattr(Compiler, "find", staticmethod(lambda: Compiler(found.path, "Glslang Version: 11:99.1.0")))
    result = run("cache", "import", tmp_path / "a.zip")
    assert result.exit_code == 0
    assert "will not be found here: they are of compiler" in result.stdout and "here is 99.1.0" in result.stdout


def test_archives_that_are_none(store, tmp_path):
    assert "is no file" in run("cache", "import", tmp_path / "none.zip").stderr
    (tmp_path / "a.zip").write_bytes(b"PK rubbish")
    result = run("cache", "import", tmp_path / "a.zip")
    assert result.exit_code == 1 and "nothing was imported" in result.stderr
    assert not list(items(store))


def test_output_of_a_show_can_be_cut(full):
    """A pipe that closes is no error."""
    key = next(items(full)).key
    line = f"{sys.executable} -m vkdnn cache show {key} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip() == key and done.stderr == ""
