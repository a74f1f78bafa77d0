"""Accumulated gradients: the order of the sum, one submission, the whole batch's gradient."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import ArgumentError
from vkdnn.optim import SGD, Accumulation, accumulated


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loss(params, x):
    return vk.mean((x @ params["w"] + params["b"]) ** 2)


def example(micro=3):
    params = {"w": normal(1, 6, 4), "b": normal(2, 4)}
    return params, [normal(10 + i, 8, 6) for i in range(micro)]


def test_the_mean_is_the_gradient_of_the_whole_batch():
    params, batches = example()
    with vk.device("cpu"):
        arrays = vk.tree.map_leaves(vk.array, params)
        value, gradient = accumulated(loss, arrays, batches)
        wide = {name: p.astype(np.float64) for name, p in params.items()}
        x = np.concatenate(batches).astype(np.float64)
        y = x @ wide["w"] + wide["b"]
        assert abs(value.item() - np.mean(y**2)) < 1e-6 * np.mean(y**2)
        np.testing.assert_allclose(gradient["w"].numpy(), 2 * x.T @ y / y.size, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gradient["b"].numpy(), 2 * y.sum(0) / y.size, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_micro_batches_are_added_from_left_to_right(reduction, both):
    params, batches = example(4)

    def run(w, b, *xs):
        return accumulated(loss, {"w": w, "b": b}, xs, reduction)

    found = both(run, params["w"], params["b"], *batches)
    with vk.device("cpu"):
        arrays = vk.tree.map_leaves(vk.array, params)
        parts = [vk.tree.flatten(vk.value_and_grad(loss)(arrays, x))[0] for x in batches]
        for k, got in enumerate(found):
            total = parts[0][k]
            for part in parts[1:]:
                total = total + part[k]
            expected = total / 4.0 if reduction == "mean" else total
            assert got.tobytes() == expected.numpy().tobytes()


def test_one_micro_batch_is_the_plain_gradient():
    params, batches = example(1)
    with vk.device("cpu"):
        arrays = vk.tree.map_leaves(vk.array, params)
        found, plain = (f for f in (accumulated(loss, arrays, batches), vk.value_and_grad(loss)(arrays, batches[0])))
        for a, b in zip(vk.tree.flatten(found)[0], vk.tree.flatten(plain)[0], strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


def test_an_accumulated_step_is_one_submission():
    params, batches = example()
    device, optimizer = vk.device(), SGD()

    def step(params, state, batches):
        _, gradient = accumulated(loss, params, batches)
        return optimizer.update(params, gradient, state)

    with device:
        arrays = vk.tree.map_leaves(vk.array, params)
        state, jitted = optimizer.init(arrays), vk.jit(step, donate_argnums=(0, 1))
        for _ in range(2):
            before = device.opened.submissions
            arrays, state = jitted(arrays, state, batches)
            assert device.opened.submissions == before + 1


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("device", ["cpu", None])
def test_pieces_have_the_bits_of_the_whole(device, reduction):
    params, batches = example(3)
    batches[0][:] = -0.0  # a gradient of zeros of either sign: nothing may be added to it
    with vk.device(device):
        arrays = vk.tree.map_leaves(vk.array, params)
        whole = vk.jit(lambda p, xs: accumulated(loss, p, xs, reduction))(arrays, batches)
        pieces = Accumulation(loss, 3, reduction)
        add, take = vk.jit(pieces.add, donate_argnums=0), vk.jit(pieces.take)
        sums = pieces.init(arrays)
        for _ in range(2):  # the sums of one step serve the next
            for number, x in enumerate(batches):
                sums = add(sums, arrays, x, np.int32(number))
            value, gradient = take(sums)
            for a, b in zip(vk.tree.flatten([value, gradient])[0], vk.tree.flatten(list(whole))[0], strict=True):
                assert a.numpy().tobytes() == b.numpy().tobytes()


def test_refusals():
    params, batches = example()
    with pytest.raises(ArgumentError, match=r"^reduction: got 'max', expected 'mean' or 'sum'"):
        accumulated(loss, params, batches, "max")
    with pytest.raises(ArgumentError, match=r"^batches: got none, expected at least one"):
        accumulated(loss, params, [])
    with pytest.raises(ArgumentError, match=r"^count: got 0, expected at least one"):
        Accumulation(loss, 0)
