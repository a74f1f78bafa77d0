"""ReLU linear attention against its T x T scores in float64; decoding equals the whole sequence in every
bit."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, tree
from vkdnn.check.library import nn_float64 as f64
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.streams import Stream

ORDERS = ["sequential", "chunked"]
SETTINGS = [
    pytest.param({"variant": variant, "order": order}, id=f"{variant}-{order}")
    for variant in ("rla2", "rla", "lrla")
    for order in ORDERS
] + [
    pytest.param({"variant": "rla", "decay": 0.9}, id="rla-decay"),
    pytest.param({"variant": "lrla", "features": 11}, id="lrla-features"),
]
every_variant = pytest.mark.parametrize("settings", SETTINGS)


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


@every_variant
@pytest.mark.parametrize("mode", ["causal", "documents", "bidirectional"])
@pytest.mark.parametrize("tokens", [7, 130])
def test_attention_matches_float64(tokens, mode, settings):
    if mode == "bidirectional" and "decay" in settings:
        pytest.skip("decay needs an order in time")
    layer, params = make(causal=mode != "bidirectional", **settings)
    x = inputs(tokens)
    boundary = starts(tokens) if mode == "documents" else None
    found = layer(params, x, boundary).numpy()
    expected = f64.attention(layer, wide(params), x.astype(np.float64), boundary)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


@every_variant
def test_attention_gradients_match_central_differences(settings):
    layer, params = make(**settings)
    x, weights = inputs(9), np.random.default_rng(5).standard_normal((2, 9, 12)).astype(np.float32)
    boundary = starts(9)
    found = vk.grad(lambda p: vk.sum(layer(p, x, boundary) * weights))(params)
    base = wide(params)
    rng = np.random.default_rng(6)
    gradients = [g.numpy() for g in tree.flatten(found)[0]]
    for number, (name, gradient) in enumerate(zip(tree.paths(base), gradients, strict=True)):
        for _ in range(4):
            at = tuple(rng.integers(0, n) for n in gradient.shape)
            ends = []
            for sign in (1, -1):
                moved = tree.map_leaves(np.copy, base)
                tree.flatten(moved)[0][number][at] += sign * 1e-6
                ends.append((f64.attention(layer, moved, x.astype(np.float64), boundary) * weights).sum())
            slope = (ends[0] - ends[1]) / 2e-6
            assert abs(gradient[at] - slope) < 1e-4 * np.abs(gradient).max(), (name, at)


@every_variant
def test_forward_and_backward_have_the_same_bits_on_the_device(settings, both):
    layer, params = make(**settings)
    leaves, structure = tree.flatten(params)
    tokens = 70 if settings.get("order") == "chunked" else 20
    boundary = starts(tokens)

    def run(x, *leaves):
        def loss(p, x):
            y = layer(p, x, boundary)
            return vk.sum(y * y), y

        return vk.value_and_grad(loss, (0, 1), has_aux=True)(tree.unflatten(structure, list(leaves)), x)

    found = both(run, inputs(tokens), *(p.numpy() for p in leaves))
    assert all(np.isfinite(x).all() and x.any() for x in found)


def test_a_token_that_no_key_meets_gives_zero():
    layer, params = make()
    zero = {**params, "query": {"weight": params["query"]["weight"] * 0.0}}
    assert not layer(zero, inputs(5)).numpy().any()


@every_variant
@pytest.mark.parametrize("device", ["cpu", None])
def test_decoding_gives_the_bits_of_the_whole(settings, device):
    tokens = 70 if settings.get("order") == "chunked" else 20  # over one chunk
    x, boundary = inputs(tokens), starts(tokens)
    with vk.device(device):
        layer, params = make(**settings)
        whole = layer(params, x, boundary).numpy()
        step = vk.jit(layer.forward_step)
        state = layer.init_state(2)
        for t in range(tokens):
            y, state = step(params, x[:, t : t + 1], state, np.array([t], np.int32), boundary[:, t : t + 1])
            assert y.numpy().tobytes() == whole[:, t : t + 1].tobytes(), f"token {t}"


@every_variant
def test_a_prompt_in_pieces_gives_the_bits_of_the_whole(settings):
    layer, params = make(**settings)
    x, boundary = inputs(75), starts(75)
    whole = layer(params, x, boundary).numpy()
    state, pieces = layer.init_state(2), []
    for start, stop in ((0, 9), (9, 10), (10, 75)):
        y, state = layer.forward_step(
            params, x[:, start:stop], state, np.array([start], np.int32), boundary[:, start:stop]
        )
        pieces.append(y.numpy())
    assert np.concatenate(pieces, axis=1).tobytes() == whole.tobytes()


def test_a_bidirectional_layer_has_no_steps():
    layer, _ = make(causal=False)
    with pytest.raises(ArgumentError, match=r"^forward_step: got causal=False"):
        layer.init_state(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "rla3"}, r"variant: got 'rla3', expected one of rla2, rla, lrla"),
        ({"order": "random"}, r"order: got 'random'"),
        ({"variant": "rla", "decay": 0.0}, r"decay: got 0.0, expected a number over 0, up to 1"),
        ({"variant": "rla", "decay": float("nan")}, r"decay: got nan"),
        ({"decay": 0.9}, r"decay: got 0.9 with variant='rla2'.* expected variant 'rla'"),
        ({"variant": "rla", "decay": 0.9, "order": "chunked"}, r"decay: got 0.9 with .*order='chunked'"),
        ({"variant": "rla", "decay": 0.9, "causal": False}, r"decay: got 0.9 with .*causal=False"),
        ({"features": 4}, r"features: got 4 with variant='rla2'"),
        ({"variant": "lrla", "features": 0}, r"features: got 0 with variant='lrla', expected 1 or more"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        make(**settings)


def test_old_tokens_fade():
    layer, params = make(variant="rla", decay=0.5)
    x = inputs(40)
    other = x.copy()
    other[:, 0] += 1.0
    change = np.abs(layer(params, x).numpy() - layer(params, other).numpy()).max(axis=(0, 2))
    assert change[1] > 1e-3 and change[-1] < 1e-6


def test_inputs_of_another_width_are_refused():
    layer, params = make()
    with pytest.raises(ShapeError, match=r"^x: got shape \(2, 12\), expected \[B, T, 12\]"):
        layer(params, inputs(3)[:, 0])
