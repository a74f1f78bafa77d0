"""Facts about the machinery around the kernels: host work of a replay, memory, compiling, importing.

Each is a small record with its unit in the name of every key.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import vkdnn as vk
from benchmarks import store
from benchmarks.work import Missing, Setup
from vkdnn.device import VulkanDevice
from vkdnn.nn import RAPTConfig

ROOT = Path(__file__).resolve().parent.parent.parent
Fact = Callable[[Setup], dict[str, Any]]


def _opened(setup: Setup) -> Any:
    """What the runtime opened. Raises Missing for the reference, which submits and allocates nothing."""
    if not isinstance(setup.device, VulkanDevice):
        raise Missing("the reference submits nothing and allocates nothing: choose a Vulkan device")
    return setup.device.opened


def _small_step(setup: Setup) -> tuple[Callable[[], float], Any]:
    """A jitted step of a small model with a donated weight and a batch from the host; it reads its loss."""
    with setup.device:
        weights = [vk.array(setup.normal(32, 32) / np.float32(8))]
    batch = setup.normal(16, 32)

    def loss(w: Any, x: Any) -> Any:
        return vk.mean(vk.square(vk.relu(x @ w)))

    @vk.jit(donate_argnums=0)
    def step(w: Any, x: Any) -> Any:
        value, slope = vk.value_and_grad(loss)(w, x)
        return w - slope * 0.01, value

    def call() -> float:
        with setup.device:
            weights[0], value = step(weights[0], batch)
        return float(value.item())

    return call, step


def replay(setup: Setup) -> dict[str, Any]:
    """A replay's time outside the submission: Python of the jitted call, of the Program and of the recording."""
    opened = _opened(setup)
    call, _ = _small_step(setup)
    for _ in range(3):
        call()
    submit, inside = opened.submit, [0.0]

    def timed(sequence: Any) -> None:
        start = time.perf_counter()
        submit(sequence)
        inside[0] += time.perf_counter() - start

    count = setup.pick(10, 200, 200)
    before, host = opened.submissions, []
    opened.submit = timed
    try:
        for _ in range(count):
            inside[0] = 0.0
            start = time.perf_counter()
            call()
            host.append(time.perf_counter() - start - inside[0])
    finally:
        del opened.submit
    return {
        "host_median_us": 1e6 * float(np.median(host)),
        "host_best_us": 1e6 * min(host),
        "submissions_a_step": (opened.submissions - before) / count,
    }


def growth(setup: Setup) -> dict[str, Any]:
    """Memory that replays leave behind: nothing, if all is well."""
    opened = _opened(setup)
    call, _ = _small_step(setup)
    for _ in range(20):
        call()
    count = setup.pick(20, 500, 500)
    device, resident = opened.allocated_bytes, _resident()
    for _ in range(count):
        call()
    return {
        "replays": count,
        "device_growth_bytes": opened.allocated_bytes - device,
        "process_growth_bytes": _resident() - resident,
        "process_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory(setup: Setup) -> dict[str, Any]:
    """Memory of the training step's intermediates beside the least that any plan could do with."""
    try:
        from vkdnn.train import Trainer, sample_text
    except ImportError as error:
        raise Missing(f"{error.name} is not installed") from None
    opened = _opened(setup)
    before = opened.allocated_bytes
    trainer = Trainer(_job(setup.scale == "quick"), sample_text(), setup.device)
    trainer.step()
    program = next(iter(trainer._step.traces.values())).program
    arenas, bound = 4 * program.peak_words, 4 * program.plan.lower_bound
    return {
        "kernels": len(program.steps),
        "arenas_bytes": arenas,
        "lower_bound_bytes": bound,
        "arenas_over_bound": arenas / max(1, bound),
        "allocated_bytes": opened.allocated_bytes - before,
    }


def _job(quick: bool) -> Any:
    from vkdnn.train import Job

    config = RAPTConfig(width=16, layers=1, heads=2, key_width=8, value_width=8, hidden=32)
    return Job(config, batch=2, length=16) if quick else Job()


# ---- in processes of their own


def importing(setup: Setup) -> dict[str, Any]:
    """Seconds of `import vkdnn` in a fresh process."""
    code = "import time; t = time.perf_counter(); import vkdnn; print(time.perf_counter() - t)"
    runs = [float(_python(["-c", code])) for _ in range(setup.pick(1, 5, 5))]
    return {"best_s": min(runs), "median_s": float(np.median(runs))}


def compiling(setup: Setup) -> dict[str, Any]:
    """The first training step of a process with an empty shader store, and of the next one, which finds it full."""
    opened = _opened(setup)
    selector = str(opened.info.index)
    with tempfile.TemporaryDirectory(prefix="vkdnn-bench-") as folder:
        code = "import sys; sys.path.insert(0, sys.argv[1]); from benchmarks.facts import first_step; first_step()"
        arguments = ["-c", code, str(ROOT / "tools"), selector, "quick" if setup.scale == "quick" else "job"]
        cold, warm = (json.loads(_python(arguments, VKDNN_CACHE_DIR=folder)) for _ in range(2))
    return {
        "cores": os.cpu_count(),
        "cold_kernels": cold["compiled"],
        "cold_compile_s": cold["compile_s"],
        "cold_first_step_s": cold["first_step_s"],
        "warm_kernels": warm["compiled"],
        "warm_load_s": warm["compile_s"],
        "warm_first_step_s": warm["first_step_s"],
    }


def first_step() -> None:
    """The child process of compiling(): arguments are the tools folder, a device and the size of the job."""
    from vkdnn.shader import compile_count
    from vkdnn.train import Trainer, sample_text

    selector, size = sys.argv[2:]
    vulkan = importlib.import_module("vkdnn.device")  # vkdnn.device is the function of this name
    compile_many, spent = vulkan.compile_many, [0.0]

    def timed(*arguments: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        try:
            return compile_many(*arguments, **keywords)
        finally:
            spent[0] += time.perf_counter() - start

    vulkan.compile_many = timed  # type: ignore[attr-defined]
    device = vk.device(selector)
    known = compile_count()  # the probe of the device has shaders of its own
    start = time.perf_counter()
    Trainer(_job(size == "quick"), sample_text(), device).step()
    took = time.perf_counter() - start
    print(json.dumps({"compiled": compile_count() - known, "compile_s": spent[0], "first_step_s": took}))


def _python(arguments: list[str], **environment: str) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    found = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise Missing(f"a process of its own failed: {found.stderr.strip().splitlines()[-1]}")
    return found.stdout


FACTS: dict[str, Fact] = {
    "replay": replay,
    "growth": growth,
    "memory": memory,
    "compiling": compiling,
    "importing": importing,
    "store": store.sizes,
    "at once": store.at_once,
    "start": store.starts,
}
