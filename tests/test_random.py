"""Random array expressions: published vectors, the host's words, and distributions on fixed seeds (so never flaky)."""

import numpy as np
import pytest
import scipy.stats
from test_streams import KNOWN, words

import vkdnn as vk
from vkdnn import random, streams
from vkdnn.check.hard import bits_equal
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.elementary.counter import philox

KEY = np.array([0x9ABCDEF0, 0x12345678], np.uint32)
SEED = 0x12345678_9ABCDEF0
CLEAR = 1e-3  # a p-value above: the sample looks as its distribution says


@pytest.fixture(autouse=True)
def reference():
    """Draws are on the reference unless a test says otherwise: the numbers are the same, and no shader is compiled."""
    with vk.device("cpu"):
        yield


def test_a_draw_is_a_function_of_key_and_position():
    key = random.key(1)
    x = random.uniform(key, (2, 3), -1.0, 1.0)
    longer = random.uniform(key, (20,), -1.0, 1.0)
    assert x.dtype is vk.float32 and x.shape == (2, 3)
    assert longer.numpy()[:6].tolist() == x.numpy().ravel().tolist()


def test_philox_gives_the_published_vectors(both):
    """The definition behind random_bits, traced over arrays."""
    counters, keys, results = (np.array([words(line[k]) for line in KNOWN], np.uint32) for k in range(3))
    found = both(lambda *parts: list(philox(parts[:4], parts[4:])), *counters.T, *keys.T)
    assert np.array_equal(np.stack(found, axis=1), results)


def test_words_are_those_of_the_host_on_every_device(both):
    (found,) = both(lambda key: random.bits(key, (7, 150)), KEY)
    assert np.array_equal(found.ravel(), streams.bits(SEED, 0, 1050))


def test_every_distribution_is_the_same_on_every_device(both):
    def run(key):
        keys = random.split(key, 8)
        return [
            keys,
            random.fold_in(key, 5),
            random.uniform(keys[0], (1000,), -3.0, 0.5),
            random.normal(keys[1], (30, 50)),
            random.exponential(keys[2], (999,)),
            random.randint(keys[3], (1000,), -5, 1000),
            random.bernoulli(keys[4], 0.3, (1000,)),
            random.categorical(keys[5], vk.arange(40).reshape(8, 5) * 0.25, axis=0),
            random.permutation(keys[6], 300),
            random.permutation(keys[7], vk.arange(24).reshape(6, 4)),
        ]

    both(run, KEY)


def test_a_jitted_step_takes_its_key_as_an_argument():
    @vk.jit
    def step(key, number):
        return random.normal(random.fold_in(key, number), (5,))

    key = random.key(SEED)
    for number in (0, 1, 7):
        want = random.normal(random.fold_in(key, number), (5,)).numpy()
        assert bits_equal(step(key, vk.array(np.array(number, np.int32))).numpy(), want).all()


def test_dropout_is_one_kernel():
    x, key = vk.array(np.ones((40, 30), np.float32)), random.key(0)
    kept = vk.where(random.bernoulli(key, 0.75, x.shape), x / 0.75, 0.0)
    assert len(schedule([kept.node])) == 1


# ---- keys


def test_keys_are_apart():
    key = random.key(SEED)
    assert np.array_equal(key.numpy(), KEY)
    many, few = random.split(key, 1000).numpy(), random.split(key).numpy()
    assert few.tolist() == many[:2].tolist() and few.dtype == np.uint32
    folded = [random.fold_in(key, n).numpy() for n in (0, 1, 2, 2**31, 2**32 - 1)]
    drawn = random.bits(key, (4000,)).numpy().reshape(2000, 2)
    every = np.concatenate([many, folded, drawn, [key.numpy()]])
    assert len({tuple(k) for k in every.tolist()}) == len(every)
    assert np.array_equal(random.fold_in(key, vk.array(np.array(-1, np.int32))).numpy(), folded[4])


def test_draws_of_sibling_keys_are_uncorrelated():
    keys = random.split(random.key(3), 4)
    draws = np.stack([random.normal(keys[i], (40_000,)).numpy() for i in range(4)])
    off = np.corrcoef(draws)[~np.eye(4, dtype=bool)]
    assert np.abs(off).max() < 4 / np.sqrt(40_000)


# ---- distributions


def test_uniform_takes_the_high_24_bits():
    raw = streams.bits(SEED, 0, 1000)
    found = random.uniform(random.key(SEED), (1000,)).numpy()
    assert np.array_equal(found, ((raw >> 8) / 2**24).astype(np.float32))


def test_uniform_is_uniform():
    counts = np.bincount((random.uniform(random.key(5), (200_000,)).numpy() * 250).astype(int), minlength=250)
    assert scipy.stats.chisquare(counts).pvalue > CLEAR
    pairs = random.uniform(random.key(6), (100_000, 2)).numpy()
    grid = np.histogram2d(*pairs.T, bins=16, range=[[0, 1], [0, 1]])[0]
    assert scipy.stats.chisquare(grid.ravel()).pvalue > CLEAR


@pytest.mark.parametrize(("low", "high"), [(1.0, 1 + 2**-23), (-1.0, 1.0), (2.0**24, 2.0**24 + 4), (-3.4e38, 0.0)])
def test_uniform_stays_below_high(low, high):
    x = random.uniform(random.key(2), (200_000,), low, high).numpy()
    assert x.min() >= np.float32(low) and x.max() < np.float32(high)
    assert x.max() == np.nextafter(np.float32(high), np.float32(low)) or x.max() > low + 0.999 * (high - low)


def test_uniform_between_arrays():
    low, high = vk.array([0.0, 10.0]), vk.array([1.0, 10.0])
    x = random.uniform(random.key(2), (1000, 2), low, high).numpy()
    assert (x[:, 0] < 1).all() and (x[:, 1] == 10).all()
    assert random.uniform(random.key(0), (3,), 0.25, 0.25).numpy().tolist() == [0.25] * 3


def test_normal_numbers_have_the_moments_and_tails_of_theirs():
    x = random.normal(random.key(4), (400_000,)).numpy().astype(np.float64)
    n = x.size
    # Standard errors of the first four moments of a normal sample: 1, sqrt 2, sqrt 15, sqrt 96, over sqrt n.
    for power, (want, error) in enumerate([(0, 1), (1, 2**0.5), (0, 15**0.5), (3, 96**0.5)], 1):
        assert abs((x**power).mean() - want) < 4 * error / n**0.5, power
    assert scipy.stats.kstest(x, "norm").pvalue > CLEAR
    for edge in (1, 2, 3, 4):
        expected = n * scipy.stats.norm.sf(edge)
        for count in ((x > edge).sum(), (x < -edge).sum()):
            assert abs(count - expected) < 4 * expected**0.5 + 1, edge


def test_normal_is_box_and_muller():
    raw = streams.bits(SEED, 0, 2000).astype(np.float64)
    want = np.sqrt(-2 * np.log((raw[::2] + 0.5) * 2.0**-32)) * np.cos(2 * np.pi * np.floor(raw[1::2] / 256) * 2.0**-24)
    np.testing.assert_allclose(random.normal(random.key(SEED), (1000,)).numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("draw", "name"), [(random.exponential, "expon"), (random.gumbel, "gumbel_r")])
def test_exponential_and_gumbel_numbers_follow_theirs(draw, name):
    x = draw(random.key(8), (200_000,)).numpy()
    assert np.isfinite(x).all() and scipy.stats.kstest(x, name).pvalue > CLEAR


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 6), (-3, 1000), (0, 2**31), (-(2**31), 2**31)])
def test_integers_are_the_high_word_of_a_product(low, high):
    x = random.randint(random.key(SEED), (50, 2), low, high).numpy()
    raw = streams.bits(SEED, 0, 200).reshape(100, 2)
    want = [low + (((int(b) << 32 | int(a)) * (high - low)) >> 64) for a, b in raw]
    assert x.dtype == np.int32 and x.ravel().tolist() == want


def test_integers_are_uniform():
    counts = np.bincount(random.randint(random.key(7), (100_000,), 0, 37).numpy(), minlength=37)
    assert len(counts) == 37 and scipy.stats.chisquare(counts).pvalue > CLEAR
    mixed = random.randint(random.key(7), (1000, 2), 0, vk.array([1, 5])).numpy()
    assert (mixed[:, 0] == 0).all() and set(mixed[:, 1]) == set(range(5))


def test_bernoulli_counts():
    key = random.key(9)
    for p in (0.0, 0.1, 0.5, 1.0):
        x = random.bernoulli(key, p, (100_000,)).numpy()
        assert x.dtype == np.bool_ and abs(x.sum() - p * x.size) <= 4 * (p * (1 - p) * x.size) ** 0.5
    assert random.bernoulli(key, vk.array([0.0, 1.0, 0.0])).numpy().tolist() == [False, True, False]


def test_categorical_follows_the_softmax():
    logits = np.array([0.5, -1.0, 2.0, -np.inf, 0.0], np.float32)
    x = random.categorical(random.key(10), np.broadcast_to(logits, (50_000, 5))).numpy()
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    counts = np.bincount(x, minlength=5)
    assert x.dtype == np.int32 and counts[3] == 0
    assert scipy.stats.chisquare(counts[p > 0], (p * x.size)[p > 0]).pvalue > CLEAR


def test_permutation_sorts_random_words():
    words_ = streams.bits(SEED, 0, 1000)
    found = random.permutation(random.key(SEED), 1000).numpy()
    assert found.dtype == np.int32 and np.array_equal(found, np.argsort(words_, kind="stable"))
    x = np.arange(2000).reshape(1000, 2)
    assert np.array_equal(random.permutation(random.key(SEED), x).numpy(), x[found])


def test_permutations_are_equally_likely():
    shuffle = vk.jit(lambda key: random.permutation(key, 3))
    keys = random.split(random.key(11), 600).numpy()
    counts = np.unique([shuffle(vk.array(k)).numpy() for k in keys], axis=0, return_counts=True)[1]
    assert len(counts) == 6 and scipy.stats.chisquare(counts).pvalue > CLEAR


# ---- edges and errors


def test_draws_of_nothing_and_of_one():
    key = random.key(0)
    for draw in (random.bits, random.uniform, random.normal, random.exponential, random.gumbel):
        assert draw(key, (3, 0)).numpy().shape == (3, 0)
        assert draw(key, ()).numpy().shape == () and draw(key, 2).shape == (2,)
    assert random.randint(key, (0,), 0, 2).numpy().shape == (0,)
    assert random.bernoulli(key, 0.5, (0, 2)).numpy().shape == (0, 2)
    assert random.split(key, 0).numpy().shape == (0, 2)
    assert random.permutation(key, 0).numpy().shape == (0,)
    assert random.permutation(key, 1).numpy().tolist() == [0]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda k: random.key(-1), ArgumentError, "key: seed: got -1"),
        (lambda k: random.key(2**64), ArgumentError, "key: seed: got 18446744073709551616"),
        (lambda k: random.key(1.5), ArgumentError, "key: seed: got 1.5"),
        (lambda k: random.uniform(3, (2,)), ArgumentError, "uniform: key: got int"),
        (lambda k: random.uniform(k.astype("int32"), (2,)), DtypeError, "uniform: key: got int32"),
        (lambda k: random.uniform(random.split(k), (2,)), ShapeError, r"uniform: key: got shape \(2, 2\)"),
        (lambda k: random.uniform(k, (-2,)), ShapeError, r"uniform: shape \(-2,\)"),
        (lambda k: random.uniform(k, "ab"), ArgumentError, "uniform: shape: got"),
        (lambda k: random.uniform(k, (2,), 1.0, 0.0), ArgumentError, "uniform: low, high: got 1.0 and 0.0"),
        (lambda k: random.uniform(k, (2,), 0.0, np.inf), ArgumentError, "uniform: low, high: got inf"),
        (lambda k: random.uniform(k, (2,), -3e38, 3e38), ArgumentError, "uniform: low, high"),
        (lambda k: random.uniform(k, (2,), 0.0, "1"), ArgumentError, "uniform: low, high: got str"),
        (lambda k: random.uniform(k, (2,), vk.zeros((3, 2))), ShapeError, r"uniform: arguments give shape \(3, 2\)"),
        (lambda k: random.randint(k, (2,), 3, 3), ArgumentError, "randint: low, high: got 3 and 3"),
        (lambda k: random.randint(k, (2,), 0, 2**31 + 1), ArgumentError, "randint: low, high"),
        (lambda k: random.randint(k, (2,), 0, 2.0), ArgumentError, "randint: high: got 2.0"),
        (lambda k: random.randint(k, (2,), 0, vk.zeros(2)), DtypeError, "randint: high: got float32"),
        (lambda k: random.bernoulli(k, 1.5), ArgumentError, "bernoulli: p: got 1.5"),
        (lambda k: random.bernoulli(k, None), ArgumentError, "bernoulli: p: got NoneType"),
        (lambda k: random.categorical(k, vk.zeros(3), 1), ShapeError, "categorical: axis 1"),
        (lambda k: random.split(k, -1), ArgumentError, "split: n: got -1"),
        (lambda k: random.fold_in(k, -1), ArgumentError, "fold_in: number: got -1"),
        (lambda k: random.fold_in(k, 0.5), ArgumentError, "fold_in: number: got 0.5"),
        (lambda k: random.fold_in(k, vk.zeros(2, "int32")), ShapeError, r"fold_in: number: got shape \(2,\)"),
        (lambda k: random.fold_in(k, vk.zeros(())), DtypeError, "fold_in: number: got float32"),
        (lambda k: random.permutation(k, -1), ArgumentError, "permutation: x: got -1"),
        (lambda k: random.permutation(k, vk.zeros(())), ShapeError, "permutation: x: got an array without axes"),
        (lambda k: random.bits(k, 2**31), ArgumentError, "shape: got"),
    ],
)
def test_errors_name_the_argument(call, error, text):
    with pytest.raises(error, match=f"^{text}"):
        call(random.key(0))


def test_bounds_of_uniform_have_gradients():
    key, low, high = random.key(3), vk.array([-1.0, 0.5]), vk.array([2.0, 0.75])
    fraction = random.uniform(key, (2,)).numpy()
    slopes = vk.grad(lambda low, high: vk.sum(random.uniform(key, (2,), low, high)), (0, 1))(low, high)
    assert slopes[1].numpy().tolist() == fraction.tolist() and slopes[0].numpy().tolist() == (1 - fraction).tolist()
