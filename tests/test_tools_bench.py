"""tools/bench: every case runs and tells its figures in full. Nothing here looks at how large a figure is."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vkdnn as vk

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "tools" / "bench"
ROW = {"name", "what", "kernels", "flops", "bytes", "device", "call", "peers", "roofline_fraction", "bound"}
TIMES = {"median_s", "best_s", "runs"}


def bench(*arguments):
    # The environment is this one already; output must not depend on a terminal's width.
    environment = {**os.environ, "VKDNN_TOOLS_SOURCED": "1", "COLUMNS": "80"}
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def names():
    return bench("--list").stdout.splitlines()


def check_case(row):
    assert row.keys() >= ROW, row
    for times in (row["device"], row["call"], *row["peers"]):
        assert times.keys() >= TIMES and 0 < times["best_s"] <= times["median_s"] and times["runs"] >= 1
    assert row["kernels"] >= 1 and row["bytes"] > 0 and row["flops"] >= 0 and row["bound"] in ("memory", "arithmetic")
    assert row["roofline_fraction"] > 0 and all(peer["ratio"] > 0 for peer in row["peers"])


def test_a_case_on_a_device(tmp_path):
    arguments = ["--only", "chain*", "--only", "replay", "--only", "growth", "--only", "memory"]
    result = bench("--quick", *arguments, "--json", tmp_path / "found.json", "--png", tmp_path / "found.png")
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "found.json").read_text())
    (row,) = record["cases"]
    check_case(row)
    assert row["kernels"] == 1 and row["flops"] == 10 * 2**14 and row["bytes"] == 8 * 2**14
    assert [peer["name"] for peer in row["peers"]] == ["NumPy", "NumPy, in place"]
    facts = {fact["name"]: fact for fact in record["facts"]}
    assert facts["replay"]["submissions_a_step"] == 1
    assert facts["growth"]["device_growth_bytes"] == 0
    assert facts["memory"]["arenas_bytes"] >= facts["memory"]["lower_bound_bytes"] > 0
    assert set(record["roofline"]) == {"bytes_per_s", "flops_per_s", "submission_s"}
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert "chain of 10" in result.stdout and "submissions a step" in result.stdout


@pytest.fixture(scope="module")
def on_the_reference():
    """Every case and fact, where no shader has to be compiled."""
    return bench("--quick", "--device", "cpu", "--json", "-")


def test_every_case_runs(on_the_reference):
    assert on_the_reference.returncode == 0, on_the_reference.stderr
    record = json.loads(on_the_reference.stdout)
    assert [row["name"] for row in (*record["cases"], *record["facts"])] == names()
    for row in record["cases"]:
        check_case(row)
    assert [row["name"] for row in record["cases"] if "tokens_per_s" in row] == ["training step"]
    for row in record["cases"]:
        if row["name"].startswith("attention"):
            assert "vkdnn, unfused" in [peer["name"] for peer in row["peers"]]
            assert len(row["peers"]) == 2 or row["notes"] == ["no PyTorch SDPA: torch is not installed"]
    facts = {fact["name"]: fact for fact in record["facts"]}
    assert facts["importing"]["best_s"] > 0 and "Vulkan" in facts["replay"]["missing"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 7])
@pytest.mark.parametrize("most", [1000, 20, 1])
def test_unfused_attention_computes_the_same(monkeypatch, causal, queries, most):
    monkeypatch.syspath_prepend(BENCH.parent)
    from benchmarks import attention

    random = np.random.default_rng(0)
    shapes = ((2, queries, 4, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    with vk.device("cpu"):
        q, k, v = (vk.array(random.standard_normal(s, dtype=np.float32)) for s in shapes)
        found, want = attention._in_pieces(q, k, v, causal, most), vk.attention(q, k, v, causal=causal)
        np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


def test_json_is_alone_on_stdout(on_the_reference):
    assert json.loads(on_the_reference.stdout)["scale"] == "quick"
    assert "training step" in on_the_reference.stderr
    if importlib.util.find_spec("torch") is None:
        assert "no PyTorch loop: torch is not installed" in on_the_reference.stderr


def test_tables_in_markdown():
    result = bench("--quick", "--device", "cpu", "--only", "softmax*", "--markdown")
    assert result.returncode == 0, result.stderr
    table = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert table[0].startswith("| case | size |") and len(table) == 4
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "--only: nothing matches nothing; --list names what there is"),
        (["--quick", "--large"], "not allowed with"),
        (["--turns", "0"], "got '0', expected a whole number, 1 or more"),
        (["--device", "no such card"], "--device: "),
        (["--json", "/no/such/folder/x.json"], "its folder does not exist"),
    ],
)
def test_bad_options(arguments, message):
    result = bench(*arguments)
    assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr
