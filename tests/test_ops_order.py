"""Running sums, sorting and scattering as users call them: NumPy's values, gradients, edges, errors."""

import numpy as np
import pytest
from gradients import check_gradient

import vkdnn as vk
from vkdnn.check.hard import bits_equal


def test_the_largest_of_each_row_and_where_they_are(both):
    x = np.array([[1.0, 2.0, 5.0, 4.0, 5.0], [0.0, -0.0, -1.0, np.nan, 3.0]], np.float32)
    values, indices = both(lambda x: list(vk.top_k(x, 3)), x)
    assert indices.tolist() == [[2, 4, 3], [3, 4, 0]] and indices.dtype == np.int32
    assert bits_equal(values, np.take_along_axis(x, indices, 1)).all()


# ---- gradients


def test_gradients_go_back_to_where_values_came_from(both):
    x = np.random.default_rng(0).permutation(80).reshape(2, 40) / 8.0
    check_gradient(vk.sort, x, both=both)
    check_gradient(lambda x: vk.sort(x, axis=0, descending=True), x, both=both)
    check_gradient(lambda x: vk.top_k(x, 3)[0], x, both=both)
    check_gradient(lambda x: vk.top_k(x, 1)[0], x, both=both)


def test_a_mixture_of_experts_is_differentiable(both):
    rng = np.random.default_rng(1)
    scores, experts = rng.standard_normal((6, 5)), rng.standard_normal((5, 3))

    def mixed(scores, experts):
        gates, chosen = vk.top_k(vk.softmax(scores), 2)
        return vk.sum(vk.take(experts, chosen) * gates.reshape(6, 2, 1), axis=1)

    check_gradient(mixed, scores, experts, both=both)


def test_a_jitted_step_sorts_and_scatters(both):
    x = np.random.default_rng(2).standard_normal(300).astype(np.float32)

    def step(x):
        values, indices = vk.top_k(vk.cumsum(x), 40)
        return vk.sum(values) + vk.sum(vk.scatter(x, indices, values) ** 2)

    jitted, plain = both(lambda x: [vk.jit(vk.grad(step))(x), vk.grad(step)(x)], x)
    assert bits_equal(jitted, plain).all()


# ---- scattering


def test_scattering_along_an_axis(both):
    rng = np.random.default_rng(3)
    x, updates = rng.standard_normal((4, 5, 3)).astype(np.float32), rng.standard_normal((4, 2, 6, 3)).astype(np.float32)
    index = rng.integers(0, 5, (2, 6)).astype(np.int32)

    def run(x, index, updates):
        return [
            vk.scatter_add(x, index, updates, axis=1),
            vk.scatter(x, index, updates, axis=1),
            vk.scatter_add(x, index[0], updates[0, 0, :, :1], axis=-2),
            vk.scatter(x, index[0, 0], 7, axis=1),
            vk.scatter_add(x, [0, 3], [[1.0], [2.0], [3.0], [4.0], [5.0]], axis=0),
        ]

    found = both(run, x, index, updates)
    turned = x.swapaxes(0, 1).copy()
    added, put, spread, one, rows = turned.copy(), turned.copy(), turned.copy(), x.copy(), x.copy()
    for j, at in np.ndenumerate(index):
        added[at] += updates[:, j[0], j[1]]
        put[at] = updates[:, j[0], j[1]]
    for j, at in enumerate(index[0]):
        spread[at] += updates[0, 0, j, :1]
    one[:, index[0, 0]] = 7
    rows[[0, 3]] += np.arange(1, 6, dtype=np.float32)[:, None]
    for want, got in zip([added, put, spread], found, strict=False):
        assert bits_equal(np.ascontiguousarray(want.swapaxes(0, 1)), got).all()
    assert bits_equal(one, found[3]).all() and bits_equal(rows, found[4]).all()


def test_putting_along_an_axis(both):
    rng = np.random.default_rng(5)
    x, values = rng.standard_normal((3, 40, 2)).astype(np.float32), rng.standard_normal((3, 9, 2)).astype(np.float32)
    index = rng.integers(0, 40, (3, 9, 1)).astype(np.int32)
    index[:, 4:6] = index[:, :2]  # the last of several wins

    def run(x, index, values):
        one = vk.put_along_axis(x, vk.argmax(x, axis=1, keepdims=True), -9.0, axis=1)
        return [vk.put_along_axis(x, index, values, axis=1), vk.put_along_axis(x[:, 0], [[1]], [[2.0]]), one]

    found = both(run, x, index, values)
    wide, ends, tops = np.broadcast_to(index, values.shape), x[:, 0].copy(), x.copy()
    put = x.copy()
    for at in np.ndindex(values.shape):
        put[at[0], wide[at], at[2]] = values[at]
    ends[:, 1] = 2
    np.put_along_axis(tops, np.argmax(x, axis=1)[:, None], -9, 1)
    for want, got in zip((put, ends, tops), found, strict=True):
        assert bits_equal(want, got).all()

    chosen = rng.integers(0, 3, (2, 4))
    operands = rng.standard_normal((2, 5)), rng.standard_normal((2, 4))
    check_gradient(lambda x, v: vk.put_along_axis(x, chosen, v), *operands, both=both)


def test_indices_on_a_device_are_clamped(both):
    x, index = np.zeros(3, np.float32), np.array([-5, 1, 9, 2], np.int32)
    added, put, unsigned, counts = both(
        lambda x, i: [
            vk.scatter_add(x, i, 1.0),
            vk.scatter(x, i, vk.array([1.0, 2.0, 3.0, 4.0])),
            vk.scatter_add(x, i.astype("uint32"), 1.0),
            vk.bincount(i, 3),
        ],
        x,
        index,
    )
    assert added.tolist() == [1, 1, 2] and put.tolist() == [1, 2, 4]
    assert unsigned.tolist() == [0, 1, 3] and counts.tolist() == [1, 1, 2]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "bool", "float16", "bfloat16"])
def test_dtypes(both, dtype):
    rng = np.random.default_rng(4)
    host, index = rng.integers(0, 9, (3, 50)), rng.integers(0, 3, 6).astype(np.int32)

    def run(index):
        x = vk.array(host).astype(dtype)
        found = [vk.sort(x), *vk.top_k(x, 4), vk.scatter(x, index, x[:1]), vk.cumsum(x, 1), vk.cummin(x, 0)]
        return found if dtype == "bool" else [*found, vk.scatter_add(x, index, x[:1])]

    found = both(run, index)
    kept = "int32" if dtype == "bool" else dtype
    assert [str(a.dtype) for a in found] == [dtype, dtype, "int32", dtype, kept, kept, kept][: len(found)]
    x = host.astype(bool) if dtype == "bool" else host
    numbers = [a.astype(np.int64) for a in found]
    down = np.argsort(-x.astype(int), axis=1, kind="stable")
    put, added = x.copy(), x.astype(int)
    put[index] = x[:1]
    np.add.at(added, index, x[0].astype(int))
    wanted = [np.sort(x, 1), np.take_along_axis(x, down, 1)[:, :4], down[:, :4], put]
    wanted += [np.cumsum(x, 1) if dtype != "bfloat16" else None, np.minimum.accumulate(x, 0), added]
    for want, got in zip(wanted, numbers, strict=False):
        assert want is None or (want == got).all()


# ---- edges


def test_nothing_at_all(both):
    def run(empty, index):
        return [
            vk.cumsum(empty, axis=1),
            vk.cumsum(empty, axis=0),
            vk.linear_recurrence(empty, empty),
            vk.sort(empty),
            vk.argsort(empty, axis=0),
            *vk.top_k(empty, 0),
            *vk.top_k(empty, 1, axis=0),
            vk.scatter_add(vk.zeros((2, 3)), index, vk.zeros((0, 3))),
            vk.scatter(vk.zeros((2, 3)), [], vk.zeros((0, 3))),
            vk.put_along_axis(vk.zeros((2, 3)), vk.array(np.zeros((2, 0), np.int32)), 1.0),
            vk.bincount(index, 2),
            vk.bincount(index, 0),
            vk.scatter_add(empty, vk.array([0]), vk.zeros((1, 0))),
        ]

    found = both(run, np.zeros((3, 0), np.float32), np.zeros(0, np.int32))
    shapes = [(3, 0)] * 6 + [(3, 0), (1, 0), (1, 0), (2, 3), (2, 3), (2, 3), (2,), (0,), (3, 0)]
    assert [a.shape for a in found] == shapes
    assert not any(a.any() for a in found)
    for function in (vk.cumsum, lambda x: vk.take_along_axis(x, vk.array(np.zeros((3, 0), np.int32)), 1)):
        (slope,) = both(lambda x, f=function: vk.grad(lambda x: vk.sum(f(x)))(x), np.ones((3, 2), np.float32))
        assert slope.shape == (3, 2)


def test_one_element(both):
    x = np.array([[3.0]], np.float32)
    found = both(lambda x: [vk.cumsum(x), vk.sort(x), *vk.top_k(x, 1), vk.linear_recurrence(x, x, 0)], x)
    assert [a.ravel().tolist() for a in found] == [[3.0], [3.0], [3.0], [0], [3.0]]


def test_constants_need_no_data():
    with vk.device("cpu"):
        assert vk.cumsum(vk.full(4, 2.0)).numpy().tolist() == [2, 4, 6, 8]
        assert vk.argsort(vk.zeros((2, 3))).numpy().tolist() == [[0, 1, 2]] * 2
        assert vk.linear_recurrence(1.0, vk.full(3, 1.0), initial=2.0).numpy().tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: vk.cumsum(x, axis=2), "cumsum: axis 2 does not exist"),
        (lambda x: vk.cumprod(x, axis=0.5), "cumprod: axis: got 0.5, expected an int"),
        (lambda x: vk.linear_recurrence(x, vk.zeros(4)), r"linear_recurrence: shapes \(2, 3\) and \(4,\)"),
        (lambda x: vk.linear_recurrence(x, x.astype("int32")), "linear_recurrence: b: got int32, expected float32"),
        (lambda x: vk.linear_recurrence(x, x, initial=vk.zeros(3)), r"initial: got float32 of shape \(3,\)"),
        (lambda x: vk.sort(x, axis=-3), "sort: axis -3 does not exist"),
        (lambda x: vk.sort(vk.full((), 1.0)), "axis -1 does not exist in an array of 0 axes"),
        (lambda x: vk.top_k(x, 4), "top_k: k: got 4, expected an int from 0 to 3"),
        (lambda x: vk.top_k(x, -1), "top_k: k: got -1"),
        (lambda x: vk.top_k(x, 1.5), "top_k: k: got 1.5"),
        (lambda x: vk.top_k(x, True), "top_k: k: got True"),
        (lambda x: vk.scatter_add(x, [2], 1.0), "scatter_add: indices: found 2 to 2, expected 0 to 1"),
        (lambda x: vk.scatter(x, [-1], 1.0), "scatter: indices: found -1 to -1, expected 0 to 1"),
        (lambda x: vk.scatter(x, [0.5], 1.0), "scatter: indices: got float64, expected integers"),
        (lambda x: vk.scatter(x, vk.zeros(1), 1.0), "scatter: indices are float32"),
        (lambda x: vk.scatter(x, [0], vk.array([1])), "scatter: updates: got int32, expected float32 as x"),
        (lambda x: vk.scatter(x, [0], vk.zeros((2, 3))), r"updates: got shape \(2, 3\), expected one that broadcasts"),
        (lambda x: vk.scatter(x, [0], vk.zeros(4)), r"scatter: shapes \(4,\) and \(1, 3\) do not broadcast"),
        (lambda x: vk.scatter_add(x > 0, [0], True), "scatter_add: x: got bool"),
        (lambda x: vk.scatter_add(vk.zeros((0, 3)), vk.array([0]), 1.0), "axis 0 of x has length 0"),
        (lambda x: vk.put_along_axis(x, [[3], [0]], 1.0), "put_along_axis: indices: found 0 to 3, expected 0 to 2"),
        (lambda x: vk.put_along_axis(x, [0], 1.0), r"put_along_axis: indices: got shape \(1,\), expected the axes"),
        (lambda x: vk.put_along_axis(x, [[0]] * 3, 1.0), r"shapes \(3, 1\) and \(2, 1\) do not broadcast"),
        (lambda x: vk.put_along_axis(x, [[0]], vk.array([1])), "put_along_axis: values: got int32"),
        (lambda x: vk.bincount([0], -1), "bincount: length: got -1"),
        (lambda x: vk.bincount([0], 1.0), "bincount: length: got 1.0"),
        (lambda x: vk.bincount([3], 2), "bincount: indices: found 3 to 3, expected 0 to 1"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(vk.VkdnnError, match=message):
        call(vk.zeros((2, 3)) + vk.array(0.0))
