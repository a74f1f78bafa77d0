"""Slopes by differences: estimates that hold, noise that is measured, kinks that are seen."""

import math

import numpy as np
import pytest

from vkdnn.check.differences import STEPS, change, complex_slope, finer, noise, scale_of, slope, sure

ONE = np.ones(1)


def slope_at(function, x, **options):
    def line(ts):
        return np.array([[function(x + t)] for t in ts])

    scale = float(scale_of(np.array([x]))[0])
    with np.errstate(all="ignore"):
        base = line([0.0])[0]
        rounding = noise(line, base, ONE, scale)
        return slope(line, base, ONE, scale, rounding, **options)


def test_the_slope_of_a_smooth_function_comes_with_an_estimate():
    found = slope_at(np.sin, 1.0)
    assert abs(found.value - np.cos(1.0)) <= found.error < 1e-9
    assert not found.kink


def single(function):
    return lambda x: float(function(np.float32(x)))


SMOOTH = {
    "exp": (np.exp, np.exp, False),
    "log": (lambda x: np.log(abs(x)), lambda x: 1 / x, False),
    "fast": (lambda x: np.sin(50 * x), lambda x: 50 * np.cos(50 * x), False),
    "near a pole": (lambda x: 1 / x, lambda x: -1 / x**2, False),
    "float32": (single(lambda x: 1 / (1 + np.exp(-x))), lambda x: 0.25 / np.cosh(x / 2) ** 2, True),
    "float32, steep": (single(np.exp), np.exp, True),
    "float32, a small part": (single(lambda x: np.exp(x) + np.float32(7)), np.exp, True),
    "float16": (lambda x: float(np.float16(np.sin(x))), np.cos, True),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_estimates_hold_and_noise_is_no_slope(name):
    function, truth, noisy = SMOOTH[name]
    for x in np.random.default_rng(3).standard_normal(150).astype(np.float32).astype(np.float64) * 2:
        found = slope_at(function, x)
        assert abs(found.value - truth(x)) <= 4 * found.error
        assert noisy or found.error < 1e-8 * abs(truth(x)) + 1e-8
        assert not found.kink or noisy


def test_a_small_step_on_a_float32_function_gives_a_large_estimate():
    found = slope_at(single(lambda x: 1 / (1 + np.exp(-x))), 1.6, step=1e-6)
    assert abs(found.value - 0.1397) > 0.02 and found.error > abs(found.value - 0.1397)


@pytest.mark.parametrize(
    ("function", "x", "left", "right"),
    [
        (lambda x: max(x, 0.0), 0.0, 0.0, 1.0),
        (abs, 0.0, -1.0, 1.0),
        (lambda x: max(np.sin(x), np.expm1(x) + x), 0.0, 1.0, 2.0),
    ],
)
def test_a_kink_has_two_slopes(function, x, left, right):
    found = slope_at(function, x)
    assert found.kink
    np.testing.assert_allclose([found.left, found.right], [left, right], atol=1e-6)


@pytest.mark.parametrize("x", [1e-2, 1e-4, -1e-6])
def test_beside_a_kink_there_is_none(x):
    found = slope_at(lambda x: max(x, 0.0), x)
    assert not found.kink and found.value == pytest.approx(float(x > 0), abs=4 * found.error)


def test_a_jump_counts_as_a_kink():
    assert slope_at(np.floor, 1.0).kink


def test_at_the_edge_of_the_domain_one_side_is_enough():
    found = slope_at(lambda x: np.float64(x) ** 1.5 + 3 * x, 0.0)
    assert math.isnan(found.left) and abs(found.value - 3) <= 4 * found.error < 0.1


@pytest.mark.parametrize("function", [np.sqrt, np.cbrt])
def test_an_infinite_slope_has_no_small_estimate(function):
    found = slope_at(function, 0.0)
    assert found.error > 0.1 * abs(found.value)


def test_nothing_but_nan_has_no_slope():
    found = slope_at(lambda x: math.nan if x else 1.0, 0.0)
    assert math.isnan(found.value) and found.error == math.inf


def from_near(function, x, scale):
    def line(ts):
        return np.array([[function(x + t)] for t in ts])

    with np.errstate(all="ignore"):
        base = line([0.0])[0]
        rounding = noise(line, base, ONE, scale)
        found = slope(line, base, ONE, scale, rounding)
        return found, finer(line, base, ONE, found, rounding, x, scale, 1e-3, math.nan)


@pytest.mark.parametrize(
    ("function", "x", "truth"),
    [
        (np.log, 1e-12, 1e12),
        (np.sqrt, 1e-10, 5e4),
        (lambda x: np.tanh(x * 1e30), 1e-30, 1e30 / np.cosh(1) ** 2),
        (lambda x: np.sin(1e6 * x), 0.3, 1e6 * np.cos(3e5)),
        (lambda x: np.sin(2 * np.pi * 2**26 * x), 0.25, 2 * np.pi * 2**26),
        (lambda x: max(x, 0.0), 1e-9, 1.0),
    ],
)
def test_small_elements_and_fast_oscillations_are_seen_from_near(function, x, truth):
    far, near = from_near(function, x, 1.0)
    assert not sure(far, 1e-3) and sure(near, 1e-3)
    assert abs(near.value - truth) <= 4 * near.error + 1e-6 * abs(truth)


@pytest.mark.parametrize(
    ("function", "x"), [(lambda x: np.sin(1e17 * x), 0.3), (lambda x: np.log(x) if x > 0 else np.nan, 1e-300)]
)
def test_what_cannot_be_seen_at_all_has_no_estimate(function, x):
    assert from_near(function, x, 1.0)[1].error == math.inf


def test_steps_have_no_period_in_common_with_a_function():
    for k in (4, 8, 10):
        found = slope_at(lambda x: x + 0.01 * np.sin(2 * np.pi * 2**k * x), 1.0)  # noqa: B023
        assert abs(found.value - 1 - 0.01 * 2 * np.pi * 2**k) <= 4 * found.error
    assert (STEPS * 2.0**40 % 1 == 0).all()  # points move by them exactly


def test_estimates_do_not_overflow():
    found = slope_at(lambda x: 1e300 * np.sin(x), 1.0)
    assert abs(found.value / 1e300 - np.cos(1.0)) <= found.error / 1e300 < 1e-9
    assert scale_of(np.array([1e300, 1e-5])).tolist() == [2.0**997, 2.0**996]


def test_infinities_and_nan_that_stay_are_no_change():
    base = np.array([np.nan, np.inf, 1.0, 2.0])
    assert change(np.array([np.nan, np.inf, 1.5, 2.0]), base, np.array([1.0, 1.0, 2.0, 1.0])) == 1.0
    assert change(np.array([np.nan, -np.inf, 1.0, 2.0]), base, np.ones(4)) == -np.inf
    assert math.isnan(change(np.array([0.0, np.inf, 1.0, 2.0]), base, np.ones(4)))


def test_a_complex_step_loses_nothing():
    found = complex_slope(lambda t: (np.exp(1.0 + t) * np.sin(1.0 + t))[:, None], ONE)
    assert abs(found.value - np.e * (np.sin(1) + np.cos(1))) < found.error < 1e-12


def test_scales_are_powers_of_two_near_the_elements():
    np.testing.assert_array_equal(scale_of(np.array([1e-9, 4.0, 0.9, np.nan])), [2.0, 4.0, 2.0, 2.0])
    assert scale_of(np.zeros(3)).tolist() == [2.0**-7] * 3 and scale_of(np.zeros(0)).size == 0
