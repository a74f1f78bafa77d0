"""Products by NumPy's rules: matmul, dot, vdot, outer, tensordot, einsum; order, gradients, zero sizes, errors."""

import numpy as np
import pytest
from gradients import check_gradient

import vkdnn as vk
from vkdnn.check import gradcheck
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError, DtypeError, ShapeError


def uniform(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def close(both, functions, *arrays):
    """Each function of (namespace, *arrays): the same bits on both devices, and NumPy's values in float64 but for the
    rounding of float32 sums.
    """
    found = both(lambda *xs: [f(vk, *xs) for f in functions], *arrays)
    for k, (function, got) in enumerate(zip(functions, found, strict=True)):
        want = np.asarray(function(np, *(a.astype(np.float64) for a in arrays)))
        assert got.shape == want.shape and got.dtype == np.float32, (k, got.shape, want.shape)
        assert np.abs(got - want).max(initial=0.0) <= 2e-6 * max(1.0, np.abs(want).max(initial=0.0)), k


MATMULS = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((6, 2, 3), (5, 1, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((130, 1), (1, 2)),
    ((2, 300), (300, 2)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((5, 2, 3), (3, 0)),
    ((0, 2, 3), (1, 3, 4)),
    ((0,), (0,)),
    ((3,), (3, 0)),
]


def test_matmul_has_numpys_shapes(both):
    for first, second in MATMULS:
        close(both, [lambda v, a, b: v.matmul(a, b), lambda v, a, b: a @ b], uniform(*first), uniform(*second, seed=1))
    zero = both(lambda a, b: [a @ b], np.zeros((2, 0)), np.zeros((0, 3)))[0]
    assert bits_equal(zero, np.zeros((2, 3), np.float32)).all()  # +0 where nothing is added


DOTS = [
    ((), (3,)), ((3,), ()), ((), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)),
    ((2, 4, 3), (5, 3, 2)), ((2, 4, 3), (3,)), ((3,), (5, 3, 2)), ((0, 3), (3, 2)), ((2, 0), (0,)),
]  # fmt: skip


def test_dot_and_its_relatives(both):
    for first, second in DOTS:
        close(both, [lambda v, a, b: v.dot(a, b)], uniform(*first), uniform(*second, seed=1))
    a, b = uniform(2, 3, 4), uniform(4, 3, 2, seed=1)
    close(
        both,
        [
            lambda v, a, b: v.vdot(a, b),
            lambda v, a, b: v.outer(a, b),
            lambda v, a, b: v.outer(a[:0], b),
            lambda v, a, b: v.tensordot(a, b, 1),
            lambda v, a, b: v.tensordot(a, b, 0),
            lambda v, a, b: v.tensordot(a, b, ((1, 2), (1, 0))),
            lambda v, a, b: v.tensordot(a, b, ((2, 1), (0, 1))),
            lambda v, a, b: v.tensordot(a, b, (0, 2)),
            lambda v, a, b: v.tensordot(a, b, ((0, 1, 2), (2, 1, 0))),
            lambda v, a, b: v.tensordot(a, b[:, :, 0].T),
            lambda v, a, b: v.tensordot(a, a, 3),
            lambda v, a, b: v.trace(a[0] @ a[1].T),
        ],
        a, b,
    )  # fmt: skip
    integers = both(lambda i: [vk.outer(i, i)], [1, 2, 3])[0]
    assert integers.dtype == np.int32 and integers.tolist() == [[1, 2, 3], [2, 4, 6], [3, 6, 9]]


SUBSCRIPTS = [
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("ba", (2, 3)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij->ij", (3, 3, 2)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("iii->i", (3, 3, 3)),
    ("...ii->...i", (2, 3, 3)),
    ("...i->i...", (2, 3, 4)),
    ("...->...", (2, 3)),
    ("...", (2, 3)),
    ("i,i", (4,), (4,)),
    ("i,j", (2,), (3,)),
    ("i,j->ji", (2,), (3,)),
    (",ij", (), (2, 3)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("ijkl,lkm->imj", (2, 3, 4, 5), (5, 4, 6)),
    ("ij,jk->k", (2, 3), (3, 4)),
    ("ij,jk->", (2, 3), (3, 4)),
    ("ij,k->k", (2, 3), (4,)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (6, 3, 4)),
    ("...ij,jk", (5, 2, 3), (3, 4)),
    ("i...,i...->...", (3, 2, 4), (3, 4)),
    ("i...j,j->i...", (2, 3, 4), (4,)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,ij,j", (2,), (2, 3), (3,)),
    ("ab,bc,ca->", (2, 3), (3, 4), (4, 2)),
    ("ij,ik,il->jkl", (4, 2), (4, 3), (4, 2)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,ij->ij", (2, 1), (1, 3)),
    ("Ab,bA->A", (2, 3), (3, 2)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
    ("ij,jk->ik", (2, 0), (0, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
    ("ij->i", (2, 0)),
    ("ii->i", (0, 0)),
    ("i,i->", (400,), (400,)),
]


@pytest.mark.parametrize("part", range(4))
def test_einsum_has_numpys_values(both, part):
    for subscripts, *shapes in SUBSCRIPTS[part::4]:
        arrays = [uniform(*shape, seed=k) for k, shape in enumerate(shapes)]
        close(both, [lambda v, *xs, s=subscripts: v.einsum(s, *xs)], *arrays)


def test_einsum_of_integers_where_nothing_is_summed(both):
    found = both(
        lambda i: [vk.einsum("ij->ji", i), vk.einsum("ii->i", i), vk.einsum("ij,i->ij", i, i[0])],
        np.eye(3, dtype=int) * 5,
    )
    assert [f.dtype for f in found] == [np.int32] * 3 and found[1].tolist() == [5, 5, 5]
    assert found[2].tolist() == [[25, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_einsum_contracts_from_left_to_right(both):
    """The order belongs to the subscripts: the same bits as the products written out, whatever is cheaper."""
    a, b, c = uniform(300, 40), uniform(40, 50, seed=1), uniform(50, 2, seed=2)
    found = both(
        lambda a, b, c: [
            vk.einsum("ij,jk,kl->il", a, b, c), (a @ b) @ c,
            vk.einsum("ij,jk->", a, b), vk.vdot(vk.sum(a, 0), vk.sum(b, 1)),
            vk.einsum("ijk,kjl->il", vk.reshape(a, (10, 30, 40)), vk.repeat(vk.reshape(b, (40, 5, 10))[:, :1], 30, 1)),
            vk.reshape(a, (10, 1200)) @ vk.reshape(vk.tile(vk.reshape(b, (40, 5, 10))[:, 0], (30, 1, 1)), (1200, 10)),
        ],
        a, b, c,
    )  # fmt: skip
    for k in range(0, len(found), 2):
        assert bits_equal(found[k], found[k + 1]).all(), k


def test_products_take_their_order_from_k_alone(both):
    """tensordot and dot are the matrix product of the flattened axes, bit for bit."""
    a, b = uniform(3, 20, 30), uniform(20, 30, 4, seed=1)
    first, second, third = both(
        lambda a, b: [vk.tensordot(a, b), a.reshape(3, 600) @ b.reshape(600, 4), vk.einsum("abc,bcd", a, b)], a, b
    )
    assert bits_equal(first, second).all() and bits_equal(first, third).all()


def test_gradients(both):
    a, b, c = uniform(2, 3), uniform(3, 4, seed=1), uniform(4, 2, seed=2)
    x, y = uniform(2, 3, 4), uniform(4, 3, 2, seed=1)
    check_gradient(vk.matmul, uniform(5, 1, 2, 3), uniform(2, 3, 2), both=both)
    check_gradient(lambda a, b, c: vk.einsum("ij,jk,ki->i", a, b, c), a, b, c, both=both)
    cases = [(vk.matmul, *shapes) for shapes in MATMULS[:12]] + [(vk.dot, *shapes) for shapes in DOTS[1:10]]
    cases += [(lambda *z, s=subscripts: vk.einsum(s, *z), *shapes) for subscripts, *shapes in SUBSCRIPTS[:40]]
    for function, *shapes in cases:
        arrays = [uniform(*shape, seed=k) for k, shape in enumerate(shapes)]
        gradcheck(function, arrays, device="cpu", mode="fast", directions=3).raise_if_failed()
    for axes in (0, 1, ((1, 2), (1, 0)), (0, 2)):
        gradcheck(lambda x, y, n=axes: vk.tensordot(x, y, n), [x, y], device="cpu", mode="fast").raise_if_failed()


with vk.device("cpu"):
    A, V = vk.array(np.ones((2, 3), np.float32)), vk.array(np.ones(3, np.float32))
ERRORS = [
    (lambda: A @ A, "matmul: shapes .* do not fit: 3 is not 2"),
    (lambda: A @ 3.0, "matmul: shapes .* use [*] for scalars"),
    (lambda: vk.matmul(vk.zeros((2, 2, 3)), vk.zeros((3, 3, 4))), "matmul: shapes .* do not broadcast"),
    (lambda: vk.dot(A, A), "dot: shapes .* do not fit"),
    (lambda: vk.vdot(A, V), "vdot: shapes .* differ in size"),
    (lambda: vk.tensordot(A, A, 3), "tensordot: axes is 3, expected 0 to 2"),
    (lambda: vk.tensordot(A, A, "a"), "tensordot: axes: got 'a'"),
    (lambda: vk.tensordot(A, A, (0, None)), "tensordot: axes is"),
    (lambda: vk.tensordot(A, A, ((0, 1), 0)), "tensordot: 2 axes of a and 1 of b"),
    (lambda: vk.tensordot(A, V, (5, 0)), "tensordot: a: axis 5 does not exist"),
    (lambda: vk.tensordot(A, A, ((0, 0), (0, 1))), "tensordot: a: axis .* twice"),
    (lambda: vk.tensordot(A, V, (0, 0)), "tensordot: shapes .* do not fit"),
    (lambda: vk.einsum(A, A), "einsum: subscripts is Array"),
    (lambda: vk.einsum("ij,jk", A), "einsum: .* names 2 operands, but 1 are given"),
    (lambda: vk.einsum("ijk", A), "einsum: 'ijk' of .* names 3 axes, but operand 0 has 2"),
    (lambda: vk.einsum("i", A), "einsum: 'i' of .* names 1 axes, but operand 0 has 2"),
    (lambda: vk.einsum("i...jk", A), "einsum: .* names 3 axes, but operand 0 has 2"),
    (lambda: vk.einsum("ij->ik", A), "einsum: 'k' of the result is in no operand"),
    (lambda: vk.einsum("ij->ii", A), "einsum: 'ii' of .* names an axis of the result twice"),
    (lambda: vk.einsum("i1->i", A), "einsum: '1' in"),
    (lambda: vk.einsum("i.->i", A), "einsum: '.' in"),
    (lambda: vk.einsum("i......->i", A), "einsum: '.' in"),
    (lambda: vk.einsum("ij->i->j", A), "einsum: '[-]' in"),
    (lambda: vk.einsum("...j->j", A), "einsum: .* the result lacks '...'"),
    (lambda: vk.einsum("ii", A), "einsum: 'i' names axes 0 and 1 of an operand of shape"),
    (lambda: vk.einsum("ij,jk", A, A), "einsum: 'j' has lengths 3 and 2"),
    (lambda: vk.einsum("..., ...", A, vk.zeros((2, 2))), "einsum: axis 1 from the end of '...' has lengths 3 and 2"),
    (lambda: vk.einsum("i", "a"), "einsum: operand 0: got 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ERRORS, ids=range(len(ERRORS)))
def test_bad_arguments_are_named(make, message):
    with vk.device("cpu"), pytest.raises(ArgumentError, match=message):
        make()


def test_products_are_of_floats():
    i = vk.array([[1, 2], [3, 4]])
    for make in (lambda: i @ i, lambda: vk.dot(i, i), lambda: vk.vdot(i, i), lambda: vk.einsum("ij,jk", i, i)):
        with pytest.raises(DtypeError, match="got int32 and int32, expected float32"):
            make()
    with pytest.raises(ShapeError):
        vk.dot(vk.zeros((2, 3)), vk.zeros((2, 3)))
