"""What shares a kernel: patterns of one dispatch and of more; nothing is computed twice."""

import functools

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import bits_equal
from vkdnn.fusion.schedule import schedule, storage
from vkdnn.fusion.spans import cut_long
from vkdnn.ir.node import leaf


def steps(*results):
    """The kernels that compute these arrays."""
    return schedule(cut_long([r.node for r in results]))


def argument(*shape, dtype=vk.float32):
    return vk.Array(leaf(shape, dtype))


def families(*results):
    return [type(s.spec).__name__ for s in steps(*results)]


def adamw(p, g, m, v, lr, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01):
    m = m * beta1 + g * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    return p - lr * (m / (vk.sqrt(v) + eps) + p * decay), m, v


def test_softmax_of_a_scaled_row_is_one_kernel():
    x, s, b = argument(4, 100), argument(100), argument(4, 1)
    assert families(vk.softmax(x * s + b)) == ["FoldSpec"]


X, W, B, ROW = argument(6, 32), argument(32, 48), argument(48), argument(32)

ONE_KERNEL = {
    "rms_norm": lambda: [vk.rms_norm(X, ROW)],
    "layer_norm": lambda: [vk.layer_norm(X, ROW, ROW)],
    "gelu of a product with bias": lambda: [vk.gelu(X @ W + B)],
    "log_softmax": lambda: [vk.log_softmax(X)],
    "softmax along the first axis": lambda: [vk.softmax(X * 2, axis=0)],
    "logsumexp": lambda: [vk.logsumexp(X + 1)],
    "cross-entropy rows": lambda: [vk.logsumexp(X) - vk.sum(X * ROW, axis=-1)],
    "AdamW of one tensor": lambda: adamw(X, X * 1.5, argument(6, 32), argument(6, 32), argument()),
    "residual and norm": lambda: [vk.rms_norm(X + vk.tanh(X)), X + vk.tanh(X)],
    "rotary halves": lambda: [vk.concatenate([-X[:, 16:], X[:, :16]], axis=1) * ROW + X],
    "a product with residual": lambda: [X + (X @ argument(32, 32)) * 0.5],
    "embedding": lambda: [vk.take(argument(10, 32), argument(6, dtype=vk.int32)) * 2 + X],
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_patterns_of_one_kernel(name):
    assert len(steps(*ONE_KERNEL[name]())) == 1


def test_patterns_without_a_rule_still_run(both):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)

    def run(x, w):
        return [
            vk.softmax(vk.softmax(x, axis=0), axis=1),
            vk.softmax(x @ w) @ w,
            (x @ w) @ (w @ w),
            vk.sum(vk.exp(x @ w), axis=0) * vk.sum(x, axis=1)[:, None],
            vk.sum(x.reshape(3, 16), axis=0).reshape(2, 8)[:, ::-1] @ w,
            vk.take(vk.exp(w), vk.array(np.array([1, 1, 0], np.int32))) @ w,
            vk.sum(x @ w, axis=1) + vk.max(x @ w, axis=1),
            vk.rms_norm(vk.transpose(x)) @ x,
        ]

    assert all(
        len(steps(r)) >= 2 for r in run(vk.Array(leaf((6, 8), vk.float32)), vk.Array(leaf((8, 8), vk.float32)))[:5]
    )
    found = both(run, x, w)
    y = x.astype(float) @ w
    np.testing.assert_allclose(found[2], y @ (w @ w), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[3], np.exp(y).sum(0) * x.sum(1)[:, None], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[6], y.sum(1) + y.max(1), rtol=1e-4, atol=1e-4)


# ---- graphs of every shape


def diamond(x):
    e = vk.exp(x)
    return [e + vk.sum(e, axis=1, keepdims=True), e * 2, vk.sum(e * 2, axis=0)]


def product_in_the_middle(x):
    y = vk.tanh(x)
    z = y @ vk.transpose(y)
    return [z + vk.sum(y, axis=1), y, vk.softmax(z)]


def shared_by_different_shapes(x):
    mean = vk.mean(x, axis=1, keepdims=True)
    return [x - mean, mean, vk.sum(mean * mean), vk.broadcast_to(mean, (6, 8)) * vk.transpose(x)[:6, :1]]


def hard_and_soft_uses(x):
    table, scale = x * x, vk.exp(x)
    index = vk.array(np.array([5, 0, 2, 2, 1, 3], np.int32))
    return [table * scale, vk.take(table, index) + scale, vk.take(table, index) * table]


def same_node_twice(x):
    y = x + 1
    return [y, y, y * 2, y, y.reshape(48), y.reshape(2, 24), vk.transpose(y), y[1:]]


def no_work(x):
    return [
        x,
        x.reshape(8, 6),
        vk.zeros((2, 3)),
        vk.arange(4),
        vk.full((), 2.5),
        vk.transpose(x),
        x[:, 1],
        x[0:0] + 1,
    ]


def chain_of_folds(x):
    total = vk.sum(x)
    centred = x - total / 48.0
    return [vk.sum(centred * centred), centred, vk.max(centred - vk.max(x))]


def row_values(x):
    row = vk.exp(vk.sum(x, axis=1))
    return [row, row[:, None] * x, vk.softmax(row), vk.sum(row)]


def mutual_reads(x):
    a, b = vk.sum(x, axis=0), vk.sum(x, axis=1)
    return [x + a + b[:, None], a / vk.sum(b), b * vk.sum(a), (x + a) * (x - b[:, None])]


GRAPHS = [
    diamond,
    product_in_the_middle,
    shared_by_different_shapes,
    hard_and_soft_uses,
    same_node_twice,
    no_work,
    chain_of_folds,
    row_values,
    mutual_reads,
]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.__name__)
def test_results_do_not_depend_on_what_is_asked_for_together(both, graph):
    x = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
    together = both(graph, x)
    with vk.device("cpu"):
        apart = [graph(vk.array(x))[k].numpy() for k in range(len(together))]
    for k, (one, other) in enumerate(zip(apart, together, strict=True)):
        assert bits_equal(one, other).all(), k


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.__name__)
def test_nothing_is_computed_twice(graph):
    results = graph(argument(6, 8))
    made = [node for step in steps(*results) for node in step.outputs]
    assert len(made) == len(set(made))
    read = {node for step in steps(*results) for node in step.inputs}
    kept = {storage(r.node) for r in results}
    assert set(made) <= read | kept  # what nobody asks for is not stored


def test_no_work_takes_no_kernel():
    x = argument(6, 8)
    assert steps(x, x.reshape(48), x[0:0] * 2, vk.reshape(x, (8, 6))) == []


def test_a_kernel_is_the_same_whatever_else_runs():
    x = argument(5, 7)
    alone = steps(vk.softmax(x))
    among = steps(vk.softmax(x), vk.tanh(argument(3)), argument(2, 3) @ argument(3, 4))
    assert alone[0].spec.text() in [s.spec.text() for s in among]


def test_a_scalar_that_was_computed_does_not_become_an_input_of_other_kernels():
    x = argument(4)
    before = steps(vk.where(x > 0.0, x * 1.25, 0.0))[0].spec.text()
    for constant in (vk.full((), 0.0), vk.full((), 1.25), vk.sum(vk.zeros((0, 3)))):
        constant.numpy()
    assert steps(vk.where(x > 0.0, x * 1.25, 0.0))[0].spec.text() == before


@pytest.mark.parametrize("count", [31, 100])
def test_many_inputs_and_many_outputs(both, count):
    arrays = [np.full(3, k, np.float32) for k in range(count)]

    def run(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        shared = vk.exp(xs[0])
        return [total, *(shared + x for x in xs)]

    found = both(run, *arrays)
    assert (found[0] == count * (count - 1) / 2).all() and found[count][0] == count


def test_sizes_of_zero_everywhere(both):
    empty, full = np.zeros((0, 4), np.float32), np.ones((3, 4), np.float32)

    def run(empty, full):
        return [
            empty * 2,
            vk.softmax(empty),
            vk.rms_norm(empty),
            vk.layer_norm(empty),
            empty @ vk.transpose(full),
            vk.concatenate([empty, full]),
            vk.concatenate([full, empty, full]),
            vk.concatenate([empty, empty]),
            vk.sum(empty, 0),
            vk.sum(empty),
            full[3:] + 1,
            full[:, 4:].reshape(0),
            vk.transpose(empty),
            vk.pad(empty, [(1, 1), (0, 0)]),
            vk.broadcast_to(full[:, :1], (3, 0)),
            vk.take(full, np.zeros((0, 2), np.int32)),
            full + vk.sum(empty, 0),
            vk.stack([empty, empty]),
            vk.flip(empty, 0),
            *vk.split(empty, 2, axis=1),
            vk.grad(lambda x: vk.sum(vk.softmax(x)))(empty),
            vk.grad(lambda x: vk.sum(x[3:]) + vk.sum(x[:1]))(full),
        ]

    found = both(run, empty, full)
    assert [r.shape for r in found[:8]] == [(0, 4), (0, 4), (0, 4), (0, 4), (0, 3), (3, 4), (6, 4), (0, 4)]
    assert (found[13] == np.zeros((2, 4))).all() and (found[16] == full).all()
    assert found[-1].tolist() == [[1] * 4, [0] * 4, [0] * 4]


def test_deep_graphs_do_not_recurse():
    x = argument(3)
    y = x
    for k in range(3000):
        y = y * 1.0001 + float(k)
    assert steps(y)
    with vk.device("cpu"):
        x = y = vk.array([1.0, 2.0])
        for _ in range(3000):
            y = y + 1.0
        assert y.numpy().tolist() == [3001, 3002]
        slope = vk.grad(lambda x: vk.sum(functools.reduce(lambda y, _: y + x, range(2000), x)))(x)
        assert slope.numpy().tolist() == [2001, 2001]


def test_the_order_of_steps_is_fixed_by_the_graph():
    x, w = argument(6, 8), argument(8, 8)

    def run():
        h = vk.rms_norm(x) @ w
        return [vk.softmax(h @ vk.transpose(h)) @ h, vk.sum(h)]

    assert [s.spec.text() for s in steps(*run())] == [s.spec.text() for s in steps(*run())]
