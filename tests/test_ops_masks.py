"""vk.masks: which keys the functions let be seen, what they do to scores, what they refuse."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import masks
from vkdnn.errors import ArgumentError, DtypeError, ShapeError

B, H, QUERIES, KEYS = 2, 3, 4, 6
ROW, COLUMN = np.arange(QUERIES)[:, None], np.arange(KEYS)


@pytest.fixture(autouse=True)
def reference():
    with vk.device("cpu") as device:
        yield device


def axes():
    space = (B, H, QUERIES, KEYS)
    return [vk.array(x) for x in np.meshgrid(*map(np.int32, map(np.arange, space)), indexing="ij", sparse=True)]


def seen(mod):
    """[B, H, Tq, Tk]"""
    found = mod(*axes())
    return np.broadcast_to(found if isinstance(found, bool) else found.numpy(), (B, H, QUERIES, KEYS))


def scored(mod, score):
    return mod(vk.array(score), *axes()).numpy()


def test_a_prefix_language_model_sees_its_prefix_and_what_came_before():
    found = seen(masks.either(masks.causal(), masks.prefix([3, 0])))
    assert np.array_equal(found[0, 1], (COLUMN <= ROW) | (COLUMN < 3)) and np.array_equal(found[1, 0], COLUMN <= ROW)


def test_causal_masks_are_shifted_for_each_sequence():
    assert np.array_equal(seen(masks.causal())[0, 0], COLUMN <= ROW)
    assert np.array_equal(seen(masks.causal(2))[1, 0], COLUMN <= ROW + 2)
    found = seen(masks.causal(vk.array([1, -1])))
    assert np.array_equal(found[0, 2], COLUMN <= ROW + 1) and np.array_equal(found[1, 2], COLUMN <= ROW - 1)


def test_windows_include_both_ends():
    assert np.array_equal(seen(masks.sliding_window(1, 2))[0, 0], (COLUMN >= ROW - 1) & (COLUMN <= ROW + 2))
    assert np.array_equal(seen(masks.sliding_window(0, 0, shift=1))[0, 0], COLUMN == ROW + 1)
    assert np.array_equal(seen(masks.sliding_window(1, None))[0, 0], COLUMN >= ROW - 1)
    assert np.array_equal(seen(masks.sliding_window(None, 1))[0, 0], COLUMN <= ROW + 1)
    for sides in ((None, None), (2**31 - 1, 2**31 - 1), (10**30, 10**30)):
        assert seen(masks.sliding_window(*sides)).all()


def test_documents_see_themselves():
    ids_q, ids_k = np.array([[1, 1, 2, 7]] * B, np.int32), np.array([[1, 2, 2, 3, 1, 0]] * B, np.int32)
    assert np.array_equal(seen(masks.documents(ids_q, ids_k))[1, 2], ids_q[0][:, None] == ids_k[0])
    one = seen(masks.documents(ids_q[:1], ids_k[:1]))
    assert np.array_equal(one, seen(masks.documents(ids_q, ids_k)))


def test_masks_are_combined():
    first, second = masks.causal(), masks.sliding_window(1, 5)
    assert np.array_equal(seen(masks.both(first, second)), seen(first) & seen(second))
    assert np.array_equal(seen(masks.either(first, second)), seen(first) | seen(second))
    assert seen(masks.both()).all() and not seen(masks.either()).any()
    nested = masks.both(masks.either(first, second), masks.prefix([3, 2]))
    assert np.array_equal(seen(nested), (seen(first) | seen(second)) & seen(masks.prefix([3, 2])))


def test_score_functions():
    score = np.random.default_rng(0).standard_normal((B, H, QUERIES, KEYS)).astype(np.float32)
    slopes = np.array([0.5, 0.25, 2.0], np.float32)
    wanted = score - slopes[:, None, None] * np.abs(ROW + 2 - COLUMN)
    assert np.array_equal(scored(masks.alibi(slopes, 2), score), wanted.astype(np.float32))
    each = scored(masks.alibi(np.stack([slopes, -slopes]), 2), score)
    assert np.array_equal(each[0], wanted[0].astype(np.float32))
    assert np.allclose(each[1], (2 * score - wanted)[1], atol=1e-6)
    assert np.allclose(scored(masks.softcap(0.5), score), 0.5 * np.tanh(score / 0.5), atol=1e-6)
    assert np.abs(scored(masks.softcap(0.5), score * 1e6)).max() == 0.5


@pytest.mark.parametrize("name", ["causal", "window", "documents", "alibi", "softcap"])
def test_named_arguments_of_attention_are_these_functions(name):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((B, n, H, 5)).astype(np.float32) for n in (QUERIES, KEYS, KEYS))
    ids, slopes = (rng.integers(0, 2, (B, n)).astype(np.int32) for n in (QUERIES, KEYS)), np.ones(H, np.float32)
    pair = tuple(ids)
    named, written = {
        "causal": ({"causal": True}, {"mask_mod": masks.causal(KEYS - QUERIES)}),
        "window": ({"window": (1, 0)}, {"mask_mod": masks.sliding_window(1, 0, KEYS - QUERIES)}),
        "documents": ({"document_ids": pair}, {"mask_mod": masks.documents(*pair)}),
        "alibi": ({"alibi_slopes": slopes}, {"score_mod": masks.alibi(slopes, KEYS - QUERIES)}),
        "softcap": ({"softcap": 0.7}, {"score_mod": masks.softcap(0.7)}),
    }[name]
    first, second = (vk.attention(q, k, v, **keywords).numpy() for keywords in (named, written))
    assert np.array_equal(first.view(np.uint32), second.view(np.uint32))
    assert not np.array_equal(first, vk.attention(q, k, v).numpy())


BAD = [
    (lambda: masks.sliding_window(-1, 0), ArgumentError, "window: left: got -1"),
    (lambda: masks.sliding_window(0, "a"), ArgumentError, "window: right: got 'a'"),
    (lambda: seen(masks.causal("a")), DtypeError, "mask: got 'a'"),
    (lambda: seen(masks.causal(None)), ArgumentError, "mask: got None"),
    (lambda: seen(masks.causal(1.5)), ArgumentError, "mask: got 1.5"),
    (lambda: seen(masks.causal([0, 1, 2])), ShapeError, r"mask: got shape \(3,\), expected one number for each of 2"),
    (lambda: seen(masks.prefix([1.0, 2.0])), DtypeError, "mask: got float32, expected int32"),
    (lambda: masks.documents([1], [2]), ShapeError, r"document_ids: got shape \(1,\), expected \[B, T\]"),
    (lambda: masks.documents([[1.0]], [[2]]), DtypeError, "document_ids: got float32"),
    (lambda: seen(masks.documents([[1, 2]] * B, [[1] * KEYS] * B)), ShapeError, r"expected \[2, 4\]"),
    (lambda: masks.both("a"), ArgumentError, "both: got 'a', expected a function of 4 arguments"),
    (lambda: masks.either(masks.causal(), lambda q, k: q), ArgumentError, "either: the function takes other arguments"),
    (lambda: masks.alibi([1, 2, 3]), DtypeError, "alibi_slopes: got int32"),
    (lambda: masks.alibi(1.0), ShapeError, r"alibi_slopes: got shape \(\)"),
    (lambda: masks.softcap(-1.0), ArgumentError, "softcap: got -1.0"),
    (lambda: masks.softcap(True), ArgumentError, "softcap: got True"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_shifts_beyond_every_position_hide_nothing_or_all():
    x = np.ones((1, 3, 1, 2), np.float32)
    for shift in (2**30, 2**31 - 1, 2**40):
        assert np.array_equal(
            vk.attention(x, x, x, mask_mod=masks.causal(shift)).numpy(), vk.attention(x, x, x).numpy()
        )
        assert not vk.attention(x, x, x, mask_mod=masks.causal(-shift)).numpy().any()


@pytest.mark.parametrize("combine", [masks.either, masks.both])
def test_combined_masks_must_be_masks(combine):
    x = np.ones((1, 3, 1, 2), np.float32)
    for value in (None, 1.0, [True]):
        with pytest.raises(DtypeError, match=f"{combine.__name__}: a mask returned"):
            vk.attention(x, x, x, mask_mod=combine(lambda b, h, q, k, value=value: value))
