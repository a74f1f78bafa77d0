"""Cumulations: the written order (blocks of 128, their totals by the same rule) told anew, one element at a time."""

import numpy as np
import pytest
from gradients import check_gradient

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.dtypes import float32
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.define import evaluate
from vkdnn.ir.node import leaf
from vkdnn.kernels import base
from vkdnn.kernels.base import Target
from vkdnn.kernels.cumulate import CumulateSchedule, CumulateSpec
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact, flush

FORMS = {"add": vk.cumsum, "mul": vk.cumprod, "maximum": vk.cummax, "minimum": vk.cummin}
LENGTHS = (1, 2, 31, 32, 33, 127, 128, 129, 257)


def written(form, x):
    """x [n, columns] cumulated along its first axis as the design writes it."""
    n = len(x)
    out = np.empty_like(x)
    for k in range(n):
        out[k] = x[k] if k % 128 == 0 else evaluate(form, out[k - 1], x[k])
    if n > 128:
        before = written(form, out[127 : (n - 1) // 128 * 128 : 128])
        for block in range(1, -(-n // 128)):
            here = slice(128 * block, 128 * (block + 1))
            out[here] = evaluate(form, np.broadcast_to(before[block - 1], out[here].shape), out[here])
    return out


def written_recurrence(a, b, over_blocks=False):
    """s_i = a_i s_(i-1) + b_i along the first axis of [n, columns]; a block goes on from the state before it."""
    n = len(a)

    def step(k, state):
        moved = basic.add(basic.mul(a[k], state), b[k])
        return np.where((state == 0) & ~np.isnan(a[k]), b[k], moved) if over_blocks else moved

    before = None
    if n > 128:
        totals = []
        for first in range(0, (n - 1) // 128 * 128, 128):
            product, state = a[first], b[first]
            for k in range(first + 1, first + 128):
                product, state = basic.mul(product, a[k]), step(k, state)
            totals.append((product, state))
        before = written_recurrence(*(np.stack(x) for x in zip(*totals, strict=True)), True)
    out = np.empty_like(b)
    for k in range(n):
        if k % 128:
            out[k] = step(k, out[k - 1])
        else:
            out[k] = b[k] if k == 0 else step(k, before[k // 128 - 1])
    return out


def hard_columns(n, seed=0):
    """[n, 7]: ordinary, wide, vanishing, negative-zero and hard columns; one with a NaN, one with infinities."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    with_nan, with_inf = normal.copy(), normal.copy()
    with_nan[n // 2], with_inf[n // 3], with_inf[-1] = np.nan, np.inf, -np.inf
    wide, vanishing = normal * 2.0 ** rng.integers(-60, 60, n), normal * 2.0**-125
    hard = rng.permutation(np.resize(HARD_FLOATS[np.isfinite(HARD_FLOATS)], n))
    columns = [normal, wide, vanishing, np.full(n, -0.0), hard, with_nan, with_inf]
    return flush(np.stack(columns, axis=1).astype(np.float32))


def test_a_running_sum_has_the_written_order(both):
    x = hard_columns(300)
    (found,) = both(lambda x: vk.cumsum(x, axis=0), x)
    with exact():
        assert bits_equal(found, written("add", x)).all()
    assert not bits_equal(found[:, 0], np.cumsum(x[:, 0])).all()  # one plain sequence is another order


@pytest.fixture(params=[0, 1], ids=["64", "staged"])
def forced(request, monkeypatch):
    """Every cumulation of the test takes one schedule; few can be staged."""
    original = CumulateSpec.schedules
    chosen = lambda spec, target: (original(spec, Target(request.param == 0))[0],)  # noqa: E731
    monkeypatch.setattr(CumulateSpec, "schedules", chosen)
    return "64" if request.param == 0 else "staged"


@pytest.mark.parametrize("n", LENGTHS)
def test_cumulations_of_every_length(both, forced, n):
    x = hard_columns(n, n)
    x[:, 0] = 2.0 ** (x[:, 0] / 4)  # products that neither vanish nor overflow at once
    a = np.where(np.isfinite(x), np.tanh(x), x).astype(np.float32)

    def run(x, a):
        found = [f(x, axis=axis) for f in FORMS.values()]
        return [*found, vk.linear_recurrence(a, x, axis=axis), vk.cumsum(x.astype("int32"), axis=axis)]

    axis = int(forced == "staged")
    found = both(run, *(np.ascontiguousarray(v.T if axis else v) for v in (x, flush(a))))
    found = [v.T if axis else v for v in found]
    with exact():
        wanted = [written(form, x) for form in FORMS]
        wanted += [written_recurrence(flush(a), x), written("add", basic.to_int32(x))]
    for name, want, got in zip([*FORMS, "recurrence", "integers"], wanted, found, strict=True):
        assert bits_equal(want, got).all(), f"{name} of {n}: {np.argwhere(~bits_equal(want, got))[:5]}"


def test_blocks_of_blocks(both):
    x = hard_columns(32769)[:, [0, 3, 4]]
    a = np.tanh(x)
    found = both(lambda x, a: [vk.cumsum(x, axis=0), vk.linear_recurrence(a, x, axis=0)], x, flush(a))
    with exact():
        assert bits_equal(found[0], written("add", x)).all()
        assert bits_equal(found[1], written_recurrence(flush(a), x)).all()


def test_axes_directions_and_views(both):
    x = np.random.default_rng(1).standard_normal((3, 140, 5)).astype(np.float32)

    def run(x):
        return [
            vk.cumsum(x, axis=1),
            vk.cumsum(x, axis=-1),
            vk.cumsum(x),
            vk.cumsum(x, axis=1, reverse=True),
            vk.cummax(vk.transpose(x, (1, 0, 2)) * 2, axis=0) + 1,
            vk.linear_recurrence(0.5, x[:, ::-2], axis=1),
            vk.linear_recurrence(x, x, axis=1, reverse=True),
            vk.cumsum(vk.broadcast_to(x[0, 0], (130, 5)), axis=0),
        ]

    found = both(run, x)

    def along(form, x, axis):
        flat = np.moveaxis(x, axis, 0)
        return np.moveaxis(written(form, flat.reshape(len(flat), -1)).reshape(flat.shape), 0, axis)

    def recurred(a, b):
        flat = [np.moveaxis(v, 1, 0) for v in (a, b)]
        out = written_recurrence(*(v.reshape(len(v), -1) for v in flat))
        return np.moveaxis(out.reshape(flat[0].shape), 0, 1)

    with exact():
        halves = np.full((3, 70, 5), 0.5, np.float32)
        wanted = [
            along("add", x, 1),
            along("add", x, 2),
            written("add", x.reshape(-1, 1)).ravel(),
            along("add", x[:, ::-1], 1)[:, ::-1],
            along("maximum", x.transpose(1, 0, 2) * np.float32(2), 0) + np.float32(1),
            recurred(halves, x[:, ::-2]),
            recurred(x[:, ::-1], x[:, ::-1])[:, ::-1],
            along("add", np.broadcast_to(x[0, 0], (130, 5)), 0),
        ]
    for k, (want, got) in enumerate(zip(wanted, found, strict=True)):
        assert bits_equal(np.ascontiguousarray(want), got).all(), k


def test_integers_wrap(both):
    rng = np.random.default_rng(2)
    signed = rng.integers(-(2**31), 2**31, (5, 300)).astype(np.int32)
    unsigned = rng.integers(0, 2**32, (5, 300)).astype(np.uint32)

    def run(*xs):
        return [f(x, axis=1) for x in xs for f in FORMS.values()] + [vk.cumsum(xs[0] > 0, axis=1)]

    found = both(run, signed, unsigned)
    wanted = []
    for x in (signed, unsigned):
        wanted += [np.cumsum(x, 1, dtype=x.dtype), np.cumprod(x, 1, dtype=x.dtype)]
        wanted += [np.maximum.accumulate(x, 1), np.minimum.accumulate(x, 1)]
    wanted.append(np.cumsum(signed > 0, 1, dtype=np.int32))
    for want, got in zip(wanted, found, strict=True):
        assert bits_equal(want, got).all()


def test_rows_in_a_batch_give_what_each_gives_alone(both):
    x = hard_columns(260)
    together, *alone = both(lambda x: [vk.cumsum(x, 0), *(vk.cumsum(x[:, c], 0) for c in range(7))], x)
    for c, column in enumerate(alone):
        assert bits_equal(together[:, c], column).all()


def test_more_blocks_than_a_dispatch_stride_over_what_is_left(both, monkeypatch):
    monkeypatch.setattr(base, "MAX_GROUPS", 2)
    x = np.resize(np.arange(-5, 6, dtype=np.float32), (700, 130))
    (found,) = both(lambda x: vk.cumsum(x, axis=1), x)
    assert (found == np.cumsum(x, axis=1)).all()


# ---- recurrences


def test_a_recurrence_starts_from_a_state_and_keeps_its_error(both):
    rng = np.random.default_rng(3)
    a, b = rng.uniform(0.8, 1, (4000, 3)).astype(np.float32), rng.standard_normal((4000, 3)).astype(np.float32)
    state = rng.standard_normal(3).astype(np.float32)
    found = both(
        lambda a, b, s: [vk.linear_recurrence(a, b, 0, initial=s, reverse=r) for r in (False, True)], a, b, state
    )
    for got, order in zip(found, (slice(None), slice(None, None, -1)), strict=True):
        truth, now = np.empty((4000, 3)), state.astype(np.float64)
        for k, (f, t) in enumerate(zip(a[order].astype(float), b[order].astype(float), strict=True)):
            now = f * now + t
            truth[k] = now
        np.testing.assert_allclose(got[order], truth, atol=1e-5)


def test_an_overflowing_block_leaves_a_state_of_zero(both):
    a, b = np.full(400, 4.0, np.float32), np.zeros(400, np.float32)
    b[-1] = 1.0
    (found,) = both(lambda a, b: vk.linear_recurrence(a, b), a, b)
    assert found.tolist() == b.tolist()
    (found,) = both(lambda a, b: vk.linear_recurrence(a * np.nan, b), a, b)
    assert found[0] == 0 and np.isnan(found[1:]).all()


# ---- gradients


def test_gradient_of_products_with_zeros(both):
    x = np.array([1.5, -2.0, 0.0, 0.5, 3.0, 0.0, 1.25, -1.0])
    check_gradient(vk.cumprod, x, both=both)
    long = np.full((2, 300), 1.0)
    long[:, ::7], long[1, 40] = 0.75, 0.0
    (found,) = both(lambda x: vk.grad(lambda x: vk.sum(vk.cumprod(x, axis=1)))(x), long.astype(np.float32))
    truth = np.zeros((2, 300))
    for i in range(300):
        for k in range(i + 1):
            truth[:, k] += np.prod(np.delete(long[:, : i + 1], k, axis=1), axis=1)
    np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-6)


def test_gradient_of_a_product_that_overflows_where_nobody_looks(both):
    x = np.full(400, 4.0, np.float32)
    (found,) = both(lambda x: vk.grad(lambda x: vk.cumprod(x)[2])(x), x)
    assert found.tolist() == [16.0] * 3 + [0.0] * 397


def test_gradient_of_extremes_goes_to_the_first_of_equals(both):
    x = np.array([1.0, 3.0, 3.0, -0.0, 0.0, 4.0, np.nan, 9.0, np.nan], np.float32)
    zeros = np.array([-0.0, 0.0, -0.0], np.float32)

    def run(x, z):
        return [
            vk.grad(lambda x: vk.sum(vk.cummax(x) * vk.arange(9)))(x),
            vk.grad(lambda x: vk.sum(vk.cummin(-x)))(x),
            vk.grad(lambda x: vk.sum(vk.cummax(x)))(z),
        ]

    found = both(run, x, zeros)
    assert found[0].tolist() == [0.0, 1.0 + 2 + 3 + 4, 0.0, 0.0, 0.0, 5.0, 6.0 + 7 + 8, 0.0, 0.0]
    assert found[1].tolist() == [-1.0, -4.0, 0.0, 0.0, 0.0, -1.0, -3.0, 0.0, 0.0]
    assert found[2].tolist() == [3.0, 0.0, 0.0]


def test_second_gradients(both):
    x = np.random.default_rng(5).uniform(0.5, 1.5, 6)

    def slope(x):
        return vk.grad(lambda x: vk.sum(vk.cumprod(x) * vk.cumsum(x)))(x)

    check_gradient(slope, x, both=both)


# ---- specs


def specs(function, *shape):
    return [s.spec for s in schedule([function(vk.Array(leaf(shape, float32))).node])]


def test_kernels_of_a_cumulation():
    assert [s.stage for s in specs(vk.cumsum, 128)] == ["result"]
    assert [s.stage for s in specs(vk.cumsum, 129)] == ["total", "result"]
    assert [s.stage for s in specs(vk.cumsum, 128 * 128 + 1)] == ["total", "result", "result"]
    assert [s.stage for s in specs(vk.cumsum, 128 * 129 + 1)] == ["total", "total", "result", "result"]
    total, result = (s for s in specs(lambda x: vk.linear_recurrence(x, x), 200))
    assert total.wanted == (1,) and result.wanted == (0,)  # the product of the first block's factors meets nothing
    texts = {s.text() for f in FORMS.values() for n in (128, 129) for s in specs(f, n)}
    assert len(texts) == 12


def test_costs_count_operations_and_words():
    total, result = specs(vk.cumsum, 256)
    assert (total.cost((1,)).flops, result.cost((1,)).flops) == (256, 512)
    assert result.cost((1,)).bytes == 4 * (256 + 256 + 2)
    assert total.schedules(Target(True)) == (CumulateSchedule(64), CumulateSchedule(128))
