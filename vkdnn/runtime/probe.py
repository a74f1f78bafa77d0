"""Opens a device: runs the rules of the numerics contract on it and chooses its strategies by the answers.

It must never hand out a device that adds or multiplies wrong, nor trust a verdict of another driver or mode.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, fields

import numpy as np

from vkdnn.errors import DeviceError
from vkdnn.numerics.flush import HARDWARE_FLUSH
from vkdnn.runtime.cases import (
    CASES_VERSION,
    FLOAT_RESULTS,
    SMALLEST_NORMAL,
    Cases,
    Operation,
    make_cases,
    same_float,
)
from vkdnn.runtime.info import DeviceInfo, Strategies, Way, choose, forced_strategies
from vkdnn.runtime.interface import Launch, Region, Words
from vkdnn.runtime.kompute import KomputeDevice
from vkdnn.shader import ShaderRequest, compile_many
from vkdnn.shader.entry import Entry
from vkdnn.shader.store import default_store

_LOCAL_SIZE = 64
_SIGN = np.uint32(0x80000000)
_REMEDY = "exact mode cannot run on it; update its driver or choose another device with VKDNN_DEVICE"

# The device's own instructions on chosen inputs. `cases` and `words` are one buffer, as integers and floats.
PROBE_GLSL = """#version 450
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer Cases { uvec4 cases[]; };
layout(binding = 1) readonly buffer Words { float words[]; };
layout(binding = 2) writeonly buffer Results { uint results[]; };
layout(binding = 3) writeonly buffer Copies { float copies[]; };
layout(push_constant) uniform Sizes { uint count; };

float fused(float a, float b, float c) { return fma(a, b, c); }

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= count) return;
    uvec4 one = cases[i];
    float a = uintBitsToFloat(one.y), b = uintBitsToFloat(one.z), c = uintBitsToFloat(one.w);
    uint result = 0u;
    switch (one.x) {
        case 0u: result = floatBitsToUint(a + b); break;
        case 1u: result = floatBitsToUint(a - b); break;
        case 2u: result = floatBitsToUint(a * b); break;
        case 3u: result = floatBitsToUint(a / b); break;
        case 4u: result = floatBitsToUint(sqrt(a)); break;
        case 5u: result = floatBitsToUint(a * b + c); break;
        case 6u: result = floatBitsToUint(float(one.y)); break;
        case 7u: result = floatBitsToUint(float(int(one.y))); break;
        case 8u: result = uint(int(a)); break;
        case 9u: result = uint(a); break;
        case 10u: result = one.y + one.z; break;
        case 11u: result = one.y * one.z; break;
        case 12u: result = one.y << one.z; break;
        case 13u: result = one.y >> one.z; break;
        case 14u: result = uint(int(one.y) >> one.z); break;
        case 15u: result = floatBitsToUint(fused(a, b, c)); break;
    }
    results[i] = result;
    copies[i] = words[4u * i + 1u];
}
"""

PROBE = ShaderRequest.of_glsl(PROBE_GLSL, PROBE_GLSL, "hardware", "numerics probe", "probe")

FUSED_RULE = "fma() rounded once"
_RULES = {
    Operation.ADD: "addition",
    Operation.SUBTRACT: "subtraction",
    Operation.MULTIPLY: "multiplication",
    Operation.DIVIDE: "division",
    Operation.SQUARE_ROOT: "square root",
    Operation.MULTIPLY_ADD: "no contraction of a * b + c",
    Operation.UINT_TO_FLOAT: "uint to float",
    Operation.INT_TO_FLOAT: "int to float",
    Operation.FLOAT_TO_INT: "float to int",
    Operation.FLOAT_TO_UINT: "float to uint",
    Operation.INTEGER_ADD: "wrapping integer addition",
    Operation.INTEGER_MULTIPLY: "wrapping integer multiplication",
    Operation.SHIFT_LEFT: "left shift",
    Operation.SHIFT_RIGHT: "right shift",
    Operation.SHIFT_RIGHT_SIGNED: "signed right shift",
    Operation.FUSED_MULTIPLY_ADD: FUSED_RULE,
}
_SUMS = (Operation.ADD, Operation.SUBTRACT)
_MENDED = (Operation.DIVIDE, Operation.SQUARE_ROOT)  # by software, however wrong they are
_SPARED = (*_MENDED, Operation.FUSED_MULTIPLY_ADD)  # nobody needs a fused one


@dataclass(frozen=True)
class Verdict:
    """Which rules a device keeps by its own instructions."""

    flushes: bool
    """`+ - ×` flush subnormals as the contract says; otherwise they are right but for subnormals."""
    divides_flushed: bool
    """÷ is right, subnormals included."""
    divides_normal: bool
    """÷ is right on normal operands, wherever the result is not below 2**-126."""
    roots_flushed: bool
    roots_normal: bool
    fuses: bool
    """fma() rounds once, so that remainders are exact."""

    def strategies(self, forced: frozenset[str] = frozenset()) -> Strategies:
        """The fastest strategies that keep the contract; rules in `forced` go to software in any case."""
        flushes = self.flushes and "subnormals" not in forced
        divides = self.divides_flushed if flushes else self.divides_normal
        roots = self.roots_flushed if flushes else self.roots_normal

        def way(rule: str, right: bool) -> Way:
            if rule in forced:
                return "remainder"
            return "native" if right else "fma" if self.fuses else "remainder"

        return Strategies(
            subnormals="native" if flushes else "software",
            division=way("division", divides),
            square_root=way("square_root", roots),
        )


def judge(cases: Cases, results: Words, copies: Words, device: str) -> Verdict:
    """The verdict on the answers to `cases`; raises DeviceError naming the rule that no strategy can mend."""
    right, normal = _right(cases, results)

    def whole(mask: np.ndarray, operation: Operation) -> bool:
        return bool(mask[cases.of(operation)].all())

    flushes = all(whole(right, operation) for operation in (*_SUMS, Operation.MULTIPLY))
    for operation, rule in _RULES.items():
        if operation in _SPARED:
            continue
        mends_subnormals = operation in (*_SUMS, Operation.MULTIPLY)
        _require(cases, results, normal if mends_subnormals else right, operation, rule, device)
    wrong = np.flatnonzero(copies != cases.a)
    if wrong.size:
        raise DeviceError(
            f"device {device} breaks the numerics contract in loads and stores that keep bits: "
            f"{cases.a[wrong[0]]:#010x} came back as {copies[wrong[0]]:#010x}; {_REMEDY}"
        )
    return Verdict(
        flushes=flushes,
        divides_flushed=whole(right, Operation.DIVIDE),
        divides_normal=whole(normal, Operation.DIVIDE),
        roots_flushed=whole(right, Operation.SQUARE_ROOT),
        roots_normal=whole(normal, Operation.SQUARE_ROOT),
        fuses=whole(right, Operation.FUSED_MULTIPLY_ADD),
    )


@dataclass(frozen=True)
class Rule:
    """How a device's own instructions answered the cases of one rule; judge() draws the consequences."""

    name: str
    cases: int
    differing: int
    """Results other than the contract's."""
    beyond_subnormals: int
    """Of them those that flushing in software does not mend."""


def tally(cases: Cases, results: Words, copies: Words) -> tuple[Rule, ...]:
    """The answers to `cases` counted rule by rule."""
    right, normal = _right(cases, results)
    rules = []
    for operation, name in _RULES.items():
        of, flushed = cases.of(operation), operation in (*_SUMS, Operation.MULTIPLY, *_MENDED)
        wrong = int((of & ~right).sum())
        rules.append(Rule(name, int(of.sum()), wrong, int((of & ~normal).sum()) if flushed else wrong))
    changed = int((copies != cases.a).sum())
    return (*rules, Rule("loads and stores that keep bits", cases.count, changed, changed))


def _right(cases: Cases, results: Words) -> tuple[np.ndarray, np.ndarray]:
    """Which results are the contract's, and which are but for subnormals that software flushes."""
    is_float = np.isin(cases.operation, list(FLOAT_RESULTS))
    right = (results == cases.expected) | (is_float & same_float(results, cases.expected))
    return right, right | cases.subnormal_operand() | _vanishing(cases, results)


def _vanishing(cases: Cases, results: Words) -> np.ndarray:
    """Cases whose right answer is a flushed zero and whose result software flushing can take for one.

    The sign must be right. A sum below 2**-126 is exact, so it must come out subnormal or zero; a product or
    quotient may have been rounded up to 2**-126, which the software path looks at twice.
    """
    magnitude, zero = results & ~_SIGN, (cases.expected & ~_SIGN) == 0
    limit = np.where(np.isin(cases.operation, _SUMS), SMALLEST_NORMAL - 1, SMALLEST_NORMAL)
    return zero & ((results & _SIGN) == (cases.expected & _SIGN)) & (magnitude <= limit)


def _require(cases: Cases, results: Words, good: np.ndarray, operation: Operation, rule: str, device: str) -> None:
    wrong = np.flatnonzero(cases.of(operation) & ~good)
    if wrong.size:
        at = wrong[0]
        operands = ", ".join(f"{words[at]:#010x}" for words in (cases.a, cases.b, cases.c))
        raise DeviceError(
            f"device {device} breaks the numerics contract in {rule}: bits ({operands}) gave "
            f"{results[at]:#010x}, expected {cases.expected[at]:#010x} ({wrong.size} of "
            f"{int(cases.of(operation).sum())} wrong); {_REMEDY}"
        )


def run_probe(device: KomputeDevice) -> Verdict:
    """Runs the probe shader on a device and judges it; raises DeviceError if no strategy can mend it."""
    return judge(*answers(device), str(device.info))


def answers(device: KomputeDevice) -> tuple[Cases, Words, Words]:
    """The probe's cases, a device's results, and the words it loaded and stored: what judge() and tally() take."""
    (spirv,) = compile_many([PROBE])
    cases = make_cases()
    packed = cases.packed()
    inputs = device.allocate(packed.size, host=True)
    results, copies = device.allocate(cases.count, host=True), device.allocate(cases.count, host=True)
    launch = Launch(
        spirv=spirv,
        label="numerics probe",
        buffers=(inputs, inputs, results, copies),
        push=(cases.count,),
        groups=(-(-cases.count // _LOCAL_SIZE), 1, 1),
        reads=(Region.whole(inputs),),
        writes=(Region.whole(results), Region.whole(copies)),
    )
    recording = device.record([launch], uploads=[inputs], downloads=[results, copies])
    recording.stage(inputs, packed)
    recording.run()
    return cases, recording.fetch(results), recording.fetch(copies)


def verdict_components(info: DeviceInfo, hardware_flush: bool = HARDWARE_FLUSH) -> dict[str, str]:
    """What a stored verdict depends on: device, driver, the probe, and whether the opening thread flushes.

    A software device's threads inherit that mode, so its verdict differs with it.
    """
    return {
        "device": f"{info.uuid} {info.name}",
        "driver": f"{info.driver} {info.driver_version}",
        "probe": PROBE_GLSL,
        "cases": str(CASES_VERSION),
        "verdict": " ".join(field.name for field in fields(Verdict)),
        "hardware flush": str(hardware_flush),
    }


def find_verdict(device: KomputeDevice) -> Verdict:
    """The stored verdict of this device, driver and mode, else the probe's, which is then stored.

    A software device is probed in every process: how it treats subnormals is a matter of its threads.
    """
    components = verdict_components(device.info)
    store = None if device.info.kind == "software" else default_store("verdicts")
    stored = store.load(components) if store else None
    if stored is not None:
        return Verdict(**json.loads(stored.text("verdict")))
    verdict = run_probe(device)
    if store is not None:
        record = {"label": f"verdict on {device.info}", "family": "verdict"}
        store.save(Entry(store.kind, components, record, {"verdict": json.dumps(asdict(verdict)).encode()}))
    return verdict


_lock = threading.Lock()
_chosen: dict[tuple[str | None, str | None], DeviceInfo] = {}
_open: dict[tuple[int, frozenset[str]], KomputeDevice] = {}


def open_device(selector: str | None = None) -> KomputeDevice:
    """The device that `choose(selector)` names, opened once per process, its strategies from the probe.

    VKDNN_STRATEGIES sends rules to software; another choice of them opens the device anew. Raises DeviceError
    if there is no such device or it breaks a rule of the numerics contract.
    """
    with _lock:
        forced = forced_strategies()
        wanted = (selector, os.environ.get("VKDNN_DEVICE"))
        if wanted not in _chosen:
            _chosen[wanted] = choose(selector)
        info = _chosen[wanted]
        key = (info.index, forced)
        if key not in _open:
            device = KomputeDevice(info)
            device.strategies = find_verdict(device).strategies(forced)
            _open[key] = device
        return _open[key]
