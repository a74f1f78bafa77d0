"""The doctor: a healthy machine, and machines on which one thing is broken."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn.check import device_health, doctor, drivers, evidence
from vkdnn.check.environment import VARIABLES, variable_findings
from vkdnn.check.finding import Finding, Report
from vkdnn.cli import app
from vkdnn.runtime import info as infos
from vkdnn.runtime import probe
from vkdnn.shader import store as stores
from vkdnn.shader.compiler import Compiler

ROOT = Path(vk.__file__).parent
EVIDENCE = ROOT.parent / "docs/evidence"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    for name in ("VKDNN_DEVICE", "VKDNN_STRATEGIES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick(monkeypatch):
    """No processes that look at drivers: what they would find."""
    monkeypatch.setattr(drivers, "look_at", lambda paths: [drivers.Driver(str(p), "lib", ("a device",)) for p in paths])
    monkeypatch.setattr(drivers, "opening_trouble", lambda: None)


def problems(report, state="failure"):
    return "\n".join(f"{f.topic}: {f.text} -> {f.remedy}" for f in report.of(state))


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


# ---- healthy


def test_a_healthy_machine():
    result = run("--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["healthy"] and found["counts"]["failure"] == 0
    topics = dict.fromkeys(f["topic"] for f in found["findings"])
    assert list(topics) == [
        "python", *(["variables"] if "variables" in topics else []), "loader", "drivers", "kompute", "compiler",
        "tools", "store", "disk", "devices", *(f"device {d.index}" for d in vk.devices()),
    ]  # fmt: skip
    texts = "\n".join(f["text"] for f in found["findings"])
    assert "every bit is the reference's" in texts and "strategies: subnormals" in texts and "Vulkan 1." in texts


def test_the_report_for_people(quick, monkeypatch):
    result = run()
    assert result.exit_code == 0 and "healthy: 0 failures" in result.stdout
    monkeypatch.setenv("VKDNN_DEVICE", "no such card")
    result = run()
    assert result.exit_code == 1 and "not healthy: 1 failure," in result.stdout
    assert "remedy: set VKDNN_DEVICE to one of those, or unset it" in result.stdout


def test_every_rule_is_counted():
    numerics = device_health.numerics_of(vk.devices()[0])
    assert len(numerics.rules) == len(probe._RULES) + 1
    assert sum(r.cases for r in numerics.rules[:-1]) == numerics.rules[-1].cases == probe.make_cases().count
    assert numerics.strategies == vk.device(0).opened.strategies
    record = numerics.record()
    assert [r["name"] for r in record["rules"]][:3] == ["addition", "subtraction", "multiplication"]


# ---- broken, one thing at a time


def test_no_loader(quick, monkeypatch):
    monkeypatch.setattr(drivers, "LOADER", "libvulkan-that-is-not-there.so.1")
    monkeypatch.setitem(sys.modules, "vulkan", None)
    found = doctor.examine()
    assert "loader: no Vulkan loader" in problems(found) and "libvulkan1" in problems(found)
    assert [f.topic for f in found.of("failure")] == ["loader"], "one cause, one failure"
    assert "devices: none was looked at: mend what the part about loader says" in problems(found, "note")
    monkeypatch.setenv("VKDNN_DEVICE", "cpu")
    found = doctor.examine()
    assert found.healthy and "no Vulkan loader" in problems(found, "warning")


def test_no_driver(monkeypatch):
    done = subprocess.run(
        [sys.executable, "-m", "vkdnn", "doctor", "--json"], capture_output=True, text=True, check=False,
        env={**os.environ, "VK_DRIVER_FILES": "/nowhere/icd.json", "VKDNN_DEVICE": ""},
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    failed = [f for f in json.loads(done.stdout)["findings"] if f["state"] == "failure"]
    (one,) = failed
    assert one["topic"] == "drivers" and "cannot be read (No such file or directory)" in one["text"]
    assert one["remedy"] == "correct or unset VK_DRIVER_FILES, which names it"


def test_drivers_of_a_distribution_that_offer_nothing(monkeypatch):
    monkeypatch.setattr(drivers, "manifests", lambda: ([Path("/a.json")], "the standard folders"))
    monkeypatch.setattr(drivers, "look_at", lambda paths: [drivers.Driver("/a.json", trouble="is no JSON")])
    first, second = doctor._drivers("failure")
    assert first.state == "warning" and "install its package again" in first.remedy
    assert second.state == "failure" and "mesa-vulkan-drivers" in second.remedy
    assert "VKDNN_DEVICE=cpu" in second.remedy


def test_no_manifest_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path))
    assert drivers.manifests() == ([], "VK_DRIVER_FILES")
    (found,) = doctor._drivers("failure")
    assert found.state == "failure" and found.text.startswith("no manifest of a driver in VK_DRIVER_FILES")


def test_where_manifests_are_looked_for(tmp_path):
    for name in ("config/vulkan/icd.d/a.json", "data/vulkan/icd.d/b.json", "more/c.json", "more/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    standard = {"XDG_CONFIG_HOME": f"{tmp_path}/config", "XDG_DATA_DIRS": f"{tmp_path}/data", "HOME": ""}
    found, source = drivers.manifests(standard | {"XDG_CONFIG_DIRS": "/nowhere"})
    names = [p.name for p in found if tmp_path in p.parents]
    assert names == ["a.json", "b.json"] and source == "the standard folders"
    found, source = drivers.manifests({"VK_DRIVER_FILES": f"{tmp_path}/more:/x.json", "VK_ICD_FILENAMES": "/y.json"})
    assert [str(p) for p in found] == [f"{tmp_path}/more/c.json", "/x.json"] and source == "VK_DRIVER_FILES"
    found, source = drivers.manifests(standard | {"VK_ADD_DRIVER_FILES": "/x.json"})
    assert str(found[0]) == "/x.json" and source == "VK_ADD_DRIVER_FILES and the standard folders"


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("{", "is no JSON"),
        ("[]", "names no library"),
        ('{"ICD": {}}', "names no library"),
        ('{"ICD": {"library_path": "./nothing.so"}}', "nothing.so: cannot open shared object file"),
        ('{"ICD": {"library_path": "./text.so"}}', "invalid ELF header|file too short"),
    ],
)
def test_a_broken_manifest(tmp_path, text, trouble):
    (tmp_path / "icd.json").write_text(text)
    (tmp_path / "text.so").write_text("no library")
    (driver,) = drivers.look_at([tmp_path / "icd.json"])
    assert re.search(trouble, driver.trouble) and driver.devices == ()


def test_a_broken_manifest_beside_a_good_one_is_a_warning(monkeypatch):
    found = [drivers.Driver("/a.json", "lib", ("card",)), drivers.Driver("/b.json", trouble="is no JSON")]
    monkeypatch.setattr(drivers, "look_at", lambda paths: found)
    report = Report(tuple(doctor._drivers("failure")))
    assert report.healthy and "/b.json: is no JSON" in problems(report, "warning")


def test_a_driver_that_crashes_or_hangs_takes_nobody_along(monkeypatch):
    monkeypatch.setattr(drivers, "look_at", lambda paths: [])
    crash = "import os; print('opening device 0', flush=True); os.kill(os.getpid(), 11)"
    monkeypatch.setattr(drivers, "_EVERY_DEVICE", crash)
    assert drivers.opening_trouble() == f"opening device 0: it crashed the process ({signal.SIGSEGV.name})"
    report = Report(tuple(doctor._devices("failure")))
    assert "a driver fails" in problems(report) and "VK_DRIVER_FILES" in problems(report)
    monkeypatch.setattr(drivers, "_EVERY_DEVICE", "import time; print('opening', flush=True); time.sleep(9)")
    monkeypatch.setattr(drivers, "SECONDS", 0.5)
    assert drivers.opening_trouble() == "opening: no answer within 0.5 s"
    monkeypatch.setattr(drivers, "_EVERY_DEVICE", "raise ValueError('vkdnn tells that itself')")
    assert drivers.opening_trouble() is None


def test_a_program_that_hangs_is_killed_with_what_it_started(monkeypatch, tmp_path):
    for name, text in (("spirv-val", "sleep 60 & echo $! > child\nwait"), ("spirv-dis", "exit 3")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(doctor, "TOOL_SECONDS", 0.5)
    begun = time.monotonic()
    found = list(doctor._tools())
    assert time.monotonic() - begun < 10
    assert [f.state for f in found] == ["warning", "warning"] and "optional" in found[0].remedy
    assert found[0].text == f"{tmp_path}/spirv-val --version does not end within 0.5 s"
    assert found[1].text.endswith("spirv-dis --version exits with 3")
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() - begun < 10:
        time.sleep(0.01)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_no_kp(quick, monkeypatch):
    monkeypatch.setitem(sys.modules, "kp", None)
    report = doctor.examine()
    assert "kompute: Kompute is missing" in problems(report) and "tools/setup" in problems(report)
    assert len(report.of("failure")) == 1
    assert "device 0: its arithmetic was not tested: mend what the part about kompute says" in problems(report, "note")


def test_no_compiler(quick, monkeypatch):
    monkeypatch.setenv("VKDNN_GLSLANG", "/nowhere/glslangValidator")
    (failed,) = (f for f in doctor.examine().of("failure") if f.topic == "compiler")
    assert failed.text == "VKDNN_GLSLANG is '/nowhere/glslangValidator', expected an executable file"
    assert failed.remedy.startswith("correct or unset VKDNN_GLSLANG; without it, install")
    assert "glslang-tools" in failed.remedy
    monkeypatch.setenv("VKDNN_AOT_ONLY", "1")
    assert [f.state for f in doctor._compiler("failure")] == ["warning"]


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    script = tmp_path / "glslangValidator"
    script.write_text("#!/bin/sh\n[ $1 = --version ] && echo Version 1 || exit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("VKDNN_GLSLANG", str(script))
    first, second = doctor._compiler("failure")
    assert first.state == "ok" and second.state == "failure" and "does not compile" in second.text
    monkeypatch.setattr(Compiler, "compile_glsl", lambda *_: b"\x03\x02\x23\x07")
    assert "what it compiles is wrong" in list(doctor._compiler("failure"))[1].text


def test_a_store_that_cannot_be_used(monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_CACHE_DIR", "/proc/nothing")
    assert "cannot be written" in problems(Report(tuple(doctor._store())), "warning")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "file"))
    assert "which is a file" in problems(Report(tuple(doctor._store())))
    monkeypatch.setenv("VKDNN_CACHE_DISABLE", "1")
    assert [f.state for f in doctor._store()] == ["note"]
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]  # nothing was left


@pytest.mark.parametrize(("place", "state"), [("file", "failure"), ("file/below", "warning"), ("/proc/no", "warning")])
def test_a_bad_store_is_one_problem_and_all_else_is_looked_at(quick, monkeypatch, tmp_path, recwarn, place, state):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / place))
    report = doctor.examine()
    (found,) = (*report.of("failure"), *report.of("warning"))
    assert (found.topic, found.state) == ("store", state)
    assert found.remedy == "set VKDNN_CACHE_DIR to a folder that can be written, or VKDNN_CACHE_DISABLE=1"
    assert not [w for w in recwarn if w.category is RuntimeWarning] and "VKDNN_CACHE_DISABLE" not in os.environ
    assert any("every bit is the reference's" in f.text for f in report.of("ok"))


def test_a_bad_variable_is_one_problem_and_said_once(quick, monkeypatch):
    monkeypatch.setenv("VKDNN_STRATEGIES", "bogus")
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "much")
    result = run()
    assert result.exit_code == 1 and "not healthy: 2 failures, 0 warnings" in result.stdout
    assert result.stdout.count("VKDNN_STRATEGIES has 'bogus'") == 1
    assert "variables: remedy: correct VKDNN_STRATEGIES or unset it" in result.stdout
    assert "kept in all of " in result.stdout and os.environ["VKDNN_STRATEGIES"] == "bogus"


@pytest.mark.parametrize("arguments", [("--quick",), ("--sweep", "x"), ("--device", "0")])
def test_options_of_evidence_alone_are_refused(arguments):
    result = run(*arguments)
    assert result.exit_code == 1 and f"{arguments[0]}: is for --evidence" in result.stderr


def test_a_full_disk(monkeypatch, tmp_path):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    assert "No space left on device" in problems(Report(tuple(doctor._store())), "warning")
    found = Report(tuple(doctor._disk()))
    assert "1000 bytes free for the store" in problems(found) and "make room" in problems(found)
    assert not (tmp_path / "store").exists()


def test_damaged_entries_are_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    store = stores.Store(tmp_path)
    for digit in "abc":
        path = store.path(digit * 64)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"vkdnn 2 damaged")
    assert "3 of 3 entries looked at are damaged" in problems(Report(tuple(doctor._store())), "warning")
    with pytest.warns(RuntimeWarning, match="was set aside"):
        assert store.load_key("a" * 64) is None
    found = problems(Report(tuple(doctor._store())), "warning")
    assert "1 damaged entries were set aside" in found and "vkdnn cache repair" in found


def test_a_device_that_breaks_a_rule(quick, monkeypatch):
    real = probe.answers

    def broken(device):
        cases, results, copies = real(device)
        wrong = np.flatnonzero(cases.of(probe.Operation.MULTIPLY_ADD))[:7]
        results[wrong] ^= 1
        return cases, results, copies

    monkeypatch.setattr(probe, "answers", broken)
    report = doctor.examine()
    found = problems(report)
    assert "device 0: no contraction of a * b + c: 7 of 1,024 cases differ, kept not at all" in found
    assert "refused: device 0: " in found and "another device with VKDNN_DEVICE" in found
    monkeypatch.setenv("VKDNN_DEVICE", "cpu")
    assert doctor.examine().healthy


def test_a_kernel_whose_bits_differ(quick, monkeypatch):
    real = vk.softmax
    monkeypatch.setattr(vk, "softmax", lambda x: real(x) + (0.5 if vk.current_device().kind != "reference" else 0.0))
    found = problems(doctor.examine())
    assert "one kernel from end to end:" in found and "results differ, first at (0, 0)" in found


def test_a_doctor_that_falls_ill_says_so(quick, monkeypatch):
    def ill():
        raise RuntimeError("no idea")

    monkeypatch.setattr(infos, "list_devices", ill)
    report = doctor.examine()
    assert "devices: unexpected RuntimeError: no idea" in problems(report) and len(report.findings) > 10


# ---- variables


def test_every_variable_that_is_read_is_explained():
    text = "\n".join(p.read_text() for p in [*ROOT.rglob("*.py"), *ROOT.parent.glob("tools/*")] if p.is_file())
    read = set(re.findall(r"""environ(?:\.get\(|\[)["'](VKDNN_[A-Z_]+)""", text))
    assert read and read <= set(VARIABLES)


def test_variables_that_are_wrong(monkeypatch):
    monkeypatch.setenv("VKDNN_STRATEGIES", "division=native,roots=no")
    monkeypatch.setenv("VKDNN_CACHE_MAX_BYTES", "much")
    monkeypatch.setenv("VKDNN_AOT", "/nowhere")
    monkeypatch.setenv("VKDNN_DEVISE", "0")
    found = Report(tuple(variable_findings()))
    assert len(found.of("failure")) == 3 and "VKDNN_STRATEGIES has 'roots=no'" in problems(found)
    assert "did you mean VKDNN_DEVICE?" in problems(found, "warning")
    assert any(f.text.startswith("VKDNN_AOT=/nowhere: bundles") for f in found.of("note"))


def test_a_report_counts_and_prints_as_json():
    report = Report((Finding("a", "ok", "fine"), Finding("b", "warning", "odd", "look"), Finding("c", "note", "so")))
    assert report.healthy and report.record()["counts"] == {"failure": 0, "warning": 1, "note": 1, "ok": 1}
    assert json.loads(json.dumps(report.record()))["findings"][1]["remedy"] == "look"


# ---- evidence


def test_evidence_of_a_device(tmp_path, monkeypatch):
    class Same:
        digest = reference = "0123456789abcdef"

    monkeypatch.setattr("vkdnn.check.evidence.verify", lambda *_: Same)
    result = run("--evidence", str(tmp_path / "here.md"))
    assert result.exit_code == 0, result.output
    found, text = json.loads((tmp_path / "here.json").read_text()), (tmp_path / "here.md").read_text()
    assert found["device"]["name"] == vk.devices()[0].name and found["kernel"] == "equal"
    assert text == evidence.markdown({"here": found}) and text in result.stdout
    assert "| addition | 0 of 5,540 |" in text and "`0123456789ab`, equal" in text
    Same.digest = "f" * 16
    assert run("--evidence", str(tmp_path / "here"), "--json").exit_code == 1
    assert json.loads(run("--evidence", str(tmp_path / "quick"), "--quick", "--json").stdout)["training"] is None


def test_evidence_with_a_sweep(tmp_path):
    figures = tmp_path / "figures.json"
    swept = CliRunner().invoke(app, ["sweep", "abs", "exp", "--stride", "262145", "--jobs", "0", "-o", str(figures)])
    assert swept.exit_code == 0, swept.output
    assert run("--evidence", str(tmp_path / "here"), "--quick", "--sweep", str(figures)).exit_code == 0
    found = json.loads((tmp_path / "here.json").read_text())
    assert found["sweep"]["functions"] == 2 and found["sweep"]["ok"] and found["sweep"]["worst"][0] == "exp"
    assert "| all inputs | 2 functions, " in evidence.markdown({"here": found})
    figures.write_text(figures.read_text().replace(found["device"]["name"], "another card"))
    assert "are of another card" in run("--evidence", "x", "--quick", "--sweep", str(figures)).stderr
    figures.write_text("{}")
    assert "holds no figures" in run("--evidence", "x", "--quick", "--sweep", str(figures)).stderr


def test_a_page_of_what_was_kept(tmp_path):
    found = evidence.load(EVIDENCE / "llvmpipe-25.0.7.json")
    (tmp_path / "a.json").write_text(json.dumps(found))
    found["numerics"]["rules"][3]["differing"], found["numerics"]["strategies"] = 17, None
    (tmp_path / "b.json").write_text(json.dumps(found))
    swept = {"function": "exp", "inputs": 5, "of": 9, "complete": False, "differing": 0, "error": "inf"}
    swept["at"] = ["0x1p+1"]
    (tmp_path / "sweep.json").write_text(json.dumps({"device": None, "driver": None, "functions": [swept]}))
    assert run("--page", str(tmp_path)).exit_code == 0
    page = (tmp_path / "README.md").read_text()
    assert "| | a | b |" in page and "| division | 0 of 5,540 | 17 of 5,540 |" in page
    assert "| strategy for division | native | refused |" in page and "| exp | 5 of 9 | 0 | inf | 0x1p+1 |" in page


def test_a_page_of_nothing_or_of_other_files_is_refused(tmp_path):
    assert "has no evidence" in run("--page", str(tmp_path)).stderr
    for text in ("{}", "[]", "{", '{"format": "another"}'):
        (tmp_path / "x.json").write_text(text)
        assert "x.json: is none" in run("--page", str(tmp_path)).stderr
    assert "cpu is the reference itself" in run("--evidence", "x", "--device", "cpu").stderr


def test_the_page_of_this_repository_is_what_the_command_makes():
    assert (EVIDENCE / "README.md").read_text() == evidence.page(EVIDENCE)
    for path in EVIDENCE.glob("*.json"):
        if path.name != evidence.SWEEP:
            found = evidence.load(path)
            assert evidence.holds(found) and found["training"] is not None, path
            assert path.with_suffix(".md").read_text() == evidence.markdown({path.stem: found}), path
