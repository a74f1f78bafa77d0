"""Every row of the op table: device = reference in each strategy; gradients against differences."""

import math
from fractions import Fraction

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, HARD_INTS, bits_equal, random_bits
from vkdnn.check.library import rows
from vkdnn.device import VulkanDevice
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.ir.ops import OPS
from vkdnn.numerics.flush import flush
from vkdnn.ops import elementwise
from vkdnn.runtime import open_device

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

STRATEGIES = {
    "native": "",
    "software": "subnormals=software",
    "remainder": "division=remainder,square_root=remainder",
    "both": "subnormals=software,division=remainder,square_root=remainder",
}
GROUP = 8  # rows a Program computes: they share a kernel


def test_an_operation_is_a_row_of_the_table():
    x = vk.array([-1.0, 0.0, 4.0])
    assert vk.sqrt(vk.abs(x)).numpy().tolist() == [1, 0, 2]
    assert vk.where(x > 0, x, -x).numpy().tolist() == [1, 0, 4]


def device_with(strategy):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VKDNN_STRATEGIES", STRATEGIES[strategy])
        return VulkanDevice(open_device())


def pairs(values):
    return [m.ravel() for m in np.meshgrid(values, values)]


def float_pairs():
    a, b = pairs(np.concatenate([HARD_FLOATS[::3], HARD_FLOATS[1::7]]))
    tiny = np.random.default_rng(3).uniform(0.4, 2.5, (2, 2000)).astype(np.float32) * np.float32(2.0**-63)
    more = random_bits(8000, 1), random_bits(8000, 2)
    return [np.concatenate([x, y, z]) for x, y, z in zip((a, b), tiny, more, strict=True)]


OPERANDS = {
    "f": float_pairs(),
    "i": pairs(HARD_INTS[::2]),
    "u": [x.view(np.uint32) for x in pairs(HARD_INTS[::2])],
    "b": pairs(np.array([False, True])),
}
ALLOWED = {"f": "f", "i": "iu", "u": "u", "n": "fiu", "x": "iub", "b": "b", "a": "fiub"}


def cases(category):
    """Rows that take arguments of this dtype category."""
    return [
        name
        for name, op in OPS.items()
        if category in ALLOWED[next((t for t in op.types[: op.arity] if t != "b"), "b")]
    ]


def apply(name, operands):
    """The row on as many operands as it takes; a condition is made of the second, further ones by reversing."""
    op = OPS[name]
    chosen = [*operands, operands[0][::-1], operands[1][::-1], *operands][: op.arity]
    if op.types[0] == "b" and op.arity == 3:
        chosen = [operands[1] != operands[1]._map("add", operands[1], 0), *operands[:2]]
    return chosen[0]._map(name, *chosen)


@pytest.mark.parametrize(
    ("category", "strategy"),
    [("i", "native"), ("u", "native"), ("b", "native"), *(("f", s) for s in STRATEGIES)],
)
def test_rows_have_the_bits_of_the_reference(category, strategy):
    names, strategy_device = cases(category), device_with(strategy)
    for start in range(0, len(names), GROUP):
        group, found = names[start : start + GROUP], []
        for device in (vk.device("cpu"), strategy_device):
            with device:
                # Through a row of its own, so that the group shares a kernel.
                operands = [vk.stop_gradient(vk.array(x)) for x in OPERANDS[category]]
                results = [apply(name, operands) for name in group]
                vk.realize(results)
                found.append([r.numpy() for r in results])
        for name, want, got in zip(group, *found, strict=True):
            wrong = ~bits_equal(want, got)
            shown = [x[wrong][:3] for x in (*OPERANDS[category], want, got)]
            assert not wrong.any(), f"{name} of {category}: {np.count_nonzero(wrong)} differ: {shown}"


def test_every_row_was_tried():
    assert set().union(*map(cases, "fiub")) == set(OPS)


def test_constants_are_no_ground_for_simplification(both):
    """-0 + 0 is +0, 0 / 0 and inf * 0 are NaN: a driver's compiler must not see zeros to fold away."""
    special_values = np.array([0.0, -0.0, 1, -1.5, np.inf, -np.inf, np.nan, 2.0**-126, -(2.0**-126), 1e38], np.float32)

    def run(x, y):
        nothing, once = vk.arange(1), vk.arange(x.size) * 0
        return [
            x + 0.0,
            0.0 + x,
            x - 0.0,
            0.0 - x,
            x + -0.0,
            -0.0 - x,
            x * 0.0,
            x * -0.0,
            0.0 / x,
            x / 1.0,
            x * -1.0,
            x * 1.0,
            -(x - y),
            -(x + y),
            x - x,
            x / x,
            (x + 1.0) - 1.0,
            x * 2.0 * 0.5,
            x + y - y,
            x * y - x * y,
            x - (-y),
            x * (-y),
            vk.floor(x * 0.5) + 0.0,
            x + nothing,
            nothing - x,
            nothing * x,
            x + once,
            (x > 0) + y,
            (x == x) * y,
            vk.where(x > 0, x, 0.0) + 0.0,
            vk.sqrt(x) * vk.sqrt(x),
            vk.maximum(x, 0.0) + 0.0,
            x * x * 0.0,
            x + (y - y),
            vk.concatenate([x, -x]) + 0.0,
            vk.pad(x, [(1, 1)]) + 0.0,
            vk.pad(x, [(1, 1)]) * -1.0,
            abs(-x) - 0.0,
        ]

    x, y = pairs(special_values)
    found = both(run, x, y)
    assert not np.signbit(found[0][x == 0]).any() and np.isnan(found[8][x == 0]).all()
    assert np.isnan(found[6][~np.isfinite(x)]).all()


# ---- gradients

POSITIVE = np.array([0.05, 0.3, 0.9, 1.7, 4.0, 11.0])
ANY = np.array([-6.3, -1.2, -0.4, 0.3, 0.8, 1.9, 5.2])
INSIDE = np.array([-0.95, -0.4, 0.1, 0.6, 0.9])
OTHER = np.array([1.3, -0.7, 0.45, 2.2, -3.1, 0.9, 1.6])
FIRST = {"normal": ANY, "distinct": ANY, "positive": POSITIVE, "inside": INSIDE}
LATER = {"normal": OTHER, "distinct": OTHER, "positive": abs(OTHER) + 0.25, "inside": OTHER / 4}


def points(kinds):
    chosen = [(FIRST if k == 0 else LATER)[kind] for k, kind in enumerate(kinds)]
    return [x[: min(map(len, chosen))] for x in chosen]


# Rows of float32 results that are differentiated elsewhere, or constant or undifferentiable by design.
OTHERS = {
    "where",
    "stop_gradient",
    "to_float32",
    "bits_float32",
    "nextafter",
    "silu_slope",
    "gelu_slope",
    "gelu_tanh_slope",
    "mish_slope",
}
TRUE = {
    row: (function, *points(kinds))
    for row, (function, *kinds) in rows.TRUE.items()
    if rows.differentiable(OPS[row]) and row not in OTHERS and OPS[row].types[-1] == "="
}
WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0, 1.5, -1.0, 2.0])


def test_every_float_row_has_its_gradient_tested():
    float_rows = {n for n, op in OPS.items() if op.types.endswith("f") or op.types[0] + op.types[-1] in ("f=", "n=")}
    assert float_rows <= set(TRUE) | OTHERS


def gradients(names, points):
    """For each row, the gradients of sum(weights * row) with respect to its arguments."""
    found = []
    for name, arrays in zip(names, points, strict=True):
        weights = vk.array(WEIGHTS[: arrays[0].size].astype(np.float32))

        def loss(*xs, name=name, weights=weights):
            return vk.sum(xs[0]._map(name, *xs) * weights)

        found.append(vk.grad(loss, tuple(range(len(arrays))))(*arrays))
    return found


def test_gradients_agree_with_central_differences(both):
    names = list(TRUE)
    flat = [x.astype(np.float32) for name in names for x in TRUE[name][1:]]

    def run(*arrays):
        rest = list(arrays)
        return gradients(names, [[rest.pop(0) for _ in TRUE[name][1:]] for name in names])

    found = both(run, *flat)
    for name in names:
        function, *points = TRUE[name]
        exact_points = [x.astype(np.float32).astype(np.float64) for x in points]
        for k, at in enumerate(exact_points):
            step = 1e-6
            left, right = list(exact_points), list(exact_points)
            left[k], right[k] = at - step, at + step
            slope = (function(*right) - function(*left)) / (2 * step) * WEIGHTS[: at.size]
            # float32 gradients of well-conditioned points: a few ULP from the rounding of value and slope.
            np.testing.assert_allclose(found.pop(0), slope, rtol=2e-5, atol=2e-6, err_msg=f"{name} argument {k}")
    assert not found


def test_gradients_at_kinks_are_the_stated_ones():
    zero, one = vk.array([0.0, -0.0]), vk.array([1.0, 1.0])

    def slope(function, *arrays, argnums=0):
        return vk.grad(lambda *xs: vk.sum(function(*xs)), argnums)(*arrays)

    assert slope(vk.abs, zero).numpy().tolist() == [0, 0]
    assert slope(vk.relu, zero).numpy().tolist() == [0, 0]
    for tie in (vk.maximum, vk.minimum):
        first, second = slope(tie, one, one, argnums=(0, 1))
        assert first.numpy().tolist() == [1, 1] and second.numpy().tolist() == [0, 0]
    assert slope(vk.round, vk.array([0.5, 2.0])).numpy().tolist() == [0, 0]
    assert slope(vk.stop_gradient, one).numpy().tolist() == [0, 0]
    chosen = slope(lambda a, b: vk.where(vk.array([True, False]), a, b), one, one, argnums=(0, 1))
    assert [g.numpy().tolist() for g in chosen] == [[1, 0], [0, 1]]
    assert slope(vk.sign, one).numpy().tolist() == slope(vk.copysign, zero, one).numpy().tolist() == [0, 0]
    assert slope(lambda x: vk.leaky_relu(x, 0.25), zero).numpy().tolist() == [0.25, 0.25]
    assert slope(lambda x: vk.elu(x, 0.5), zero).numpy().tolist() == [0.5, 0.5]
    assert slope(vk.hardswish, vk.array([-3.0, 3.0])).numpy().tolist() == [0, 1]


def test_the_gradient_of_clip_goes_to_what_was_taken():
    x, low, high = vk.array([-2.0, -1.0, 0.0, 1.0, 2.0, 0.0]), vk.array([-1.0] * 5 + [3.0]), vk.array([1.0] * 6)
    found = vk.grad(lambda *xs: vk.sum(vk.clip(*xs)), (0, 1, 2))(x, low, high)
    assert [g.numpy().tolist() for g in found] == [[0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]


def test_where_does_not_let_a_nan_of_the_other_branch_through():
    x = vk.array([0.0, 4.0])
    slope = vk.grad(lambda x: vk.sum(vk.where(x > 1.0, x * 2, 0.0)))(x)
    assert slope.numpy().tolist() == [0, 2]


@pytest.mark.parametrize("name", ["silu_slope", "gelu_slope", "gelu_tanh_slope", "mish_slope"])
def test_a_row_without_a_derivative_is_refused_by_name(name):
    with pytest.raises(VkdnnError, match=f"grad: {name} has no derivative"):
        vk.grad(lambda x: vk.sum(x._map(name, x)))(vk.array([1.0]))


# ---- what a user may write


def test_numbers_and_numpy_arrays_on_either_side(both):
    def run(x, i):
        one = np.array([1.0, 2.0, 3.0], np.float32)
        return [
            2 - x,
            one * x,
            x * one,
            np.float32(2) * x,
            one < x,
            1 / x,
            i + 1,
            7 - i,
            i + 0.5,
            i / 2,
            x**2,
            x**5,
            x**0.5,
        ]

    found = both(run, np.array([0.5, 1.5, 4.0], np.float32), np.array([1, -2, 3], np.int32))
    assert found[0].tolist() == [1.5, 0.5, -2] and found[4].tolist() == [False, False, True]
    assert found[7].tolist() == [6, 9, 4] and found[7].dtype == np.int32
    assert found[8].dtype == found[9].dtype == np.float32
    assert found[11].tolist() == [0.5**5, 1.5**5, 4.0**5]


def test_comparisons_and_logic(both):
    def run(a, b):
        x, y = a > b, a >= 0
        return [x & y, x | y, x ^ y, ~x, a == b, a != b, vk.clip(a, -1, 1), vk.square(a), vk.isnan(a)]

    found = both(run, np.array([np.nan, 2, -3], np.float32), np.array([1, 1, -3], np.float32))
    assert [r.tolist() for r in found[:6]] == [
        [False, True, False],
        [False, True, False],
        [False, False, False],
        [True, False, True],
        [False, False, True],
        [True, True, False],
    ]
    assert np.isnan(found[6][0]) and found[6][1:].tolist() == [1, -1]


def test_integers_wrap_and_conversions_saturate(both):
    def run(i, u, x):
        return [
            i + i,
            i * i,
            -i,
            abs(i),
            u + u,
            u - 3,
            i >> 3,
            i << 1,
            u >> 3,
            x.astype("int32"),
            x.astype("uint32"),
            i.astype("uint32"),
            u.astype("int32"),
            u.astype("float32"),
            x.astype("bool"),
            i.astype("bool"),
        ]

    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 0.9, -0.9], np.float32)
    i = np.array([2**31 - 1, -(2**31), -1, 0, 5, 123456789, -7], np.int32)
    found = both(run, i, i.view(np.uint32), x)
    with np.errstate(over="ignore"):
        assert (found[0] == i + i).all() and (found[1] == i * i).all() and (found[6] == i >> 3).all()
    assert found[3][1] == -(2**31)
    assert found[9].tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 0]
    assert found[10].tolist() == [0, 2**32 - 1, 0, 3_000_000_000, 0, 0, 0]
    assert found[14].tolist() == [True] * 7


def test_shift_counts_are_taken_modulo_32(both):
    """GLSL leaves counts outside 0..31 undefined, so the table defines them."""
    values, counts = np.array([3, -3, 3, -3], np.int32), np.array([40, -1, 32, 31], np.int32)
    left, right = both(lambda a, b: [a << b, a >> b], values, counts)
    assert left.tolist() == [768, -(2**31), 3, -(2**31)]
    assert right.tolist() == [0, -1, 3, -1]


# ---- rows against an oracle of their own


def test_remainders_are_those_of_fractions(both):
    """fmod exactly; remainder rounded once; results below 2**-126 are zeros."""
    a, b = float_pairs()
    fmod, remainder, quotient = both(lambda a, b: [vk.fmod(a, b), vk.remainder(a, b), vk.floor_divide(a, b)], a, b)
    a, b = flush(a), flush(b)
    usable = np.isfinite(a) & np.isfinite(b) & (b != 0)
    assert np.isnan(fmod[~np.isfinite(a) | (b == 0)]).all() and np.isnan(remainder[~np.isfinite(a) | (b == 0)]).all()
    with np.errstate(all="ignore"):
        plain = flush(a / b)
        assert bits_equal(quotient[b == 0], plain[b == 0]).all()
    for x, y, f, r in zip(a[usable], b[usable], fmod[usable], remainder[usable], strict=True):
        truth = math.fmod(x, y)  # exact in float64
        truth = truth if abs(truth) >= 2.0**-126 else math.copysign(0.0, x)
        assert f == truth and math.copysign(1, f) == math.copysign(1, x)
        moved = truth if truth == 0 or (truth < 0) == (y < 0) else np.float32(Fraction(truth) + Fraction(float(y)))
        assert r == (moved if abs(moved) >= 2.0**-126 else 0), (x, y)
        assert math.copysign(1, r) == math.copysign(1, y)
    np_quotient = np.floor_divide(a[usable], b[usable])
    normal = np.isfinite(np_quotient) & (np.abs(a[usable]) > 2.0**-90) & (np.abs(b[usable]) > 2.0**-90)
    assert bits_equal(quotient[usable][normal], np_quotient[normal]).all()


def test_integer_division_is_that_of_numpy_and_defined_everywhere(both):
    for category, dtype in (("i", np.int32), ("u", np.uint32)):
        a, b = OPERANDS[category]
        found = both(lambda a, b: [a // b, a % b, vk.fmod(a, b), *vk.divmod(a, b)], a, b)
        with np.errstate(all="ignore"):
            wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
            truth = [f(wide_a, wide_b).astype(dtype) for f in (np.floor_divide, np.remainder, np.fmod)]
        for want, got in zip([*truth, *truth[:2]], found, strict=True):
            assert got.dtype == dtype and (got == want).all()
    lowest = vk.array(np.array([-(2**31)], np.int32))
    assert (lowest // -1).numpy().tolist() == [-(2**31)] and (lowest // 0).numpy().tolist() == [0]


def test_signs_and_neighbours(both):
    a, b = float_pairs()
    sign, copied, following = both(lambda a, b: [vk.sign(a), vk.copysign(a, b), vk.nextafter(a, b)], a, b)
    a, b = flush(a), flush(b)
    assert bits_equal(sign, np.sign(a) + np.float32(0)).all()
    known = ~np.isnan(a) & ~np.isnan(b)
    assert bits_equal(copied[known], np.copysign(a, b)[known]).all() and not np.signbit(copied[np.isnan(b)]).any()
    truth = np.nextafter(a, b)
    normal = known & (a != 0) & (np.abs(truth) >= 2.0**-126)
    assert bits_equal(following[normal], truth[normal]).all()
    edge = np.array([0, -0.0, 0, 2.0**-126, -(2.0**-126), np.inf, 1.0, np.nan], np.float32)
    toward = np.array([1, 1, -1, 0, 5, 0, 1.0, 1], np.float32)
    (found,) = both(vk.nextafter, edge, toward)
    largest = np.finfo(np.float32).max
    want = np.array([2.0**-126, 2.0**-126, -(2.0**-126), 0, -0.0, largest, 1, np.nan], np.float32)
    assert bits_equal(found, want).all()


def test_logic_takes_any_dtype(both):
    x, i = np.array([0.0, -0.0, 2.0, np.nan], np.float32), np.array([0, 5, 0, -1], np.int32)

    def run(x, i):
        pairs = (x, i), (i, i[::-1]), (x > 1.0, i)
        results = [f(a, b) for a, b in pairs for f in (vk.logical_and, vk.logical_or, vk.logical_xor)]
        return [*results, vk.logical_not(x), vk.logical_not(i), vk.isinf(x / 0.0), vk.isfinite(x), vk.isfinite(i)]

    found = both(run, x, i)
    pairs = (x, i), (i, i[::-1]), (x > 1.0, i)
    truth = [f(a, b) for a, b in pairs for f in (np.logical_and, np.logical_or, np.logical_xor)]
    truth += [np.logical_not(x), np.logical_not(i), np.array([False, False, True, False]), np.isfinite(x), i == i]
    assert all(bits_equal(want, got).all() for want, got in zip(truth, found, strict=True))


def test_clip_takes_either_limit_or_both(both):
    x = np.array([-3, 0.5, np.nan, 9], np.float32)
    found = both(lambda x: [vk.clip(x, 0.0, 1.0), vk.clip(x, 1.0), vk.clip(x, high=1.0), vk.clip(x, 2.0, 1.0)], x)
    truth = [np.clip(x, 0, 1), np.maximum(x, 1), np.minimum(x, 1), np.clip(x, 2, 1)]
    assert all(bits_equal(want.astype(np.float32), got).all() for want, got in zip(truth, found, strict=True))
    assert vk.clip(vk.array([-5, 0, 5]), -1, 1).numpy().tolist() == [-1, 0, 1]
    with pytest.raises(ArgumentError, match=r"^clip: got neither low nor high"):
        vk.clip(x)


# ---- powers and Python's operators


def test_powers_of_any_exponent(both):
    x, y = np.array([0.5, 2.0, -3.0, 0.0, np.inf], np.float32), np.array([2.5, -1.0, 3.0, 0.0, -2.0], np.float32)

    def run(x, y):
        return [x**3, x**0, x**-1, x**1.5, x**0.5, x**y, 2**y, x ** np.float32(2), vk.power(x, 2), x**9, 2.0**y]

    found = both(run, x, y)
    with np.errstate(all="ignore"):
        exponents = (3, 0, -1, 1.5, 0.5, y, None, 2, 2, 9, None)
        truth = [np.float64(2) ** y if e is None else x.astype(np.float64) ** e for e in exponents]
    for want, got in zip(truth, found, strict=True):
        np.testing.assert_allclose(got, want.astype(np.float32), rtol=2e-7)


def test_powers_of_integers_wrap(both):
    a, b = OPERANDS["i"]
    small = np.abs(b) % 50
    found = both(lambda a, b, c: [a**b, 3**b, a**5, a**11, vk.power(a, c)], a, small, b)
    with np.errstate(over="ignore"):
        for want, got in zip([a**small, np.int32(3) ** small, a**5, a**11], found[:4], strict=True):
            assert got.dtype == np.int32 and (got == want).all()
    fraction = (b < 0) & (np.abs(a.astype(np.int64)) != 1)
    assert (found[4][fraction] == 0).all()
    assert (found[4][(b < 0) & (a == -1)] == np.where(b % 2, -1, 1)[(b < 0) & (a == -1)]).all()
    with pytest.raises(ArgumentError, match=r"\*\*: got exponent -1 of integers"):
        vk.array([2]) ** -1


def test_every_operator_has_its_reflected_form(both):
    def run(x, i, flag):
        quotient, rest = divmod(x, 2.0)
        other, left = divmod(7, i)
        return [
            x % 2,
            7.5 % x,
            x // 2,
            7.5 // x,
            quotient,
            rest,
            other,
            left,
            i << 2,
            2 << i,
            i >> 1,
            64 >> i,
            5 & i,
            5 | i,
            5 ^ i,
            ~i,
            ~flag,
            +x,
            True & flag,
        ]

    x, i, flag = np.array([3.5, -3.5], np.float32), np.array([3, 1], np.int32), np.array([True, False])
    found = both(run, x, i, flag)
    truth = [x % 2, 7.5 % x, x // 2, 7.5 // x, x // 2, x % 2, 7 // i, 7 % i, i << 2, 2 << i, i >> 1, 64 >> i]
    truth += [5 & i, 5 | i, 5 ^ i, ~i, ~flag, x, True & flag]
    for want, got in zip(truth, found, strict=True):
        assert got.dtype == want.dtype and (got == want).all()


@pytest.mark.parametrize("name", [n for n in elementwise.__all__ if n not in ("clip", "elu", "leaky_relu")])
def test_a_wrong_number_of_arguments_names_the_function(name):
    function = getattr(vk, name)
    if function.__module__ == "vkdnn.ops.elementwise" and function.__code__.co_argcount:  # written out: Python checks
        return
    x = vk.array([1.0])
    for count in (0, 5):
        with pytest.raises(ArgumentError, match=f"{name}: got {count} arguments, expected"):
            function(*[x] * count)


def test_bools_count_as_integers_in_arithmetic(both):
    flag = np.array([True, False])
    found = both(lambda f: [f + f, f * 3, -f, f % 2, f < True, vk.maximum(f, 0), vk.sign(f), vk.square(f)], flag)
    assert [r.tolist() for r in found[:4]] == [[2, 0], [3, 0], [-1, 0], [1, 0]]
    assert all(r.dtype == np.int32 for r in found[:4])
