"""GPT-2 from a file in Hugging Face's layout, against a forward pass in float64 that reads the same tensors."""

import json
import math

import numpy as np
import pytest
import safetensors.numpy

import vkdnn as vk
from vkdnn import nn, tree
from vkdnn.checkpoint import CheckpointError
from vkdnn.errors import ArgumentError

VOCAB, WIDTH, LAYERS, HEADS, POSITIONS = 29, 24, 2, 3, 17
CPU = vk.device("cpu")


def tensors_of(seed=0):
    """A GPT-2 by its names: weights as Conv1D keeps them, inputs first."""
    rng = np.random.default_rng(seed)

    def normal(*shape, spread=0.3, mean=0.0):
        return (rng.standard_normal(shape) * spread + mean).astype(np.float32)

    found = {"wte.weight": normal(VOCAB, WIDTH), "wpe.weight": normal(POSITIONS, WIDTH)}
    norms = ["ln_f"] + [f"h.{i}.ln_{k}" for i in range(LAYERS) for k in (1, 2)]
    for name in norms:
        found |= {f"{name}.weight": normal(WIDTH, mean=1.0), f"{name}.bias": normal(WIDTH)}
    sizes = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH)}
    sizes |= {"mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
    for i in range(LAYERS):
        for name, shape in sizes.items():
            found |= {f"h.{i}.{name}.weight": normal(*shape), f"h.{i}.{name}.bias": normal(shape[1])}
        found[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, POSITIONS, POSITIONS), np.float32))
        found[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
    return found


def write(folder, tensors=None, prefix="", config=True):
    tensors = tensors_of() if tensors is None else tensors
    named = {(name if name == "lm_head.weight" else prefix + name): x for name, x in tensors.items()}
    safetensors.numpy.save_file(named, folder / "model.safetensors")
    if config:
        settings = {"n_head": HEADS, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def logits(tensors, tokens, heads=HEADS):
    """GPT-2 (Radford et al. 2019) in float64."""
    t = {name: x.astype(np.float64) for name, x in tensors.items()}

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / scale * t[f"{name}.weight"] + t[f"{name}.bias"]

    def product(name, x):
        return x @ t[f"{name}.weight"] + t[f"{name}.bias"]

    x = t["wte.weight"][tokens] + t["wpe.weight"][: len(tokens)]
    future = np.triu(np.ones((len(tokens), len(tokens)), bool), 1)
    for i in range(LAYERS):
        q, k, v = np.split(product(f"h.{i}.attn.c_attn", norm(f"h.{i}.ln_1", x)), 3, axis=-1)
        joined = []
        for h in range(heads):
            part = slice(h * WIDTH // heads, (h + 1) * WIDTH // heads)
            weights = np.exp(np.where(future, -np.inf, q[:, part] @ k[:, part].T / math.sqrt(WIDTH // heads)))
            joined.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        x = x + product(f"h.{i}.attn.c_proj", np.concatenate(joined, axis=-1))
        y = product(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x))
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + product(f"h.{i}.mlp.c_proj", y)
    return norm("ln_f", x) @ t.get("lm_head.weight", t["wte.weight"]).T


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_a_file_gives_gpt2s_logits(prefix, tmp_path, both):
    model, params = nn.load_gpt2(write(tmp_path, prefix=prefix), CPU)
    c = model.config
    assert (c.vocab, c.width, c.layers, c.heads, c.hidden, c.max_tokens) == (29, 24, 2, 3, 96, 17)
    assert (c.positions, c.mlp, c.norm, c.bias, c.tied, c.eps) == ("learned", "gelu", "layer", True, True, 1e-5)
    tokens = np.random.default_rng(1).integers(0, VOCAB, (2, POSITIONS)).astype(np.int32)
    host = tree.map_leaves(lambda p: p.numpy(), params)
    found = both(lambda tokens: model(host, tokens), tokens)[0]
    expected = np.stack([logits(tensors_of(), row) for row in tokens])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_parameters_are_those_of_the_model(tmp_path):
    model, params = nn.load_gpt2(write(tmp_path) / "model.safetensors", CPU)
    made = model.init(0, CPU)
    assert tree.paths(params) == tree.paths(made)
    shapes = [[p.shape for p in tree.flatten(x)[0]] for x in (params, made)]
    assert shapes[0] == shapes[1]


def test_without_a_configuration_heads_have_64_elements(tmp_path):
    model, params = nn.load_gpt2(write(tmp_path, config=False), CPU)
    assert model.config.heads == 1
    tokens = np.arange(9, dtype=np.int32)
    with CPU:
        found = model(params, tokens[None]).numpy()[0]
    np.testing.assert_allclose(found, logits(tensors_of(), tokens, heads=1), rtol=1e-4, atol=1e-4)


def test_a_head_of_its_own(tmp_path):
    tensors = tensors_of()
    tied = write(tmp_path, tensors | {"lm_head.weight": tensors["wte.weight"]}, "transformer.")
    assert nn.load_gpt2(tied, CPU)[0].config.tied is True
    tensors["lm_head.weight"] = tensors_of(7)["wte.weight"]
    model, params = nn.load_gpt2(write(tmp_path, tensors, "transformer."), CPU)
    assert model.config.tied is False
    with CPU:
        found = model(params, np.arange(5, dtype=np.int32)[None]).numpy()[0]
    np.testing.assert_allclose(found, logits(tensors, np.arange(5)), rtol=1e-4, atol=1e-4)


def test_float16_is_widened(tmp_path):
    tensors = {name: x.astype(np.float16) for name, x in tensors_of().items()}
    model, params = nn.load_gpt2(write(tmp_path, tensors), CPU)
    with CPU:
        found = model(params, np.arange(5, dtype=np.int32)[None]).numpy()[0]
    np.testing.assert_allclose(found, logits(tensors, np.arange(5)), rtol=1e-4, atol=1e-4)


def changed(**changes):
    tensors = {name: x for name, x in tensors_of().items() if changes.get(name, 0) is not None}
    return tensors | {name: np.zeros(shape, np.float32) for name, shape in changes.items() if shape is not None}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (changed(**{"wte.weight": None}), "holds no wte.weight; expected the names of a GPT-2"),
        (changed(**{"h.1.ln_2.bias": None}), "holds no h.1.ln_2.bias"),
        (changed(**{"h.0.mlp.c_fc.weight": None}), "holds no h.0.mlp.c_fc.weight"),
        (changed(**{"wpe.weight": (4, 5)}), r"has wpe.weight as float32 \[4, 5\], expected floats \[any, 24\]"),
        (changed(**{"h.0.attn.c_attn.weight": (72, 24)}), r"c_attn.weight as float32 \[72, 24\], .* \[24, 72\]"),
        (changed(**{"h.0.attn.q_norm": (3,)}), "holds h.0.attn.q_norm, which is no part of GPT-2"),
    ],
)
def test_files_that_hold_no_gpt2(tensors, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        nn.load_gpt2(write(tmp_path, tensors), CPU)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json is no JSON object"),
        ('{"activation_function": "relu"}', "activation_function 'relu', expected gelu_new"),
        ('{"scale_attn_by_inverse_layer_idx": true}', "has scale_attn_by_inverse_layer_idx True, expected False"),
        ("[]", r"config.json is no JSON object .it holds \[\]"),
        ("null", "config.json is no JSON object .it holds None"),
        ('{"n_layer": 3}', "config.json has n_layer 3, but .*model.safetensors holds one of 2"),
        ('{"n_embd": 48}', "has n_embd 48, but .*model.safetensors holds one of 24"),
        ('{"vocab_size": 50257}', "has vocab_size 50257, but .*model.safetensors holds one of 29"),
        ('{"n_positions": 1024}', "has n_positions 1024, but .*model.safetensors holds one of 17"),
        ('{"n_inner": 48}', "has n_inner 48, but .*model.safetensors holds one of 96"),
        ('{"layer_norm_epsilon": 0}', "config.json has layer_norm_epsilon 0, expected a finite positive number"),
        ('{"layer_norm_epsilon": NaN}', "config.json has layer_norm_epsilon nan, expected a finite"),
        ('{"layer_norm_epsilon": "x"}', "config.json has layer_norm_epsilon 'x', expected a finite"),
        ('{"layer_norm_epsilon": 1e99}', "config.json has layer_norm_epsilon 1e.99, expected a finite"),
        ('{"n_head": 5}', "do not fit .heads: got 5 for a width of 24"),
        ('{"n_head": "3"}', "do not fit .heads: got '3', expected int"),
    ],
)
def test_configurations_that_do_not_fit(text, message, tmp_path):
    write(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        nn.load_gpt2(tmp_path, CPU)


def test_a_configuration_of_the_same_sizes_fits(tmp_path):
    write(tmp_path)
    sizes = {"n_layer": LAYERS, "n_embd": WIDTH, "vocab_size": VOCAB, "n_positions": POSITIONS, "n_inner": None}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"n_head": HEADS, "layer_norm_epsilon": 1e-6}))
    assert nn.load_gpt2(tmp_path, CPU)[0].config.eps == 1e-6


def test_a_file_without_its_last_layer(tmp_path):
    write(tmp_path, {name: x for name, x in tensors_of().items() if not name.startswith("h.1.")})
    (tmp_path / "config.json").write_text(json.dumps({"n_head": HEADS, "n_layer": LAYERS}))
    with pytest.raises(CheckpointError, match=r"config.json has n_layer 2, but .*model.safetensors holds one of 1"):
        nn.load_gpt2(tmp_path, CPU)


def test_a_name_with_and_without_the_prefix(tmp_path):
    tensors = tensors_of()
    write(tmp_path, tensors | {"transformer.wte.weight": tensors["wte.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"holds both wte.weight and transformer.wte.weight, expected one"):
        nn.load_gpt2(tmp_path, CPU)


def test_what_is_no_file(tmp_path):
    with pytest.raises(ArgumentError, match=r"path: cannot look at x+ \(File name too long\)"):
        nn.load_gpt2("x" * 5000)
    with pytest.raises(ArgumentError, match=r"model.safetensors does not exist; name a safetensors file"):
        nn.load_gpt2(tmp_path)
    with pytest.raises(ArgumentError, match=r"path: got int, expected a path"):
        nn.load_gpt2(5)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="damaged or no safetensors file"):
        nn.load_gpt2(tmp_path)
