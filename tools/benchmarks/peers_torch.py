"""The peers of tools/bench --peers: PyTorch's and flash-linear-attention's kernels, in a process of their own.

Standard input is a JSON list of [row, kind, sizes]; each peer becomes a line of JSON on standard output when it is
done, those of flash-linear-attention last, since they compile longest. Times are those of CUDA events. It must never
import vkdnn: the two drivers stay apart.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

RUNS, SETTLE, LOAD = 10, 0.5, 0.5  # seconds of calls, and of other work just before those that count
HELPERS, MOST_AHEAD = 12, 150.0  # processes and seconds for compiling ahead
Call = Callable[[], Any]
Sizes = dict[str, Any]


def main(where: str, part: str = "") -> None:
    """Everything that is asked for; ``where`` is cuda, or cpu to see that it runs; ``part`` is for _compile_ahead()."""
    job = json.load(sys.stdin)
    try:
        import torch
    except ImportError:
        _absent(job, "torch is not installed")
        return
    if where == "cuda" and not torch.cuda.is_available():
        _absent(job, "PyTorch has no CUDA device here")
        return
    if part:
        _compile_part(job, int(part))
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    _say({"about": {"torch": torch.__version__, "device": torch.cuda.get_device_name() if where == "cuda" else "cpu"}})
    peers = [(row, kind, peer, sizes) for row, kind, sizes in job for peer in PEERS[kind]]
    for scans in (False, True):
        if scans and where == "cuda" and importlib.util.find_spec("fla"):
            _compile_ahead(job)
        for row, kind, peer, sizes in peers:
            if ("linear_attn" in peer) is scans:
                _attempt(row, peer, PEERS[kind][peer], {**sizes, "device": where})


def _say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def _absent(job: list[Any], why: str) -> None:
    for row, kind, _ in job:
        for peer in PEERS[kind]:
            _say({"row": row, "name": peer, "missing": why})


def _attempt(row: str, peer: str, build: Callable[[Sizes], Call], sizes: Sizes) -> None:
    """One peer, whose failure costs nobody else's figure."""
    import torch

    where = sizes["device"]
    try:
        seconds = _timed(build(sizes), where, wall="vocab" in sizes)
        _say({"row": row, "name": peer, "seconds": statistics.median(seconds), "best_s": min(seconds), "runs": RUNS})
    except ImportError as error:
        _say({"row": row, "name": peer, "missing": f"{error.name or error} is not installed"})
    except Exception as error:  # whatever a peer does
        _say({"row": row, "name": peer, "error": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
    if where == "cuda":
        torch.cuda.empty_cache()


def _timed(call: Call, where: str, wall: bool) -> list[float]:
    """Seconds of each run on the device, or by the wall clock; compiled and settled before."""
    import torch

    finish = torch.cuda.synchronize if where == "cuda" else lambda: None
    call()
    finish()
    if where == "cuda":
        load = torch.ones(4096, 4096, device=where)  # brings the card to its full clock
        for seconds, work in ((SETTLE, call), (LOAD, lambda: load @ load)):
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                work()
                finish()
        call()
        finish()
    found = []
    for _ in range(RUNS):
        if where == "cuda" and not wall:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(1e-3 * begin.elapsed_time(end))
        else:
            begun = time.perf_counter()
            call()
            finish()
            found.append(time.perf_counter() - begun)
    return found


# ---- Triton's candidates


def _compile_ahead(job: list[Any]) -> None:
    """Compile what flash-linear-attention chooses from, a hundred kernels: Triton compiles one after the other, so that
    takes minutes. Here each of several processes compiles a part into Triton's store, where this one finds them."""
    begun, helpers = time.monotonic(), min(HELPERS, os.cpu_count() or 1)
    environment = {**os.environ, "FLA_CACHE_RESULTS": "0", "HELPERS": str(helpers)}  # nothing is chosen there
    processes = []
    for k in range(helpers):
        command = [sys.executable, __file__, "cuda", str(k)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        processes.append(process)
    for process in processes:
        try:
            process.wait(max(0.0, begun + MOST_AHEAD - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    took = time.monotonic() - begun
    print(f"candidates of flash-linear-attention compiled by {helpers} processes in {took:.0f} s", file=sys.stderr)


def _compile_part(job: list[Any], part: int) -> None:
    """Run the scans of the job with one part of the candidates."""
    import torch
    from triton.runtime.autotuner import Autotuner

    helpers, prune = int(os.environ["HELPERS"]), Autotuner.prune_configs

    def pruned(self: Any, *arguments: Any) -> Any:
        configs = prune(self, *arguments)
        return configs[part % len(configs) :: helpers]

    Autotuner.prune_configs = pruned
    for _, kind, sizes in job:
        peers = PEERS["normalised" if kind == "training" else kind]
        if kind == "training":
            sizes = {**sizes, "width": sizes["width"] // sizes["heads"], "backward": True}
        for peer, build in peers.items():
            if "linear_attn" in peer:
                with contextlib.suppress(Exception):  # whoever measures it meets it again
                    build({**sizes, "device": "cuda"})()
                    torch.cuda.synchronize()


# ---- the peers, by kind of row


def _normal(s: Sizes, *names: str) -> Any:
    """Random numbers of a shape that these sizes give; 1 stands for itself."""
    import torch

    return torch.randn([s[name] if name != "1" else 1 for name in names], device=s["device"])


def _rms_norm(s: Sizes) -> Call:
    from torch.nn.functional import rms_norm

    x, w = _normal(s, "rows", "columns"), _normal(s, "columns")
    return lambda: rms_norm(x, w.shape, w, 1e-6)


def _layer_norm(s: Sizes) -> Call:
    from torch.nn.functional import layer_norm

    x, w, b = _normal(s, "rows", "columns"), _normal(s, "columns"), _normal(s, "columns")
    return lambda: layer_norm(x, w.shape, w, b, 1e-5)


def _softmax(s: Sizes) -> Call:
    x = _normal(s, "rows", "columns")
    return lambda: x.softmax(-1)


def _chain(x: Any) -> Any:
    return (((x * 1.5 + 0.25).abs() - 0.5) * x + 1.0).mul(0.75).clamp_min(-2.0).clamp_max(2.0) - x


def _chain_eager(s: Sizes) -> Call:
    x = _normal(s, "elements")
    return lambda: _chain(x)


def _chain_compiled(s: Sizes) -> Call:
    import torch

    x, compiled = _normal(s, "elements"), torch.compile(_chain)
    return lambda: compiled(x)


def _product(s: Sizes) -> Call:
    a, b = _normal(s, "m", "k"), _normal(s, "k", "n")
    return lambda: a @ b


def _scan_arrays(s: Sizes) -> list[Any]:
    """Queries and keys of scores of 0 or more, values, and a gradient."""
    q, k, v, g = (_normal(s, "batch", "tokens", "heads", "width") / 8 for _ in range(4))
    return [q.relu(), k.relu(), v, g]


def _linear(function: Callable[..., Any], normalised: bool) -> Callable[[Sizes], Call]:
    def build(s: Sizes) -> Call:
        run = function()
        return _both(lambda q, k, v: run(q, k, v, scale=1.0, normalize=normalised)[0], s, _scan_arrays(s))

    return build


def _chunk_linear_attn() -> Any:
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn


def _fused_recurrent() -> Any:
    from fla.ops.linear_attn import fused_recurrent_linear_attn

    return fused_recurrent_linear_attn


def _both(function: Callable[..., Any], s: Sizes, arrays: list[Any]) -> Call:
    """The function forward, or with gradients of its arguments for the last array as that of its value."""
    import torch

    *x, g = arrays
    if not s.get("backward"):

        def forward() -> Any:
            with torch.no_grad():
                return function(*x)

        return forward
    for a in x:
        a.requires_grad_(True)
    return lambda: torch.autograd.grad(function(*x), x, g)


def _attention(s: Sizes) -> Call:
    from torch.nn.functional import scaled_dot_product_attention

    arrays = [_normal(s, "batch", "heads", "tokens", "width") for _ in range(4)]
    return _both(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), s, arrays)


def _decoding(s: Sizes) -> Call:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q = _normal(s, "batch", "heads", "1", "width")
    k, v = (_normal(s, "batch", "key_heads", "keys", "width") for _ in range(2))

    def run() -> Any:
        with torch.no_grad():
            return scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return run


def _training(scan: str) -> Callable[[Sizes], Call]:
    def build(s: Sizes) -> Call:
        from peers_model import training_step

        return training_step(s, scan)

    return build


PEERS: dict[str, dict[str, Callable[[Sizes], Call]]] = {
    "rms_norm": {"PyTorch": _rms_norm},
    "layer_norm": {"PyTorch": _layer_norm},
    "softmax": {"PyTorch": _softmax},
    "chain": {"PyTorch eager": _chain_eager, "torch.compile": _chain_compiled},
    "product": {"PyTorch": _product},
    "chunked": {
        "chunk_linear_attn": _linear(_chunk_linear_attn, False),
        "chunk_linear_attn, normalised": _linear(_chunk_linear_attn, True),
    },
    "normalised": {"chunk_linear_attn, normalised": _linear(_chunk_linear_attn, True)},
    "sequential": {"fused_recurrent_linear_attn": _linear(_fused_recurrent, False)},
    "attention": {"SDPA": _attention},
    "decoding": {"SDPA": _decoding},
    "training": {"PyTorch eager": _training("plain"), "PyTorch eager, chunk_linear_attn": _training("fla")},
}


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["cuda"]))
