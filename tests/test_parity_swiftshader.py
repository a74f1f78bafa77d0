"""A reduced set of the parity tests on SwiftShader: another vendor's compiler, other limits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ICD = os.environ.get("VKDNN_SWIFTSHADER_ICD", "")
FOLDER = Path(__file__).parent
SUITES = (
    "test_ops_elementwise.py",
    "test_fusion_patterns.py",
    "test_kernels_fold.py",
    "test_kernels_matmul.py",
    "test_kernels_scatter.py",
)
# Barriers are slow there: the longest rows and the forced strategies are left to the other devices.
LEFT_OUT = "not 32767 and not 32768 and not 32769 and not remainder and not software and not large"


@pytest.mark.skipif(not Path(ICD).is_file(), reason="VKDNN_SWIFTSHADER_ICD names no driver")
def test_core_parity_holds_on_swiftshader():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"VK_DRIVER_FILES": ICD, "VKDNN_DEVICE": "SwiftShader"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-k",
        LEFT_OUT,
    ]
    done = subprocess.run(
        [*command, *(str(FOLDER / suite) for suite in SUITES)],
        cwd=FOLDER.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
