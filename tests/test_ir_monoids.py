"""Monoids: identities change no bit, merges are traced once for every reader, and what they say is so."""

import numpy as np
import pytest

from vkdnn.check.hard import HARD_FLOATS, HARD_INTS, bits_equal, random_bits
from vkdnn.codegen import merges
from vkdnn.dtypes import float32, int32, uint32
from vkdnn.ir.monoids import MONOIDS, merger, traced
from vkdnn.numerics.flush import exact, flush

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = {"n": (float32, int32, uint32), "f": (float32,), "i": (int32,)}
VARIANTS = [(name, kind) for name, row in MONOIDS.items() for kind in DTYPES[row.fields[0].kind]]


def dtypes_of(name, first):
    return tuple(first if f.kind == "n" else DTYPES[f.kind][0] for f in MONOIDS[name].fields)


def elements(name, first):
    """Elements of hard values; counts and sums of exponentials as folds make them, positions all different."""
    rng = np.random.default_rng(3)
    floats = flush(np.concatenate([HARD_FLOATS, random_bits(2000, 4)]))
    n = floats.size
    positive = np.abs(rng.permutation(floats))
    given = {
        "value": floats if first is float32 else np.resize(HARD_INTS, n).view(first.numpy),
        "index": rng.permutation(n).astype(np.int32),
        "top": floats,
        "total": np.where(np.isfinite(positive), positive, np.float32(1)),
        "count": rng.integers(1, 40000, n).astype(np.float32),
        "mean": floats,
        "rest": np.where(np.isfinite(floats), floats * np.float32(2.0**-20), 0),
        "squares": np.where(np.isnan(positive), np.float32(2), positive),
    }
    return tuple(given[f.name] for f in MONOIDS[name].fields)


def identity(name, first, n):
    kinds = zip(MONOIDS[name].fields, dtypes_of(name, first), strict=True)
    return tuple(np.full(n, f.identity[d.category], d.numpy) for f, d in kinds)


@pytest.mark.parametrize(("name", "first"), VARIANTS, ids=str)
@pytest.mark.parametrize("software", [False, True], ids=["hardware", "software"])
def test_an_identity_on_either_side_changes_no_bit(name, first, software):
    merge, given = merger(name, dtypes_of(name, first)), elements(name, first)
    nothing = identity(name, first, given[0].size)

    def check():
        for merged in (merge(nothing, given), merge(given, nothing)):
            for field, want, got in zip(MONOIDS[name].fields, given, merged, strict=True):
                assert bits_equal(want, np.broadcast_to(got, want.shape)).all(), field.name
        for want, got in zip(nothing, merge(nothing, nothing), strict=True):
            assert bits_equal(want, got).all()

    if software:
        check()
    else:
        with exact():
            check()


@pytest.mark.parametrize(("name", "first"), VARIANTS, ids=str)
def test_a_row_of_the_op_table_is_printed_as_it_is_and_all_else_as_a_struct(name, first):
    printed = merges.printed(name, dtypes_of(name, first))
    keyed = name in ("maximum", "minimum") and first is float32  # folded as integers
    assert bool(printed.text) == (len(MONOIDS[name].fields) > 1) == (bool(printed.fields) and not keyed)
    element = printed.element(["x", "y", "z", "w"][: len(MONOIDS[name].fields)])
    assert element.startswith(f"{name}_" if printed.text else "order_of" if keyed else "x")
    parameters, results = traced(name, dtypes_of(name, first))
    assert traced(name, dtypes_of(name, first))[1] is results  # traced once
    assert [r.dtype for r in results] == [p.dtype for p in parameters[: len(results)]]


def test_a_merge_costs_what_it_computes():
    assert [merges.flops(name, (float32,)) for name in ("add", "mul", "maximum", "minimum")] == [1] * 4
    assert merges.flops("add", (int32,)) == 1
    assert merges.flops("logsumexp", (float32, float32)) > 10 < merges.flops("moments", (float32,) * 4)


def test_positions_order_nan_above_all_and_take_the_first_at_ties():
    merge = merger("argmax", (float32, int32))
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    cases = [  # a, i, b, j: which is taken
        ((1, 5), (2, 3), 3), ((2, 5), (2, 3), 3), ((2, 3), (2, 5), 3), ((0.0, 7), (-0.0, 2), 2),
        ((nan, 9), (inf, 1), 9), ((inf, 1), (nan, 9), 9), ((nan, 9), (nan, 4), 4), ((-inf, 6), (-inf, 8), 6),
    ]  # fmt: skip
    for (a, i), (b, j), taken in cases:
        fields = [np.array([x], t) for x, t in ((a, np.float32), (i, np.int32), (b, np.float32), (j, np.int32))]
        with exact():
            value, index = merge(fields[:2], fields[2:])
        assert index[0] == taken
        assert bits_equal(value, fields[0] if taken == i else fields[2]).all()


def test_sums_of_exponentials_meet_at_the_larger_maximum():
    merge = merger("logsumexp", (float32, float32))
    a, s = np.array([0, 3, -np.inf, -np.inf, np.inf, np.inf, np.nan, 1], np.float32), np.full(8, 2, np.float32)
    b, t = np.array([3, 0, -np.inf, 1, np.inf, 0, 1, 1], np.float32), np.full(8, 5, np.float32)
    with exact():
        top, total = merge((a, s), (b, t))
    assert bits_equal(top, np.array([3, 3, -np.inf, 1, np.inf, np.inf, np.nan, 1], np.float32)).all()
    shrink = np.exp(-3.0)
    wanted = np.array([5 + 2 * shrink, 2 + 5 * shrink, 7, 5, 7, 2, np.nan, 7], np.float32)
    np.testing.assert_allclose(total, wanted, rtol=2e-7)
