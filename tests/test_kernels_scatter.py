"""Take, gather and scatter-add: contributions in ascending order, indices outside, nothing at all."""

import numpy as np
import pytest
from gradients import check_gradient

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.dtypes import float32, int32
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.node import leaf
from vkdnn.kernels import scatter
from vkdnn.kernels.scatter import ScatterSpec
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact, flush


def written_scatter(index, source, rows, base=None):
    """table[v] = +0 or base[v] plus the source rows of number v in ascending position, one at a time."""
    table = np.zeros((rows, *source.shape[index.ndim :]), np.float32) if base is None else base.copy()
    flat = source.reshape(index.size, *table.shape[1:])
    for position, row in enumerate(index.ravel()):
        table[row] = basic.add(table[row], flat[position])
    return table


def embedding_gradient(table, index, gradient):
    """The gradient of an embedding lookup is a scatter-add of the rows' gradients."""
    return vk.vjp(lambda table: vk.take(table, index), table)[1](gradient)[0]


def test_contributions_are_added_in_ascending_order(both):
    rng = np.random.default_rng(0)
    index = rng.integers(0, 7, 500).astype(np.int32)
    source = (rng.standard_normal((500, 3)) * 10.0 ** rng.integers(-6, 6, (500, 1))).astype(np.float32)
    table = np.zeros((7, 3), np.float32)
    (found,) = both(embedding_gradient, table, index, source)
    with exact():
        assert bits_equal(found, written_scatter(index, source, 7)).all()
        backwards = written_scatter(index[::-1], source[::-1], 7)
    assert not bits_equal(found, backwards).all()  # the order matters for these values


CASES = {
    "one row takes all": (np.full(1000, 4), 9, (2,)),
    "rows nobody names": (np.array([5, 5, 2]), 300, (3,)),
    "descending": (np.arange(200)[::-1], 200, (1,)),
    "scalars": (np.array([1, 0, 1, 1]), 3, ()),
    "two axes of indices": (np.arange(60).reshape(4, 15) % 11, 11, (2, 3)),
    "a block and one": (np.arange(65) % 2, 2, (1,)),
    "one row": (np.zeros(130, int), 1, (2,)),
    "more rows than lanes": (np.arange(3000) * 7 % 1001, 1001, (1,)),
    "no indices": (np.zeros(0, int), 5, (2,)),
    "empty rows": (np.array([0, 1]), 3, (0,)),
}


def test_cases_of_indices(both):
    rng, arrays, wanted = np.random.default_rng(1), [], []
    for index, rows, width in CASES.values():
        source = flush(rng.choice(HARD_FLOATS[np.isfinite(HARD_FLOATS)], (*index.shape, *width)))
        arrays += [np.zeros((rows, *width), np.float32), index.astype(np.int32), source]
        with exact():
            wanted.append(written_scatter(index, source, rows))
    found = both(lambda *xs: [embedding_gradient(*xs[i : i + 3]) for i in range(0, len(xs), 3)], *arrays)
    for name, want, got in zip(CASES, wanted, found, strict=True):
        assert bits_equal(want, got).all(), name


def test_indices_and_sources_as_views(both):
    rng = np.random.default_rng(2)
    index = rng.integers(0, 6, (8, 5)).astype(np.int32)
    source = rng.standard_normal((4, 5, 4)).astype(np.float32)

    def run(index, source):
        table = vk.zeros((6, 4))
        chosen = vk.transpose(index)[:, ::2]  # [5, 4]
        return [
            vk.vjp(lambda t: vk.take(t, chosen), table)[1](vk.transpose(source, (1, 0, 2)))[0],
            vk.vjp(lambda t: vk.take(t, index[::2] * 2 - 5), table)[1](source * 2)[0],
        ]

    found = both(run, index, source)
    with exact():
        wanted = [
            written_scatter(index.T[:, ::2], source.transpose(1, 0, 2), 6),
            written_scatter(np.clip(index[::2] * 2 - 5, 0, 5), source * np.float32(2), 6),
        ]
    for want, got in zip(wanted, found, strict=True):
        assert bits_equal(want, got).all()


OUTSIDE = np.array([-1, 0, 2, 3, -(2**31), 2**31 - 1], np.int32)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_indices_outside_are_clamped_on_the_device(both, dtype):
    table, index = np.array([1, 2, 3], np.float32), OUTSIDE.astype(dtype)
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    chosen = np.clip(index.astype(np.int64), 0, 2)

    def run(table, index, grid):
        along = vk.broadcast_to(index.reshape(6, 1), (6, 4))
        ones = vk.zeros(6) + 1.0
        return [
            vk.take(table, index),
            vk.take_along_axis(grid, along, 0),
            embedding_gradient(table, index, ones),
        ]

    taken, gathered, added = both(run, table, index, grid)
    assert (taken == table[chosen]).all() and (gathered == grid[chosen]).all()
    assert added.tolist() == np.bincount(chosen, minlength=3).tolist()


def test_indices_outside_are_refused_where_the_host_knows_them():
    table = vk.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for wrong in ([3], [-1], np.array([[0, 1], [2, 7]])):
        with pytest.raises(vk.VkdnnError, match=r"indices: found -?\d to -?\d, expected 0 to 2 \(axis 0 "):
            vk.take(table, wrong)
    with pytest.raises(vk.VkdnnError, match="expected 0 to 1 \\(axis 1 "):
        vk.take(table, [2], axis=1)
    with pytest.raises(vk.VkdnnError, match="take: indices are float32"):
        vk.take(table, vk.array([0.0]))
    with pytest.raises(vk.VkdnnError, match="nothing to take"):
        vk.take(vk.zeros((0, 2)), vk.array([0]))


def test_take_and_gather_have_the_values_of_numpy(both):
    rng = np.random.default_rng(3)
    table = rng.standard_normal((5, 4, 3)).astype(np.float32)
    index = rng.integers(0, 3, (2, 6)).astype(np.int32)

    def run(table, index):
        return [
            vk.take(table, index),
            vk.take(table, index, axis=1),
            vk.take(table, index, axis=-1),
            table[index],
            vk.take(table[::-1, :, 0], index) * 2,
            vk.take(vk.exp(table), index[0]),
            vk.take_along_axis(table, vk.broadcast_to(index[:, :4].reshape(1, 2, 4, 1)[:, 0], (5, 4, 1)), 2),
            vk.take(table, 2),
            vk.take(index > 0, index[0] * 0),
        ]

    found = both(run, table, index)
    assert (found[0] == table[index]).all() and (found[3] == table[index]).all()
    assert (found[1] == np.take(table, index, axis=1)).all() and (found[2] == np.take(table, index, axis=-1)).all()
    assert (found[4] == table[::-1, :, 0][index] * 2).all()
    along = np.broadcast_to(index[0, :4].reshape(1, 4, 1), (5, 4, 1))
    assert (found[6] == np.take_along_axis(table, along, 2)).all()
    assert (found[7] == table[2]).all()


def test_gradient_of_take_along_axis(both):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((6, 9)).astype(np.float32)
    target = rng.integers(0, 9, (6, 1)).astype(np.int32)

    def loss(x, target):
        return -vk.mean(vk.take_along_axis(vk.log_softmax(x), target, axis=1))

    (slope,) = both(lambda x, t: vk.grad(loss)(x, t), x, target)
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    wanted = (e / e.sum(1, keepdims=True) - (np.arange(9) == target)) / 6
    np.testing.assert_allclose(slope, wanted, atol=1e-7)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gradient_of_take_along_axis_for_any_count(both, axis):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((3, 7, 2)).astype(np.float32)
    shape = (*x.shape[:axis], 50, *x.shape[axis + 1 :])
    index = rng.integers(-1, x.shape[axis] + 1, shape).astype(np.int32)  # some outside, which are clamped
    g = (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(np.float32)

    def run(x, index, g):
        return vk.vjp(lambda x: vk.take_along_axis(x, index, axis), x)[1](g)[0]

    (found,) = both(run, x, index, g)
    rows, numbers, sources = (np.moveaxis(v, axis, -1) for v in (np.zeros_like(x), index.clip(0, x.shape[axis] - 1), g))
    with exact():
        for at in np.ndindex(rows.shape[:-1]):
            rows[at] = written_scatter(numbers[at], sources[at], x.shape[axis])
    assert bits_equal(found, np.ascontiguousarray(np.moveaxis(rows, -1, axis))).all()


# ---- two ways to the order of the rows


@pytest.fixture(params=[0, 1 << 30], ids=["sorted", "counted"])
def forced(request, monkeypatch):
    """Every scatter of the test orders its rows in one way."""
    monkeypatch.setattr(scatter, "COUNTERS", request.param)


def test_both_ways_give_the_written_sums(both, forced):
    for index, rows, width in CASES.values():
        rng = np.random.default_rng(7)
        source = flush(rng.choice(HARD_FLOATS[np.isfinite(HARD_FLOATS)], (*index.shape, *width)))
        base = flush(rng.choice(HARD_FLOATS[np.isfinite(HARD_FLOATS)], (rows, *width)))

        def run(base, index, source):
            updated = vk.scatter_add(base, index, source)
            return [embedding_gradient(base, index, source), updated, vk.scatter(base, index, source)]

        found = both(run, base, index.astype(np.int32), source)
        put = base.copy()
        put[index.ravel()] = source.reshape(index.size, *width)
        with exact():
            wanted = [written_scatter(index, source, rows), written_scatter(index, source, rows, base), put]
        for want, got in zip(wanted, found, strict=True):
            assert bits_equal(want, got).all()


def test_rows_are_sorted_where_counters_would_be_too_many():
    def stages(count, rows, width):
        arrays = [
            vk.Array(leaf(s, d)) for s, d in (((rows, width), float32), ((count,), int32), ((count, width), float32))
        ]
        return [s.spec.text().split()[1] for s in schedule([embedding_gradient(*arrays).node])]

    assert stages(40, 50, 8) == ["rank", "offset", "start", "place", "sum"]
    assert stages(100_000, 50_000, 512) == ["rank", "offset", "start", "place", "sum"]
    assert stages(100_000, 50_000, 2)[-2:] == ["find", "sum"]


SHARED_OUT = {
    "several strips of the table": (np.arange(3000) * 7 % 2500, 2500, 2),
    "many of one number, and a rest": (np.arange(900) % 5, 5, 6),
    "more rows than bits": (np.array([69_999, 3, 69_999, 65_536]), 70_000, 1),
}


def test_no_schedule_changes_a_bit(both, monkeypatch):
    """Those that share out: rows by counting, then one of several tables by sorting."""
    original = ScatterSpec.schedules
    monkeypatch.setattr(ScatterSpec, "schedules", lambda spec, target: original(spec, target)[-1:])
    monkeypatch.setattr(scatter, "COUNTERS", 1 << 30)
    rng = np.random.default_rng(8)
    for index, rows, width in SHARED_OUT.values():
        base, source = (rng.standard_normal((n, width)).astype(np.float32) for n in (rows, len(index)))
        (found,) = both(vk.scatter_add, base, index.astype(np.int32), source)
        with exact():
            assert bits_equal(found, written_scatter(index, source, rows, base)).all()
    index, x = rng.integers(0, 3, (2, 40)), rng.standard_normal((2, 40)).astype(np.float32)
    both(lambda x, index: vk.vjp(lambda t: vk.take_along_axis(t, index, 1), vk.zeros((2, 3)))[1](x), x, index)


def test_gradients_of_sums(both, forced):
    rng = np.random.default_rng(9)
    index = rng.integers(0, 4, 7)
    x, updates = rng.standard_normal((4, 2)), rng.standard_normal((7, 2))

    check_gradient(lambda x, u: vk.scatter_add(x, index, u), x, updates, both=both)
    check_gradient(lambda x, u: vk.scatter(x, index, u), x, updates, both=both)

    def slope(x):
        return vk.grad(lambda x: vk.sum(vk.take(x, index, axis=0) ** 3))(x)

    check_gradient(slope, x, both=both)


def test_second_gradient_of_take_along_axis(both):
    rng = np.random.default_rng(10)
    index, x = rng.integers(0, 5, (2, 6)), rng.standard_normal((2, 5))

    def slope(x):
        return vk.grad(lambda x: vk.sum(vk.take_along_axis(x, index, 1) ** 3))(x)

    check_gradient(slope, x, both=both)


def test_an_embedding_used_twice_adds_both_gradients(both):
    table = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)
    index = np.array([0, 3, 3, 1], np.int32)

    def loss(table, index):
        return vk.sum(vk.take(table, index) @ vk.transpose(table))

    (slope,) = both(lambda t, i: vk.grad(loss)(t, i), table, index)
    wanted = np.zeros((4, 3))
    np.add.at(wanted, index, table.astype(float).sum(0))
    wanted += table.astype(float)[index].sum(0)
    np.testing.assert_allclose(slope, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_that_need_one_result_of_a_stage(both):
    x = np.array([1, 2, 3], np.float32)

    def twice(x):
        return vk.grad(lambda x: vk.sum(vk.scatter(x * x * x, [1, 1], x[:2])))(x)

    first, along, second = both(
        lambda x: [
            vk.grad(lambda x: vk.sum(vk.scatter(x, [1], 1.0)))(x),
            vk.grad(lambda x: vk.sum(vk.put_along_axis(x, [1], 1.0, 0)))(x),
            vk.grad(lambda x: vk.sum(twice(x)))(x),
        ],
        x,
    )
    assert first.tolist() == along.tolist() == [1, 0, 1] and second.tolist() == [6, 0, 18]
