"""The runtime's tests again on SwiftShader: another vendor's compiler, where its driver is at hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ICD = os.environ.get("VKDNN_SWIFTSHADER_ICD", "")
SUITES = ("test_runtime_kompute.py", "test_runtime_probe.py")


@pytest.mark.skipif(not Path(ICD).is_file(), reason="VKDNN_SWIFTSHADER_ICD names no driver")
@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_passes_on_swiftshader(suite):
    folder = Path(__file__).parent
    environment = {**os.environ, "VK_DRIVER_FILES": ICD, "VKDNN_DEVICE": "SwiftShader"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, folder / suite]
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
