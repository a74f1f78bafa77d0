"""Reductions: the written order (128 lanes, a tree, spans of 32,768) told anew, on every schedule."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.dtypes import float32
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.define import evaluate
from vkdnn.ir.node import leaf
from vkdnn.kernels.base import Target
from vkdnn.kernels.fold import FoldSchedule, FoldSpec
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact, flush

LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 257, 2049, 32767, 32768, 32769)
SOME_LENGTHS = (3, 129, 2049)
IDENTITY = {"add": -0.0, "maximum": -np.inf, "minimum": np.inf}
COMBINE = {"add": basic.add, "maximum": basic.maximum, "minimum": basic.minimum}


def written_fold(op, x):
    """x [rows, n] folded over its last axis as DESIGN writes it, lanes past the end holding the identity."""
    rows, n = x.shape
    if n > 32768:
        spans = [written_fold(op, x[:, start : start + 32768]) for start in range(0, n, 32768)]
        return written_fold(op, np.stack(spans, axis=1))
    lanes = np.full((rows, 128), IDENTITY[op], np.float32)
    for start in range(0, n, 128):
        chunk = np.full((rows, 128), IDENTITY[op], np.float32)
        chunk[:, : min(128, n - start)] = x[:, start : start + 128]
        lanes = COMBINE[op](lanes, chunk)
    stride = 64
    while stride:
        lanes = COMBINE[op](lanes[:, :stride], lanes[:, stride : 2 * stride])
        stride //= 2
    return lanes[:, 0]


def hard_rows(n, seed=0):
    """Ordinary, wide, vanishing, negative-zero and hard rows; one with a NaN, one with an infinity."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    wide = rng.standard_normal(n) * 2.0 ** rng.integers(-60, 60, n)
    vanishing = rng.standard_normal(n) * 2.0**-125
    hard = rng.permutation(np.resize(HARD_FLOATS[np.isfinite(HARD_FLOATS)], n))
    with_nan, with_inf = normal.copy(), normal.copy()
    with_nan[n // 2], with_inf[-1] = np.nan, -np.inf
    rows = [normal, wide, vanishing, np.full(n, -0.0), hard, with_nan, with_inf]
    return flush(np.stack(rows).astype(np.float32))


CHOICES = {
    "invocation": lambda s: s.threads == 1,
    "workgroup": lambda s: (s.threads, s.rows, s.held) == (128, 1, False),
    "holding": lambda s: s.held and s.threads == 128,
    "several": lambda s: s.held and s.threads == 32,
    "ahead": lambda s: not s.held and s.threads == 16,
}


@pytest.fixture(params=CHOICES)
def forced(request, monkeypatch):
    """Every fold of the test takes one schedule; where it is not legal, one invocation for a row."""
    legal = FoldSpec.schedules

    def one(self, target):
        found = [s for s in legal(self, Target(software=False)) if CHOICES[request.param](s) and not s.across]
        return (replace(found[0], unroll=False) if found else FoldSchedule(),)

    monkeypatch.setattr(FoldSpec, "schedules", one)
    return request.param


def test_a_sum_has_the_written_order(both):
    x = hard_rows(300)
    (total,) = both(lambda x: vk.sum(x, axis=-1), x)
    with exact():
        assert bits_equal(total, written_fold("add", x)).all()
    assert not bits_equal(total[:2], x[:2].sum(axis=-1)).all()  # NumPy's own order is another one


@pytest.mark.parametrize("n", LENGTHS)
def test_folds_of_every_length(both, forced, n):
    if forced != "invocation" and n not in SOME_LENGTHS:
        pytest.skip("one length of a kind is enough")
    x = hard_rows(n, n)

    def run(x):
        return [vk.sum(x, -1), vk.max(x, -1), vk.min(x, -1), vk.mean(x, -1), vk.softmax(x), vk.logsumexp(x)]

    found = both(run, x)
    with exact():
        total, top, least = (written_fold(op, x) for op in IDENTITY)
        e = evaluate("exp", basic.sub(x, top[:, None]))
        shift = np.where(np.isfinite(top), top, np.float32(0))[:, None]
        scaled = written_fold("add", evaluate("exp", basic.sub(x, shift)))
        wanted = [
            total,
            top,
            least,
            basic.div(total, np.float32(n)),
            basic.div(e, written_fold("add", e)[:, None]),
            basic.add(evaluate("log", scaled), shift[:, 0]),
        ]
    for name, want, got in zip(("sum", "max", "min", "mean", "softmax", "logsumexp"), wanted, found, strict=True):
        assert bits_equal(want, got).all(), f"{name} over {n}: rows {np.argwhere(~bits_equal(want, got))[:5]}"


AXES = [axes for count in (1, 2, 3) for axes in itertools.combinations(range(3), count)]


def test_folds_over_every_choice_of_axes(both, forced):
    x = hard_rows(3 * 130 * 5)[0].reshape(3, 130, 5)
    found = both(
        lambda x: [vk.sum(x * 2, axes, keepdims=True) for axes in AXES] + [vk.sum(x * 2), vk.max(x, (-1, 0))],
        x,
    )
    for axes, got in zip(AXES, found, strict=False):
        rest = [a for a in range(3) if a not in axes]
        rows = np.transpose(x, (*rest, *axes)).reshape(int(np.prod([x.shape[a] for a in rest])), -1)
        with exact():
            want = written_fold("add", rows * np.float32(2)).reshape([1 if a in axes else x.shape[a] for a in range(3)])
        assert bits_equal(want, got).all(), axes
    assert found[-2].shape == () and bits_equal(found[-2], found[-3].reshape(())).all()
    assert (found[-1] == x.max(axis=(0, 2))).all()


def test_a_long_fold_along_the_first_axis(both):
    x = np.ascontiguousarray(hard_rows(40000)[:5].T)
    total, scaled = both(lambda x: [vk.sum(x, axis=0), vk.softmax(x * 0.01, axis=0)], x)
    with exact():
        assert bits_equal(total, written_fold("add", x.T)).all()
    assert abs(scaled[:, 0].sum(dtype=np.float64) - 1) < 1e-5  # a float64 sum of float32 values: not compared by bits


def test_large_numbers_of_rows_stride_over_what_is_left(both, forced):
    x = np.resize(np.arange(7, dtype=np.float32), (70_000, 2))
    (total,) = both(lambda x: vk.sum(x, axis=1), x)
    assert (total == x.sum(axis=1)).all()


def test_folds_over_views_and_computed_elements(both, forced):
    x = hard_rows(12 * 20)[0].reshape(12, 20)

    def run(x):
        return [
            vk.sum(x[::-1, 3:17:2], axis=1),
            vk.sum(x.T.reshape(4, 60), axis=-1),
            vk.sum(vk.broadcast_to(x[:, :1], (12, 7)), axis=0),
            vk.sum(vk.pad(x, [(1, 2), (0, 3)]), axis=0),
            vk.sum(vk.exp(vk.clip(x, -3, 3)) * x, axis=0),
            vk.max(vk.concatenate([x, -x], axis=1), axis=1),
        ]

    found = both(run, x)
    with exact():
        wanted = [
            written_fold("add", x[::-1, 3:17:2]),
            written_fold("add", x.T.reshape(4, 60)),
            written_fold("add", np.broadcast_to(x[:, :1], (12, 7)).T),
            written_fold("add", np.pad(x, [(1, 2), (0, 3)]).T),
            written_fold("add", basic.mul(evaluate("exp", np.clip(x, -3, 3)), x).T),
            np.maximum(x, -x).max(axis=1),
        ]
    for k, (want, got) in enumerate(zip(wanted, found, strict=True)):
        assert bits_equal(want, got).all(), k


# ---- elements of several fields


def merge_logsumexp(a, b):
    """The textbook's merge, every term with a factor of its own."""
    top = basic.maximum(a[0], b[0])
    terms = []
    for x, total in (a, b):
        factor = np.where(x == -np.inf, np.float32(0), evaluate("exp", basic.sub(x, top)))
        terms.append(basic.mul(total, np.where(x == top, np.float32(1), factor)))
    return top, basic.add(*terms)


def merge_moments(a, b):
    count, step = basic.add(a[0], b[0]), basic.add(basic.sub(b[1], a[1]), basic.sub(b[2], a[2]))
    share = basic.div(b[0], count)
    moved = basic.mul(step, share)
    mean = basic.add(a[1], moved)
    back = basic.sub(mean, a[1])
    lost = basic.add(basic.sub(a[1], basic.sub(mean, back)), basic.sub(moved, back))
    between = basic.mul(basic.mul(step, step), basic.mul(a[0], share))
    odd = ~(np.isfinite(a[1]) & np.isfinite(b[1]))
    mean, rest = np.where(odd, basic.add(a[1], b[1]), mean), np.where(odd, np.float32(0), basic.add(lost, a[2]))
    merged = (count, mean, rest, basic.add(basic.add(a[3], b[3]), between))
    return tuple(np.where(b[0] == 0, x, np.where(a[0] == 0, y, z)) for x, y, z in zip(a, b, merged, strict=True))


TUPLES = {"logsumexp": (merge_logsumexp, (-np.inf, 0.0)), "moments": (merge_moments, (0.0,) * 4)}


def written_moments(x):
    """Mean and sum of squared deviations of the rows of x."""
    fields = [np.ones_like(x), x, np.zeros_like(x), np.zeros_like(x)]
    _, mean, rest, squares = written_tuple_fold("moments", fields)
    mean = basic.add(mean, rest)
    return mean, np.where(np.isfinite(mean), squares, np.float32(np.nan))


def written_tuple_fold(name, fields):
    """As written_fold(): fields [rows, n] by the merges above, lanes past the end holding the identity."""
    merge, identity = TUPLES[name]
    rows, n = fields[0].shape
    if n > 32768:
        spans = [written_tuple_fold(name, [f[:, s : s + 32768] for f in fields]) for s in range(0, n, 32768)]
        return written_tuple_fold(name, [np.stack(f, axis=1) for f in zip(*spans, strict=True)])
    length = -(-n // 128) * 128
    padded = [np.full((rows, length), value, np.float32) for value in identity]
    for whole, part in zip(padded, fields, strict=True):
        whole[:, :n] = part
    lanes = [np.full((rows, 128), value, np.float32) for value in identity]
    for start in range(0, length, 128):
        lanes = merge(lanes, tuple(f[:, start : start + 128] for f in padded))
    for stride in (64, 32, 16, 8, 4, 2, 1):
        lanes = merge(tuple(f[:, :stride] for f in lanes), tuple(f[:, stride : 2 * stride] for f in lanes))
    return [f[:, 0] for f in lanes]


@pytest.mark.parametrize("n", LENGTHS)
def test_tuple_folds_of_every_length(both, forced, n):
    if forced != "invocation" and n not in SOME_LENGTHS:
        pytest.skip("one length of a kind is enough")
    x = hard_rows(n, n)

    def run(x):
        last = [vk.argmax(x, 1), vk.argmin(x, 1), vk.logsumexp(x, one_pass=True), *vk.moments(x, 1)]
        return last + [vk.argmax(x.T, 0), vk.logsumexp(x.T, 0, one_pass=True), *vk.moments(x.T, 0, correction=1)]

    found = both(run, x)
    with exact():
        top, total = written_tuple_fold("logsumexp", [x, np.ones_like(x)])
        lse = basic.add(evaluate("log", total), top)
        mean, squares = written_moments(x)
        first = np.argmax(x, axis=1).astype(np.int32)
        wanted = [first, np.argmin(x, axis=1).astype(np.int32), lse, mean, basic.div(squares, np.float32(n))]
        wanted += [first, lse, mean, basic.div(squares, np.float32(n - 1 or np.nan))]
    for k, (want, got) in enumerate(zip(wanted, found, strict=True)):
        assert bits_equal(want, got).all(), f"result {k} over {n}: rows {np.argwhere(~bits_equal(want, got))[:5]}"


def test_fields_of_one_fold_are_folded_once():
    x, w = vk.Array(leaf((6, 300), float32)), vk.Array(leaf((6, 300), float32))
    mean, variance = vk.moments(x, axis=1, keepdims=True)
    for results in ([mean, variance], [variance, mean * 2], [(x - mean) * vk.rsqrt(variance + 1e-5)]):
        (step,) = schedule([r.node for r in results])
        assert [name for name, _ in step.spec.folds] == ["moments"]
        assert "reduced 0, 1, 2, 3 = moments" in step.spec.text()
    steps = schedule([r.node for r in (mean, vk.sum(w * (w @ vk.Array(leaf((300, 300), float32)) + variance)))])
    assert sum(len(s.spec.folds) for s in steps if isinstance(s.spec, FoldSpec)) == 2  # moments, a sum


def test_schedules_fit_into_shared_memory_and_workgroups():
    x = vk.Array(leaf((500, 300), float32))
    first, second, third = (vk.moments(x * k, axis=0)[1] for k in (2.0, 3.0, 5.0))
    (step,) = schedule([(first * second * third).node])
    assert len(step.spec.folds) == 3 and step.spec._levels() == [[0, 1, 2]]
    for target in (Target(False), Target(False, 1024, 49152), Target(False, 1024, 32768)):
        legal = step.spec.schedules(target)
        assert any(s.across for s in legal) and len(set(legal)) == len(legal)
        assert all(s.threads == 1 or s.threads * s.rows <= target.max_invocations for s in legal)
        assert all(s.threads == 1 or s.threads * s.rows * 3 * 16 <= target.shared_bytes for s in legal)


def test_a_field_that_its_siblings_wait_for_is_folded_apart(both):
    """The mean is needed by a product that the kernel of the variance reads."""
    x, w = hard_rows(40)[:2], np.random.default_rng(1).standard_normal((1, 40)).astype(np.float32)

    def run(x, w):
        mean, variance = vk.moments(x, axis=1, keepdims=True)
        return [vk.sum(x * (mean @ w), axis=1) + variance[:, 0], vk.stop_gradient(mean)]

    total, mean = both(run, x, w)
    with exact():
        average, squares = written_moments(x)
        products = written_fold("add", basic.mul(x, basic.mul(average[:, None], w)))
        assert bits_equal(total, basic.add(products, basic.div(squares, np.float32(40)))).all()
    assert bits_equal(mean[:, 0], average).all()


def test_tuple_folds_beside_others(both, forced):
    """One kernel with folds of one field and of several, of which one uses another's result."""
    x = hard_rows(150)[:5]

    def run(x):
        mean, variance = vk.moments(x, axis=1, keepdims=True)
        shifted = (x - mean) * 0.5
        return [vk.sum(shifted, axis=1), vk.logsumexp(shifted, one_pass=True), vk.argmax(shifted, 1), variance[:, 0]]

    found = both(run, x)
    with exact():
        shifted = basic.mul(basic.sub(x, written_moments(x)[0][:, None]), np.float32(0.5))
        top, total = written_tuple_fold("logsumexp", [shifted, np.ones_like(x)])
        assert bits_equal(found[0], written_fold("add", shifted)).all()
        assert bits_equal(found[1], basic.add(evaluate("log", total), top)).all()
    assert np.array_equal(found[2], np.argmax(shifted, axis=1))


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_tuple_folds_of_any_shape_and_axes(both, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=4)))
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    x = flush(np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal(shape).astype(np.float32))
    lse, mean, variance = both(lambda x: [vk.logsumexp(x, axes, one_pass=True), *vk.moments(x, axes)], x)
    rest = [a for a in range(len(shape)) if a not in axes]
    rows = np.transpose(x, (*rest, *sorted(axes))).reshape(math.prod(shape[a] for a in rest), -1)
    with exact():
        top, total = written_tuple_fold("logsumexp", [rows, np.ones_like(rows)])
        average, squares = written_moments(rows)
        wanted = [basic.add(evaluate("log", total), top), average, basic.div(squares, np.float32(rows.shape[1]))]
    for want, got in zip(wanted, (lse, mean, variance), strict=True):
        assert bits_equal(want.reshape(got.shape), got).all()


# ---- values that are stated


def test_stated_values(both):
    def run(nans, logits, long):
        return [
            vk.max(nans),
            vk.min(nans),
            vk.softmax(logits),
            vk.layer_norm(long),
            vk.sum(-vk.zeros(3)),
            vk.logsumexp(logits),
        ]

    nan, logits, long = np.array([0.0, np.nan]), np.full(12, -200.0), np.array([40000.0, 40001, 40002, 40003])
    top, least, soft, normed, zero, lse = both(run, nan, logits, long)
    assert np.isnan(top) and np.isnan(least)
    assert (soft == np.float32(1) / np.float32(12)).all()
    wanted = np.array([-1.34163542, -0.447211807, 0.447211807, 1.34163542], np.float32)
    assert bits_equal(normed, wanted).all()
    assert zero == 0 and np.signbit(zero)
    assert abs(float(lse) - (-200 + np.log(12))) < 2e-5  # the nearest float32 is within half a ULP of 2**-16


def test_folds_over_nothing(both):
    x = np.zeros((3, 0), np.float32)
    total, average, whole, soft = both(lambda x: [vk.sum(x, 1), vk.mean(x, 1), vk.sum(x), vk.softmax(x.T)], x)
    assert total.tolist() == [0, 0, 0] and not np.signbit(total).any()
    assert np.isnan(average).all() and whole == 0 and soft.shape == (0, 3)
    for fold in (vk.max, vk.min):
        with pytest.raises(vk.VkdnnError, match="no elements along axes"):
            fold(vk.array(x), axis=1)
    assert vk.max(vk.array(x), axis=0).shape == (0,)


def test_rows_without_a_finite_value(both):
    x = np.array([[-np.inf] * 3, [np.inf, 1, 2], [np.nan, 1, 2]], np.float32)
    lse, soft = both(lambda x: [vk.logsumexp(x), vk.softmax(x)], x)
    assert lse[0] == -np.inf and lse[1] == np.inf and np.isnan(lse[2])
    assert np.isnan(soft[1]).any() and np.isnan(soft[2]).all()


def test_a_row_does_not_depend_on_its_batch(both, forced):
    x, w = hard_rows(200)[:2], np.random.default_rng(1).standard_normal((200, 9)).astype(np.float32)
    batch = np.concatenate([hard_rows(200, 5), x, hard_rows(200, 6)])

    def run(x, w):
        return [vk.softmax(x), vk.rms_norm(x), vk.layer_norm(x), x @ w, vk.sum(x, -1), vk.log_softmax(x)]

    for alone, among in zip(both(run, x, w), both(run, batch, w), strict=True):
        assert bits_equal(alone, among[7:9]).all()


# ---- gradients of reductions


def test_gradients_of_folds_agree_with_central_differences(both):
    x = np.random.default_rng(2).standard_normal((3, 5)).astype(np.float32)
    w = np.random.default_rng(3).standard_normal((3, 5)).astype(np.float32)

    def np_softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def np_norm(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    cases = [
        (lambda x, w: vk.sum(vk.softmax(x) * w), lambda x, w: (np_softmax(x) * w).sum()),
        (lambda x, w: vk.sum(vk.log_softmax(x) * w), lambda x, w: (np.log(np_softmax(x)) * w).sum()),
        (
            lambda x, w: vk.sum(vk.logsumexp(x) * w[:, 0]),
            lambda x, w: (np.log(np.exp(x).sum(-1)) * w[:, 0]).sum(),
        ),
        (lambda x, w: vk.sum(vk.layer_norm(x) * w), lambda x, w: (np_norm(x) * w).sum()),
        (
            lambda x, w: vk.sum(vk.rms_norm(x, axis=0) * w),
            lambda x, w: (x / np.sqrt((x * x).mean(0) + 1e-6) * w).sum(),
        ),
        (lambda x, w: vk.sum(vk.mean(x, 0) * w[0]), lambda x, w: (x.mean(0) * w[0]).sum()),
        (lambda x, w: vk.sum(vk.max(x, 1) * w[:, 0]), lambda x, w: (x.max(1) * w[:, 0]).sum()),
        (lambda x, w: vk.sum(vk.min(x * w)), lambda x, w: (x * w).min()),
    ]
    found = both(lambda x, w: [vk.grad(f)(x, w) for f, _ in cases], x, w)
    for k, ((_, function), got) in enumerate(zip(cases, found, strict=True)):
        slope = np.zeros((3, 5))
        for at in np.ndindex(3, 5):
            step = np.zeros((3, 5))
            step[at] = 1e-6
            left, right = (function(x.astype(float) + s, w.astype(float)) for s in (-step, step))
            slope[at] = (right - left) / 2e-6
        np.testing.assert_allclose(got, slope, rtol=1e-4, atol=5e-6, err_msg=str(k))


def test_the_gradient_of_a_maximum_is_shared_at_ties():
    x = vk.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    slope = vk.grad(lambda x: vk.sum(vk.max(x, axis=1)))(x)
    third = float(np.float32(1) / np.float32(3))
    assert slope.numpy().tolist() == [[0, 0.5, 0.5], [third] * 3]


@pytest.mark.parametrize("eps", [0, -1e-6, float("nan"), float("inf"), 1e-60])
def test_norms_refuse_an_eps_that_is_no_positive_number(eps):
    for norm in (vk.rms_norm, vk.layer_norm):
        with pytest.raises(vk.VkdnnError, match="eps: got"):
            norm(vk.array([1.0, 2.0]), eps=eps)


@pytest.mark.parametrize(("threads", "rows"), [(8, 32), (32, 8)])
@pytest.mark.parametrize("shape", [(127, 31), (129, 33), (2, 200, 5)])
def test_neighbouring_rows_are_folded_together(both, monkeypatch, shape, threads, rows):
    """Sums over an axis that is not the last one: of many rows at a time, some of them spare."""
    seen = []

    def together(self, target):
        across = [s for s in legal(self, Target(False)) if s.across and (s.threads, s.rows) == (threads, rows)]
        seen.extend(across)
        return (replace(across[0], unroll=False) if across else FoldSchedule(),)

    legal = FoldSpec.schedules
    monkeypatch.setattr(FoldSpec, "schedules", together)
    rng, axis = np.random.default_rng(5), len(shape) - 2
    x = flush(rng.permutation(np.resize(HARD_FLOATS, shape).ravel()).reshape(shape).astype(np.float32))
    y = rng.standard_normal(shape).astype(np.float32)

    def function(x, y):
        centred = y - vk.mean(y, axis=axis, keepdims=True)
        fields = vk.moments(y, axis=axis)
        return vk.sum(x, axis), vk.max(x, axis), vk.argmin(x, axis), centred, vk.softmax(y, axis), fields

    both(function, x, y)
    assert seen
