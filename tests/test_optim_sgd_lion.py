"""SGD and Lion against float64 NumPy; parity of devices, one kernel an update, refusals."""

import math

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import checkpoint, tree
from vkdnn.errors import ArgumentError
from vkdnn.optim import SGD, AdamW, Lion, lion_update, sgd_update

SHARED = {"learning_rate": 0.05, "warmup_steps": 3, "total_steps": 10, "weight_decay": 0.1, "clip_norm": 1.0}


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parameters():
    return {"matrix": normal(1, 5, 7), "rows": [normal(2, 7), normal(3, 3, 2, 2)]}


def gradient_of(p):
    return p * 3.0 - 1.0


def float64_run(optimizer, rule, params, steps):
    """``rule(p, g, slot, rate, decay)`` -> (p, slot) over a dict of float64 arrays, with schedule and clipping."""
    slots = dict.fromkeys(params, 0.0)
    for step in range(steps):
        grads = {name: gradient_of(p) for name, p in params.items()}
        norm = math.sqrt(sum((g**2).sum() for g in grads.values()))
        done = max(step - optimizer.warmup_steps, 0) / (optimizer.total_steps - optimizer.warmup_steps)
        low = optimizer.min_ratio
        rate = optimizer.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * min(done, 1))) / 2)
        if step < optimizer.warmup_steps:
            rate = optimizer.learning_rate * (step + 1) / optimizer.warmup_steps
        for name, g in grads.items():
            g = g if optimizer.clip_norm is None else g * min(1.0, optimizer.clip_norm / norm)
            decay = optimizer.weight_decay if g.ndim > 1 else 0.0
            params[name], slots[name] = rule(params[name], g, slots[name], rate, decay)
    return params


def sgd_rule(optimizer):
    def rule(p, g, velocity, rate, decay):
        g = g + decay * p
        velocity = optimizer.momentum * velocity + g
        return p - rate * (g + optimizer.momentum * velocity if optimizer.nesterov else velocity), velocity

    return rule


def lion_rule(optimizer):
    beta1, beta2 = optimizer.betas

    def rule(p, g, m, rate, decay):
        update = np.sign(beta1 * m + (1 - beta1) * g) + decay * p
        return p - rate * update, beta2 * m + (1 - beta2) * g

    return rule


CASES = [
    (SGD(**SHARED), sgd_rule),
    (SGD(**SHARED, nesterov=True), sgd_rule),
    (SGD(**SHARED | {"clip_norm": None, "weight_decay": 0.0}, momentum=0.0), sgd_rule),
    (Lion(**SHARED), lion_rule),
    (Lion(**SHARED | {"clip_norm": None, "warmup_steps": 0}, betas=(0.95, 0.98)), lion_rule),
]
NAMES = ["momentum", "nesterov", "plain", "lion", "lion without clipping"]


@pytest.mark.parametrize(("optimizer", "rule"), CASES, ids=NAMES)
def test_twelve_steps_match_float64(optimizer, rule):
    with vk.device("cpu"):
        params = tree.map_leaves(vk.array, parameters())
        state = optimizer.init(params)
        step = vk.jit(lambda p, s: optimizer.update(p, tree.map_leaves(gradient_of, p), s))
        for _ in range(12):
            params, state = step(params, state)
        assert state["step"].item() == 12
    names = tree.paths(params)
    start = {n: p.astype(np.float64) for n, p in zip(names, tree.flatten(parameters())[0], strict=True)}
    expected = float64_run(optimizer, rule(optimizer), start, 12)
    for name, found in zip(names, tree.flatten(params)[0], strict=True):
        np.testing.assert_allclose(found.numpy(), expected[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", [case[0] for case in CASES], ids=NAMES)
def test_a_training_step_is_one_submission_with_the_same_bits_everywhere(optimizer):
    def step(params, state, x):
        value, grads = vk.value_and_grad(lambda p: vk.mean((x @ p["w"] + p["b"]) ** 2))(params)
        return (*optimizer.update(params, grads, state), value)

    def run(device):
        with device:
            params = {"w": vk.array(normal(1, 6, 4)), "b": vk.array(normal(2, 4))}
            state = optimizer.init(params)
            jitted = vk.jit(step, donate_argnums=(0, 1))
            for i in range(3):
                before = getattr(getattr(device, "opened", None), "submissions", -1)
                params, state, _ = jitted(params, state, normal(10 + i, 8, 6))
                assert getattr(getattr(device, "opened", None), "submissions", 0) == before + 1
            return checkpoint.digest({"params": params, "state": state})

    assert run(vk.device()) == run(vk.device("cpu"))


@pytest.mark.parametrize(("update", "results"), [(sgd_update, 2), (lion_update, 2)])
def test_one_update_is_one_dispatch(update, results, both):
    arrays = [normal(i, 33, 5) for i in range(3)]
    scalars = [np.float32(0.01), np.float32(0.7)]

    def decayed(*a):
        return update(*a, weight_decay=0.1)

    with vk.device("cpu"):
        assert len(vk.jit(decayed).program(*arrays, *scalars).steps) == 1
    found = both(decayed, *arrays, *scalars)
    assert len(found) == results and all(x.shape == (33, 5) for x in found)


def test_lion_steps_by_signs_alone(both):
    g = np.array([1e-30, -5.0, 0.0, -0.0, np.inf, np.nan], np.float32)
    p, m = both(lion_update, np.zeros(6, np.float32), g, np.zeros(6, np.float32), np.float32(0.5))
    np.testing.assert_array_equal(p, [-0.5, 0.5, 0.0, 0.0, -0.5, np.nan])
    assert np.isnan(m[5])


def test_sgd_without_momentum_keeps_no_velocity():
    with vk.device("cpu"):
        optimizer = SGD(momentum=0.0)
        assert list(optimizer.init(parameters())) == ["step"]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (SGD, "momentum", 1.0), (SGD, "momentum", -0.1), (SGD, "learning_rate", math.inf),
        (SGD, "weight_decay", math.nan), (SGD, "total_steps", 2**24), (Lion, "betas", (0.9,)),
        (Lion, "betas", (0.9, 1.0)), (Lion, "clip_norm", -1.0), (Lion, "min_ratio", math.nan),
    ],
)  # fmt: skip
def test_errors_name_the_setting(kind, name, value):
    with pytest.raises(ArgumentError, match=f"^{name}: got .* expected"):
        kind(**{name: value})


def test_nesterov_needs_momentum():
    with pytest.raises(ArgumentError, match=r"^nesterov: got True, expected False, or a momentum over 0"):
        SGD(momentum=0.0, nesterov=True)


@pytest.mark.parametrize("optimizer", [SGD(), Lion(), AdamW()], ids=["sgd", "lion", "adamw"])
def test_trees_that_differ_are_refused(optimizer):
    with vk.device("cpu"):
        params = {"a": vk.array([1.0]), "b": vk.array([1.0])}
        state = optimizer.init(params)
        with pytest.raises(ArgumentError, match=r"^grads: its tree differs from that of params"):
            optimizer.update(params, {"a": vk.array([1.0])}, state)
        with pytest.raises(ArgumentError, match=r"^params: got a tree without leaves"):
            optimizer.init({})
