"""Softmax and norms: known traps, hard rows, statistics in float32, gradients, bad arguments."""

import math

import numpy as np
import pytest
from scipy import special

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(11)


def layer64(x, axis=-1, eps=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def softmax64(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# ---- traps known from public reports


def test_a_row_of_equal_logits_is_uniform(both):
    (got,) = both(vk.softmax, np.full((1, 12), -200, np.float32))
    assert (got == np.float32(1 / 12)).all()


def test_wide_reductions_see_every_column(both):
    x = np.ones((2, 4097), np.float32)
    x[:, 4090] = 50.0
    got, top = both(lambda x: [vk.softmax(x), vk.argmax(x, 1)], x)
    np.testing.assert_allclose(got, softmax64(x.astype(np.float64)), rtol=1e-5)
    assert top.tolist() == [4090, 4090]
    (flat,) = both(vk.softmax, np.ones((1, 4096), np.float32))
    assert (flat == np.float32(1 / 4096)).all()


def test_layer_norm_of_large_close_numbers(both):
    (got,) = both(lambda x: vk.layer_norm(x, eps=1e-5), np.array([40000, 40001, 40002, 40003], np.float32))
    want = np.array([-1.34163542, -0.447211807, 0.447211807, 1.34163542], np.float32)
    assert (np.abs(got.view(np.int32) - want.view(np.int32)) <= 1).all()


def test_rms_norm_of_float16_does_not_overflow(both):
    (got,) = both(lambda x: vk.rms_norm(x), np.array([1000, 1000], np.float16))
    assert got.dtype == np.float16 and got.tolist() == [1, 1]
    (got,) = both(lambda x: vk.rms_norm(x), np.full((2, 300), 60000, np.float16))
    assert (got == 1).all()


# ---- values


@pytest.mark.parametrize("axis", [-1, 0, (0, 2), None], ids=str)
def test_values_agree_with_float64(both, axis):
    x = RNG.standard_normal((3, 5, 7)).astype(np.float32) * 3
    axes = tuple(range(3)) if axis is None else axis
    soft, log_soft, lse, layer, rms, unit = both(
        lambda x: [
            vk.softmax(x, axis),
            vk.log_softmax(x, axis),
            vk.logsumexp(x, axis),
            vk.layer_norm(x, axis=axis),
            vk.rms_norm(x, axis=axis),
            vk.l2_norm(x, axis=axis),
        ],
        x,
    )
    x = x.astype(np.float64)
    np.testing.assert_allclose(soft, softmax64(x, axes), rtol=1e-5)
    np.testing.assert_allclose(log_soft, np.log(softmax64(x, axes)), rtol=1e-5, atol=1e-5)
    top = x.max(axes, keepdims=True)
    np.testing.assert_allclose(
        lse, (np.log(np.exp(x - top).sum(axes, keepdims=True)) + top).reshape(lse.shape), rtol=1e-5
    )
    np.testing.assert_allclose(layer, layer64(x, axes), atol=1e-5)
    np.testing.assert_allclose(rms, x / np.sqrt((x * x).mean(axes, keepdims=True) + 1e-6), rtol=1e-5)
    np.testing.assert_allclose(unit, x / np.sqrt((x * x).sum(axes, keepdims=True)), rtol=1e-5)


def test_hard_rows(both):
    rows = np.zeros((4, 300), np.float32)
    rows[0], rows[1], rows[2] = np.resize(HARD_FLOATS, 300), -np.inf, 3e38
    rows[3, 7] = np.inf
    soft, _, lse, *_ = both(
        lambda x: [vk.softmax(x), vk.log_softmax(x), vk.logsumexp(x), vk.rms_norm(x), vk.layer_norm(x), vk.l2_norm(x)],
        rows,
    )
    assert np.isnan(lse[0]) and lse[1] == -np.inf and lse[2] == np.float32(3e38) and lse[3] == np.inf
    assert np.isnan(soft[1]).all() and np.isnan(soft[3]).any()


def test_group_norm_and_batch_norm(both):
    x = RNG.standard_normal((4, 6, 5)).astype(np.float32)
    w, b = RNG.standard_normal((2, 6)).astype(np.float32)
    mean, var = RNG.standard_normal(6).astype(np.float32), RNG.uniform(0.5, 2, 6).astype(np.float32)
    group, plain, *trained = both(
        lambda x, w, b, m, v: [
            vk.group_norm(x, 3, w, b),
            vk.batch_norm(x, m, v, w, b),
            *vk.batch_norm(x, m, v, w, b, training=True, momentum=0.25),
        ],
        x, w, b, mean, var,
    )  # fmt: skip
    x64, shape = x.astype(np.float64), (1, 6, 1)
    w, b = w.reshape(shape), b.reshape(shape)
    np.testing.assert_allclose(group, layer64(x64.reshape(4, 3, 10), -1).reshape(x.shape) * w + b, atol=1e-5)
    scaled = (x64 - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + 1e-5)
    np.testing.assert_allclose(plain, scaled * w + b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(trained[0], layer64(x64, (0, 2)) * w + b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(trained[1], 0.75 * mean + 0.25 * x64.mean((0, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trained[2], 0.75 * var + 0.25 * x64.var((0, 2), ddof=1), rtol=1e-5)


def test_zero_vectors_stay_zero(both):
    (got, slope) = both(
        lambda x: [vk.l2_norm(x), vk.grad(lambda x: vk.sum(vk.l2_norm(x)))(x)], np.zeros((2, 3), np.float32)
    )
    assert not got.any() and np.isfinite(slope).all()


def test_no_elements():
    for device in (vk.device("cpu"), vk.device()):
        with device:
            for function in (vk.softmax, vk.log_softmax, vk.rms_norm, vk.layer_norm, vk.l2_norm):
                assert function(vk.zeros((2, 0))).numpy().shape == (2, 0)
                assert function(vk.zeros((0, 3))).numpy().shape == (0, 3)
            assert vk.logsumexp(vk.zeros((2, 0))).numpy().tolist() == [-math.inf] * 2
            assert vk.group_norm(vk.zeros((0, 4)), 2).shape == (0, 4)


# ---- one pass


@pytest.mark.parametrize("axis", [-1, 0, (0, 2), None], ids=str)
def test_one_pass_agrees_with_two(both, axis):
    x = RNG.standard_normal((3, 5, 7)).astype(np.float32) * 30
    for keepdims in (False, True):
        two, one = both(lambda x, k=keepdims: [vk.logsumexp(x, axis, k, one_pass=p) for p in (False, True)], x)
        np.testing.assert_allclose(one, two, rtol=1e-6)
    whole, half, wide = both(
        lambda x: [
            vk.logsumexp(x.astype("int32"), axis, one_pass=True),
            vk.logsumexp(x.astype("float16"), axis, one_pass=True),
            vk.logsumexp(x.astype("float16").astype("float32"), axis, one_pass=True).astype("float16"),
        ],
        x,
    )
    np.testing.assert_allclose(whole, special.logsumexp(np.trunc(x).astype(np.float64), axis), rtol=1e-6)
    assert half.dtype == np.float16 and bits_equal(half, wide).all()


def test_one_pass_is_as_exact_as_two(both):
    x = (RNG.standard_normal((16, 50_000)) * 4).astype(np.float32)
    two, one = both(lambda x: [vk.logsumexp(x, one_pass=p) for p in (False, True)], x)
    truth = special.logsumexp(x.astype(np.float64), axis=1)
    assert np.abs(one - truth).max() < max(2e-6, 2 * np.abs(two - truth).max())


def test_one_pass_where_two_would_give_no_number(both):
    inf = math.inf
    x = np.array([[-inf, -inf, -inf], [inf, 1, inf], [math.nan, 1, 2], [-inf, 3, -inf], [-inf, inf, 0]], np.float32)
    two, one, slope = both(
        lambda x: [
            vk.logsumexp(x),
            vk.logsumexp(x, one_pass=True),
            vk.grad(lambda x: vk.sum(vk.logsumexp(x, one_pass=True)))(x),
        ],
        x,
    )
    assert bits_equal(one, two).all() and one[0] == -inf and one[1] == inf and one[3] == 3
    assert slope[0].tolist() == [0, 0, 0] and slope[3].tolist() == [0, 1, 0] and np.isnan(slope[2]).all()
    for device in (vk.device("cpu"), vk.device()):
        with device:
            assert vk.logsumexp(vk.zeros((2, 0)), one_pass=True).numpy().tolist() == [-inf] * 2


def test_second_derivatives_of_one_pass_are_those_of_two(both):
    x = RNG.standard_normal((3, 6)).astype(np.float32)

    def second(x, one_pass):
        slope = vk.grad(lambda x: vk.sum(vk.logsumexp(x, one_pass=one_pass) ** 2))
        return vk.grad(lambda x: vk.sum(slope(x) ** 2))(x)

    one, two = both(lambda x: [second(x, True), second(x, False)], x)
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


# ---- storage types


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_types_have_float32_statistics_and_one_rounding(both, dtype):
    x = RNG.standard_normal((3, 201)).astype(np.float32)
    functions = (vk.softmax, vk.log_softmax, vk.rms_norm, vk.layer_norm, vk.l2_norm, vk.logsumexp, vk.mean, vk.var)

    def run(x):
        narrow = x.astype(dtype)
        return [f(narrow) for f in functions] + [f(narrow.astype("float32")).astype(dtype) for f in functions]

    found = both(run, x)
    for ours, want in zip(found[: len(functions)], found[len(functions) :], strict=True):
        assert ours.dtype.name == dtype and (ours.view(np.uint16) == want.view(np.uint16)).all()


@pytest.mark.parametrize("eps", [0.0, -1e-5, math.nan, math.inf, 1e-46, "a", None, True])
def test_eps_must_be_finite_and_positive(eps):
    x = vk.zeros((2, 4))
    for function in (vk.rms_norm, vk.layer_norm, vk.l2_norm, lambda x, eps: vk.group_norm(x, 2, eps=eps)):
        with pytest.raises(ArgumentError, match="eps"):
            function(x, eps=eps)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: vk.group_norm(x, 3), ShapeError, "groups.*3"),
        (lambda x: vk.group_norm(x, 0), ShapeError, "groups.*0"),
        (lambda x: vk.group_norm(x, 2, vk.zeros(3)), ShapeError, "weight"),
        (lambda x: vk.batch_norm(x), ArgumentError, "running_mean"),
        (lambda x: vk.batch_norm(x[:1], training=True), ArgumentError, "1 elements a channel"),
        (lambda x: vk.batch_norm(x, training=True, momentum=2), ArgumentError, "momentum"),
        (lambda x: vk.layer_norm(x, vk.zeros((3, 2, 4))), ShapeError, "weight"),
        (lambda x: vk.softmax(x, 5), ShapeError, "softmax.*axis 5"),
        (lambda x: vk.softmax(x, 0.5), ArgumentError, "softmax"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(vk.zeros((2, 4)))
