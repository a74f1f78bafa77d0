"""Philox against its published vectors; uniform numbers and integers by their definitions."""

import numpy as np
import pytest

from vkdnn import streams
from vkdnn.errors import ArgumentError

# Random123's kat_vectors, the lines "philox4x32 10": counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(w, 16) for w in text.split()]


def test_uniform_is_a_function_of_seed_stream_and_index():
    x = streams.uniform(seed=1, stream="layers.0.weight", shape=(2, 3), low=-1.0, high=1.0)
    assert x.dtype == np.float32 and x.shape == (2, 3)
    longer = streams.uniform(1, "layers.0.weight", (20,), -1.0, 1.0)
    assert np.array_equal(longer[:6], x.ravel())
    assert (
        streams.Stream(1).child("layers").child(0).child("weight").uniform((6,), -1, 1).tolist() == x.ravel().tolist()
    )


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_vectors(counter, key, result):
    found = streams.philox(np.array([words(counter)], np.uint32), words(key))
    assert found.tolist() == [words(result)]


def test_bits_count_blocks_in_the_low_half_of_the_counter():
    seed, stream = 0x299F31D0_A4093822, 0x03707344_13198A2E
    blocks = streams.bits(seed, stream, 12).reshape(3, 4)
    counter = np.array([[i, 0, 0x13198A2E, 0x03707344] for i in range(3)], np.uint32)
    assert np.array_equal(blocks, streams.philox(counter, (0xA4093822, 0x299F31D0)))
    assert np.array_equal(streams.bits(seed, stream, 5), blocks.ravel()[:5])


def test_uniform_takes_the_high_24_bits():
    raw = streams.bits(3, 4, 1000)
    assert np.array_equal(streams.uniform(3, 4, (1000,)), ((raw >> 8) / 2**24).astype(np.float32))
    scaled = streams.uniform(3, 4, (1000,), -0.1, 0.3)
    assert scaled.min() >= np.float32(-0.1) and scaled.max() <= np.float32(0.3)
    assert abs(scaled.mean() - 0.1) < 0.015 and abs(scaled.std() - 0.4 / 12**0.5) < 0.006


def test_uniform_of_an_empty_interval_is_its_value():
    assert streams.uniform(0, 0, (3,), 0.25, 0.25).tolist() == [0.25] * 3


def test_streams_and_seeds_differ():
    draws = [streams.bits(seed, stream, 8).tobytes() for seed in (0, 1, 2**63) for stream in (0, 1, "a", "b")]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("high", [1, 2, 3, 1000, 2**31 - 1, 2**31])
def test_integers_are_the_high_word_of_a_product(high):
    x = streams.integers(5, "batch", (50, 2), high)
    assert x.dtype == np.int64 and x.shape == (50, 2)
    raw = streams.bits(5, "batch", 200).reshape(100, 2)
    assert x.ravel().tolist() == [((int(b) << 32 | int(a)) * high) >> 64 for a, b in raw]


def test_integers_are_uniform():
    counts = np.bincount(streams.integers(7, 0, (60_000,), 6), minlength=6)
    assert counts.sum() == 60_000 and np.abs(counts - 10_000).max() < 500  # over 5 standard deviations


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: streams.uniform(-1, 0, (1,)), "seed"),
        (lambda: streams.uniform(2**64, 0, (1,)), "seed"),
        (lambda: streams.uniform(0, -1, (1,)), "stream"),
        (lambda: streams.uniform(0, 0, (1,), 1.0, 0.0), "low, high"),
        (lambda: streams.uniform(0, 0, (1,), 0.0, np.inf), "low, high"),
        (lambda: streams.integers(0, 0, (1,), 0), "high"),
        (lambda: streams.integers(0, 0, (1,), 2**31 + 1), "high"),
        (lambda: streams.philox(np.zeros(4, np.uint32), (0, 0)), "counter"),
    ],
)
def test_errors_name_the_argument(call, name):
    with pytest.raises(ArgumentError, match=f"^{name}: got .* expected"):
        call()
