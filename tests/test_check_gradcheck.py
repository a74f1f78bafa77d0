"""gradcheck: what is right passes, what is wrong is named, what noise or a kink hides is called neither."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check import gradcheck
from vkdnn.check.gradcheck_points import Options, judge
from vkdnn.check.gradcheck_report import FAILED, INCONCLUSIVE, KINK, NONE, OK, GradientError
from vkdnn.check.gradcheck_run import check_all
from vkdnn.check.gradcheck_targets import COMPOSED, check_targets, targets
from vkdnn.check.library import OPERATORS
from vkdnn.check.subjects import graph_subject
from vkdnn.errors import ArgumentError, DtypeError, ShapeError, VkdnnError
from vkdnn.ir.ops import OPS
from vkdnn.numerics import basic

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 4)).astype(np.float32)
W = RNG.standard_normal((4, 2)).astype(np.float32)


# ---- what a user does


def squared(x, w):
    return (x @ w) ** 2


def squared_vjp(g, x, w):
    inner = 2 * g * (x @ w)
    return inner @ w.T, x.T @ inner


def test_a_pair_of_numpy_functions_is_checked():
    report = gradcheck(squared, [X, W], vjp=squared_vjp).raise_if_failed()
    assert report.ok and [p.name for p in report.parts] == ["formula", "determinism"]
    assert report.part("formula").checked == X.size + W.size
    assert report.worst.relative < 1e-8


WRONG = {
    "factor": lambda g, x, w: tuple(p / 2 for p in squared_vjp(g, x, w)),
    "sign": lambda g, x, w: (squared_vjp(g, x, w)[0], -squared_vjp(g, x, w)[1]),
    "missing term": lambda g, x, w: (2 * g @ w.T, squared_vjp(g, x, w)[1]),
    "none": lambda g, x, w: (None, squared_vjp(g, x, w)[1]),
    "one element": lambda g, x, w: (squared_vjp(g, x, w)[0] * (1 + 1e-4 * (np.arange(12) == 7).reshape(3, 4)), None),
}


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("mode", ["full", "fast", "inner"])
def test_a_wrong_vjp_fails(how, mode):
    report = gradcheck(squared, [X, W], vjp=WRONG[how], mode=mode)
    assert report.verdict == FAILED and not report.ok
    with pytest.raises(GradientError, match="failed"):
        report.raise_if_failed()


def test_a_transposed_gradient_of_a_square_matrix_fails():
    a, b = RNG.standard_normal((2, 3, 3))
    report = gradcheck(lambda a, b: a @ b, [a, b], vjp=lambda g, a, b: (g @ b.T, g.T @ a))
    assert {e.input for e in report.part("formula").entries} == {"b"}


def test_the_worst_element_is_named_and_found_again():
    def vjp(g, x):
        found = g * np.cos(x)
        found[2, 1] += 1e-3
        return found

    report = gradcheck(np.sin, [X], vjp=vjp, seed=3)
    worst = report.worst
    assert (worst.input, worst.index, report.part("formula").failed) == ("x", (2, 1), 1)
    assert worst.absolute == pytest.approx(1e-3, rel=1e-4) and worst.estimate < 1e-9 and worst.step > 0
    assert worst.relative == worst.absolute / max(abs(worst.numeric), abs(worst.analytic)) and worst.ulp > 1000
    assert report.reproduce.endswith("seed=3, input='x', index=(2, 1))")
    again = gradcheck(np.sin, [X], vjp=vjp, seed=3, input="x", index=(2, 1))
    assert again.part("formula").checked == 1 and again.worst == worst


def test_a_report_is_a_table_and_data_but_no_truth_value():
    report = gradcheck(np.sin, [X], vjp=lambda g, x: g * np.sin(x))
    text = str(report)
    assert "sin: failed" in text and "again: vkdnn.check.gradcheck(sin" in text and "x[" in text
    record = json.loads(json.dumps(report.record()))
    assert record["verdict"] == "failed" and not record["ok"]
    wanted = {"input", "index", "analytic", "numeric", "absolute", "relative", "ulp", "step", "estimate", "kink"}
    assert wanted <= record["parts"][0]["worst"].keys()
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(report)


# ---- functions of vkdnn


def test_a_function_of_vkdnn_is_checked_in_three_parts():
    report = gradcheck(vk.softmax, [X])
    assert report.ok and [p.name for p in report.parts] == ["formula", "device", "determinism"]
    assert report.part("device").checked == X.size and report.part("determinism").checked == 2 * X.size
    assert report.device == vk.device().name


def test_trees_integers_and_several_results():
    def loss(parameters, index):
        rows = vk.take(parameters["table"], index)
        return {"rows": rows * parameters["scale"], "count": index, "sum": [vk.sum(rows)]}

    given = [{"table": X, "scale": np.float32(2.0)}, np.array([2, 0, 2], np.int32)]
    report = gradcheck(loss, given, device="cpu").raise_if_failed()
    assert report.part("formula").checked == X.size + 1
    one = gradcheck(loss, given, device="cpu", input="parameters.scale", index=())
    assert one.part("formula").checked == 1


def test_a_captured_array_is_a_constant():
    weight = vk.array(X)
    assert gradcheck(lambda x: vk.tanh(x) * weight, [X]).ok


def test_a_wrong_derivative_in_the_op_table_is_the_formulas_fault(monkeypatch):
    monkeypatch.setitem(OPS, "tanh", dataclasses.replace(OPS["tanh"], derivative=lambda g, y, x: (g * (1.0 - y),)))
    report = gradcheck(vk.tanh, [X], device="cpu")
    assert [p.verdict for p in report.parts] == [FAILED, OK, OK]
    assert gradcheck(vk.tanh, [X], device="cpu", mode="complex").failed


def test_a_wrong_kernel_is_the_devices_fault(monkeypatch):
    monkeypatch.setitem(
        OPS, "square", dataclasses.replace(OPS["square"], numpy=lambda x: basic.mul(x, x) + np.float32(1e-3))
    )
    report = gradcheck(lambda x: vk.exp(vk.square(x)), [X], device="cpu")
    assert [p.verdict for p in report.parts] == [OK, FAILED, OK]
    assert report.worst.part == "device"


def test_bits_that_change_are_a_failure_of_their_own(monkeypatch):
    turn = itertools.count()

    def unsteady(x):
        return np.nextafter(basic.mul(x, x), np.float32(9), dtype=np.float32) if next(turn) % 2 else basic.mul(x, x)

    monkeypatch.setitem(OPS, "square", dataclasses.replace(OPS["square"], numpy=unsteady))
    report = gradcheck(lambda x: vk.exp(vk.square(x)), [X], device="cpu")
    assert [p.verdict for p in report.parts] == [OK, OK, FAILED]
    assert report.worst.note in ("again", "other schedules")


def test_nan_on_both_sides_is_the_same_bits():
    given = np.array([1.0, -1.0], np.float32)
    report = gradcheck(vk.log, [given], device="cpu")
    assert report.part("determinism").verdict == OK


def test_a_gradient_that_is_not_there_is_zero():
    report = gradcheck(lambda x, y: x * 2 + vk.stop_gradient(y), [X, X], device="cpu")
    assert report.ok


# ---- cases that fooled others


def sigmoid32(x):
    return 1 / (1 + np.exp(-x.astype(np.float32)))


def sigmoid32_vjp(g, x):
    y = sigmoid32(x)
    return g * (y * (1 - y))


def test_float32_differences_with_a_small_step_are_noise_not_a_wrong_gradient():
    given = [np.array([0.3, 1.6, -0.7], np.float32)]
    small = gradcheck(sigmoid32, given, vjp=sigmoid32_vjp, step=1e-6)
    assert small.verdict == INCONCLUSIVE and not small.ok and not small.failed
    assert max(e.relative for e in small.part("formula").entries) > 0.05  # it would have been called wrong
    assert gradcheck(sigmoid32, given, vjp=sigmoid32_vjp).ok
    wrong = gradcheck(sigmoid32, given, vjp=lambda g, x: 1.02 * sigmoid32_vjp(g, x))
    assert wrong.verdict == FAILED


def pooled(x):
    return vk.max(x.reshape(2, 2), 1)


def test_a_tie_in_a_max_window_is_a_kink():
    report = gradcheck(pooled, [np.array([1.0, 1.0, 2.0, 0.5], np.float32)], device="cpu")
    formula = report.part("formula")
    assert report.ok and formula.kinks == 2 and {e.index for e in formula.entries} == {(0,), (1,)}
    for entry in formula.entries:
        assert entry.kink and min(abs(entry.left), abs(entry.right)) < 1e-6 < max(abs(entry.left), abs(entry.right))


@pytest.mark.parametrize("mode", ["full", "fast"])
def test_relu_at_zero_is_a_kink(mode):
    report = gradcheck(
        lambda x: np.maximum(x, 0), [np.array([0.0, 1.0, -2.0])], vjp=lambda g, x: g * (x > 0), mode=mode
    )
    assert report.ok and report.part("formula").kinks == 1


@pytest.mark.parametrize(("gradient", "verdict"), [(-1.0, OK), (0.3, OK), (1.0, OK), (1.01, FAILED), (-3.0, FAILED)])
def test_at_a_kink_the_gradient_lies_between_the_slopes(gradient, verdict):
    report = gradcheck(np.abs, [np.array([0.0])], vjp=lambda g, x: g * gradient)
    assert report.verdict == verdict
    (entry,) = report.part("formula").entries
    assert entry.note.startswith("slopes ") and ("is outside" in entry.note) == (verdict == FAILED)


def test_beside_a_jump_the_slope_has_no_bound():
    for side, wrong in ((1.0, -1.0), (-1.0, 1.0)):
        jump = lambda x: np.where(x * side > 0, 1.0, 0.0) * side + 2 * x  # noqa: E731, B023
        right = gradcheck(jump, [np.array([0.0])], vjp=lambda g, x: 2 * g)
        assert right.ok and math.inf in (abs(right.worst.left), abs(right.worst.right))
        assert gradcheck(jump, [np.array([0.0])], vjp=lambda g, x: wrong * g).failed  # noqa: B023


def test_nan_on_both_sides_is_counted():
    report = gradcheck(np.log, [np.array([-1.0, 2.0])], vjp=lambda g, x: g * np.where(x > 0, 1 / x, np.nan))
    assert report.ok and "1 of them NaN on both sides" in str(report)


def test_a_long_table_shows_the_worst_ten():
    report = gradcheck(np.sin, [np.ones((3, 6))], vjp=lambda g, x: g)
    assert str(report).count("formula") == 11 and "  … and 8 more\n" in str(report)
    assert len(report.record()["parts"][0]["entries"]) == 18


def test_functions_that_insist_on_float32_are_called_so():
    def forward(x):
        if x.dtype != np.float32:
            raise TypeError("float32 only")
        return np.tanh(x)

    report = gradcheck(forward, [X], vjp=lambda g, x: g * (1 - forward(x) ** 2))
    assert not report.failed and "evaluated in float32" in str(report)
    assert gradcheck(forward, [X], vjp=lambda g, x: 1.1 * g * (1 - forward(x) ** 2)).failed

    def refuse(x):
        raise ValueError("no such dtype")

    with pytest.raises(ValueError, match="no such dtype"):
        gradcheck(refuse, [X], vjp=lambda g, x: g)


def test_a_wrong_number_of_arguments_is_said():
    with pytest.raises(ArgumentError, match=r"squared takes 2 arguments, \(x, w\), and was given 1"):
        gradcheck(squared, [X], vjp=squared_vjp)
    with pytest.raises(ArgumentError, match=r"the vjp of squared takes 2 arguments, \(g, x\), and was given 3"):
        gradcheck(squared, [X, W], vjp=lambda g, x: g)
    with pytest.raises(ArgumentError, match="takes 2 arguments"):
        gradcheck(lambda x, w: x @ w, [X])
    with pytest.raises(ArgumentError, match="is a class"):
        gradcheck(vk.nn.Linear, [X])


def test_a_wrong_gradient_beside_a_kink_still_fails():
    report = gradcheck(lambda x: np.maximum(x, 0), [np.array([0.0, 1e-3])], vjp=lambda g, x: g * (x > 0) * 1.1)
    assert report.part("formula").failed == 1 and report.part("formula").kinks == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_against_a_number_is_always_a_difference(bad):
    def vjp(g, x):
        found = g * np.cos(x)
        found[0, 1] = bad
        return found

    for mode in ("full", "fast", "inner"):
        assert gradcheck(np.sin, [X], vjp=vjp, mode=mode).failed
    assert gradcheck(np.sin, [X], vjp=vjp).worst.index == (0, 1)


def test_a_number_against_nan_is_a_difference():
    report = gradcheck(lambda x: np.log(x), [np.array([-1.0, 2.0])], vjp=lambda g, x: g / x)
    assert report.part("formula").failed == 1 and report.worst.index == (0,)
    right = gradcheck(lambda x: np.log(x), [np.array([-1.0, 2.0])], vjp=lambda g, x: g * np.where(x > 0, 1 / x, np.nan))
    assert right.ok


def log_softmax(x):
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


LABELS = [0, 1, 0, 2, 0]  # blanks around two labels


def alignments(log_probabilities, labels):
    """CTC's forward variables: log of the sum over all ways to have come so far."""
    alpha = np.full((len(log_probabilities), len(labels)), -np.inf)
    alpha[0, :2] = log_probabilities[0, labels[:2]]
    for t, s in itertools.product(range(1, len(alpha)), range(len(labels))):
        before = [alpha[t - 1, s - k] for k in range(3 if s % 2 else 2) if s >= k]
        alpha[t, s] = np.logaddexp.reduce(before) + log_probabilities[t, labels[s]]
    return alpha


def ctc(logits):
    return -np.logaddexp(*alignments(log_softmax(logits), LABELS)[-1, -2:])


def posterior(logits):
    """How often each symbol stands in each frame: minus the gradient with respect to log-probabilities."""
    logp = log_softmax(logits)
    onwards, backwards = alignments(logp, LABELS), alignments(logp[::-1], LABELS[::-1])[::-1, ::-1]
    found = np.zeros_like(logits)
    np.add.at(found, (slice(None), LABELS), np.exp(onwards + backwards - logp[:, LABELS] + ctc(logits)))
    return found


def test_a_ctc_gradient_by_log_probabilities_instead_of_logits_is_caught():
    logits = [np.random.default_rng(2).standard_normal((6, 3))]
    right = gradcheck(ctc, logits, vjp=lambda g, x: g * (np.exp(log_softmax(x)) - posterior(x)))
    assert right.ok, str(right)
    wrong = gradcheck(ctc, logits, vjp=lambda g, x: -g * posterior(x))
    assert wrong.part("formula").failed == 18


def test_torchs_ctc_loss_is_caught_at_it():
    """Its gradient with respect to log-probabilities is in truth the one with respect to logits."""
    torch = pytest.importorskip("torch")
    logits, labels = torch.tensor(RNG.standard_normal((6, 1, 3))), torch.tensor([[1, 2]])

    def loss(log_probabilities):
        return torch.nn.functional.ctc_loss(log_probabilities, labels, torch.tensor([6]), torch.tensor([2]))

    assert gradcheck(loss, [logits.log_softmax(-1)]).failed
    assert gradcheck(lambda x: loss(x.log_softmax(-1)), [logits]).ok


# ---- modes


def test_an_unsteady_gradient_is_a_failure_of_its_own():
    rng = np.random.default_rng(0)
    report = gradcheck(np.sin, [X], vjp=lambda g, x: g * np.cos(x) * (1 + 1e-15 * rng.standard_normal(x.shape)))
    assert [p.verdict for p in report.parts] == [OK, FAILED] and report.worst.part == "determinism"


def test_an_unsteady_function_is_said_to_be_one():
    rng = np.random.default_rng(0)
    report = gradcheck(lambda x: x * rng.random(x.shape), [X], vjp=lambda g, x: g)
    assert report.failed and "two results for one input" in str(report)


def test_fast_mode_gives_the_full_report_when_it_fails():
    right = gradcheck(squared, [X, W], vjp=squared_vjp, mode="fast", directions=3)
    assert right.ok and right.part("directions").checked == 3
    wrong = gradcheck(squared, [X, W], vjp=WRONG["sign"], mode="fast")
    assert wrong.part("formula").checked == X.size + W.size
    assert {e.input for e in wrong.part("formula").entries} == {"w"}


def test_the_inner_product_test_sees_a_vjp_that_is_not_linear():
    def vjp(g, x):
        return abs(g) * np.cos(x) * np.sign(g) + 1e-3 * g * g

    assert gradcheck(np.sin, [X], vjp=lambda g, x: g * np.cos(x), mode="inner").ok
    assert gradcheck(np.sin, [X], vjp=vjp, mode="inner").part("linearity").verdict == FAILED


def test_complex_steps_where_the_function_allows():
    report = gradcheck(vk.softmax, [X], mode="complex", device="cpu")
    assert report.ok and report.worst.estimate < 1e-13 and report.worst.step < 1e-20
    pair = gradcheck(lambda x: np.exp(x) * x, [X], vjp=lambda g, x: g * np.exp(x) * (1 + x), mode="complex",
                     complex_step=True)  # fmt: skip
    assert pair.ok and pair.worst.step < 1e-20
    tried = gradcheck(np.exp, [X], vjp=lambda g, x: g * np.exp(x), mode="complex")
    assert tried.ok and tried.worst.step < 1e-20
    plain = gradcheck(np.abs, [X], vjp=lambda g, x: g * np.sign(x), mode="complex")
    assert plain.ok and plain.worst.step > 1e-9 and "not analytic" in str(plain)
    with pytest.raises(ArgumentError, match="floor takes no complex numbers"):
        gradcheck(np.floor, [X], vjp=lambda g, x: 0 * g, mode="complex")


def test_a_function_that_is_not_analytic_gets_differences_after_all():
    report = gradcheck(np.abs, [X], vjp=lambda g, x: g * np.sign(x), mode="complex", complex_step=True)
    assert report.ok and report.worst.step > 1e-9


def test_a_function_analytic_in_one_element_gets_complex_steps_there_alone():
    def function(x):
        return 1e8 * x[0] + np.abs(x[1])

    for mode in ("complex", "full"):
        for slope, verdict in ((1.0, OK), (0.0, FAILED)):
            vjp = lambda g, x: np.array([1e8 * g, slope * g])  # noqa: E731, B023
            assert gradcheck(function, [np.array([1.0, 2.0])], vjp=vjp, mode=mode, complex_step=True).verdict == verdict


def test_complex_steps_that_a_function_refuses_are_done_without():
    assert gradcheck(np.floor, [X], vjp=lambda g, x: 0 * g, complex_step=True).ok


def test_second_derivatives():
    report = gradcheck(vk.softmax, [X], second_order=True, device="cpu")
    assert report.ok and report.order == 2 and report.part("formula").checked == 2 * X.size
    none = gradcheck(vk.silu, [X], second_order=True, device="cpu")
    assert none.verdict == NONE and "silu_slope has no derivative" in str(none)
    with pytest.raises(ArgumentError, match="a vjp of the vjp"):
        gradcheck(np.sin, [X], vjp=lambda g, x: g * np.cos(x), second_order=True)


def test_a_wrong_second_derivative_is_seen(monkeypatch):
    monkeypatch.setitem(OPS, "sin", dataclasses.replace(OPS["sin"], derivative=lambda g, y, x: (g * vk_cos(x),)))
    monkeypatch.setitem(OPS, "cos", dataclasses.replace(OPS["cos"], derivative=lambda g, y, x: (g * y,)))
    assert gradcheck(vk.sin, [X], device="cpu").ok
    assert gradcheck(vk.sin, [X], device="cpu", second_order=True).failed


def vk_cos(x):
    return x._map("cos", x)


@pytest.mark.parametrize(
    ("claimed", "value", "error", "verdict"),
    [
        (1.0, 1.0 + 1e-9, 1e-10, OK),
        (1.0, 1.001, 1e-10, FAILED),
        (1.0, 1.001, 1e-3, INCONCLUSIVE),
        (1.0, 2.0, 1e-2, FAILED),
        (0.0, 1e-13, 1e-13, OK),
        (math.nan, 1.0, 1e-9, FAILED),
        (math.nan, math.nan, math.inf, OK),
        (1.0, math.nan, math.inf, INCONCLUSIVE),
        (math.inf, 90.0, 45.0, INCONCLUSIVE),
        (math.inf, 1.0, 1e-9, FAILED),
    ],
)
def test_verdicts(claimed, value, error, verdict):
    from vkdnn.check.differences import Slope

    assert judge(claimed, Slope(value, error, 1e-3, value, value, False, value), 1.0, 1e-6)[0] == verdict
    kink = Slope(value, 1e-9, 1e-3, value - 1, value + 1, True, value)
    assert math.isnan(claimed + value) or math.isinf(claimed) or judge(claimed, kink, 1.0, 1e-6)[0] == KINK


def check(function, x, slope, **options):
    return gradcheck(function, [np.array(x)], vjp=lambda g, x: g * slope(x), **options).verdict


@pytest.mark.parametrize("x", [[1e-12, 0.5, 0.9], [1e-20, 2e-20]])
def test_small_inputs_beside_larger_ones(x):
    assert check(np.log, x, lambda x: 1 / x) == OK
    assert check(np.log, x, lambda x: np.where(x < 1e-3, 2, 1) / x) == FAILED


def test_infinite_inputs_have_no_differences():
    x = [-np.inf, 0.5, 2.0]
    assert check(lambda x: np.maximum(x, 0), x, lambda x: (x > 0) * 1.0) == OK
    assert check(lambda x: np.maximum(x, 0), [-np.inf], lambda x: np.ones(1)) == INCONCLUSIVE

    def softmax(x):
        e = np.exp(x - x.max())
        return e / e.sum()

    assert gradcheck(softmax, [np.array(x)], vjp=lambda g, x: softmax(x) * (g - (g * softmax(x)).sum())).ok


@pytest.mark.parametrize("rate", [50.0, 1e6, 2 * np.pi * 2**8, 2 * np.pi * 2**30, 1e17])
def test_oscillations_are_never_called_wrong(rate):
    x = [0.25, 1.0, 1.5]
    assert check(lambda x: np.sin(rate * x), x, lambda x: rate * np.cos(rate * x)) in (OK, INCONCLUSIVE)
    both = lambda x: x + 0.01 * np.sin(rate * x)  # noqa: E731
    if rate < 1e16:  # float64 itself knows no such slope
        assert check(both, x, lambda x: 1 + 0.01 * rate * np.cos(rate * x)) != FAILED
    assert check(both, x, np.ones_like) != OK


@pytest.mark.parametrize("share", [1.0, 0.1, 0.01])
def test_coarse_roundings_of_a_part_decide_nothing(share):
    def function(x):
        return x + share * np.sin(x).astype(np.float16)

    x = [0.3, 1.0, 1.5]
    assert check(function, x, lambda x: 1 + share * np.cos(x)) != FAILED
    assert check(function, x, np.ones_like) != OK
    assert check(function, x, lambda x: 1.5 * (1 + share * np.cos(x))) == FAILED


def test_coarse_roundings_beside_a_small_element_decide_nothing():
    def bent(x):
        return x + (1 + np.maximum(x, 0)).astype(np.float32)

    for small in (1e-5, 1e-9):
        assert check(bent, [small, 1.0], lambda x: 1.0 + (x > 0)) != FAILED


def test_what_a_large_value_drowns_is_inconclusive():
    def function(x):
        return np.array([1e16, np.sin(x).sum()])

    report = gradcheck(function, [X[0]], vjp=lambda g, x: 1.5 * g[1] * np.cos(x))
    assert report.verdict == INCONCLUSIVE


def test_a_function_that_remembers_is_unsteady():
    calls = itertools.count()
    report = gradcheck(lambda x: np.sin(x) + (next(calls) > 40), [X], vjp=lambda g, x: g * np.cos(x))
    assert report.part("determinism").verdict == FAILED and "other values at the same inputs" in str(report)


def test_points_that_a_function_refuses_have_no_values():
    def log(x):
        if (x <= 0).any():
            raise ValueError("not positive")
        return np.log(x)

    assert check(log, [1e-9, 0.5], lambda x: 1 / x) == OK
    with pytest.raises(ValueError, match="not positive"):
        check(log, [-1.0], lambda x: 1 / x)


# ---- PyTorch


def torch_function(torch, factor=2.0):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return factor * g * x

    return Square


def test_a_torch_function_is_checked():
    torch = pytest.importorskip("torch")
    right = gradcheck(torch_function(torch), [torch.tensor(X)])
    assert right.ok and right.op.endswith("Square")
    assert right.worst.input == "x"
    with pytest.raises(ArgumentError, match="Square is PyTorch's"):
        gradcheck(torch_function(torch), [X], mode="complex")
    with pytest.raises(ArgumentError, match=r"Square takes 1 argument, \(x\), and was given 2"):
        gradcheck(torch_function(torch), [X, X])
    assert gradcheck(torch_function(torch), [X], second_order=True).ok
    wrong = gradcheck(torch_function(torch, 2.01), [torch.tensor(X)])
    assert wrong.failed and wrong.worst.relative == pytest.approx(0.005, rel=0.01)


def test_a_torch_module_is_checked_with_its_parameters():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.LayerNorm(3))
    before = [p.detach().clone() for p in module.parameters()]
    report = gradcheck(module, [torch.tensor(X)])
    assert report.ok and report.part("formula").checked == X.size + sum(p.numel() for p in module.parameters())
    assert all(p.dtype == torch.float32 and torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))


def test_torch_functions_may_write_to_their_inputs_differentiate_and_refuse():
    torch = pytest.importorskip("torch")

    def double(x, i):
        i.add_(1)
        return x.mul_(2)[i]

    assert gradcheck(double, [torch.tensor(X), torch.tensor([0, 1])]).ok
    assert gradcheck(torch.nn.ReLU(inplace=True), [torch.tensor(X)]).ok

    def slope(x):
        return torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)[0]

    assert gradcheck(slope, [torch.tensor(X)]).ok
    target = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert gradcheck(lambda p: torch.nn.functional.binary_cross_entropy(p, target), [torch.tensor([1e-9, 0.3])]).ok


def test_torch_functions_of_float32_alone_with_integers_and_dropout():
    torch = pytest.importorskip("torch")
    index = torch.tensor([2, 0, 2])
    assert gradcheck(lambda x, i: torch.sigmoid(x)[i], [torch.tensor(X), index]).ok

    def narrow(x):
        return torch.tanh(x) @ torch.tensor(W)  # refuses float64

    report = gradcheck(narrow, [torch.tensor(X)])
    assert not report.failed and "evaluated in float32" in str(report)
    assert gradcheck(torch.nn.Dropout(0.5), [torch.tensor(X)]).failed
    with pytest.raises(ArgumentError, match="fails on its inputs"):
        gradcheck(torch.nn.Linear(7, 2), [torch.tensor(X)])


# ---- bad input


def test_bad_arguments_are_named():
    vjp = squared_vjp
    for match, given, options in (
        ("mode is 'slow'", [X], {"mode": "slow"}),
        ("directions is 0", [X], {"directions": 0}),
        ("step is -1", [X], {"step": -1.0}),
        ("inputs are missing", None, {}),
        ("no input of a float dtype", [np.arange(3, dtype=np.int32)], {}),
        ("no input 'y', expected one of", [X], {"input": "y"}),
        (r"no input has an element \(9,\)", [X], {"index": 9}),
        (r"index \(3, 0\) is none of", [X], {"index": (3, 0), "input": "x"}),
        ("index: got 'a'", [X], {"index": "a"}),
    ):
        with pytest.raises(ArgumentError, match=match):
            gradcheck(np.sin, given, vjp=lambda g, x: g * np.cos(x), **options)
    with pytest.raises(ArgumentError, match="expected a function, or a pair"):
        gradcheck(3, [X])
    with pytest.raises(ArgumentError, match="gave 3 gradients, expected one for each of its 2 inputs"):
        gradcheck(squared, [X, W], vjp=lambda g, x, w: (x, w, w))
    with pytest.raises(ShapeError, match="gradient for w has shape"):
        gradcheck(squared, [X, W], vjp=lambda g, x, w: (x, w.T))
    with pytest.raises(DtypeError, match="gives no result of a float dtype"):
        gradcheck(lambda x: x > 0, [X], vjp=lambda g, x: g)
    with pytest.raises(DtypeError, match="gives no result of a float dtype"):
        gradcheck(lambda x: x > 0, [X], device="cpu")
    with pytest.raises(DtypeError, match="expected floats, integers or bools"):
        gradcheck(squared, [X, "text"], vjp=vjp)
    with pytest.raises(ArgumentError, match="brings its inputs"):
        gradcheck(OPERATORS["softmax"], [X])
    with pytest.raises(ArgumentError, match="argmax has no gradient"):
        gradcheck(OPERATORS["argmax"])


def test_empty_arrays_have_nothing_to_compare():
    empty = np.zeros((0, 3), np.float32)
    for report in (
        gradcheck(vk.exp, [empty], device="cpu"),
        gradcheck(np.exp, [empty], vjp=lambda g, x: g * np.exp(x)),
        gradcheck(np.exp, [empty], vjp=lambda g, x: g * np.exp(x), mode="fast"),
    ):
        assert report.verdict == NONE and not report.ok and "no elements" in str(report)
    both = gradcheck(squared, [empty, X[:3]], vjp=lambda g, x, w: (x, np.zeros_like(w)), index=(0, 0), input="w")
    assert both.ok and both.part("formula").checked == 1


def test_functions_may_not_change_their_inputs_behind_our_back():
    def forward(x):
        x *= 2
        return x

    given = X.copy()
    assert gradcheck(forward, [given], vjp=lambda g, x: 2 * g).ok
    np.testing.assert_array_equal(given, X)


# ---- the library

NO_SECOND = {"silu", "gelu", "gelu_tanh", "mish"}  # their slopes are rows without a derivative


HEAVY = ("attention", "scans", "layers", "models")
ON_DEVICE = ("attention", "scan_prefix_outer.chunked", "scan_suffix_outer", "nn.ReLULinearAttention")  # of these


@pytest.mark.parametrize("group", dict.fromkeys(o.group for o in OPERATORS.values()))
def test_gradients_of_the_library(group):
    """What `vkdnn gradcheck --all` does. Of what has many kernels directions stand for elements, and most run on the
    reference: that a device gives the same bits is shown elsewhere."""
    options = Options("fast" if group in HEAVY else "full", directions=3, schedules=0 if group in COMPOSED else 8)
    found = [t for t in targets([], every=True) if t.group == group and t.make is not None]
    light = [t for t in found if group not in HEAVY or t.name in ON_DEVICE]
    reports = list(check_targets(light, vk.device(), options))
    reports += check_targets([t for t in found if t not in light], vk.device("cpu"), options)
    wrong = [r for r in reports if not r.ok]
    assert not wrong, "\n\n".join(map(str, wrong))


def test_second_derivatives_of_the_library():
    groups = ("rows", "arrays", "indices", "reductions", "norms", "products", "orders", "draws")
    found = [t for t in targets([], every=True) if t.group in groups and t.make is not None]
    found += targets(["scan_prefix_outer.chunked", "scan_suffix_outer", "attention"])
    reports = list(check_targets(found[:-3], vk.device("cpu"), Options(schedules=0), second_order=True))
    reports += check_targets(found[-3:], vk.device("cpu"), Options("fast", directions=2), second_order=True)
    wrong = [r for r in reports if r.verdict not in (OK, NONE)]
    assert not wrong, "\n\n".join(map(str, wrong))
    names = {t.name for t, r in zip(found, reports, strict=True) if r.verdict == NONE}
    assert names == NO_SECOND | {"attention"}
    assert all("has no derivative" in r.parts[0].note for r in reports if r.verdict == NONE)


def test_one_bad_target_does_not_spoil_the_others(monkeypatch):
    good, bad = graph_subject(vk.exp, [X]), graph_subject(vk.tanh, [X])

    def refuse(x):
        raise VkdnnError("no such kernel")

    monkeypatch.setitem(OPS, "tanh", dataclasses.replace(OPS["tanh"], numpy=refuse, define=None))
    reports = check_all([(good, "gradcheck(exp)"), (bad, "gradcheck(tanh)")], vk.device("cpu"), Options())
    assert [r.verdict for r in reports] == [OK, FAILED] and "no such kernel" in str(reports[1])
