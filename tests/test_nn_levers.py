"""Levers of the models: the bits of the plain gradient under all of them, and what each is for."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn, streams, tree
from vkdnn.errors import ArgumentError

SIZES = {"vocab": 20, "width": 8, "layers": 6, "heads": 2, "hidden": 8}
MODELS = {
    "rapt": nn.RAPTModel(nn.RAPTConfig(**SIZES, key_width=4, value_width=4)),
    "rapt chunked": nn.RAPTModel(nn.RAPTConfig(**SIZES, key_width=4, value_width=4, order="chunked")),
    "gpt": nn.GPTModel(nn.GPTConfig(**SIZES)),
    "gpt learned": nn.GPTModel(
        nn.GPTConfig(**SIZES, kv_heads=1, positions="learned", mlp="gelu", norm="layer", bias=True)
    ),
}
COMBINATIONS = [nn.Levers(*x) for x in itertools.product((None, 1, 2, 3), (False, True), (None, 1))][1:]
TOKENS = streams.integers(0, "tokens", (2, 18), SIZES["vocab"]).astype(np.int32)
BOUNDARY = np.zeros((2, 17), np.int32)
BOUNDARY[1, [4, 9]] = 1


def gradient(model, levers, device, boundary=None):
    """Its Program, and the bits of loss and gradients."""
    with vk.device(device):
        params = model.init(seed=1)
        step = vk.jit(vk.value_and_grad(lambda p, t: model.loss(p, t, boundary, levers=levers)))
        program = step.program(params, TOKENS)
        return program, [x.numpy().tobytes() for x in tree.flatten(step(params, TOKENS))[0]]


@pytest.fixture(scope="module")
def plain():
    return {name: gradient(MODELS[name], nn.Levers(), "cpu") for name in ("rapt", "gpt")}


@pytest.mark.parametrize("levers", COMBINATIONS, ids=str)
@pytest.mark.parametrize("name", ["rapt", "gpt"])
def test_the_bits_are_those_of_the_plain_gradient(name, levers, plain):
    without, want = plain[name]
    program, bits = gradient(MODELS[name], levers, "cpu")
    assert bits == want
    assert (program.host_words > 0) == levers.offload
    if levers.segment is not None:
        assert program.peak_words < 0.75 * without.peak_words
    if levers.flush_every is None:
        assert program.submissions == 1
    else:
        assert program.submissions >= 2 * 6 // levers.flush_every + 1


@pytest.mark.parametrize("name", MODELS)
def test_so_they_are_on_the_device(name):
    model = MODELS[name]
    short = type(model)(replace(model.config, layers=2))
    want = gradient(short, nn.Levers(), "cpu")[1]
    assert gradient(short, nn.Levers(1, offload=True, flush_every=1), None)[1] == want


@pytest.mark.parametrize("name", ["rapt", "gpt"])
def test_documents(name):
    want = gradient(MODELS[name], nn.Levers(), "cpu", BOUNDARY)[1]
    assert gradient(MODELS[name], nn.Levers(2, offload=True, flush_every=1), "cpu", BOUNDARY)[1] == want


@pytest.mark.parametrize("name", ["rapt", "gpt"])
def test_each_lever_gives_what_it_promises(name):
    """Planned for batches in which activations count; nothing is run."""
    model, tokens = MODELS[name], np.zeros((32, 65), np.int32)
    with vk.device("cpu"):
        params = model.init(seed=1)

        def planned(**levers):
            chosen = nn.Levers(**levers)
            return vk.jit(vk.grad(lambda p, t: model.loss(p, t, levers=chosen))).program(params, tokens)

        without, single, double = planned(), planned(checkpoint_every=1), planned(checkpoint_every=2)
        away, cut = planned(offload=True), planned(flush_every=3)
    x = 32 * 64 * 8  # words between two blocks
    assert single.peak_words < double.peak_words < 0.6 * without.peak_words
    assert away.peak_words <= single.peak_words - 3 * x and away.host_words == 6 * x
    assert without.submissions == 1 and cut.submissions == 5  # 2 ends forward, 2 backward, and the rest
    assert planned(checkpoint_every=1, offload=True).peak_words == away.peak_words


def test_levers_beyond_the_number_of_blocks():
    model = MODELS["rapt"]
    want = gradient(model, nn.Levers(), "cpu")[1]
    program, bits = gradient(model, nn.Levers(checkpoint_every=100, flush_every=100), "cpu")
    assert bits == want and program.submissions == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Levers(checkpoint_every=0), r"^checkpoint_every: got 0, expected 1 or more"),
        (lambda: nn.Levers(flush_every=-1), r"^flush_every: got -1, expected 1 or more"),
        (lambda: nn.Levers(offload=1), r"^offload: got 1, expected bool"),
        (lambda: nn.Levers(checkpoint_every=1.5), r"^checkpoint_every: got 1.5, expected int or None"),
        (lambda: nn.levers.apply_blocks(None, [], None, 2), r"^levers: got int, expected vk.nn.Levers"),
    ],
)
def test_errors_name_the_lever(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
