"""The device probe: its cases, its judgement of wrong devices, its stored verdicts, the opened device."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from vkdnn.errors import DeviceError
from vkdnn.runtime import Strategies, open_device
from vkdnn.runtime import probe as probing
from vkdnn.runtime.cases import Cases, Operation, make_cases
from vkdnn.runtime.kompute import KomputeDevice
from vkdnn.runtime.probe import Verdict, find_verdict, judge, run_probe, verdict_components


@pytest.fixture(autouse=True)
def nothing_forced(monkeypatch):
    monkeypatch.delenv("VKDNN_STRATEGIES", raising=False)


PERFECT = Verdict(True, True, True, True, True, True)
CASES = make_cases()


def test_this_device_keeps_the_contract():
    device = open_device()
    assert open_device() is device
    assert device.strategies == run_probe(device).strategies()


def test_the_probe_says_the_same_every_time():
    device = open_device()
    assert len({run_probe(device) for _ in range(20)}) == 1


def test_every_operation_has_many_cases():
    for operation in Operation:
        assert CASES.of(operation).sum() >= 250, operation
    for operation in (Operation.ADD, Operation.SUBTRACT, Operation.MULTIPLY, Operation.DIVIDE):
        chosen = CASES.of(operation)
        assert chosen.sum() > 3000
        assert (chosen & CASES.subnormal_operand()).sum() > 100
        flushed = chosen & ((CASES.expected & 0x7FFFFFFF) == 0) & ((CASES.a & 0x7FFFFFFF) > 0x00800000)
        assert flushed.sum() > 20, operation


def exact(word):
    word = 0 if word & 0x7F800000 == 0 else word
    return Fraction(float(np.uint32(word).view(np.float32)))


@pytest.mark.parametrize("operation", list(Operation)[:4])
def test_expected_results_agree_with_rational_arithmetic(operation):
    """Round the exact rational to 24 bits with unbounded exponent, ties to even, then flush below 2**-126."""
    finite = ((CASES.a & 0x7F800000) < 0x7F800000) & ((CASES.b & 0x7F800000) < 0x7F800000)
    divisor = (CASES.b & 0x7F800000) != 0 if operation is Operation.DIVIDE else np.True_
    chosen = np.flatnonzero(CASES.of(operation) & finite & divisor)
    compared = 0
    for at in chosen[:: max(1, chosen.size // 1500)]:
        a, b = exact(CASES.a[at]), exact(CASES.b[at])
        value = {0: a + b, 1: a - b, 2: a * b, 3: a / b if b else Fraction(0)}[int(operation)]
        if value == 0:
            assert CASES.expected[at] & 0x7FFFFFFF == 0
            continue
        exponent = len(bin(abs(value.numerator))) - len(bin(value.denominator))
        unit = Fraction(2) ** (exponent - 23 if abs(value) >= Fraction(2) ** exponent else exponent - 24)
        rounded = round(value / unit) * unit  # Python rounds a Fraction half to even
        if abs(rounded) < Fraction(2) ** -126:
            assert CASES.expected[at] == (0x80000000 if value < 0 else 0)
        elif abs(rounded) < Fraction(2) ** 128:
            assert rounded == exact(CASES.expected[at])
            compared += 1
        else:
            assert CASES.expected[at] & 0x7FFFFFFF == 0x7F800000
    assert compared > 500


def answers(**changes) -> np.ndarray:
    """The right answers with those of some operations replaced by f(cases, mask)."""
    results = CASES.expected.copy()
    for name, change in changes.items():
        mask = CASES.of(Operation[name])
        results[mask] = change(CASES, mask)
    return results


def gradual(function):
    """A device that keeps subnormals: NumPy's own float32 arithmetic."""

    def change(cases: Cases, mask):
        with np.errstate(all="ignore"):
            a, b = cases.a[mask].view(np.float32), cases.b[mask].view(np.float32)
            return function(a, b).view(np.uint32)

    return change


KEEPS_SUBNORMALS = {
    "ADD": gradual(np.add),
    "SUBTRACT": gradual(np.subtract),
    "MULTIPLY": gradual(np.multiply),
    "DIVIDE": gradual(np.divide),
    "SQUARE_ROOT": gradual(lambda a, b: np.sqrt(a)),
}


def verdict_on(results, copies=CASES.a):
    return judge(CASES, results, copies, "test device")


def last_bit(cases, mask):
    """One ULP off where the result is an ordinary number, as ÷ and sqrt are on some graphics cards."""
    expected = cases.expected[mask]
    ordinary = ((expected & 0x7F800000) > 0x30000000) & ((expected & 0x7F800000) < 0x7F000000)
    return np.where(ordinary, expected + 1, expected).astype(np.uint32)


def test_a_perfect_device_is_native_throughout():
    assert verdict_on(CASES.expected) == PERFECT
    assert PERFECT.strategies() == Strategies("native", "native", "native")


def test_nan_is_nan_whatever_its_bits():
    nan = (CASES.expected & 0x7FFFFFFF) > 0x7F800000
    is_float = CASES.operation <= Operation.SQUARE_ROOT
    assert (nan & is_float).sum() > 50
    assert verdict_on(np.where(nan & is_float, 0xFFC00001, CASES.expected).astype(np.uint32)) == PERFECT


def test_a_device_that_keeps_subnormals():
    verdict = verdict_on(answers(**KEEPS_SUBNORMALS))
    assert verdict == Verdict(False, False, True, False, True, True)
    assert verdict.strategies() == Strategies("software", "native", "native")


def rounded_twice(cases, mask):
    """fma() as a product and a sum."""
    a, b, c = (words[mask].view(np.float32) for words in (cases.a, cases.b, cases.c))
    return (a * b + c).view(np.uint32)


def test_wrong_division_and_roots_go_to_software():
    """Of fma() where that is fused, else of integers."""
    division = verdict_on(answers(DIVIDE=last_bit))
    assert division.strategies() == Strategies("native", "fma", "native")
    square_root = verdict_on(answers(SQUARE_ROOT=last_bit))
    assert square_root.strategies() == Strategies("native", "native", "fma")
    both = {**KEEPS_SUBNORMALS, "DIVIDE": last_bit, "SQUARE_ROOT": last_bit}
    assert verdict_on(answers(**both)).strategies() == Strategies("software", "fma", "fma")
    both["FUSED_MULTIPLY_ADD"] = rounded_twice
    assert verdict_on(answers(**both)).strategies() == Strategies("software", "remainder", "remainder")


def test_a_fused_multiply_add_rounds_once():
    chosen = CASES.of(Operation.FUSED_MULTIPLY_ADD)
    a, b, c = (words[chosen].view(np.float32) for words in (CASES.a, CASES.b, CASES.c))
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    want = CASES.expected[chosen].view(np.float32)
    for value, rounded in zip(exact, want, strict=True):
        own, *beside = (abs(Fraction(float(x)) - value) for x in (rounded, *np.nextafter(rounded, [-9, 9], dtype="f4")))
        assert own <= min(beside), (value, rounded)
    assert sum(float(x) != float(y) for x, y in zip(want, a * b + c, strict=True)) > 1000
    assert not verdict_on(answers(FUSED_MULTIPLY_ADD=one_wrong)).fuses


def test_tininess_before_rounding_is_not_native():
    """Products that round up to 2**-126, flushed: near enough for nobody, and beyond software's help."""

    def flush_early(cases, mask):
        with np.errstate(all="ignore"):
            product = cases.a[mask].view(np.float32).astype(float) * cases.b[mask].view(np.float32)
        early = np.abs(product) < 2.0**-126
        return np.where(early, cases.expected[mask] & 0x80000000, cases.expected[mask]).astype(np.uint32)

    assert (answers(MULTIPLY=flush_early) != CASES.expected).sum() > 10
    with pytest.raises(DeviceError, match="numerics contract in multiplication"):
        verdict_on(answers(MULTIPLY=flush_early))


def one_wrong(cases, mask):
    wrong = cases.expected[mask].copy()
    wrong[np.flatnonzero((wrong & 0x7F800000) % 0x7F800000)[0]] ^= 1  # neither zero nor infinite
    return wrong


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("ADD", "addition"), ("SUBTRACT", "subtraction"), ("MULTIPLY", "multiplication"),
        ("UINT_TO_FLOAT", "uint to float"), ("INT_TO_FLOAT", "int to float"),
        ("FLOAT_TO_INT", "float to int"), ("FLOAT_TO_UINT", "float to uint"),
        ("INTEGER_ADD", "wrapping integer addition"), ("INTEGER_MULTIPLY", "wrapping integer multiplication"),
        ("SHIFT_LEFT", "left shift"), ("SHIFT_RIGHT", "right shift"),
        ("SHIFT_RIGHT_SIGNED", "signed right shift"),
    ],
)  # fmt: skip
def test_one_wrong_bit_refuses_the_device_and_names_the_rule(name, rule):
    with pytest.raises(DeviceError, match=rf"test device breaks .* contract in {rule}.*\(1 of \d+ wrong"):
        verdict_on(answers(**{name: one_wrong}))


def test_a_fused_multiply_add_is_refused():
    def fused(cases, mask):
        a, b, c = (words[mask].view(np.float32).astype(np.float64) for words in (cases.a, cases.b, cases.c))
        return (a * b + c).astype(np.float32).view(np.uint32)

    with pytest.raises(DeviceError, match=r"no contraction of a \* b \+ c"):
        verdict_on(answers(MULTIPLY_ADD=fused))


def test_wrong_signs_of_vanishing_results_are_refused():
    def positive(cases, mask):
        expected = cases.expected[mask]
        return np.where(expected == 0x80000000, 0, expected).astype(np.uint32)

    with pytest.raises(DeviceError, match="contract in multiplication"):
        verdict_on(answers(MULTIPLY=positive))


def test_loads_and_stores_that_change_bits_are_refused():
    copies = CASES.a.copy()
    copies[(copies & 0x7F800000) == 0] &= 0x80000000
    with pytest.raises(DeviceError, match="loads and stores that keep bits"):
        verdict_on(CASES.expected, copies)


def test_forced_strategies_are_never_native():
    for forced, expected in (
        ({"subnormals"}, Strategies("software", "native", "native")),
        ({"division", "square_root"}, Strategies("native", "remainder", "remainder")),
    ):
        assert PERFECT.strategies(frozenset(forced)) == expected
    wrong = verdict_on(answers(DIVIDE=last_bit))
    assert wrong.strategies(frozenset({"division"})) == Strategies("native", "remainder", "native")


def test_the_environment_forces_software_but_never_native(monkeypatch):
    usual = open_device()
    monkeypatch.setenv("VKDNN_STRATEGIES", "subnormals=software,division=remainder,square_root=remainder")
    forced = open_device()
    assert forced.strategies == Strategies("software", "remainder", "remainder")
    assert forced is not usual and open_device() is forced
    monkeypatch.setenv("VKDNN_STRATEGIES", "subnormals=native,division=native,square_root=native")
    assert open_device() is usual


@pytest.fixture
def card(tmp_path, monkeypatch):
    """The device at hand, posing as a graphics card, with a store of its own and a count of its probes."""
    monkeypatch.setenv("VKDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VKDNN_CACHE_DISABLE", raising=False)
    device = KomputeDevice(replace(open_device().info, kind="discrete"))
    device.probes = 0

    def counted(device):
        device.probes += 1
        return PERFECT

    monkeypatch.setattr(probing, "run_probe", counted)
    return device


def test_a_verdict_is_stored_for_device_and_driver(card):
    assert [find_verdict(card) for _ in range(3)] == [PERFECT] * 3
    assert card.probes == 1
    for change in ({"driver_version": "2"}, {"uuid": "ff" * 16}):
        card.info = replace(card.info, **change)
        find_verdict(card)
    assert card.probes == 3


def test_a_damaged_verdict_is_probed_again(card, tmp_path):
    find_verdict(card)
    (path,) = tmp_path.glob("v2/verdicts/*/*")
    path.write_bytes(path.read_bytes()[:-1])
    with warnings.catch_warnings(record=True):  # once a process
        assert find_verdict(card) == PERFECT
    assert card.probes == 2


def test_a_software_device_is_probed_in_every_process(card, tmp_path):
    card.info = replace(card.info, kind="software")
    find_verdict(card)
    find_verdict(card)
    assert card.probes == 2 and list(tmp_path.glob("v2/verdicts/*/*")) == []


def test_the_mode_of_the_opening_thread_is_part_of_the_key():
    info = open_device().info
    assert verdict_components(info, True) != verdict_components(info, False)


def test_without_the_processors_flush_mode_the_contract_still_holds():
    code = "from vkdnn.runtime import open_device; d = open_device(); print(d.info.driver, d.strategies.text)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "VKDNN_REFERENCE_FLUSH": "software"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    driver, text = done.stdout.split(maxsplit=1)
    if driver == "llvmpipe":
        assert text.strip() == "subnormals=software,division=native,square_root=native"
