"""Kernel families in float64, forward and backward: against the reference, complex steps and themselves in copies."""

import dataclasses

import numpy as np
import pytest
from test_check_wide import STEP, arrays, both_passes, normal

import vkdnn as vk
from vkdnn import nn, streams, tree
from vkdnn.check import attention_cases, wide
from vkdnn.check.library import nn_float64
from vkdnn.fusion.attention import split_attention
from vkdnn.fusion.scans import join_scans
from vkdnn.ir.node import make, toposort
from vkdnn.ops.scan_step import scan_state, scan_step

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def reference():
    with vk.device("cpu") as device:
        yield device


def agree(function, *numpy_arrays, rtol=1e-5):
    """The expression in float64 against float32 of the reference (forward, backward), its gradients against complex
    steps, and copies against single values. The bound is of sums of some hundred terms in float32; 0 is no comparison.
    """
    with_slopes = [k for k, a in enumerate(numpy_arrays) if a.dtype == np.float32]
    xs = arrays(*numpy_arrays)

    def chosen(*floats):
        whole = list(xs)
        for k, x in zip(with_slopes, floats, strict=True):
            whole[k] = x
        return function(*whole)

    values, gradients = both_passes(chosen, *(xs[k] for k in with_slopes))
    inputs = [x.node for x in xs]
    forward = wide.prepare([v.node for v in values], inputs)
    backward = wide.prepare([g.node for g in gradients], inputs)
    truth = [*forward(*numpy_arrays), *backward(*numpy_arrays)]
    rng = np.random.default_rng(3)
    floats = [a.astype(np.float64) if a.dtype == np.float32 else a for a in numpy_arrays]
    seeds = [normal(*v.shape, seed=7).astype(np.float64) for v in values]
    for slope, k in zip(truth[len(values) :], with_slopes, strict=True):
        direction = rng.standard_normal(slope.shape)
        moved = [a + 1j * STEP * direction if j == k else a for j, a in enumerate(floats)]
        step = sum((np.imag(v) / STEP * s).sum() for v, s in zip(forward(*moved), seeds, strict=True))
        size = np.abs(slope * direction).sum()
        assert abs(step - (slope * direction).sum()) <= 1e-9 * size + 1e-12, f"argument {k}"
    moved = [np.stack([a, a[::-1]]) if k in with_slopes and a.ndim else a for k, a in enumerate(floats)]
    twice = [*forward(*moved), *backward(*moved)]
    for one, two in zip(truth, twice, strict=True):
        assert two.shape == (2, *one.shape)
        np.testing.assert_allclose(two[0], one, rtol=1e-12, atol=1e-13)
    if not rtol:
        return
    for got, want in zip([*values, *gradients], truth, strict=True):
        found = got.numpy()
        assert found.shape == want.shape and found.dtype.kind == want.dtype.kind
        np.testing.assert_allclose(found, want, rtol=rtol, atol=rtol * np.abs(want).max(initial=0))


def prefix(**keywords):
    return lambda *xs: list(vk.scan_prefix_outer(*xs[:6], boundary=xs[6] if len(xs) > 6 else None, **keywords))


def scan_arrays(batch, tokens, heads, key, value):
    per_token = [normal(batch, tokens, heads, n, seed=k) for k, n in enumerate((key, value, key, value))]
    return [*per_token, normal(batch, heads, key, key), normal(batch, heads, value, key)]


def bounds(batch, tokens, *at):
    found = np.zeros((batch, tokens), np.int32)
    found[0, list(at)] = 1
    return found


def suffix(order, causal=True, dense=False):
    def run(p, r, x, y, boundary=None):
        column = vk.outer_col(p, r) + vk.outer_col(r * 0.5, p) if order == "sequential" else vk.outer_col(p, r)
        column = column.materialize() if dense else column
        return list(vk.scan_suffix_outer(column, x, y, boundary=boundary, order=order, causal=causal))

    return run


SQUARE = [normal(2, 70, 1, 3, seed=k) for k in range(4)]
INDEX = np.random.default_rng(4).integers(-1, 6, 300).astype(np.int32)


def slopes_of(function):
    """The gradients of a sum of squares: what is differentiated once more."""

    def run(*xs):
        def loss(*a):
            return sum(vk.sum(r * r) for r in tree.flatten(function(*a))[0])

        return list(vk.grad(loss, tuple(range(len(xs))))(*xs))

    return run


FAMILIES = {
    "cumsum of blocks": (lambda x: vk.cumsum(x, 0), [normal(300, 2)]),
    "cumprod of blocks": (lambda x: vk.cumprod(x, 0), [1 + normal(260, 2) * np.float32(0.05)]),
    "cumprod with a zero": (lambda x: vk.cumprod(x, 1), [np.float32([[2, 0, 3, 4], [1, 2, 0, 0]])]),
    "cummax": (lambda x: vk.cummax(x, 0), [normal(300, 2)]),
    "cummin": (lambda x: vk.cummin(x, 0), [normal(300, 2)]),
    "recurrence": (lambda a, b: vk.linear_recurrence(a, b, axis=0), [normal(300, 2) * 0.9, normal(300, 2, seed=1)]),
    "sort": (lambda x: vk.sort(x, axis=0), [normal(77, 2)]),
    "sort down": (lambda x: vk.sort(x, axis=1, descending=True), [normal(2, 130)]),
    "top k": (lambda x: vk.top_k(x, 5, axis=1)[0], [normal(2, 100)]),
    "rows by counting": (lambda t: vk.take(t, vk.array(INDEX), axis=0), [normal(5, 4)]),
    "rows by sorting": (lambda t: vk.take(t, vk.array(INDEX[:3]), axis=0), [normal(500, 1)]),
    "along": (lambda t: vk.take_along_axis(t, vk.array(INDEX[:60].clip(0).reshape(20, 3)), axis=0), [normal(6, 3)]),
    "add to rows": (lambda t, s: vk.scatter_add(t, vk.array(INDEX[:9].clip(0)), s), [normal(6, 2), normal(9, 2)]),
    "scan": (prefix(), scan_arrays(2, 9, 2, 3, 2)),
    "scan of documents": (prefix(decay=0.75), [*scan_arrays(2, 9, 2, 3, 2), bounds(2, 9, 0, 4)]),
    "scan of chunks": (prefix(order="chunked"), [*scan_arrays(2, 130, 1, 3, 2), bounds(2, 130, 3, 64, 70)]),
    "scan of whole chunks": (prefix(order="chunked"), scan_arrays(1, 129, 1, 2, 2)),
    "total": (prefix(causal=False), scan_arrays(2, 5, 1, 3, 2)),
    "suffix": (suffix("sequential"), [*SQUARE, bounds(2, 70, 0, 30)]),
    "suffix of columns": (suffix("sequential", dense=True), [x[:, :9] for x in SQUARE]),
    "suffix of chunks": (suffix("chunked"), [*SQUARE, bounds(2, 70, 0, 30, 66)]),
    "each token": (suffix("sequential", causal=False), SQUARE),
    "segment": (vk.remat(lambda x, w: vk.tanh(x @ w) @ w), [normal(4, 4), normal(4, 4, seed=1)]),
    "product of a plain matrix": (lambda a, b: a @ b, [normal(2, 3, 4), normal(4, 5)]),
    "logsumexp": (lambda x: vk.logsumexp(x, axis=(0, 2)), [normal(3, 4, 5)]),
    "moments": (lambda x: [vk.var(x, axis=1), vk.mean(x, axis=0)], [normal(3, 40)]),
    "products": (lambda x: vk.prod(x, axis=1), [np.float32([[2, 0, 3], [1, 5, 2]])]),
    "products of no rows": (lambda x: vk.prod(x, axis=1), [np.zeros((0, 3), np.float32)]),
    "second order of softmax": (slopes_of(vk.softmax), [normal(3, 5)]),
    "second order of a product": (slopes_of(lambda a, b: a @ b), [normal(2, 3), normal(3, 4)]),
    "second order of rows": (slopes_of(lambda t: vk.take(t, vk.array(INDEX), axis=0)), [normal(5, 2)]),
    "second order of cumprod": (slopes_of(lambda x: vk.cumprod(x, 1)), [normal(2, 6)]),
    "second order of a recurrence": (slopes_of(lambda a, b: vk.linear_recurrence(a, b, axis=1)), [normal(2, 6)] * 2),
    "second order of a sort": (slopes_of(lambda x: vk.sort(x, axis=1)), [normal(2, 40)]),
    "second order of a scan": (slopes_of(prefix(decay=0.75)), scan_arrays(1, 5, 1, 3, 2)),
    "second order of chunks": (slopes_of(prefix(order="chunked")), scan_arrays(1, 66, 1, 2, 2)),
    "extremes": (lambda x: [vk.max(x, axis=(0, 2)), vk.min(x)], [normal(3, 4, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families_forward_and_backward(name):
    function, given_arrays = FAMILIES[name]
    agree(function, *given_arrays, rtol=0 if name == "second order of chunks" else 1e-5)  # slow on the reference


def small(case):
    lengths = (5, 7) if max(case.lengths) > 131 else case.lengths
    return dataclasses.replace(case, lengths=lengths, group=min(case.group, 3), widths=(5, 3))


GROUPS = [attention_cases.Case(key_heads=2, group=3), attention_cases.Case(key_heads=3, layout="THD", batches=4)]
CASES = [small(c) for c in (*attention_cases.pairwise(), *attention_cases.SEEN, *attention_cases.SCORED, *GROUPS)]
LIMITS = {"float32": 5e-6, "float16": 2e-3, "bfloat16": 2e-2}  # of the largest element: the results' own rounding


@pytest.mark.parametrize("first", range(8))
def test_attention_of_every_kind_forward_and_backward(first):
    for case in CASES[first::8]:
        values = case.values()
        xs = arrays(*values.values())
        results = case.run()(*xs)
        truth = wide.evaluate([r.node for r in results], dict(zip([x.node for x in xs], values.values(), strict=True)))
        vk.realize(results)
        for k, (result, want) in enumerate(zip(results, truth, strict=True)):
            found = result.numpy().astype(np.float64)
            size = np.abs(np.where(np.isfinite(want), want, 0)).max(initial=1e-3)
            error = np.where(found == want, 0, np.abs(found - want))
            assert found.shape == want.shape and error.max(initial=0) <= LIMITS[case.dtype] * size, (case, k)


def test_attention_by_blocks_is_attention():
    case = attention_cases.Case("position", "softcap", sinks=True, dropout=0.3, lengths=(2, 300))
    values = case.values()
    xs = arrays(*values.values())
    x = dict(zip(values, xs, strict=True))
    out, lse = vk.attention(x["q"], x["k"], x["v"], **case.keywords(x))
    call = lse.node.args[0]
    merged = split_attention(call, call.args)
    again = [make("result", (merged,), n.attrs, n.shape, n.dtype) for n in (out.node, lse.node)]
    given_values = dict(zip([x.node for x in xs], values.values(), strict=True))
    one, other = (wide.evaluate(nodes, given_values) for nodes in ([out.node, lse.node], again))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


@pytest.mark.parametrize("documents", [False, True])
def test_readouts_of_chunks_as_one_call_are_their_parts(documents):
    given_arrays = [*scan_arrays(2, 130, 1, 3, 2), *([bounds(2, 130, 3, 64, 70)] if documents else [])]
    xs = arrays(*given_arrays)
    values, gradients = both_passes(prefix(order="chunked"), *xs)
    nodes = [r.node for r in (*values, *gradients)]
    joined = join_scans(nodes)
    assert sum(n.kind == "call" and n.attrs[0] == "scan_readout" for n in toposort(joined)) >= 4
    given_values = dict(zip([x.node for x in xs], given_arrays, strict=True))
    for a, b in zip(wide.evaluate(nodes, given_values), wide.evaluate(joined, given_values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_what_attention_does_not_see_may_be_nan():
    q, k, v = normal(1, 3, 1, 2), normal(1, 3, 1, 2, seed=1), normal(1, 3, 1, 2, seed=2)
    k[:, 2], v[:, 2] = np.nan, np.inf
    xs = arrays(q, k, v)
    values, gradients = both_passes(lambda *a: vk.attention(*a, causal=True), *xs)
    nodes = [r.node for r in (*values, *gradients)]
    results = wide.evaluate(nodes, dict(zip([x.node for x in xs], (q, k, v), strict=True)))
    assert np.isfinite(results[0][:, :2]).all() and np.isnan(results[0][:, 2]).all()


def test_scans_step_by_step():
    k, v, p, _, _, b0 = scan_arrays(2, 70, 1, 3, 2)
    for order in ("sequential", "chunked"):
        xs = arrays(k, v, p, b0)
        whole = vk.scan_prefix_outer(*xs[:3], b0=xs[3], order=order).bp
        state = scan_state(2, 1, 3, 2, b0=xs[3], order=order)
        parts = []
        for start, stop in ((0, 1), (1, 60), (60, 70)):
            results, state = scan_step(state, *(x[:, start:stop] for x in xs[:3]))
            parts.append(results.bp)
        values = dict(zip([x.node for x in xs], (k, v, p, b0), strict=True))
        one, *pieces = wide.evaluate([whole.node, *(r.node for r in parts)], values)
        np.testing.assert_allclose(np.concatenate(pieces, axis=1), one, rtol=1e-12, atol=1e-13)


# ---- models

SMALL = {"vocab": 20, "width": 16, "layers": 2, "heads": 2, "hidden": 16}
WIDTHS = {"key_width": 8, "value_width": 8}
MODELS = {
    "rope": (nn.GPTModel(nn.GPTConfig(**SMALL)), nn_float64.gpt_loss),
    "alibi": (nn.GPTModel(nn.GPTConfig(**SMALL, positions="alibi", kv_heads=1, softcap=4.0)), nn_float64.gpt_loss),
    "learned": (
        nn.GPTModel(nn.GPTConfig(**SMALL, positions="learned", mlp="gelu", norm="layer", bias=True)),
        nn_float64.gpt_loss,
    ),
    "window": (nn.GPTModel(nn.GPTConfig(**SMALL, window=5, kv_heads=1, head_dim=6, tied=False)), nn_float64.gpt_loss),
    "sequential": (nn.RAPTModel(nn.RAPTConfig(**SMALL, **WIDTHS)), nn_float64.loss),
    "chunked": (nn.RAPTModel(nn.RAPTConfig(**SMALL, **WIDTHS, order="chunked")), nn_float64.loss),
}


@pytest.mark.parametrize("name", MODELS)
def test_losses_of_models_and_their_gradients(name):
    model, truth = MODELS[name]
    tokens = streams.integers(0, "tokens", (2, 14), 20).astype(np.int32)
    values = [x.numpy() for x in tree.flatten(model.init(seed=1))[0]]
    structure = tree.flatten(model.init(seed=1))[1]
    xs = arrays(*values)
    floats = [v.astype(np.float64) for v in values]
    loss, gradients = vk.value_and_grad(model.loss)(tree.unflatten(structure, xs), tokens)
    inputs = [x.node for x in xs]
    forward = wide.prepare([loss.node], inputs, at=values)
    backward = wide.prepare([g.node for g in tree.flatten(gradients)[0]], inputs)
    (value,) = forward(*values)
    # float32 constants of the forms (1 / n, eps) are those of the model alone.
    np.testing.assert_allclose(value, truth(model, tree.unflatten(structure, floats), tokens), rtol=1e-7)
    largest = max(np.abs(g).max() for g in backward(*values))
    for k, slope in enumerate(backward(*values)):
        direction = np.random.default_rng(k).standard_normal(slope.shape)
        moved = [v + 1j * STEP * direction if j == k else v for j, v in enumerate(floats)]
        error = abs(np.imag(forward(*moved)[0]) / STEP - (slope * direction).sum())
        assert error <= 1e-7 * np.abs(slope * direction).sum() + 1e-12
    if name == "chunked":
        return  # slow on the reference
    assert abs(value - loss.item()) < 1e-6
    for got, want in zip(tree.flatten(gradients)[0], backward(*values), strict=True):
        assert np.abs(got.numpy() - want).max() <= 3e-6 * np.abs(want).max() + 1e-7 * largest
