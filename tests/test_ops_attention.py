"""vk.attention as users call it: stated values, what must not change a bit, dropout, bad input.

The bits of devices are tests/test_kernels_attention.py's; here the reference computes.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vkdnn as vk
from vkdnn import random
from vkdnn.check.attention_cases import SEED, Case, kept
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError, VkdnnError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def reference():
    with vk.device("cpu") as device:
        yield device


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def column(*values):
    """[1, T, 1, 1]"""
    return np.array(values, np.float32).reshape(1, -1, 1, 1)


def attend(q, k, v, do=1.0, dlse=0.0, **keywords):
    """out, lse, dq, dk, dv in NumPy; upstream gradients are arrays or numbers."""
    results, pull = vk.vjp(lambda *x: vk.attention(*x, return_lse=True, **keywords), *map(vk.array, (q, k, v)))
    upstream = [np.broadcast_to(np.float32(g), r.shape) for g, r in zip((do, dlse), results, strict=True)]
    slopes = pull(tuple(vk.array(g.astype(r.dtype.numpy)) for g, r in zip(upstream, results, strict=True)))
    return [x.numpy() for x in (*results, *slopes)]


def assert_same(a, b, names=("out", "lse", "dq", "dk", "dv")):
    for name, x, y in zip(names, a, b, strict=True):
        assert bits_equal(x, y).all(), name


# ---- stated values


def test_attention_is_a_mean_of_values_weighted_by_softmax():
    q, k, v = normal(2, 3, 4, 8), normal(2, 5, 2, 8), normal(2, 5, 2, 6)
    out = vk.attention(q, k, v)
    heads = [
        vk.softmax(q[:, :, h] @ np.swapaxes(k[:, :, h // 2], 1, 2) / math.sqrt(8)) @ v[:, :, h // 2] for h in range(4)
    ]
    assert out.shape == (2, 3, 4, 6) and out.dtype is vk.float32
    np.testing.assert_allclose(out.numpy(), vk.stack(heads, 2).numpy(), rtol=1e-5, atol=1e-6)


def test_a_page_may_hold_nan_behind_the_keys_that_are_seen():
    q, v = column(0), column(1, 2, 3, math.nan)
    out, _, dq, dk, dv = attend(q, column(0, 0, 0, math.nan), v, mask_mod=lambda b, h, q, k: k < 3)
    assert out.item() == 2.0 and dq.item() == 0 and dk.ravel()[3] == 0
    assert dv.ravel().tolist() == [np.float32(1 / 3)] * 3 + [0]


def test_a_mask_comes_after_softcap():
    out = vk.attention(column(0), column(0, 0), column(0, 1), softcap=1.0, mask=np.array([True, False]))
    assert out.item() == 0.0
    capped = vk.attention(column(1), column(100, -100), column(0, 1), softcap=1.0, scale=1.0)
    assert abs(capped.item() - 1 / (1 + math.exp(2))) < 1e-6


def test_query_heads_share_key_heads_in_groups():
    q, k = np.zeros((1, 1, 4, 2), np.float32), np.zeros((1, 3, 2, 2), np.float32)
    v = np.broadcast_to(np.array([10, 20], np.float32)[:, None], (1, 3, 2, 1)).copy()
    assert vk.attention(q, k, v).numpy().ravel().tolist() == [10, 10, 20, 20]


def test_an_empty_packed_sequence_takes_no_part():
    q, k, v = (np.array(x, np.float32).reshape(-1, 1, 1) for x in ([1], [1, 2, 3], [4, 5, 6]))
    out, lse, dq, dk, dv = attend(q, k, v, layout="THD", cu_seqlens_q=[0, 0, 1], cu_seqlens_k=[0, 2, 3])
    assert out.ravel().tolist() == [6] and lse.tolist() == [[3]] and dq.ravel().tolist() == [0]
    assert dk.ravel().tolist() == [0, 0, 0] and dv.ravel().tolist() == [0, 0, 1]


def test_very_low_scores_alone_are_no_masked_scores():
    out = vk.attention(column(1), column(-60000, -60001), column(1, 0), scale=1.0)
    np.testing.assert_allclose(out.item(), 1 / (1 + math.exp(-1)), rtol=1e-6)


def test_causal_rows_stand_at_the_last_keys():
    out, lse, dq, dk, dv = attend(np.zeros((1, 5, 1, 1)), np.zeros((1, 2, 1, 1)), column(1, 2), causal=True)
    assert out.ravel().tolist() == [0, 0, 0, 1, 1.5]
    assert lse.ravel().tolist() == [-np.inf] * 3 + [0, np.float32(math.log(2))]
    assert not dq.any() and dv.ravel().tolist() == [1.5, 0.5] and dk.ravel().tolist() == [0, 0]


def test_a_row_that_sees_no_key_is_zero_with_zero_gradients():
    q, k, v = normal(1, 3, 2, 4), normal(1, 4, 1, 4), normal(1, 4, 1, 5)
    seen = np.ones((3, 4), bool)
    seen[1] = False
    out, lse, dq, dk, dv = attend(q, k, v, normal(1, 3, 2, 5), normal(1, 2, 3), mask=seen)
    assert not out[0, 1].any() and np.all(lse[0, :, 1] == -np.inf) and not dq[0, 1].any()
    for x in (out[0, [0, 2]], lse[0, :, [0, 2]], dq[0, [0, 2]], dk, dv):
        assert np.isfinite(x).all() and x.all()
    nothing = attend(q, k, v, mask=np.zeros((1, 1), bool))
    assert not any(x.any() for n, x in enumerate(nothing) if n != 1) and np.all(nothing[1] == -np.inf)


HIDDEN = np.array([True, False, True, True, False])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_what_masked_keys_hold_changes_nothing(value):
    q, k, v, do = normal(1, 3, 2, 4), normal(1, 5, 1, 4), normal(1, 5, 1, 5), normal(1, 3, 2, 5)
    bias = normal(2, 3, 5)
    clean = attend(q, k, v, do, mask=HIDDEN, bias=bias)
    k[0, ~HIDDEN], v[0, ~HIDDEN], bias[..., ~HIDDEN] = value, value, value
    dirty = attend(q, k, v, do, mask=HIDDEN, bias=bias)
    assert_same(clean, dirty)
    assert all(np.isfinite(x).all() for x in dirty) and not dirty[3][0, ~HIDDEN].any()
    slopes = vk.grad(lambda b: vk.sum(vk.attention(q, k, v, mask=HIDDEN, bias=b) * do))(vk.array(bias)).numpy()
    assert np.isfinite(slopes).all() and not slopes[..., ~HIDDEN].any() and slopes[..., HIDDEN].all()


def test_a_bias_of_minus_infinity_hides_a_key_that_holds_nan():
    q, k, v = normal(1, 3, 2, 4), normal(1, 5, 1, 4), normal(1, 5, 1, 5)
    masked = attend(q, k, v, mask=HIDDEN)
    k[0, ~HIDDEN], v[0, ~HIDDEN] = math.nan, math.nan
    assert_same(masked, attend(q, k, v, bias=np.where(HIDDEN, np.float32(0), np.float32(-np.inf))))


def test_a_score_of_minus_infinity_hides_and_of_plus_infinity_spoils():
    q, k, v = np.ones((1, 2, 1, 1), np.float32), column(1, -math.inf, 2), column(3, 5, 7)
    without = attend(q, k[:, [0, 2]], v[:, [0, 2]])
    for x, y in zip(attend(q, k, v)[:3], without[:3], strict=True):
        assert bits_equal(x, y).all()
    q[0, 1] = -1
    out, lse, *_ = attend(q, k, v)
    assert np.isfinite(out[0, 0]).all() and np.isnan(out[0, 1]).all() and np.isnan(lse[0, 0, 1])


def test_a_sink_is_a_key_without_a_value():
    q, k, v, sinks = normal(1, 3, 2, 4), normal(1, 5, 2, 4), normal(1, 5, 2, 5), normal(2)
    out, lse = vk.attention(q, k, v, sinks=sinks, return_lse=True)
    longer = [np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) for x in (k, v)]
    more = vk.attention(
        q,
        *longer,
        score_mod=lambda s, b, h, q, k: vk.where(k == 5, vk.take(vk.array(sinks), h), s),
        return_lse=True,
    )
    for a, b in zip((out, lse), more, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    alone = vk.attention(q, k, v, sinks=sinks, mask=np.zeros(1, bool), return_lse=True)
    assert not alone[0].numpy().any() and np.allclose(alone[1].numpy(), sinks[:, None])


def test_mods_may_ignore_what_they_are_given():
    q, k, v = normal(1, 3, 2, 4), normal(1, 5, 2, 4), normal(1, 5, 2, 5)
    out, _, dq, dk, _ = attend(q, k, v, score_mod=lambda s, b, h, q, k: 0.0, mask_mod=lambda b, h, q, k: True)
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(1, keepdims=True), out.shape), rtol=1e-5, atol=1e-6)
    assert not dq.any() and not dk.any()


def test_gradients_of_one_result_alone():
    q, k, v, do, dlse = call(6)
    of_out = vk.grad(lambda *x: vk.sum(vk.attention(*x) * do), (0, 1, 2))(q, k, v)
    assert_same(attend(q, k, v, do)[2:], [g.numpy() for g in of_out], "qkv")
    of_lse = vk.grad(lambda *x: vk.sum(vk.attention(*x, return_lse=True)[1] * dlse), (0, 1, 2))(q, k, v)
    assert_same(attend(q, k, v, 0.0, dlse)[2:], [g.numpy() for g in of_lse], "qkv")
    assert not of_lse[2].numpy().any()


# ---- what must not change a bit


def call(seed=0, lengths=(6, 140), heads=4, key_heads=2):
    rng = np.random.default_rng(seed)
    (queries, keys), b = lengths, 3
    shapes = ((b, queries, heads, 5), (b, keys, key_heads, 5), (b, keys, key_heads, 3), (b, queries, heads, 3))
    return [rng.standard_normal(s).astype(np.float32) for s in (*shapes, (b, heads, queries))]


def test_a_sequence_has_its_bits_whatever_the_batch():
    q, k, v, do, dlse = call()
    slopes, seen, ids = np.abs(normal(3, 4)), RNG.random((3, 1, 6, 140)) < 0.7, np.sort(RNG.integers(0, 3, (3, 140)))
    ids = ids.astype(np.int32)

    def rows(s):
        return attend(
            q[s], k[s], v[s], do[s], dlse[s], causal=True, alibi_slopes=slopes[s], mask=seen[s],
            document_ids=(ids[s, -6:], ids[s]),
        )  # fmt: skip

    whole, parts = rows(slice(None)), [rows(slice(b, b + 1)) for b in range(3)]
    assert_same(whole, [np.concatenate(x) for x in zip(*parts, strict=True)])


CU_Q, CU_K = [0, 5, 5, 135, 138], [0, 7, 11, 11, 211]
PACKED_Q, PACKED_K, PACKED_V, PACKED_DO = normal(138, 4, 5), normal(211, 2, 5), normal(211, 2, 3), normal(138, 4, 3)
PACKED_DLSE = normal(4, 138)
SLOPES = np.abs(normal(4))
IDS_Q, IDS_K = (np.cumsum(RNG.random(n) < 0.05).astype(np.int32) % 3 for n in (138, 211))
SEQUENCES = list(zip(*([slice(*x) for x in itertools.pairwise(cu)] for cu in (CU_Q, CU_K)), strict=True))


def pack(**keywords):
    bounds = {"layout": "THD", "cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}
    return attend(PACKED_Q, PACKED_K, PACKED_V, PACKED_DO, PACKED_DLSE, **bounds, **keywords)


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"causal": True, "alibi_slopes": SLOPES},
        {"window": (3, 100), "softcap": 2.0, "sinks": SLOPES},
        {"ids": True},
    ],
    ids=str,
)
def test_packed_sequences_have_the_bits_of_each_alone(keywords):
    keywords = dict(keywords)
    with_ids = keywords.pop("ids", False)
    whole = pack(**keywords, **({"document_ids": (IDS_Q, IDS_K)} if with_ids else {}))
    for i, j in SEQUENCES:
        documents = {"document_ids": (IDS_Q[i][None], IDS_K[j][None])} if with_ids else {}
        alone = attend(
            PACKED_Q[i][None], PACKED_K[j][None], PACKED_V[j][None], PACKED_DO[i][None], PACKED_DLSE[None, :, i],
            **keywords, **documents,
        )  # fmt: skip
        assert_same((whole[0][i], whole[1][:, i], whole[2][i], whole[3][j], whole[4][j]), [x[0] for x in alone])


def test_packed_sequences_have_the_bits_of_padded_ones_also_with_dropout():
    """Rows of padding get no gradient from above, and no query sees a key of padding."""
    queries, keys = (np.diff(x).astype(np.int32) for x in (CU_Q, CU_K))
    padded = [np.zeros((4, n, *x.shape[1:]), np.float32) for n, x in
              ((130, PACKED_Q), (200, PACKED_K), (200, PACKED_V), (130, PACKED_DO))]  # fmt: skip
    dlse = np.zeros((4, 4, 130), np.float32)
    for b, (i, j) in enumerate(SEQUENCES):
        for x, y, s in zip(padded, (PACKED_Q, PACKED_K, PACKED_V, PACKED_DO), (i, j, j, i), strict=True):
            x[b, : s.stop - s.start] = y[s]
        dlse[b, :, : i.stop - i.start] = PACKED_DLSE[:, i]

    def seen(b, h, q, k):
        lengths = [vk.take(vk.array(n), b) for n in (queries, keys)]
        return (q < lengths[0]) & (k < lengths[1]) & (k <= q + 5)

    dropout = {"dropout_p": 0.4, "dropout_seed": SEED}
    alone = attend(*padded, dlse, mask_mod=seen, **dropout)
    whole = pack(mask_mod=lambda b, h, q, k: k <= q + 5, **dropout)
    for b, (i, j) in enumerate(SEQUENCES):
        n, m = i.stop - i.start, j.stop - j.start
        assert_same(
            (whole[0][i], whole[1][:, i], whole[2][i], whole[3][j], whole[4][j]),
            (alone[0][b, :n], alone[1][b, :, :n], alone[2][b, :n], alone[3][b, :m], alone[4][b, :m]),
        )


def test_bounds_may_be_arrays_and_those_outside_are_clamped():
    traced = vk.jit(
        lambda q, k, v, cu_q, cu_k: vk.attention(
            q, k, v, layout="THD", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True
        )
    )
    bounds = [np.array(x, np.int32) for x in (CU_Q, CU_K)]
    plain = vk.attention(PACKED_Q, PACKED_K, PACKED_V, layout="THD", cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, causal=True)
    assert bits_equal(traced(PACKED_Q, PACKED_K, PACKED_V, *bounds).numpy(), plain.numpy()).all()
    wild = [np.array([-5, 7, 3, 1000], np.int32), np.array([9, -1, 2000, 4], np.int32)]
    assert np.isfinite(traced(PACKED_Q, PACKED_K, PACKED_V, *wild).numpy()).all()


def test_a_decoding_step_has_the_bits_of_the_last_row():
    q, k, v, *_ = call(1, (200, 200))
    whole = vk.attention(q, k, v, causal=True, window=(150, None), alibi_slopes=SLOPES).numpy()
    for t in (0, 127, 128, 199):
        now = vk.attention(
            q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], causal=True, window=(150, None), alibi_slopes=SLOPES
        )
        assert bits_equal(now.numpy()[:, 0], whole[:, t]).all(), t
    plain = vk.attention(q, k, v, causal=True).numpy()
    cache = [np.concatenate([x, np.full((3, 100, *x.shape[2:]), np.nan, np.float32)], 1) for x in (k, v)]
    step = vk.jit(lambda q, k, v, t: vk.attention(q, k, v, mask_mod=lambda b, h, q, k: k <= t))
    for t in (0, 130, 199):
        now = step(q[:, t : t + 1], *cache, np.int32(t))
        assert bits_equal(now.numpy()[:, 0], plain[:, t]).all(), t


def test_layouts_and_views_have_the_same_bits():
    q, k, v, do, dlse = call(2)
    plain = attend(q, k, v, do, dlse, causal=True)
    turned = [np.ascontiguousarray(np.swapaxes(x, 1, 2)) for x in (q, k, v, do)]
    found = attend(*turned, dlse, causal=True, layout="BHTD")
    assert_same(plain, [x if n == 1 else np.swapaxes(x, 1, 2) for n, x in enumerate(found)])

    def views(q, k, v):
        q, k, v = (vk.swapaxes(x, 1, 2) for x in (q, k, v))
        return vk.attention(q, k[:, ::-1][:, ::-1], v, causal=True, return_lse=True)

    results, pull = vk.vjp(views, *map(vk.array, turned[:3]))
    slopes = [np.swapaxes(x.numpy(), 1, 2) for x in pull((vk.array(do), vk.array(dlse)))]
    assert_same(plain, [*(r.numpy() for r in results), *slopes])


def test_skipping_blocks_changes_no_bit():
    q, k, v, do, dlse = call(3, (150, 400))
    pairs = [
        ({"causal": True}, {"mask_mod": vk.masks.causal(250)}),
        ({"window": (20, 30)}, {"mask_mod": lambda b, h, q, k: (k >= q + 230) & (k <= q + 280)}),
        ({"causal": True, "window": (20, None)}, {"mask_mod": vk.masks.sliding_window(20, 0, 250)}),
        ({}, {"window": (2**40, 2**31 - 1)}),
    ]
    for skipping, plain in pairs:
        assert_same(attend(q, k, v, do, dlse, **skipping), attend(q, k, v, do, dlse, **plain))


def test_jit_and_eager_have_the_same_bits():
    case = Case("causal", "all", documents=True, sinks=True, dropout=0.3, lengths=(20, 140))
    values = list(case.values().values())
    eager = [x.numpy() for x in case.run()(*map(vk.array, values))]
    compiled = [x.numpy() for x in vk.jit(case.run())(*values)]
    assert_same(eager, compiled, range(len(eager)))


# ---- storage types


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_types_are_widened_and_rounded_once(dtype):
    q, k, v, do, dlse = call(4)
    halves = [vk.array(x).astype(dtype).numpy() for x in (q, k, v, do)]
    wide = [x.astype(np.float32) for x in halves]
    found, want = attend(*halves, dlse), attend(*wide, dlse)
    assert found[1].dtype == np.float32 and bits_equal(found[1], want[1]).all()
    for n in (0, 2, 3, 4):
        assert found[n].dtype == halves[0].dtype and bits_equal(found[n], want[n].astype(halves[0].dtype)).all()
    mixed = vk.attention(vk.array(halves[0]), wide[1], wide[2])
    assert mixed.dtype is vk.float32 and bits_equal(mixed.numpy(), want[0]).all()


# ---- dropout


def test_dropout_leaves_what_the_seed_says():
    """Equal scores and values that are rows of the identity: the result is the weights."""
    space, p = (2, 3, 40, 50), 0.3
    q, k = np.zeros((2, 40, 3, 1), np.float32), np.zeros((2, 50, 1, 1), np.float32)
    v = np.broadcast_to(np.eye(50, dtype=np.float32)[:, None], (2, 50, 1, 50)).copy()
    given = {"dropout_p": p, "dropout_seed": SEED}
    weights = np.moveaxis(vk.attention(q, k, v, **given).numpy(), 2, 1)
    left = kept(space, p, SEED)
    assert np.array_equal(weights != 0, left) and len(np.unique(weights)) == 2
    np.testing.assert_allclose(weights.max(), 1 / 50 / (1 - p), rtol=1e-6)
    assert abs(left.mean() - (1 - p)) < 4 * math.sqrt(p * (1 - p) / left.size)
    # the mask of the backward pass is the same: dv of a value is the sum of the weights that it had
    dv = attend(q, k, v, **given)[4]
    np.testing.assert_allclose(dv[:, :, 0, 0], weights.sum((1, 2)), rtol=1e-5)
    key = np.array([SEED & 0xFFFFFFFF, SEED >> 32], np.uint32)
    for seed in (key, vk.array(key)):
        again = vk.attention(q, k, v, dropout_p=p, dropout_seed=seed).numpy()
        assert np.array_equal(np.moveaxis(again, 2, 1), weights)
    turned = vk.attention(*(np.swapaxes(x, 1, 2) for x in (q, k, v)), layout="BHTD", **given).numpy()
    assert np.array_equal(turned, weights)
    for other in (0, SEED + 1, SEED + (1 << 32), random.key(1)):
        mask = np.moveaxis(vk.attention(q, k, v, dropout_p=p, dropout_seed=other).numpy(), 2, 1) != 0
        assert 0.3 < np.mean(mask != left) < 0.55
    part = vk.attention(q[:1, :7], k[:1, :9], v[:1, :9], **given).numpy()
    assert np.array_equal(np.moveaxis(part, 2, 1)[..., :9] != 0, left[:1, :, :7, :9])


def test_dropout_of_nothing_and_of_nearly_everything():
    q, k, v, *_ = call(5)
    plain = vk.attention(q, k, v).numpy()
    for p in (0, 0.0, 1e-12):
        assert bits_equal(vk.attention(q, k, v, dropout_p=p, dropout_seed=3).numpy(), plain).all()
    assert not vk.attention(q, k, v, dropout_p=np.float64(1 - 1e-12), dropout_seed=3).numpy().any()


# ---- nothing to attend from or to


@pytest.mark.parametrize(("b", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("full", [False, True])
def test_empty_axes(b, queries, keys, full):
    q, k, v = normal(b, queries, 4, 5), normal(b, keys, 2, 5), normal(b, keys, 2, 3)
    keywords = {
        "causal": True, "window": (1, 2), "alibi_slopes": SLOPES, "bias": normal(1, 1, 1, 1),
        "mask": np.ones((1, 1), bool), "softcap": 2.0, "dropout_p": 0.2, "dropout_seed": 1,
        "document_ids": (np.zeros((b, queries), np.int32), np.zeros((b, keys), np.int32)),
    } if full else {}  # fmt: skip
    out, lse, *slopes = attend(q, k, v, **keywords)
    assert out.shape == (b, queries, 4, 3) and not out.any()
    assert lse.shape == (b, 4, queries) and np.all(lse == -np.inf)
    for x, slope in zip((q, k, v), slopes, strict=True):
        assert slope.shape == x.shape and not slope.any()
    sinks = vk.array(SLOPES)
    (_, lse), pull = vk.vjp(lambda s: vk.attention(q, k, v, sinks=s, return_lse=True), sinks)
    assert bits_equal(lse.numpy(), np.broadcast_to(SLOPES[:, None], (b, 4, queries))).all()
    assert pull((vk.zeros(out.shape), vk.ones(lse.shape)))[0].numpy().tolist() == [b * queries] * 4


def test_packed_without_tokens_or_sequences():
    for cu_q, cu_k in (([0], [0]), ([0, 0], [0, 0]), ([0, 0, 0], [0, 2, 4]), ([0, 3, 3], [0, 0, 0])):
        q, k, v = normal(cu_q[-1], 4, 5), normal(cu_k[-1], 2, 5), normal(cu_k[-1], 2, 3)
        ids = np.zeros(cu_q[-1], np.int32), np.zeros(cu_k[-1], np.int32)
        bounds = {"layout": "THD", "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        out, lse, *slopes = attend(q, k, v, causal=True, alibi_slopes=SLOPES, document_ids=ids, **bounds)
        assert out.shape == (cu_q[-1], 4, 3) and not out.any() and lse.shape == (4, cu_q[-1])
        assert np.all(lse == -np.inf) and not any(x.any() for x in slopes)


# ---- what mods capture


def test_unseen_pairs_give_no_gradient_whatever_a_mod_makes_of_them(both):
    """log and sqrt of negative distances, a bias of -inf: products with them are NaN where no key is seen."""
    x, w = normal(2, 5, 2, 3), np.array([1.0, 2.0], np.float32)

    def slope(score_mod):
        def loss(w, x):
            return vk.sum(vk.attention(x, x, x, causal=True, score_mod=score_mod(w)))

        return both(vk.grad(loss), w, x)[0]

    def distance(function, least):
        return lambda w: (
            lambda s, b, h, i, j: s - w[h] * w[h] * function(vk.maximum(i - j + 1, least).astype("float32"))
        )

    for function in (vk.log, vk.sqrt):
        found = slope(distance(function, -9))
        assert np.isfinite(found).all() and np.array_equal(found, slope(distance(function, 1)))
    hidden = np.tile(np.array([0, -np.inf, 0, 0, 0], np.float32), (5, 1))

    def by(**masks):
        return both(
            vk.grad(lambda w, x: vk.sum(vk.attention(x, x, x, score_mod=lambda s, b, h, i, j: s * w[h], **masks))), w, x
        )[0]

    assert np.array_equal(by(bias=hidden), by(mask=np.isfinite(hidden)))


def test_mods_look_into_views_of_what_is_not_in_memory():
    x, table = normal(1, 3, 1, 2), np.array([0, 1, 2, 1, 0], np.int32)
    views = {
        "steps of arange": (lambda t: vk.arange(9)[1::2], np.arange(9)[1::2]),
        "part of zeros": (lambda t: vk.zeros((5,), "int32")[1:4], np.zeros(3, int)),
        "part of a pad": (lambda t: vk.pad(t, ((1, 1),))[1:4], table[:3]),
        "backwards": (lambda t: vk.pad(t, ((1, 1),))[::-1], np.pad(table, 1)[::-1]),
        "computed": (lambda t: (t + 1)[1:4], table[1:4] + 1),
    }
    for name, (view, values) in views.items():
        looked_into = view(vk.array(table))
        got = vk.attention(x, x, x, mask_mod=lambda b, h, i, j, z=looked_into: z[j] <= i)
        want = vk.attention(x, x, x, mask=values[:3][None] <= np.arange(3)[:, None])
        assert np.array_equal(got.numpy(), want.numpy()), name


def test_a_score_means_nothing_outside_its_call():
    x, kept = vk.array(normal(1, 3, 1, 2)), []
    vk.attention(x, x, x, score_mod=lambda s, b, h, i, j: kept.append(s) or s)
    with pytest.raises(VkdnnError):
        vk.attention(x, x, x, bias=kept[0]).numpy()
    with pytest.raises(ArgumentError, match="score_mod: the score goes through call"):
        vk.attention(
            x, x, x, score_mod=lambda s, b, h, i, j: s + vk.attention(x, x, x, bias=s).transpose(0, 2, 1, 3)[..., :1]
        )


def test_jitted_functions_are_mods():
    x = vk.array(normal(1, 3, 1, 2))
    got = vk.attention(
        x, x, x, score_mod=vk.jit(lambda s, b, h, i, j: s * 2), mask_mod=vk.jit(lambda b, h, i, j: j <= i)
    )
    want = vk.attention(x, x, x, score_mod=lambda s, b, h, i, j: s * 2, causal=True)
    assert np.array_equal(got.numpy(), want.numpy())


# ---- any call


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_any_call_is_the_plain_formula(data):
    from test_ops_attention_accuracy import errors

    pick = st.sampled_from
    case = Case(
        mask=data.draw(pick(("none", "causal", "window", "causal window", "prefix", "boolean", "position"))),
        score=data.draw(pick(("none", "bias", "alibi", "softcap", "table", "all"))),
        documents=data.draw(st.booleans()), sinks=data.draw(st.booleans()), dropout=data.draw(pick((0.0, 0.5))),
        group=data.draw(st.integers(1, 3)), key_heads=data.draw(st.integers(1, 2)),
        batches=data.draw(st.integers(1, 3)),
        lengths=(data.draw(st.integers(1, 9)), data.draw(st.integers(1, 140))),
        widths=(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))),
    )  # fmt: skip
    for name, (mine, plain, unit) in errors(case).items():
        assert mine < 8 * plain + 64 * max(unit, 2.0**-25), (case, name)
