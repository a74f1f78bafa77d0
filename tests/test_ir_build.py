"""Building expressions: hash-consing, constants by their bits, dtype rules, errors."""

import numpy as np
import pytest

from vkdnn.dtypes import ALL, bool_, float32, int32, uint32
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.fusion.schedule import schedule
from vkdnn.ir import build
from vkdnn.ir.node import const, const_value, leaf, toposort
from vkdnn.ir.ops import OPS
from vkdnn.kernels.base import Target


def test_the_same_expression_is_the_same_node():
    x = leaf((2, 3), float32)
    assert x * 2 + 1 is x * 2 + 1
    assert x * 2 + 1 is not x * 2 + 1.5
    assert leaf((2, 3), float32) is not x
    assert build.permute(build.permute(x, (1, 0)), (1, 0)) is x
    assert build.reshape(build.reshape(x, (6,)), (2, 3)) is x


def test_an_alias_is_apart():
    x = leaf((2,), float32)
    first, second = build.alias(x), build.alias(x)
    assert first is not second and first is not x
    assert first + 1 is not second + 1


@pytest.mark.parametrize(
    ("a", "b"), [(0.0, -0.0), (1000015.0, 1000025.0), (1.0, np.nextafter(np.float32(1), np.float32(2)))]
)
def test_close_constants_never_share_a_node_or_a_kernel(a, b):
    x = leaf((4,), float32)
    assert const(a, float32) is not const(b, float32)
    texts, sources = [], []
    for value in (a, b):
        (step,) = schedule([x * float(value)])
        texts.append(step.spec.text())
        sources.append("\n".join(step.spec.context(step.spec.schedules(Target(True))[0])["statements"]))
    assert texts[0] != texts[1]
    assert sources[0] != sources[1]


def test_constants_are_flushed_and_folded():
    assert const_value(const(1e-40, float32)) == 0
    assert np.signbit(const_value(const(-1e-40, float32)))
    assert build.apply("add", 1.5, 2.0) is const(3.5, float32)
    assert build.apply("mul", 2**-100, 2**-100) is const(0.0, float32)
    assert np.isnan(const_value(build.apply("sqrt", -1.0)))


def test_a_constant_beyond_float32_is_infinite_without_a_warning(recwarn):
    assert const(1e40, float32) is const(np.inf, float32)
    assert not recwarn.list


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40, 2**70])
def test_integers_that_do_not_fit_are_refused(value):
    with pytest.raises(DtypeError, match=str(abs(value))):
        build.apply("add", leaf((2,), int32), value)


def test_toposort_puts_arguments_first():
    x = leaf((2,), float32)
    order = toposort([x * x + x])
    assert [n.kind for n in order] == ["leaf", "map", "map"] and order[0] is x


# ---- dtypes


@pytest.mark.parametrize("a", ALL, ids=str)
@pytest.mark.parametrize("b", ALL, ids=str)
def test_dtypes_meet_as_bool_integer_float(a, b):
    x, y = leaf((2,), a), leaf((2,), b)
    if {a, b} == {int32, uint32}:
        with pytest.raises(DtypeError, match="add: int32 and uint32 do not mix"):
            x + y
        return
    both = {a, b}
    floats = {d for d in both if d.category == "f"}  # one float dtype stays, several meet in float32
    common = (floats.pop() if len(floats) == 1 else float32) if floats else uint32 if uint32 in both else int32
    assert (x + y).dtype is common
    assert (x < y).dtype is bool_
    assert build.apply("where", leaf((2,), bool_), x, y).dtype is (bool_ if both == {bool_} else common)
    assert (x / y).dtype is (common if common.category == "f" else float32)


def test_python_numbers_adapt_to_arrays():
    assert (leaf((2,), int32) + 1).dtype is int32
    assert (leaf((2,), uint32) + 1).dtype is uint32
    assert (leaf((2,), int32) + 1.0).dtype is float32
    assert (leaf((2,), float32) + 1).dtype is float32
    assert (leaf((2,), bool_) + True).dtype is int32
    assert build.as_node(True).dtype is bool_


def test_rows_refuse_what_they_do_not_take():
    x, i, flag = leaf((2,), float32), leaf((2,), int32), leaf((2,), bool_)
    with pytest.raises(DtypeError, match="bitwise_and: got float32, expected int32, uint32, bool"):
        x & i
    with pytest.raises(DtypeError, match="left_shift: got bool, expected int32, uint32"):
        flag << flag
    with pytest.raises(DtypeError, match="where: got float32, expected bool"):
        build.apply("where", x, x, x)
    with pytest.raises(ArgumentError, match="exp: got 2 arguments, expected 1"):
        build.apply("exp", x, x)
    with pytest.raises(ArgumentError, match="add: got str"):
        build.apply("add", x, "2")
    assert build.apply("exp", i).dtype is float32


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.arity > 1])
def test_shapes_that_do_not_broadcast_name_the_operation(name):
    op = OPS[name]
    kinds = {"f": float32, "n": float32, "a": float32, "b": bool_, "x": int32, "i": int32, "u": uint32}
    operands = [leaf((2 + k % 2,), kinds[letter]) for k, letter in enumerate(op.types[: op.arity])]
    with pytest.raises(ShapeError, match=rf"{name}: shapes \(2,\) and \(3,\)"):
        build.apply(name, *operands)


# ---- shapes


def test_views_name_what_does_not_fit():
    x = leaf((2, 3), float32)
    with pytest.raises(ShapeError, match=r"reshape: \(2, 3\) \(6 elements\) does not fit \(4, -1\)"):
        build.reshape(x, (4, -1))
    with pytest.raises(ShapeError, match="reshape"):
        build.reshape(x, (-1, -1))
    with pytest.raises(ShapeError, match="permute: axes"):
        build.permute(x, (0, 0))
    with pytest.raises(ShapeError, match="permute: axis 2 does not exist in an array of 2 axes"):
        build.permute(x, (0, 2))
    with pytest.raises(ShapeError, match=r"broadcast_to: an array of shape \(2, 3\) cannot become \(2, 1\)"):
        build.broadcast_to(x, (2, 1))
    with pytest.raises(ShapeError, match="pad: got"):
        build.pad(x, (1,), (1,))


def test_products_and_reductions_name_what_does_not_fit():
    x, i = leaf((2, 3), float32), leaf((2, 3), int32)
    with pytest.raises(ShapeError, match=r"matmul: shapes \(2, 3\) and \(2, 3\) do not fit"):
        build.matmul(x, x)
    with pytest.raises(DtypeError, match="matmul: got int32 and float32"):
        build.matmul(i, build.permute(x, (1, 0)))
    with pytest.raises(DtypeError, match="add over axes: got bool, expected float32, int32 or uint32"):
        build.fold("add", leaf((2, 3), bool_), (0,))
    with pytest.raises(ShapeError, match="add: axis 2 does not exist"):
        build.fold("add", x, (2,))
    with pytest.raises(ShapeError, match=r"maximum: no elements along axes \(1,\) of shape \(2, 0\)"):
        build.fold("maximum", leaf((2, 0), float32), (1,))
    with pytest.raises(DtypeError, match="take: index is float32"):
        build.take(x, x)
    with pytest.raises(ShapeError, match="gather: index"):
        build.gather(x, leaf((3, 3), int32), 1)
