"""Slopes by differences: estimates that hold, noise that is measured, kinks that are seen."""

import math

import numpy as np
import pytest

from vkdnn.check.differences import change, complex_slope, noise, scale_of, slope

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
