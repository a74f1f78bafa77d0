"""Partial results of attention made one: empty parts, layouts, bad input."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import ArgumentError, DtypeError, ShapeError

RNG = np.random.default_rng(3)


def parts(layout="BTHD"):
    shape, rows = {"BTHD": ((2, 3, 4, 5), (2, 4, 3)), "BHTD": ((2, 4, 3, 5), (2, 4, 3)), "THD": ((3, 4, 5), (4, 3))}[
        layout
    ]
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s).astype(np.float32) for s in (shape, rows, shape, rows)]


@pytest.mark.parametrize("layout", ["BTHD", "BHTD", "THD"])
def test_parts_are_weighted_by_their_sums(both, layout):
    out_a, lse_a, out_b, lse_b = parts(layout)
    got, lse = both(lambda *xs: vk.merge_attention(*xs, layout=layout), out_a, lse_a, out_b, lse_b)
    share = 1 / (1 + np.exp(lse_b.astype(np.float64) - lse_a))
    share = (share if layout == "BHTD" else np.swapaxes(share, -1, -2))[..., None]
    np.testing.assert_allclose(got, share * out_a + (1 - share) * out_b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, np.logaddexp(lse_a.astype(np.float64), lse_b), rtol=1e-6, atol=1e-6)


def test_an_empty_part_changes_nothing_and_two_stay_empty(both):
    out_a, lse_a, out_b, lse_b = parts()
    nothing, unseen = np.full_like(out_b, np.nan), np.full_like(lse_b, -np.inf)
    for order in ((out_a, lse_a, nothing, unseen), (nothing, unseen, out_a, lse_a)):
        out, lse = both(vk.merge_attention, *order)
        assert np.array_equal(out, out_a) and np.array_equal(lse, lse_a)
    out, lse = both(vk.merge_attention, nothing, unseen, nothing, unseen)
    assert not out.any() and np.all(lse == -np.inf)

    def loss(*xs):
        out, lse = vk.merge_attention(*xs)
        return vk.sum(out) + vk.sum(vk.where(vk.isfinite(lse), lse, 0.0))

    for gradient in both(vk.grad(loss, (0, 1, 2, 3)), np.zeros_like(out_a), unseen, np.zeros_like(out_b), unseen):
        assert not gradient.any()


def test_two_halves_are_the_whole():
    q, k, v = (RNG.standard_normal((2, n, 2, 8)).astype(np.float32) for n in (3, 40, 40))
    whole = vk.attention(q, k, v).numpy()
    halves = [vk.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 17), slice(17, 40))]
    np.testing.assert_allclose(vk.merge_attention(*halves[0], *halves[1])[0].numpy(), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({1: np.zeros((2, 3, 4), np.float32), 3: np.zeros((2, 3, 4), np.float32)}, ShapeError, "lse_a: got shape"),
        ({2: np.zeros((2, 3, 4, 6), np.float32)}, ShapeError, "out_b: got shape"),
        ({0: np.zeros((2, 3, 4, 5), np.int32)}, DtypeError, "out_a: got int32"),
    ],
)
def test_bad_parts_are_named(change, error, message):
    arguments = parts()
    for k, value in change.items():
        arguments[k] = value
    with pytest.raises(error, match=message):
        vk.merge_attention(*arguments)
    with pytest.raises(ArgumentError, match="layout: got 'HTD'"):
        vk.merge_attention(*parts(), layout="HTD")
