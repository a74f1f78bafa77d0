"""vkdnn.check.parity: nothing differs in the library and the grid; what is planted is found, and by the right name."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import planted
import pytest

import vkdnn as vk
from vkdnn import shader
from vkdnn.check import bisect, grid, reproducer
from vkdnn.check.bits import difference
from vkdnn.check.digests import DigestFile, DigestFileError, _own, machine
from vkdnn.check.grid import Group
from vkdnn.check.library import OPERATORS
from vkdnn.check.operator import Input, Operator
from vkdnn.check.parity import Outcome, check, targets
from vkdnn.check.statics import Walk, conflicts, fusible
from vkdnn.check.targets import resolve
from vkdnn.check.work import HARD, RANDOM, WIDE, Work, apart, of_case, together
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.ops import OPS
from vkdnn.kernels.fold import FoldSchedule, FoldSpec
from vkdnn.runtime import hazards, recording
from vkdnn.shader import compiler, spirv
from vkdnn.show import EXAMPLES

ICD = os.environ.get("VKDNN_SWIFTSHADER_ICD", "")

devices = sys.modules["vkdnn.device"]  # vkdnn.device is the function

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def case(name, **fields):
    (found,) = resolve([name])
    return found.operator.case(**fields)


def function(name, run, *dims, gradient=False):
    inputs = tuple(Input(f"x{k}", d) for k, d in enumerate(dims))
    return Operator(name, "functions", inputs, run, gradient=gradient).case()


def only(outcomes) -> Outcome:
    (found,) = outcomes
    return found


# ---- nothing differs

# Forms of what has many kernels are compared by the tests of those kernels, models by those of training.
HEAVY = ("attention", "scans", "layers")


@pytest.mark.parametrize("group", [g for g in dict.fromkeys(o.group for o in OPERATORS.values()) if g != "models"])
def test_no_bit_of_the_library_differs(group):
    cases = [c for c in resolve([group]) if c.operator.group not in HEAVY or c.name == c.operator.name]
    outcomes = check(cases)
    wrong = [o for o in outcomes if not o.ok]
    assert not wrong, f"{len(wrong)} of {len(outcomes)}: {wrong[:3]}"
    assert [o.target for o in outcomes] == [c.name for c in cases]
    assert sum(o.values for o in outcomes) > 100


@pytest.mark.parametrize("family", grid.FAMILIES)
def test_no_bit_of_the_grid_differs(family):
    outcomes = check(grid.groups(grid.CI, [family]))
    wrong = [o for o in outcomes if not o.ok]
    assert not wrong, f"{len(wrong)} of {len(outcomes)}: {wrong[:3]}"
    assert sum(o.values for o in outcomes) > 500


def test_every_row_of_the_table_is_in_the_grid():
    assert set().union(*map(grid.takes, grid.DTYPES)) == set(OPS)
    assert {n for n in grid.takes("f") if OPS[n].cost <= grid.CI.cost} == set(grid.takes("f"))


@pytest.mark.parametrize("name", sorted(set(grid.FOLDS) - set(grid.OF_NONE)))
def test_folds_without_a_value_for_no_elements_say_so(name):
    with pytest.raises(ShapeError, match="no elements"):
        grid.FOLDS[name](vk.zeros((2, 0)))


def test_schedules_and_repeats_agree_too():
    plain, more = (only(check([case("softmax")], **k)) for k in ({}, {"schedules": True, "repeat": 3}))
    assert plain.ok and more.ok and plain.runs == 1
    assert more.runs == 1 + 2 + 1  # two more runs, the other schedule of a fold on software devices
    assert more.values == 4 * plain.values


def test_a_device_against_another():
    other = devices.VulkanDevice(vk.device().opened)
    assert all(o.ok for o in check([case("softmax"), case("cumsum")], other=other))
    with planted.row("relu", "maximum({0}, 1.0)"):
        assert only(check([case("relu")], other=other)).ok  # both are wrong
        outcome = only(check([case("relu")], vk.device("cpu"), other=other))
    assert "relu" in outcome.finger.verdict and outcome.finger.place.want == "1.0"


def test_training_steps_agree():
    (model,) = targets(["model:gpt"], steps=1)
    # On devices it is test_train_loop.py's.
    file = DigestFile({})
    outcome = only(check([model], vk.device("cpu"), record=file))
    assert outcome.ok and outcome.group == "models" and outcome.values > 1000
    assert list(file.targets["model:gpt"].results) == ["step 1"]
    assert only(check([model], vk.device("cpu"), against=file)).ok


# ---- inputs


def test_inputs_are_the_same_for_everyone_and_hard_where_they_may_be():
    work = of_case(case("softmax"))
    assert list(work.inputs) == [RANDOM, WIDE, HARD]
    again = of_case(case("softmax"))
    assert work.digests() == again.digests() != of_case(case("softmax", seed=1)).digests()
    (x, weights), (wide, _), (hard, _) = (work.inputs[n] for n in (RANDOM, WIDE, HARD))
    assert x.shape == weights.shape == (3, 5)
    assert np.isfinite(wide).all() and (wide != x).any() and (np.abs(wide) < 2.0**-120).any()
    assert not np.isfinite(hard).all()
    half = of_case(case("softmax", dtype="float16")).inputs[HARD][0]
    assert half.dtype == np.float16 and not np.isfinite(half).all()


def test_works_run_together_as_they_do_alone():
    works = [of_case(case(n)) for n in ("exp", "log", "matmul")]
    joined = together(works)
    assert len(joined.inputs[RANDOM]) < sum(len(w.inputs[RANDOM]) for w in works)
    with vk.device("cpu"):
        parts = apart(joined.session(vk.device("cpu")).run(), works)
        for work, part in zip(works, parts, strict=True):
            alone = work.session(vk.device("cpu")).run()
            assert alone.keys() == part.keys()
            for name, values in alone.items():
                assert values.keys() == part[name].keys()
                assert not any(difference(values[k], part[name][k]) for k in values)


def test_a_function_that_reads_values_is_compared_all_the_same():
    outcome = only(check([function("reads", lambda x: x * float(vk.sum(x).item()), "4")]))
    assert outcome.ok and outcome.values


def test_targets():
    found = targets(["softmax", "grid:sorts", "model:rapt"], grid_size="small")
    assert found[0].name == "softmax" and found[-1].name == "model:rapt"
    assert {g.family for g in found[1:-1]} == {"sorts", "sorts of int32"} - (
        {"sorts of int32"} - {g.family for g in found[1:-1]}
    )
    with pytest.raises(ArgumentError, match=r"no family 'nonsense' of the grid, expected one of .*folds"):
        targets(["grid:nonsense"])
    with pytest.raises(ArgumentError, match="no model 'bert', expected one of model:rapt, model:gpt"):
        targets(["model:bert"])
    with pytest.raises(ArgumentError, match="grid size: got 'huge', expected one of small, ci, full"):
        targets(["grid:"], grid_size="huge")
    with pytest.raises(ArgumentError, match="repeat: got 0, expected 1 or more"):
        check([case("softmax")], repeat=0)


def test_an_error_of_one_target_leaves_the_others():
    def broken(x):
        raise ZeroDivisionError("planted")

    outcomes = check([function("fine", lambda x: x + 1, "4"), function("broken", broken, "4"), case("softmax")])
    assert [o.ok for o in outcomes] == [True, False, True]
    assert outcomes[1].error.startswith("ZeroDivisionError: planted (test_check_parity.py:")
    assert outcomes[1].target == "broken"


# ---- what the finger says; more faults are planted by test_check_mutations.py


def test_a_wrong_row_is_the_first_expression():
    with planted.row("relu", "maximum({0}, 1.0)"):
        outcome = only(check([function("f", lambda x: vk.relu(vk.exp(x)) * 2.0 - 1.0, "3 5")]))
    finger = outcome.finger
    assert not outcome.ok and outcome.differences[0].inputs == RANDOM
    assert finger.kind == bisect.EXPRESSION and (finger.program, finger.kernel, finger.kernels) == (1, 1, 1)
    assert finger.family == "ExprSpec" and "relu" in finger.label
    assert finger.verdict == "in kernel 1 the expression `relu %1: float32[3,5]` is the first that differs"
    assert finger.expression.splitlines()[:3] == [
        "%0 = in0: float32[3,5]",
        "%1 = exp %0: float32[3,5]",
        "%2 = relu %1: float32[3,5]",
    ]
    assert len(finger.operands) == 1 and finger.place.got == "1.0" and finger.place.got_bits == "0x3f800000"
    assert len(finger.wrong) == 3 and not finger.right
    assert "relu" in json.dumps(outcome.record())


def test_a_fault_in_a_group_is_found_one_by_one():
    with planted.row("relu", "maximum({0}, 1.0)"):
        outcomes = check([case(n) for n in ("exp", "relu", "tanh")])
    assert [o.ok for o in outcomes] == [True, False, True]
    assert "relu" in outcomes[1].finger.verdict


def test_a_swapped_order_of_addition_is_the_fold_under_one_schedule():
    change = ("bitfieldReverse(step) >> {{ 32 - lane_bits }}u", "step")
    with planted.template("fold.comp.j2", change):
        outcome = only(check([function("f", lambda x: vk.sum(vk.exp(x), -1), "3 37")]))
    finger = outcome.finger
    assert (finger.kind, finger.family) == (bisect.EXPRESSION, "FoldSpec")
    assert "`fold add (1,)" in finger.verdict
    assert finger.wrong == (str(FoldSchedule()),) and str(FoldSchedule(128, 1, unroll=False)) in finger.right


def test_a_reduction_by_chance_is_found_by_repeating(monkeypatch):
    fetch, count = devices.vulkan._VulkanRun.fetch, [0]

    def sometimes(self, handle):
        words = fetch(self, handle)
        if self.folds:
            count[0] += 1
            words[0] ^= count[0] % 3 == 0
        return words

    prepare = devices.VulkanDevice.prepare

    def marked(self, tasks, *rest, **named):
        run = prepare(self, tasks, *rest, **named)
        run.folds = any(isinstance(t.spec, FoldSpec) for t in tasks)
        return run

    monkeypatch.setattr(devices.vulkan._VulkanRun, "fetch", sometimes)
    monkeypatch.setattr(devices.VulkanDevice, "prepare", marked)
    group = Group("f", 5, ("f",), (np.arange(5, dtype=np.float32),), lambda x: [vk.sum(vk.exp(x), -1)])
    assert only(check([group])).ok
    outcome = only(check([group], repeat=6))
    assert not outcome.ok and "recording, against the first" in outcome.differences[0].run
    assert outcome.finger.kind == bisect.CHANCE and outcome.finger.family == "FoldSpec"
    assert "does not always give the same" in outcome.finger.verdict


def test_conflicts_agree_with_the_planner(monkeypatch):
    with devices.prepared() as made:
        for name in ("softmax", "matmul", "layer_norm"):
            of_case(case(name)).session(vk.device()).run()
    assert len(made) == 3
    for ready in made:
        plan = hazards.plan_barriers(ready.launches)
        assert not conflicts(ready.launches, plan)
        for k in np.flatnonzero(plan):  # each is needed
            fewer = [p and i != k for i, p in enumerate(plan)]
            assert conflicts(ready.launches, fewer)
    assert recording.plan_barriers is hazards.plan_barriers


def test_kernels_of_bundles_are_looked_at_too(monkeypatch):
    found = function("f", lambda x: x * 5.0 + 1.0, "7")
    with devices.prepared() as made:
        of_case(found).session(vk.device()).run()
    words = np.frombuffer(made[0].launches[0].spirv, "<u4")
    kept = [words[:5]]
    for _, start, end in spirv.instructions(words.tolist()):
        bare = words[start] == (3 << 16 | 71) and words[start + 2] == 42  # OpDecorate NoContraction
        kept += [] if bare else [words[start:end]]
    monkeypatch.setattr(shader.bundle, "find", lambda identity: np.concatenate(kept).tobytes())
    outcome = only(check([found]))
    assert "has no NoContraction" in outcome.flaws[0].what and not outcome.differences


def test_fma_and_damage_are_named():
    text = (
        "#version 450\nlayout(local_size_x = 1) in; layout(std430, binding = 0) buffer B { float x[]; };\n"
        "void main() { x[0] = fma(x[1], x[2], x[3]); }"
    )
    code = compiler.Compiler.find()._run(text, "fma", None)[0]
    assert "is fma(), which fuses" in fusible(code)
    assert "expected at least the 5 of its header" in fusible(b"\0" * 8)
    assert fusible(b"abc") is not None


def test_the_reference_is_no_device_to_be_believed_by_its_own_memory_plan():
    program = vk.jit(lambda x: vk.cumsum(vk.cumsum(x, 0), 1)).program(np.ones((3, 3), np.float32))
    from vkdnn.check.steps import believed

    (found,) = believed(program, [np.ones(9, np.float32).view(np.uint32)])
    assert found.tolist() == [[1, 2, 3], [2, 4, 6], [3, 6, 9]]


# ---- reproducers


def saved(tmp_path, run=lambda x: vk.sum(vk.exp(x), -1)):
    change = ("bitfieldReverse(step) >> {{ 32 - lane_bits }}u", "step")
    with planted.template("fold.comp.j2", change):
        outcome = only(check([function("my sum", run, "3 37")], save=tmp_path))
    return Path(outcome.script), change


def rerun(script, capsys):
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return ended.value.code, capsys.readouterr().out


def test_a_reproducer_shows_the_difference_while_it_is_there(tmp_path, capsys, monkeypatch):
    script, change = saved(tmp_path)
    assert script == tmp_path / "my-sum" / "reproduce.py" and (script.parent / "inputs.npz").is_file()
    monkeypatch.setattr(sys, "argv", [str(script)])
    with planted.template("fold.comp.j2", change):
        code, text = rerun(script, capsys)
        assert code == 1 and "result 0: " in text and text.endswith("different\n")
        monkeypatch.setattr(sys, "argv", [str(script), "cpu"])
        assert rerun(script, capsys)[0] == 0
    monkeypatch.setattr(sys, "argv", [str(script), "no such device"])
    code, text = rerun(script, capsys)
    assert code == 2 and text.startswith("error: ")


def test_a_reproducer_runs_elsewhere_with_vkdnn_alone(tmp_path):
    script, _ = saved(tmp_path)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("no bit differs\n"), done.stdout + done.stderr
    (script.parent / "inputs.npz").write_bytes(b"nonsense")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "error: " in done.stdout and "Traceback" not in done.stderr


def test_a_reproducer_of_several_kernels(tmp_path, capsys, monkeypatch):
    from vkdnn import program

    plan_arenas = program.plan_arenas

    def overlapping(lives, max_words):
        plan = plan_arenas(lives, max_words)
        return replace(plan, places={node: (arena, 0) for node, (arena, _) in plan.places.items()})

    monkeypatch.setattr(program, "plan_arenas", overlapping)

    def run(x):
        a, b = vk.cumsum(x, 0), vk.cumsum(x, 1)
        return vk.cumsum(a, 1) + vk.cumsum(b, 0)

    outcome = only(check([function("order", run, "5 5")], save=tmp_path))
    monkeypatch.setattr(sys, "argv", [outcome.script])
    assert rerun(outcome.script, capsys)[0] == 1  # the places are in the script


def test_every_kernel_can_be_written_down():
    for name, example in EXAMPLES.items():
        if example.dims is not None:
            for step in schedule([x.node for x in example.outputs()]):
                imports = set()
                text = reproducer.source(step.spec, imports)
                scope = {}
                for module, thing in imports:
                    exec(f"from {module} import {thing}", scope)
                assert eval(text, scope) == step.spec, name
    assert eval(reproducer.source((1.5, float("nan"), [np.float32(2), None, "x"], {"a": (1,)}), set()))[0] == 1.5
    with pytest.raises(ArgumentError, match="object cannot be written down as Python"):
        reproducer.source(object(), set())


# ---- digest files


def recorded(tmp_path, *cases, device=None):
    file = DigestFile(machine(device or vk.device()))
    assert all(o.ok for o in check(cases, record=file))
    path = tmp_path / "digests.json"
    file.write(path)
    return path


def test_a_digest_file_says_what_was_run_and_where(tmp_path):
    path = recorded(tmp_path, case("softmax"))
    file = DigestFile.read(path)
    assert file.complete and file.machine["device"] == vk.device().name and file.machine["vkdnn"] == vk.__version__
    assert set(file.machine) >= {"driver", "numpy", "fingerprint", "strategies"}
    assert set(file.targets) == {"softmax"}
    assert set(file.targets["softmax"].results[HARD]) == {"result", "gradient of x"}
    assert all(o.ok for o in check([case("softmax")], against=file))
    assert all(o.ok for o in check([case("softmax")], vk.device("cpu"), against=file))


def test_what_differs_from_a_digest_file_is_bisected_here(tmp_path):
    file = DigestFile.read(recorded(tmp_path, case("softmax"), case("relu")))
    with planted.row("relu", "maximum({0}, 1.0)"):
        outcome = only(check([case("relu")], against=file))
    assert not outcome.ok and outcome.differences[0].place is None
    assert "relu" in outcome.finger.verdict
    file.targets["softmax"].results[RANDOM]["result"] = "0" * 64
    outcome = only(check([case("softmax")], against=file))
    assert "agrees with cpu here: it is" in outcome.finger.verdict


def test_other_inputs_and_targets_are_errors_by_name(tmp_path):
    file = DigestFile.read(recorded(tmp_path, case("softmax")))
    assert "is not in the digest file" in only(check([case("matmul")], against=file)).error
    file.targets["softmax"].inputs[RANDOM][0] = "0" * 64
    outcome = only(check([case("softmax")], against=file))
    assert "its inputs are not those that were recorded (random argument 0; vkdnn 0" in outcome.error


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda text: text.replace('"complete": true', '"complete": false'), "its own digest differs"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "has version 9, expected 1"),
        (lambda text: "[]", "is no file of vkdnn parity"),
        (lambda text: "\0", "is damaged"),
        (lambda text: "", "is damaged"),
    ],
)
def test_broken_digest_files_are_refused(tmp_path, damage, message):
    path = tmp_path / "digests.json"
    DigestFile(machine(vk.device("cpu"))).write(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(DigestFileError, match=message):
        DigestFile.read(path)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("targets", {"softmax": 5}, "targets, softmax"),
        ("targets", {"softmax": {"inputs": {"random": [1]}, "results": {}}}, "targets, softmax"),
        ("targets", {"softmax": {"inputs": {}, "results": {"random": {"result": None}}}}, "targets, softmax"),
        ("targets", [], "targets"),
        ("machine", None, "machine"),
        ("machine", {"device": 3}, "machine"),
        ("complete", "yes", "complete"),
        ("request", 3, "request"),
        ("request", {"steps": True}, "request, steps"),
        ("request", {"targets": "softmax"}, "request, targets"),
    ],
)
def test_digest_files_with_a_right_checksum_and_wrong_fields_are_refused(tmp_path, field, value, named):
    path = tmp_path / "digests.json"
    DigestFile(machine(vk.device("cpu"))).write(path)
    whole = json.loads(path.read_text())
    del whole["sha256"]
    whole |= {field: value}
    for wrong in (whole, {k: v for k, v in whole.items() if k != field}):
        path.write_text(json.dumps(wrong | {"sha256": _own(wrong)}))
        with pytest.raises(DigestFileError, match=f"{path}: field {named if wrong is whole else field}: is wrong"):
            DigestFile.read(path)


def test_a_digest_file_that_does_not_say_what_was_run_needs_targets(tmp_path):
    DigestFile(machine(vk.device("cpu"))).write(tmp_path / "file")
    with pytest.raises(DigestFileError, match=r"file: field request: has no targets, .*; name targets"):
        DigestFile.read(tmp_path / "file").asked(tmp_path / "file")


def test_digest_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(DigestFileError, match="cannot be read"):
        DigestFile.read(tmp_path / "none")
    with pytest.raises(DigestFileError, match="cannot be written"):
        DigestFile({}).write(tmp_path / "no folder" / "file")


def test_a_run_that_is_killed_leaves_no_half_of_a_file(tmp_path):
    path = tmp_path / "digests.json"
    command = [sys.executable, "-m", "vkdnn", "parity", "reductions", "--record", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        time.sleep(3)
        process.send_signal(signal.SIGKILL)
        process.wait()
    if path.exists():  # it was quicker
        assert DigestFile.read(path).complete


@pytest.mark.skipif(not Path(ICD).is_file(), reason="VKDNN_SWIFTSHADER_ICD names no driver")
def test_swiftshader_gives_what_another_device_has_recorded(tmp_path):
    path = tmp_path / "digests.json"
    names = ["softmax", "matmul", "sort"]
    asked = {"targets": [*names, "grid:"], "shapes": [], "all": False, "grid_size": "small", "steps": 1}
    file = DigestFile(machine(vk.device()), request=asked)
    assert all(o.ok for o in check(targets(names), record=file))
    # The grid is long, and that other devices agree with the reference there is seen above.
    assert all(o.ok for o in check(targets(["grid:"], grid_size="small"), vk.device("cpu"), record=file))
    file.write(path)
    command = [sys.executable, "-m", "vkdnn", "parity", "--against", str(path), "--device", "SwiftShader"]
    environment = os.environ | {"VK_DRIVER_FILES": ICD}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "SwiftShader" in done.stdout and "every bit" in done.stdout


def test_the_walk_looks_at_each_kernel_once():
    walk = Walk()
    with devices.prepared() as made:
        of_case(case("softmax")).session(vk.device()).run()
    assert walk.flaws([*made, *made]) == [] and 0 < walk.kernels <= len(made[0].tasks)


def test_a_work_is_a_target_too():
    work = Work("mine", "own", {"ones": [np.ones(3, np.float32)]}, lambda x: {"double": x + x})
    assert only(check([work])).values == 3
