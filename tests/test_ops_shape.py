"""Shape work by NumPy's rules: views, joining, creation, diagonals, picking; bits, gradients, errors."""

import numpy as np
import pytest
from gradients import check_gradient

import vkdnn as vk
from vkdnn import tree
from vkdnn.check import gradcheck
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.errors import ArgumentError, DtypeError, ShapeError

X = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4) / 4
EMPTY = np.zeros((2, 0, 4), np.float32)


def flat(value):
    return tree.flatten(list(value) if isinstance(value, (list, tuple)) else value)[0]


def follow_numpy(both, functions, *arrays):
    """Each function of (namespace, *arrays) gives NumPy's result on both devices, to the bit."""
    found = iter(both(lambda *xs: [r for f in functions for r in flat(f(vk, *xs))], *arrays))
    for k, function in enumerate(functions):
        for want in flat(function(np, *arrays)):
            want, got = np.asarray(want), next(found)
            dtype = {"float64": "float32", "int64": "int32"}.get(str(want.dtype), str(want.dtype))
            assert got.shape == want.shape and str(got.dtype) == dtype, (k, got.shape, want.shape, got.dtype)
            assert bits_equal(got, want.astype(dtype)).all(), (k, got, want)


VIEWS = [
    lambda v, x: v.reshape(x, (-1,)),
    lambda v, x: v.transpose(x),
    lambda v, x: v.transpose(x, (1, 2, 0)),
    lambda v, x: v.transpose(x, (-1, 0, 1)),
    lambda v, x: v.swapaxes(x, 0, -1),
    lambda v, x: v.moveaxis(x, 0, -1),
    lambda v, x: v.moveaxis(x, (0, 1), (2, 0)),
    lambda v, x: v.moveaxis(x, [-1], [0]),
    lambda v, x: v.expand_dims(x, 1),
    lambda v, x: v.expand_dims(x, (0, -1)),
    lambda v, x: v.squeeze(v.expand_dims(x, (0, 2))),
    lambda v, x: v.squeeze(v.expand_dims(x, (0, 2)), (2,)),
    lambda v, x: v.squeeze(v.expand_dims(x, 0), 0),
    lambda v, x: v.flip(x),
    lambda v, x: v.flip(x, 1),
    lambda v, x: v.flip(x, (0, -1)),
    lambda v, x: v.flip(x, ()),
    lambda v, x: v.broadcast_to(v.expand_dims(x, 1), (5, x.shape[0], 6, *x.shape[1:])),
    lambda v, x: v.tile(x, 2),
    lambda v, x: v.tile(x, (2, 1, 3)),
    lambda v, x: v.tile(x, (2, 1, 1, 2)),
    lambda v, x: v.tile(x, (0, 1, 2)),
    lambda v, x: v.repeat(x, 3, 1),
    lambda v, x: v.repeat(x, 2),
    lambda v, x: v.repeat(x, 0, -1),
    lambda v, x: v.repeat(x, [1, 0, 2, 1], 2),
]
JOINS = [
    lambda v, x: v.concatenate([x, x * 2, x[:, :1]], 1),
    lambda v, x: v.concatenate([x, x], -1),
    lambda v, x: v.concatenate([x, x[0]], None),
    lambda v, x: v.concatenate([x]),
    lambda v, x: v.concatenate([x[:, :, :0], x, x[:, :, :0], x], 2),
    lambda v, x: v.concatenate(x, 0),
    lambda v, x: v.stack([x, x + 1]),
    lambda v, x: v.stack([x, x + 1], -1),
    lambda v, x: v.stack([x, x + 1], 1),
    lambda v, x: v.split(x, 2),
    lambda v, x: v.split(x, 2, -1),
    lambda v, x: v.split(x, [1, 3], 2),
    lambda v, x: v.split(x, [3, 2, 9, -1], 2),
    lambda v, x: v.array_split(x, 3, 2),
    lambda v, x: v.array_split(x, 7, 0),
    lambda v, x: v.pad(x, 1),
    lambda v, x: v.pad(x, (1, 2)),
    lambda v, x: v.pad(x, ((0, 1), (2, 0), (0, 0))),
    lambda v, x: v.pad(x, ((1, 0),), constant_values=3),
    lambda v, x: v.pad(x, [(0, 0), (1, 1), (0, 2)], "constant", constant_values=-2.5),
    lambda v, x: v.pad(x, 0),
    lambda v, x: v.pad(x, ((0, 0), (0, 0), (1, 2)), constant_values=-0.0),
    lambda v, x: v.pad(x, 1, constant_values=np.nan),
    lambda v, x: v.roll(x, 1),
    lambda v, x: v.roll(x, -7),
    lambda v, x: v.roll(x, 1, 0),
    lambda v, x: v.roll(x, (1, -2), (0, 2)),
    lambda v, x: v.roll(x, 5, (1, 2)),
    lambda v, x: v.roll(x, (1, 1), 2),
    lambda v, x: v.roll(x, 0, 1),
    lambda v, x: v.where(x > 2, x, 0.0),
]
DIAGONALS = [
    lambda v, x: v.diagonal(x),
    lambda v, x: v.diagonal(x, 1),
    lambda v, x: v.diagonal(x, -1, 2, 1),
    lambda v, x: v.diagonal(x, 2, -2, -1),
    lambda v, x: v.diagonal(x, 3, 1, 2),
    lambda v, x: v.diagonal(x, -9, 1, 2),
    lambda v, x: v.diag(x[0]),
    lambda v, x: v.diag(x[0], -1),
    lambda v, x: v.diag(x[0, :, 1]),
    lambda v, x: v.diag(x[0, :, 1], 2),
    lambda v, x: v.diag(x[0, :, 1], -1),
    lambda v, x: v.tril(x),
    lambda v, x: v.tril(x, 1),
    lambda v, x: v.tril(x, -3),
    lambda v, x: v.triu(x),
    lambda v, x: v.triu(x, 2),
    lambda v, x: v.triu(x, -1),
]


@pytest.mark.parametrize("functions", [VIEWS, JOINS, DIAGONALS], ids=["views", "joins", "diagonals"])
def test_results_are_numpys(both, functions):
    follow_numpy(both, functions, X)


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.uint32])
def test_other_dtypes(both, dtype):
    x = (np.arange(24).reshape(2, 3, 4) % 3).astype(dtype)
    follow_numpy(
        both,
        [
            VIEWS[6], VIEWS[15], VIEWS[19], VIEWS[25], *DIAGONALS[:3], DIAGONALS[9], DIAGONALS[11],
            lambda v, x: v.concatenate([x, x[:, ::-1]], 1), lambda v, x: v.stack([x, x[::-1]], 1),
            lambda v, x: v.pad(x, 1), lambda v, x: v.pad(x, 1, constant_values=1), lambda v, x: v.roll(x, 1, 1),
        ],
        x,
    )  # fmt: skip


def test_hard_values_pass_through_unchanged(both):
    """No row of these functions rounds: NaN, infinities and zeros of both signs come out as they went in."""
    x = np.resize(HARD_FLOATS, (2, HARD_FLOATS.size)).astype(np.float32)
    functions = [
        lambda v, x: v.roll(x, 3, 1),
        lambda v, x: v.concatenate([x, v.flip(x, 1)], 0),
        lambda v, x: v.pad(x, 1),
        lambda v, x: v.diagonal(x, 2),
        lambda v, x: v.repeat(x, 2, 0),
        lambda v, x: v.triu(x),
        lambda v, x: v.diag(x[0, :9], 1),
    ]
    with np.errstate(all="ignore"):
        follow_numpy(both, functions, vk.array(x).numpy())


@pytest.mark.parametrize("shape", [(2, 0, 4), (0, 3, 4), (0, 0, 0)])
def test_arrays_without_elements(both, shape):
    empty = np.zeros(shape, np.float32)
    functions = [
        VIEWS[k] for k in range(len(VIEWS)) if k not in (0, 25)
    ] + [
        lambda v, x: v.concatenate([x, x], 1),
        lambda v, x: v.concatenate([x, x], None),
        lambda v, x: v.stack([x, x], 1),
        lambda v, x: v.split(x, [1, 3], 2),
        lambda v, x: v.array_split(x, 3, 1),
        lambda v, x: v.pad(x, ((0, 0), (1, 2), (3, 0)), constant_values=2),
        lambda v, x: v.roll(x, 1),
        lambda v, x: v.roll(x, 2, 1),
        lambda v, x: v.diagonal(x, 0, 1, 2),
        lambda v, x: v.diag(v.reshape(x, (-1,))),
        lambda v, x: v.diag(v.reshape(x, (-1,)), 2),
        lambda v, x: v.tril(x, 1),
        lambda v, x: v.trace(x, 0, 1, 2),
        lambda v, x: v.take(x, [1, 0], 2) if x.shape[2] else x,
    ]  # fmt: skip
    follow_numpy(both, functions, empty)


def test_gradients_of_shape_work(both):
    rest = [
        lambda v, x: v.trace(x, 1, 0, 2),
        lambda v, x: v.take(x, np.array([[2, 0], [2, 2]]), 1),
        lambda v, x: v.meshgrid(x[0, 0], x[:, 1, 1])[0] if v is vk else np.meshgrid(x[0, 0], x[:, 1, 1])[0],
        lambda v, x: v.broadcast_arrays(x, x[:1, :1])[1],
    ]

    def together(x):
        return [r for f in (*VIEWS, *JOINS[:-9], *DIAGONALS, *rest) for r in flat(f(vk, x))]

    gradcheck(together, [X], device="cpu").raise_if_failed()
    for function in (JOINS[2], JOINS[26], VIEWS[25], DIAGONALS[2], DIAGONALS[9]):
        check_gradient(lambda x, f=function: vk.concatenate([r.reshape(-1) for r in flat(f(vk, x))]), X, both=both)


def test_concatenation_meets_in_one_dtype(both):
    found = both(
        lambda f, i, b: [
            vk.concatenate([i, f]), vk.concatenate([b, i]), vk.concatenate([f[:0], i]), vk.stack([b, f]),
            vk.concatenate([i[:0], i[:0]]), vk.concat([i, i]), *vk.unstack(vk.stack([f, f + 1], 1), 1),
        ],
        np.float32([1.5, 2]), np.int32([3, 4]), np.array([True, False]),
    )  # fmt: skip
    assert [str(r.dtype) for r in found[:5]] == ["float32", "int32", "float32", "float32", "int32"]
    assert found[0].tolist() == [3, 4, 1.5, 2] and found[3].tolist() == [[1, 0], [1.5, 2]]
    assert found[5].tolist() == [3, 4, 3, 4] and found[6].tolist() == [1.5, 2] and found[7].tolist() == [2.5, 3]
    with pytest.raises(DtypeError, match="concatenate: int32 and uint32 do not mix"):
        vk.concatenate([vk.array([1]), vk.array(np.uint32([1]))])


def test_broadcasting_and_grids(both):
    a, b = np.float32([[1], [2]]), np.float32([3, 4, 5])
    follow_numpy(
        both,
        [
            lambda v, a, b: v.broadcast_arrays(a, b),
            lambda v, a, b: v.meshgrid(a[:, 0], b),
            lambda v, a, b: v.meshgrid(a[:, 0], b, b[:2]),
            lambda v, a, b: v.meshgrid(a[:, 0], b, b[:2], indexing="ij"),
            lambda v, a, b: v.meshgrid(b),
        ],
        a, b,
    )  # fmt: skip
    assert vk.broadcast_arrays() == [] and vk.meshgrid() == []


# ---- creation


def test_creation(both):
    functions = [
        lambda v: v.ones((2, 3), "float32"),
        lambda v: v.ones(3, "int32"),
        lambda v: v.zeros((0, 2), "float32"),
        lambda v: v.full((2,), 7, "uint32"),
        lambda v: v.eye(3, dtype="float32"),
        lambda v: v.eye(2, 4, 1, dtype="int32"),
        lambda v: v.eye(4, 2, -2, dtype="bool"),
        lambda v: v.eye(0, dtype="float32"),
        lambda v: v.eye(2, 0, dtype="float32"),
        lambda v: v.arange(5),
        lambda v: v.arange(-3),
        lambda v: v.arange(2, 9),
        lambda v: v.arange(2, 9, 3),
        lambda v: v.arange(9, 2, -3),
        lambda v: v.arange(2, 9, -1),
        lambda v: v.arange(0.0, 2.0, 0.25, dtype="float32"),
        lambda v: v.arange(1, 2, 0.5, dtype="float32"),
        lambda v: v.arange(3, dtype="float32"),
        lambda v: v.arange(2.5, dtype="float32"),
        lambda v: v.arange(np.int64(4)),
        lambda v: v.arange(-(2**31), 2**31 - 1, 2**30),
        lambda v: v.zeros_like(v.ones((2, 2), "int32")),
        lambda v: v.ones_like(v.ones((2, 2), "float32"), dtype="bool"),
        lambda v: v.full_like(v.ones((2,), "float32"), 2.5),
    ]
    follow_numpy(both, functions)
    assert vk.arange(4).node.kind == "iota" and vk.ones((9, 9)).node.kind == "broadcast"  # no memory
    assert vk.zeros(np.int64(3)).shape == (3,) and vk.zeros([2, np.int32(1)]).shape == (2, 1)


def test_linspace_is_exact_at_its_ends(both):
    cases = [
        (0, 1, 5), (-1, 1, 101), (1e-3, 7.7, 1000), (3e38, -3e38, 2), (-3e38, 3e38, 3), (5, 5, 4), (2, 3, 1), (2, 3, 0),
        (0.1, 1e6, 4097), (-1e-3, 1e-3, 8),
    ]  # fmt: skip
    found = both(lambda: [vk.linspace(*c) for c in cases] + [vk.linspace(*c, endpoint=False) for c in cases])
    for (first, last, count), got, half in zip(cases, found, found[len(cases) :], strict=False):
        for values, endpoint in ((got, True), (half, False)):
            want = np.linspace(first, last, count, endpoint=endpoint)
            assert values.shape == want.shape and values.dtype == np.float32
            scale = max(abs(first), abs(last)) * 2.0**-23
            assert count == 0 or np.abs(values - want).max() <= scale, (first, last, count)
        if count:
            assert got[0] == np.float32(first) and (count == 1 or got[-1] == np.float32(last))
        assert (np.diff(got.astype(np.float64)) * np.sign(last - first) >= 0).all()


def test_one_hot(both):
    index = np.array([[0, 2], [3, -1]])
    want = np.zeros((2, 2, 3))
    want[0, 0, 0] = want[0, 1, 2] = 1  # numbers outside give no place at all
    found = both(
        lambda i: [vk.one_hot(i, 3), vk.one_hot(i, 3, dtype="int32"), vk.one_hot(i[:0], 3), vk.one_hot(i, 0),
                   vk.one_hot(i[0].astype("uint32"), 3, "bool"), vk.one_hot(2, 3)],
        index,
    )  # fmt: skip
    assert (found[0] == want).all() and found[0].dtype == np.float32 and (found[1] == want).all()
    assert found[2].shape == (0, 2, 3) and found[3].shape == (2, 2, 0) and found[5].tolist() == [0, 0, 1]
    assert (found[4] == want[0]).all() and found[4].dtype == np.bool_


# ---- picking

TABLE = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
ROWS, COLUMNS = np.array([2, 0, -1, 0]), np.array([[1], [3]])
MASK = np.array([True, False, True])
KEYS = [
    np.s_[ROWS],
    np.s_[[1, 1]],
    np.s_[:, ROWS],
    np.s_[..., ROWS],
    np.s_[:, :, [0, 4, -5]],
    np.s_[1, ROWS],
    np.s_[ROWS, 1],
    np.s_[ROWS, :, 1],
    np.s_[1, :, ROWS],
    np.s_[ROWS, COLUMNS],
    np.s_[ROWS[:2], :, COLUMNS],
    np.s_[:, ROWS, COLUMNS],
    np.s_[ROWS, COLUMNS, 2],
    np.s_[ROWS[:2], COLUMNS, [0, 1]],
    np.s_[None, ROWS],
    np.s_[ROWS, None],
    np.s_[ROWS, None, COLUMNS],
    np.s_[::-1, ROWS, 1:3],
    np.s_[1:, [0, 1], ::2],
    np.s_[ROWS, ..., [0]],
    np.s_[ROWS, ..., COLUMNS, [0]],
    np.s_[[], 1],
    np.s_[np.zeros((0, 2), int)],
    np.s_[np.array(1)],
    np.s_[np.array(1), ROWS],
    np.s_[MASK],
    np.s_[:, [True, False, False, True]],
    np.s_[..., np.array([1, 0, 1, 0, 0], bool)],
    np.s_[np.arange(12).reshape(3, 4) % 3 == 0],
    np.s_[MASK, :, [0, 1]],
    np.s_[1:, ROWS % 2, None, 0],
]


def test_integer_arrays_as_keys(both):
    follow_numpy(both, [lambda v, x, k=k: x[k] for k in KEYS], TABLE)


def test_index_arrays_on_a_device(both):
    """The same rules; negative numbers count from the end, and what lies outside is clamped."""

    def run(x, rows, columns, unsigned):
        return [
            x[rows], x[:, rows], x[rows, columns], x[1, :, rows], x[rows, 1], x[unsigned], x[0, unsigned, rows],
            x[rows[0]], x[..., rows[1]],
        ]  # fmt: skip

    unsigned = np.uint32([2, 0, 1, 2])
    found = both(run, TABLE, ROWS.astype(np.int32), COLUMNS.astype(np.int32), unsigned)
    want = run(TABLE, ROWS, COLUMNS, unsigned.astype(int))
    for k, (got, expected) in enumerate(zip(found, want, strict=True)):
        assert got.shape == expected.shape and (got == expected).all(), k
    far = both(lambda x, i, u: [x[i], x[u], x[i, i]], TABLE, np.int32([7, -9, 2**31 - 1]), np.uint32([9, 2**32 - 1]))
    assert (far[0] == TABLE[[2, 0, 2]]).all() and (far[1] == TABLE[[2, 2]]).all()
    assert (far[2] == TABLE[[2, 0, 2], [3, 0, 3]]).all()


def test_gradients_of_indexing(both):
    gradcheck(lambda x: [x[k] for k in KEYS], [TABLE / 8], device="cpu").raise_if_failed()
    for key in (KEYS[2], KEYS[17]):
        check_gradient(lambda x, k=key: x[k], TABLE / 8, both=both)


def test_take(both):
    index = np.array([[2, 0], [1, 1]])
    functions = [
        lambda v, x: v.take(x, index, 0),
        lambda v, x: v.take(x, index, 1),
        lambda v, x: v.take(x, index, -1),
        lambda v, x: v.take(x, index, None),
        lambda v, x: v.take(x, 2, 1),
        lambda v, x: v.take(x, [], 1) if v is vk else np.take(x, np.array([], int), 1),
        lambda v, x: v.take_along_axis(x, np.array([[[2], [0], [1], [3]]] * 3), -1),
        lambda v, x: v.take_along_axis(x, np.array([[[2], [0]]]), 1),
        lambda v, x: v.take_along_axis(x, np.zeros((1, 2, 5), int), 1),
        lambda v, x: v.take_along_axis(x, np.zeros((3, 0, 5), int), 1),
    ]
    follow_numpy(both, functions, TABLE)
    far = both(lambda x, i: [vk.take(x, i), vk.take_along_axis(x, vk.reshape(i, (1, 1, 3)), 2)], TABLE, [-3, 1, 99])
    assert (far[0] == TABLE[[0, 1, 2]]).all() and (far[1] == TABLE[:, :, [0, 1, 4]]).all()


def test_iteration():
    x = vk.array(X)
    assert [r.shape for r in x] == [(3, 4)] * 2 and (next(iter(x)).numpy() == X[0]).all()
    first, second = vk.array([1, 2])
    assert (first.item(), second.item()) == (1, 2) and 2 in vk.array([1, 2])
    with pytest.raises(ShapeError, match="the array has no axes"):
        list(vk.array(1.0))


# ---- errors

with vk.device("cpu"):
    A = vk.array(np.ones((2, 3), np.float32))
ERRORS = [
    (lambda: vk.reshape(A, (4, 2)), r"reshape: \(2, 3\) \(6 elements\) does not fit \(4, 2\)"),
    (lambda: vk.reshape(A, "a"), "reshape: shape: got 'a', expected an int or a sequence of ints"),
    (lambda: vk.reshape(A, None), "reshape: shape: got None"),
    (lambda: A.reshape(2.5, 2), "reshape: shape: got 2.5"),
    (lambda: A.reshape(-1, -1), "reshape"),
    (lambda: vk.transpose(A, 5), "transpose"),
    (lambda: vk.transpose(A, (0,)), "transpose: got 1 axes, expected all 2"),
    (lambda: vk.transpose(A, (0, 0)), "transpose: axis .* twice"),
    (lambda: A.transpose("a", 0), "transpose: axis: got 'a'"),
    (lambda: A.transpose(0.0, 1), "transpose: axis: got 0.0"),
    (lambda: vk.swapaxes(A, 0, 2), "swapaxes: axis 2 does not exist in an array of 2 axes"),
    (lambda: vk.swapaxes(A, "a", 0), "swapaxes: axis: got 'a'"),
    (lambda: vk.moveaxis(A, (0, 1), 0), "moveaxis: source has 2 axes and destination 1"),
    (lambda: vk.moveaxis(A, 0, 5), "moveaxis: destination: axis 5 does not exist"),
    (lambda: vk.moveaxis(A, (0, 0), (0, 1)), "moveaxis: source: axis .* twice"),
    (lambda: vk.moveaxis(A, None, 0), "moveaxis: source"),
    (lambda: vk.broadcast_to(A, 5), "broadcast_to"),
    (lambda: vk.broadcast_to(A, "ab"), "broadcast_to: shape: got 'ab'"),
    (lambda: vk.broadcast_to(A, None), "broadcast_to: shape: got None"),
    (lambda: vk.broadcast_to(A, (2, -3)), "broadcast_to: shape .* negative length"),
    (lambda: vk.broadcast_to(A, (2.0, 3)), "broadcast_to: shape: got 2.0"),
    (lambda: vk.broadcast_arrays(A, vk.zeros(2)), "broadcast_arrays: shapes .* do not broadcast"),
    (lambda: vk.meshgrid(A), "meshgrid: got an array of shape"),
    (lambda: vk.meshgrid(A[0], indexing="yx"), "meshgrid: indexing is 'yx'"),
    (lambda: vk.expand_dims(A, None), "expand_dims: axis is None"),
    (lambda: vk.expand_dims(A, 9), "expand_dims: axis 9 does not exist in an array of 3 axes"),
    (lambda: vk.expand_dims(A, (0, 0)), "expand_dims: axis .* twice"),
    (lambda: vk.squeeze(A, 0), r"squeeze: axis 0 of shape \(2, 3\) has length 2"),
    (lambda: vk.squeeze(A, (0, 0)), "squeeze: axis .* twice"),
    (lambda: vk.squeeze(A, "a"), "squeeze: axis: got 'a'"),
    (lambda: vk.flip(A, 7), "flip: axis 7 does not exist"),
    (lambda: vk.flip(A, 0.5), "flip: axis: got 0.5"),
    (lambda: vk.flip(A, True), "flip: axis: got True"),
    (lambda: vk.tile(A, -1), "tile: repetitions: got -1"),
    (lambda: vk.tile(A, "a"), "tile: repetitions: got 'a'"),
    (lambda: vk.repeat(A, [1, 2], 1), "repeat: got 2 repeats, expected one or 3"),
    (lambda: vk.repeat(A, vk.array([1, 2]), 0), "repeat: repeats: got an Array"),
    (lambda: vk.repeat(A, -1), "repeat: repeats: got -1"),
    (lambda: vk.pad(A, [(1, 1)] * 3), "pad: got 3 pairs, expected one for each of 2 axes"),
    (lambda: vk.pad(A, [(1, 1), (-1, 0)]), "pad: pad_width is"),
    (lambda: vk.pad(A, [(1, 1), (1,), 3]), "pad: pad_width: got"),
    (lambda: vk.pad(A, [(1, 1), ("a", 0)]), "pad: pad_width: got 'a'"),
    (lambda: vk.pad(A, [(1, 1), (0.5, 0)]), "pad: pad_width: got 0.5"),
    (lambda: vk.pad(A, None), "pad: pad_width: got None"),
    (lambda: vk.pad(A, 1, "reflect"), "pad: mode is 'reflect'"),
    (lambda: vk.pad(A, 1, constant_values=[1, 2]), "pad: constant_values: got"),
    (lambda: vk.pad(vk.array([1]), 1, constant_values=1.5), "constant: 1.5 is not a value of int32"),
    (lambda: vk.concatenate([]), "concatenate: got no arrays"),
    (lambda: vk.concatenate(None), "concatenate: arrays is None"),
    (lambda: vk.concatenate([A, A[:, :1]]), "concatenate: shapes .* differ outside axis 0"),
    (lambda: vk.concatenate([A, A[0]]), "concatenate: shapes .* differ outside axis 0"),
    (lambda: vk.concatenate([1.0, 2.0]), "concatenate: got an array without axes"),
    (lambda: vk.concatenate([A, A], 4), "concatenate: axis 4 does not exist"),
    (lambda: vk.stack([]), "stack: got no arrays"),
    (lambda: vk.stack([A, A[0]]), "stack: shapes .* differ"),
    (lambda: vk.stack([A, A], 3), "stack: axis 3 does not exist in an array of 3 axes"),
    (lambda: vk.split(A, 2, 1), "split: axis 1 of length 3 does not divide into 2 parts"),
    (lambda: vk.split(A, 0), "split: axis 0 of length 2 does not divide into 0 parts"),
    (lambda: vk.array_split(A, 0), "array_split: axis 0"),
    (lambda: vk.split(A, "a"), "split: indices_or_sections: got 'a'"),
    (lambda: vk.split(A, 1.5), "split: indices_or_sections: got 1.5"),
    (lambda: vk.unstack(A, 2), "unstack: axis 2 does not exist"),
    (lambda: vk.roll(A, 1.5), "roll: shift: got 1.5"),
    (lambda: vk.roll(A, (1, 2, 3), (0, 1)), "roll: got 3 shifts and 2 axes"),
    (lambda: vk.roll(A, 1, 2), "roll: axis 2 does not exist"),
    (lambda: vk.diagonal(A[0]), "diagonal: got an array of shape"),
    (lambda: vk.diagonal(A, 0, 1, -1), "diagonal: axis1 and axis2 are both axis 1"),
    (lambda: vk.diagonal(A, 0.5), "diagonal: offset: got 0.5"),
    (lambda: vk.diag(vk.zeros((1, 2, 3))), "diag: got an array of shape"),
    (lambda: vk.tril(A[0]), "tril: got an array of shape"),
    (lambda: vk.triu(A, None), "triu: k: got None"),
    (lambda: vk.trace(A[0]), "diagonal: got an array"),
    (lambda: vk.eye(-1), "eye: shape .* negative"),
    (lambda: vk.eye("a"), "eye: shape: got 'a'"),
    (lambda: vk.eye(2, k=0.5), "eye: k: got 0.5"),
    (lambda: vk.zeros((2, -1)), "zeros: shape .* negative length"),
    (lambda: vk.ones("a"), "ones: shape: got 'a'"),
    (lambda: vk.full((2,), "a"), "full: fill_value: got 'a'"),
    (lambda: vk.full((2,), np.array([1, 2])), "full: fill_value: got ndarray"),
    (lambda: vk.full((2,), 1j), "full: fill_value: got 1j"),
    (lambda: vk.full_like(A, None), "full_like: fill_value: got None"),
    (lambda: vk.arange("a"), "arange: stop: got 'a'"),
    (lambda: vk.arange(0, 1, 0), "arange: step is 0"),
    (lambda: vk.arange(0, float("inf")), "arange: stop: got inf"),
    (lambda: vk.arange(2**33), "arange: 8589934592 elements"),
    (lambda: vk.arange(2**31, 2**31 + 2), "arange: 2147483648 does not fit in int32"),
    (lambda: vk.linspace(0, float("nan")), "linspace: stop: got nan"),
    (lambda: vk.linspace(0, 1, 2.5), "linspace: num: got 2.5"),
    (lambda: vk.linspace(0, 1, -1), "linspace: num is -1"),
    (lambda: vk.linspace(0, 1, 3, dtype="int32"), "linspace: dtype is int32"),
    (lambda: vk.one_hot(A, 3), "one_hot: indices are float32"),
    (lambda: vk.one_hot([0], -1), "one_hot: n is -1"),
    (lambda: vk.take(A, [5]), "take: indices: found 5 to 5, expected 0 to 1"),
    (lambda: vk.take(A, [-1]), "take: indices: found -1 to -1, expected 0 to 1"),
    (lambda: vk.take(A, [0.5]), "take: indices: got float64, expected integers"),
    (lambda: vk.take(A, ["a"]), "take: indices: got"),
    (lambda: vk.take(A, None), "take: indices: got None"),
    (lambda: vk.take(A, [[0], [1, 1]]), "take: indices: got nested lists of unequal lengths"),
    (lambda: vk.take(A, A), "take: indices are float32"),
    (lambda: vk.take(A, [0], 9), "take: axis 9 does not exist"),
    (lambda: vk.take(3.0, [0]), "take: axis 0 does not exist in an array of 0 axes"),
    (lambda: vk.take(A[:0], vk.array([0])), "take: axis 0 of x has length 0"),
    (lambda: vk.take_along_axis(A, [0], 1), "take_along_axis: indices have shape"),
    (lambda: vk.take_along_axis(A, A, 1), "take_along_axis: indices are float32"),
    (lambda: vk.take_along_axis(A, np.zeros((2, 1), int), None), "take_along_axis: axis: got None"),
    (lambda: vk.take_along_axis(A, np.zeros((3, 1), int), 1), "take_along_axis: shapes .* do not broadcast"),
    (lambda: A[5], "index: 5 is outside axis 0 of length 2"),
    (lambda: A[True], "index: got True"),
    (lambda: A[np.True_], "index: got"),
    (lambda: A[1.5], "index: got 1.5"),
    (lambda: A["a"], "index: got 'a'"),
    (lambda: A[0:"a"], "index: slice stop: got 'a'"),
    (lambda: A[::0], "index: slice step is 0"),
    (lambda: A[..., ...], "index: more than one Ellipsis"),
    (lambda: A[0, 0, 0], "index: 3 positions for an array of 2 axes"),
    (lambda: A[[0, 9]], "index: indices: found 0 to 9, expected -2 to 1"),
    (lambda: A[[0.5]], "index: got float64, expected integers"),
    (lambda: A[A > 0], "index: got a mask of bools on a device.*vk.where"),
    (lambda: A[A], "index: got an Array of float32"),
    (lambda: A[np.array([True, False, True])], "index: a mask of shape"),
    (lambda: A[[0, 1], [0, 1, 2]], "index: shapes .* do not broadcast"),
    (lambda: A[[[0], [1, 2]]], "index: got nested lists of unequal lengths"),
    (lambda: A[:0][vk.array([0])], "index: axis 0 has length 0"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ERRORS, ids=range(len(ERRORS)))
def test_bad_arguments_are_named(make, message):
    with vk.device("cpu"), pytest.raises(ArgumentError, match=message):
        make()
