"""tools/sweep: it covers what it says, finds a planted difference, and stops when its time is up."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOOL = Path(__file__).parents[1] / "tools" / "sweep"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def sweep():
    loader = importlib.machinery.SourceFileLoader("sweep", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("sweep", loader))
    loader.exec_module(module)
    return module


def test_functions_of_one_and_of_two_arguments(tmp_path):
    out = tmp_path / "out.jsonl"
    command = [sys.executable, str(TOOL), "--stride", "65537", "--pairs", "50000", "--functions", "exp,pow"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "complete: exp, pow\nnot complete: none" in done.stdout
    for row, count in zip(map(json.loads, out.read_text().splitlines()), (65536, 50000), strict=True):
        assert row["complete"] and row["inputs"] == row["of"] >= count and row["differing"] == 0
        assert 0.5 < row["ulp"] < 0.7 and not row["errors"]


def test_no_time_at_all_is_said(tmp_path):
    command = [sys.executable, str(TOOL), "--functions", "exp", "--seconds", "0", "--out", str(tmp_path / "out.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "not complete: exp" in done.stdout


@pytest.mark.parametrize("stride", [1, 37, 4099])
def test_the_pieces_hold_every_input(sweep, stride):
    inputs = sweep.Inputs("exp", stride, 0)
    assert sorted(inputs.order()) == list(range(inputs.count))
    assert inputs.count * inputs.length * stride >= 2**32 and inputs.length % 1024 == 0
    # Consecutive pieces join, and a tenth of them meets most exponents.
    assert all(inputs.start(k + 1) == (inputs.start(k) + inputs.length * stride) % 2**32 for k in range(3))
    early = [inputs.start(k) >> 23 & 0xFF for k in inputs.order()[: inputs.count // 10 + 1]]
    assert max(early) - min(early) > 128 or inputs.count < 10


def test_a_planted_difference_is_found(sweep):
    import vkdnn as vk

    inputs = sweep.Inputs("exp", 2**14, 0)
    piece = inputs.count // 2 - 1  # the largest numbers, infinity and NaNs
    comparer = sweep.Comparer("exp", inputs, vk.device())
    slot = bytearray(4 * inputs.length)
    found = sweep.referred("exp", inputs, piece, slot, True)
    assert found["inputs"] == inputs.length and found["ulp"] == 0
    want = np.frombuffer(slot, np.float32)
    assert comparer.differing(piece, want) == (0, [])
    infinite, nan = (int(np.flatnonzero(f(want))[0]) for f in (np.isinf, np.isnan))
    want[infinite] = np.float32(3e38)
    want[nan] = 1
    count, first = comparer.differing(piece, want)
    assert count == 2 and first[1:] == [float(want[infinite]).hex(), "inf"]


def test_an_unknown_function_is_refused(sweep, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sweep", "--functions", "expo"])
    with pytest.raises(SystemExit):
        sweep.main()
    assert "no row for expo" in capsys.readouterr().err
