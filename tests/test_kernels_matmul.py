"""Matrix products: the written order along k, every schedule, operands as views, epilogues."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.kernels.matmul import MatmulSpec
from vkdnn.kernels.matmul_schedules import ThinSchedule, TileSchedule
from vkdnn.numerics import basic
from vkdnn.numerics.flush import exact, flush

SHAPES = [
    (m, k, n)
    for m, k, n in (
        (1, 1, 1),
        (1, 127, 5),
        (3, 128, 2),
        (5, 129, 1),
        (4, 4, 4),
        (63, 7, 31),
        (64, 16, 32),
        (65, 17, 33),
        (66, 257, 64),
        (8, 255, 65),
        (70, 256, 3),
        (2, 300, 130),
        (130, 15, 67),
    )
]
STAGED_SHAPES = [(6, 644, 40), (35, 17, 3)]


def written_product(a, b):
    """a [M, K] times b [K, N]: in sequence from +0 inside blocks of 128 along k, block sums in sequence."""
    total = None
    for start in range(0, a.shape[1], 128):
        block = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(start, min(start + 128, a.shape[1])):
            block = basic.add(block, basic.mul(a[:, k, None], b[None, k, :]))
        total = block if total is None else basic.add(total, block)
    return total


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Every form of the kernel. Tiles for graphics cards are unrolled and larger: these are quicker to compile here.
SCHEDULES = {
    "direct 16x8": TileSchedule(16, 8, (8, 4)),
    "direct 4x4": TileSchedule(4, 4, (8, 8)),
    "direct 1x1": TileSchedule(1, 1, (64, 1)),
    "staged": TileSchedule(4, 4, (16, 16), 16),
    "sliced": TileSchedule(4, 4, (8, 4), 8, unroll=2, slices=2, meeting=1),
    "thin": ThinSchedule(2, 4, 8, 2, 8, 4),
    "thin, mirrored": ThinSchedule(2, 1, 16, 2, 16, 4, mirrored=True),
}


@pytest.fixture(params=SCHEDULES)
def forced(request, monkeypatch):
    """Every product of the test takes one schedule."""
    monkeypatch.setattr(MatmulSpec, "schedules", lambda self, target: (SCHEDULES[request.param],))
    return SCHEDULES[request.param]


def test_a_product_has_the_written_order(both):
    a, b = normal(0, 5, 300), normal(1, 300, 7)
    (product,) = both(lambda a, b: a @ b, a, b)
    with exact():
        assert bits_equal(product, written_product(a, b)).all()
    np.testing.assert_allclose(product, a.astype(float) @ b, rtol=1e-4, atol=1e-4)


def test_shapes_around_tiles_and_blocks(both, forced):
    # Software devices take long to compile a staged product: a few shapes there, all with the others.
    shapes = STAGED_SHAPES if forced.stage_k else SHAPES
    operands = [x for m, k, n in shapes for x in (normal(m, m, k), normal(n, k, n))]
    found = both(lambda *xs: [a @ b for a, b in zip(xs[::2], xs[1::2], strict=True)], *operands)
    with exact():
        for shape, a, b, got in zip(shapes, operands[::2], operands[1::2], found, strict=True):
            assert bits_equal(got, written_product(a, b)).all(), shape


def test_operands_as_views(both):
    x, y = normal(2, 2, 3, 9, 20), normal(3, 20, 5)

    def run(x, y):
        heads = vk.transpose(x, (0, 2, 1, 3))  # [2, 9, 3, 20]
        return [
            heads @ y,
            heads @ vk.swapaxes(heads, -1, -2),
            x @ vk.transpose(x, (0, 1, 3, 2)),
            vk.transpose(y) @ vk.transpose(x[1, 2]),
            x[:, ::-1, 1:8:2] @ y[::-1],
            x[:, :, :, ::2] @ y[::2, 1:],
            vk.swapaxes(x, 0, 1).reshape(6, 9, 20) @ vk.broadcast_to(y, (6, 20, 5)),
            x[0] @ vk.pad(y[3:], [(3, 0), (1, 1)]),
            vk.exp(x * 0.1) @ vk.tanh(y),
            vk.concatenate([x[0, 0], x[1, 1]]) @ y,
            x @ y[:, 0],
            y[:, 0] @ y,
        ]

    def truth(x, y):
        heads = x.transpose(0, 2, 1, 3)
        padded = np.pad(y[3:], [(3, 0), (1, 1)])
        return [
            heads @ y,
            heads @ heads.swapaxes(-1, -2),
            x @ x.transpose(0, 1, 3, 2),
            y.T @ x[1, 2].T,
            x[:, ::-1, 1:8:2] @ y[::-1],
            x[:, :, :, ::2] @ y[::2, 1:],
            x.swapaxes(0, 1).reshape(6, 9, 20) @ y,
            x[0] @ padded,
            np.exp(x * 0.1) @ np.tanh(y),
            np.concatenate([x[0, 0], x[1, 1]]) @ y,
            x @ y[:, 0],
            y[:, 0] @ y,
        ]

    found = both(run, x, y)
    for k, (want, got) in enumerate(zip(truth(x.astype(float), y.astype(float)), found, strict=True)):
        # The float64 truth shows that the right elements meet; the bits are both()'s matter.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(k))


def test_batches_broadcast(both):
    a, b, c = normal(4, 2, 1, 3, 4), normal(5, 5, 4, 6), normal(6, 4, 6)
    wide, plain, vector = both(lambda a, b, c: [a @ b, a @ c, a[0, 0, 0] @ b], a, b, c)
    np.testing.assert_allclose(wide, a @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(plain, a @ c, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(vector, a[0, 0, 0] @ b, rtol=1e-5, atol=1e-5)
    alone = both(lambda a, b: a @ b, a[1, 0], b[3])[0]
    assert bits_equal(wide[1, 3], alone).all()


def test_epilogues(both):
    x, w, b, r = normal(7, 2, 9, 20), normal(8, 20, 30), normal(9, 30), normal(10, 2, 9, 30)

    def run(x, w, b, r):
        y = x @ w
        return [
            vk.gelu(y + b),
            vk.relu(y * 2) + r,
            vk.where(y > 0, y, r[:, ::-1]),
            (y + b).reshape(18, 30),
            vk.transpose(vk.exp(y * 0.1), (0, 2, 1)).reshape(2, 5, 54),
            vk.softmax(y),
            y - vk.mean(y, axis=-1, keepdims=True),
        ]

    found = both(run, x, w, b, r)
    y = x.astype(float) @ w
    np.testing.assert_allclose(found[1], np.maximum(y * 2, 0) + r, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[2], np.where(y > 0, y, r[:, ::-1]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[4], np.exp(y * 0.1).transpose(0, 2, 1).reshape(2, 5, 54), rtol=1e-4)
    np.testing.assert_allclose(found[6], y - y.mean(-1, keepdims=True), rtol=1e-4, atol=1e-4)


def test_views_and_epilogues_in_every_schedule(both, forced):
    """Operands along k and across it, by fours and one by one, with strides that no vector of four can follow."""
    x, y, b = normal(15, 2, 3, 12, 20), normal(16, 20, 8), normal(17, 8)

    def run(x, y, b):
        both_turned = vk.transpose(y) @ vk.swapaxes(x[1], -1, -2)[::-1]
        return [both_turned, both_turned > 0, vk.relu(x[:, :, :, ::2] @ y[::-2] + b)]

    turned, _, rectified = both(run, x, y, b)
    np.testing.assert_allclose(turned, y.T.astype(float) @ x[1].swapaxes(-1, -2)[::-1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rectified, np.maximum(x[..., ::2].astype(float) @ y[::-2] + b, 0), rtol=1e-4, atol=1e-4)


def test_hard_values(both):
    rng = np.random.default_rng(11)
    calm = HARD_FLOATS[np.abs(HARD_FLOATS) < 2.0**60]
    a, b = (flush(rng.permutation(np.resize(calm, 140 * 9))) for _ in range(2))
    a, b = a.reshape(9, 140), b.reshape(140, 9)
    a[2, 139], a[5, 0] = np.nan, np.inf
    border = [x * np.float32(2.0**-63) for x in (normal(12, 9, 140), normal(13, 140, 9))]  # products about 2**-126
    found = both(lambda *xs: [xs[0] @ xs[1], xs[2] @ xs[3]], a, b, *border)
    with exact():
        assert bits_equal(found[0], written_product(a, b)).all()
        assert bits_equal(found[1], written_product(*border)).all()
    assert np.isnan(found[0][2]).all() and np.isfinite(found[0][0]).all()
    assert (found[1] != 0).any() and not bits_equal(found[1], (border[0] @ border[1])).all()


def test_infinity_times_a_padding_lane_is_nothing(both, forced):
    a = np.full((3, 130), 1, np.float32)
    a[1, 129], a[2, 0], a[2, 112] = np.inf, np.nan, np.nan
    for product, k in zip(both(lambda a: [x @ vk.transpose(x) for x in (a, a[:, 110:])], a), (130, 20), strict=True):
        assert product[0, 0] == k and product[0, 1] == np.inf and np.isnan(product[2]).all()


def test_products_are_rounded_before_they_are_added(both):
    a, c = np.float32(1 + 2.0**-12), np.float32(-(1 + 2.0**-11))
    rows, columns = np.array([[a, 1.0]], np.float32), np.array([[a], [c]], np.float32)
    product, plain, epilogue = both(lambda a, b, r, s: [r @ s, a * a + b, r[:, :1] @ s[:1] + b], a, c, rows, columns)
    assert product.item() == plain.item() == epilogue.item() == 0  # fused it would be 2**-24


def test_sums_start_from_plus_zero(both):
    """0 + -0 is +0, even where a compiler unrolls the loop and sees the 0 that a sum starts from."""
    rows, columns = (
        np.array([[-0.0, -1.0], [0.0, -0.0], [1.0, 2.0]], np.float32),
        np.array([[0.0, -0.0]] * 2, np.float32),
    )
    found = both(lambda a, b: [a[:, :1] @ b[:1], a @ b, a @ vk.zeros((2, 5)), vk.zeros((5, 3)) @ a], rows, columns)
    with exact():
        assert bits_equal(found[0], written_product(rows[:, :1], columns[:1])).all()
        assert bits_equal(found[1], written_product(rows, columns)).all()
    assert not np.signbit(found[0][0, 0]) and not np.signbit(found[2]).any()


def test_empty_products(both):
    zeros = [np.zeros(s, np.float32) for s in ((0, 3), (3, 2), (2, 0), (0, 4), (5, 0, 3))]

    def run(a, b, c, d, e):
        return [a @ b, c @ d, vk.transpose(b) @ vk.zeros((3, 0)), e @ b, vk.gelu(c @ d + 1.0), vk.sum(a @ b)]

    found = both(run, *zeros)
    assert [r.shape for r in found] == [(0, 2), (2, 4), (2, 0), (5, 0, 2), (2, 4), ()]
    assert (found[1] == 0).all() and not np.signbit(found[1]).any() and found[5] == 0


def test_gradients_agree_with_central_differences(both):
    arrays = normal(12, 2, 3, 4), normal(13, 4, 3), normal(14, 2, 3, 3)

    def run(x, w, y):
        return vk.grad(lambda x, w, y: vk.sum(vk.tanh(x @ w) @ y * x[:, :, :1]), (0, 1, 2))(x, w, y)

    def truth(x, w, y):
        return ((np.tanh(x @ w) @ y) * x[:, :, :1]).sum()

    for k, got in enumerate(both(run, *arrays)):
        for at in list(np.ndindex(got.shape))[::3]:
            left, right = ([a.astype(float) for a in arrays] for _ in range(2))
            left[k][at] -= 1e-6
            right[k][at] += 1e-6
            slope = (truth(*right) - truth(*left)) / 2e-6
            assert abs(got[at] - slope) < 1e-4 * max(1, abs(slope)), (k, at)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((2, 3), (2, 3), "matmul: shapes"),
        ((2, 2, 3), (3, 3, 4), "matmul: shapes"),
        ((), (2, 3), "matmul: shapes .*expected at least one axis each"),
        ((4,), (3,), "matmul: shapes"),
    ],
)
def test_shapes_that_do_not_fit_are_named(left, right, message):
    with pytest.raises(vk.VkdnnError, match=message):
        vk.zeros(left) @ vk.zeros(right)


def test_large_batches_stride_over_what_is_left(both):
    a = np.resize(np.arange(7, dtype=np.float32), (66_000, 1, 2))
    b = np.resize(np.arange(5, dtype=np.float32), (66_000, 2, 1))
    (found,) = both(lambda a, b: a @ b, a, b)
    assert (found == a @ b).all()
