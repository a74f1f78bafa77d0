"""Cases on which other implementations are known to be wrong, each in one line of arithmetic."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.node import leaf
from vkdnn.shader.entry import key_of

TINY = np.float32(2.0**-12)


@pytest.mark.parametrize("cut", [False, True], ids=["one kernel", "two kernels"])
def test_a_product_and_a_sum_are_not_contracted(both, cut):
    """(1 + 2^-12)^2 rounds to 1 + 2^-11; a fused multiply-add would leave 2^-24."""

    def run(a, c):
        product = a * a
        return [(vk.array(product.numpy()) if cut else product) + c, c + product, product - (-c)]

    a, c = np.full(65, 1 + TINY, np.float32), np.full(65, -(1 + 2 * TINY), np.float32)
    for got in both(run, a, c):
        assert (got == 0).all() and not np.signbit(got).any()
    (dot,) = both(lambda a, c: vk.sum(a.reshape(-1, 1) * a.reshape(-1, 1) + c.reshape(-1, 1), 1), a, c)
    assert not dot.any()
    (product,) = both(lambda a, c: vk.stack([a, c], 1) @ vk.stack([a[:1], vk.full(1, 1.0)]), a, c)
    assert not product.any()


def test_the_same_in_constants(both):
    (got,) = both(lambda x: x * (1 + 2.0**-12) + -(1 + 2.0**-11), np.full(3, 1 + TINY, np.float32))
    assert not got.any()


def test_close_constants_never_share_a_shader(both):
    """1000015 and 1000025 are one text with six digits: a cache that keys by such a text mixes the kernels up."""
    x, device = vk.Array(leaf((8,), vk.float32)), vk.device()
    specs = [schedule([(x * c).node])[0].spec for c in (1000015.0, 1000025.0)]
    requests = [device.shader(spec, spec.schedules(device.target)[0]) for spec in specs]
    assert specs[0].text() != specs[1].text() and requests[0].glsl != requests[1].glsl
    keys = {key_of("shaders", request.components("compiler", "flags")) for request in requests}
    assert len(keys) == 2
    values = both(lambda x: [x * 1000015.0, x * 1000025.0], np.ones(8, np.float32))
    assert set(values[0]) == {1000015.0} and set(values[1]) == {1000025.0}


def test_constants_that_differ_in_the_last_bit_or_in_a_sign_of_zero_never_share_a_shader(both):
    x = vk.Array(leaf((8,), vk.float32))
    near = np.nextafter(np.float32(0.1), np.float32(1))
    texts = {schedule([(x + float(c)).node])[0].spec.text() for c in (np.float32(0.1), near, 0.0, -0.0)}
    assert len(texts) == 4
    plus, minus = both(lambda x: [x + 0.0, x + -0.0], np.full(3, -0.0, np.float32))
    assert not np.signbit(plus).any() and np.signbit(minus).all()


@pytest.mark.parametrize("n", [2, 129])
def test_a_nan_is_not_lost_by_extremes(both, n):
    x = np.zeros((2, n), np.float32)
    x[0, -1] = x[1, 0] = np.nan
    top, least, clipped, larger, running = both(
        lambda x: [vk.max(x, 1), vk.min(x, 1), vk.clip(x, -1.0, 1.0), vk.maximum(x, x[:, ::-1]), vk.cummax(x, 1)], x
    )
    assert np.isnan(top).all() and np.isnan(least).all()
    assert (np.isnan(clipped) == np.isnan(x)).all()
    assert (np.isnan(larger) == np.isnan(x) | np.isnan(x[:, ::-1])).all()
    assert np.isnan(running[:, -1]).all() and not np.isnan(running[0, 0])


def test_of_equal_values_the_first_is_taken(both):
    x = np.array([1, 2, 5, 4, 5], np.float32)
    values, indices, order, top = both(lambda x: [*vk.top_k(x, 3), vk.argsort(x, descending=True), vk.argmax(x)], x)
    assert values.tolist() == [5, 5, 4] and indices.tolist() == [2, 4, 3]
    assert order.tolist() == [2, 4, 3, 1, 0] and top == 2


def test_a_long_sum_of_equal_numbers_does_not_stand_still(both):
    """A sequential float32 sum of ones stops at 2^24; a mean of a constant is the constant."""
    n = 2**24 + 4096
    (total, average) = both(lambda: [vk.sum(vk.full(n, 1.0)), vk.mean(vk.full(n, 1.0))])
    assert total == n and average == 1


def test_integers_beyond_float32_stay_exact(both):
    x = np.array([2**24 + 1, 2**31 - 1, -(2**31)], np.int32)
    doubled, total, equal = both(lambda x: [x + 0, vk.sum(x), x == 2**24], x)
    assert (doubled == x).all() and total == x.sum(dtype=np.int32) and not equal.any()


def test_rounding_halves_goes_to_even(both):
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2**23 + 0.5], np.float32)
    (got,) = both(vk.round, x)
    assert got.tolist() == [0, 2, 2, 0, -2, 2**23] and np.signbit(got[3])


def test_an_angle_of_many_turns(both):
    """The largest float32: a reduction by a float32 pi has no correct digit."""
    x = np.array([3.4028235e38, 2.0**100, 710.0 * 2**10], np.float32)
    (got,) = both(vk.sin, x)
    np.testing.assert_allclose(got, np.sin(x.astype(np.float64)), rtol=1e-6)
