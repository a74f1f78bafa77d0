"""Gradients of every public function against differences of its float64 twin, with the same bits on two devices.

Rows of the op table have their first derivatives in test_ops_elementwise.py; here are their second ones.
"""

import functools
import inspect

import numpy as np
import pytest
from gradients import differences
from test_ops_elementwise import TRUE

import vkdnn as vk
from vkdnn import nn, tree
from vkdnn.errors import VkdnnError
from vkdnn.ops import elementwise

RNG = np.random.default_rng(17)


def normal(*shape):
    return RNG.standard_normal(shape)


def apart(*shape):
    """Values no two of which are close: away from the kinks of extremes and sorts."""
    count = int(np.prod(shape))
    return ((RNG.permutation(count) - count / 2 + 0.25) * (3.0 / count)).reshape(shape)


# ---- float64 twins


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def standardised(x, axis=-1, eps=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def recurrence(a, b, s):
    out = []
    for i in range(b.shape[1]):
        s = a[:, i] * s + b[:, i]
        out.append(s)
    return np.stack(out, 1)


def scattered(x, updates, at, add):
    x = x.copy()
    for i, row in enumerate(at):
        x[row] = x[row] + updates[i] if add else updates[i]
    return x


def put(x, values, at):
    x = x.copy()
    np.put_along_axis(x, at, values, 1)
    return x


def prefix(k, v, p, r, a0, b0):
    mask = np.tril(np.ones((k.shape[1],) * 2))
    a = np.einsum("ti,bihr,bihk->bthrk", mask, k, k) + a0[:, None]
    b = np.einsum("ti,bihv,bihk->bthvk", mask, v, k) + b0[:, None]
    ap, bp = np.einsum("bthrk,bthk->bthr", a, p), np.einsum("bthvk,bthk->bthv", b, p)
    btr = np.einsum("bthvk,bthv->bthk", b, r)
    return [bp, ap, btr, (p * ap).sum(-1), (r * bp).sum(-1), a[:, -1], b[:, -1]]


def suffix(p, r, x, y):
    mask = np.triu(np.ones((p.shape[1],) * 2))
    s = np.einsum("ti,bihv,bihk->bthvk", mask, p, r)
    return [np.einsum("bthvk,bthk->bthv", s, x), np.einsum("bthvk,bthv->bthk", s, y), s[:, 0]]


def cross_entropy(x, targets):
    rows = np.log(np.exp(x).sum(-1))
    return (rows - x[np.arange(len(x)), targets]).mean()


def attention(q, k, v, sinks, slopes):
    """Causal, 2 query heads for one of keys; a sink a head; lse as a second result."""
    shift = np.arange(k.shape[1]) - (np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1])
    scores = np.einsum("bihc,bjc->bhij", q, k[:, :, 0]) / np.sqrt(q.shape[-1]) - slopes[:, None, None] * abs(shift)
    e = np.where(shift <= 0, np.exp(scores), 0)
    total = e.sum(-1) + np.exp(sinks)[:, None]
    return [np.einsum("bhij,bjv->bihv", e / total[..., None], v[:, :, 0]), np.log(total)]


def merged(out_a, lse_a, out_b, lse_b):
    weights = np.exp(np.stack([lse_a, lse_b]))
    total = weights.sum(0)
    shares = np.moveaxis(weights / total, 2, 3)[..., None]
    return [out_a * shares[0] + out_b * shares[1], np.log(total)]


# ---- name -> (function, its twin, arguments); what has several results gives a list

X, Y, ROW, CHANNEL = normal(3, 5), normal(3, 5), normal(5), normal(4)
IMAGE, APART, MATRIX, BATCH = normal(3, 4, 2), apart(3, 5), normal(5, 4), normal(2, 5, 3)
ROWS, PLACES = np.array([2, 0, 2, 1]), np.array([[1, 1, 4], [0, 3, 2], [4, 0, 0]])
ONCE = np.array([[1, 4], [0, 3], [2, 0]])
TOKENS = [normal(2, 4, 1, n) for n in (3, 2, 3, 2)]
STATES = [normal(2, 1, 3, 3), normal(2, 1, 2, 3)]

REDUCTIONS = {
    "sum": (lambda x: vk.sum(x, 0), lambda x: x.sum(0), X),
    "prod": (lambda x: vk.prod(x, 1), lambda x: x.prod(1), X),
    "mean": (vk.mean, np.mean, X),
    "var": (lambda x: vk.var(x, 1, correction=1), lambda x: x.var(1, ddof=1), X),
    "moments": (lambda x: vk.moments(x, 1), lambda x: [x.mean(1), x.var(1)], X),
    "std": (lambda x: vk.std(x, 0), lambda x: x.std(0), X),
    "max": (lambda x: vk.max(x, 1), lambda x: x.max(1), APART),
    "min": (lambda x: vk.min(x, (0, 1)), np.min, APART),
    "norm": (
        lambda x: [vk.norm(x, ord, 1) for ord in (2, 1, 3, float("inf"))],
        lambda x: [np.linalg.norm(x, 2, 1), abs(x).sum(1), (abs(x) ** 3).sum(1) ** (1 / 3), abs(x).max(1)],
        APART,
    ),
}
NORMS = {
    "softmax": (vk.softmax, softmax, X),
    "log_softmax": (lambda x: vk.log_softmax(x, 0), lambda x: np.log(softmax(x, 0)), X),
    "logsumexp": (vk.logsumexp, lambda x: np.log(np.exp(x).sum(-1)), X),
    "rms_norm": (vk.rms_norm, lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w, X, ROW),
    "layer_norm": (vk.layer_norm, lambda x, w, b: standardised(x) * w + b, X, ROW, ROW[::-1]),
    "l2_norm": (vk.l2_norm, lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)), X),
    "group_norm": (
        lambda x, w, b: vk.group_norm(x, 2, w, b),
        lambda x, w, b: standardised(x.reshape(3, 2, 4)).reshape(3, 4, 2) * w[:, None] + b[:, None],
        IMAGE, CHANNEL, CHANNEL[::-1],
    ),
    "batch_norm": (
        lambda x, w, b: vk.batch_norm(x, None, None, w, b, training=True)[0],
        lambda x, w, b: standardised(x, (0, 2)) * w[:, None] + b[:, None],
        IMAGE, CHANNEL, CHANNEL[::-1],
    ),
    "attention": (
        lambda q, k, v, s, a: vk.attention(q, k, v, causal=True, sinks=s, alibi_slopes=a, return_lse=True),
        attention, normal(2, 3, 2, 4), normal(2, 5, 1, 4), normal(2, 5, 1, 3), normal(2), normal(2),
    ),
    "merge_attention": (
        vk.merge_attention, merged, normal(2, 3, 2, 4), normal(2, 2, 3), normal(2, 3, 2, 4), normal(2, 2, 3)
    ),
    "cross_entropy": (lambda x: nn.cross_entropy(x, ROWS[:3]), lambda x: cross_entropy(x, ROWS[:3]), X),
}  # fmt: skip
ORDERS = {
    "cumsum": (lambda x: vk.cumsum(x, 1), lambda x: x.cumsum(1), X),
    "cumprod": (lambda x: vk.cumprod(x, 1), lambda x: x.cumprod(1), X),
    "cummax": (lambda x: vk.cummax(x, 0), lambda x: np.maximum.accumulate(x, 0), APART),
    "cummin": (lambda x: vk.cummin(x, 1, True), lambda x: np.minimum.accumulate(x[:, ::-1], 1)[:, ::-1], APART),
    "linear_recurrence": (lambda a, b, s: vk.linear_recurrence(a, b, 1, initial=s), recurrence, X, Y, normal(3)),
    "sort": (vk.sort, lambda x: np.sort(x, -1), APART),
    "top_k": (lambda x: vk.top_k(x, 3)[0], lambda x: np.sort(x, -1)[:, :-4:-1], APART),
}
PRODUCTS = {
    "matmul": (vk.matmul, np.matmul, BATCH, normal(2, 3, 4)),
    "dot": (vk.dot, np.dot, X, MATRIX),
    "vdot": (vk.vdot, np.vdot, X, Y),
    "outer": (vk.outer, np.outer, ROW, CHANNEL),
    "tensordot": (lambda a, b: vk.tensordot(a, b, 1), lambda a, b: np.tensordot(a, b, 1), X, MATRIX),
    "einsum": (
        lambda a, b: vk.einsum("bij,bj->bi", a, b), lambda a, b: np.einsum("bij,bj->bi", a, b), BATCH, normal(2, 3),
    ),
}  # fmt: skip
INDICES = {
    "take": (lambda x: vk.take(x, ROWS), lambda x: x[ROWS], X),
    "take_along_axis": (lambda x: vk.take_along_axis(x, PLACES, 1), lambda x: np.take_along_axis(x, PLACES, 1), X),
    "put_along_axis": (lambda x, v: vk.put_along_axis(x, ONCE, v, 1), lambda x, v: put(x, v, ONCE), X, normal(3, 2)),
    "scatter": (
        lambda x, u: vk.scatter(x, ROWS, u), lambda x, u: scattered(x, u, ROWS, False), X, normal(4, 5),
    ),
    "scatter_add": (
        lambda x, u: vk.scatter_add(x, ROWS, u), lambda x, u: scattered(x, u, ROWS, True), X, normal(4, 5),
    ),
    "where": (lambda x, y: vk.where(X > Y, x, y), lambda x, y: np.where(X > Y, x, y), X, Y),
    "index": (lambda x: [x[1:, ::-2], x[ROWS, 1]], lambda x: [x[1:, ::-2], x[ROWS, 1]], X),
}  # fmt: skip
SHAPES = {
    name: (function, function if twin is None else twin, *arguments)
    for name, function, twin, *arguments in (
        ("pad", lambda x: vk.pad(x, [(1, 2), (0, 1)]), lambda x: np.pad(x, [(1, 2), (0, 1)]), X),
        ("concatenate", lambda x, y: vk.concatenate([x, y]), lambda x, y: np.concatenate([x, y]), X, Y),
        ("stack", lambda x, y: vk.stack([x, y], 1), lambda x, y: np.stack([x, y], 1), X, Y),
        ("split", lambda x: list(vk.split(x, [2], 1)), lambda x: np.split(x, [2], 1), X),
        ("array_split", lambda x: list(vk.array_split(x, 2, 1)), lambda x: np.array_split(x, 2, 1), X),
        ("unstack", lambda x: list(vk.unstack(x))[::2], lambda x: list(x)[::2], X),
        ("roll", lambda x: vk.roll(x, 2, 1), lambda x: np.roll(x, 2, 1), X),
        ("reshape", lambda x: x.reshape(5, 3), None, X),
        ("transpose", lambda x: x.transpose(2, 0, 1), None, IMAGE),
        ("swapaxes", lambda x: vk.swapaxes(x, 0, 2), lambda x: np.swapaxes(x, 0, 2), IMAGE),
        ("moveaxis", lambda x: vk.moveaxis(x, 0, 2), lambda x: np.moveaxis(x, 0, 2), IMAGE),
        ("broadcast_to", lambda x: vk.broadcast_to(x, (3, 5)), lambda x: np.broadcast_to(x, (3, 5)), ROW),
        ("broadcast_arrays", lambda *x: list(vk.broadcast_arrays(*x)), lambda *x: np.broadcast_arrays(*x), X, ROW),
        ("meshgrid", lambda *x: list(vk.meshgrid(*x)), lambda *x: np.meshgrid(*x), ROW, CHANNEL),
        ("expand_dims", lambda x: vk.expand_dims(x, 1), lambda x: np.expand_dims(x, 1), X),
        ("squeeze", lambda x: vk.squeeze(x, 0), lambda x: np.squeeze(x, 0), X[:1]),
        ("flip", lambda x: vk.flip(x, 0), lambda x: np.flip(x, 0), X),
        ("tile", lambda x: vk.tile(x, (2, 3)), lambda x: np.tile(x, (2, 3)), X),
        ("repeat", lambda x: vk.repeat(x, 3, 1), lambda x: np.repeat(x, 3, 1), X),
        ("tril", vk.tril, np.tril, X),
        ("triu", vk.triu, np.triu, X),
        ("diagonal", vk.diagonal, np.diagonal, X),
        ("diag", vk.diag, np.diag, ROW),
        ("trace", vk.trace, np.trace, X),
    )
}
SCANS = {
    f"{name}, {order}": (functools.partial(function, order), twin, *arguments)
    for order in ("sequential", "chunked")
    for name, function, twin, arguments in (
        ("scan_prefix_outer", lambda order, *x: list(vk.scan_prefix_outer(*x, order=order)), prefix, TOKENS + STATES),
        (
            "scan_suffix_outer",
            lambda order, p, r, x, y: [
                s for s in vk.scan_suffix_outer(vk.outer_col(p, r), x, y, order=order) if s is not None
            ],
            suffix,
            [TOKENS[1], TOKENS[0], TOKENS[2], TOKENS[3]],
        ),
    )
}
GROUPS = {
    "reductions": REDUCTIONS, "norms": NORMS, "orders": ORDERS, "products": PRODUCTS, "indices": INDICES,
    "shapes": SHAPES, "scans": SCANS,
}  # fmt: skip
# Integers, bools, constants, other names for the above, and what is no function of arrays.
WITHOUT = {
    "all", "any", "argmax", "argmin", "argsort", "bincount", "eye", "ones", "zeros", "full", "zeros_like",
    "ones_like", "full_like", "arange", "linspace", "one_hot", "concat", "gather", "outer_col", "array", "asarray",
    "current_device", "device", "devices", "flush", "grad", "jit", "realize", "remat", "value_and_grad", "vjp",
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_gradients_agree_with_differences(both, group):
    table = GROUPS[group]
    flat = [np.asarray(x, np.float32) for case in table.values() for x in case[2:]]
    twins = {name: lambda *xs, f=case[1]: _joined(f(*xs)) for name, case in table.items()}
    weights = {}
    for name, case in table.items():
        count = twins[name](*(np.asarray(x, np.float64) for x in case[2:])).size
        weights[name] = np.random.default_rng(7).uniform(0.5, 1.5, count).astype(np.float32)

    def run(*arrays):
        rest, slopes = list(arrays), []
        for name, case in table.items():
            given = [rest.pop(0) for _ in case[2:]]

            def loss(*xs, function=case[0], weight=weights[name]):
                total, at = 0.0, 0
                for result in tree.flatten(function(*xs))[0]:
                    part = weight[at : at + result.size].reshape(result.shape)
                    total, at = total + vk.sum(result * part), at + result.size
                assert at == weight.size
                return total

            slopes += vk.grad(loss, tuple(range(len(given))))(*given)
        return slopes

    found = both(run, *flat)
    for name, case in table.items():
        wanted = differences(twins[name], [x.astype(np.float32) for x in map(np.asarray, case[2:])], weights[name])
        for k, want in enumerate(wanted):
            got = found.pop(0)
            scale = max(1e-3, float(np.abs(want).max()))
            worst = float(np.abs(got - want).max()) / scale
            assert got.shape == want.shape and worst < 2e-5, f"{name}, argument {k}: off by {worst:.2g} of the largest"
    assert not found


def _joined(results):
    parts = results if isinstance(results, (list, tuple)) else [results]
    return np.concatenate([np.asarray(p).ravel() for p in parts])


def test_every_public_function_is_covered():
    rows = set(elementwise.__all__) | {"where"}  # by the op table, in test_ops_elementwise.py
    tested = {name.split(",")[0] for table in GROUPS.values() for name in table}
    functions = {
        n for n in dir(vk) if not n.startswith("_") and callable(getattr(vk, n)) and not inspect.isclass(getattr(vk, n))
    }
    functions = {n for n in functions if not isinstance(getattr(vk, n), vk.DType)}
    assert functions - rows - tested - WITHOUT == set()
    assert functions >= WITHOUT and not WITHOUT & tested


# ---- second derivatives of rows

REFUSED = {"silu", "gelu", "gelu_tanh", "mish"}  # their slopes are rows without a derivative
STEPS = {"remainder", "fmod", "floor_divide", "sign", "floor", "ceil", "trunc", "round"}


def second(name):
    def slope(*xs):
        return vk.sum(vk.grad(lambda *ys: vk.sum(ys[0]._map(name, *ys)))(*xs))

    return vk.grad(slope)


def test_second_derivatives_of_rows_agree_with_differences():
    for name, (function, *points) in TRUE.items():
        if name in REFUSED | STEPS:
            continue
        x, *rest = [p.astype(np.float32).astype(np.float64) for p in points]
        with vk.device("cpu"):
            got = second(name)(*(vk.array(p) for p in points)).numpy()
        step = 1e-4
        bend = (function(x + step, *rest) - 2 * function(x, *rest) + function(x - step, *rest)) / step**2
        np.testing.assert_allclose(got, bend, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_second_derivatives_that_do_not_exist_are_refused(name):
    with pytest.raises(VkdnnError, match=f"{name}_slope has no derivative"):
        second(name)(vk.array([0.5]))
