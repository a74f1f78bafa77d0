"""Kernels of the scans: the written orders, every schedule, devices against the reference, costs."""

from types import SimpleNamespace

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.array import Array
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.fusion.scans import join_scans
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.node import leaf
from vkdnn.kernels import scan, scan_chunk, scan_dot, scan_readout
from vkdnn.kernels.base import Target
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact
from vkdnn.ops.scan import outer_col, scan_prefix_outer, scan_suffix_outer
from vkdnn.schedules import scheduled

CHUNK = 64


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs(batch, tokens, heads, key, value, seed=0):
    """k, v, p, r, a0, b0 of a scan."""
    rng = np.random.default_rng(seed)
    widths = (key, value, key, value)
    arrays = [rng.standard_normal((batch, tokens, heads, n)).astype(np.float32) for n in widths]
    starts = [rng.standard_normal((batch, heads, n, key)).astype(np.float32) for n in (key, value)]
    return [*arrays, *starts]


def boundaries(batch, tokens):
    """First, adjacent, in the middle of and at the start of a chunk, last; the last sequence has one only."""
    found = np.zeros((batch, tokens), np.int32)
    found[0, [t for t in (0, 1, 5, 63, 64, 65, 127, tokens - 1) if t < tokens]] = 1
    if batch > 1:
        found[-1] = 0
        found[-1, tokens // 2] = 7
    return found


# ---- the orders of the documentation, written out for one sequence and one head


def total(products):
    """[n, ...]: in sequence from +0 inside blocks of 128, block sums added in sequence."""
    result = None
    for start in range(0, len(products), 128):
        block = np.zeros(products.shape[1:], np.float32)
        for x in products[start : start + 128]:
            block = basic.add(block, x)
        result = block if result is None else basic.add(result, block)
    return result


def times(state, x):
    """state [R, K] times x [K]."""
    return total(basic.mul(state, x[None]).T)


def outer(u, w):
    return basic.mul(u[:, None], w[None, :])


def written_sequential(u, w, x, start, bounds, reverse=False):
    """Readouts [T, R] and the final state."""
    state, out = start.copy(), np.empty((len(u), u.shape[1]), np.float32)
    for t in range(len(u))[:: -1 if reverse else 1]:
        crossed = bounds[t] if not reverse else t + 1 < len(u) and bounds[t + 1]
        state = np.zeros_like(state) if crossed else state
        state = basic.add(state, outer(u[t], w[t]))
        out[t] = times(state, x[t])
    return out, state


def written_chunked(u, w, x, start, bounds, reverse=False):
    tokens = len(u)
    state, out = start.copy(), np.empty((tokens, u.shape[1]), np.float32)
    chunks = range(0, tokens, CHUNK)
    for first in chunks[::-1] if reverse else chunks:
        inside = range(first, min(first + CHUNK, tokens))
        for t in inside:
            if reverse:
                stop = next((i for i in inside if i > t and bounds[i]), None)
                seen = range(t, inside.stop if stop is None else stop)
                reached = stop is None
            else:
                last = next((i for i in inside[::-1] if i <= t and bounds[i]), None)
                seen = range(first if last is None else last, t + 1)
                reached = last is None
            inner = np.zeros(u.shape[1], np.float32)
            for i in seen:
                score = total(basic.mul(w[i], x[t]))
                inner = basic.add(inner, basic.mul(score, u[i]))
            out[t] = basic.add(times(state, x[t]), inner) if reached else inner
        starts = [i for i in inside if bounds[i]]
        if not starts:
            kept = inside
        else:
            kept = range(first, starts[0]) if reverse else range(starts[-1], inside.stop)
        added = np.zeros_like(state)
        for i in kept:
            added = basic.add(added, outer(u[i], w[i]))
        state = added if starts else basic.add(state, added)
    return out, state


WRITTEN = {"sequential": written_sequential, "chunked": written_chunked}
ORDERS = list(WRITTEN)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("tokens", "key", "value"), [(5, 3, 2), (63, 2, 1), (64, 1, 2), (65, 2, 3), (70, 130, 2)])
def test_the_reference_has_the_written_order(order, tokens, key, value):
    k, v, p, r, a0, b0 = inputs(1, tokens, 1, key, value)
    with vk.device("cpu"):
        for bounds in (np.zeros((1, tokens), np.int32), boundaries(1, tokens)):
            found = scan_prefix_outer(k, v, p, r, a0, b0, boundary=bounds, order=order)
            with exact():
                bp, b = WRITTEN[order](v[0, :, 0], k[0, :, 0], p[0, :, 0], b0[0, 0], bounds[0])
                ap, a = WRITTEN[order](k[0, :, 0], k[0, :, 0], p[0, :, 0], a0[0, 0], bounds[0])
                btr, _ = WRITTEN[order](k[0, :, 0], v[0, :, 0], r[0, :, 0], b0[0, 0].T.copy(), bounds[0])
                pap, rbp = (total(basic.mul(x[0, :, 0], y).T) for x, y in ((p, ap), (r, bp)))
            wanted = (bp, ap, btr, pap, rbp, a, b)
            for name, got, want in zip(found._fields, found, wanted, strict=True):
                assert bits_equal(got.numpy().reshape(want.shape), want).all(), name


@pytest.mark.parametrize("order", ORDERS)
def test_the_reference_of_suffix_scans_has_the_written_order(order):
    tokens, key, value = 130, 3, 2
    k, v, x, y, _, _ = inputs(1, tokens, 1, key, value)
    with vk.device("cpu"):
        for bounds in (np.zeros((1, tokens), np.int32), boundaries(1, tokens)):
            found = scan_suffix_outer(outer_col(v, k), x, y, boundary=bounds, order=order)
            # S_0 does not end where token 0 starts a document.
            bounds[0, 0] = 0
            start = np.zeros((value, key), np.float32)
            with exact():
                sx, s = WRITTEN[order](v[0, :, 0], k[0, :, 0], x[0, :, 0], start, bounds[0], True)
                sty, _ = WRITTEN[order](k[0, :, 0], v[0, :, 0], y[0, :, 0], start.T.copy(), bounds[0], True)
            for got, want in ((found.sx, sx), (found.sty, sty), (found.s, s)):
                assert bits_equal(got.numpy().reshape(want.shape), want).all()


# ---- devices against the reference

SHAPES = [(1, 1, 1, 1, 1), (2, 2, 1, 5, 33), (1, 63, 2, 33, 5), (2, 65, 1, 64, 1), (2, 200, 1, 5, 65)]


@pytest.mark.parametrize(
    ("order", "shape"), [(order, s) for order in ORDERS for s in SHAPES if order == "sequential" or s[1] != 2]
)
def test_prefix_scans_have_the_same_bits_on_the_device(both, order, shape):
    arrays = inputs(*shape)
    both(
        lambda *a: list(scan_prefix_outer(*a[:6], boundary=a[6], order=order)),
        *arrays,
        boundaries(*shape[:2]),
    )


@pytest.mark.parametrize("order", ORDERS)
def test_prefix_scans_without_state_or_boundary(both, order):
    k, v, p, _, _, _ = inputs(2, 70, 2, 9, 3)
    both(lambda k, v, p: scan_prefix_outer(k, v, p, order=order).bp, k, v, p)
    both(lambda k, v, p: list(scan_prefix_outer(k, v, p, v, causal=False, order=order)), k, v, p)


@pytest.mark.parametrize("order", ORDERS)
def test_suffix_scans_have_the_same_bits_on_the_device(both, order):
    k, v, x, y, _, _ = inputs(2, 70, 1, 5, 5)

    def function(k, v, x, y, bounds):
        d = outer_col(v, k) + outer_col(x, y, vk.sum(k, -1)) + outer_col(y, y)
        results = scan_suffix_outer(d, x, y, boundary=bounds, order=order)
        everywhere = scan_suffix_outer(d, x, y, causal=False, order=order)
        return [*results, *everywhere]

    both(function, k, v, x, y, boundaries(2, 70))


def test_dense_increments(both):
    d, x, y = normal(0, 2, 9, 2, 3, 5), normal(1, 2, 9, 2, 5), normal(2, 2, 9, 2, 3)
    results = both(lambda d, x, y: [r for r in scan_suffix_outer(d, x, y) if r is not None], d, x, y)
    state = d[:, ::-1].astype(np.float64).cumsum(1)[:, ::-1]
    np.testing.assert_allclose(results[0], np.einsum("bthvk,bthk->bthv", state, x), rtol=1e-4, atol=1e-5)


def test_a_thousand_tokens(both):
    k, v, p, _, _, _ = inputs(1, 1000, 1, 4, 3)
    both(lambda *a: [scan_prefix_outer(*a, order=o).bp for o in ORDERS], k, v, p)


@pytest.mark.parametrize("order", ORDERS)
def test_hard_values_and_signed_zeros(both, order):
    rng = np.random.default_rng(3)
    k, v, p, r = (rng.choice(HARD_FLOATS, (2, 66, 2, 3)) for _ in range(4))
    both(lambda *a: list(scan_prefix_outer(*a, boundary=boundaries(2, 66), order=order)), k, v, p, r)
    small = np.array([0.0, -0.0, 1.0, -1.0, 2.0**-126, -(2.0**-126)], np.float32)
    k, v, p, r = (rng.choice(small, (2, 5, 1, n)) for n in (1, 2, 1, 2))
    both(lambda *a: list(scan_prefix_outer(*a, order=order)), k, v, p, r)


# ---- schedules


def steps(order="sequential", key=33, value=34):
    """The kernels of a scan with all its results."""
    shapes = [(2, 70, 1, n) for n in (key, value, key, value)]
    arrays = [Array(leaf(s, vk.float32)) for s in shapes]
    results = scan_prefix_outer(*arrays, order=order)
    return schedule([x.node for x in results])


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_no_schedule_changes_a_bit(both, monkeypatch, order, number):
    for family in (scan.ScanSpec, scan_chunk.ProductSpec, scan_chunk.StatesSpec, scan_dot.DotSpec):
        original = family.schedules
        chosen = lambda spec, target, f=original: (f(spec, target)[number % len(f(spec, target))],)  # noqa: E731
        monkeypatch.setattr(family, "schedules", chosen)
    bounds = boundaries(2, 70)
    # Signs of zero and widths below, at and above what one invocation holds; 130 columns are two blocks.
    for key, value in ((1, 2), (5, 34), (130, 9)) if order == "sequential" else ((1, 2), (5, 70)):
        k, v, p, r, _, b0 = inputs(2, 70, 1, key, value)
        k[:, :2], p[:, 1] = -0.0, 0.0

        def function(k, v, p, r, b0, bounds, wide=key > 64):
            results = scan_prefix_outer(k, v, p, r, None, b0, boundary=bounds, order=order)
            return [results.bp, results.b] if wide else [results.bp, results.btr, results.rbp, results.b]

        both(function, k, v, p, r, b0, bounds)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_schedule_changes_a_bit_of_decayed_scans(both, monkeypatch, number):
    original = scan.ScanSpec.schedules
    monkeypatch.setattr(scan.ScanSpec, "schedules", lambda spec, target: (original(spec, target)[number],))
    bounds = boundaries(2, 40)
    for key, value in ((5, 34), (130, 9)):
        k, v, p, r, _, b0 = inputs(2, 40, 1, key, value)

        def function(k, v, p, r, b0, bounds):
            def loss(v, b0):
                results = scan_prefix_outer(k, v, p, r, None, b0, boundary=bounds, decay=0.9)
                return vk.sum(results.bp * results.bp) + vk.sum(results.b), results

            (_, results), gradients = vk.value_and_grad(loss, (0, 1), has_aux=True)(v, b0)
            return [results.bp, results.b, *gradients]

        both(function, k, v, p, r, b0, bounds)


def only(monkeypatch, family, fits):
    """Of a family the first schedule that fits, where there is one."""
    original = family.schedules

    def schedules(spec, target):
        offered = original(spec, target)
        return tuple(filter(fits, offered))[:1] or offered

    monkeypatch.setattr(family, "schedules", schedules)


@pytest.mark.parametrize(("part", "tokens", "columns", "decay"), [(16, 41, 32, 1.0), (5, 40, 5, 0.9), (8, 21, 24, 1.0)])
def test_columns_in_parts_have_the_same_bits(both, monkeypatch, part, tokens, columns, decay):
    only(monkeypatch, scan.ScanSpec, lambda schedule: schedule.part == part)
    k, v, p, _, _, b0 = inputs(2, tokens, 1, columns, 34)
    k[:, :2], p[:, 1] = -0.0, 0.0
    bounds = boundaries(2, tokens) if decay == 1 else None

    def function(k, v, p, b0):
        def loss(v, b0):
            results = scan_prefix_outer(k, v, p, None, None, b0, boundary=bounds, decay=decay)
            return vk.sum(results.bp) + vk.sum(results.b), results

        (_, results), gradients = vk.value_and_grad(loss, (0, 1), has_aux=True)(v, b0)
        return [results.bp, results.b, *gradients]

    both(function, k, v, p, b0)


@pytest.mark.parametrize(
    ("number", "tokens", "key", "value", "documents", "slope"),
    [(0, 70, 64, 64, True, 1), (0, 130, 5, 70, True, 2), (1, 70, 130, 2, False, 0)],
)
def test_readouts_as_one_kernel_have_the_same_bits(both, monkeypatch, number, tokens, key, value, documents, slope):
    monkeypatch.setattr(vk.device(), "software", False)
    k, v, p, r, _, b0 = inputs(2, tokens, 1, key, value)
    k[:, :2], p[:, 1] = -0.0, 0.0
    k[0, 3] = np.nan  # of a short document
    bounds = boundaries(2, tokens) if documents else None

    def function(k, v, p, r, b0):
        def loss(*x):
            out = scan_prefix_outer(*x, None, None, b0, boundary=bounds, order="chunked").bp
            return vk.sum(out * r), out

        (_, out), gradient = vk.value_and_grad(loss, slope, has_aux=True)(k, v, p)
        return [out, gradient]

    with scheduled(lambda spec, offered: offered[number % len(offered)]):
        both(function, k, v, p, r, b0)


def test_the_reference_of_a_readout_is_that_of_its_parts(monkeypatch):
    arrays = inputs(1, 70, 1, 3, 2)[:3]
    arrays[0][0, 3] = np.nan
    found = []
    with vk.device("cpu") as device:
        k, v, p = map(vk.array, arrays)
        for software in (True, False):
            monkeypatch.setattr(device, "software", software)
            bounds = boundaries(1, 70)
            out, pull = vk.vjp(lambda *x, b=bounds: scan_prefix_outer(*x, boundary=b, order="chunked").bp, k, v, p)
            found.append([x.numpy() for x in (out, *pull(v))])
    assert all(bits_equal(a, b).all() for a, b in zip(*found, strict=True))


def test_a_chunked_scan_and_its_gradients_are_few_kernels():
    k, v, p, g = (Array(leaf((1, 128, 2, 8), vk.float32)) for _ in range(4))
    bounds = Array(leaf((1, 128), vk.int32))
    for boundary in (None, bounds):
        out, pull = vk.vjp(lambda *a, b=boundary: scan_prefix_outer(*a, boundary=b, order="chunked").bp, k, v, p)
        parts = schedule([x.node for x in (out, *pull(g))])
        joined = schedule(join_scans([x.node for x in (out, *pull(g))]))
        readout = [s for s in joined if isinstance(s.spec, scan_readout.ReadoutSpec)]
        assert len(readout) == 4
        assert not any(isinstance(s.spec, scan_chunk.ProductSpec) for s in joined)
        assert len(parts) - len(joined) >= 8
        assert {s.spec.reverse for s in readout} == {False, True}
        assert all((s.spec.limit is None) == (s.spec.reached is None) == (boundary is None) for s in readout)


@pytest.mark.parametrize("order", ORDERS)
def test_every_family_offers_two_schedules_in_its_limits(order):
    for step in steps(order):
        for target in (Target(True), Target(False)):
            if "scan" in step.spec.template:
                choices = step.spec.schedules(target)
                assert len(choices) == len(set(choices)) >= 2
                for choice in choices:
                    context = step.spec.context(choice)
                    assert context["local_size"][0] * context["local_size"][1] <= 256
                    staged = context.get("stage", 0) * context.get("columns", 0)
                    assert 4 * staged * len(context.get("per_column", ())) <= 32_768


# ---- specs


def test_what_nobody_wants_is_not_computed():
    arrays = [Array(leaf((1, 5, 1, 3), vk.float32)) for _ in range(3)]
    results = scan_prefix_outer(*arrays)
    (only,) = schedule([results.bp.node])
    assert only.spec.results == (scan.OUT,)
    (only,) = schedule([results.b.node])
    assert only.spec.results == (scan.FINAL,)
    (shared,) = schedule([results.bp.node, results.b.node])
    assert shared.spec.results == (scan.OUT, scan.FINAL)


def test_a_sum_of_outer_columns_is_never_stored():
    p, r, x = (Array(leaf((1, 70, 1, n), vk.float32)) for n in (30, 40, 40))
    for order in ORDERS:
        results = scan_suffix_outer(outer_col(p, r), x, order=order)
        largest = max(n.size for step in schedule([results.sx.node]) for n in step.outputs)
        assert largest < 70 * 30 * 40


def test_costs_count_operations_and_words():
    results = {r: n for step in steps() for r, n in [(step.spec.text().split("\n")[0], step)]}
    spec = next(s.spec for t, s in results.items() if t.startswith("scan forward") and s.spec.rows == 34)
    cost = spec.cost((2, 70))
    elements = 2 * 70 * 33 * 34
    assert cost.flops == 4 * elements
    assert cost.bytes == 4 * (2 * 70 * 2 * (33 + 34) + 2 * 33 * 34)
    for step in steps("chunked"):
        cost = step.spec.cost(step.sizes)
        assert cost.flops >= 0 and cost.bytes > 0


def test_texts_tell_kernels_apart():
    texts = [s.spec.text() for order in ORDERS for s in steps(order)]
    specs = {s.spec for order in ORDERS for s in steps(order)}
    assert len(set(texts)) == len(specs)
    forward = SimpleNamespace(**steps()[0].spec.__dict__)
    forward.reverse = True
    assert scan.ScanSpec(**vars(forward)).text() not in texts
