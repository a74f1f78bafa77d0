"""The cases: one function each, by name. A case says what it computes, and with what it is compared.

Peers compute the same values, as well as their library can; whether bits agree is what the tests are for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import vkdnn as vk
from benchmarks.attention import attention, decoding
from benchmarks.work import Call, Missing, Setup, Work, has, jitted, on_device, with_gradients

Builder = Callable[[Setup], Work]
CASES: dict[str, Builder] = {}


def case(name: str) -> Callable[[Builder], Builder]:
    """Registers a builder under a name."""

    def register(build: Builder) -> Builder:
        CASES[name] = build
        return build

    return register


# ---- elementwise


def _elements(setup: Setup) -> int:
    return int(setup.pick(2**14, 2**24, 2**26))


@case("chain of 10")
def _chain(setup: Setup) -> Work:
    x = setup.normal(_elements(setup))

    def chain(x: Any) -> Any:
        return vk.minimum(vk.maximum(((vk.abs(x * 1.5 + 0.25) - 0.5) * x + 1.0) * 0.75, -2.0), 2.0) - x

    out = np.empty_like(x)

    def passes() -> Any:
        np.multiply(x, np.float32(1.5), out)
        np.add(out, np.float32(0.25), out)
        np.abs(out, out)
        np.subtract(out, np.float32(0.5), out)
        np.multiply(out, x, out)
        np.add(out, np.float32(1.0), out)
        np.multiply(out, np.float32(0.75), out)
        np.maximum(out, np.float32(-2.0), out)
        np.minimum(out, np.float32(2.0), out)
        return np.subtract(out, x, out)

    def written() -> Any:
        return np.minimum(np.maximum(((np.abs(x * 1.5 + 0.25) - 0.5) * x + 1.0) * 0.75, -2.0), 2.0) - x

    return jitted(setup, f"{x.size:,} elements", chain, [x], **{"NumPy": written, "NumPy, in place": passes})


@case("exp")
def _exp(setup: Setup) -> Work:
    x = setup.normal(_elements(setup))
    out = np.empty_like(x)
    return jitted(setup, f"{x.size:,} elements", vk.exp, [x], NumPy=lambda: np.exp(x, out))


@case("gelu")
def _gelu(setup: Setup) -> Work:
    x = setup.normal(_elements(setup))
    work = jitted(setup, f"{x.size:,} elements", vk.gelu, [x])
    if has("scipy"):
        from scipy.special import erf

        half, root = np.float32(0.5), np.float32(0.5**0.5)
        work.peers["NumPy, SciPy"] = lambda: half * x * (1 + erf(x * root))
    else:
        work.notes.append("no peer: SciPy, which has erf for NumPy, is not installed")
    return work


@case("scale float16")
def _half(setup: Setup) -> Work:
    x = setup.normal(_elements(setup))
    wide, _ = on_device(setup.device, lambda x: x * 1.5, [x])
    work = jitted(setup, f"{x.size:,} elements", lambda x: x * 1.5, [x.astype(np.float16)])
    work.variants["vkdnn float32"] = wide
    return work


# ---- folds and what is made of them


def _rows(setup: Setup) -> np.ndarray[Any, Any]:
    return setup.normal(*setup.pick((32, 128), (8192, 1024), (16_384, 4096)))


def _shape(x: np.ndarray[Any, Any]) -> str:
    return " x ".join(map(str, x.shape))


@case("sum, rows")
def _sum_rows(setup: Setup) -> Work:
    x = _rows(setup)
    return jitted(setup, _shape(x), lambda x: vk.sum(x, -1), [x], NumPy=lambda: x.sum(-1))


@case("max, rows")
def _max_rows(setup: Setup) -> Work:
    x = _rows(setup)
    return jitted(setup, _shape(x), lambda x: vk.max(x, -1), [x], NumPy=lambda: x.max(-1))


@case("sum, all")
def _sum_all(setup: Setup) -> Work:
    x = setup.normal(_elements(setup))
    return jitted(setup, f"{x.size:,} elements", vk.sum, [x], NumPy=x.sum)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@case("softmax")
def _softmax_forward(setup: Setup) -> Work:
    x = _rows(setup)
    return jitted(setup, _shape(x), vk.softmax, [x], NumPy=lambda: _softmax(x))


@case("softmax, backward")
def _softmax_backward(setup: Setup) -> Work:
    x, g = _rows(setup), _rows(setup)

    def peer() -> Any:
        y = _softmax(x)
        return np.vdot(y, g), y * (g - (g * y).sum(-1, keepdims=True))

    return jitted(setup, f"{_shape(x)}, forward and backward", with_gradients(vk.softmax, 1), [x, g], NumPy=peer)


def _standardised(x: Any) -> tuple[Any, Any]:
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))
    return centred * inverse, inverse


@case("layer_norm")
def _layer_norm(setup: Setup) -> Work:
    x, w, b = _rows(setup), setup.normal(_rows(setup).shape[1]), setup.normal(_rows(setup).shape[1])
    return jitted(setup, _shape(x), vk.layer_norm, [x, w, b], NumPy=lambda: _standardised(x)[0] * w + b)


@case("layer_norm, backward")
def _layer_norm_backward(setup: Setup) -> Work:
    x, g = _rows(setup), _rows(setup)
    w, b = setup.normal(x.shape[1]), setup.normal(x.shape[1])

    def peer() -> Any:
        z, inverse = _standardised(x)
        u = g * w
        dx = inverse * (u - u.mean(-1, keepdims=True) - z * (u * z).mean(-1, keepdims=True))
        return np.vdot(z * w + b, g), dx, (g * z).sum(0), g.sum(0)

    function = with_gradients(vk.layer_norm, 3)
    return jitted(setup, f"{_shape(x)}, forward and backward", function, [x, w, b, g], NumPy=peer)


def _inverse_rms(x: Any) -> Any:
    return 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))


@case("rms_norm")
def _rms_norm(setup: Setup) -> Work:
    x = _rows(setup)
    w = setup.normal(x.shape[1])
    return jitted(setup, _shape(x), vk.rms_norm, [x, w], NumPy=lambda: x * _inverse_rms(x) * w)


@case("rms_norm, backward")
def _rms_norm_backward(setup: Setup) -> Work:
    x, g = _rows(setup), _rows(setup)
    w = setup.normal(x.shape[1])

    def peer() -> Any:
        inverse = _inverse_rms(x)
        z, u = x * inverse, g * w
        return np.vdot(z * w, g), inverse * (u - z * (u * z).mean(-1, keepdims=True)), (g * z).sum(0)

    function = with_gradients(vk.rms_norm, 2)
    return jitted(setup, f"{_shape(x)}, forward and backward", function, [x, w, g], NumPy=peer)


# ---- products


def _product(which: int) -> Builder:
    def build(setup: Setup) -> Work:
        sizes = setup.pick((16, 32, 48, (4, 64, 32)), (256, 512, 1024, (16, 1024, 1024)), (1024, 2048, 4096, None))
        chosen = sizes[which] or (16, 8192, 8192)
        m, k, n = chosen if isinstance(chosen, tuple) else (chosen,) * 3
        a, b = setup.normal(m, k), setup.normal(k, n)
        return jitted(setup, f"{m} x {k} by {k} x {n}", vk.matmul, [a, b], NumPy_BLAS=lambda: a @ b)

    return build


for _which, _name in enumerate(("product, small", "product, medium", "product, large", "product, thin")):
    case(_name)(_product(_which))


# ---- along an axis


@case("sort")
def _sort(setup: Setup) -> Work:
    x = setup.normal(setup.pick(2**10, 2**20, 2**24))
    return jitted(setup, f"{x.size:,} elements", vk.sort, [x], NumPy=lambda: np.sort(x, kind="stable"))


@case("cumsum")
def _cumsum(setup: Setup) -> Work:
    x = setup.normal(_elements(setup))
    return jitted(setup, f"{x.size:,} elements", vk.cumsum, [x], NumPy=lambda: np.cumsum(x, dtype=np.float32))


# ---- scans of linear attention


def _scan(order: str, backward: bool) -> Builder:
    def forward(k: Any, v: Any, p: Any) -> Any:
        return vk.scan_prefix_outer(k, v, p, order=order).bp

    def build(setup: Setup) -> Work:
        batch, tokens, heads, key, value = setup.pick((1, 64, 1, 8, 8), (2, 1024, 4, 64, 64), (4, 4096, 16, 64, 64))
        arrays = [setup.normal(batch, tokens, heads, n) / np.float32(8) for n in (key, value, key, value)]
        what = f"B{batch} T{tokens} H{heads} K{key} V{value}" + ", forward and backward" * backward
        function = with_gradients(forward, 3) if backward else forward
        used = arrays if backward else arrays[:3]
        work = jitted(setup, what, function, used)
        if setup.scale != "large":
            work.peers["reference"] = on_device(vk.device("cpu"), function, used)[0]
        if backward and setup.scale == "large":
            work.notes.append("no PyTorch loop: it keeps the state of every token, many gigabytes")
        elif has("torch"):
            work.peers["PyTorch loop"] = _torch_loop(arrays, backward)
        else:
            work.notes.append("no PyTorch loop: torch is not installed")
        return work

    return build


def _torch_loop(arrays: list[Any], backward: bool) -> Call:
    """The recurrence of the sequential order, token by token, on the CPU."""
    import torch

    k, v, p, g = (torch.from_numpy(a) for a in arrays)

    def forward() -> Any:
        state = torch.zeros(v.shape[0], v.shape[2], v.shape[3], k.shape[3])
        out = []
        for t in range(k.shape[1]):
            state = state + v[:, t, :, :, None] * k[:, t, :, None, :]
            out.append((state * p[:, t, :, None, :]).sum(-1))
        return torch.stack(out, 1)

    def both() -> Any:
        for x in (k, v, p):
            x.requires_grad_(True)
            x.grad = None
        (forward() * g).sum().backward()
        return k.grad, v.grad, p.grad

    def alone() -> Any:
        with torch.no_grad():
            return forward()

    return both if backward else alone


for _order in ("sequential", "chunked"):
    case(f"scan, {_order}")(_scan(_order, False))
    case(f"scan, {_order}, backward")(_scan(_order, True))


# ---- softmax attention

for _length, _name in enumerate(("attention", "attention, long")):
    for _end, _options in (
        ("", {}),
        (", causal", {"causal": True}),
        (", backward", {"backward": True}),
        (", causal, backward", {"causal": True, "backward": True}),
    ):
        case(_name + _end)(partial(attention, length=_length, **_options))
case("attention, decoding")(decoding)


# ---- training


@case("training step")
def _training(setup: Setup) -> Work:
    try:
        from vkdnn.train import Job, Trainer, sample_text
    except ImportError as error:
        raise Missing(f"{error.name} is not installed") from None
    from vkdnn.nn import RAPTConfig

    tiny = Job(RAPTConfig(width=16, layers=1, heads=2, key_width=8, value_width=8, hidden=32), batch=2, length=16)
    large = Job(RAPTConfig(width=512, layers=6, heads=8, key_width=64, value_width=64, hidden=1024), length=256)
    job = setup.pick(tiny, Job(), large)
    trainer = Trainer(job, sample_text(), setup.device)
    config = job.config
    size = f"{trainer.parameter_count:,} parameters, {config.layers} layers of width {config.width}"
    tokens = job.batch * job.length * job.accumulate
    work = Work(f"{size}, {tokens:,} tokens", trainer.step, lambda: next(iter(trainer._step.traces.values())).program)
    if setup.scale != "large":
        work.peers["reference"] = Trainer(job, sample_text(), vk.device("cpu")).step
    work.repeatable, work.tokens = False, tokens
    return work
