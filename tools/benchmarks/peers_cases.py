"""The rows of tools/bench --peers on a Vulkan device: what is called, on arrays that the device makes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import vkdnn as vk
from benchmarks.peers_rows import Sizes


@dataclass(frozen=True)
class Made:
    """A row made ready: what is called, the bytes of its arguments and results (None: count those of its kernels), and
    the tokens of a call where they are counted."""

    call: Callable[[], Any]
    bytes: int | None = None
    tokens: int = 0


def normal(*shapes: tuple[int, ...]) -> list[vk.Array]:
    """Random numbers on the current device, without a way from the host for gigabytes."""
    keys = vk.random.split(vk.random.key(0), len(shapes))
    arrays = [vk.random.normal(keys[i], shape) for i, shape in enumerate(shapes)]
    for a in arrays:  # one after the other: together they would need memory for all at once
        vk.realize([a])
    return arrays


def _made(function: Callable[..., Any], arrays: list[vk.Array]) -> Made:
    run = vk.jit(function)
    program = run.program(*arrays)
    moved = 4 * sum(node.words for node in (*program.inputs, *program.roots))
    return Made(lambda: run(*arrays), moved)


def _rms_norm(s: Sizes) -> Made:
    return _made(vk.rms_norm, normal((s["rows"], s["columns"]), (s["columns"],)))


def _layer_norm(s: Sizes) -> Made:
    return _made(vk.layer_norm, normal((s["rows"], s["columns"]), (s["columns"],), (s["columns"],)))


def _softmax(s: Sizes) -> Made:
    return _made(vk.softmax, normal((s["rows"], s["columns"])))


def _chain(s: Sizes) -> Made:
    def chain(x: Any) -> Any:
        return vk.minimum(vk.maximum(((vk.abs(x * 1.5 + 0.25) - 0.5) * x + 1.0) * 0.75, -2.0), 2.0) - x

    return _made(chain, normal((s["elements"],)))


def _product(s: Sizes) -> Made:
    return _made(vk.matmul, normal((s["m"], s["k"]), (s["k"], s["n"])))


def _both(function: Callable[..., Any], s: Sizes, arrays: list[vk.Array]) -> Made:
    """The function forward, or with gradients of its arguments for the last array as that of its value."""
    if not s.get("backward"):
        return _made(function, arrays[:-1])

    def both(*given: Any) -> Any:
        value, pull = vk.vjp(function, *given[:-1])
        return value, pull(given[-1])

    return _made(both, arrays)


def _scan(order: str, normalised: bool = False) -> Callable[[Sizes], Made]:
    def build(s: Sizes) -> Made:
        def scan(q: Any, k: Any, v: Any) -> Any:
            above = vk.scan_prefix_outer(k, v, q, order=order).bp
            if not normalised:
                return above
            one = vk.full((*k.shape[:3], 1), 1.0)
            sums = vk.scan_prefix_outer(one, k, one, order=order).bp
            return above / (vk.sum(q * sums, -1, keepdims=True) + 1e-4)

        q, k, v, g = normal(*[(s["batch"], s["tokens"], s["heads"], s["width"])] * 4)
        arrays = [vk.relu(q) / 8.0, vk.relu(k) / 8.0, v, g]
        vk.realize(arrays)
        return _both(scan, s, arrays)

    return build


def _attention(s: Sizes) -> Made:
    arrays = normal(*[(s["batch"], s["tokens"], s["heads"], s["width"])] * 4)
    return _both(lambda q, k, v: vk.attention(q, k, v, causal=True), s, arrays)


def _decoding(s: Sizes) -> Made:
    keys = (s["batch"], s["keys"], s["key_heads"], s["width"])
    return _made(vk.attention, normal((s["batch"], 1, s["heads"], s["width"]), keys, keys))


def _training(s: Sizes) -> Made:
    from vkdnn.nn import RAPTConfig
    from vkdnn.train import Job, Trainer, sample_text

    head = s["width"] // s["heads"]
    same = {name: s[name] for name in ("vocab", "width", "layers", "heads", "hidden", "order")}
    job = Job(RAPTConfig(key_width=head, value_width=head, **same), batch=s["batch"], length=s["tokens"])
    return Made(Trainer(job, sample_text(), vk.current_device()).step, tokens=s["batch"] * s["tokens"])


BUILDERS: dict[str, Callable[[Sizes], Made]] = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "softmax": _softmax,
    "chain": _chain,
    "product": _product,
    "chunked": _scan("chunked"),
    "normalised": _scan("chunked", normalised=True),
    "sequential": _scan("sequential"),
    "attention": _attention,
    "decoding": _decoding,
    "training": _training,
}
