"""The wheel: what it must contain, and that it works where there is no checkout.

These tests must never use the network, nor let the checkout answer for the wheel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("shaders", "templates")

# Run by an interpreter that sees the unpacked wheel and the dependencies but no checkout: an editable install
# puts the checkout on sys.path, so any folder that holds a vkdnn package is taken off first.
PRELUDE = """
import json, sys
from pathlib import Path
unpacked = sys.argv[1]
sys.path[:] = [unpacked] + [p for p in sys.path if not (Path(p) / "vkdnn").is_dir()]
"""


def resources() -> dict[tuple[str, str], str]:
    """The text of every resource of the checkout, by kind and name."""
    return {
        (kind, path.relative_to(ROOT / kind).as_posix()): path.read_text(encoding="utf-8")
        for kind in KINDS
        for path in sorted((ROOT / kind).rglob("*"))
        if path.is_file()
    }


def run_on_wheel(unpacked: Path, code: str) -> str:
    """What ``code`` prints when only the unpacked wheel provides vkdnn."""
    command = [sys.executable, "-I", "-c", PRELUDE + code, str(unpacked)]
    result = subprocess.run(command, cwd=unpacked, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def unpacked_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, built by way of the source distribution as a release is."""
    built = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = built.glob("*.whl")
    unpacked = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_wheel_holds_every_module_template_and_shader(unpacked_wheel: Path) -> None:
    wanted = {f"vkdnn/{kind}/{name}" for kind, name in resources()}
    kinds = ("*.py", "check/cases/*.toml")
    wanted |= {path.relative_to(ROOT).as_posix() for kind in kinds for path in (ROOT / "vkdnn").rglob(kind)}
    held = {path.relative_to(unpacked_wheel).as_posix() for path in unpacked_wheel.rglob("*") if path.is_file()}
    assert {kind for kind, _ in resources()} == set(KINDS)
    assert wanted <= held, f"missing from the wheel: {sorted(wanted - held)}"


def test_wheel_adds_nothing_beside_the_package(unpacked_wheel: Path) -> None:
    tops = {path.name for path in unpacked_wheel.iterdir()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"vkdnn"}


def test_resources_are_found_without_the_checkout(unpacked_wheel: Path) -> None:
    code = f"""
import vkdnn.codegen.resources as resources
assert Path(resources.__file__).is_relative_to(unpacked), resources.__file__
print(json.dumps([resources.read(kind, name) for kind, name in {list(resources())!r}]))
"""
    assert json.loads(run_on_wheel(unpacked_wheel, code)) == list(resources().values())


def test_console_command_leads_to_a_function(unpacked_wheel: Path) -> None:
    code = """
from importlib.metadata import distributions
(script,) = [e for d in distributions(name="vkdnn", path=[unpacked]) for e in d.entry_points]
main = script.load()
print(json.dumps([script.group, script.name, callable(main), sys.modules[main.__module__].__file__]))
"""
    group, name, is_callable, file = json.loads(run_on_wheel(unpacked_wheel, code))
    assert (group, name, is_callable) == ("console_scripts", "vkdnn", True)
    assert Path(file).is_relative_to(unpacked_wheel)
