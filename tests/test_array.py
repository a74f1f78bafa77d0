"""Arrays: what they are made of and when they are computed; indexing by NumPy's rules; errors."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.numerics.flush import flush


def test_an_array_is_computed_when_its_value_is_asked_for():
    x = vk.array([[1.0, 2.0], [3.0, 4.0]])
    y = x * 2 + 1
    assert y.node.buffer is None
    assert y.numpy().tolist() == [[3, 5], [7, 9]]
    assert y.node.buffer is not None and y.node.kind == "leaf"


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (1.5, "float32"),
        ([1, 2], "int32"),
        (True, "bool"),
        (np.float16(2), "float16"),
        (np.zeros(2), "float32"),
        (np.zeros(2, np.uint8), "uint32"),
        (np.zeros(2, np.int64), "int32"),
        (np.zeros(2, np.uint32), "uint32"),
        ([[True], [False]], "bool"),
        (np.arange(6).reshape(2, 3)[:, ::-1], "int32"),
        (np.zeros((0, 3)), "float32"),
    ],
)
def test_dtypes_of_what_comes_in(both, values, dtype):
    x = vk.array(values)
    assert str(x.dtype) == dtype and x.shape == np.shape(values)
    assert np.array_equal(x.numpy(), np.asarray(values)) and x.numpy().dtype == dtype
    assert np.array_equal(both(lambda x: [x], values)[0], np.asarray(values))


@pytest.mark.parametrize("values", ["text", [1j], np.array([None]), [2**31], np.array([-(2**40)]), [2**63]])
def test_what_cannot_be_stored_is_refused(values):
    with pytest.raises(DtypeError, match="array: "):
        vk.array(values)


def test_an_explicit_dtype_converts(both):
    def run():
        return [
            vk.array([0.5, 0.0, -1.0, np.nan, np.inf], dtype="bool"),
            vk.array([0, 2, -3], dtype="bool"),
            vk.array([1.9, -1.9, 3e9, -3e9, np.nan], dtype="int32"),
            vk.array([1, 2], dtype=vk.float32),
            vk.array([1.9, -5.0, 5e9], dtype="uint32"),
            vk.array([True, False], dtype="float32"),
            ~vk.array([2.0, 0.0], dtype="bool"),
        ]

    found = both(run)
    assert found[0].tolist() == [True, False, True, True, True] and found[1].tolist() == [False, True, True]
    assert found[2].tolist() == [1, -1, 2**31 - 1, -(2**31), 0] and found[4].tolist() == [1, 0, 2**32 - 1]
    assert found[6].tolist() == [False, True]
    with pytest.raises(DtypeError, match="float64"):
        vk.array([1.0], dtype="float64")


@pytest.mark.parametrize("make", [lambda: vk.array([2**40], dtype="int32"), lambda: vk.full(2, 2**40, "int32")])
def test_integers_that_do_not_fit_are_refused(make):
    with pytest.raises(DtypeError, match=str(2**40)):
        make()


def test_subnormals_come_in_as_zeros():
    assert bits_equal(vk.array(HARD_FLOATS).numpy(), flush(HARD_FLOATS)).all()
    stored = vk.array(np.array([1e-300, -1e-300, 1e300]))
    assert bits_equal(stored.numpy(), np.array([0.0, -0.0, np.inf], np.float32)).all()


def test_python_protocols():
    x = vk.array([[1.5, 2.0]])
    assert len(x) == 1 and x.ndim == 2 and x.size == 2 and x.T.shape == (2, 1)
    assert float(vk.array(2.5)) == 2.5 and int(vk.array([7])) == 7 and bool(vk.array([[True]]))
    assert np.asarray(x).dtype == np.float32 and np.asarray(x, np.float64).dtype == np.float64
    assert "1.5" in str(x) and repr(x).startswith("vk.array(")
    with pytest.raises(ShapeError, match=r"item: the array has shape \(1, 2\)"):
        x.item()
    with pytest.raises(ShapeError, match="len: the array has no axes"):
        len(vk.array(1.0))
    with pytest.raises(ShapeError, match="item"):
        bool(x)


def test_a_copy_that_is_given_out_is_the_callers_own(both):
    for device in ("cpu", None):
        with vk.device(device):
            x = vk.array([1.0, 2.0])
            given = x.numpy()
            given[:] = 7
            assert x.numpy().tolist() == [1, 2]
            source = np.array([1.0, 2.0], np.float32)
            y = vk.array(source)
            source[:] = 9
            assert y.numpy().tolist() == [1, 2] and (y + 0.5).numpy().tolist() == [1.5, 2.5]


def test_constants_cost_no_memory():
    assert vk.zeros((1000, 1000)).node.kind == "broadcast"
    assert vk.zeros(3, "int32").numpy().tolist() == [0] * 3 and vk.full((), True, "bool").item() is True
    assert vk.full((2, 1), -1.5).numpy().tolist() == [[-1.5], [-1.5]]
    assert vk.arange(4).numpy().tolist() == [0, 1, 2, 3] and vk.arange(0).shape == (0,)
    with pytest.raises(ShapeError, match=r"full: shape \(-1,\) has a negative length"):
        vk.full((-1,), 0.0)


def test_an_expression_of_constants_lives_on_every_device():
    a = vk.arange(5) * 2
    b = a + 1
    with vk.device("cpu"):
        assert a.numpy().tolist() == [0, 2, 4, 6, 8]
        assert vk.sum(vk.zeros((0, 2))).item() == 0
    with vk.device():
        assert b.numpy().tolist() == [1, 3, 5, 7, 9]
        assert vk.where(vk.array([-1.0, 1.0]) > 0.0, 1.0, 0.0).numpy().tolist() == [0, 1]


X = np.arange(60).reshape(3, 4, 5)
KEYS = [
    np.s_[1],
    np.s_[-1],
    np.s_[0, 1, 2],
    np.s_[:, 1],
    np.s_[..., 0],
    np.s_[..., -1, :],
    np.s_[1:, ::2, ::-1],
    np.s_[::-2, 3:0:-2],
    np.s_[None],
    np.s_[:, None, 1],
    np.s_[..., None],
    np.s_[0, ..., None, 1],
    np.s_[5:],
    np.s_[2:1],
    np.s_[:, :, 10:],
    np.s_[()],
    np.s_[-2:, -3:-1],
    np.s_[np.int64(1), np.int32(2)],
    np.s_[:, ::-1][0:2],
    np.s_[np.array([2, 0])],
    np.s_[[1, 1]],
]


def test_indexing_follows_numpy(both):
    found = both(lambda x: [x[key] for key in KEYS] + [x[key] + 1 for key in KEYS], X)
    for key, got, more in zip(KEYS, found, found[len(KEYS) :], strict=False):
        want = X[key]
        assert got.shape == want.shape and (got == want).all() and (more == want + 1).all(), key


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (np.s_[3], "index: 3 is outside axis 0 of length 3"),
        (np.s_[0, -5], "index: -5 is outside axis 1 of length 4"),
        (np.s_[0, 0, 0, 0], "index: 4 positions for an array of 3 axes"),
        (np.s_[..., 0, ...], "more than one Ellipsis"),
        (np.s_["a"], "index: got 'a', expected ints, slices"),
        (np.s_[0.5], "index: got 0.5, expected ints, slices"),
        (np.s_[[0, 3]], "indices: found 0 to 3, expected -3 to 2"),
    ],
)
def test_indexing_errors(key, message):
    with pytest.raises(ArgumentError, match=message):
        vk.array(X)[key]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: vk.sum(x, 2), "axis 2 does not exist"),
        (lambda x: vk.softmax(x, 5), "axis 5 does not exist"),
        (lambda x: x.reshape(4, 2), "reshape"),
        (lambda x: x.astype("float64"), "dtype: got 'float64'"),
    ],
)
def test_errors_name_function_and_argument(make, message):
    with pytest.raises(ArgumentError, match=message):
        make(vk.array(np.ones((2, 3))))


def test_axes_may_be_numpy_integers():
    x = vk.array(np.ones((2, 3)))
    assert vk.sum(x, axis=np.int64(0)).shape == (3,) and vk.max(x, axis=(np.int64(-1),)).shape == (2,)
    assert x.sum(1).shape == (2,) and x.mean(keepdims=True).shape == (1, 1) and x.max().item() == 1


def test_joining_numpy_arrays_with_arrays_of_another_device():
    with vk.device("cpu"):
        x = vk.array([1.0])
    with vk.device():
        assert vk.concatenate([np.zeros(2), x]).numpy().tolist() == [0, 0, 1]
        assert vk.stack([x, np.ones(1)]).numpy().tolist() == [[1], [1]]
        assert (x + np.ones(1)).numpy().tolist() == [2] and vk.maximum(np.ones(1), x).device is vk.device("cpu")


def test_functions_of_numpy_are_those_of_vkdnn(both):
    x = np.linspace(-1, 1, 7, dtype=np.float32)
    found = both(lambda x: [np.exp(x), np.arctan2(x, 0.5), np.ones((2, 7), np.float32) @ x, np.float32(2) * x], x)
    want = both(lambda x: [vk.exp(x), vk.atan2(x, 0.5), vk.matmul(np.ones((2, 7), np.float32), x), x * 2], x)
    assert all((a == b).all() for a, b in zip(found, want, strict=True))
    with pytest.raises(ArgumentError, match=r"np\.add\.reduce"):
        np.add.reduce(vk.array(x))
    with pytest.raises(ArgumentError, match="never changes"):
        vk.array(x)[0] = 1


def test_bfloat16_is_shown_with_its_point():
    x = vk.array([1, 2.5]).astype("bfloat16")
    assert str(x) == "[1.  2.5]" and repr(x) == "vk.array([1. , 2.5], dtype=bfloat16)" and x.tolist() == [1.0, 2.5]
