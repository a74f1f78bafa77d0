"""Kernels of attention: the written orders, every schedule, devices against the reference, costs."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from test_kernels_fold import written_fold

import vkdnn as vk
import vkdnn.check.attention_cases as cases
from vkdnn.check.attention_cases import SCORED, SEEN, Case
from vkdnn.check.hard import bits_equal
from vkdnn.fusion import attention as fusion
from vkdnn.fusion.schedule import schedule
from vkdnn.fusion.spans import cut_long
from vkdnn.ir.define import evaluate
from vkdnn.ir.node import leaf
from vkdnn.kernels.attention import TILES, AttentionSpec
from vkdnn.kernels.attention_blocks import MergeSchedule, SplitSchedule
from vkdnn.kernels.attention_bounds import only_bounds
from vkdnn.kernels.base import Target
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

EVERYTHING = Case("causal", "all", documents=True, sinks=True, dropout=0.3, lengths=(131, 150), group=3)
# Plain bodies, for schedules that compile slowly.
PLAIN = Case("causal", "bias of keys", sinks=True, lengths=(131, 150), group=3)
BOUNDED = Case("causal", "table", sinks=True, lengths=(131, 150), group=3)  # a mask that is no more than its bounds
PACKED = Case("window", layout="THD", lengths=(130, 140), batches=4)
# Few queries and enough keys to be spread over the device.
LONG = Case("position", "softcap", sinks=True, dropout=0.3, lengths=(2, 300))


def traced(case):
    """Specs and sizes of the attention kernels of a case, forward and backward."""
    arrays = [vk.Array(leaf(x.shape, vk.dtypes.of_numpy(x))) for x in case.values().values()]
    steps = schedule(cut_long([r.node for r in case.run()(*arrays)]))
    return [(s.spec, s.sizes) for s in steps if isinstance(s.spec, AttentionSpec)]


def label(one):
    """A schedule by what it is: tiled, together (a subgroup), or by the rows of an invocation or a block."""
    if isinstance(one, SplitSchedule):
        return f"{one.rows} by {one.stage}"
    if isinstance(one, MergeSchedule):
        return "narrow" if one.step == 1 else "wide"
    if one.tiled:
        return f"tiles of {one.lanes}"
    return "together" if one.together else "single" if one.step == 4 else "several"


ORIGINAL = AttentionSpec.schedules


def legal(spec, target):
    """Every schedule that a target may take, whatever it prefers, by name."""
    other = dataclasses.replace(target, software=not target.software)
    return {label(one): one for t in (other, target) for one in ORIGINAL(spec, t)}


def force(monkeypatch, name="single"):
    """Kernels that have no schedule of this name take the first of theirs; single ones compile fastest."""

    def only(self, target):
        return (legal(self, target).get(name) or ORIGINAL(self, target)[0],)

    monkeypatch.setattr(AttentionSpec, "schedules", only)


def check(both, case):
    return both(case.run(), *case.values().values())


# ---- the orders of vkdnn.kernels.attention, told anew for one head


def dots(a, b):
    """a [M, C], b [N, C]: products of rows, in sequence from +0; C at most 128."""
    total = np.zeros((len(a), len(b)), np.float32)
    for c in range(a.shape[1]):
        total = basic.add(total, basic.mul(a[:, None, c], b[None, :, c]))
    return total


def sequence(weights, rows, use):
    """Sum of weights[n] rows[n] over the n in ``use``, from +0."""
    total = np.zeros(rows.shape[1], np.float32)
    for n in np.flatnonzero(use):
        total = basic.add(total, basic.mul(weights[n : n + 1], rows[n]))
    return total


def written(q, k, v, do, live):
    """out, lse, dq, dk, dv of one head, scale 1, as the documentation writes them."""
    scores = dots(q, k)
    out, lse, dq = np.zeros_like(do), np.full(len(q), -np.inf, np.float32), np.zeros_like(q)
    p, ds = np.zeros_like(scores), np.zeros_like(scores)
    blocks = [slice(s, min(s + 128, len(k))) for s in range(0, len(k), 128)]
    for i in range(len(q)):
        state = None
        for j in blocks:
            if not live[i, j].any():
                continue
            peak = scores[i, j][live[i, j]].max(keepdims=True)
            e = np.where(live[i, j], evaluate("exp", basic.sub(scores[i, j], peak)), np.float32(0))
            found = (peak, written_fold("add", e[None]), sequence(e, v[j], live[i, j]))
            if state is not None:
                top = basic.maximum(state[0], peak)
                old, new = (evaluate("softmax_rescale", x, top) for x in (state[0], peak))
                found = (
                    top,
                    *(
                        basic.add(basic.mul(a, old), basic.mul(b, new))
                        for a, b in zip(state[1:], found[1:], strict=True)
                    ),
                )
            state = found
        if state is None:
            continue
        top, weight, o = state
        out[i] = basic.div(o, weight)
        lse[i] = basic.add(top, evaluate("log", weight))[0]
        inverse = basic.div(np.ones(1, np.float32), weight)
        p[i] = basic.mul(evaluate("exp", basic.sub(scores[i], top)), inverse)
        products = basic.mul(do[i], out[i])
        delta = sequence(products, np.ones((len(products), 1), np.float32), np.ones(len(products), bool))
        ds[i] = basic.mul(p[i], basic.sub(dots(do[i : i + 1], v)[0], delta))
        total = None
        for j in blocks:
            if live[i, j].any():
                part = sequence(ds[i, j], k[j], live[i, j])
                total = part if total is None else basic.add(total, part)
        dq[i] = total
    return out, lse, dq, p, ds


def written_keys(weights, rows, live):
    """Sums over queries for each key: weights and live [heads, Tq, Tk], rows [heads, Tq, C]."""
    found = np.zeros((weights.shape[2], rows.shape[2]), np.float32)
    for j in range(len(found)):
        total = None
        for start, h in itertools.product(range(0, rows.shape[1], 128), range(len(rows))):
            i = slice(start, start + 128)
            if live[h, i, j].any():
                part = sequence(weights[h, i, j], rows[h, i], live[h, i, j])
                total = part if total is None else basic.add(total, part)
        found[j] = 0 if total is None else total
    return found


def test_attention_has_the_written_order():
    """Two query heads of one key head; a mask with empty rows, columns and blocks."""
    rng = np.random.default_rng(0)
    queries, keys = 140, 300
    q, do = (rng.standard_normal((1, queries, 2, n)).astype(np.float32) for n in (3, 2))
    k, v = (rng.standard_normal((1, keys, 1, n)).astype(np.float32) for n in (3, 2))
    seen = rng.random((1, 2, queries, keys)) < 0.5
    seen[:, :, 5], seen[:, :, 6, :256], seen[:, 1, :, 7], seen[:, :, :, 9] = False, False, False, False
    seen[:, 0, :128, 10:20] = False
    with vk.device("cpu"):
        results, pull = vk.vjp(
            lambda q, k, v: vk.attention(q, k, v, mask=seen, scale=1.0, return_lse=True), *map(vk.array, (q, k, v))
        )
        got = [x.numpy() for x in (*results, *pull((vk.array(do), vk.zeros((1, 2, queries)))))]
    with exact():
        heads = [written(q[0, :, h], k[0, :, 0], v[0, :, 0], do[0, :, h], seen[0, h]) for h in range(2)]
        out, lse, dq, p, ds = (np.stack(x) for x in zip(*heads, strict=True))
        dk = written_keys(ds, np.moveaxis(q[0], 1, 0), seen[0])
        dv = written_keys(p, np.moveaxis(do[0], 1, 0), seen[0])
    out, dq = np.moveaxis(out, 0, 1), np.moveaxis(dq, 0, 1)
    wanted = (out[None], lse[None], dq[None], dk[None, :, None], dv[None, :, None])
    for name, want, have in zip(("out", "lse", "dq", "dk", "dv"), wanted, got, strict=True):
        assert bits_equal(want, have).all(), name
    assert got[1][0, 0, 5] == -np.inf and not got[0][0, 5].any()


# ---- devices against the reference


@pytest.mark.parametrize("case", [*SEEN, *SCORED[:-1]], ids=repr)
def test_every_mask_alone(both, monkeypatch, case):
    force(monkeypatch)
    check(both, case)


def test_all_that_can_be_combined(both, monkeypatch):
    force(monkeypatch)
    check(both, EVERYTHING)


NAMES, TILED = ("single", "several", "together"), tuple(f"tiles of {n}" for n in TILES)
both_kinds = pytest.mark.parametrize("case", [PLAIN, PACKED], ids=["plain", "packed"])


@pytest.mark.parametrize("name", NAMES)
@both_kinds
def test_every_schedule(both, monkeypatch, case, name):
    force(monkeypatch, name)
    check(both, case)


@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("case", [BOUNDED, PACKED], ids=["bounded", "packed"])
def test_tiles(both, monkeypatch, case, name):
    if "llvmpipe" in vk.device().name and (case, name) != (BOUNDED, TILED[-1]):
        pytest.skip("llvmpipe takes half a minute for these shaders; test_parity_swiftshader.py runs them")
    force(monkeypatch, name)
    check(both, case)


@pytest.mark.parametrize(
    ("wanted", "keywords"),
    [
        (True, {"causal": True, "window": (40, 0)}),
        (True, {"window": (30, 20)}),
        (True, {"causal": True, "mask_mod": lambda b, h, q, k: k < q + 1}),
        (False, {"causal": True, "mask_mod": lambda b, h, q, k: k < q}),
        (False, {"causal": True, "mask_mod": lambda b, h, q, k: k <= q + 0x7FFFFFFF}),  # wraps
        (False, {"mask_mod": lambda b, h, q, k: k <= q}),
        (False, {"causal": True, "mask_mod": lambda b, h, q, k: k <= h}),
    ],
)
def test_masks_that_are_no_more_than_their_bounds(wanted, keywords):
    x = vk.Array(leaf((1, 200, 2, 4), vk.float32))
    ((spec, _),) = ((s.spec, s.sizes) for s in schedule([vk.attention(x, x, x, **keywords).node]))
    at = dict(spec.positions)
    assert only_bounds(spec.body, at["visible"], at.get("low"), at.get("high")) is wanted


def test_no_schedule_is_left_out():
    target = Target(software=True, subgroup_size=8, max_invocations=1024, shared_bytes=49152)
    found = set().union(*(legal(spec, target) for case in (PLAIN, PACKED) for spec, _ in traced(case)))
    assert found == {*NAMES, *TILED}


def test_a_covering_set_covers_every_pair():
    found = {pair for case in cases.covering() for pair in itertools.combinations(sorted(case.items(), key=str), 2)}
    factors = sorted(cases.FACTORS)
    wanted = {
        ((a, x), (b, y)) for a, b in itertools.combinations(factors, 2)
        for x in cases.FACTORS[a] for y in cases.FACTORS[b]
    }  # fmt: skip
    assert wanted <= found and len(cases.covering()) < 100


@pytest.mark.parametrize("case", cases.pairwise()[5::13], ids=repr)
def test_some_of_the_covering_set(both, monkeypatch, case):
    force(monkeypatch)
    check(both, case)


def test_every_call_of_the_covering_set_can_be_computed():
    with vk.device("cpu"):
        for case in cases.pairwise():
            results = case.run()(*map(vk.array, case.values().values()))
            vk.realize(results)
            assert np.isfinite(results[0].numpy().astype(np.float32)).all(), case


@pytest.mark.parametrize(("key", "value"), [(256, 512), (129, 64)])
def test_wide_heads(both, monkeypatch, key, value):
    force(monkeypatch)
    check(both, Case("causal", lengths=(3, 130), widths=(key, value), group=1))


def test_infinities_nan_and_subnormals(both, monkeypatch):
    force(monkeypatch)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 6, 2, 3)).astype(np.float32) for _ in range(3))
    q[0, 1], k[0, 2, 0], v[0, 3, 1] = np.inf, -np.inf, np.nan
    q[0, 2, 0], k[0, 4], v[0, 5] = 1e30, 1e30, 1e-39
    w = np.ones_like(v)

    def run(q, k, v):
        results, pull = vk.vjp(lambda *x: vk.attention(*x, return_lse=True), q, k, v)
        return [*results, *pull((w, vk.ones((1, 2, 6))))]

    out = both(run, q, k, v)[0]
    assert np.isnan(out).any() and not np.isnan(out).all()


def test_operands_may_be_views_of_every_kind(both, monkeypatch):
    """Reversed, strided, broadcast and permuted ones: negative, larger and zero strides; also of what is captured."""
    force(monkeypatch)
    rng = np.random.default_rng(2)
    shapes = ((2, 3, 4, 10), (2, 4, 7, 5), (7, 2, 3), (7, 8, 4), (3, 4))
    q, k, v, bias, sinks = (rng.standard_normal(s).astype(np.float32) for s in shapes)

    def attend(q, k, v, bias, sinks):
        return vk.attention(
            vk.swapaxes(q, 1, 2)[:, ::-1, :2, ::-2],
            vk.swapaxes(k[:, 1:3, ::-1], 1, 2),
            vk.broadcast_to(v, (2, 7, 2, 3)),
            bias=bias[:, ::2].T[::-1, None, :, ::-1][:2],
            sinks=sinks[::-1, 1][:2],
        )

    def run(*arrays):
        result, pull = vk.vjp(attend, *arrays)
        return [result, *pull(vk.ones(result.shape))]

    both(run, q, k, v, bias, sinks)


def test_one_array_may_be_everything(both, monkeypatch):
    force(monkeypatch)
    x = np.random.default_rng(3).standard_normal((2, 7, 2, 7)).astype(np.float32)

    def attend(x):
        table, bias = x.reshape(-1), x[:, :, 0].reshape(2, 1, 7, 7)
        return vk.attention(x, x, x, causal=True, score_mod=lambda s, b, h, q, k: s * bias + vk.take(table, q))

    both(vk.grad(lambda x: vk.sum(attend(x) * x)), x)


def test_bounds_in_arrays_are_clamped_on_the_device(both, monkeypatch):
    """Also gradients for all pairs of sequences whose lengths are not known before."""
    force(monkeypatch)
    x = Case("none", "bias of keys", layout="THD", lengths=(69, 106), batches=2).values()
    arrays = [x["q"], x["k"], x["v"], np.resize(x["bias"], (3, 1, 1, len(x["k"])))]
    bounds = [np.array(b, np.int32) for b in ([-5, 70, 30, 1000], [9, -1, 2000, 4])]

    def run(*arrays):
        *operands, cu_q, cu_k = arrays

        def attend(q, k, v, bias):
            return vk.attention(q, k, v, bias=bias, causal=True, layout="THD", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)

        result, pull = vk.vjp(attend, *operands)
        return [result, *pull(vk.ones(result.shape))]

    assert all(np.isfinite(x).all() for x in both(run, *arrays, *bounds))


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_one_gradient_alone(both, monkeypatch, argument):
    """The gradients of keys and of values are one kernel, which then writes one of them."""
    force(monkeypatch)
    x = Case("causal", lengths=(3, 130)).values()
    (slope,) = both(vk.grad(lambda *x: vk.sum(vk.attention(*x, causal=True)), argument), x["q"], x["k"], x["v"])
    assert slope.shape == x["qkv"[argument]].shape and slope.any()


# ---- few queries of many keys


@pytest.mark.parametrize("case", [LONG, Case("causal window", lengths=(2, 450))], ids=["long", "window"])
def test_attention_spread_over_blocks_has_the_same_bits(both, monkeypatch, case):
    force(monkeypatch)
    spread = check(both, case)
    assert {s.role for s, _ in traced(case)} >= {"split", "merge"}
    monkeypatch.setattr(fusion, "FEW_KEYS", 1 << 30)
    assert "split" not in {s.role for s, _ in traced(case)}
    with vk.device("cpu"):
        plain = [r.numpy() for r in case.run()(*map(vk.array, case.values().values()))]
    assert all(bits_equal(a, b).all() for a, b in zip(spread, plain, strict=True))


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("4 by 32", Case("causal", "all", documents=True, sinks=True, dropout=0.3, lengths=(3, 300), group=3)),
        ("4 by 16", Case("causal window", lengths=(2, 450), widths=(140, 130), group=1)),
        ("8 by 16", Case("boolean", lengths=(2, 300), widths=(20, 6), group=8)),
    ],
    ids=["4 by 32", "4 by 16", "8 by 16"],
)
def test_workgroups_that_have_a_block(both, monkeypatch, name, case):
    """Rows of several queries and heads, sides of narrow values, passes of wide ones; blocks that nobody sees."""

    def only(self, target):
        found = legal(self, target)
        return (found.get(name) or found.get("wide") or found["single"],)

    monkeypatch.setattr(AttentionSpec, "schedules", only)
    run = case.run()
    both(lambda *x: run(*x)[:2], *case.values().values())


# ---- what a spec says


def test_a_causal_mask_costs_half():
    def flops(case):
        return {s.role: s.cost(sizes).flops for s, sizes in traced(case)}

    whole, half = (flops(Case(mask, lengths=(512, 512), widths=(64, 64))) for mask in ("none", "causal"))
    for role in ("forward", "queries", "keys"):
        assert 0.45 < half[role] / whole[role] < 0.6, role
    window = flops(Case("causal window", lengths=(512, 512), widths=(64, 64)))
    assert window["forward"] < whole["forward"] / 40


def test_gradients_of_captured_arrays_alone_need_all_pairs():
    assert "pairs" not in {s.role for s, _ in traced(Case("window", "softcap", sinks=True))}
    assert "pairs" in {s.role for s, _ in traced(Case(score="table"))}


def test_every_kernel_has_a_text_and_a_cost():
    roles = set()
    for case in (EVERYTHING, PACKED, LONG):
        for spec, sizes in traced(case):
            assert spec.role in spec.text() and 0 < spec.cost(sizes).flops < math.inf
            roles.add(spec.role)
    assert roles == {"forward", "split", "merge", "queries", "keys", "pairs"}
