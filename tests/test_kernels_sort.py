"""Sorting: stable at every length, whatever the keys; NumPy's stable sort is the oracle."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, HARD_INTS, bits_equal
from vkdnn.dtypes import uint32
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.node import leaf
from vkdnn.kernels import base
from vkdnn.kernels.sort import SortSpec, passes, sorted_rows
from vkdnn.numerics.flush import flush

LENGTHS = (1, 2, 31, 32, 33, 127, 128, 129, 257)


def ranks(x):
    """int64 numbers in the order of the values: zeros of both signs equal, NaN the largest."""
    if x.dtype != np.float32:
        return x.astype(np.int64)
    found = np.unique(np.where(np.isnan(x), np.inf, x) + 0.0, return_inverse=True)[1].reshape(x.shape)
    return np.where(np.isnan(x), found.size, found)


def stable(x, descending=False):
    """Positions that sort the rows of x, by NumPy."""
    return np.argsort(-ranks(x) if descending else ranks(x), axis=-1, kind="stable").astype(np.int32)


def rows_of(n, seed):
    """Rows: ordinary, many ties, sorted, reversed, equal, hard values with NaN, infinities and zeros of both signs."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    zeros = rng.choice(np.array([0.0, -0.0, 1.0, -1.0]), n)
    rows = [normal, rng.integers(0, 5, n), np.arange(n), -np.arange(n), np.ones(n), zeros, rng.choice(HARD_FLOATS, n)]
    with np.errstate(invalid="ignore"):  # signalling NaNs are among the hard values
        return flush(np.stack(rows).astype(np.float32))


def test_sorting_is_stable(both):
    x = np.array([2.0, np.nan, -0.0, 1.0, 0.0, -np.inf, 2.0, np.inf, np.nan], np.float32)
    values, order, falling = both(lambda x: [vk.sort(x), vk.argsort(x), vk.argsort(x, descending=True)], x)
    assert order.tolist() == [5, 2, 4, 3, 0, 6, 7, 1, 8]
    assert falling.tolist() == [1, 8, 7, 0, 6, 3, 2, 4, 5]
    assert bits_equal(values, x[order]).all()  # the zeros keep their signs


@pytest.fixture(params=[0, 1], ids=["64", "128"])
def forced(request, monkeypatch):
    """Every sort of the test takes one schedule."""
    original = SortSpec.schedules
    chosen = lambda spec, target: (original(spec, target)[request.param],)  # noqa: E731
    monkeypatch.setattr(SortSpec, "schedules", chosen)


@pytest.mark.parametrize("n", LENGTHS)
def test_sorts_of_every_length(both, forced, n):
    x = rows_of(n, n)
    k = (n + 3) // 4

    def run(x):
        return [vk.sort(x), vk.argsort(x), vk.sort(x, descending=True), vk.argsort(x, descending=True), *vk.top_k(x, k)]

    found = both(run, x)
    up, down = stable(x), stable(x, descending=True)
    wanted = [np.take_along_axis(x, up, 1), up, np.take_along_axis(x, down, 1), down]
    wanted += [wanted[2][:, :k], down[:, :k]]
    for name, want, got in zip(("sort", "argsort", "falling", "down", "top", "at"), wanted, found, strict=True):
        assert bits_equal(want, got).all(), f"{name} of {n}"


def test_a_long_row(both):
    x = rows_of(32769, 1)[[0, 1, 6]]
    order, top, few, many = both(
        lambda x: [vk.argsort(x), vk.top_k(x, 1)[1], vk.top_k(x, 5)[1], vk.top_k(x, 1000)[1]], x
    )
    down = stable(x, descending=True)
    assert (order == stable(x)).all()
    for got, k in ((top, 1), (few, 5), (many, 1000)):
        assert (got == down[:, :k]).all()


@pytest.mark.parametrize("dtype", ["int32", "uint32", "bool"])
def test_integers_and_bools(both, dtype):
    x = np.resize(HARD_INTS, (3, 200))
    x = x.view(np.uint32) if dtype == "uint32" else x.astype(dtype)
    found = both(lambda x: [vk.sort(x), vk.argsort(x), vk.sort(x, descending=True), *vk.top_k(x, 7)], x)
    down = stable(x, descending=True)
    wanted = [np.sort(x), stable(x), np.take_along_axis(x, down, 1)]
    wanted += [wanted[2][:, :7], down[:, :7]]
    for want, got in zip(wanted, found, strict=True):
        assert bits_equal(want, got).all()


def test_axes_and_views(both):
    x = np.random.default_rng(2).integers(0, 9, (3, 70, 4)).astype(np.float32)

    def run(x):
        turned = vk.transpose(x, (1, 2, 0))
        return [
            vk.argsort(x, axis=1),
            vk.sort(x[:, ::-2], axis=1),
            vk.argsort(turned, axis=0),
            *vk.top_k(x * 2, 2, axis=0),
        ]

    found = both(run, x)

    def along(x, axis, descending=False):
        return np.moveaxis(stable(np.moveaxis(x, axis, -1), descending), -1, axis)

    assert (found[0] == along(x, 1)).all() and (found[1] == np.sort(x[:, ::-2], axis=1)).all()
    assert (found[2] == along(x.transpose(1, 2, 0), 0)).all()
    assert (found[4] == along(x, 0, True)[:2]).all() and (found[3] == -np.sort(-x * 2, axis=0)[:2]).all()


def test_more_elements_than_a_dispatch_stride_over_what_is_left(both, monkeypatch):
    monkeypatch.setattr(base, "MAX_GROUPS", 3)
    x = np.random.default_rng(3).integers(0, 50, (40, 100)).astype(np.int32)
    (found,) = both(lambda x: vk.argsort(x), x)
    assert (found == stable(x)).all()


def test_many_short_rows(both):
    x = np.random.default_rng(4).integers(0, 4, (20_000, 5)).astype(np.int32)
    order, top = both(lambda x: [vk.argsort(x), vk.top_k(x, 2)[1]], x)
    assert (order == stable(x)).all() and (top == stable(x, descending=True)[:, :2]).all()


# ---- passes


def test_passes_keep_no_more_than_is_asked_for():
    for length in (1, 5, 32, 33, 64, 65, 1000, 4096):
        for keep in {1, 2, 31, 32, 33, 100, length} - {k for k in (2, 31, 32, 33, 100) if k > length}:
            left = length
            for one in passes(length, keep):
                assert one.keep <= keep
                left = one.kept(left)
            assert left == keep, (length, keep)
    assert [p.run for p in passes(1000, 1000)] == [1, 32, 64, 128, 256, 512]
    assert [p.run for p in passes(1000, 3)] == [1, 3, 3, 3, 3, 3]


def test_all_merges_of_a_sort_are_one_shader():
    key = leaf((3, 1000), uint32)
    steps = schedule(list(sorted_rows(key, 1000)))
    assert len(steps) == 6 and len({s.spec for s in steps}) == 2
    steps = schedule([sorted_rows(key, 3)[1]])  # the last pass leaves its keys where they are
    assert len({s.spec.text() for s in steps}) == 3 and steps[-1].spec.wanted == (1,)


def test_costs_count_words():
    first, last = schedule(list(sorted_rows(leaf((2, 64), uint32), 64)))
    assert first.spec.cost(first.sizes).bytes == 4 * 2 * 64 * 3
    assert last.spec.cost(last.sizes).bytes == 4 * 2 * 64 * 4
