"""AdamW against float64 NumPy; its schedule, its clipping, its number of kernels and submissions."""

import math

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.errors import ArgumentError
from vkdnn.optim import AdamW, adamw_update, global_norm

SETTINGS = {
    "learning_rate": 0.01,
    "warmup_steps": 3,
    "total_steps": 10,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
}


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parameters():
    return {"matrix": normal(1, 5, 7), "rows": [normal(2, 7), normal(3, 3, 2, 2)]}


def float64_adamw(optimizer, params, gradient_of, steps):
    """Trees as dicts of float64 arrays by name."""
    (beta1, beta2), m, v = optimizer.betas, dict.fromkeys(params, 0.0), dict.fromkeys(params, 0.0)
    for step in range(steps):
        grads = {name: gradient_of(p) for name, p in params.items()}
        norm = math.sqrt(sum((g**2).sum() for g in grads.values()))
        done = min(max((step - optimizer.warmup_steps) / (optimizer.total_steps - optimizer.warmup_steps), 0), 1)
        low = optimizer.min_ratio
        rate = optimizer.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2)
        if step < optimizer.warmup_steps:
            rate = optimizer.learning_rate * (step + 1) / optimizer.warmup_steps
        for name, g in grads.items():
            g = g * min(1.0, optimizer.clip_norm / norm)
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g * g
            unbiased = np.sqrt(v[name] / (1 - beta2 ** (step + 1))) + optimizer.eps
            move = m[name] / (1 - beta1 ** (step + 1)) / unbiased
            decay = optimizer.weight_decay if g.ndim > 1 else 0.0
            params[name] = params[name] - rate * (move + decay * params[name])
    return params


def test_a_training_loop():
    optimizer = AdamW(learning_rate=0.1, total_steps=50, weight_decay=0.0)
    with vk.device("cpu"):
        x = vk.array([3.0, -2.0])
        state = optimizer.init(x)
        for _ in range(50):
            x, state = optimizer.update(x, 2.0 * x, state)
        assert state["step"].item() == 50
        assert np.abs(x.numpy()).max() < 0.3


def test_twelve_steps_match_float64():
    optimizer = AdamW(**SETTINGS)
    with vk.device("cpu"):
        params = tree.map_leaves(vk.array, parameters())
        state = optimizer.init(params)
        step = vk.jit(lambda p, s: optimizer.update(p, tree.map_leaves(lambda x: x * 3.0 - 1.0, p), s))
        for _ in range(12):
            params, state = step(params, state)
    names = tree.paths(params)
    start = {n: p.astype(np.float64) for n, p in zip(names, tree.flatten(parameters())[0], strict=True)}
    expected = float64_adamw(optimizer, start, lambda p: p * 3.0 - 1.0, 12)
    for name, found in zip(names, tree.flatten(params)[0], strict=True):
        np.testing.assert_allclose(found.numpy(), expected[name], rtol=2e-5, atol=2e-6)


def test_schedule_warms_up_then_follows_a_cosine_to_its_floor():
    optimizer = AdamW(learning_rate=2.0, warmup_steps=4, total_steps=12, min_ratio=0.25)
    with vk.device("cpu"):
        rates = [optimizer.rate(vk.array(np.int32(i))).item() for i in (0, 1, 3, 4, 8, 12, 1000)]
    np.testing.assert_allclose(rates, [0.5, 1.0, 2.0, 2.0, 1.25, 0.5, 0.5], rtol=1e-6)


def test_only_large_gradients_are_clipped():
    with vk.device("cpu"):
        grads = {"a": vk.array([[3.0, 0.0]]), "b": vk.array([4.0])}
        assert global_norm(grads).item() == 5.0
        for limit, factor in ((10.0, 1.0), (2.5, 0.5)):
            optimizer = AdamW(clip_norm=limit, betas=(0.0, 0.0))
            params = tree.map_leaves(lambda g: vk.array(np.zeros(g.shape, np.float32)), grads)
            _, state = optimizer.update(params, grads, optimizer.init(params))
            assert state["m"]["b"].item() == 4.0 * factor


def test_a_nan_gradient_is_not_hidden_by_clipping():
    with vk.device("cpu"):
        params = {"a": vk.array([1.0]), "b": vk.array([1.0])}
        optimizer = AdamW()
        grads = {"a": vk.array([np.nan]), "b": vk.array([1.0])}
        moved, _ = optimizer.update(params, grads, optimizer.init(params))
        assert all(np.isnan(p.item()) for p in moved.values())


def test_one_update_is_one_dispatch(both):
    shape = (33, 5)
    arrays = [normal(i, *shape) for i in range(3)] + [np.abs(normal(4, *shape))]
    scalars = [np.float32(s) for s in (0.01, 0.1, 0.05, 0.7)]

    def update(*a):
        return adamw_update(*a, weight_decay=0.1)

    with vk.device("cpu"):
        assert len(vk.jit(update).program(*arrays, *scalars).steps) == 1
    p, m, v = both(update, *arrays, *scalars)
    assert p.shape == m.shape == v.shape == shape


def test_a_training_step_is_one_submission_and_updates_in_place():
    optimizer = AdamW(**SETTINGS)

    def step(params, state, x):
        value, grads = vk.value_and_grad(lambda p: vk.mean((x @ p["w"] + p["b"]) ** 2))(params)
        return (*optimizer.update(params, grads, state), value)

    def run(device, steps):
        with device:
            params = {"w": vk.array(normal(1, 6, 4)), "b": vk.array(normal(2, 4))}
            state = optimizer.init(params)
            jitted = vk.jit(step, donate_argnums=(0, 1))
            handles, submissions = set(), []
            for i in range(steps):
                before = getattr(getattr(device, "opened", None), "submissions", 0)
                params, state, _ = jitted(params, state, normal(10 + i, 8, 6))
                after = getattr(getattr(device, "opened", None), "submissions", 0)
                submissions.append(after - before)
                leaves = tree.flatten([params, state["m"], state["v"]])[0]
                handles.add(tuple(id(leaf.storage().handle()) for leaf in leaves))
            return checkpoint.digest({"params": params, "state": state}), handles, submissions

    device_digest, handles, submissions = run(vk.device(), 3)
    assert submissions == [1, 1, 1]
    assert len(handles) == 1
    assert device_digest == run(vk.device("cpu"), 3)[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", -1.0), ("learning_rate", math.nan), ("warmup_steps", -1), ("total_steps", 0),
        ("min_ratio", 1.5), ("betas", (0.9, 1.0)), ("eps", 0.0), ("weight_decay", -0.1), ("clip_norm", 0.0),
    ],
)  # fmt: skip
def test_errors_name_the_setting(name, value):
    with pytest.raises(ArgumentError, match=f"^{name}: got .* expected"):
        AdamW(**{name: value})


def test_a_tree_without_leaves_is_refused():
    with pytest.raises(ArgumentError, match=r"^grads: got a tree without leaves"):
        global_norm({})
