"""Random graphs of elementwise work, folds, products and views: the schedule never changes a value."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkdnn as vk
from vkdnn.ir.build import fold_fields, iota

N = 6  # side of the square arrays: every node fits every other
KINDS = (
    "add",
    "sub",
    "mul",
    "where",
    "scale",
    "neg",
    "transpose",
    "flip",
    "shift",
    "sum0",
    "sum1",
    "max1",
    "top",
    "top apart",
    "row",
    "matmul",
    "take",
    "reshape",
    "gather",
    "half",
)


def test_results_that_share_their_work(both):
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    total, centred = both(lambda x: [vk.sum(x, 0), x - vk.sum(x, 0, keepdims=True)], x)
    assert (centred == x - total).all()


@st.composite
def graphs(draw, longest=14):
    """A list of (kind, operand numbers) and the numbers of the results; operand 0 and 1 are the arguments."""
    steps = []
    for k in range(draw(st.integers(1, longest))):
        operands = tuple(draw(st.integers(max(0, k - 5), k + 1)) for _ in range(2))
        steps.append((draw(st.sampled_from(KINDS)), operands))
    results = draw(st.lists(st.integers(0, len(steps) + 1), min_size=1, max_size=4))
    return steps, [*results, len(steps) + 1]


def top(np_like, a):
    """The maximum of each row and its position: for vkdnn two fields of one fold."""
    if np_like is np:
        return a.max(axis=1, keepdims=True), a.argmax(axis=1, keepdims=True)
    return [vk.Array(f, a._device) for f in fold_fields("argmax", (a.node, iota(a.shape, 1)), (1,))]


def build(np_like, steps, x, y, index):
    """All values of a graph, by vkdnn's functions or NumPy's. Values stay small integers, mod 7."""
    values = [x, y]

    def modulo(a):
        return a - np_like.floor(a * 0.125) * 8

    for kind, (i, j) in steps:
        a, b = values[i], values[j]
        if kind == "add":
            c = a + b
        elif kind == "sub":
            c = a - b
        elif kind == "mul":
            c = modulo(a) * modulo(b)
        elif kind == "where":
            c = np_like.where(a > b, a, b * 2)
        elif kind == "scale":
            c = modulo(a) * 3 + 1
        elif kind == "neg":
            c = -a
        elif kind == "transpose":
            c = np_like.transpose(a) + b
        elif kind == "flip":
            c = a[::-1, ::-1]
        elif kind == "shift":
            c = np_like.pad(a[1:, :-1], [(0, 1), (1, 0)])
        elif kind == "sum0":
            c = modulo(a) - np_like.sum(modulo(b), axis=0, keepdims=True)
        elif kind == "sum1":
            c = np_like.sum(modulo(a), axis=1, keepdims=True) + b
        elif kind == "max1":
            c = a - np_like.max(b, axis=1, keepdims=True)
        elif kind == "top":
            value, at = top(np_like, a)
            c = b + value * 2.0 + at * 1.0
        elif kind == "top apart":  # one field goes through a kernel that the user of the other may read
            value, at = top(np_like, a)
            c = (modulo(value) * modulo(b)) @ modulo(b) + at * 1.0
        elif kind == "row":
            c = np_like.broadcast_to(np_like.sum(modulo(a), axis=0) + b[0], (N, N))
        elif kind == "matmul":
            c = modulo(a) @ modulo(b)
        elif kind == "take":
            c = np_like.take(a, index, axis=0) + b
        elif kind == "reshape":
            c = a.reshape(4, 9)[::-1].reshape(N, N)
        elif kind == "gather":
            c = np_like.take(a, index, axis=1)
        else:
            c = np_like.concatenate([a[:3], b[3:]], axis=0)
        values.append(modulo(c))
    return values


def arguments():
    rng = np.random.default_rng(0)
    return rng.integers(-4, 5, (2, N, N)).astype(np.float32), rng.integers(0, N, N).astype(np.int32)


def run(graph):
    steps, results = graph

    def function(x, y, index):
        values = build(vk, steps, x, y, index)
        return [values[k] for k in results]

    (x, y), index = arguments()
    exact = build(np, steps, x.astype(np.float64), y.astype(np.float64), index)
    return function, (x, y, index), [exact[k] for k in results]


def fast(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@fast(300)
@given(graphs())
def test_graphs_on_the_reference(graph):
    function, inputs, wanted = run(graph)
    with vk.device("cpu"):
        found = function(*(vk.array(a) for a in inputs))
        vk.realize(found)
        for got, want in zip(found, wanted, strict=True):
            assert got.shape == want.shape and (got.numpy() == want).all()


@fast(25)
@given(graphs(longest=8))
def test_graphs_on_the_device(both, graph):
    function, inputs, wanted = run(graph)
    for got, want in zip(both(function, *inputs), wanted, strict=True):
        assert (got == want).all()


@fast(60)
@given(graphs())
def test_jitted_and_donating_graphs(graph):
    function, inputs, wanted = run(graph)
    with vk.device("cpu"):
        jitted = vk.jit(function, donate_argnums=(0, 1))
        for _ in range(2):
            found = jitted(*(vk.array(a) for a in inputs))
            for got, want in zip(found, wanted, strict=True):
                assert (got.numpy() == want).all()
