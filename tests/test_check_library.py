"""The library of operators: nothing is missing, every case runs, and its float64 twin agrees with the reference."""

import functools
import hashlib
import inspect

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, optim, tracing, tree
from vkdnn.catalogue import NOT_OPERATIONS, catalogue
from vkdnn.check.library import GROUPS, OPERATORS, WITHOUT
from vkdnn.check.library.rows import TRUE, UNCHECKED_GRADIENTS, apply, differentiable, public_names
from vkdnn.check.operator import FLOATS
from vkdnn.check.targets import resolve
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.ir.ops import OPS
from vkdnn.ops import elementwise
from vkdnn.show import argument

CASES = {case.name: case for operator in OPERATORS.values() for case in operator.cases()}
BY_GROUP = {group.ROWS[0].group: group for group in GROUPS}
TWIN = 1e-5  # of the largest entry: what float32 may lose in a case of defaults


def test_an_operator_gives_its_arguments_its_results_and_the_truth():
    case = OPERATORS["softmax"].case(rows=2, columns=4, axis=0)
    (x,) = case.arrays()
    assert x.shape == (2, 4) and x.dtype == np.float32
    with vk.device("cpu"):
        np.testing.assert_allclose(case.run(x).numpy(), case.golden(x), rtol=1e-6)


# ---- nothing is missing


def test_every_operation_of_the_catalogue_has_a_row_or_a_reason():
    names = {entry.name for entry in catalogue()}
    assert names - set(OPERATORS) - set(WITHOUT) == set()
    assert names >= set(WITHOUT) and not set(WITHOUT) & set(OPERATORS)


def test_every_row_of_the_op_table_is_an_operator():
    names = {public_names().get(row, row) for row in OPS}
    known = {name.removesuffix(".integers") for name in OPERATORS}
    assert names - known == set()


def test_every_layer_and_optimizer_has_a_row():
    settings = {"GPTConfig", "Levers", "RAPTConfig", "TrainDefaults"}
    layers = {f"nn.{n}" for n in nn.__all__ if inspect.isclass(getattr(nn, n))} - {f"nn.{n}" for n in settings}
    steps = {f"optim.{n}" for n in ("AdamW", "Average", "Lion", "SGD")}
    assert (layers | steps) - set(OPERATORS) == set()
    others = {n for n in optim.__all__ if inspect.isclass(getattr(optim, n))} - {n.split(".")[1] for n in steps}
    assert others <= {"Accumulation", "Optimizer"}  # sums of gradients, and what all optimizers share


def test_names_are_unique_and_groups_are_one_module_each():
    rows = [row for group in GROUPS for row in group.ROWS]
    assert len({row.name for row in rows}) == len(rows) and len(CASES) == sum(len(row.cases()) for row in rows)
    assert all(len({row.group for row in group.ROWS}) == 1 for group in GROUPS) and len(BY_GROUP) == len(GROUPS)
    assert not {row.name.split(".")[0] for row in rows} & NOT_OPERATIONS


# ---- every case runs, and its twin agrees


def flat(results):
    return [np.asarray(r) for r in tree.flatten(results)[0]]


def computed(case, arrays, device):
    with device:
        results, structure = tree.flatten(case.run(*(vk.array(a) for a in arrays)))
        vk.realize(results)
        return [r.numpy() for r in results], structure


@pytest.mark.parametrize("group", BY_GROUP)
def test_twins_agree_with_the_reference(group):
    for case in (case for row in BY_GROUP[group].ROWS for case in row.cases()):
        arrays = case.arrays()
        found, structure = computed(case, arrays, vk.device("cpu"))
        golden = case.golden(*arrays)
        assert tree.flatten(golden)[1] == structure, case.name
        for got, want in zip(found, flat(golden), strict=True):
            assert got.shape == want.shape, case.name
            if got.dtype.kind in "biu":
                assert got.dtype == want.dtype and np.array_equal(got, want), case.name
                continue
            got, want = got.astype(np.float64), want.astype(np.float64)
            same = (got == want) | (np.isnan(got) & np.isnan(want))
            scale = np.abs(want[np.isfinite(want)]).max(initial=2.0**-126)
            worst = np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, want)).max(initial=0.0) / scale
            assert worst < TWIN, f"{case.name}: off by {worst:.2g} of the largest"


@pytest.mark.parametrize("group", BY_GROUP)
def test_gradients_reach_every_input_that_has_one(group):
    """And are refused for no case that claims to have them."""

    def loss(case, weights, *arrays):
        parts = [r for r in tree.flatten(case.run(*arrays))[0] if r.dtype.category == "f"]
        return sum((vk.sum(r.astype("float32") * w) for r, w in zip(parts, weights, strict=True)), 0.0)

    flat_slopes = {"sign", "floor", "ceil", "trunc", "round", "floor_divide", "copysign"}
    with vk.device("cpu"):
        for row in BY_GROUP[group].ROWS:
            case = row.case()
            if not case.differentiable or row.name in flat_slopes:
                continue
            arrays = [vk.array(a) for a in case.arrays()]
            results = [r for r in tree.flatten(case.run(*arrays))[0] if r.dtype.category == "f"]
            weights = [np.random.default_rng(k).uniform(0.5, 1.5, r.shape).astype("f") for k, r in enumerate(results)]
            slopes = vk.grad(functools.partial(loss, case, weights), tuple(case.differentiable))(*arrays)
            for k, slope in zip(case.differentiable, slopes, strict=True):
                assert np.abs(slope.numpy()).max() > 0, f"{case.name}, {row.inputs[k].name}"


def test_every_case_can_be_traced():
    """No function asks for a value, so that tools may put it inside vk.jit and vk.vjp; nothing is computed here."""
    with tracing.trace():
        for case in CASES.values():
            case.run(*(argument(f"x{k}", a.shape, str(a.dtype)) for k, a in enumerate(case.arrays())))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operators_take_the_storage_types_unless_they_say_so(dtype):
    with vk.device("cpu"):
        for row in OPERATORS.values():
            if row.halves:
                case = row.case(dtype=dtype)
                tree.flatten(case.run(*(vk.array(a) for a in case.arrays())))


# ---- cases


def test_arguments_are_the_same_in_every_process_and_differ_by_seed():
    case, other = OPERATORS["attention"].case(), OPERATORS["attention"].case(seed=1)
    first = case.arrays()
    assert all((a == b).all() for a, b in zip(first, case.arrays(), strict=True))
    assert all((a != b).any() for a, b in zip(first, other.arrays(), strict=True))
    digest = hashlib.sha256(b"".join(a.tobytes() for a in first)).hexdigest()
    assert digest.startswith("07c397e66ea9cf6b"), digest


def test_ranges_and_sizes_are_fields():
    case = OPERATORS["nn.CausalSelfAttention"].case(x_range=(2.0, 3.0), tokens=3, half=2)
    x, *parameters = case.arrays()
    assert x.shape == (2, 3, 5) and x.min() >= 2 and x.max() <= 3
    names = [i.name for i in case.operator.inputs[1:]]
    assert names == ["key.weight", "output.weight", "query.weight", "value.weight"]
    assert [p.shape for p in parameters] == [(5, 4), (8, 5), (5, 8), (5, 4)]
    with pytest.raises(ArgumentError, match=r"^field columns: nn.CausalSelfAttention has no such field"):
        OPERATORS["nn.CausalSelfAttention"].case(columns=3)
    with pytest.raises(ArgumentError, match=r"^field tokens: got -1, expected a size of 0 or more"):
        OPERATORS["nn.CausalSelfAttention"].case(tokens=-1)


@pytest.mark.parametrize("kind", FLOATS)
def test_kinds_of_values_keep_their_promise(kind):
    x = FLOATS[kind](np.random.default_rng(0), (40, 5), {})
    assert x.shape == (40, 5) and np.isfinite(x).all()
    assert kind not in ("positive", "unit") or x.min() > 0
    assert kind not in ("unit", "inside") or np.abs(x).max() < 1
    assert kind != "distinct" or (np.diff(np.sort(x.ravel())).min() > 1e-3 and np.abs(x).min() > 1e-3)


def test_forms_are_targets():
    assert [c.name for c in resolve(["attention"])] == ["attention"]
    (case,) = resolve(["attention.window"])
    assert case.fields["window"] == (1, 1) and case.operator.name == "attention"
    assert {c.name for c in resolve(["attention."])} > {"attention.sinks", "attention.window", "attention.packed.full"}
    assert {c.name for c in resolve([], every=True)} == set(CASES)


# ---- rows of the op table


def test_rows_are_computed_by_their_public_functions():
    assert set(public_names()) <= set(OPS) and public_names()["sub"] == "subtract"
    with vk.device("cpu"):
        assert apply("sub", vk.array([3.0]), 1.0).item() == 2.0
        assert apply("softmax_rescale", vk.array([1.0]), vk.array([1.0])).item() == 1.0


def test_rows_without_a_checked_gradient_are_those_without_one_or_named():
    for row in TRUE:
        operator = OPERATORS[public_names().get(row, row)]
        assert operator.gradient == (differentiable(OPS[row])), row
    assert set(UNCHECKED_GRADIENTS) == {"stop_gradient"}
    with pytest.raises(VkdnnError, match="nextafter has no derivative"):
        vk.grad(lambda x: vk.sum(elementwise.nextafter(x, 1.0)))(vk.array([0.5]))
