"""ReLU linear attention against its T x T scores in float64; decoding equals the whole sequence in every
bit."""

import nn_float64 as f64
import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, tree
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.random import Stream

ORDERS = ["sequential", "chunked"]
VARIANTS = ["rla2", "rla"]


@pytest.fixture(autouse=True)
def on_reference():
    with vk.device("cpu"):
        yield


def make(**settings):
    layer = nn.ReLULinearAttention(width=12, heads=2, key_width=8, value_width=5, **settings)
    return layer, tree.map_leaves(vk.array, layer.init(Stream(1)))


def inputs(tokens, batch=2):
    return np.random.default_rng(tokens).standard_normal((batch, tokens, 12)).astype(np.float32)


def starts(tokens):
    boundary = np.zeros((2, tokens), np.int32)
    boundary[0, [3, 4, tokens - 2]] = 1
    boundary[1, 0] = 7
    return boundary


def wide(params):
    return tree.map_leaves(lambda p: p.numpy().astype(np.float64), params)


def test_a_causal_layer_sees_the_past_alone():
    layer, params = make()
    x = inputs(10)
    changed = x.copy()
    changed[:, 6:] += 1.0
    before, after = layer(params, x).numpy(), layer(params, changed).numpy()
    assert np.array_equal(before[:, :6], after[:, :6]) and not np.array_equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", ["causal", "documents", "bidirectional"])
@pytest.mark.parametrize("tokens", [7, 130])
def test_attention_matches_float64(tokens, mode, variant, order):
    layer, params = make(variant=variant, order=order, causal=mode != "bidirectional")
    x = inputs(tokens)
    boundary = starts(tokens) if mode == "documents" else None
    found = layer(params, x, boundary).numpy()
    expected = f64.attention(layer, wide(params), x.astype(np.float64), boundary)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_gradients_match_central_differences(variant, order):
    layer, params = make(variant=variant, order=order)
    x, weights = inputs(9), np.random.default_rng(5).standard_normal((2, 9, 12)).astype(np.float32)
    boundary = starts(9)
    found = vk.grad(lambda p: vk.sum(layer(p, x, boundary) * weights))(params)
    base = wide(params)
    rng = np.random.default_rng(6)
    for name in base:
        for _ in range(4):
            at = tuple(rng.integers(0, n) for n in base[name]["weight"].shape)
            ends = []
            for sign in (1, -1):
                moved = tree.map_leaves(np.copy, base)
                moved[name]["weight"][at] += sign * 1e-6
                ends.append((f64.attention(layer, moved, x.astype(np.float64), boundary) * weights).sum())
            slope = (ends[0] - ends[1]) / 2e-6
            scale = np.abs(found[name]["weight"].numpy()).max()
            assert abs(found[name]["weight"].numpy()[at] - slope) < 1e-4 * scale, (name, at)


def test_a_token_that_no_key_meets_gives_zero():
    layer, params = make()
    zero = {**params, "query": {"weight": params["query"]["weight"] * 0.0}}
    assert not layer(zero, inputs(5)).numpy().any()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_decoding_gives_the_bits_of_the_whole(variant, order):
    layer, params = make(variant=variant, order=order)
    tokens = 70  # over one chunk
    x = inputs(tokens)
    boundary = starts(tokens)
    whole = layer(params, x, boundary).numpy()
    step = vk.jit(layer.forward_step)
    state = layer.init_state(2)
    for t in range(tokens):
        y, state = step(params, x[:, t : t + 1], state, np.array([t], np.int32), boundary[:, t : t + 1])
        assert y.numpy().tobytes() == whole[:, t : t + 1].tobytes(), f"token {t}"


def test_a_bidirectional_layer_has_no_steps():
    layer, _ = make(causal=False)
    with pytest.raises(ArgumentError, match=r"^forward_step: got causal=False"):
        layer.init_state(1)


def test_inputs_of_another_width_are_refused():
    layer, params = make()
    with pytest.raises(ShapeError, match=r"^x: got shape \(2, 12\), expected \[B, T, 12\]"):
        layer(params, inputs(3)[:, 0])
