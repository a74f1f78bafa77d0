"""Storage types: conversion rounds once, ops compute in float32, elements share words, gradients are float32 inside."""

import ml_dtypes
import numpy as np
import pytest

import vkdnn as vk
from vkdnn.check.hard import HARD_FLOATS, bits_equal, random_bits
from vkdnn.errors import DtypeError
from vkdnn.numerics.flush import flush

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
RNG = np.random.default_rng(2)


def ties(name):
    """Values half way between two neighbours of the type, and just beside."""
    kept = {"float16": 13, "bfloat16": 16}[name]
    base = (random_bits(3000, 5).view(np.uint32) >> np.uint32(kept)) << np.uint32(kept)
    half = np.uint32(1 << (kept - 1))
    return np.concatenate([base | half, base | (half - np.uint32(1)), base | (half + np.uint32(1))]).view(np.float32)


@pytest.mark.parametrize("name", TYPES)
def test_conversion_rounds_to_nearest_even(both, name):
    small = (np.arange(6000) * 2.0**-26).astype(np.float32)
    edges = np.array([65519.99, 65520, 65536], np.float32)
    x = flush(np.concatenate([HARD_FLOATS, random_bits(20001, 3), ties(name), small, -small, edges, -edges]))
    narrow, wide = both(lambda x: [x.astype(name), x.astype(name).astype("float32")], x)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(TYPES[name])
    assert bits_equal(narrow, want).all()
    assert bits_equal(wide, want.astype(np.float32)).all()


@pytest.mark.parametrize("name", TYPES)
def test_every_pattern_is_read_exactly(both, name):
    x = np.arange(2**16, dtype=np.uint16).view(TYPES[name])
    (wide,) = both(lambda x: x.astype("float32"), x)
    assert bits_equal(wide, flush(x.astype(np.float32))).all()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 257, 32767])
def test_elements_share_words_at_any_length(both, name, n):
    x = RNG.standard_normal(n).astype(TYPES[name])
    y = RNG.standard_normal(n).astype(np.float32)
    total, mixed, shifted = both(lambda x, y: [x + x * 3, x * y, vk.concatenate([x[1:], x[:1]])], x, y)
    with np.errstate(over="ignore"):
        product = (x.astype(np.float32) * 3).astype(x.dtype)
        want = (x.astype(np.float32) + product.astype(np.float32)).astype(x.dtype)
    assert bits_equal(total, want).all() and mixed.dtype == np.float32
    assert bits_equal(mixed, x.astype(np.float32) * y).all()
    assert bits_equal(shifted, np.roll(x, -1)).all()


@pytest.mark.parametrize("name", TYPES)
def test_views_folds_products_and_gathers(both, name):
    x = RNG.standard_normal((5, 6, 7)).astype(TYPES[name])
    index = np.array([4, 0, 0, 2], np.int32)

    def run(x, index):
        y = x.transpose(2, 0, 1)[::-2, 1:, ::3]
        return [y, y + 1, vk.take(x, index), vk.sum(x, 1), vk.max(x, (0, 2)), vk.matmul(x, x.transpose(0, 2, 1)),
                vk.pad(x, [(0, 1), (1, 0), (2, 2)]), vk.argmax(x, 2), x.reshape(30, 7)[3], vk.softmax(x).T]  # fmt: skip

    found = both(run, x, index)
    wide = both(run, x.astype(np.float32), index)
    for k, (narrow, full) in enumerate(zip(found, wide, strict=True)):
        if narrow.dtype == np.int32:
            assert (narrow == full).all()
            continue
        with np.errstate(over="ignore"):
            assert narrow.dtype.name == name and bits_equal(narrow, full.astype(narrow.dtype)).all(), k


@pytest.mark.parametrize("name", TYPES)
def test_memory_is_two_bytes_an_element(name):
    x = vk.zeros((1001,), name) + 1
    vk.realize([x])
    assert x.storage().words == 501 and x.numpy().tolist() == [1.0] * 1001


@pytest.mark.parametrize("name", TYPES)
def test_gradients_are_computed_in_float32_and_rounded_once(both, name):
    x = RNG.standard_normal((4, 33)).astype(TYPES[name])

    def loss(x):
        return vk.sum(vk.softmax(x) * vk.exp(x)).astype("float32")

    (slope,) = both(vk.grad(loss), x)
    (full,) = both(vk.grad(loss), x.astype(np.float32))
    assert slope.dtype.name == name
    np.testing.assert_allclose(slope.astype(np.float32), full, rtol=0.02, atol=0.02)


def test_jit_and_donation_of_halves(both):
    step = vk.jit(lambda p, g: p - g * 0.5, donate_argnums=0)
    for device in (vk.device("cpu"), vk.device()):
        with device:
            p = vk.array(np.arange(7, dtype=np.float16))
            for _ in range(3):
                p = step(p, np.ones(7, np.float16))
            assert p.dtype is vk.float16 and p.numpy().tolist() == [k - 1.5 for k in range(7)]


def test_dtypes_meet():
    half, brain, full = vk.zeros(2, "float16"), vk.zeros(2, "bfloat16"), vk.zeros(2)
    assert (half + 1.5).dtype is vk.float16 and (half * vk.zeros(2, "int32")).dtype is vk.float16
    assert (half + brain).dtype is vk.float32 and (half + full).dtype is vk.float32
    assert vk.where(half > 0, half, 0.0).dtype is vk.float16 and (half < brain).dtype is vk.bool_
    assert vk.exp(brain).dtype is vk.bfloat16


def test_constants_are_rounded(both):
    (got,) = both(lambda x: x * 0.1 + vk.full(3, 0.3, "float16"), np.ones(3, np.float16))
    want = np.float16(np.float32(np.float16(0.1)) + np.float32(np.float16(0.3)))
    assert (got == want).all()


def test_unknown_dtypes_are_refused():
    with pytest.raises(DtypeError, match="float64"):
        vk.zeros(2, "float64")


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("order", ["sequential", "chunked"])
def test_scans_are_computed_in_float32(both, name, order):
    k, v, p = RNG.uniform(0, 1, (3, 1, 70, 2, 4)).astype(TYPES[name])

    def run(k, v, p):
        prefix = vk.scan_prefix_outer(k, v, p, order=order)
        suffix = vk.scan_suffix_outer(vk.outer_col(v, k), p, v, order=order)
        return [prefix.bp, suffix.sx, prefix.b, suffix.s]

    narrow = both(run, k, v, p)
    full = both(run, *(x.astype(np.float32) for x in (k, v, p)))
    for got, want in zip(narrow[:2], full[:2], strict=True):
        assert got.dtype.name == name and bits_equal(got, want.astype(got.dtype)).all()
    for got, want in zip(narrow[2:], full[2:], strict=True):
        assert got.dtype == np.float32 and bits_equal(got, want).all()
