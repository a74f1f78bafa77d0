"""Scans as users call them: results, documents, decoding, gradients, refusals."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError, DtypeError, ShapeError, VkdnnError
from vkdnn.ops.scan import ScanPrefix, outer_col, scan_prefix_outer, scan_suffix_outer
from vkdnn.ops.scan_step import scan_state, scan_step

ORDERS = ["sequential", "chunked"]
order_given = pytest.mark.parametrize("order", ORDERS)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def inputs(batch, tokens, heads, key, value, seed=0):
    rng = np.random.default_rng(seed)
    per_token = [normal(rng, batch, tokens, heads, n) for n in (key, value, key, value)]
    return [*per_token, normal(rng, batch, heads, key, key), normal(rng, batch, heads, value, key)]


def written(k, v, p, r, a0, b0, bounds=None, causal=True):
    """The results in float64."""
    k, v, p, r, a, b = (np.asarray(x, np.float64) for x in (k, v, p, r, a0, b0))
    tokens = k.shape[1]
    a, b = np.stack([a] * tokens, 1), np.stack([b] * tokens, 1)
    for t in range(tokens):
        if t:
            a[:, t], b[:, t] = a[:, t - 1], b[:, t - 1]
        if bounds is not None:
            a[bounds[:, t] != 0, t] = 0
            b[bounds[:, t] != 0, t] = 0
        a[:, t] += k[:, t, :, :, None] * k[:, t, :, None, :]
        b[:, t] += v[:, t, :, :, None] * k[:, t, :, None, :]
    if not causal:
        a[:], b[:] = a[:, -1:].copy(), b[:, -1:].copy()
    bp, ap = np.einsum("bthvk,bthk->bthv", b, p), np.einsum("bthvk,bthk->bthv", a, p)
    btr = np.einsum("bthvk,bthv->bthk", b, r)
    return ScanPrefix(bp, ap, btr, (p * ap).sum(-1), (r * bp).sum(-1), a[:, -1], b[:, -1])


def test_linear_attention_is_a_prefix_scan():
    rng = np.random.default_rng(0)
    q, k, v = (normal(rng, 1, 10, 2, 4) for _ in range(3))
    out = scan_prefix_outer(k, v, q).bp
    weights = np.tril(np.einsum("bthk,bihk->bhti", q, k))
    np.testing.assert_allclose(out.numpy(), np.einsum("bhti,bihv->bthv", weights, v), rtol=1e-4, atol=1e-5)


@order_given
@pytest.mark.parametrize(
    ("shape", "cut", "causal"),
    [
        ((2, 70, 2, 5, 3), True, True),
        ((1, 200, 1, 33, 64), False, True),
        ((2, 65, 1, 1, 129), True, True),
        ((2, 66, 1, 4, 5), False, False),
    ],
)
def test_results_against_float64(order, shape, cut, causal):
    arrays = inputs(*shape)
    bounds = None
    if cut:
        bounds = np.zeros(shape[:2], np.int32)
        bounds[0, [0, 1, 64]] = 1
        bounds[1, shape[1] - 1] = 1
    with vk.device("cpu"):
        results = scan_prefix_outer(*arrays, boundary=bounds, causal=causal, order=order)
        for name, got, want in zip(ScanPrefix._fields, results, written(*arrays, bounds, causal), strict=True):
            error = np.abs(got.numpy() - want).max() / np.abs(want).max()
            assert error < 3e-6, (name, error)


def decayed(k, v, p, r, a0, b0, bounds, decay):
    """written() with states multiplied by ``decay`` before each token."""
    k, v, p, r, a, b = (np.asarray(x, np.float64) for x in (k, v, p, r, a0, b0))
    outs = []
    for t in range(k.shape[1]):
        kept = decay * (bounds[:, t] == 0)[:, None, None, None]
        a = a * kept + k[:, t, :, :, None] * k[:, t, :, None, :]
        b = b * kept + v[:, t, :, :, None] * k[:, t, :, None, :]
        ap, bp = (np.einsum("bhrk,bhk->bhr", s, p[:, t]) for s in (a, b))
        btr = np.einsum("bhvk,bhv->bhk", b, r[:, t])
        outs.append((bp, ap, btr, (p[:, t] * ap).sum(-1), (r[:, t] * bp).sum(-1)))
    return ScanPrefix(*(np.stack(x, 1) for x in zip(*outs, strict=True)), a, b)


def test_decay_against_float64():
    arrays, bounds = inputs(2, 70, 2, 5, 3), np.zeros((2, 70), np.int32)
    bounds[0, [0, 1, 64]] = 1
    with vk.device("cpu"):
        results = scan_prefix_outer(*arrays, boundary=bounds, decay=0.875)
        for name, got, want in zip(ScanPrefix._fields, results, decayed(*arrays, bounds, 0.875), strict=True):
            assert np.abs(got.numpy() - want).max() < 3e-6 * np.abs(want).max(), name
        plain = scan_prefix_outer(*arrays, boundary=bounds)
        for a, b in zip(plain, scan_prefix_outer(*arrays, boundary=bounds, decay=1.0), strict=True):
            assert bits_equal(a.numpy(), b.numpy()).all()


@pytest.mark.parametrize("wide", [False, True])
def test_decay_has_the_same_bits_on_the_device(both, wide):
    arrays, bounds = inputs(2, 33, 1, 130 if wide else 5, 9), np.zeros((2, 33), np.int32)
    bounds[1, [0, 7, 32]] = 1

    def gradients(*a):
        def loss(*x):
            return sum(vk.sum(r * r) for r in scan_prefix_outer(*x, boundary=a[6], decay=0.9))

        return [*scan_prefix_outer(*a[:6], boundary=a[6], decay=0.9), *vk.grad(loss, tuple(range(6)))(*a[:6])]

    both(gradients, *arrays, bounds)


def test_decayed_gradients_against_differences_in_float64():
    arrays, bounds = inputs(2, 9, 1, 3, 2), np.zeros((2, 9), np.int32)
    bounds[0, [0, 4]] = 1
    rng = np.random.default_rng(8)
    with vk.device("cpu"):
        shapes = [r.shape for r in scan_prefix_outer(*arrays, boundary=bounds, decay=0.75)]
        weights = [normal(rng, *s) for s in shapes]

        def loss(*x):
            results = scan_prefix_outer(*x, boundary=bounds, decay=0.75)
            return sum(vk.sum(r * w) for r, w in zip(results, weights, strict=True))

        found = [g.numpy() for g in vk.grad(loss, tuple(range(6)))(*map(vk.array, arrays))]

    def exact(x):
        return sum((r * w).sum() for r, w in zip(decayed(*x, bounds, 0.75), weights, strict=True))

    for i, gradient in enumerate(found):
        for _ in range(6):
            at = tuple(rng.integers(0, n) for n in gradient.shape)
            ends = []
            for sign in (1e-6, -1e-6):
                moved = [np.array(x, np.float64) for x in arrays]
                moved[i][at] += sign
                ends.append(exact(moved))
            slope = (ends[0] - ends[1]) / 2e-6
            assert abs(gradient[at] - slope) < 1e-5 * np.abs(gradient).max() + 1e-6, (i, at)


def test_decayed_pieces_have_the_bits_of_the_whole():
    k, v, p, r, a0, b0 = inputs(2, 20, 2, 5, 3)
    with vk.device("cpu"):
        whole = scan_prefix_outer(k, v, p, r, a0, b0, decay=0.9)
        state, found = scan_state(2, 2, 5, 3, with_a=True, a0=a0, b0=b0), []
        for piece in (slice(0, 1), slice(1, 8), slice(8, 20)):
            results, state = scan_step(state, k[:, piece], v[:, piece], p[:, piece], r[:, piece], decay=0.9)
            found.append(results)
        for i in range(5):
            pieces = np.concatenate([f[i].numpy() for f in found], axis=1)
            assert bits_equal(pieces, whole[i].numpy()).all()


def test_decays_that_cannot_be():
    k, v, p, *_ = inputs(1, 3, 1, 2, 2)
    for decay in (0.0, 1.5, -1.0, float("nan"), "x"):
        with pytest.raises(ArgumentError, match=r"^decay: got .*, expected a number over 0, up to 1"):
            scan_prefix_outer(k, v, p, decay=decay)
    for wrong in ({"order": "chunked"}, {"causal": False}):
        with pytest.raises(ArgumentError, match=r"^decay: got 0.5 with order=.*needs 'sequential' and True"):
            scan_prefix_outer(k, v, p, decay=0.5, **wrong)
    with pytest.raises(ArgumentError, match=r"^decay: got 0.5 with order='chunked'"):
        scan_step(scan_state(1, 1, 2, 2, order="chunked"), k, v, p, decay=0.5)


@order_given
def test_a_boundary_before_everything_hides_the_initial_state(order):
    k, v, p, r, a0, b0 = inputs(1, 3, 1, 2, 2)
    bounds = np.array([[True, False, False]])
    with vk.device("cpu"):
        with_state = scan_prefix_outer(k, v, p, r, a0, b0, boundary=bounds, order=order)
        without = scan_prefix_outer(k, v, p, r, order=order)
        for got, want in zip(with_state, without, strict=True):
            assert bits_equal(got.numpy(), want.numpy()).all()


@order_given
def test_states_of_all_heads_may_serve_every_sequence(order):
    k, v, p, r, a0, b0 = inputs(2, 3, 2, 3, 2)
    with vk.device("cpu"):
        shared = scan_prefix_outer(k, v, p, r, a0[0], b0[0], order=order)
        repeated = [np.repeat(x[:1], 2, 0) for x in (a0, b0)]
        for got, want in zip(shared, scan_prefix_outer(k, v, p, r, *repeated, order=order), strict=True):
            assert bits_equal(got.numpy(), want.numpy()).all()


@order_given
def test_nan_stays_where_it_is(order):
    k, v, p, r, a0, b0 = inputs(2, 140, 2, 3, 2)
    bounds = np.zeros((2, 140), np.int32)
    bounds[:, 80] = 1

    def results(*arrays):
        def loss(*a):
            return sum((vk.sum(x[:, 80:]) for x in scan_prefix_outer(*a, boundary=bounds, order=order)[:5]), 0.0)

        with vk.device("cpu"):
            found = [x.numpy() for x in scan_prefix_outer(*arrays, boundary=bounds, order=order)]
            slopes = vk.grad(loss, argnums=(0, 1, 2, 3))(*map(vk.array, arrays))
            return found, [s.numpy() for s in slopes]

    clean, clean_slopes = results(k, v, p, r, a0, b0)
    for x in (k, v):
        x[0, 70, 0] = np.nan
    found, slopes = results(k, v, p, r, a0, b0)
    for got, want in zip(found[:5], clean[:5], strict=True):
        touched = ~bits_equal(got, want)
        assert touched[0, 70:80, 0].any()
        touched[0, 70:80, 0] = False
        assert not touched.any(), np.argwhere(touched)[:3]
    for got, want in zip(found[5:], clean[5:], strict=True):
        assert bits_equal(got, want).all()
    for got, want in zip(slopes, clean_slopes, strict=True):
        # Only tokens whose own values or state are NaN may have a NaN slope (0 from the loss times NaN).
        touched = ~bits_equal(got, want)
        touched[0, 70:80, 0] = False
        assert not touched.any(), np.argwhere(touched)[:3]
        assert (want[:, :80] == 0).all()


# ---- suffix scans


def test_an_outer_column_is_its_array_without_the_memory():
    rng = np.random.default_rng(1)
    p, r, scale = normal(rng, 2, 9, 1, 3), normal(rng, 2, 9, 1, 4), normal(rng, 2, 9, 1)
    x, y = normal(rng, 2, 9, 1, 4), normal(rng, 2, 9, 1, 3)
    with vk.device("cpu"):
        column = outer_col(p, r, scale) + outer_col(y, x)
        dense = column.materialize()
        want = (p * scale[..., None])[..., None] * r[..., None, :] + y[..., None] * x[..., None, :]
        np.testing.assert_allclose(np.asarray(column), want, rtol=1e-6, atol=1e-6)
        for got, other in zip(scan_suffix_outer(column, x, y), scan_suffix_outer(dense, x, y), strict=True):
            assert (got is None) == (other is None)
            assert got is None or bits_equal(got.numpy(), other.numpy()).all()


@order_given
def test_suffix_scans_against_float64(order):
    rng = np.random.default_rng(2)
    p, r, x, y = (normal(rng, 2, 130, 2, 3) for _ in range(4))
    bounds = np.zeros((2, 130), np.int32)
    bounds[0, [0, 5, 64, 129]] = 1
    with vk.device("cpu"):
        found = scan_suffix_outer(outer_col(p, r), x, y, boundary=bounds, order=order)
        state, d = np.zeros((2, 2, 3, 3)), np.einsum("bthv,bthk->bthvk", p, r, dtype=np.float64)
        for t in range(129, -1, -1):
            if t < 129:
                state[bounds[:, t + 1] != 0] = 0
            state = state + d[:, t]
            for got, want in (
                (found.sx, np.einsum("bhvk,bhk->bhv", state, x[:, t])),
                (found.sty, np.einsum("bhvk,bhv->bhk", state, y[:, t])),
                (found.sy, np.einsum("bhvk,bhk->bhv", state, y[:, t])),
            ):
                np.testing.assert_allclose(got.numpy()[:, t], want, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(found.s.numpy(), state, rtol=1e-4, atol=2e-5)


# ---- decoding


@order_given
@pytest.mark.parametrize("cuts", [[70], [64, 128], [10, 20, 149], list(range(1, 150))], ids=["1", "2", "3", "all"])
def test_pieces_have_the_bits_of_the_whole(order, cuts):
    k, v, p, r, a0, b0 = inputs(2, 150, 1, 3, 2)
    bounds = np.zeros((2, 150), bool)
    bounds[0, [0, 1, 63, 64, 130, 149]] = True
    bounds[1, 70] = True
    step = vk.jit(lambda state, k, v, p, r, bounds: scan_step(state, k, v, p, r, boundary=bounds))
    with vk.device("cpu"):
        whole = scan_prefix_outer(k, v, p, r, a0, b0, boundary=bounds, order=order)
        state = scan_state(2, 1, 3, 2, order=order, with_a=True, a0=a0, b0=b0)
        pieces = []
        for i, j in zip([0, *cuts], [*cuts, 150], strict=True):
            results, state = step(state, *(x[:, i:j] for x in (k, v, p, r, bounds)))
            pieces.append([x.numpy() for x in results])
    assert len(step.traces) == len({j - i for i, j in zip([0, *cuts], [*cuts, 150], strict=True)})
    for n, name in enumerate(ScanPrefix._fields):
        got = np.concatenate([x[n] for x in pieces], 1) if n < 5 else pieces[-1][n]
        assert bits_equal(got, whole[n].numpy()).all(), name


@order_given
def test_decoding_on_the_device_has_the_bits_of_the_whole_on_the_reference(order):
    k, v, p, _, _, b0 = inputs(1, 70, 2, 5, 4)
    step = vk.jit(lambda state, k, v, p: scan_step(state, k, v, p))
    with vk.device("cpu"):
        whole = scan_prefix_outer(k, v, p, None, None, b0, order=order).bp.numpy()
    state, found = scan_state(1, 2, 5, 4, order=order, b0=b0), []
    results, state = step(state, *(x[:, :60] for x in (k, v, p)))
    found.append(results.bp.numpy())
    for t in range(60, 70):
        results, state = step(state, *(x[:, t : t + 1] for x in (k, v, p)))
        found.append(results.bp.numpy())
    assert results.ap is None and results.a is None and results.btr is None
    assert bits_equal(np.concatenate(found, 1), whole).all()


def test_sequences_of_a_batch_may_stand_at_different_positions():
    k, v, p, _, _, _ = inputs(2, 100, 1, 3, 2)
    with vk.device("cpu"):
        whole = scan_prefix_outer(k, v, p, order="chunked").bp.numpy()
        lengths = (20, 63)
        ready = []
        for n in range(2):
            rows = slice(n, n + 1)
            start = scan_state(1, 1, 3, 2, order="chunked")
            ready.append(scan_step(start, *(x[rows, : lengths[n]] for x in (k, v, p)))[1])
        state = type(ready[0])(*(None if x[0] is None else vk.concatenate(x) for x in zip(*ready, strict=True)))
        for j in range(3):
            token = [np.stack([x[n, lengths[n] + j] for n in range(2)])[:, None] for x in (k, v, p)]
            results, state = scan_step(state, *token)
            for n in range(2):
                assert bits_equal(results.bp.numpy()[n, 0], whole[n, lengths[n] + j]).all()


# ---- gradients


def _loss(results, weights):
    return sum((vk.sum(x * vk.array(w)) for x, w in zip(results[1:], weights[1:], strict=True)),
               vk.sum(results[0] * vk.array(weights[0])))  # fmt: skip


@order_given
@pytest.mark.parametrize(("causal", "cut"), [(True, False), (True, True), (False, False)])
def test_gradients_against_differences_in_float64(order, causal, cut):
    arrays = inputs(2, 70, 1, 3, 2)
    rng = np.random.default_rng(9)
    weights = [normal(rng, *x.shape) for x in written(*arrays)]
    bounds = None
    if cut:
        bounds = np.zeros((2, 70), np.int32)
        bounds[0, [0, 5, 63]] = 1
        bounds[1, [20, 64, 69]] = 1

    def loss(*a):
        return _loss(scan_prefix_outer(*a, causal=causal, boundary=bounds, order=order), weights)

    def exact_loss(a):
        return sum((w * x).sum() for w, x in zip(weights, written(*a, bounds, causal), strict=True))

    with vk.device("cpu"):
        slopes = [s.numpy().astype(np.float64) for s in vk.grad(loss, argnums=tuple(range(6)))(*map(vk.array, arrays))]
    for i, slope in enumerate(slopes):
        towards = rng.standard_normal(slope.shape)
        ends = []
        for sign in (1, -1):
            moved = [x.astype(np.float64) for x in arrays]
            moved[i] += sign * 1e-5 * towards
            ends.append(exact_loss(moved))
        difference = (ends[0] - ends[1]) / 2e-5
        assert abs(difference - (slope * towards).sum()) < 2e-6 * np.linalg.norm(slope), i


@order_given
def test_gradients_have_the_same_bits_on_the_device(both, order):
    k, v, p, _, _, b0 = inputs(1, 66, 1, 3, 2)
    bounds = np.zeros((1, 66), np.int32)
    bounds[0, 40] = 1

    def slopes(k, v, p, b0):
        def loss(k, v, p, b0):
            results = scan_prefix_outer(k, v, p, None, None, b0, boundary=bounds, order=order)
            return vk.sum(results.bp) + vk.sum(results.b)

        return vk.grad(loss, argnums=(0, 1, 2, 3))(k, v, p, b0)

    both(slopes, k, v, p, b0)


@order_given
def test_the_gradient_of_v_is_a_suffix_scan(order):
    k, v, p, g, _, _ = inputs(2, 130, 1, 3, 2)
    with vk.device("cpu"):
        slope = vk.grad(lambda v: vk.sum(scan_prefix_outer(k, v, p, order=order).bp * vk.array(g)))(vk.array(v))
        suffix = scan_suffix_outer(outer_col(g, p), k, order=order).sx
        assert bits_equal(slope.numpy(), suffix.numpy()).all()


@order_given
def test_second_derivatives_and_suffix_gradients(order):
    k, v, p, g, _, _ = inputs(1, 66, 1, 2, 2)

    def inner(x, w):
        d = outer_col(w, p, vk.sum(x, -1))
        return vk.sum(scan_suffix_outer(d, x, order=order).sx * vk.array(g))

    def outer(x, w):
        slope = vk.grad(inner, argnums=1)(x, w)
        return vk.sum(slope * slope)

    def exact_slope(x):
        # d inner / d w[t] = sum of x over k, times the sum over i <= t of (p_t . x_i) g_i
        scale, seen = x.sum(-1)[..., None], np.einsum("btk,bik->bti", p[:, :, 0], x)
        return scale * np.einsum("bti,biv->btv", np.tril(seen), g[:, :, 0].astype(np.float64))

    with vk.device("cpu"):
        slope = vk.grad(outer)(vk.array(k), vk.array(v)).numpy()[:, :, 0].astype(np.float64)
    rng, x = np.random.default_rng(4), k[:, :, 0].astype(np.float64)
    towards = rng.standard_normal(x.shape)
    ends = [(exact_slope(x + s * 1e-5 * towards) ** 2).sum() for s in (1, -1)]
    assert abs((ends[0] - ends[1]) / 2e-5 - (slope * towards).sum()) < 1e-5 * np.linalg.norm(slope)


# ---- refusals


def test_refusals_name_the_argument_and_the_remedy():
    k, v, p, _, a0, b0 = inputs(1, 4, 1, 3, 2)
    wide = np.zeros((1, 4, 1, 257), np.float32)
    dense = np.zeros((1, 4, 1, 2, 3), np.float32)
    cases = [
        (lambda: scan_prefix_outer(k[0], v, p), ShapeError, "k: got shape"),
        (lambda: scan_prefix_outer(k, v[:, :2], p), ShapeError, "v: got shape"),
        (lambda: scan_prefix_outer(k, v, v), ShapeError, "p: got shape"),
        (lambda: scan_prefix_outer(k, v, p, p), ShapeError, "r: got shape"),
        (lambda: scan_prefix_outer(k, v, p, a0=b0), ShapeError, "a0: got shape"),
        (lambda: scan_prefix_outer(k.astype(np.int32), v, p), DtypeError, "k: got int32"),
        (lambda: scan_prefix_outer(k[:, :0], v[:, :0], p[:, :0]), ShapeError, "at least one"),
        (lambda: scan_prefix_outer(k, v, p, order="fast"), ArgumentError, "order: got 'fast'"),
        (lambda: scan_prefix_outer(wide, v, wide), ArgumentError, "use order='chunked'"),
        (
            lambda: scan_prefix_outer(k, v, p, boundary=np.zeros((1, 3), bool)),
            ShapeError,
            "boundary: got shape",
        ),
        (lambda: scan_prefix_outer(k, v, p, boundary=np.zeros((1, 4), np.float32)), DtypeError, "boundary"),
        (
            lambda: scan_prefix_outer(k, v, p, boundary=np.zeros((1, 4), bool), causal=False),
            ArgumentError,
            "causal",
        ),
        (lambda: scan_suffix_outer(dense, k, order="chunked"), ArgumentError, "outer_col"),
        (lambda: scan_suffix_outer(outer_col(v, k), v), ShapeError, "x: got shape"),
        (lambda: outer_col(v, k) + outer_col(k, v), ShapeError, "equal shapes"),
        (lambda: sum([outer_col(v, k)] * 3, outer_col(v, k)), ArgumentError, "at most 3"),
        (lambda: outer_col(v, k, k), ShapeError, "scale: got shape"),
        (lambda: scan_state(1, 1, 3, 2, a0=a0), ArgumentError, "with_a"),
        (lambda: scan_step(scan_state(1, 1, 3, 2), k, k, p), ShapeError, "v: got shape"),
    ]
    with vk.device("cpu"):
        for call, error, message in cases:
            with pytest.raises(error, match=message):
                call()


def test_a_chunked_step_has_no_derivative_and_says_what_has():
    k, v, p, _, _, _ = inputs(1, 1, 1, 3, 2)
    with vk.device("cpu"):
        state = scan_state(1, 1, 3, 2, order="chunked")
        with pytest.raises(VkdnnError, match="scan_prefix_outer"):
            vk.grad(lambda k: vk.sum(scan_step(state, k, v, p)[0].bp))(vk.array(k))
