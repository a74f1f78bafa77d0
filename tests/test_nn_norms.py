"""Norm layers against float64 NumPy; parity of devices, forward and backward; running statistics; refusals."""

import numpy as np
import pytest

import vkdnn as vk
from vkdnn import nn
from vkdnn.check.library import nn_float64 as f64
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.streams import Stream


@pytest.fixture(autouse=True)
def on_reference():
    with vk.device("cpu"):
        yield


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found, expected, rtol=2e-6):
    np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def test_rms_norm():
    params, x = {"weight": normal(1, 8)}, normal(2, 3, 8)
    close(nn.RMSNorm(8, eps=1e-5)(params, x), f64.rms_norm(x.astype(np.float64), params["weight"], 1e-5))
    assert nn.RMSNorm(4).init(Stream(0))["weight"].tolist() == [1.0] * 4


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias, both):
    layer = nn.LayerNorm(8, eps=1e-3, bias=bias)
    params, x = {"weight": normal(1, 8)} | ({"bias": normal(2, 8)} if bias else {}), 3.0 + normal(3, 2, 5, 8)
    close(layer(params, x), f64.layer_norm(x.astype(np.float64), params["weight"], params.get("bias", 0.0), 1e-3), 1e-5)
    names = sorted(params)
    assert sorted(layer.init(Stream(0))) == names
    both(lambda x, *p: vk.grad(lambda p, x: vk.sum(layer(p, x) ** 3), (0, 1))(dict(zip(names, p, strict=True)), x),
         x, *(params[n] for n in names))  # fmt: skip
    with pytest.raises(ShapeError, match=r"^x: got shape \(2, 5, 8\), expected \[..., 4\]"):
        nn.LayerNorm(4)(nn.LayerNorm(4).init(Stream(0)), x)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (3, 6, 2, 4)])
def test_group_norm(shape, both):
    layer = nn.GroupNorm(groups=3, channels=6, eps=1e-3)
    params, x = {"weight": normal(1, 6), "bias": normal(2, 6)}, 2.0 + normal(3, *shape)
    wide = x.astype(np.float64).reshape(shape[0], 3, -1)
    plain = f64.layer_norm(wide, eps=1e-3).reshape(shape)
    per_channel = (6, *(1,) * (len(shape) - 2))
    close(layer(params, x), plain * params["weight"].reshape(per_channel) + params["bias"].reshape(per_channel), 1e-5)
    both(lambda x, w, b: vk.grad(lambda p, x: vk.sum(layer(p, x) ** 3), (0, 1))({"weight": w, "bias": b}, x),
         x, params["weight"], params["bias"])  # fmt: skip
    assert {n: p.tolist() for n, p in layer.init(Stream(0)).items()} == {"weight": [1.0] * 6, "bias": [0.0] * 6}


def test_batch_norm_in_training_and_inference(both):
    layer = nn.BatchNorm(4, eps=1e-3, momentum=0.25)
    params, state = {"weight": normal(1, 4), "bias": normal(2, 4)}, layer.init_state()
    mean, var = np.zeros(4), np.ones(4)
    for seed in (3, 4, 5):
        x = 1.0 + normal(seed, 5, 4, 3)
        y, state = layer(params, x, state, training=True)
        wide = x.astype(np.float64)
        batch_mean, batch_var = wide.mean((0, 2)), wide.var((0, 2))
        mean, var = 0.75 * mean + 0.25 * batch_mean, 0.75 * var + 0.25 * batch_var * 15 / 14
        plain = (wide - batch_mean[:, None]) / np.sqrt(batch_var + 1e-3)[:, None]
        close(y, plain * params["weight"][:, None] + params["bias"][:, None], 1e-5)
    close(state["mean"], mean, 1e-5)
    close(state["var"], var, 1e-5)
    y, after = layer(params, x, state)
    assert after is state
    plain = (wide - mean[:, None]) / np.sqrt(var + 1e-3)[:, None]
    close(y, plain * params["weight"][:, None] + params["bias"][:, None], 1e-5)

    def run(x, w, b, m, v):
        def loss(p, x):
            y, state = layer(p, x, {"mean": m, "var": v}, training=True)
            return vk.sum(y**3), state

        return vk.value_and_grad(loss, (0, 1), has_aux=True)({"weight": w, "bias": b}, x)

    both(run, x, params["weight"], params["bias"], state["mean"].numpy(), state["var"].numpy())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.GroupNorm(4, 6), r"groups: got 4 for 6 channels"),
        (lambda: nn.GroupNorm(0, 6), r"groups: got 0 for 6 channels"),
        (lambda: nn.BatchNorm(0), r"channels: got 0"),
        (lambda: nn.BatchNorm(3, momentum=1.5), r"momentum: got 1.5"),
    ],
)
def test_layers_that_cannot_be(make, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        make()


def test_other_channels_are_refused():
    group, batch = nn.GroupNorm(2, 4), nn.BatchNorm(4)
    with pytest.raises(ShapeError, match=r"^x: got shape \(2, 6\), expected \[N, 4, ...\]"):
        group(group.init(Stream(0)), normal(0, 2, 6))
    with pytest.raises(ShapeError, match=r"^x: got shape \(4,\), expected \[N, 4, ...\]"):
        batch(batch.init(Stream(0)), normal(0, 4), batch.init_state())
