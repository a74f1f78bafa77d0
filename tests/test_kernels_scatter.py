"""Take, gather and scatter-add: contributions in ascending order, indices outside, nothing at all."""

import numpy as np
import pytest
from hard_values import HARD_FLOATS, bits_equal

import vkdnn as vk
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact, flush


def written_scatter(index, source, rows):
    """table[v] = +0 plus the source rows of number v in ascending position, one at a time."""
    table = np.zeros((rows, *source.shape[index.ndim :]), np.float32)
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
        with pytest.raises(vk.VkdnnError, match=r"indices: found -?\d to -?\d, expected 0 to 2 \(axis 0\)"):
            vk.take(table, wrong)
    with pytest.raises(vk.VkdnnError, match="expected 0 to 1 \\(axis 1\\)"):
        vk.take(table, [2], axis=1)
    with pytest.raises(vk.VkdnnError, match="take: index is float32"):
        vk.take(table, vk.array([0.0]))
    with pytest.raises(vk.VkdnnError, match="has no rows to take"):
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
    with pytest.raises(vk.VkdnnError, match="one element along the axis"):
        vk.grad(lambda x: vk.sum(vk.take_along_axis(x, vk.array(np.zeros((6, 2), np.int32)), 1)))(vk.array(x))


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
