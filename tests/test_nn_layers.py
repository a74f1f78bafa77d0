"""Layers against float64 NumPy, their initial weights, and the errors they raise."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, tree
from vkdnn.check.library import nn_float64 as f64
from vkdnn.checkpoint import digest
from vkdnn.errors import ArgumentError, DtypeError, ShapeError
from vkdnn.streams import Stream


@pytest.fixture(autouse=True)
def on_reference():
    with vk.device("cpu"):
        yield


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found, expected, rtol=2e-6):
    np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def wide(params):
    return tree.map_leaves(lambda p: np.asarray(p, np.float64), params)


def test_linear():
    layer = nn.Linear(inputs=5, outputs=3, bias=True)
    params = {"weight": normal(1, 5, 3), "bias": normal(2, 3)}
    x = normal(3, 2, 4, 5)
    close(layer(params, x), x.astype(np.float64) @ params["weight"] + params["bias"])
    assert tree.paths(layer.init(Stream(0))) == ["bias", "weight"]
    assert tree.paths(nn.Linear(5, 3).init(Stream(0))) == ["weight"]


def test_embedding_takes_rows():
    layer = nn.Embedding(vocab=7, width=3)
    params = layer.init(Stream(0))
    tokens = np.array([[0, 6], [3, 3]], np.int32)
    assert np.array_equal(layer(params, tokens).numpy(), params["weight"][tokens])


def test_feature_map():
    layer = nn.FeatureMap(width=6, features=9)
    params, x = layer.init(Stream(1)), normal(2, 4, 3, 6)
    found = layer(params, x)
    close(found, f64.feature_map(wide(params), x.astype(np.float64)), 1e-5)
    assert found.shape == (4, 3, 9) and found.numpy().min() == 0.0


def test_swiglu():
    layer = nn.SwiGLU(width=6, hidden=10)
    params, x = layer.init(Stream(1)), normal(2, 4, 6)
    close(layer(params, x), f64.swiglu(wide(params), x.astype(np.float64)))


@pytest.mark.parametrize("head_dim", [2, 6, 32])
def test_rope_turns_pairs(head_dim):
    x = normal(1, 2, 9, 3, head_dim)
    close(nn.RoPE(head_dim)(x, vk.arange(9)), f64.rope(x.astype(np.float64), np.arange(9)))


def test_rope_of_a_single_position_is_a_row_of_the_whole():
    x, rope = vk.array(normal(1, 1, 40, 2, 8)), nn.RoPE(8)
    whole = rope(x, vk.arange(40)).numpy()
    for t in (0, 1, 39):
        row = rope(x[:, t : t + 1], np.array([t], np.int32)).numpy()
        assert row.tobytes() == whole[:, t : t + 1].tobytes()


def test_cross_entropy():
    logits, targets = (
        normal(1, 3, 4, 11) * 9,
        np.random.default_rng(2).integers(0, 11, (3, 4)).astype(np.int32),
    )
    close(nn.cross_entropy(logits, targets), f64.cross_entropy(logits.astype(np.float64), targets))
    assert nn.cross_entropy(np.array([[0.0, 3e38]], np.float32), np.array([1], np.int32)).item() == 0.0


def test_cross_entropy_has_the_gradient_of_softmax():
    logits, targets = normal(1, 5, 7), np.array([0, 6, 3, 3, 1], np.int32)
    found = vk.grad(lambda x: nn.cross_entropy(x, targets))(vk.array(logits))
    softmax = np.exp(logits.astype(np.float64))
    softmax /= softmax.sum(-1, keepdims=True)
    close(found, (softmax - np.eye(7)[targets]) / 5)


def test_initial_weights_have_unit_gain_and_a_stream_each():
    weight = nn.Linear(400, 200).init(Stream(3, "a"))["weight"]
    assert abs(weight.std() * 20 - 1) < 0.01 and abs(weight.mean() * 20) < 0.02
    assert not np.array_equal(weight, nn.Linear(400, 200).init(Stream(3, "b"))["weight"])
    assert not np.array_equal(weight, nn.Linear(400, 200).init(Stream(4, "a"))["weight"])
    mlp = nn.SwiGLU(8, 8).init(Stream(0))
    assert not np.array_equal(mlp["gate"]["weight"], mlp["up"]["weight"])


def test_initial_weights_are_these_on_every_machine():
    model = nn.RAPTModel(nn.RAPTConfig(width=16, layers=2, heads=2, key_width=8, value_width=8, hidden=16))
    expected = "8d2a3a25ea515b4ab28f2d249c793c7fc1608a3520c64275eccdac890f59e46c"
    assert digest(model.init(seed=0)) == expected


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.RoPE(7), ArgumentError, "^head_dim: got 7, expected an even number"),
        (
            lambda: nn.RoPE(8)(normal(1, 2, 3, 4, 6), vk.arange(3)),
            ShapeError,
            r"^x: got shape \(2, 3, 4, 6\), expected",
        ),
        (
            lambda: nn.cross_entropy(normal(1, 2, 3), np.zeros(3, np.int32)),
            ShapeError,
            r"^targets: got shape \(3,\) for logits \(2, 3\), expected \(2,\)",
        ),
        (
            lambda: nn.Embedding(4, 2)({"weight": normal(1, 4, 2)}, normal(1, 3)),
            DtypeError,
            "expected integers",
        ),
        (lambda: nn.RAPTConfig(layers=0), ArgumentError, "^layers: got 0, expected 1 or more"),
        (
            lambda: nn.ReLULinearAttention(8, 2, 4, 4, variant="x"),
            ArgumentError,
            "^variant: got 'x', expected one of",
        ),
        (lambda: nn.ReLULinearAttention(8, 2, 4, 4, order="x"), ArgumentError, "^order: got 'x', expected"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
