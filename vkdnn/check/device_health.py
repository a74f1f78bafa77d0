"""A Vulkan device examined: its limits, the rules of the numerics contract one by one, one kernel's bits.

It must look at what the device does, never at a stored verdict.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import vkdnn as vk
from vkdnn.check.finding import Finding, State
from vkdnn.check.hard import HARD_FLOATS, bits_equal
from vkdnn.errors import CompileError, VkdnnError
from vkdnn.runtime import info as infos
from vkdnn.runtime import probe
from vkdnn.runtime.info import DeviceInfo, Strategies
from vkdnn.runtime.kompute import KomputeDevice
from vkdnn.shader import compile_count
from vkdnn.shader.store import bytes_text

LEAST_INVOCATIONS, LEAST_SHARED = 256, 32 << 10  # of the variants that every kernel has
OTHER_DEVICE = "update the device's driver, or choose another device with VKDNN_DEVICE (`vkdnn devices` lists them)"
_WAYS = {"native": "by its own instructions", "fma": "by remainders of fma()", "remainder": "by integer remainder"}


@dataclass(frozen=True)
class Numerics:
    """The verdict on a device's own arithmetic: every rule, and the strategies; None where no strategy mends it."""

    rules: tuple[probe.Rule, ...]
    strategies: Strategies | None
    refusal: str | None = None

    def way(self, rule: probe.Rule) -> str:
        """How kernels keep a rule on this device."""
        if self.strategies is None:
            return _WAYS["native"] if not rule.differing else "not at all"
        chosen = {"division": self.strategies.division, "square root": self.strategies.square_root}.get(rule.name)
        if chosen is not None:
            return _WAYS[chosen]
        if rule.name == probe.FUSED_RULE:
            used = "fma" in (self.strategies.division, self.strategies.square_root)
            return _WAYS["native"] if used else "not used"
        flushed = rule.name in ("addition", "subtraction", "multiplication")
        return "flushed in software" if flushed and self.strategies.subnormals == "software" else _WAYS["native"]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        rules = [asdict(rule) | {"kept": self.way(rule)} for rule in self.rules]
        strategies = None if self.strategies is None else asdict(self.strategies)
        return {"rules": rules, "strategies": strategies, "refusal": self.refusal}


def numerics_of(info: DeviceInfo) -> Numerics:
    """Runs the probe on a device. Raises DeviceError where it cannot be opened, CompileError without a compiler."""
    device = KomputeDevice(info)
    found = probe.answers(device)
    rules = probe.tally(*found)
    try:
        verdict = probe.judge(*found, str(info))
    except VkdnnError as error:
        return Numerics(rules, None, str(error))
    return Numerics(rules, verdict.strategies(infos.forced_strategies()))


def kernel_trouble(index: int) -> tuple[str | None, int]:
    """Computes one kernel on a device and on the reference: what differs, None if no bit does; how many compiled."""
    values = np.resize(np.nan_to_num(np.clip(HARD_FLOATS, -9.0, 9.0)), (5, 67)).astype(np.float32)
    before, results = compile_count(), []
    for device in (vk.device("cpu"), vk.device(index)):
        with device, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the store: it has findings of its own
            results.append(vk.softmax(vk.array(values) * 1.25 + 0.1).numpy())
    wrong = ~bits_equal(*results)
    count = compile_count() - before
    if not wrong.any():
        return None, count
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    want, got = (r[at].item().hex() for r in results)
    return f"{int(wrong.sum())} of {wrong.size} results differ, first at {at}: {got}, expected {want}", count


def limit_lines(info: DeviceInfo) -> dict[str, str]:
    """The limits that matter, for people."""
    x = info.limits
    return {
        "workgroups": " x ".join(f"{n:,}" for n in x.max_workgroup_count),
        "invocations a workgroup": f"{x.max_workgroup_invocations:,}",
        "shared memory": bytes_text(x.shared_memory_bytes),
        "subgroup": str(x.subgroup_size),
        "largest buffer": bytes_text(x.max_buffer_bytes),
        "memory": bytes_text(x.memory_bytes),
        "bindings": f"{x.max_bindings:,}",
        "push constants": bytes_text(x.push_constant_bytes),
    }


def device_findings(info: DeviceInfo, bad: State = "failure", cause: str = "") -> Iterator[Finding]:
    """All about one device. Its problems have the state ``bad``: on a device that nobody chose they are warnings.

    ``cause`` is what has failed already and every test needs, if something has.
    """
    topic, limits = f"device {info.index}", info.limits
    text = f"{info.name} ({info.kind}), driver {info.driver} {info.driver_version}, Vulkan {info.api_version}"
    yield Finding(topic, "ok", text, details=asdict(info))
    yield Finding(topic, "ok", ", ".join(f"{name} {value}" for name, value in limit_lines(info).items()))
    if limits.max_workgroup_invocations < LEAST_INVOCATIONS or limits.shared_memory_bytes < LEAST_SHARED:
        yield Finding(topic, bad, f"it offers {limits.max_workgroup_invocations} invocations and "
                      f"{limits.shared_memory_bytes} bytes of shared memory a workgroup, kernels need "
                      f"{LEAST_INVOCATIONS} and {LEAST_SHARED}", OTHER_DEVICE)  # fmt: skip
    try:
        numerics = numerics_of(info)
    except VkdnnError as error:
        if cause:
            yield Finding(topic, "note", f"its arithmetic was not tested: mend what the part about {cause} says first")
            return
        remedy = "mend the compiler first" if isinstance(error, CompileError) else OTHER_DEVICE
        yield Finding(topic, bad, f"its arithmetic could not be tested: {error}", remedy)
        return
    for rule in numerics.rules:
        state: State = "ok" if numerics.way(rule) != "not at all" else bad
        wrong = f"{rule.differing:,} of {rule.cases:,} cases differ" if rule.differing else f"{rule.cases:,} cases"
        yield Finding(topic, state, f"{rule.name}: {wrong}, kept {numerics.way(rule)}",
                      "" if state == "ok" else OTHER_DEVICE, asdict(rule))  # fmt: skip
    if numerics.strategies is None:
        yield Finding(topic, bad, f"refused: {numerics.refusal}", OTHER_DEVICE)
        return
    chosen = asdict(numerics.strategies)
    yield Finding(topic, "ok", f"strategies: {', '.join(f'{k} {v}' for k, v in chosen.items())}", details=chosen)
    try:
        trouble, count = kernel_trouble(info.index)
    except VkdnnError as error:
        yield Finding(topic, bad, f"one kernel from end to end: {error}", OTHER_DEVICE)
        return
    if trouble is not None:
        yield Finding(topic, bad, f"one kernel from end to end: {trouble}",
                      "report it with `vkdnn doctor --json`; `vkdnn parity --all` finds what else differs")  # fmt: skip
        return
    how = "compiled and run" if count else "taken from the store and run"
    yield Finding(topic, "ok", f"one kernel from end to end: {how}, every bit is the reference's")
