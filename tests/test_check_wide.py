"""Expressions in float64: against exact integers, against mpmath and the reference row by row, by a complex step."""

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from test_fusion_graphs import arguments, build, graphs

import vkdnn as vk
from vkdnn import tree
from vkdnn.check import wide
from vkdnn.check.hard import HARD_FLOATS
from vkdnn.check.library import OPERATORS
from vkdnn.check.ulp import error_in_ulp, numpy_library
from vkdnn.check.wide_rows import BIT_ROWS, ROWS
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import define
from vkdnn.ir.build import fold_fields
from vkdnn.ir.monoids import MONOIDS
from vkdnn.ir.ops import OPS
from vkdnn.numerics import basic
from vkdnn.numerics.flush import flush
from vkdnn.show import argument

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
STEP = 1e-150


@pytest.fixture(autouse=True)
def reference():
    with vk.device("cpu") as device:
        yield device


def arrays(*values):
    return [vk.array(v) for v in values]


def test_the_value_of_an_expression_for_other_arguments():
    x = vk.array([1.0, 2.0])
    (y,) = wide.evaluate([vk.sum(x * 0.1).node], {x.node: np.array([1.0, 0.5])})
    assert y.dtype == np.float64 and y == 1.5 * np.float64(np.float32(0.1))  # a constant keeps its float32 value


# ---- kinds of nodes


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_graphs_of_small_integers_are_exact(graph):
    """Views, gathers, folds of one and two fields, products, maps; float32 values with any rounding would differ."""
    steps, results = graph
    (x, y), index = arguments()
    given_arrays = arrays(x, y, index)
    values = build(vk, steps, *given_arrays)
    nodes = [values[k].node for k in results]
    inputs = [a.node for a in given_arrays]
    exact = build(np, steps, x.astype(np.float64), y.astype(np.float64), index)
    plan = wide.prepare(nodes, inputs)
    for got, k in zip(plan(x, y, index), results, strict=True):
        assert got.shape == exact[k].shape and (got == exact[k]).all()
    copies = plan(np.stack([x, y]), np.stack([y, x]), index)
    turned = build(np, steps, y.astype(np.float64), x.astype(np.float64), index)
    for got, k in zip(copies, results, strict=True):
        assert got.shape == (2, *exact[k].shape) and (got[0] == exact[k]).all() and (got[1] == turned[k]).all()
    complex_values = plan(x + 0j, y + 0j, index)
    for got, k in zip(complex_values, results, strict=True):
        assert (got == exact[k]).all()


@pytest.mark.parametrize("name", sorted(MONOIDS))
def test_a_fold_of_any_fields_against_the_reference(name):
    """Fields that no operation starts with: counts of 0 and 2, means with a rest, tops of -inf."""
    rng = np.random.default_rng(9)
    fields = [rng.standard_normal((4, 30)).astype(np.float32) for _ in MONOIDS[name].fields]
    if name == "moments":
        fields[0] = rng.integers(0, 3, (4, 30)).astype(np.float32)
        fields[0][3], fields[3] = 0, np.abs(fields[3])
    if name == "logsumexp":
        fields[0][0, :9], fields[0][1], fields[0][2, 5] = -np.inf, -np.inf, np.inf
    if name.startswith("arg"):
        fields[0], fields[1] = np.round(fields[0]), rng.permutation(120).astype(np.int32).reshape(4, 30)
        fields[0][2, 7] = np.nan
    xs = arrays(*fields)
    folded = fold_fields(name, tuple(x.node for x in xs), (1,))
    found = dict(zip(folded, (vk.Array(n, xs[0]._device) for n in folded), strict=True))
    truth = wide.evaluate(folded, dict(zip([x.node for x in xs], fields, strict=True)))
    got = [a.numpy() for a in found.values()]
    if name == "moments":  # of a mean and what rounding it lost only the sum is a number; the last row has none
        assert np.isfinite(truth).all()
        truth, got = ([x[0][:3], x[1][:3] + x[2][:3], x[3][:3]] for x in (truth, got))
    for a, b in zip(got, truth, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_what_does_not_depend_on_inputs_is_computed_once_and_comes_from_memory():
    x, y = arrays(np.float32([1, 2]), np.float32([3, 4]))
    held = vk.exp(y)
    before = held.numpy()
    plan = wide.prepare([(x * held).node], [x.node])
    assert (plan(np.ones(2))[0] == before.astype(np.float64)).all()
    deep = wide.prepare([(x * vk.exp(y)).node], [x.node, y.node])
    assert deep(np.ones(2), np.zeros(2))[0].tolist() == [1.0, 1.0]


def test_what_lies_behind_an_array_in_memory_may_be_gone():
    y = vk.array([1.0, 2.0])
    step = vk.jit(lambda y: y + 1.0, donate_argnums=(0,))
    with vk.tracing.trace():
        held = vk.exp(y)
        held.numpy()  # keeps its expression
    step(y).numpy()
    x = vk.array([1.0, 1.0])
    assert wide.evaluate([(x * held).node], {x.node: [2.0, 2.0]})[0].tolist() == (held.numpy() * 2.0).tolist()


def test_stop_gradient_is_held_at_a_place():
    x = vk.array([2.0, 3.0])
    y = (x * vk.stop_gradient(x * x)).node
    free, held = wide.prepare([y], [x.node]), wide.prepare([y], [x.node], at=[np.array([2.0, 3.0])])
    assert free(np.array([1.0, 1.0]))[0].tolist() == [1.0, 1.0]
    assert held(np.array([1.0, 1.0]))[0].tolist() == [4.0, 9.0]


def test_storage_types_and_integers():
    x, i = arrays(np.float16([0.1, 2.0]), np.int32([2**31 - 1, 5]))
    y = (x * 3).astype("float32")
    found = wide.evaluate([y.node, (i + 1).node, (i / 2).node], {x.node: np.array([0.1, 1 / 3]), i.node: i.numpy()})
    assert found[0].tolist() == [0.1 * 3, 1.0]  # not rounded to float16
    assert found[1].tolist() == [-(2**31), 6] and found[1].dtype == np.int32
    assert found[2].tolist() == [(2**31 - 1) / 2, 2.5]
    big = vk.array(np.int32([2**24 + 1]))
    assert wide.evaluate([big.astype("float32").node], {})[0].tolist() == [2.0**24 + 1]


def test_wrong_arguments_are_named():
    x = vk.zeros((2, 3)) + 1.0
    x.numpy()
    plan = wide.prepare([vk.exp(x).node], [x.node])
    with pytest.raises(ArgumentError, match="got 0 arrays, expected 1"):
        plan()
    with pytest.raises(ShapeError, match=r"shape \(3, 2\)"):
        plan(np.zeros((3, 2)))
    with pytest.raises(ArgumentError, match="has no value"):
        wide.evaluate([vk.exp(argument("x", (2,))).node], {})
    i = vk.array([1, 2])
    with pytest.raises(ArgumentError, match="got float64"):
        wide.evaluate([(i + 1).node], {i.node: np.ones(2)})


# ---- rows of the op table

FLOAT_ROWS = sorted(n for n, row in OPS.items() if set(row.types) & set("fna") and n not in BIT_ROWS)
COMPUTED = [n for n in FLOAT_ROWS if not n.startswith(("bits_", "to_"))]
LOOSE = {"softmax_rescale": 100, "silu_slope": 50, "gelu_slope": 50, "gelu_tanh_slope": 100, "mish_slope": 50}


def points(name):
    """float32 arguments: hard ones, and common ones."""
    rng = np.random.default_rng(1)
    row = OPS[name]
    found = []
    for letter in row.types[: row.arity]:
        x = np.concatenate([rng.permutation(HARD_FLOATS), rng.standard_normal(200).astype(np.float32) * 3])
        found.append(x > 0 if letter == "b" else flush(x))
    return found


def test_every_row_of_floats_has_a_meaning():
    assert set(FLOAT_ROWS) <= set(ROWS)


@pytest.mark.parametrize("name", COMPUTED)
def test_a_row_against_the_reference(name):
    """The reference is within its bound (rows without one: a few units, and what is cancelled) of the float64 truth."""
    x = points(name)
    with basic.exact():
        found = define.evaluate(name, *x)
    wide_x = [a if a.dtype == bool else a.astype(np.float64) for a in x]
    truth = ROWS[name](*wide_x)
    if found.dtype == bool:
        assert (found == truth).all()
        return
    bound = OPS[name].ulp if OPS[name].ulp is not None else LOOSE.get(name, 0.5)
    error = error_in_ulp(numpy_library(), found.astype(np.float64), truth)
    if name in LOOSE:  # compositions: their parts cancel where the slope crosses 0; tiny results may be 0
        error = np.where(np.abs(found - truth) <= 1e-7, 0.0, error)
    assert np.nanmax(error) <= bound * (1 + 1e-6)


MP = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "log_sigmoid": lambda x: -mpmath.log1p(mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "mish": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "gelu": lambda x: x * mpmath.ncdf(x),
    "gelu_tanh": lambda x: x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + 0.044715 * x**3))),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    **{name: getattr(mpmath, name) for name in (
        "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "erf", "erfc",
    )},
}  # fmt: skip
UNIT = ("asin", "acos")
POSITIVE = ("sqrt", "log", "log2", "log1p", "rsqrt", "reciprocal")


def places(name):
    if name in UNIT:
        return np.linspace(-0.95, 0.93, 20)
    return np.geomspace(0.01, 30, 20) if name in POSITIVE else np.linspace(-6.3, 6.1, 25)


@pytest.mark.parametrize("name", sorted(MP))
def test_a_row_and_its_complex_step_against_mpmath(name):
    x = places(name)
    with mpmath.workdps(40):
        truth = np.array([float(MP[name](mpmath.mpf(float(v)))) for v in x])
        slope = np.array([float(mpmath.diff(MP[name], mpmath.mpf(float(v)))) for v in x])
    np.testing.assert_allclose(ROWS[name](x), truth, rtol=2e-14, atol=1e-300)
    complex_value = ROWS[name](x + 1j * STEP)
    np.testing.assert_allclose(complex_value.real, truth, rtol=2e-14, atol=1e-300)
    np.testing.assert_allclose(complex_value.imag / STEP, slope, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "mish"])
def test_a_slope_row_is_the_derivative_of_its_function(name):
    x = np.concatenate([np.linspace(-7.1, 7.3, 40), [-1e30, 1e30, -np.inf, np.inf, 0.0]])
    slope = ROWS[f"{name}_slope"](x)
    np.testing.assert_allclose(ROWS[name](x + 1j * STEP).imag[:40] / STEP, slope[:40], rtol=1e-12, atol=1e-14)
    assert slope[40:].tolist() == [0, 1, 0, 1, 0.5 if name != "mish" else 0.6]


@pytest.mark.parametrize("name", COMPUTED)
def test_complex_values_are_the_real_ones_on_real_arguments(name):
    x = points(name)
    real = ROWS[name](*(a if a.dtype == bool else a.astype(np.float64) for a in x))
    found = ROWS[name](*(a if a.dtype == bool else a.astype(np.complex128) for a in x))
    np.testing.assert_allclose(np.real(found), real, rtol=5e-14, atol=1e-16)


@pytest.mark.parametrize("name", [n for n in COMPUTED if OPS[n].derivative is not None])
def test_the_complex_step_of_a_row_is_its_derivative_in_the_op_table(name):
    """The rule, itself in float64, against the step: at points away from kinks."""
    row = OPS[name]
    rng = np.random.default_rng(2)
    low, high = (-0.9, 0.9) if name in UNIT else (0.1, 4.0) if name in (*POSITIVE, "pow") else (-4.0, 4.0)
    x = [rng.uniform(low, high, 40) for _ in range(row.arity)]
    x = [a > 0 if t == "b" else a for a, t in zip(x, row.types, strict=False)]
    given_arrays = [vk.array(a) for a in x]
    inputs = [a.node for a in given_arrays]
    numbers = [k for k, t in enumerate(row.types[: row.arity]) if t != "b"]

    def function(*chosen):
        whole = list(given_arrays)
        for k, a in zip(numbers, chosen, strict=True):
            whole[k] = a
        return vk.sum(whole[0]._map(name, *whole).astype("float32"))

    gradients = vk.grad(function, tuple(range(len(numbers))))(*(given_arrays[k] for k in numbers))
    value = given_arrays[0]._map(name, *given_arrays)
    slopes = wide.evaluate([g.node for g in gradients], dict(zip(inputs, x, strict=True)))
    steps = wide.prepare([value.node], inputs)
    for k, slope in zip(numbers, slopes, strict=True):
        moved = [a + 1j * STEP if j == k else a for j, a in enumerate(x)]
        wanted = np.imag(steps(*moved)[0]) / STEP
        if name == "stop_gradient":
            wanted = wanted * 0
        # Constants of the rules (ln 2, 2 / sqrt(pi)) are float32 values.
        np.testing.assert_allclose(slope, wanted, rtol=2e-7, atol=1e-12, err_msg=f"argument {k}")


# ---- all operations


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def both_passes(function, *xs):
    """Float results of a function, and the gradients of all arguments for weights that are arguments too."""
    values, pull = vk.vjp(lambda *a: [r for r in tree.flatten(function(*a))[0] if r is not None], *xs)
    seeds = [vk.array(normal(*v.shape, seed=7)) for v in values]
    return values, list(pull(seeds))


REFUSED = {"nextafter": "nextafter", "bits_int32": "bits_int32", "bits_uint32": "bits_uint32"}
"""Operations without a meaning, and the row to blame."""


@pytest.mark.parametrize("group", sorted({o.group for o in OPERATORS.values()}))
def test_every_operation_is_its_float64_twin_and_its_gradient_is_its_slope(group):
    for operator in OPERATORS.values():
        if operator.group == group and operator.name not in REFUSED:
            for case in operator.cases():
                check_case(case)


CONSTANTS = 1e-6
"""Constants are float32 values, and twins have their own; what is summed up or cancelled of them counts."""


def check_case(case):
    given_arrays = case.arrays()
    xs = arrays(*given_arrays)
    inputs = [x.node for x in xs]
    results = [r for r in tree.flatten(case.run(*xs))[0] if isinstance(r, vk.Array)]
    plan = wide.prepare([r.node for r in results], inputs, at=given_arrays)
    found = plan(*given_arrays)
    rounded = case.name in ("to_float16", "to_bfloat16")
    if case.operator.golden is not None and not rounded:
        for got, want in zip(found, tree.flatten(case.golden(*given_arrays))[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=CONSTANTS, atol=CONSTANTS, err_msg=case.name)
    chosen = case.differentiable
    if not chosen:
        return

    def function(*floats):
        whole = list(xs)
        for k, x in zip(chosen, floats, strict=True):
            whole[k] = x
        return [r for r in tree.flatten(case.run(*whole))[0] if isinstance(r, vk.Array) and r.dtype.category == "f"]

    values, gradients = both_passes(function, *(xs[k] for k in chosen))
    assert wide.analytic([v.node for v in values])
    slopes = wide.evaluate([g.node for g in gradients], dict(zip(inputs, given_arrays, strict=True)))
    rng = np.random.default_rng(5)
    for k, slope in zip(chosen, slopes, strict=True):
        direction = rng.standard_normal(slope.shape)
        moved = [a + 1j * STEP * direction if j == k else a for j, a in enumerate(map(np.asarray, given_arrays))]
        steps = [v for v, r in zip(plan(*moved), results, strict=True) if r.dtype.category == "f"]
        step = sum((np.imag(v) / STEP * normal(*v.shape, seed=7)).sum() for v in steps)
        size = np.abs(slope * direction).sum()
        assert abs(step - (slope * direction).sum()) <= CONSTANTS * size + 1e-12, (case.name, k)


def test_bits_of_what_is_not_differentiated_are_those_of_float32():
    x = vk.array([1.0, 2.0])
    y = x * vk.stop_gradient(vk.nextafter(x, x + 1.0))
    (found,) = wide.prepare([y.node], [x.node])(np.float64([1.0, 3.0]))
    assert found.tolist() == [1 + 2.0**-23, 3 * (3 + 2.0**-22)] and wide.analytic([y.node])


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_about_bits_is_refused_by_name(name):
    case = OPERATORS[name].case()
    xs = arrays(*case.arrays())
    y = case.run(*xs)
    with pytest.raises(ArgumentError, match=f"float64: {REFUSED[name]} of a computed float32 has no meaning"):
        wide.prepare([y.node], [x.node for x in xs])
    assert not wide.analytic([y.node])
    (on_data,) = wide.evaluate([y.node], {})  # of data they are exact
    assert (on_data == y.numpy()).all()


def test_bits_of_integers_and_random_words_are_exact():
    key = vk.random.key(7)
    draws = [vk.random.bits(key, (5,)), vk.random.uniform(key, (5,)), vk.random.normal(key, (5,))]
    words, uniform, numbers = wide.evaluate([d.node for d in draws], {})
    assert (words == draws[0].numpy()).all() and words.dtype == np.uint32
    assert (uniform == draws[1].numpy()).all()
    np.testing.assert_allclose(numbers, draws[2].numpy(), rtol=1e-5, atol=1e-6)
