"""The exact operations against float64 and integers, with flushing in hardware and in software."""

import os
import subprocess
import sys
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from vkdnn.check.hard import HARD_FLOATS, HARD_INTS, bits_equal, random_bits
from vkdnn.numerics import basic
from vkdnn.numerics.flush import HARDWARE_FLUSH, exact, flush

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODES = {"hardware": exact, "software": nullcontext}
LOWEST = 2.0**-126


def by_the_contract(wide):
    """float64 rounded to 24 bits with unbounded exponent, then flushed, then overflowed.

    Double rounding does no harm: float64 has more than 2 * 24 + 2 bits.
    """
    mantissa, exponent = np.frexp(wide)
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, 24)), exponent - 24)
    rounded = np.where(np.abs(rounded) < LOWEST, np.copysign(0.0, wide), rounded)
    rounded = np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, wide), rounded)
    return np.where(np.isfinite(wide), rounded, wide).astype(np.float32)


def pairs():
    """All pairs of hard values, random bits, and operands whose product or quotient is about 2**-126."""
    a, b = (m.ravel() for m in np.meshgrid(HARD_FLOATS, HARD_FLOATS))
    rng = np.random.default_rng(5)
    n = 1 << 17
    factor = rng.uniform(1, 2, n).astype(np.float32) * np.float32(2.0**-60)
    border = LOWEST * (1 - rng.uniform(-1, 3, n) * 2.0**-24)
    other = (border / factor).astype(np.float32)
    divisor = rng.uniform(1, 2, n).astype(np.float32) * np.float32(2.0**40)
    dividend = (border * divisor).astype(np.float32)
    return (
        flush(np.concatenate([a, random_bits(n, 1), factor, dividend])),
        flush(np.concatenate([b, random_bits(n, 2), other, divisor])),
    )


def test_a_product_below_the_normal_range_is_flushed_after_rounding():
    a = np.array([1 - 2.0**-24, 1 - 2.0**-13, -1.0], np.float32)
    b = np.array([LOWEST, LOWEST * (1 + 2.0**-13), LOWEST / 2], np.float32)
    assert bits_equal(basic.mul(a, flush(b)), np.array([0.0, LOWEST, -0.0], np.float32)).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "sqrt"])
def test_arithmetic_is_correctly_rounded_and_flushed(name, mode):
    a, b = pairs()
    operands = (a,) if name == "sqrt" else (a, b)
    with MODES[mode]():
        result = getattr(basic, name)(*operands)
    wide = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}[name]
    truth = by_the_contract(wide(*(x.astype(np.float64) for x in operands)))
    wrong = ~bits_equal(result, truth)
    assert not wrong.any(), [(x[wrong][:5], result[wrong][:5], truth[wrong][:5]) for x in operands]


@pytest.mark.parametrize("mode", MODES)
def test_maximum_and_minimum_order_zeros_and_pass_nan_on(mode):
    zero, negative = np.float32(0), np.float32(-0.0)
    a, b = (flush(m.ravel()) for m in np.meshgrid(HARD_FLOATS, HARD_FLOATS))
    with MODES[mode]():
        largest, smallest = basic.maximum(a, b), basic.minimum(a, b)

    def key(x):
        return float(x), -int(np.signbit(x))  # -0 below +0

    for x, y, high, low in zip(a, b, largest, smallest, strict=True):
        if np.isnan(x) or np.isnan(y):
            assert np.isnan(high) and np.isnan(low)
        else:
            assert bits_equal(np.array([high, low]), np.array([max(x, y, key=key), min(x, y, key=key)])).all()
    assert not np.signbit(basic.maximum(np.array([negative]), np.array([zero])))[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round_even", "neg", "abs"])
def test_rounding_to_integers_keeps_the_sign_of_zero(name, mode):
    x = flush(np.concatenate([HARD_FLOATS, random_bits(1 << 16, 3), np.arange(-40, 40, dtype=np.float32) / 4]))
    with MODES[mode]():
        result = getattr(basic, name)(x)
    wide = {"round_even": np.rint, "neg": np.negative, "abs": np.absolute}.get(name) or getattr(np, name)
    assert bits_equal(result, wide(x.astype(np.float64)).astype(np.float32)).all()


def nearest_float32(value):
    """The float32 nearest to an integer, ties to even, in exact arithmetic."""
    low = np.float32(value)
    candidates = [np.nextafter(low, np.float32(-np.inf)), low, np.nextafter(low, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(np.float32(c).view(np.uint32)) & 1))


def test_integers_become_the_nearest_float():
    unsigned = HARD_INTS.view(np.uint32)
    assert bits_equal(basic.to_float32(HARD_INTS), np.array([nearest_float32(int(i)) for i in HARD_INTS])).all()
    assert bits_equal(basic.to_float32(unsigned), np.array([nearest_float32(int(i)) for i in unsigned])).all()
    assert bits_equal(basic.to_float32(np.array([False, True])), np.array([0, 1], np.float32)).all()


@pytest.mark.parametrize("mode", MODES)
def test_floats_become_integers_truncated_and_saturated(mode):
    x = flush(np.concatenate([HARD_FLOATS, random_bits(2000, 4)]))
    with MODES[mode]():
        signed, unsigned = basic.to_int32(x), basic.to_uint32(x)
    for value, i, u in zip(x, signed, unsigned, strict=True):
        if np.isnan(value):
            assert i == 0 and u == 0
            continue
        whole = int(value) if np.isfinite(value) else int(np.sign(value)) * 2**40
        assert i == min(max(whole, -(2**31)), 2**31 - 1)
        assert u == min(max(whole, 0), 2**32 - 1)


def test_bits_pass_through_and_subnormals_do_not():
    words = HARD_FLOATS.view(np.uint32)
    floats = basic.bits_float32(words)
    assert bits_equal(floats, flush(HARD_FLOATS)).all()
    assert np.array_equal(basic.bits_int32(words).view(np.uint32), words)
    assert np.array_equal(basic.bits_uint32(floats), floats.view(np.uint32))


def test_classification_agrees_with_numpy():
    x = np.concatenate([HARD_FLOATS, random_bits(1 << 16, 6)])
    assert np.array_equal(basic.is_nan(x), np.isnan(x))
    assert np.array_equal(basic.is_inf(x), np.isinf(x))
    assert np.array_equal(basic.is_finite(x), np.isfinite(x))
    assert np.array_equal(basic.to_bool(flush(x)), flush(x) != 0)


def test_integers_wrap():
    a, b = np.array([2**31 - 1, -(2**31)], np.int32), np.array([1, -1], np.int32)
    with exact():
        assert basic.add(a, b).tolist() == [-(2**31), 2**31 - 1]
        assert basic.mul(a, np.array([2, 2], np.int32)).tolist() == [-2, 0]
    assert basic.sub(np.array([0], np.uint32), np.array([1], np.uint32)).tolist() == [2**32 - 1]


@pytest.mark.skipif(not HARDWARE_FLUSH, reason="the reference is in software already")
def test_the_environment_forces_software_with_the_same_bits():
    folder = Path(__file__).parent
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["VKDNN_REFERENCE_FLUSH"] = "software"
    selection = "arithmetic or maximum"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", selection]
    done = subprocess.run(
        [*command, str(Path(__file__))],
        cwd=folder.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 passed" in done.stdout
