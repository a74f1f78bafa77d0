"""Sweeps: they cover what they say, find planted differences, and give the same figures however often interrupted."""

import dataclasses
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
from vkdnn.check import sweep_journal, sweep_truth
from vkdnn.check.sweep import LOOKED_AT, PAIRS, UNARY, Compared, Inputs, Sweep, bound
from vkdnn.check.sweep_pieces import chunks, digest_text, digest_words, fingerprint, refer, words_of
from vkdnn.cli import app
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.ir.ops import OPS

KEPT = Path(__file__).parents[1] / "docs/evidence/sweep.json"
FEW = 2**18 + 1  # a stride that leaves a few thousand inputs


def run(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def small(functions=("exp", "isnan"), **options):
    return Sweep(functions, vk.device(), **{"stride": FEW, "jobs": 0} | options)


# ---- what is covered


def test_a_device_gives_every_bit_of_functions_of_all_kinds():
    names = ["silu", "to_float16", "to_bfloat16", "to_int32", "to_uint32", "isinf", "pow", "bits_float32"]
    for f in small(names, pairs=4000).run():
        assert f.complete and f.ok and f.differing == 0 and f.inputs >= 4000, f


def test_all_functions_keep_their_bounds():
    found = Sweep([*UNARY, *PAIRS], None, stride=FEW, pairs=4000, jobs=0).run()
    assert [f.function for f in found] == [*UNARY, *PAIRS] and len(found) > 55
    for f in found:
        assert f.complete and f.ok and f.differing is None and f.inputs >= 4000, f
        assert f.error is not None and (f.bound is not None or f.function.endswith("_slope")), f
        assert f.error < 1.6 or f.function in ("hardswish", "elu"), f


def test_exact_rows_have_no_error_at_all():
    rounded = {"sqrt", "square", "to_float32", "reciprocal", "to_float16", "to_bfloat16"}
    plain = [n for n in UNARY if OPS[n].define is None and n not in rounded]
    assert {bound(n) for n in plain} == {0.0} and len(plain) > 15
    assert {f.error for f in Sweep(plain, None, stride=2**20, jobs=0).run()} == {0.0}


def test_every_row_of_one_float_is_swept_and_has_its_truth():
    assert {n for n, op in OPS.items() if op.arity == 1 and op.types[0] != "x"} == set(UNARY)
    assert all(sweep_truth.error_of(name) is not None for name in (*UNARY, *PAIRS))


@pytest.mark.parametrize("stride", [1, 37, 4099])
def test_the_pieces_hold_every_input(stride):
    inputs = Inputs.of("exp", stride)
    assert sorted(inputs.order()) == list(range(inputs.count))
    assert inputs.count * inputs.length * stride >= 2**32 and inputs.length % 1024 == 0
    # Consecutive pieces join, and a tenth of them meets most exponents.
    assert all(inputs.start(k + 1) == (inputs.start(k) + inputs.length * stride) % 2**32 for k in range(3))
    early = [inputs.start(k) >> 23 & 0xFF for k in inputs.order()[: inputs.count // 10 + 1]]
    assert max(early) - min(early) > 128 or inputs.count < 10


@pytest.mark.parametrize(
    ("name", "wrong", "error"),
    [
        ("exp", lambda y: np.nextafter(y, np.float32(np.inf)), 1.0),
        ("floor", lambda y: y + np.float32(1), np.inf),
        ("neg", np.abs, np.inf),
        ("to_int32", lambda y: y ^ 1, np.inf),
        ("isnan", np.logical_not, np.inf),
        ("to_float16", lambda y: y * np.float32(1 + 2**-10), 1.0),
        ("to_bfloat16", lambda y: -y, np.inf),
        ("silu_slope", lambda y: y + np.float32(2**-22), 2.0),
    ],
)
def test_wrong_results_are_measured(name, wrong, error):
    inputs = Inputs.of(name, 4099)
    parts = list(chunks(inputs, 0x3F800000 // (4099 * inputs.length)))  # numbers about 1
    values, results = [np.concatenate([v[0] for v, _ in parts])], np.concatenate([r for _, r in parts])
    measured = sweep_truth.error_of(name)[1]
    with np.errstate(all="ignore"):
        assert np.max(measured(results, *values)) <= 1.5
        assert np.max(measured(wrong(results), *values)) >= error * 0.9


# ---- digests


def test_digests_of_parts_add_up_and_see_every_bit_and_place():
    words = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    whole = digest_words(words)
    parts = [digest_words(words[i : i + 1000], i) for i in range(0, 5000, 1000)]
    assert [sum(p) % 2**32 for p in zip(*parts, strict=True)] == whole
    for bit in range(32):
        changed = words.copy()
        changed[bit * 100] ^= np.uint32(1 << bit)
        assert all(a != b for a, b in zip(digest_words(changed), whole, strict=True))
    assert digest_words(words[::-1]) != whole
    nan = np.array([0x7FC00000, 0xFFC12345], np.uint32).view(np.float32)
    assert len(set(words_of(nan).tolist())) == 1


@pytest.mark.parametrize("name", ["exp", "to_float16", "to_int32", "isinf", "pow"])
def test_a_device_gives_the_reference_s_digest(name):
    inputs = Inputs.of(name, FEW, 3000)
    compared = Compared(inputs, vk.device())
    for piece in (0, inputs.count - 1):
        assert compared.digest(piece) == refer(inputs, piece).digest
        assert compared.differing(piece) == (0, [])
    values = np.concatenate([r for _, r in chunks(inputs, 0)])
    assert digest_text(digest_words(words_of(values))) == refer(inputs, 0).digest


# ---- differences


def test_a_wrong_form_in_glsl_is_found(monkeypatch):
    monkeypatch.setitem(OPS, "floor", dataclasses.replace(OPS["floor"], glsl="ceil_({0})"))
    (found,) = small(["floor"]).run()
    assert found.complete and not found.ok and found.differing > LOOKED_AT
    value, want, got = (float.fromhex(text) for text in found.first)
    assert np.floor(value) == want and np.ceil(value) == got


def test_an_error_above_its_bound_is_a_failure(monkeypatch):
    monkeypatch.setitem(OPS, "exp", dataclasses.replace(OPS["exp"], ulp=0.51))
    result = run("exp", "--stride", FEW, "--jobs", 0)
    assert result.exit_code == 1 and "above 0.51" in result.stdout and "0 differing" in result.stdout


# ---- files


def test_recorded_here_and_compared_there(tmp_path):
    recording = tmp_path / "reference"
    result = run("exp", "isnan", "--stride", FEW, "--jobs", 0, "--record", recording, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["functions"]
    assert all(r["differing"] is None and r["complete"] for r in rows) and rows[0]["error"] > 0.5
    plain = small().run()

    def never(*_):
        raise AssertionError("the reference was recorded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vkdnn.check.sweep.refer", never)
        assert small(against=recording).run() == plain
        assert small(["isnan"], against=recording).run() == plain[1:]
    with pytest.raises(ArgumentError, match="it has no log; record them"):
        small(["log"], against=recording)
    with pytest.raises(ArgumentError, match=f"it is of stride {FEW}, expected 99; give --stride {FEW}"):
        small(stride=99, against=recording)
    head, *lines = map(json.loads, recording.read_text().splitlines())
    lines[0][3] = "0" * 16
    recording.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    (found, _) = small(against=recording).run()
    assert found.differing == 1 and not found.first and not found.ok  # the recording is wrong, no result is


def test_a_state_goes_on_where_it_was_killed(tmp_path):
    state = tmp_path / "state"
    arguments = ["exp", "sin", "--stride", "2099", "--jobs", "1", "--state", state, "--json"]
    command = [sys.executable, "-m", "vkdnn", "sweep", *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (state.exists() and state.read_bytes().count(b"\n") > 12) and child.poll() is None:
        time.sleep(0.02)
    with pytest.raises(ArgumentError, match="another process is writing it"):
        small(["exp", "sin"], stride=2099, state=state)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    with open(state, "ab") as file:
        file.write(b'["device", "exp", 3, "12')  # torn
    kept = len(sweep_journal.read(state).computed)
    assert kept > 3
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    whole = run(*arguments[:4], "--json")
    assert json.loads(result.stdout) == json.loads(whole.stdout)
    again = sweep_journal.read(state)
    assert len(again.computed) == len(again.referred) == 2 * Inputs.of("exp", 2099).count > kept


def test_the_number_of_processes_changes_no_figure():
    alone = Sweep(["exp"], None, stride=FEW, jobs=0).run()
    assert Sweep(["exp"], None, stride=FEW, jobs=2).run() == alone


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"stride": 77}, f"it is of stride {FEW}, expected 77"),
        ({"pairs": 5}, "it is of pairs 100000000, expected 5"),
        ({"functions": ["exp"]}, r"other functions \(in one and not in the other: isnan\)"),
    ],
)
def test_a_state_of_another_sweep_is_refused(tmp_path, change, trouble):
    small(state=tmp_path / "state").journal.close()
    with pytest.raises(ArgumentError, match=trouble):
        small(change.pop("functions", ("exp", "isnan")), state=tmp_path / "state", **change)
    with pytest.raises(ArgumentError, match=r"it is of device .*, expected None"):
        Sweep(["exp", "isnan"], None, stride=FEW, state=tmp_path / "state")


def test_a_state_of_another_version_of_a_function_is_refused(tmp_path, monkeypatch):
    small(state=tmp_path / "state").journal.close()
    before = fingerprint("isnan")
    monkeypatch.setitem(OPS, "isnan", dataclasses.replace(OPS["isnan"], numpy=lambda x: x > 5))
    assert fingerprint("isnan") != before
    for options in ({"state": tmp_path / "state"}, {"against": tmp_path / "state"}):
        with pytest.raises(ArgumentError, match="it is of another version of isnan; "):
            small(**options)


DIGEST = '"0123456789abcdef"'


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '["device", "exp"]',
        f'["device", "log", 1, {DIGEST}]',
        '["other", "exp", 1]',
        "[]",
        "[" * 5000 + "]" * 5000,
        '["device", "exp", 0, 5]',
        '["device", "exp", 0, "x"]',
        f'["device", "exp", "z", {DIGEST}]',
        f'["device", "exp", -1, {DIGEST}]',
        f'["device", "exp", 1.0, {DIGEST}]',
        f'["device", "exp", 1, {DIGEST}, 2]',
        f'["device", ["exp"], 1, {DIGEST}]',
        '["reference", "exp", 0, 5, 6, [7]]',
        f'["reference", "exp", 0, {DIGEST}, "much", []]',
        f'["reference", "exp", 0, {DIGEST}, NaN, []]',
        f'["reference", "exp", 0, {DIGEST}, 0.5, [7]]',
        f'["reference", "exp", 0, {DIGEST}, 0.5]',
        '["differing", "exp", 0, -1, []]',
        '["differing", "exp", 0, 1, "first"]',
        '["differing", "exp", 0, "1", []]',
    ],
)
def test_damaged_files_are_refused_by_line(tmp_path, line):
    path = tmp_path / "state"
    small(state=path).journal.close()
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(ArgumentError, match=f"{path}: line 2 is damaged"):
        small(state=path)
    path.write_text(line + "\n")
    with pytest.raises(ArgumentError, match=f"{path}: is none of this version"):
        small(against=path)


def test_lines_that_gainsay_each_other_are_refused(tmp_path):
    path = tmp_path / "state"
    small(state=path).journal.close()
    with open(path, "a") as file:
        file.write(f'["device", "exp", 0, {DIGEST}]\n["device", "exp", 0, {DIGEST[::-1]}]\n')
    with pytest.raises(ArgumentError, match=f"{path}: line 3 is damaged"):
        small(state=path)


@pytest.mark.parametrize(
    ("name", "value"), [("functions", {"exp": 3}), ("functions", ["exp"]), ("stride", "1"), ("pairs", 0), ("device", 5)]
)
def test_heads_of_wrong_types_are_refused(tmp_path, name, value):
    path = tmp_path / "state"
    small(state=path).journal.close()
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}) + "\n")
    for options in ({"state": path}, {"against": path}):
        with pytest.raises(ArgumentError, match=f"{path}: is none of this version"):
            small(**options)


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(ArgumentError, match="cannot be written"):
        small(state=tmp_path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        small(against=tmp_path / "nothing")


# ---- the command


def test_the_table_says_device_unit_bound_and_verdict(monkeypatch):
    monkeypatch.setattr("vkdnn.cli.sweep._SILENCE", 0.0)
    result = run("exp", "silu_slope", "abs", "--stride", FEW, "--jobs", 0, "--device", "cpu")
    first, exp, slope, exact, last = result.stdout.splitlines()
    assert first == f"{vk.device('cpu').name}, every {FEW:,}th float32"
    assert re.search(r"16,384 inputs +0 differing +error 0\.\d+ ULP, bound \d.*, at [-0]", exp), exp
    assert "ULP (below 1 of 1), at" in slope and "error 0.0000 ULP, bound 0" in exact
    assert last == "3 functions: every bit the reference's, every error within its bound"
    assert re.search(r"exp: \d+ of \d+ pieces", result.stderr), "no bar where there is no terminal"


def test_no_input_is_counted_twice():
    inputs = Inputs.of("exp", 4099)
    assert sum(map(inputs.counted, range(inputs.count))) == 1_047_809 == len(range(0, 2**32, 4099))
    (found,) = Sweep(["pow"], None, pairs=1500, jobs=0).run()
    assert (found.inputs, found.of, found.complete) == (1500, 1500, True)


def test_no_time_at_all_is_said(tmp_path):
    result = run("exp", "--time", 0, "--stride", FEW, "--out", tmp_path / "out.json")
    assert result.exit_code == 0 and "not complete: exp" in result.stdout
    (row,) = json.loads((tmp_path / "out.json").read_text())["functions"]
    assert row["inputs"] == 0 and not row["complete"] and row["differing"] == 0


def test_bad_arguments():
    for arguments, message in (
        (["expo"], "function: no 'expo' to sweep, expected one of neg, abs"),
        ([], "function: none is named"),
        (["pow", "atan2", "--stride", 9], "--stride: pow has two arguments, whose inputs are drawn; --pairs says"),
        (["exp", "--stride", 2**21], "stride: got 2097152, expected 1 to 1048576"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1 and message in result.stderr
    assert run("exp", "--record", "a", "--state", "b").exit_code == 2


def test_what_it_costs_is_said_before(tmp_path):
    result = run("exp", "--stride", 65537, "--measure", "--jobs", 4)
    assert result.exit_code == 0 and "ns an input" in result.stdout and "with 4 processes" in result.stdout


def test_a_process_that_dies_is_said(monkeypatch):
    monkeypatch.setattr("vkdnn.check.sweep.refer", _die)
    with pytest.raises(VkdnnError, match="died; is there enough memory"):
        Sweep(["exp"], None, stride=2**20, jobs=1).run()


def _die(*_):
    os._exit(1)


# ---- what is kept


def test_the_kept_sweep_holds_and_agrees_with_the_page_on_numerics():
    rows = {row["function"]: row for row in json.loads(KEPT.read_text())["functions"]}
    assert set(rows) == {*UNARY, *PAIRS}
    for name, row in rows.items():
        assert row["complete"] and row["ok"] and row["differing"] == 0, name
        assert row["error"] <= bound(name) or name.endswith("_slope"), name
    assert {row["inputs"] for name, row in rows.items() if name in UNARY} == {2**32}
    page = (KEPT.parents[1] / "numerics.md").read_text()
    table = re.findall(r"^\| ([a-z][a-z0-9_, ]*) \| (\d\.\d+) \|", page, re.M)
    assert len(table) > 20
    for names, told in table:
        error = max(rows[name]["error"] for name in names.split(", "))
        assert abs(error - float(told)) <= 0.001, names
