"""RAPT as a whole: values and gradients against float64, parity of devices, decoding, learning."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, streams, tree
from vkdnn.check.library import nn_float64 as f64
from vkdnn.checkpoint import digest
from vkdnn.errors import DtypeError, ShapeError
from vkdnn.optim import AdamW

SMALL = nn.RAPTConfig(vocab=20, width=16, layers=2, heads=2, key_width=8, value_width=8, hidden=16)
ORDERS = ["sequential", "chunked"]


def model_of(order="sequential"):
    return nn.RAPTModel(nn.RAPTConfig(**{**vars(SMALL), "order": order}))


def tokens_of(*shape, seed=0):
    return streams.integers(seed, "tokens", shape, SMALL.vocab).astype(np.int32)


def wide(params):
    return tree.map_leaves(lambda p: p.numpy().astype(np.float64), params)


def trainer(model, optimizer):
    def step(params, state, tokens):
        loss, grads = vk.value_and_grad(model.loss)(params, tokens)
        params, state = optimizer.update(params, grads, state)
        return params, state, loss

    return step


@pytest.mark.parametrize("order", ORDERS)
def test_logits_and_loss_match_float64(order):
    model, tokens = model_of(order), tokens_of(2, 71)
    with vk.device("cpu"):
        params = model.init(seed=1)
        boundary = np.zeros((2, 70), np.int32)
        boundary[1, [5, 66]] = 1
        found = model(params, tokens[:, :-1], boundary).numpy()
        expected = f64.logits(model, wide(params), tokens[:, :-1], boundary)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        loss = model.loss(params, tokens).item()
        assert abs(loss - f64.loss(model, wide(params), tokens)) < 1e-5
        assert 2.0 < loss < 5.0  # log(20) is 3.0


@pytest.mark.parametrize("order", ORDERS)
def test_gradients_match_central_differences(order):
    model, tokens = model_of(order), tokens_of(2, 13)
    with vk.device("cpu"):
        params = model.init(seed=1)
        grads = vk.grad(model.loss)(params, tokens)
        base = wide(params)
        leaves = [g.numpy() for g in tree.flatten(grads)[0]]
    rng = np.random.default_rng(2)
    for k, (name, gradient) in enumerate(zip(tree.paths(params), leaves, strict=True)):
        for _ in range(2):
            at = tuple(rng.integers(0, n) for n in gradient.shape)
            ends = []
            for sign in (1, -1):
                moved = tree.map_leaves(np.copy, base)
                tree.flatten(moved)[0][k][at] += sign * 1e-6
                ends.append(f64.loss(model, moved, tokens))
            slope = (ends[0] - ends[1]) / 2e-6
            assert abs(gradient[at] - slope) < 1e-3 * np.abs(gradient).max() + 1e-7, (name, at)


@pytest.mark.parametrize("order", ORDERS)
def test_three_training_steps_have_the_same_bits_on_device_and_reference(order):
    model, optimizer = model_of(order), AdamW(warmup_steps=1, total_steps=3)
    found = []
    for device in (vk.device(), vk.device("cpu")):
        with device:
            params = model.init(seed=3)
            state = optimizer.init(params)
            step = vk.jit(trainer(model, optimizer), donate_argnums=(0, 1))
            digests = []
            for i in range(3):
                params, state, loss = step(params, state, tokens_of(2, 68, seed=i))
                digests.append([digest(x) for x in (loss, params, state)])
            found.append(digests)
    assert found[0] == found[1]


@pytest.mark.parametrize("device", ["cpu", None])
@pytest.mark.parametrize("order", ORDERS)
def test_decoding_gives_the_logits_of_the_whole(order, device):
    model, length = model_of(order), 67  # over one chunk
    tokens = tokens_of(2, length, seed=4)
    with vk.device(device):
        params = model.init(seed=5)
        whole = vk.jit(model)(params, tokens).numpy()
        step = vk.jit(model.forward_step, donate_argnums=(2,))
        state = model.init_state(batch=2)
        for t in range(length):
            logits, state = step(params, tokens[:, t], state)
            assert logits.numpy().tobytes() == whole[:, t].tobytes(), f"token {t}"


@pytest.mark.parametrize("order", ORDERS)
def test_a_prompt_in_pieces_gives_the_logits_of_the_whole(order):
    model, tokens = model_of(order), tokens_of(2, 150, seed=8)
    boundary = np.zeros((2, 150), np.int32)
    boundary[0, [10, 66]] = 1
    with vk.device("cpu"):
        params = model.init(seed=5)
        whole = model(params, tokens, boundary).numpy()
        state, pieces, start = model.init_state(batch=2), [], 0
        for length in (5, 1, 70, 74):
            piece = slice(start, start + length)
            logits, state = model.forward_step(params, tokens[:, piece], state, boundary[:, piece])
            pieces.append(logits.numpy())
            start += length
    assert np.concatenate(pieces, axis=1).tobytes() == whole.tobytes()


def test_a_row_does_not_depend_on_its_batch():
    model, tokens = model_of(), tokens_of(4, 9)
    with vk.device("cpu"):
        params = model.init(seed=1)
        whole = model(params, tokens).numpy()
        assert model(params, tokens[2:3]).numpy().tobytes() == whole[2:3].tobytes()


def test_documents_do_not_see_each_other():
    model, tokens = model_of(), tokens_of(1, 12)
    boundary = np.zeros((1, 12), np.int32)
    boundary[0, 7] = 1
    with vk.device("cpu"):
        params = model.init(seed=1)
        other = tokens.copy()
        other[0, :7] = (other[0, :7] + 1) % SMALL.vocab
        first, second = (model(params, t, boundary).numpy() for t in (tokens, other))
    assert np.array_equal(first[:, 7:], second[:, 7:]) and not np.array_equal(first[:, :7], second[:, :7])


def test_the_loss_falls_on_a_repeated_text():
    model, optimizer = model_of(), AdamW(learning_rate=0.01, warmup_steps=5, total_steps=60)
    text = np.tile(np.arange(8) * 2, 40).astype(np.int32)
    with vk.device("cpu"):
        params = model.init(seed=6)
        state = optimizer.init(params)
        step = vk.jit(trainer(model, optimizer), donate_argnums=(0, 1))
        losses = []
        for i in range(60):
            starts = streams.integers(7, f"batch.{i}", (4, 1), text.size - 17)
            params, state, loss = step(params, state, text[starts + np.arange(17)])
            losses.append(loss.item())
    assert losses[0] > 2.5 and max(losses[-5:]) < 0.3


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        (np.zeros((2, 3), np.float32), DtypeError, r"^tokens: got float32, expected int32"),
        (np.zeros(3, np.int32), ShapeError, r"^tokens: got shape \(3,\), expected \[B, T \+ 1\]"),
        (np.zeros((3, 1), np.int32), ShapeError, r"^tokens: got shape \(3, 1\), expected \[B, T \+ 1\]"),
    ],
)
def test_errors_name_the_tokens(tokens, error, message):
    with vk.device("cpu"):
        model = model_of()
        with pytest.raises(error, match=message):
            model.loss(model.init(seed=0), tokens)


@pytest.mark.parametrize("shape", [(0, 7), (2, 0)])
@pytest.mark.parametrize("settings", [{}, {"variant": "rla"}, {"variant": "lrla"}, {"order": "chunked"}], ids=str)
def test_no_rows_and_no_tokens(settings, shape):
    model = nn.RAPTModel(nn.RAPTConfig(width=16, layers=1, heads=2, key_width=8, value_width=4, hidden=16, **settings))
    tokens = np.zeros(shape, np.int32)
    with vk.device("cpu"):
        params = model.init(0)
        assert model(params, tokens).numpy().shape == (*shape, 256)
        logits, _ = model.forward_step(params, tokens, model.init_state(shape[0]))
        assert logits.numpy().shape == (*shape, 256)
