"""Accuracy: case files, golden files, backends, planted faults; and every small case on the device."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.accuracy import backends, golden
from vkdnn.check.accuracy.analysis import axis_names
from vkdnn.check.accuracy.cases import DEFAULTS, Spec, file_name, from_record, load, sets
from vkdnn.check.accuracy.here import run_here
from vkdnn.check.accuracy.perf import measured
from vkdnn.check.accuracy.run import Settings, run_case
from vkdnn.check.library import OPERATORS
from vkdnn.check.operator import Input, Operator
from vkdnn.device import prepared
from vkdnn.errors import ArgumentError, DeviceError

REFERENCE = Settings(("reference",))


def write(folder, text, name="cases.toml"):
    path = folder / name
    path.write_text(text)
    return str(path)


def small(name):
    """The case of the set `small` that has exactly this name."""
    return next(s for s in load(["small"]) if s.name == f"small/{name}")


# ---- case files


def test_lists_are_multiplied_out_and_named(tmp_path):
    text = """
    [BASE]
    rows = 2
    rule = "element"

    [ONE]
    base = "BASE"
    operator = "softmax"

    [MANY]
    base = "ONE"
    columns = [7, 8]
    dtype = ["float32", "float16"]
    x_range = [[-5.0, 5.0]]
    """
    one, *many = load([write(tmp_path, text)])
    assert (one.name, one.operator, one.fields, one.rule) == ("cases/ONE", "softmax", {"rows": 2}, "element")
    assert [s.name for s in many] == [f"cases/MANY_{k}" for k in range(4)]
    assert [(s.fields["columns"], s.fields["dtype"]) for s in many] == [
        (7, "float32"), (7, "float16"), (8, "float32"), (8, "float16")
    ]  # fmt: skip
    (case,) = many[3].draws()
    assert case.fields["axis"] == -1, "fields that are missing have the operator's values"
    (x,) = case.arrays()
    assert x.shape == (2, 8) and x.dtype == np.float16 and 3 < np.abs(x).max() <= 5
    plain = text.replace("[[-5.0, 5.0]]", "[-5, 5]")
    assert [len(s.fields["x_range"]) for s in load([write(tmp_path, plain)])[1:]] == [2] * 4, "one range, not two"


def test_operators_by_group_pattern_and_form(tmp_path):
    text = """
    [GROUP]
    operator = "@norms"
    without = ["softmax*"]

    [PATTERN]
    operator = "log_soft*"

    [FORM]
    operator = "softmax.first"

    [HALF]
    operator = ["softmax", "add.integers"]
    dtype = "float16"
    """
    names = [s.name for s in load([write(tmp_path, text)])]
    assert "cases/GROUP.layer_norm" in names and "cases/GROUP.layer_norm.both" in names
    assert not any("GROUP.softmax" in n for n in names)
    assert "cases/PATTERN.log_softmax.first" in names and "cases/FORM" in names
    assert [n for n in names if "HALF" in n] == ["cases/HALF.softmax"], "integers have no float16"


def test_cases_are_chosen_by_prefix(tmp_path):
    path = write(tmp_path, '[AB]\noperator = "exp"\n[AC]\noperator = "exp"\n[B]\noperator = "exp"')
    assert [s.name for s in load([path], ["A"])] == ["cases/AB", "cases/AC"]
    assert [s.name for s in load([path], ["cases/B", "B"])] == ["cases/B"]
    with pytest.raises(ArgumentError, match=r"none of \d+ begins with 'ALL.sofmax'; is it ALL.softmax"):
        load(["small"], ["ALL.sofmax"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[A", "no TOML"),
        ("a = 1", "a: got 1 outside of a case"),
        ("[A]\nrows = 1", "case A: field operator: missing"),
        ('[A]\noperator = "sofmax"', "case A: field operator: no operator 'sofmax'; is it softmax"),
        ("[A]\noperator = 3", "case A: field operator: got 3, expected names"),
        ('[A]\noperator = "@norm"', "case A: field operator: nothing fits '@norm'; groups are .*@norms"),
        ('[A]\noperator = "exp"\nrows = 1', "case A: field rows: exp has no such field"),
        ('[A]\noperator = "softmax"\nrow = 1', "case A: field row: softmax has no such field; is it rows"),
        ('[A]\noperator = "softmax"\nrows = []', "case A: field rows: an empty list"),
        ('[A]\noperator = "softmax"\nrows = "3"', "case A: field rows: got '3', expected int"),
        ('[A]\noperator = "softmax"\nrows = true', "case A: field rows: got True, expected int"),
        ('[A]\noperator = "softmax"\nrows = [1, -1]', "case A: field rows: got -1"),
        ('[A]\noperator = "softmax"\nx_range = [-5.0, 5.0, 6.0]', r"field x_range: got -5.0, expected \[low, high\]"),
        ('[A]\noperator = "softmax"\nx_range = [[5.0, -5.0]]', "field x_range: .*the lower one first"),
        ('[A]\noperator = "softmax"\nx_range = [2.0, 1.0]', r"field x_range: got \[2.0, 1.0\], .*the lower one first"),
        ("", "it has no case"),
        ('[B]\noperator = ["add.integers"]\ndtype = "float16"', "case B: it gives no case"),
        ('[A]\noperator = "softmax"\ndtype = "float64"', "field dtype: got 'float64', expected one of float32"),
        ('[A]\noperator = "softmax"\naxis = "last"', "field axis: got 'last', expected int"),
        ('[A]\noperator = "softmax"\nrule = "exact"', "field rule: got 'exact', expected one of twice-plain"),
        ('[A]\noperator = "softmax"\ntimeout = 0', "field timeout: got 0, expected more than 0"),
        ('[A]\noperator = "softmax"\ntimeout = inf', "field timeout: got inf, expected a finite number"),
        ('[A]\noperator = "softmax"\ntimeout = 1e10', "field timeout: got 1.*, and at most 1,000,000 seconds"),
        ('[A]\noperator = "softmax"\nfactor = inf', "field factor: got inf, expected a finite number"),
        ('[A]\noperator = "softmax"\nfactor = [2.0, nan]', "field factor: got nan, expected a finite number"),
        ('[A]\noperator = "softmax"\nx_range = [0, 1' + "0" * 400 + "]", "expected two finite numbers"),
        ("a = " + "[" * 3000 + "]" * 3000, "no TOML .nested too deeply"),
        (
            '[A]\noperator = "exp"\nseed = [0, 1]\n[A_0]\noperator = "exp"',
            r"tables \[A\] and \[A_0\] both give a case cases/A_0; rename one",
        ),
        (
            f'[A]\noperator = "softmax"\nseed = {list(range(1000))}\nrows = {list(range(1000))}',
            "case A: expands to 1,000,000 cases; at most 100,000",
        ),
        ('[A]\noperator = "softmax"\nseeds = 1.5', "field seeds: got 1.5, expected int"),
        ('[A]\noperator = "argsort"\ngradient = true', "case A: field gradient: argsort has none"),
        ('[A]\nbase = "B"', "case A: field base: this file has no case 'B'"),
        ('[A]\nbase = "B"\n[B]\nbase = "A"', "case A: field base: a cycle, A -> B -> A"),
        ('[A]\noperator = "exp"\nwithout = ["log"]', "case A: field without: 'log' is none of those chosen"),
    ],
)
def test_what_is_wrong_is_said_with_file_case_and_field(tmp_path, text, said):
    with pytest.raises(ArgumentError, match=f"cases.toml: .*{said}"):
        load([write(tmp_path, text)])


def test_sets_and_files_that_do_not_exist():
    with pytest.raises(ArgumentError, match=r"no set 'smal', expected a .toml file or one of .*small"):
        load(["smal"])
    with pytest.raises(ArgumentError, match="cannot be read"):
        load(["nowhere.toml"])


def test_a_spec_goes_through_json():
    spec = small("ALL.softmax")
    again = from_record(json.loads(json.dumps(spec.record())))
    assert again == spec and again.key == spec.key
    assert replace(spec, name="x", rule="bits", timeout=1.0).key == spec.key
    assert len({spec.key, replace(spec, seeds=5).key, replace(spec, fields={"rows": 4}).key}) == 3


def test_the_case_file_of_the_documentation(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "accuracy.md").read_text()
    text = page.split("```toml\n")[1].split("```")[0]
    names = [s.name for s in load([write(tmp_path, text, "mine.toml")])]
    assert names[:4] == [f"mine/CAUSAL_{k}" for k in range(4)]
    assert "mine/NORMS.softmax.first" in names and not any("l2_norm" in n for n in names)
    assert all(f"`{name}`" in page for name in sets())
    assert all(f"`{field}`" in page for field in DEFAULTS)


def test_an_operator_as_the_documentation_writes_it(tmp_path, monkeypatch):
    page = (Path(__file__).parent.parent / "docs" / "accuracy.md").read_text()
    (tmp_path / "ops.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ops", raising=False)
    specs = load([write(tmp_path, page.split("```toml\n")[2].split("```")[0])])
    assert [s.fields.get("sharpness") for s in specs] == [1.0, 4.0]
    assert [row.verdict for rows in run_here(specs, REFERENCE) for row in rows] == ["pass", "pass"]


def test_wrong_operators_are_said_where_they_are_made():
    good = Input("x", "rows")
    for make, said in (
        (lambda: Input("x", ("rows", "columns")), r"Input x: dims: got \('rows', 'columns'\), expected text"),
        (lambda: Input("x", "rows", "norml"), "Input x: kind: got 'norml', expected a function or one of normal"),
        (lambda: Operator("mine", "own", good, vk.exp), "Operator mine: inputs: .* expected a tuple of Inputs"),
        (lambda: Operator("mine", "own", (good,), vk.exp), "Operator mine: fields: rows has no value there"),
    ):
        with pytest.raises(ArgumentError, match=said):
            make()


# ---- golden files


def test_golden_files_are_used_and_refused_by_name(tmp_path):
    spec = small("ALL.softmax")
    kept = replace(REFERENCE, save_golden=str(tmp_path))
    (row,) = run_case(spec, kept)
    assert row.verdict == "pass"
    path = golden.path_of(tmp_path, spec)
    used = replace(REFERENCE, load_golden=str(tmp_path))
    called = []
    softmax = OPERATORS["softmax"]

    def twin(x, axis):
        called.append(1)
        return softmax.golden(x, axis)

    twin.__module__ = softmax.golden.__module__
    (again,) = run_case(spec, used, {"softmax": replace(softmax, golden=twin)})
    assert again.verdict == "pass" and not called and again.figures == row.figures

    (other,) = run_case(replace(spec, fields={"rows": 4}), used)
    assert other.verdict == "error" and "is missing" in other.reason
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    (damaged,) = run_case(spec, used)
    assert damaged.verdict == "error" and f"{path} is damaged (its checksum" in damaged.reason
    path.write_bytes(data[:40])
    assert f"{path} is damaged" in run_case(spec, used)[0].reason
    run_case(spec, kept)  # makes it again
    foreign = golden.path_of(tmp_path, replace(spec, fields={"rows": 4}))
    foreign.write_bytes(path.read_bytes())
    (found,) = run_case(replace(spec, fields={"rows": 4}), used)
    assert found.verdict == "error" and f"{foreign} is foreign: its key" in found.reason


# ---- backends


def test_a_dump_stands_in_for_a_device(tmp_path):
    spec = small("ALL.top_k")
    folder = tmp_path / "dump"
    assert run_case(spec, replace(REFERENCE, dump=str(folder)))[0].verdict == "pass"
    (row,) = run_case(spec, Settings((f"dump:{folder}",)))
    assert row.verdict == "pass" and row.figures == run_case(spec, REFERENCE)[0].figures
    (file,) = folder.iterdir()
    assert run_case(spec, Settings((f"dump:{file}",)))[0].verdict == "pass"
    assert "other fields" in run_case(replace(spec, fields={"rows": 4}), Settings((f"dump:{folder}",)))[0].reason
    other = small("ALL.exp")
    for dump in (folder, file):
        (row,) = run_case(other, Settings((f"dump:{dump}",)))
        assert row.verdict == "error" and "small/ALL.exp" in row.reason


def test_a_dump_of_another_program_is_an_npz(tmp_path):
    spec = replace(small("ALL.exp"), seeds=1)
    (x,) = spec.draws()[0].arrays()
    path = tmp_path / "theirs.npz"
    np.savez(path, **{f"{spec.name}/0/result": np.exp(x)})
    assert run_case(spec, Settings((f"dump:{path}",)))[0].verdict == "pass"
    before = backends.place(f"dump:{path}", None)
    np.savez(path, **{f"{spec.name}/0/result": np.exp(x) + np.float32(1e-3)})
    assert backends.place(f"dump:{path}", None) != before, "rows of a dump are not taken for those of another"
    assert run_case(spec, Settings((f"dump:{path}",)))[0].verdict == "fail"


@pytest.mark.parametrize("name", ["junk.npz", "junk.safetensors"])
def test_a_dump_of_something_else_is_an_error_in_words(tmp_path, name):
    path = tmp_path / name
    for junk in (b"", b"junk", b"PK\3\4" + bytes(40)):
        path.write_bytes(junk)
        (row,) = run_case(small("ALL.exp"), Settings((f"dump:{path}",)))
        assert row.verdict == "error" and row.reason.startswith(f"dump: {path} is damaged ("), row.reason
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    (row,) = run_case(small("ALL.exp"), Settings((f"dump:{tmp_path / 'one.npz'}",)))
    assert "one array without a name" in row.reason


def test_names_of_any_length_and_characters_have_files_of_their_own(tmp_path):
    names = ["x/y", "x-y", "x/" + "a" * 300, "x/" + "a" * 301, "x/" + "é" * 300]
    assert len({file_name(name) for name in names}) == 5
    for name in names:
        spec = Spec(name, "exp", {})
        settings = replace(REFERENCE, dump=str(tmp_path / "d"), save_golden=str(tmp_path / "g"))
        assert run_case(spec, settings)[0].verdict == "pass"
        wrong = {"exp": replace(OPERATORS["exp"], function=lambda x: vk.exp(x) + 1)}
        (row,) = run_case(spec, replace(REFERENCE, images=str(tmp_path / "p")), wrong)
        assert row.verdict == "fail" and Path(row.image).is_file()
    assert {len(list((tmp_path / folder).iterdir())) for folder in "dgp"} == {5}


def test_backends_that_do_not_exist():
    for name, said in (("gpu", "expected one of device"), ("dump:nowhere", "no dump"), ("dump:", "expected one of")):
        with pytest.raises(ArgumentError, match=said):
            backends.check(name)


def test_three_ways():
    pytest.importorskip("torch")
    names = ["ALL.softmax", "ALL.layer_norm", "ALL.attention", "ALL.gelu"]
    specs = load(["small", "gradients"], names)
    settings = Settings(("reference", "plain", backends.check("torch")))
    rows = [row for rows in run_here(specs, settings) for row in rows]
    assert all(row.good for row in rows), [r for r in rows if not r.good]
    done = {row.case for row in rows if row.backend == "torch" and row.verdict == "pass"}
    assert {"small/ALL.softmax", "small/ALL.layer_norm", "small/ALL.attention", "gradients/ALL.attention"} <= done
    skipped = [row for row in rows if row.verdict == "skip"]
    assert skipped and all(row.backend == "torch" and row.reason for row in skipped)


def test_a_device_with_timestamps_times_its_launches_alone():
    opened = vk.device().opened
    if not opened.info.limits.timestamp_ns:
        pytest.skip("this device has no timestamps")
    spec = small("ALL.softmax")
    (case, *_) = spec.draws()
    found = measured(spec, case, case.arrays(), None, 4)
    assert (found["clock"], found["replays"]) == ("device", 4) and 0 < found["hot_ms"] < found["cold_ms"]
    with prepared() as made:
        run_case(spec, Settings(("device",)))
    with pytest.raises(DeviceError, match="has no times"):  # nobody else's recordings are timed
        made[0].recordings[0].launch_seconds()


# ---- what is said of failures


def test_axes_have_the_names_of_their_sizes():
    case = OPERATORS["attention"].case()
    assert axis_names(case, [(2, 3, 2, 3), (2, 2, 3)]) == [
        ["batch", "queries", "key_heads*group", "value_width"], ["batch", "key_heads*group", "queries"]
    ]  # fmt: skip
    assert axis_names(OPERATORS["sum"].case(axis=0), [(5,)]) == [["columns"]]


def planted(function, name="attention", **fields):
    operator = replace(OPERATORS[name], function=function)
    spec = Spec("planted/CASE", name, fields)
    (row,) = run_case(spec, REFERENCE, {name: operator})
    return row


def test_a_mask_off_by_one_is_found_and_placed(tmp_path):
    fields = {"batch": 1, "queries": 6, "keys": 8, "causal": True}

    def wrong(q, k, v, **options):
        options["causal"] = False
        seen = np.arange(8) <= np.arange(6)[:, None] + 1  # should be + 2
        return vk.attention(q, k, v, mask=seen[None, None], return_lse=True)

    row = planted(wrong, **fields)
    assert row.verdict == "fail" and "every element fails" in row.where
    first = row.elements[0]
    assert first["index"] == (0, 0, 0, 0) and first["error"] == abs(first["got"] - first["golden"])

    def one_row(q, k, v, causal, **options):
        seen = np.arange(8) <= np.arange(6)[:, None] + 2
        seen[4, 6] = False
        return vk.attention(q, k, v, mask=seen[None, None], return_lse=True)

    row = planted(one_row, **fields)
    assert row.where == "all failures in queries = 4; there everything fails"
    spec = Spec("planted/CASE", "attention", fields)
    settings = replace(REFERENCE, images=str(tmp_path / "images"))
    (row,) = run_case(spec, settings, {"attention": replace(OPERATORS["attention"], function=one_row)})
    assert row.image.endswith(".png") and (tmp_path / "images").iterdir()
    with open(row.image, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_a_loss_of_precision_is_found():
    def half(a, b):
        return vk.matmul(a.astype("float16"), b.astype("float16")).astype("float32")

    row = planted(half, "matmul", m=8, k=30, n=9)
    assert row.verdict == "fail" and row.figures["max_abs"] > 100 * row.figures["plain_max"]

    def cancelling(x, axis, keepdims, correction):
        return vk.mean(x * x, axis, keepdims) - vk.square(vk.mean(x, axis, keepdims))

    row = planted(cancelling, "var", x_range=(99.0, 101.0), correction=0)
    assert row.verdict == "fail"


def test_a_wrong_gradient_of_one_weight_is_found():
    def wrong(x, weight, bias, **options):
        return vk.layer_norm(x, weight, bias * 1.001 - 0.001 * bias, **options) + 1e-3 * x[..., :1]

    spec = Spec("planted/CASE", "layer_norm", {}, gradient=True)
    good = run_case(spec, REFERENCE)[0]
    assert good.verdict == "pass"
    row = planted(wrong, "layer_norm")
    assert row.verdict == "fail"


def test_an_exception_is_the_verdict_of_its_case_alone():
    def broken(x):
        raise ZeroDivisionError("oh")

    specs = [Spec("a/A", "exp", {}), Spec("a/B", "exp", {})]
    (row,) = run_case(specs[0], REFERENCE, {"exp": replace(OPERATORS["exp"], function=broken)})
    assert row.verdict == "error" and row.reason.startswith("ZeroDivisionError: oh (test_check_accuracy.py:")
    (row,) = run_case(specs[0], REFERENCE, {"exp": replace(OPERATORS["exp"], golden=broken)})
    assert row.verdict == "error"
    assert [r.verdict for rows in run_here(specs, REFERENCE) for r in rows] == ["pass", "pass"]


@pytest.mark.parametrize("nothing", [None, ()])
def test_functions_that_give_nothing_are_errors(nothing):
    spec, exp = Spec("a/A", "exp", {}), OPERATORS["exp"]
    gives = {"function": lambda x: nothing, "golden": lambda x: nothing}
    for names in (["function"], ["golden"], ["function", "golden"]):
        for rule in ("twice-plain", "bits"):
            changed = replace(exp, **{name: gives[name] for name in names})
            (row,) = run_case(replace(spec, rule=rule), REFERENCE, {"exp": changed})
            assert row.verdict == "error" and "arrays" in row.reason, (names, rule, row)


# ---- the sets that come with vkdnn


def test_every_operator_with_a_twin_occurs():
    wanted = {o.name for o in OPERATORS.values() if o.golden is not None}
    assert {s.operator for s in load(["small"])} == wanted
    halves = {o.name for o in OPERATORS.values() if o.golden and o.halves and any(i.is_float for i in o.inputs)}
    assert {s.operator for s in load(["halves"])} == halves


@pytest.mark.parametrize("name", sets())
def test_sets_are_valid(name):
    specs = load([name])
    assert specs and all(s.name.startswith(name + "/") for s in specs)
    assert all(getattr(s, field) is not None for s in specs for field in DEFAULTS)


PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_small_cases_on_the_device(part):
    check_all(load(["small"])[part::PARTS], "device")


@pytest.mark.parametrize("part", range(PARTS))
def test_gradients_on_the_reference(part):
    check_all(load(["gradients"])[part::PARTS], "reference")


def check_all(specs, backend):
    bad = [row for rows in run_here(specs, Settings((backend,))) for row in rows if row.verdict != "pass"]
    assert not bad, bad
