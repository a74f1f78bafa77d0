"""tools/bench --peers: every row runs, a peer that is missing or fails costs nobody else's figure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import tree

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.syspath_prepend(TOOLS / "benchmarks")


@pytest.fixture
def bench(tools):
    from benchmarks.peers import main

    return lambda *arguments: main(["--peers", *map(str, arguments)])


def test_the_command():
    """tools/bench takes --peers to where torch is not imported."""
    environment = {**os.environ, "VKDNN_TOOLS_SOURCED": "1"}
    command = [sys.executable, str(TOOLS / "bench"), "--peers", "--list"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout.startswith("rms_norm\n")


def test_rows_on_a_device(bench, tmp_path, capsys):
    files = ("--json", tmp_path / "found.json", "--png", tmp_path / "found.png")
    assert bench("--quick", "--runs", 2, "--only", "rms_norm", "--only", "product, 2*", *files) == 0
    text = capsys.readouterr().out
    record = json.loads((tmp_path / "found.json").read_text())
    norm, product = record["rows"]
    assert (norm["bytes"], norm["kernels"], norm["runs"]) == (4 * (2 * 8 * 64 + 64), 1, 2)
    assert product["flops"] == 2 * 2 * 16 * 16 and product["what"] == "2 x 16 by 16 x 16"
    assert norm["goal"]["text"] == "90% of copy" and norm["goal"]["reached"] > 0 and norm["seconds"] > 0
    for row in record["rows"]:
        assert [peer["name"] for peer in row["peers"]] == ["PyTorch"]
        assert row["peers"][0].keys() & {"missing", "seconds"}
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert "2 x 16 by 16 x 16" in text and ("all peers: " in text or "torch" in record["peers"])

    (tmp_path / "more.json").write_text(json.dumps({**record, "rows": [{**norm, "what": "measured later"}]}))
    assert bench("--read", tmp_path / "found.json", "--read", tmp_path / "more.json", "--markdown") == 0
    text = capsys.readouterr().out
    assert "| rms_norm | measured later |" in text and "product, 2" in text


def test_every_row_can_be_built_here_and_there(tools):
    from benchmarks.peers_cases import BUILDERS
    from benchmarks.peers_rows import ROWS, described
    from benchmarks.peers_torch import PEERS

    assert set(BUILDERS) == set(PEERS) == {row.kind for row in ROWS.values()}
    with vk.device("cpu"):
        for row in ROWS.values():
            assert described(row.kind, row.arguments(quick=False)) != described(row.kind, row.arguments(quick=True))
            BUILDERS[row.kind](row.arguments(quick=True)).call()


CHILD = """
import json, sys
(row, kind, sizes), *_ = json.load(sys.stdin)
print("a library says something")
print(json.dumps({"about": {"torch": "none"}}))
print(json.dumps({"row": row, "name": "PyTorch", "seconds": 0.5, "best_s": 0.5, "runs": 1}))
"""


def test_a_process_of_peers_that_dies(tools, monkeypatch, tmp_path):
    from benchmarks import peers, peers_report

    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(peers.peers_torch, "__file__", str(tmp_path / "child.py"))
    rows = [peers.ROWS["softmax"], peers.ROWS["attention, causal"]]
    monkeypatch.setitem(peers.BUILDERS, "attention", lambda s: 1 / 0)
    told = []
    record = peers.run(rows, vk.device(), quick=True, runs=1, tell=told.append)
    softmax, attention = record["rows"]
    assert softmax["peers"][0]["ratio"] == 0.5 / softmax["seconds"]
    assert attention["peers"] == [{"name": "SDPA", "missing": "the process of the peers ended"}]
    assert attention["error"] == "ZeroDivisionError: division by zero" and len(told) == 5
    text = "\n".join(peers_report.table(record))
    assert "attention, causal: ZeroDivisionError" in text and "SDPA: the process of the peers ended" in text


def test_goals(tools):
    from benchmarks.peers_rows import Goal

    assert Goal("seconds", 0.4e-3).met(0.3e-3) and not Goal("flops", 28e12).met(27e12)
    assert Goal("seconds", 0.4e-3).share(0.8e-3) == 0.5 and Goal("copy", 0.75).share(0.75) == 1.0
    assert [str(Goal(*g)) for g in (("seconds", 0.44e-3), ("flops", 28e12), ("copy", 0.9), ("busy", 0.9))] == [
        "0.44 ms", "28 TFLOP/s", "90% of copy", "90% busy",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "--only: nothing matches nothing; --list names what there is"),
        (["--device", "cpu"], "--device: cpu has no time stamps; name a Vulkan device"),
        (["--read", "/no/such/file"], "--read: "),
    ],
)
def test_bad_options(bench, arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        bench(*arguments)
    assert error.value.code == 2 and message in capsys.readouterr().err


# ---- where PyTorch is installed


def test_the_peers_run(tools):
    pytest.importorskip("torch")
    from benchmarks.peers_rows import ROWS

    rows = {row.kind: row for row in ROWS.values()}
    job = [[row.name, kind, row.arguments(quick=True)] for kind, row in rows.items()]
    command = [sys.executable, TOOLS / "benchmarks" / "peers_torch.py", "cpu"]
    result = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=True)
    about, *said = map(json.loads, result.stdout.splitlines())
    assert about["about"]["torch"] and {record["row"] for record in said} == {row.name for row in rows.values()}
    for record in said:
        assert "seconds" in record or "fla is not installed" in record.get("missing", ""), record


def test_the_twin_computes_the_same_loss(tools):
    torch = pytest.importorskip("torch")
    from peers_model import Twin

    config = vk.nn.RAPTConfig(width=16, layers=2, heads=2, key_width=8, value_width=8, hidden=24, order="chunked")
    model = vk.nn.RAPTModel(config)
    tokens = np.random.default_rng(0).integers(256, size=(2, 129), dtype=np.int32)
    with vk.device("cpu"):
        params = model.init(0)
        want, gradient = vk.value_and_grad(model.loss)(params, tokens)
    sizes = {name: getattr(config, name) for name in ("width", "layers", "heads", "hidden", "vocab")}
    twin = Twin(sizes)
    named = dict(zip(tree.paths(params), tree.flatten(params)[0], strict=True))
    slopes = dict(zip(tree.paths(gradient), tree.flatten(gradient)[0], strict=True))
    turned = {f"{name}.weight" for name, part in twin.named_modules() if isinstance(part, torch.nn.Linear)}
    for name, parameter in twin.named_parameters():
        value = torch.from_numpy(named[name].numpy().copy())
        parameter.data = value.T if name in turned else value
    loss = twin.loss(torch.from_numpy(tokens).long())
    loss.backward()
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    for name, parameter in twin.named_parameters():
        found = parameter.grad.T if name in turned else parameter.grad
        np.testing.assert_allclose(found.numpy(), slopes[name].numpy(), rtol=1e-3, atol=1e-5)
