"""Averaged weights against float64 NumPy, their memory, their parity."""

import math

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import ArgumentError
from vkdnn.optim import Average


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_thirty_updates_match_float64():
    ema, expected = Average(0.9), normal(0, 3, 4).astype(np.float64)
    with vk.device("cpu"):
        average = ema.init({"w": vk.array(normal(0, 3, 4))})
        update = vk.jit(ema.update, donate_argnums=0)
        for i in range(1, 30):
            average = update(average, {"w": vk.array(normal(i, 3, 4))})
            expected = 0.9 * expected + 0.1 * normal(i, 3, 4)
        np.testing.assert_allclose(average["w"].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_device_gives_the_same_bits(both):
    found = both(Average(0.999).update, normal(1, 9, 5), normal(2, 9, 5))
    assert found[0].shape == (9, 5)


def test_the_average_has_memory_of_its_own():
    with vk.device("cpu"):
        params = {"w": vk.array([1.0, 2.0])}
        average = Average().init(params)
        vk.jit(lambda p: vk.tree.map_leaves(lambda x: x + 1.0, p), donate_argnums=0)(params)
        assert average["w"].numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_a_decay_that_cannot_be(decay):
    with pytest.raises(ArgumentError, match=r"^decay: got .*, expected a number in \[0, 1\)"):
        Average(decay)


def test_trees_that_differ_are_refused():
    with pytest.raises(ArgumentError, match=r"^average: its tree differs"):
        Average().update({"a": vk.array([1.0])}, {"b": vk.array([1.0])})
