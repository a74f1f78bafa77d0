"""The validation layer's findings: which count, and that a missing barrier is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import validation

TESTS = Path(__file__).parent
with_layer = pytest.mark.skipif(validation.find_layer() is None, reason="there is no validation layer")

PROGRAM = """
import numpy as np
import pytest
import vkdnn as vk
from vkdnn.runtime import recording

def softmax():
    x = vk.array(np.ones((8, 40), np.float32))
    return (vk.softmax(x @ vk.transpose(x), axis=0) @ x).numpy()

def test_barriers_where_they_belong():
    assert softmax().shape == (8, 40)

@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_barrier(monkeypatch, missing):
    plan = recording.plan_barriers

    def planted(launches):
        count, found = 0, []
        for barrier in plan(launches):
            count += barrier
            found.append(barrier and count != missing)
        return found

    monkeypatch.setattr(recording, "plan_barriers", planted)
    softmax()
"""

COPIES = """SYNC-HAZARD-WRITE-AFTER-WRITE(ERROR / SPEC): msgNum: 1544472022 - Validation Error:
 [ SYNC-HAZARD-WRITE-AFTER-WRITE ] Object 0: handle = 0x8, type = VK_OBJECT_TYPE_BUFFER; | MessageID = 0x5c0ec5d6 |
 vkCmdCopyBuffer: Hazard WRITE_AFTER_WRITE for dstBuffer VkBuffer 0x8[], region 0. Access info (usage:
 SYNC_COPY_TRANSFER_WRITE, prior_usage: SYNC_COPY_TRANSFER_WRITE, write_barriers: 0, command: vkCmdCopyBuffer).
    Objects: 1
        [0] 0x8, type: 9, name: NULL
"""


def test_the_script_says_how_it_is_called():
    script = TESTS.parent / "tools/test"
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith("usage: tools/test [arguments of pytest]\n       tools/test --validate [arguments")


def test_what_is_known_is_no_finding():
    assert len(validation.findings(COPIES + COPIES)) == 2
    assert validation.unknown(validation.findings(COPIES)) == []
    others = (COPIES.replace("vkCmdCopyBuffer: ", "vkCmdDispatch: "), COPIES.replace("[ SYNC-HAZARD", "[ VUID"))
    assert all(len(validation.unknown(validation.findings(text))) == 1 for text in others)
    assert all(reason[0].isupper() and len(reason) > 30 for reason in validation.KNOWN)


@with_layer
def test_a_planted_missing_barrier_fails_its_test_alone(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "validation", "-p", "no:cacheprovider", tmp_path],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent)))},
    )  # fmt: skip
    assert done.returncode == 1 and "3 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
    assert all("test_a_missing_barrier" in line for line in errors)
    assert "SYNC-HAZARD-READ-AFTER-WRITE" in done.stdout
