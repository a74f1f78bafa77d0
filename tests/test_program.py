"""Programs: one recording for a signature, replayed; memory reused; the same on every device."""

import gc

import numpy as np
import pytest

import vkdnn as vk
from vkdnn.device import Storage
from vkdnn.errors import MemoryLimitError
from vkdnn.ir.node import leaf
from vkdnn.program import KEPT_BINDINGS, Program


@pytest.fixture(params=["cpu", None], ids=["reference", "vulkan"])
def device(request):
    return vk.device(request.param)


def program(device, function, *shapes):
    arguments = [vk.Array(leaf(shape, vk.float32), device) for shape in shapes]
    with device:
        results = [r.node for r in function(*arguments)]
    return Program(device, results, [a.node for a in arguments])


def words(*values):
    return np.array(values, np.float32).view(np.uint32)


def floats(storage):
    return storage.read().view(np.float32).tolist()


def test_a_program_is_replayed_on_other_values(device):
    double = program(device, lambda x: [x + x, x.reshape(1, 2)], (2,))
    for value in (1.0, 2.0):
        total, same = double([words(value, -value)])
        assert isinstance(total, Storage)
        assert floats(total) == [2 * value, -2 * value] and floats(same) == [value, -value]
    assert len(double._bound) == 1


def test_recordings_for_other_storages_are_kept_up_to_a_number(device):
    double = program(device, lambda x: [x + x], (2,))
    storages = [device.upload(words(k, k)) for k in range(KEPT_BINDINGS + 2)]
    for _ in range(2):
        for k, storage in enumerate(storages):
            assert floats(double([storage])[0]) == [2 * k, 2 * k]
    assert len(double._bound) == KEPT_BINDINGS


def test_intermediates_share_memory(device):
    def deep(x):
        for _ in range(6):
            x = vk.softmax(x @ x)
        return [x]

    chain = program(device, deep, (16, 16))
    assert len(chain.steps) > 6
    assert chain.peak_words == chain.plan.lower_bound <= 3 * 256
    first = floats(chain([np.resize(words(0.5, -0.25, 1), 256)])[0])
    again = floats(chain([np.resize(words(0.5, -0.25, 1), 256)])[0])
    assert first == again


def test_large_results_are_read_when_they_are_asked_for(device):
    n = 1 << 19
    doubled = program(device, lambda x: [x * 2, vk.sum(x)], (n,))
    big, total = doubled([np.full(n, 1, np.float32).view(np.uint32)])
    later, _ = doubled([np.full(n, 3, np.float32).view(np.uint32)])
    assert set(floats(big)) == {2} and set(floats(later)) == {6} and floats(total) == [n]


def test_arrays_beyond_one_buffer_are_refused(device, monkeypatch):
    monkeypatch.setattr(device, "max_words", 1000)
    with device:
        with pytest.raises(MemoryLimitError, match=r"4004 bytes, but one buffer of .* holds 4000"):
            vk.array(np.zeros(1001))
        with pytest.raises(MemoryLimitError, match="an intermediate of shape"):
            vk.sum(vk.softmax(vk.zeros((40, 40)) @ vk.array(np.ones((40, 20))) @ vk.array(np.ones((20, 30))))).numpy()
        assert vk.sum(vk.array(np.ones(1000))).item() == 1000


def test_a_function_of_its_own_result_is_recorded_twice_and_replayed(device):
    step = vk.jit(lambda x: x * 0.5 + 1.0)
    with device:
        x = vk.array(np.arange(5, dtype=np.float32))
        program, kept, found, recordings = step.program(x), [], [], []
        for i in range(40):
            x = step(x)
            if i in (3, 4, 8):
                kept.append(x)
            found.append(x.numpy())
            recordings.append(list(program._bound.values()))
    want, value = [], np.arange(5, dtype=np.float32)
    for _ in range(40):
        value = value * np.float32(0.5) + np.float32(1.0)
        want.append(value)
    assert np.array_equal(found, want)
    assert set(recordings[15]) == set(recordings[-1])
    assert np.array_equal([x.numpy() for x in kept], [want[i] for i in (3, 4, 8)])  # what is held on to keeps its value


def test_a_result_that_was_dropped_is_gone_at_once(device, monkeypatch):
    """Without the collector's help: a result that still lived would be read back before the next replay."""
    double = vk.jit(lambda x: {"y": [x * 2]})
    with device:
        x = vk.array(np.ones(3))
        double(x)
    detached = []
    monkeypatch.setattr(Storage, "detach", lambda self: detached.append(self))
    gc.disable()
    try:
        double(x)
        double(x)
    finally:
        gc.enable()
    assert not detached
