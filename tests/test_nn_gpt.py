"""GPT as a whole: values and gradients against float64, parity of devices, decoding with a cache, learning."""

import math

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, streams, tree
from vkdnn.check.library import nn_float64 as f64
from vkdnn.checkpoint import digest
from vkdnn.errors import ArgumentError, DtypeError, MemoryLimitError, ShapeError
from vkdnn.optim import AdamW

SMALL = {"vocab": 20, "width": 16, "layers": 2, "heads": 2, "hidden": 16}
CHOICES = {
    "rope": {},
    "alibi": {"positions": "alibi", "heads": 4, "kv_heads": 2, "softcap": 4.0},
    "learned": {"positions": "learned", "mlp": "gelu", "norm": "layer", "bias": True},
    "window": {"window": 5, "kv_heads": 1, "head_dim": 6, "tied": False},
}
every_choice = pytest.mark.parametrize("choice", CHOICES)
CPU = vk.device("cpu")


def model_of(choice="rope", **more):
    return nn.GPTModel(nn.GPTConfig(**SMALL | CHOICES[choice] | more))


def tokens_of(*shape, seed=0):
    return streams.integers(seed, "tokens", shape, SMALL["vocab"]).astype(np.int32)


def boundary_of(batch, length, *starts):
    boundary = np.zeros((batch, length), np.int32)
    boundary[-1, list(starts)] = 1
    return boundary


def wide(params):
    return tree.map_leaves(lambda p: p.numpy().astype(np.float64), params)


# ---- values and gradients


@every_choice
def test_logits_and_loss_match_float64(choice):
    model, tokens, boundary = model_of(choice), tokens_of(2, 71), boundary_of(2, 70, 5, 66)
    with CPU:
        params = model.init(seed=1)
        found = model(params, tokens[:, :-1], boundary).numpy()
        expected = f64.gpt_logits(model, wide(params), tokens[:, :-1], boundary)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
        value = model.loss(params, tokens).item()
    assert abs(value - f64.gpt_loss(model, wide(params), tokens)) < 1e-5
    assert 2.0 < value < 5.0  # log(20) is 3.0


@every_choice
def test_gradients_match_central_differences(choice):
    model, tokens = model_of(choice), tokens_of(2, 13)
    with CPU:
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
                ends.append(f64.gpt_loss(model, moved, tokens))
            slope = (ends[0] - ends[1]) / 2e-6
            assert abs(gradient[at] - slope) < 1e-3 * np.abs(gradient).max() + 1e-7, (name, at)


def test_gradients_match_pytorch():
    torch = pytest.importorskip("torch")
    model, tokens = model_of("learned"), tokens_of(2, 13)
    with CPU:
        params = model.init(seed=1)
        grads = [g.numpy() for g in tree.flatten(vk.grad(model.loss)(params, tokens))[0]]
    leaves = [torch.tensor(x, requires_grad=True) for x in tree.flatten(wide(params))[0]]
    p, functional = tree.unflatten(tree.flatten(params)[1], leaves), torch.nn.functional
    c, at = model.config, torch.tensor(tokens[:, :-1], dtype=torch.long)

    def applied(part, x):
        return x @ part["weight"] + part["bias"]

    def normed(part, x):
        return functional.layer_norm(x, (c.width,), part["weight"], part["bias"], c.eps)

    x = p["embedding"]["weight"][at] + p["positions"]["weight"][: at.shape[1]]
    for layer in p["layers"]:
        y = normed(layer["attention_norm"], x)
        q, k, v = (
            applied(layer["attention"][n], y).reshape(*y.shape[:2], c.heads, -1).transpose(1, 2)
            for n in ("query", "key", "value")
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + applied(layer["attention"]["output"], y.transpose(1, 2).reshape(x.shape))
        y = functional.gelu(applied(layer["mlp"]["up"], normed(layer["mlp_norm"], x)), approximate="tanh")
        x = x + applied(layer["mlp"]["down"], y)
    scores = normed(p["norm"], x) @ p["embedding"]["weight"].T
    targets = torch.tensor(tokens[:, 1:], dtype=torch.long)
    functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).backward()
    for name, gradient, leaf in zip(tree.paths(params), grads, leaves, strict=True):
        expected = leaf.grad.numpy()
        assert np.abs(gradient - expected).max() < 1e-5 * max(np.abs(expected).max(), 0.01), name


@every_choice
def test_three_training_steps_have_the_same_bits_on_device_and_reference(choice):
    model, optimizer = model_of(choice), AdamW(warmup_steps=1, total_steps=3)

    def step(params, state, tokens):
        value, grads = vk.value_and_grad(model.loss)(params, tokens)
        params, state = optimizer.update(params, grads, state)
        return params, state, value

    found = []
    for device in (vk.device(), CPU):
        with device:
            params = model.init(seed=3)
            state = optimizer.init(params)
            jitted = vk.jit(step, donate_argnums=(0, 1))
            digests = []
            for i in range(3):
                params, state, value = jitted(params, state, tokens_of(2, 68, seed=i))
                digests.append([digest(x) for x in (value, params, state)])
            found.append(digests)
    assert found[0] == found[1]


# ---- decoding


@pytest.mark.parametrize("device", ["cpu", None])
@every_choice
def test_decoding_gives_the_logits_of_the_whole(choice, device):
    model, length = model_of(choice), 140  # over one block of 128 keys
    tokens, boundary = tokens_of(2, length, seed=4), boundary_of(2, length, 7, 131)
    with vk.device(device):
        params = model.init(seed=5)
        whole = vk.jit(model)(params, tokens, boundary).numpy()
        step = vk.jit(model.forward_step, donate_argnums=(2,))
        state, start = model.init_state(batch=2), 0
        assert state["layers"][0]["k"].shape[1] == 256
        for count in (129, 1, 1, 1, 4, 4):
            piece = slice(start, start + count)
            found, state = step(params, tokens[:, piece], state, boundary[:, piece])
            assert found.numpy().tobytes() == whole[:, piece].tobytes(), f"tokens {piece}"
            start += count


@every_choice
def test_a_cache_just_large_enough_gives_the_logits_of_the_whole(choice):
    model, tokens = model_of(choice), tokens_of(1, 64)
    with CPU:
        params = model.init(seed=5)
        whole = model(params, tokens).numpy()
        found, state = model.forward_step(params, tokens[:, :62], model.init_state(1, max_tokens=33))
        last = []
        for t in (62, 63):
            logits, state = model.forward_step(params, tokens[:, t], state)
            last.append(logits.numpy()[:, None])
        assert np.concatenate([found.numpy(), *last], axis=1).tobytes() == whole.tobytes()
        beyond, _ = model.forward_step(params, tokens[:, 0], state)
    assert state["layers"][0]["k"].shape[1] == 64 and np.isnan(beyond.numpy()).all()


@pytest.mark.parametrize("count", [1, 3])
def test_a_donated_cache_stays_in_place(count):
    model = model_of()
    with vk.device():
        params, state = model.init(seed=5), model.init_state(1)
        step = vk.jit(model.forward_step, donate_argnums=(2,))
        places = []
        for _ in range(3):
            places.append({id(x.storage().handle()) for x in tree.flatten(state["layers"])[0]})
            _, state = step(params, tokens_of(1, count), state)
    assert places[0] == places[1] == places[2]


def test_a_row_does_not_depend_on_its_batch():
    model, tokens = model_of(), tokens_of(4, 9)
    with CPU:
        params = model.init(seed=1)
        whole = model(params, tokens).numpy()
        assert model(params, tokens[2:3]).numpy().tobytes() == whole[2:3].tobytes()


@every_choice
def test_documents_do_not_see_each_other(choice):
    model, tokens, boundary = model_of(choice), tokens_of(1, 12), boundary_of(1, 12, 7)
    with CPU:
        params = model.init(seed=1)
        other = tokens.copy()
        other[0, :7] = (other[0, :7] + 1) % SMALL["vocab"]
        first, second = (model(params, t, boundary).numpy() for t in (tokens, other))
    assert np.array_equal(first[:, 7:], second[:, 7:]) and not np.array_equal(first[:, :7], second[:, :7])


def test_a_window_ends_what_a_token_sees():
    model, tokens = model_of("window", layers=1), tokens_of(1, 12)
    with CPU:
        params = model.init(seed=1)
        other = tokens.copy()
        other[0, 3] = (other[0, 3] + 1) % SMALL["vocab"]
        first, second = (model(params, t).numpy() for t in (tokens, other))
    changed = [not np.array_equal(first[0, t], second[0, t]) for t in range(12)]
    assert changed == [3 <= t < 8 for t in range(12)]


def test_the_loss_falls_on_a_repeated_text():
    model, optimizer = model_of(), AdamW(learning_rate=0.01, warmup_steps=5, total_steps=60)
    text = np.tile(np.arange(8) * 2, 40).astype(np.int32)

    def update(params, state, tokens):
        value, grads = vk.value_and_grad(model.loss)(params, tokens)
        params, state = optimizer.update(params, grads, state)
        return params, state, value

    with CPU:
        params = model.init(seed=6)
        state = optimizer.init(params)
        step = vk.jit(update, donate_argnums=(0, 1))
        losses = []
        for i in range(60):
            starts = streams.integers(7, f"batch.{i}", (4, 1), text.size - 17)
            params, state, value = step(params, state, text[starts + np.arange(17)])
            losses.append(value.item())
    assert losses[0] > 2.5 and max(losses[-5:]) < 0.3


def test_alibi_slopes_are_the_papers():
    for heads in (1, 2, 3, 5, 8, 12, 16):
        np.testing.assert_allclose(nn.alibi_slopes(heads), f64.alibi_slopes(heads), rtol=1e-7)


# ---- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "^layers: got 0, expected 1 or more"),
        ({"window": 0}, "^window: got 0, expected 1 or more"),
        ({"width": "a"}, "^width: got 'a', expected int"),
        ({"width": 15}, "^heads: got 2 for a width of 15, expected a divisor, or head_dim"),
        ({"head_dim": 5}, "^head_dim: got 5, expected an even number"),
        ({"kv_heads": 3}, "^kv_heads: got 3 for 2 heads, expected a divisor"),
        ({"positions": "sine"}, "^positions: got 'sine', expected one of rope, alibi, learned"),
        ({"mlp": "relu"}, "^mlp: got 'relu', expected one of swiglu, gelu"),
        ({"norm": "batch"}, "^norm: got 'batch', expected one of rms, layer"),
        ({"head_dim": 258}, "^head_dim: got 258, expected 1 to 256"),
        ({"width": 1024}, "^heads: got 2 for a width of 1024, which gives each 512 elements, expected at most 256"),
        ({"eps": 0.0}, "^eps: got 0.0, expected a finite positive float32 number"),
        ({"eps": math.nan}, "^eps: got nan, expected a finite positive float32 number"),
        ({"rope_base": -1.0}, "^rope_base: got -1.0, expected a finite positive float32 number"),
        ({"rope_base": math.inf}, "^rope_base: got inf, expected a finite positive float32 number"),
        ({"softcap": 0.0}, "^softcap: got 0.0, expected a finite positive number or None"),
    ],
)
def test_configurations_that_cannot_be(change, message):
    with pytest.raises(ArgumentError, match=message):
        nn.GPTConfig(**SMALL | change)


@pytest.mark.parametrize("device", [CPU, vk.device()], ids=repr)
def test_a_cache_beyond_a_buffer_is_refused_before_it_is_made(device):
    for batch, tokens in ((1, 10**11), (10**9, 64), (0, 10**30)):
        with pytest.raises(MemoryLimitError, match=r"^init_state: a cache of .* tokens takes .*smaller max_tokens"):
            model_of().init_state(batch, device, max_tokens=tokens)


def test_refusals_name_what_came():
    model = model_of("learned", max_tokens=10)
    with CPU:
        params = model.init(seed=0)
        with pytest.raises(DtypeError, match=r"^tokens: got float32, expected int32"):
            model(params, np.zeros((2, 3), np.float32))
        with pytest.raises(ShapeError, match=r"^tokens: got shape \(3,\), expected \[B, T \+ 1\]"):
            model.loss(params, np.zeros(3, np.int32))
        with pytest.raises(ShapeError, match=r"^tokens: got shape \(1, 11\), expected at most 10 tokens a row"):
            model(params, tokens_of(1, 11))
        with pytest.raises(ShapeError, match=r"^boundary: got shape \(1, 3\), expected \(1, 4\)"):
            model(params, tokens_of(1, 4), np.zeros((1, 3), np.int32))
        with pytest.raises(ArgumentError, match=r"max_tokens: got 11, but this model learned 10 positions"):
            model.init_state(1, max_tokens=11)
        with pytest.raises(ArgumentError, match=r"^init_state: got batch 1 and max_tokens 0"):
            model.init_state(1, max_tokens=0)
        with pytest.raises(ShapeError, match=r"^tokens: got shape \(1, 11\) for a cache of 10 tokens"):
            model.forward_step(params, tokens_of(1, 11), model.init_state(1))
        with pytest.raises(ShapeError, match=r"^x: got shape \(1, 2, 3\), expected \[B, T, 16\]"):
            model.block.attention(params["layers"][0]["attention"], np.zeros((1, 2, 3), np.float32))
        with pytest.raises(ShapeError, match=r"^tokens: got shape \(3,\), expected 2 rows, the batch of the state"):
            model.forward_step(params, np.zeros(3, np.int32), model.init_state(2))
        with pytest.raises(ShapeError, match=r"^boundary: got shape \(3,\), expected \(2,\), that of the tokens"):
            model.forward_step(params, np.zeros(2, np.int32), model.init_state(2), np.zeros(3, np.int32))
        with pytest.raises(DtypeError, match=r"^boundary: got float32, expected bool or integers"):
            model(params, tokens_of(1, 4), np.zeros((1, 4), np.float32))
    with pytest.raises(ArgumentError, match=r"^alibi_slopes: heads: got 0, expected 1 or more"):
        nn.alibi_slopes(0)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_no_rows_and_no_tokens(shape):
    model, tokens = model_of("alibi"), np.zeros(shape, np.int32)
    with CPU:
        params = model.init(seed=0)
        assert model(params, tokens).numpy().shape == (*shape, 20)
        found, state = model.forward_step(params, tokens, model.init_state(shape[0]), tokens)
        assert found.numpy().shape == (*shape, 20)
        assert state["first"].shape == (shape[0], 1) and state["position"].item() == shape[1]
