"""Elementary functions: their error against float64, their special values, and the same bits in both flush modes."""

import mpmath
import numpy as np
import pytest
import scipy.special

from vkdnn.check.hard import HARD_FLOATS, bits_equal, random_bits
from vkdnn.check.ulp import TRUTH, error_in_ulp, numpy_library
from vkdnn.dtypes import float32
from vkdnn.ir import elementary
from vkdnn.ir.define import evaluate
from vkdnn.ir.node import const_value, leaf, toposort
from vkdnn.ir.ops import OPS
from vkdnn.numerics.flush import exact, flush

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NUMPY = numpy_library()


def mish_slope(x):
    t, v = np.tanh(np.logaddexp(0, x)), scipy.special.expit(x)
    return t + x * (1 - t * t) * v


# function: interval of its interesting arguments, bound of the error in ULP (docs/numerics.md)
FUNCTIONS = {
    "exp": ((-88, 89), 0.63),
    "exp2": ((-127, 129), 0.63),
    "expm1": ((-20, 89), 0.65),
    "log": ((0.3, 3), 0.64),
    "log2": ((0.3, 3), 0.75),
    "log1p": ((-1, 3), 0.65),
    "sigmoid": ((-88, 20), 0.64),
    "silu": ((-93, 31), 0.66),
    "softplus": ((-88, 31), 0.69),
    "log_sigmoid": ((-31, 88), 0.69),
    "tanh": ((-10, 10), 0.67),
    "sinh": ((-90, 90), 0.63),
    "cosh": ((-90, 90), 0.63),
    "sin": ((-50, 50), 0.65),
    "cos": ((-50, 50), 0.65),
    "tan": ((-50, 50), 0.82),
    "asin": ((-1, 1), 0.65),
    "acos": ((-1, 1), 0.63),
    "atan": ((-9, 9), 0.84),
    "erf": ((-4, 4), 0.8),
    "erfc": ((-4, 9.3), 0.7),
    "gelu": ((-13.3, 7), 0.75),
    "gelu_tanh": ((-10.3, 7), 0.66),
    "mish": ((-93, 16), 0.77),
    "hardswish": ((-3.5, 3.5), 2.1),
    "rsqrt": ((0.2, 5), 0.51),
    "reciprocal": ((-4, 4), 0.5),
}
COMPOSITIONS = ["silu_slope", "gelu_slope", "gelu_tanh_slope", "mish_slope", "softmax_rescale"]  # without a bound
PAIRS = {"pow": 0.66, "atan2": 0.84, "elu": 1.5, "leaky_relu": 0.5}


def apply(name, *arrays):
    """A definition traced and interpreted as the compiler does it."""
    parameters = [leaf((), float32) for _ in arrays]
    result = getattr(elementary, name)(*parameters)
    values = dict(zip(parameters, arrays, strict=True))
    for node in toposort([result]):
        if node.kind == "const":
            values[node] = const_value(node)
        elif node.kind == "map":
            values[node] = evaluate(node.op, *(values[a] for a in node.args))
    return values[result]


def assert_within(bound, name, arguments):
    with exact():
        result = apply(name, *arguments)
    truth = TRUTH[name](NUMPY, *(x.astype(np.float64) for x in arguments))
    error = error_in_ulp(NUMPY, result.astype(np.float64), truth)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (name, error[worst], [float(x[worst]).hex() for x in (*arguments, result)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_below_the_documented_bound(name):
    (low, high), bound = FUNCTIONS[name]
    inside = np.random.default_rng(1).uniform(low, high, 200_000).astype(np.float32)
    every_exponent = random_bits(200_000, 2)
    assert_within(bound, name, [flush(np.concatenate([HARD_FLOATS, every_exponent, inside]))])


@pytest.mark.parametrize("name", PAIRS)
def test_error_of_two_arguments_is_below_the_documented_bound(name):
    a, b = (m.ravel() for m in np.meshgrid(HARD_FLOATS, HARD_FLOATS))
    rng = np.random.default_rng(3)
    n = 100_000
    x = (1 + rng.uniform(-1, 1, n) * 2.0 ** rng.uniform(-23, 0, n)).astype(np.float32)
    y = rng.uniform(-89, 89, n) / np.log(x.astype(np.float64))  # powers of every size
    x = flush(np.concatenate([a, x, random_bits(n, 4), rng.normal(size=n)]).astype(np.float32))
    y = flush(np.concatenate([b, y, random_bits(n, 5), rng.normal(size=n)]).astype(np.float32))
    assert_within(PAIRS[name], name, [x, y])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exact_values_are_exact(name):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 4.0, -4.0, 0.25], np.float32)
    truth = TRUTH[name](NUMPY, x.astype(np.float64))
    simple = ~np.isfinite(truth) | (truth * 2 == np.rint(truth * 2))
    assert simple.any()
    with exact():
        result = apply(name, x)
    wrong = simple & ~bits_equal(result, truth.astype(np.float32))
    assert not wrong.any(), (x[wrong], result[wrong], truth[wrong])


@pytest.mark.parametrize("name", [*FUNCTIONS, *PAIRS, *COMPOSITIONS])
def test_hardware_and_software_flush_give_the_same_bits(name):
    rng = np.random.default_rng(6)
    near = rng.uniform(-100, 100, 4000).astype(np.float32)
    x = flush(np.concatenate([HARD_FLOATS, random_bits(20_000, 7), near]))
    arguments = [x, rng.permutation(x)][: OPS[name].arity]
    with exact():
        hardware = apply(name, *arguments)
    software = apply(name, *arguments)
    assert bits_equal(hardware, software).all()
    assert bits_equal(software, flush(software)).all()


def test_a_sum_of_nothing_is_rescaled_to_nothing():
    part = np.array([-np.inf, -np.inf, -np.inf, -1.0, 2.0, np.nan, 1.0, 1.0], np.float32)
    top = np.array([-np.inf, 5.0, np.nan, 1.0, 2.0, 1.0, np.inf, np.nan], np.float32)
    with exact():
        result = apply("softmax_rescale", part, top)
        wanted = np.append(np.zeros(3, np.float32), evaluate("exp", part[3:] - top[3:]))
    assert bits_equal(result, wanted).all()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_angles_against_arbitrary_precision(name):
    x = flush(HARD_FLOATS[np.isfinite(HARD_FLOATS)])
    with mpmath.workprec(400):
        truth = np.array([float(getattr(mpmath, name)(mpmath.mpf(float(v)))) for v in x])
    truth = np.where(truth == 0, x if name != "cos" else truth, truth)  # the sign of zero
    with exact():
        result = apply(name, x)
    assert (error_in_ulp(NUMPY, result.astype(np.float64), truth) < 1).all()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("silu_slope", lambda x: scipy.special.expit(x) * (1 + x * scipy.special.expit(-x))),
        ("mish_slope", mish_slope),
        ("gelu_slope", lambda x: scipy.special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)),
    ],
)
def test_slopes_follow_their_functions(name, function):
    x = np.linspace(-20, 20, 20_001, dtype=np.float32)
    with exact():
        slope = apply(name, x)
        ends = apply(name, np.array([-np.inf, np.inf, np.nan], np.float32))
    # Compositions near a zero crossing: the error is bounded by the largest term, not by the result.
    assert np.abs(slope - function(x.astype(np.float64))).max() < 4e-7
    assert ends[0] == 0 and ends[1] == 1 and np.isnan(ends[2])


def test_a_monotone_function_stays_monotone_between_neighbours():
    """exp over a run of consecutive floats: an error below 1 ULP could still break order; it does not."""
    start = int(np.float32(0.6).view(np.uint32))
    x = np.arange(start, start + 100_000, dtype=np.uint32).view(np.float32)
    with exact():
        assert (np.diff(apply("exp", x)) >= 0).all()


def test_the_op_table_promises_no_less_than_what_is_tested():
    for name, row in [*((n, f[1]) for n, f in FUNCTIONS.items()), *PAIRS.items()]:
        promised = OPS[name].ulp
        assert promised is not None and row <= promised, name
    assert {n for n, op in OPS.items() if op.define is not None and op.ulp} == set(FUNCTIONS) | set(PAIRS)
