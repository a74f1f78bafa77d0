"""Accuracy: the rules, the plain float32 baseline, and words for where failures sit."""

import ml_dtypes
import numpy as np
import pytest

from vkdnn.check.accuracy.analysis import where
from vkdnn.check.accuracy.plain import plainly
from vkdnn.check.accuracy.rules import judge
from vkdnn.check.operator import Input, Operator
from vkdnn.errors import ArgumentError

TRUE = np.linspace(-2, 2, 401)


def test_element_forgives_a_share_but_no_nan():
    got = TRUE.astype(np.float32)
    assert judge("element", got, TRUE).ok
    got[:2] *= 1.01
    found = judge("element", got, TRUE)
    assert found.ok and found.figures.over == 2 and found.wrong[:2].all()
    got[2] *= 1.01
    found = judge("element", got, TRUE)
    assert not found.ok and "0.7% of the elements" in found.reason
    got = TRUE.astype(np.float32)
    got[200] = 2.4e-5
    assert judge("element", got, TRUE).ok and not judge("element", got, TRUE).wrong.any()
    got[200] = np.nan
    found = judge("element", got, TRUE)
    assert not found.ok and found.figures.special == 1 and found.wrong[200]


@pytest.mark.parametrize("rule", ["element", "twice-plain"])
@pytest.mark.parametrize(("got", "true", "good"), [
    (np.nan, np.nan, True), (np.nan, 1.0, False), (1.0, np.nan, False), (np.inf, np.inf, True), (np.inf, 1e39, True),
    (np.inf, -np.inf, False), (3e38, np.inf, False), (0.0, 1e-39, True), (-0.0, 0.0, True), (np.nan, np.inf, False),
])  # fmt: skip
def test_special_values(rule, got, true, good):
    found = np.array([got, *[1.0] * 999], np.float32)
    wanted = np.array([true, *[1.0] * 999])
    assert judge(rule, found, wanted, found).ok == good


def test_twice_plain_is_about_the_largest_error_and_the_mean():
    rng = np.random.default_rng(0)
    true = rng.standard_normal(1000)
    plain = (true + 1e-5 * rng.standard_normal(1000)).astype(np.float32)

    def ok(got):
        return judge("twice-plain", got.astype(np.float32), true, plain).ok

    assert ok(true + 1.5e-5 * rng.standard_normal(1000))
    assert not ok(true + 4e-5 * rng.standard_normal(1000))
    assert not ok(true + 2.5e-5), "no element is far off, but all are"
    one = true.copy()
    one[7] += 1e-4
    found = judge("twice-plain", one.astype(np.float32), true, plain)
    assert not found.ok and np.flatnonzero(found.wrong).tolist() == [7]
    with pytest.raises(ArgumentError, match="needs the plain"):
        judge("twice-plain", plain, true)


def test_errors_below_a_few_units_of_the_largest_entry_always_pass():
    true = np.array([1.0, 0.001])
    got = np.array([1.0 + 2.0**-22, 0.001], np.float32)
    assert judge("twice-plain", got, true, true.astype(np.float32)).ok
    for factor in (0.5, 2.0, 8.0):  # the floor is no multiple of the factor
        for units, good in ((7, True), (9, False)):
            off = np.array([1.0 + units * 2.0**-23, 0.001]).astype(np.float32)
            assert judge("twice-plain", off, off.astype(np.float64) * [0, 1] + [1.0, 0.0], true.astype(np.float32),
                         factor=factor).ok == good  # fmt: skip
    half = true.astype(ml_dtypes.bfloat16)
    assert judge("twice-plain", half, true, true.astype(np.float32)).ok


def test_bits_and_integers():
    a = np.array([0.0, np.nan, 1.0], np.float32)
    assert judge("bits", a, a.astype(np.float64), reference=a.copy()).ok
    found = judge("bits", np.array([-0.0, np.nan, 1.0], np.float32), a.astype(np.float64), reference=a)
    assert not found.ok and found.wrong.tolist() == [True, False, False]
    n = np.arange(1000, dtype=np.int32)
    other = n.copy()
    other[5] = 7
    assert judge("twice-plain", n, n.astype(np.int64)).ok
    assert not judge("twice-plain", other, n).ok and judge("element", other, n).ok
    assert not judge("element", n[:-1], n).ok, "another shape"


# ---- the plain baseline


def test_plain_results_are_float32_whatever_the_twin_brings_along():
    def twin(x):
        scale = np.float64(0.1)  # no Python number: it would make everything float64
        total = np.zeros(x.shape[0])
        for column in range(x.shape[1]):
            total += x[:, column] * scale
        return total, np.einsum("ij,ij->i", x, x * scale), np.mean(x * np.arange(3.0), axis=1)

    operator = Operator("twin", "mine", (Input("x", "rows 3"),), lambda x: x, twin, {"rows": 50})
    case = operator.case()
    arrays = case.arrays()
    x = arrays[0]
    total, product, mean = plainly(case, arrays)
    assert {total.dtype, product.dtype, mean.dtype} == {np.dtype(np.float32)}
    scale = np.float32(0.1)
    first = x[:, 0] * scale
    wanted = (first + x[:, 1] * scale) + x[:, 2] * scale
    assert np.array_equal(total, wanted)
    assert np.array_equal(mean, np.mean(x * np.arange(3, dtype=np.float32), axis=1))
    assert 0 < np.abs(total - case.golden(*arrays)[0]).max() < 1e-6


# ---- where failures sit


@pytest.mark.parametrize(
    ("shape", "index", "said"),
    [
        ((4, 6), np.s_[3, 4:], "all failures in heads = 3, keys >= 4; there everything fails"),
        ((4, 6), np.s_[:, :2], "all failures in keys <= 1; there everything fails"),
        ((4, 6), np.s_[1:3, 2], "all failures in 1 <= heads <= 2, keys = 2; there everything fails"),
        ((4, 9), np.s_[:, 1::2], "all failures in keys = 1 modulo 2; there everything fails"),
        ((4, 9), np.s_[:, [0, 5]], "all failures in keys in 0, 5; there everything fails"),
        ((4, 6), np.s_[:, :], "every element fails"),
        ((4, 6), ([0, 1], [4, 5]), "all failures in heads <= 1, keys >= 4; there 50.0% of the elements fail"),
        ((5, 5), np.tril_indices(5, -1), "heads >= 1, keys <= 3, keys - heads <= -1; there everything fails"),
        ((5, 6), (range(5), range(1, 6)), "keys >= 1, keys - heads = 1; there everything fails"),
    ],
)
def test_failures_by_axis(shape, index, said):
    wrong = np.zeros(shape, bool)
    wrong[index] = True
    assert where(wrong, ["heads", "keys"]).endswith(said)
