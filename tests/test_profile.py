"""vk.profile: launches by the device's clock, stretches of the host, shares of the ceilings. No figure is judged."""

import json

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.device import prepared
from vkdnn.errors import ArgumentError, DeviceError
from vkdnn.profile import Ceilings
from vkdnn.profile import awake as awake_module
from vkdnn.profile import ceilings as ceilings_module
from vkdnn.profile.chrome import DEVICE, HOST, trace, write
from vkdnn.profile.table import table
from vkdnn.timeline import listening, stretch

ROOF = Ceilings(1e10, 1e11)


@pytest.fixture(scope="module")
def found():
    """A function of two dependent kernels."""
    jitted = vk.jit(lambda x: vk.sum(vk.softmax(x) @ x, 0))
    x = vk.array(np.ones((8, 8), np.float32))
    want = jitted(x).numpy()
    profile = vk.profile(jitted, x, steps=3, ceilings=ROOF)
    with prepared() as log:
        assert np.array_equal(jitted(x).numpy(), want)
    assert not log, "the recording from before serves again"
    return profile


def test_kernels_and_their_shares(found):
    assert len(found.calls) == len(found.plain) == 3
    assert (found.submissions, found.dispatches, found.barriers) == (1, 3, 2)
    shares = found.shares()
    assert sorted(s.kernel.family for s in shares) == ["fold", "fold", "matmul"]
    assert sum(s.share for s in shares) == pytest.approx(1.0)
    assert [s.seconds for s in shares] == sorted((s.seconds for s in shares), reverse=True)
    product = next(s for s in shares if s.kernel.family == "matmul")
    assert product.launches == 1 and product.kernel.cost.flops == 2 * 8**3 and product.kernel.cost.bytes == 4 * 3 * 64
    assert product.fraction == pytest.approx(ROOF.seconds(2 * 8**3, 4 * 3 * 64) / product.seconds)
    assert product.kernel.title.startswith("matmul batch") and "batches 1" in product.kernel.title
    softmax = next(s for s in shares if "exp" in s.kernel.title)
    assert softmax.flops_per_s > 0 and softmax.bytes_per_s > 0 and softmax.bound == "memory"


def test_where_the_time_goes(found):
    assert 0 < found.busy_share <= 1 and found.fraction > 0
    assert set(found.gaps) == {"between launches", "submitting", "host"} and min(found.gaps.values()) >= 0
    for call in (found.first, *found.calls):
        assert {"compile", "record"} <= {s.name for s in found.first.stretches}
        for s in call.stretches:
            assert call.start <= s.start <= s.stop <= call.stop
        for ran, after in zip(call.launches, call.launches[1:], strict=False):
            assert ran.start <= ran.stop <= after.start
    assert not any(call.launches for call in found.plain), "these have no stamps"


def test_the_table(found):
    text = str(found)
    assert set(found.families()) == {"fold", "matmul"} and sum(found.families().values()) == pytest.approx(1.0)
    assert "and 2 kernels more" in table(found, top=1)
    assert "3 dispatches, 2 barriers" in text and "1 submission" in text
    assert sum("matmul batch" in line for line in text.splitlines()) == 1
    assert "copy 10 GB/s, multiply and add 100 GFLOP/s" in text


def test_the_record_is_json(found):
    record = json.loads(json.dumps(found.record()))
    assert record["dispatches"] == sum(k["launches"] for k in record["kernels"]) == 3
    assert record["ceilings"] == {"bytes_per_s": 1e10, "flops_per_s": 1e11}
    assert record["first_call_s"]["whole"] > record["first_call_s"]["record"]


def test_the_trace(found, tmp_path):
    write(found, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == json.loads(json.dumps(trace(found)))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    device = [e for e in spans if e["tid"] == DEVICE]
    host = [e for e in spans if e["tid"] == HOST]
    assert len(device) == 3 * 4, "the launches of the first call and of those that count"
    assert {"first call", "call 1", "call 3", "compile", "record", "submit", "wait"} <= {e["name"] for e in host}
    waits = [e for e in host if e["name"] == "wait"]
    for k, e in enumerate(device):
        wait = waits[k // 3]
        assert wait["ts"] - 0.01 <= e["ts"] and e["ts"] + e["dur"] <= wait["ts"] + wait["dur"] + 0.01
        assert e["args"]["launch"] == k % 3


def test_kernels_of_a_plain_function_and_of_several_submissions():
    x, w = vk.array(np.ones((8, 8), np.float32)), vk.array(np.ones((8, 8), np.float32))

    def step():
        return vk.jit(lambda x, w: vk.flush(x @ w) @ w)(x, w) * 2.0

    found = vk.profile(step, steps=2, ceilings=ROOF)
    assert found.submissions == found.dispatches == 3
    assert sorted(s.launches for s in found.shares()) == [1, 2], "equal kernels are one"
    assert {"trace", "plan"} <= {s.name for s in found.calls[-1].stretches}, "traced anew in each call"


def test_state_kept_between_calls():
    """As a training step does it: what is donated is used up by each call."""
    step = vk.jit(lambda w: w * 0.5, donate_argnums=0)
    kept = [vk.array([1024.0])]

    def call():
        kept[0] = step(kept[0])

    assert vk.profile(call, steps=2, ceilings=ROOF).dispatches == 1
    number = kept[0].item()
    call()
    assert kept[0].item() == number / 2


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((vk.exp, 1.0), {"device": "cpu"}, DeviceError, "profile: cpu has no time stamps; choose a Vulkan device"),
        ((3,), {}, ArgumentError, "profile: got 3, expected a function"),
        ((vk.exp, 1.0), {"steps": 0}, ArgumentError, "profile: steps: got 0, expected 1 or more"),
        ((lambda: None,), {}, ArgumentError, "profile: the function launches nothing on"),
        ((vk.jit(vk.exp, donate_argnums=0), 1.0), {}, ArgumentError, "profile: the function donates its arguments"),
    ],
)
def test_what_cannot_be_profiled(arguments, options, error, message):
    with pytest.raises(error, match=message):
        vk.profile(*arguments, ceilings=ROOF, **options)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_ceilings_are_measured(device):
    roof = ceilings_module.measured(vk.device(device), quick=True)
    assert roof.bytes_per_s > 0 and roof.flops_per_s > 0
    assert roof.bound(1, 10**9) == "memory" and roof.bound(10**12, 1) == "arithmetic"


def test_a_graphics_card_is_woken(monkeypatch):
    loads = []
    monkeypatch.setattr(awake_module, "on_hardware", lambda device: True)
    monkeypatch.setattr(awake_module, "_SHORTEST", 0.0)
    monkeypatch.setattr(awake_module, "_NUMBERS", 64)
    made = awake_module._load(vk.device())
    made()
    monkeypatch.setitem(awake_module._loads, vk.device(), lambda: loads.append(1))
    awake_module.awake(vk.device())
    assert len(loads) > awake_module._STEADY


def test_stretches_are_told_to_who_listens():
    heard = []
    with stretch("nobody"):
        pass
    with listening(lambda *stretched: heard.append(stretched)):
        with stretch("outer"), stretch("inner", 3):
            pass
        with pytest.raises(ValueError, match="broken"), stretch("broken"):
            raise ValueError("broken")
    assert [(name, what) for name, _, _, what in heard] == [("inner", 3), ("outer", None)]
    (_, inner, inner_end, _), (_, outer, outer_end, _) = heard
    assert outer <= inner <= inner_end <= outer_end
