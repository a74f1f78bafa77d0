"""vk.attention needs memory linear in the number of tokens: planned here, never run. docs/performance.md has a run."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import ShapeError

WIDTH = 64
LENGTHS = (8192, 16_384, 32_768)
MIB = 2**20


def planned_bytes(function, count, tokens, heads=1, key_tokens=None):
    """Arguments, results and intermediates of a call with ``count`` arrays of q, k, v and an upstream gradient."""
    rows, columns = (1, tokens, heads, WIDTH), (1, key_tokens or tokens, heads, WIDTH)
    arguments = [vk.zeros(shape) for shape in (rows, columns, columns, rows)[:count]]
    program = vk.jit(function).program(*arguments)
    assert program.host_words == 0
    return 4 * (sum(a.size for a in arguments) + sum(r.words for r in program.results) + program.peak_words)


def forward(causal):
    return lambda q, k, v: vk.attention(q, k, v, causal=causal)


def gradients(causal):
    """Forward and backward: the gradients of sum(out g) with respect to q, k and v."""

    def function(q, k, v, g):
        return vk.grad(lambda *x: vk.sum(vk.attention(*x, causal=causal) * g), argnums=(0, 1, 2))(q, k, v)

    return function


# 32,768 tokens of one head are 8 MiB an array, their scores 4,096 MiB. Forward: q, k, v, out. With gradients: q, k, v,
# g, dq, dk, dv; between them out, what comes in at it, and three numbers a row.
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("make", "count", "most"), [(forward, 3, 32 * MIB), (gradients, 4, 72.5 * MIB)], ids=["forward", "backward"]
)
def test_memory_is_linear_in_the_number_of_tokens(make, count, most, causal):
    short, middle, long = (planned_bytes(make(causal), count, tokens) for tokens in LENGTHS)
    assert long <= most
    assert 1.99 < middle / short < 2.01 and 1.99 < long / middle < 2.01


def test_masks_take_no_memory():
    plain = planned_bytes(forward(True), 3, 4096)

    def masked(q, k, v):
        slopes = vk.array([0.5])
        ids = vk.arange(4096).reshape(1, 4096) // 100
        return vk.attention(
            q, k, v, causal=True, window=(500, 0), softcap=20.0, alibi_slopes=slopes, document_ids=ids,
            dropout_p=0.1, dropout_seed=1,
        )  # fmt: skip

    assert planned_bytes(masked, 3, 4096) - plain <= 4 * 4096 + 64  # one number a token: the documents


def test_memory_of_few_queries_is_linear_in_the_number_of_keys():
    """Blocks of keys are computed side by side and merged: a sum, a maximum and a row of values each."""
    short, long = (planned_bytes(forward(False), 3, 4, heads=8, key_tokens=n) for n in LENGTHS[:2])
    assert 1.99 < long / short < 2.01
    assert long < 1.02 * 2 * 4 * 8 * WIDTH * 16_384 + 4 * 4 * 8 * (16_384 // 128) * (WIDTH + 2)


def test_a_captured_bias_takes_memory_for_all_pairs_in_the_backward_pass():
    """The exception of the docstring: gradients of what masks and mods capture."""
    bias = vk.zeros((1, 1, 512, 512))

    def biased(q, k, v, g):
        return vk.grad(lambda b: vk.sum(vk.attention(q, k, v, bias=b) * g))(bias)

    assert planned_bytes(biased, 4, 512) > 2 * 4 * 512 * 512


def test_more_pairs_than_an_array_can_hold():
    """B H Tq Tk of 2**32 with constant slopes, whose gradient nobody asks for; asked for, it is refused."""
    q = np.broadcast_to(np.float32(0), (4, 8192, 16, 1))

    def loss(slopes, q):
        return vk.sum(vk.attention(q, q, q, causal=True, alibi_slopes=slopes))

    slopes = np.ones(16, np.float32)
    assert vk.jit(vk.grad(lambda q: loss(slopes, q))).program(q).peak_words < 2**26
    with pytest.raises(ShapeError, match="attention: 4294967296 pairs"):
        vk.jit(vk.grad(loss)).program(slopes, q)
