"""Reductions over any axes: bits on two devices, values against NumPy, positions, moments, gradients, no elements."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, HARD_INTS, bits_equal
from vkdnn.errors import ArgumentError, DtypeError, ShapeError

RNG = np.random.default_rng(5)
FINITE = HARD_FLOATS[np.isfinite(HARD_FLOATS)]
AXES = [None, 0, -1, (0, 2), (2, 0), (1,), ()]


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_shapes_and_values_are_those_of_numpy(both, axis, keepdims):
    x = RNG.integers(-9, 9, (3, 5, 4)).astype(np.float32)  # small integers: every order gives the exact sum
    for name in ("sum", "max", "min", "any", "all", "prod"):
        (got,) = both(lambda x, name=name: getattr(vk, name)(x, axis=axis, keepdims=keepdims), x)
        want = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=keepdims)
        if name == "prod":
            np.testing.assert_allclose(got, want, rtol=1e-5)
        else:
            np.testing.assert_array_equal(got, want)
    for name in ("mean", "var", "std"):
        (got,) = both(lambda x, name=name: getattr(vk, name)(x, axis=axis, keepdims=keepdims), x)
        np.testing.assert_allclose(got, getattr(np, name)(x.astype(np.float64), axis, keepdims=keepdims), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integers_wrap_around(both, dtype):
    x = np.resize(HARD_INTS, (3, 257)).view(dtype)
    for name in ("sum", "prod", "max", "min"):
        (got,) = both(lambda x, name=name: getattr(vk, name)(x, axis=1), x)
        with np.errstate(over="ignore"):
            want = getattr(np, name)(x, axis=1, **({"dtype": dtype} if name in ("sum", "prod") else {}))
        assert got.dtype == dtype and np.array_equal(got, want), name


def test_bools_are_counted(both):
    x = RNG.integers(0, 2, (4, 129)).astype(bool)
    total, most, least, some, every = both(
        lambda x: [vk.sum(x, 1), vk.max(x, 1), vk.min(x, 1), vk.any(x, 0), vk.all(x, 0)], x
    )
    assert total.dtype == np.int32 and np.array_equal(total, x.sum(1))
    assert most.dtype == bool and np.array_equal(most, x.max(1)) and np.array_equal(least, x.min(1))
    assert np.array_equal(some, x.any(0)) and np.array_equal(every, x.all(0))


def test_a_maximum_with_nan_is_nan():
    for device in (vk.device("cpu"), vk.device()):
        with device:
            assert math.isnan(vk.max(vk.array([0.0, math.nan])).item())
            assert math.isnan(vk.min(vk.array([math.nan, 0.0])).item())


@pytest.mark.parametrize("n", [1, 2, 3, 127, 128, 129, 257, 32769])
def test_positions_are_the_first_of_the_extremes(both, n):
    x = RNG.integers(-3, 3, (3, n)).astype(np.float32)
    x[1] = np.resize(FINITE, n)
    with_nan = np.where(RNG.random((3, n)) < 2 / n, np.float32(np.nan), x)
    for data in (x, with_nan, RNG.integers(-3, 3, (3, n)).astype(np.int32)):
        for name in ("argmax", "argmin"):
            (got, whole) = both(lambda x, name=name: [getattr(vk, name)(x, axis=1), getattr(vk, name)(x)], data)
            seen = np.where(np.abs(data) < 2.0**-126, 0, data)  # subnormals are zeros
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, getattr(np, name)(seen, axis=1))
            np.testing.assert_array_equal(whole, getattr(np, name)(seen))
    zeros = np.array([[-0.0, 0.0, -0.0]], np.float32)
    assert both(lambda x: [vk.argmax(x, 1), vk.argmin(x, 1)], zeros)[0][0] == 0


def test_positions_keep_dims():
    x = np.array([[1.0, 5.0], [7.0, 2.0]], np.float32)
    assert vk.argmax(vk.array(x), axis=0, keepdims=True).shape == (1, 2)
    assert vk.argmax(vk.array(x), keepdims=True).numpy().tolist() == [[2]]


def test_a_long_integer_fold_goes_by_spans(both):
    x = RNG.integers(-(2**31), 2**31, 70_000).astype(np.int32)
    total, top = both(lambda x: [vk.sum(x), vk.max(x)], x)
    assert total == x.sum(dtype=np.int32) and top == x.max()


def test_no_elements():
    for device in (vk.device("cpu"), vk.device()):
        with device:
            x = vk.zeros((2, 0, 3))
            assert vk.sum(x, 1).numpy().tolist() == [[0, 0, 0]] * 2
            assert vk.prod(x, 1).numpy().tolist() == [[1, 1, 1]] * 2
            assert vk.any(x, 1).numpy().tolist() == [[False] * 3] * 2
            assert vk.all(x, 1).numpy().tolist() == [[True] * 3] * 2
            assert np.isnan(vk.mean(x, 1).numpy()).all() and vk.mean(x, 1).shape == (2, 3)
            assert np.isnan(vk.var(x, 1).numpy()).all()
            assert vk.max(x, 0).shape == (0, 3) and vk.argmax(x, 0).shape == (0, 3)
            assert vk.norm(x, axis=1).numpy().tolist() == [[0, 0, 0]] * 2
    for function in (vk.max, vk.min, vk.argmax, vk.argmin):
        with pytest.raises(ShapeError, match="no elements"):
            function(vk.zeros((2, 0)), axis=1)


def test_moments_do_not_cancel(both):
    x = (1e4 + RNG.standard_normal((4, 1000))).astype(np.float32)
    (got,) = both(lambda x: vk.var(x, axis=1, correction=1), x)
    np.testing.assert_allclose(got, np.var(x.astype(np.float64), axis=1, ddof=1), rtol=2e-5)
    assert np.isnan(vk.var(vk.array([1.0]), correction=1).numpy())
    assert vk.var(vk.array([1.0, 3.0]), correction=np.int64(1)).item() == 2.0


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_moments_are_mean_and_variance(both, axis):
    x = RNG.standard_normal((3, 5, 4)).astype(np.float32)
    for keepdims in (False, True):
        mean, variance = both(lambda x, k=keepdims: vk.moments(x, axis, k), x)
        np.testing.assert_allclose(mean, x.mean(axis, np.float64, keepdims=keepdims), atol=1e-6)
        np.testing.assert_allclose(variance, x.var(axis, np.float64, keepdims=keepdims), rtol=1e-5, atol=1e-7)
    whole, flags = RNG.integers(-9, 9, (3, 5, 4)).astype(np.int32), x > 0
    for data in (whole, flags):
        mean, variance = both(lambda x: vk.moments(x, axis, correction=0.5), data)
        freedom = data.size / max(1, mean.size) - 0.5
        np.testing.assert_allclose(mean, data.mean(axis), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, data.var(axis) * ((freedom + 0.5) / freedom), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1000, 32768, 100_000])
def test_one_pass_is_as_good_as_two(both, n):
    """Mean 1e4, deviation 1: in sums of squares nothing would be left. docs/numerics.md has what was measured."""
    x = (1e4 + np.random.default_rng(n).standard_normal((8, n))).astype(np.float32)
    mean, variance, two = both(lambda x: [*vk.moments(x, 1), vk.var(x, 1)], x)
    truth = x.var(axis=1, dtype=np.float64)
    error, error_of_two = (np.abs(v / truth - 1).max() for v in (variance, two))
    assert error < min(2.5e-7, error_of_two)
    np.testing.assert_array_equal(mean, x.mean(axis=1, dtype=np.float64).astype(np.float32))
    constant = np.full((1, n), 0.1, np.float32)
    assert [float(v[0]) for v in both(lambda x: vk.moments(x, 1), constant)] == [float(np.float32(0.1)), 0.0]


def test_moments_of_odd_rows(both):
    inf, nan = np.inf, np.nan
    x = np.array(
        [[inf, 1, 2], [1, -inf, 2], [inf, inf, 1], [inf, -inf, 1], [nan, 1, 2], [3e38, 3e38, 3e38]], np.float32
    )
    mean, variance = both(lambda x: vk.moments(x, 1), x)
    assert bits_equal(mean, np.array([inf, -inf, inf, nan, nan, 3e38], np.float32)).all()
    assert bits_equal(variance, np.array([nan, nan, nan, nan, nan, 0], np.float32)).all()
    mean, variance = both(vk.moments, np.float32(inf))
    assert mean == inf and np.isnan(variance)
    for device in (vk.device("cpu"), vk.device()):
        with device:
            assert np.isnan([v.numpy() for v in vk.moments(vk.zeros((2, 0)), 1)]).all()
            assert [v.shape for v in vk.moments(vk.zeros((2, 0)), 0)] == [(0,), (0,)]
            assert np.isnan(vk.moments(vk.array([1.0]), correction=1)[1].numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_folded_in_float32_and_rounded_once(both, dtype):
    x = RNG.standard_normal((3, 201)).astype(np.float32)

    def run(x):
        narrow = x.astype(dtype)
        wide = narrow.astype("float32")
        once = [r.astype(dtype) for r in vk.moments(wide, 1)]
        return [*vk.moments(narrow, 1), vk.argmax(narrow, 1), *once, vk.argmax(wide, 1)]

    found = both(run, x)
    for ours, want in zip(found[:3], found[3:], strict=True):
        assert ours.dtype == want.dtype and bits_equal(ours, want).all()
    assert found[0].dtype.name == dtype


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
def test_norms(both, order):
    x = RNG.standard_normal((3, 65)).astype(np.float32)
    (got,) = both(lambda x: vk.norm(x, order, axis=1), x)
    np.testing.assert_allclose(got, np.linalg.norm(x.astype(np.float64), order, axis=1), rtol=1e-5)


def test_second_derivatives_of_moments_are_those_of_the_two_passes(both):
    x = RNG.standard_normal((2, 5)).astype(np.float32)

    def second(variance):
        slope = vk.grad(lambda x: vk.sum(variance(x) * vk.array([1.0, 2.0])))
        return vk.grad(lambda x: vk.sum(slope(x) ** 2))

    variances = (lambda x: vk.moments(x, 1)[1] ** 2), (lambda x: vk.var(x, 1) ** 2)
    one, two = both(lambda x: [second(variance)(x) for variance in variances], x)
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_gradient_of_a_product_with_zeros(both):
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 5.0, 3.0]], np.float32)
    (got,) = both(vk.grad(lambda x: vk.sum(vk.prod(x, axis=1))), x)
    assert got.tolist() == [[0, 6, 0], [0, 0, 0], [15, 6, 10]]


def test_gradients_at_kinks(both):
    zeros = np.zeros((2, 3), np.float32)
    for function in (lambda x: vk.sum(vk.std(x, 1)), lambda x: vk.sum(vk.norm(x, axis=1))):
        (got,) = both(vk.grad(function), zeros)
        assert not got.any()
    (got,) = both(vk.grad(lambda x: vk.max(x)), np.array([1.0, 3.0, 3.0], np.float32))
    assert got.tolist() == [0, 0.5, 0.5]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_shapes_and_axes(data):
    shape = data.draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    axes = data.draw(st.one_of(st.none(), st.lists(st.sampled_from(range(len(shape))), unique=True, max_size=4)
                               if shape else st.just(())))  # fmt: skip
    x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.int32)
    found = []
    for device in (vk.device("cpu"), vk.device()):
        with device:
            found.append(vk.sum(vk.array(x), axis=axes).numpy())
    assert bits_equal(*found).all()
    np.testing.assert_array_equal(found[0], x.sum(axis=None if axes is None else tuple(axes)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: vk.sum(x, 2), ShapeError, "sum.*axis 2"),
        (lambda x: vk.prod(x, (0, 0)), ShapeError, "prod.*twice"),
        (lambda x: vk.max(x, 1.5), ArgumentError, "max.*1.5"),
        (lambda x: vk.argmax(x, (0, 1)), ArgumentError, "argmax"),
        (lambda x: vk.mean(x, "a"), ArgumentError, "mean.*'a'"),
        (lambda x: vk.norm(x, "fro"), ArgumentError, "ord.*'fro'"),
        (lambda x: vk.var(x, correction=math.nan), ArgumentError, "correction"),
        (lambda x: vk.moments(x, correction=math.inf), ArgumentError, "correction"),
        (lambda x: vk.moments(x, correction=10**400), ArgumentError, "correction"),
        (lambda x: vk.var(x, correction=True), ArgumentError, "correction"),
        (lambda x: vk.moments(x, 2), ShapeError, "moments.*axis 2"),
        (lambda x: vk.moments(None), DtypeError, "moments: x: got None"),
        (lambda x: vk.any(x, True), ArgumentError, "any.*True"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(vk.zeros((2, 3)))
