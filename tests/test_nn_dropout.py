"""Dropout: what it keeps, its scale, its gradient, evaluation, the same mask on every device."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn
from vkdnn.errors import ArgumentError, DtypeError


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_elements_are_kept_and_scaled_or_zero():
    with vk.device("cpu"):
        layer, x = nn.Dropout(0.25), normal(0, 40, 50)
        y = layer(x, vk.random.key(1)).numpy()
        kept = y != 0
        np.testing.assert_allclose(y[kept], x.astype(np.float64)[kept] / 0.75, rtol=2e-7)
        assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / x.size)
        assert np.array_equal(y, layer(x, vk.random.key(1)).numpy())
        assert not np.array_equal(y, layer(x, vk.random.key(2)).numpy())


def test_evaluation_is_the_identity():
    with vk.device("cpu"):
        x = normal(0, 5, 3)
        assert nn.Dropout(0.9)(x).numpy().tobytes() == x.tobytes()
        assert nn.Dropout(0.0)(x, vk.random.key(1)).numpy().tobytes() == x.tobytes()
        assert nn.dropout(np.zeros((0, 3), np.float32), 0.5, vk.random.key(1)).shape == (0, 3)


def test_value_and_gradient_have_the_same_bits_on_the_device(both):
    def run(x, w, key):
        def loss(x):
            y = nn.dropout(x, 0.3, key)
            return vk.sum(y * w), y

        return vk.value_and_grad(loss, has_aux=True)(x)

    x, w = normal(0, 33, 7), normal(1, 33, 7)
    key = np.array([5, 6], np.uint32)
    _, y, gradient = both(run, x, w, key)
    np.testing.assert_allclose(gradient, np.where(y == 0, 0, w / np.float64(0.7)), rtol=2e-7)


def test_a_dropped_nan_is_gone():
    with vk.device("cpu"):
        x = vk.array(np.full(64, np.nan, np.float32))
        value, gradient = vk.value_and_grad(lambda x: vk.sum(nn.dropout(x, 0.5, vk.random.key(0)) * 0.0 + x * 0.0))(x)
        y = nn.dropout(x, 0.5, vk.random.key(0)).numpy()
        assert 0 < np.isnan(y).sum() < 64 and set(y[~np.isnan(y)]) == {0.0}
        assert np.isnan(value.item()) and not np.isnan(gradient.numpy()).any()


def test_keys_are_arguments_of_jitted_functions():
    with vk.device("cpu"):
        step = vk.jit(lambda x, key: nn.dropout(x, 0.5, key))
        x, keys = normal(0, 100), vk.random.split(vk.random.key(0), 2)
        first, second = (step(x, keys[i]).numpy() for i in range(2))
        assert first.tobytes() == nn.dropout(x, 0.5, keys[0]).numpy().tobytes() != second.tobytes()


@pytest.mark.parametrize("p", [1.0, -0.1, float("nan"), "x", True])
def test_probabilities_that_cannot_be(p):
    with pytest.raises(ArgumentError, match=r"^p: got .*, expected a number in \[0, 1\)"):
        nn.Dropout(p)
    with pytest.raises(ArgumentError, match=r"^p: got "):
        nn.dropout(np.ones(3, np.float32), p, None)


def test_integers_are_refused():
    with vk.device("cpu"), pytest.raises(DtypeError, match=r"^x: got int32, expected a float"):
        nn.dropout(np.ones(3, np.int32), 0.5, vk.random.key(0))
