"""The autotuner: winners are found, kept and used, and no choice of schedules changes a bit."""

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import vkdnn as vk
from vkdnn import tune
from vkdnn.aot.target import PORTABLE, target_of
from vkdnn.cli import app
from vkdnn.device import Task, VulkanDevice, prepared
from vkdnn.errors import ArgumentError, CompileError, DeviceError, MemoryLimitError
from vkdnn.kernels.base import Cost
from vkdnn.profile.ceilings import Ceilings
from vkdnn.program import Program
from vkdnn.schedules import scheduled
from vkdnn.schedules.winners import KIND, Candidate, Tuned, Winners, kernels
from vkdnn.shader import bundle
from vkdnn.shader.entry import Entry
from vkdnn.shader.store import Store
from vkdnn.tune import Limits, Tuning
from vkdnn.tune.bounds import at_the_ceiling, too_few
from vkdnn.tune.race import _rounds, _Runner, _winner

ROWS, WIDTH, WORDS = 12, 32, 10


def step(params, tokens):
    """A step of training with an embedding, a product, a softmax and their gradients: kernels of five families."""

    def loss(params):
        x = vk.take(params["table"], tokens)
        return -vk.mean(vk.log(vk.take_along_axis(vk.softmax(x @ params["w"]), tokens[:, None], 1)))

    value, slope = vk.value_and_grad(loss)(params)
    return {name: p - slope[name] * 0.5 for name, p in params.items()}, value


def data():
    rng = np.random.default_rng(5)
    table = rng.standard_normal((WORDS, WIDTH), dtype=np.float32)
    w = rng.standard_normal((WIDTH, WORDS), dtype=np.float32)
    return {"table": table, "w": w}, rng.integers(0, WORDS, ROWS).astype(np.int32)


def run(function, device=None, steps=2):
    """The bits of parameters and losses after some steps."""
    with vk.device(device):
        params, tokens = data()
        params = {name: vk.array(p) for name, p in params.items()}
        found = []
        for _ in range(steps):
            params, value = function(params, vk.array(tokens))
            found.append(value.numpy().tobytes())
        return [*found, *(params[name].numpy().tobytes() for name in sorted(params))]


@pytest.fixture(scope="module")
def want():
    return run(vk.jit(step), "cpu")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder of its own for tunings; shaders stay those of the session."""
    shared = Path(os.environ["VKDNN_CACHE_DIR"])
    (tmp_path / "v2").mkdir()
    (shared / "v2" / "shaders").mkdir(parents=True, exist_ok=True)
    (tmp_path / "v2" / "shaders").symlink_to(shared / "v2" / "shaders")
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    device = vk.device()
    device.winners.forget()
    yield Store(tmp_path, KIND)
    device.winners.forget()


def schedules_of(function, *arguments):
    """The schedules with which a function is made ready, as text."""
    with prepared() as log:
        vk.realize([function(*arguments)])
    return [str(s) for entry in log for s in entry.schedules]


def made(task, winner, legal):
    """What a race gives, without one."""
    return Tuned(task.sizes, str(winner), "wall", 0.0, tuple(Candidate(str(s), 1.0) for s in legal))


def softmax(x):
    return vk.softmax(x)


X = np.random.default_rng(0).standard_normal((40, 50), dtype=np.float32)


def test_the_fastest_schedule_is_found_kept_and_used(store):
    x = vk.array(X)
    want = softmax(x).numpy()
    tuning = vk.autotune(softmax, x)
    (kernel,) = tuning.kernels
    tuned = kernel.tuned
    assert (kernel.family, tuned.sizes, kernel.launches) == ("FoldSpec", (40,), 1)
    assert len(tuned.candidates) > 1 and any(c.schedule == tuned.winner for c in tuned.candidates)
    assert all(c.seconds > 0 or c.note for c in tuned.candidates) and tuning.spent > 0
    assert vk.autotune(softmax, x).kernels == [], "what is known is not timed again"
    vk.device().winners.forget()  # as in another process
    assert schedules_of(softmax, x) == [tuned.winner]
    assert softmax(x).numpy().tobytes() == want.tobytes()
    (known,) = kernels(store)
    assert known.current and known.tuned == (tuned,) and "fold" in known.spec


def test_any_choice_of_schedules_gives_the_same_bits():
    @settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(random):
        with scheduled(lambda spec, legal: random.choice(legal)):
            assert run(vk.jit(step), steps=1) == once

    once = run(vk.jit(step), "cpu", steps=1)
    check()


def test_a_tuner_that_is_wrong_about_everything_changes_no_bit(store, want, monkeypatch):
    picked = []

    def contrary(device, task, legal, watch, ceilings, limits, lost):
        """The last schedule wins, whatever the times; candidates do run, on the kernel's own data."""
        for schedule in legal:
            device.opened.record(device.launches([task], [schedule])).run()
        picked.append(str(legal[-1]))
        return made(task, legal[-1], legal)

    monkeypatch.setattr(tune, "race", contrary)
    jitted = vk.jit(step, donate_argnums=0)  # parameters are updated in place
    with vk.autotune() as tuning, prepared() as log:
        assert run(jitted) == want
    used = {str(s) for entry in log for s in entry.schedules}
    assert len(picked) == len(tuning.kernels) > 5 and set(picked) <= used
    assert run(jitted) == want and run(vk.jit(step)) == want


def test_a_program_that_is_ready_gets_the_winners(store, monkeypatch):
    jitted, x = vk.jit(softmax), vk.array(X)
    before = schedules_of(jitted, x)

    monkeypatch.setattr(tune, "race", lambda device, task, legal, *_: made(task, legal[-1], legal))
    vk.autotune(jitted, x)
    with prepared() as log:
        jitted(x)
    assert log == [] and before != [], "ready since it was tuned"
    assert schedules_of(vk.jit(softmax), x) != before
    monkeypatch.setenv("VKDNN_AUTOTUNE", "0")
    assert schedules_of(vk.jit(softmax), x) == before, "tuned schedules are left aside"


def test_arguments_that_are_donated_stay(store):
    twice = vk.jit(lambda x: vk.softmax(x), donate_argnums=0)
    x = vk.array(X)
    assert len(vk.autotune(twice, x).kernels) == 1
    assert x.numpy().tobytes() == X.tobytes()
    with vk.device("cpu"):
        assert vk.autotune(twice, vk.array(X)).kernels == []


def test_nothing_is_timed_unless_asked_for(store, monkeypatch):
    def never(*_):
        raise AssertionError("timed unasked")

    monkeypatch.setattr(tune, "race", never)
    softmax(vk.array(X)).numpy()
    monkeypatch.setenv("VKDNN_AUTOTUNE", "0")
    softmax(vk.array(X)).numpy()
    with vk.autotune(), scheduled(lambda spec, legal: legal[-1]):
        softmax(vk.array(X)).numpy()  # schedules that were asked for by name
    assert not store.folder.exists()
    monkeypatch.setenv("VKDNN_AUTOTUNE", "1")
    with pytest.raises(AssertionError, match="unasked"):
        softmax(vk.array(X)).numpy()
    monkeypatch.setenv("VKDNN_AUTOTUNE", "yes")
    with pytest.raises(ArgumentError, match="VKDNN_AUTOTUNE is 'yes', expected 1"):
        softmax(vk.array(X)).numpy()


def test_a_candidate_that_fails_is_dropped_with_its_reason(store, monkeypatch):
    plain = VulkanDevice.shader
    broken = {}

    def shader(self, spec, schedule):
        request = plain(self, spec, schedule)
        if schedule == spec.schedules(self.target)[-1] and broken:
            return replace(request, source=lambda: (_ for _ in ()).throw(CompileError("shader: no such thing")))
        return request

    monkeypatch.setattr(VulkanDevice, "shader", shader)
    broken[0] = True
    (kernel,) = vk.autotune(softmax, vk.array(X[:39])).kernels
    last = kernel.tuned.candidates[-1]
    assert last.seconds is None and last.note == "failed: shader: no such thing"
    assert kernel.tuned.winner != last.schedule


def test_a_candidate_that_loses_the_device_is_remembered(store, monkeypatch):
    def deadly(device, task, legal, watch, ceilings, limits, lost):
        lost(made(task, legal[0], legal[:1]))
        raise DeviceError("device: lost")

    monkeypatch.setattr(tune, "race", deadly)
    x = vk.array(X)
    with pytest.raises(DeviceError, match="lost"):
        vk.autotune(softmax, x)
    assert vk.autotune(softmax, x).kernels == [], "not tried again"


def test_an_interrupt_leaves_everything_usable(store, want, monkeypatch):
    calls = []

    def interrupted(*_):
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "race", interrupted)
    jitted = vk.jit(step)
    with pytest.raises(KeyboardInterrupt), vk.autotune():
        run(jitted)
    assert calls == [1] and run(jitted) == want


def test_arguments_that_an_interrupted_step_may_have_overwritten_are_gone(store, monkeypatch):
    calls = []

    def interrupted(device, task, legal, *_):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return made(task, legal[0], legal)

    monkeypatch.setattr(tune, "race", interrupted)
    jitted = vk.jit(lambda x, y: (x + 1.0, vk.softmax(y), vk.sum(y, axis=0), y @ y), donate_argnums=0)
    x, y = vk.array(X[:, :40].copy()), vk.array(X[:, :40].copy())
    with pytest.raises(KeyboardInterrupt), vk.autotune():
        jitted(x, y)
    assert y.numpy().tobytes() == X[:, :40].tobytes()
    with pytest.raises(DeviceError, match="was donated"):
        x.numpy()


def test_what_another_process_times_meanwhile_is_not_timed_again(store, monkeypatch):
    device, x = vk.device(), vk.array(X)
    other = Winners(*device.winners._device.values())
    monkeypatch.setattr(tune, "race", lambda device, task, legal, *_: made(task, legal[-1], legal))
    plain = Winners.alone

    @contextmanager
    def late(self):
        with plain(self):
            (spec, sizes, legal) = seen.pop()
            other.add(spec, row(sizes, str(legal[1])))
            yield

    (step,) = Program(device, [softmax(x).node]).steps
    seen = [(step.spec, step.sizes, step.spec.schedules(device.target))]
    monkeypatch.setattr(Winners, "alone", late)
    assert vk.autotune(softmax, x).kernels == []
    assert schedules_of(softmax, vk.array(X)) == [str(step.spec.schedules(device.target)[1])]


def test_bundles_are_built_with_winners_and_serve_whatever_was_tuned(store, monkeypatch):
    device, x = vk.device(), vk.array(X)
    (step,) = Program(device, [softmax(x).node]).steps
    legal = step.spec.schedules(device.target)
    assert target_of(device).schedule(step.spec, step.sizes) == legal[0]
    device.winners.add(step.spec, row(step.sizes, str(legal[1])))
    assert target_of(device).schedule(step.spec, step.sizes) == legal[1]
    assert target_of(None).schedule(step.spec, step.sizes) == step.spec.schedules(PORTABLE.target)[0]
    task = Task(step.spec, step.sizes, (), ())
    assert device.chosen([task]) == [legal[1]]
    held = device.shader(step.spec, legal[0]).identity
    monkeypatch.setattr(bundle, "in_use", lambda: True)
    monkeypatch.setattr(bundle, "find", lambda identity: b"" if identity == held else None)
    assert device.chosen([task]) == [legal[0]], "the bundle was built where nothing was tuned"


def test_time_and_memory_are_bounded(store, monkeypatch):
    tuning = Tuning(seconds=1e-9)
    with tuning:
        run(vk.jit(step), steps=1)
    assert len(tuning.kernels) == 1 and len(tuning.skipped) > 3
    plain, x = VulkanDevice.allocate, vk.array(X)

    def full(self, words, host, remote=False):
        if not host:
            raise MemoryLimitError("no room")
        return plain(self, words, host, remote)

    monkeypatch.setattr(VulkanDevice, "allocate", full)
    tuning = vk.autotune(softmax, x, again=True)
    assert tuning.kernels == [] and len(tuning.skipped) == 1


def test_what_takes_long_to_prepare_is_not_all_tried(store):
    with Tuning(limits=Limits(preparing=0.0)) as tuning:
        softmax(vk.array(X)).numpy()
    first, *others = tuning.kernels[0].tuned.candidates
    assert first.seconds > 0 and {c.note[:9] for c in others} == {"not tried"}
    assert tuning.kernels[0].tuned.winner == first.schedule


def test_without_timestamps_submissions_are_timed(store):
    device = vk.device()
    plain = device.opened.info
    device.opened.info = replace(plain, limits=replace(plain.limits, timestamp_ns=0.0))
    try:
        (kernel,) = vk.autotune(softmax, vk.array(X[:20])).kernels
    finally:
        device.opened.info = plain
    assert kernel.tuned.clock == "wall" and kernel.tuned.candidates[0].seconds > 0


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((3,), {}, "got 3, expected a function"),
        ((None, 1), {}, "arguments without a function"),
        ((), {"seconds": 0}, "seconds is 0, expected a positive number"),
    ],
)
def test_bad_arguments(arguments, keywords, message):
    with pytest.raises(ArgumentError, match=message):
        vk.autotune(*arguments, **keywords)


# ---- what is kept


@dataclass(frozen=True)
class Plain:
    """Stands for a spec: text and cost are all that is asked of it."""

    name: str = "plain"
    flops: int = 10**9

    def text(self):
        return self.name

    def context(self, schedule):
        return {"local_size": (schedule, 1)}

    def groups(self, sizes, schedule):
        return (1, 1, 1)

    def cost(self, sizes):
        return Cost(self.flops, 1 << 30)


def row(sizes, winner="2", default=2.0):
    return Tuned(sizes, winner, "device", 1.0, (Candidate("1", default, 1.9, 2.1, 5), Candidate("2", 1.0, 0.9, 1.1, 5)))


def test_exact_sizes_win_over_near_ones_and_far_ones_are_not_used(store):
    winners = Winners("gpu", "1", "native")
    assert not winners.any() and winners.find(Plain(), (100,), [1, 2]) is None
    winners.add(Plain(), row((100,)))
    winners.add(Plain(), row((120,), "1"))
    assert winners.any() and Winners("gpu", "1", "native").any()
    finds = {n: Winners("gpu", "1", "native").find(Plain(), (n,), [1, 2]) for n in (100, 103, 119, 120, 127, 128, 50)}
    assert finds == {100: 2, 103: 2, 119: 1, 120: 1, 127: 1, 128: None, 50: None}
    others = [Winners("gpu", "2", "native"), Winners("gpu", "1", "software"), Winners("another", "1", "native")]
    assert all(w.find(Plain(), (100,), [1, 2]) is None for w in others)
    assert winners.find(Plain("other"), (100,), [1, 2]) is None
    assert winners.find(Plain(), (np.int64(100),), [1, 2]) is None, "a size that is no number of Python is symbolic"


def test_a_winner_that_is_not_legal_any_more_is_not_used(store):
    winners = Winners("gpu", "1", "native")
    winners.add(Plain(), row((100,)))
    assert winners.find(Plain(), (100,), [1, 3]) is None


def test_rows_of_two_processes_are_kept(store):
    one, two = (Winners("gpu", "1", "native") for _ in range(2))
    assert one.rows(Plain()) == two.rows(Plain()) == ()
    one.add(Plain(), row((100,)))
    two.add(Plain(), row((300,)))
    two.add(Plain(), row((300,), "1"))
    assert [r.sizes for r in Winners("gpu", "1", "native").rows(Plain())] == [(300,), (100,)]


def test_entries_that_cannot_be_read_are_as_good_as_none(store):
    winners = Winners("gpu", "1", "native")
    winners.add(Plain(), row((100,)))
    (path,) = [p for p in store.folder.rglob("*") if p.is_file()]
    good = path.read_bytes()
    path.write_bytes(good[:-3] + b"xyz")
    with pytest.warns(RuntimeWarning, match="damaged entry"):
        assert Winners("gpu", "1", "native").find(Plain(), (100,), [1, 2]) is None
    entry = winners._components("plain")
    for text in ("[1]", '{"a": 1}', "[]", '[{"sizes": [1]}]', "nonsense"):
        store.save(Entry(KIND, entry, {}, {"tuned": text.encode()}))
        assert Winners("gpu", "1", "native").find(Plain(), (100,), [1, 2]) is None
    winners.add(Plain(), row((100,)))
    assert Winners("gpu", "1", "native").find(Plain(), (100,), [1, 2]) == 2


def test_without_a_folder_that_can_be_written_this_process_knows(tmp_path, monkeypatch):
    (tmp_path / "v2").write_text("in the way")
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    winners = Winners("gpu", "1", "native")
    with pytest.warns(RuntimeWarning, match="cannot store entries"):
        assert winners.add(Plain(), row((100,))) is False
    assert winners.any() and winners.find(Plain(), (100,), [1, 2]) == 2
    monkeypatch.setenv("VKDNN_CACHE_DISABLE", "1")
    winners = Winners("gpu", "1", "native")
    assert not winners.any() and winners.add(Plain(), row((100,))) is False
    assert winners.find(Plain(), (100,), [1, 2]) == 2


def test_one_look_at_the_disk_where_nothing_was_tuned(store, monkeypatch):
    monkeypatch.setattr(Store, "load", lambda *_: pytest.fail("looked up"))
    softmax(vk.array(X)).numpy()


# ---- how it is decided


def test_the_default_stays_unless_another_is_faster_beyond_noise():
    def winner(*times, failed=()):
        return _winner([_Runner(k, times=t, note="x" if k in failed else "") for k, t in enumerate(times)]).schedule

    assert winner([1.0, 1.0], [0.5, 0.5]) == 1
    assert winner([1.0, 1.0], [0.99, 0.99]) == 0, "1 % is noise"
    assert winner([1.0, 1.0], [0.9, 0.9], [0.8, 0.8], failed=[2]) == 1
    assert winner([1.0, 1.0], [], failed=[1]) == 0
    assert winner([1.0, 1.0], [0.5, 0.6], failed=[0]) == 1, "the default was left on the way"


def test_bounds_are_explained():
    why = too_few("discrete", Plain(), (), 64, 1e-3)
    assert why == (
        "cannot win: 64 invocations with 15,625,000 operations each, at least 3.91 ms; the default takes 1 ms"
    )
    assert too_few("discrete", Plain(), (), 1024, 1e-3) == "" and too_few("discrete", Plain(), (), 64, 3e-3) == ""
    cost = Plain().cost(())
    assert at_the_ceiling(cost, 1e-3, Ceilings(1.06e12, 1e12)).startswith(
        "cannot win: the default moves its bytes at 101%"
    )
    assert at_the_ceiling(cost, 2e-3, Ceilings(1e12, 1e12)) == "" and at_the_ceiling(cost, 1e-3, None) == ""
    assert at_the_ceiling(Cost(0, 1000), 1e-12, Ceilings(1e12, 1e12)) == "", "in a cache there is no such ceiling"


def test_a_candidate_is_left_when_it_is_clearly_slower():
    class Watch:
        clock = "device"

        def times(self, launches, rounds):
            return [[seconds * (1 + 0.01 * r) for r in range(rounds)] for seconds in launches]

    runners = [_Runner(k, launch=seconds, times=[seconds]) for k, seconds in enumerate((2e-3, 1e-3, 1.001e-3))]
    _rounds(Watch(), runners, Limits(rounds=9))
    assert [len(r.times) for r in runners] == [3, 9, 9]
    assert runners[0].note == "left after 3 rounds: 2.00 times the best"


# ---- the command


def told(*arguments, status=0):
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert result.exit_code == status, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.output


def test_the_command_tunes_lists_explains_and_clears(store, tmp_path, monkeypatch):
    (tmp_path / "tune_example.py").write_text("import vkdnn as vk\ndef forward(x, n): return vk.softmax(x) + n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = ("tune_example:forward", "--shape", "40,50", "-s", "n=40,50:int32", "--json")
    found = told(*run)
    assert {k["family"] for k in found["kernels"]} == {"FoldSpec"} and found["skipped"] == []
    assert told(*run)["kernels"] == [] and len(told(*run, "--again")["kernels"]) == 1
    (known,) = told("--list", "--json")
    assert known["current"] and known["gain"] >= 1 and known["sizes"] == [40]
    text = told("--explain", "maximum")
    assert "FoldSchedule(threads=" in text and "the default" in text and "timestamps" in text
    assert told("--explain", known["key"][:8], "--json")[0]["spec"].startswith("fold")
    assert "0 of 1 tuned kernel" in told("--compare-defaults") or known["gain"] > 1.1
    told("--explain", "nothing like it", status=1)
    assert "forgot 1 tuned kernel" in told("--clear") and told("--list", "--json") == []


def test_the_command_tunes_a_training_step(store, monkeypatch):
    class Step:
        """Stands for the trainer of a model that has one kernel."""

        def __init__(self, job, corpus, device, levers):
            assert (job.model, job.config.layers, job.batch, job.length) == ("rapt", 1, 2, 16)
            self.x = vk.array(X, device=device)

        def step(self):
            softmax(self.x).numpy()

    monkeypatch.setattr("vkdnn.cli.tune.Trainer", Step)
    command = ("rapt", "--layers", "1", "--batch", "2", "--length", "16", "--seconds", "5")
    (kernel,) = told(*command, "--json")["kernels"]
    assert (kernel["family"], kernel["launches"], kernel["sizes"]) == ("FoldSpec", 1, [40])
    assert "tuned 0 kernels" in told(*command)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one of"),
        (("rapt", "--list"), "name one of"),
        (("a:b", "--decode"), "belongs to rapt or gpt"),
        (("rapt", "--shape", "3"), "belongs to MODULE:FUNCTION"),
        (("rapt", "--nonsense", "3"), "No such option"),
    ],
)
def test_a_command_line_that_makes_no_sense(arguments, message):
    assert message in told(*arguments, status=2)
