"""Buffers, transfers and recordings on the device at hand, whichever it is."""

import gc
import logging
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from vkdnn.errors import ArgumentError, DeviceError, MemoryLimitError
from vkdnn.runtime import Device, Launch, Region, kompute, open_device
from vkdnn.runtime.kompute import KomputeDevice
from vkdnn.shader import ShaderRequest, compile_many

# result[i] = source[i] * factor + 1, on words as integers, looping with a grid stride.
STEP = """#version 450
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer Source { uint source[]; };
layout(binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Sizes { uint count; uint factor; uint source_at; uint result_at; };
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < count; i += gl_NumWorkGroups.x * 64u)
        result[result_at + i] = source[source_at + i] * factor + 1u;
}
"""
FILL = """#version 450
layout(local_size_x = 1) in;
layout(binding = 0) writeonly buffer Result { uint result[]; };
void main() { result[gl_GlobalInvocationID.x] = 7u; }
"""


@pytest.fixture(scope="module")
def device():
    return open_device()


@pytest.fixture(scope="module")
def shaders():
    return compile_many([ShaderRequest.of_glsl(STEP, "", "", "step"), ShaderRequest.of_glsl(FILL, "", "", "fill")])


def step(shaders, source, result, factor=3, count=None, source_at=0, result_at=0):
    count = min(source.words, result.words) if count is None else count
    return Launch(
        spirv=shaders[0],
        label="step",
        buffers=(source, result),
        push=(count, factor, source_at, result_at),
        groups=(max(1, min(64, -(-count // 64))), 1, 1),
        reads=(Region(source, source_at, source_at + count),),
        writes=(Region(result, result_at, result_at + count),),
    )


def words(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)


def after(data, steps, factor=3):
    for _ in range(steps):
        data = data * np.uint32(factor) + np.uint32(1)
    return data


def test_record_once_and_run_again(device, shaders):
    x, y = device.allocate(1000, host=True), device.allocate(1000, host=True)
    recording = device.record([step(shaders, x, y)], uploads=[x], downloads=[y])
    for seed in range(3):
        recording.stage(x, words(1000, seed))
        recording.run()
        assert np.array_equal(recording.fetch(y), after(words(1000, seed), 1))


def test_launches_are_timed_one_by_one(device, shaders):
    if not device.info.limits.timestamp_ns:
        pytest.skip("this device has no timestamps")
    x, y, z = (device.allocate(n, host=True) for n in (1 << 20, 1 << 20, 64))
    launches = [step(shaders, x, y), step(shaders, y, x), step(shaders, z, x, count=64)]
    with device.timing() as timing:
        recording = device.record(launches, uploads=[x], downloads=[y])
    with pytest.raises(DeviceError, match=r"has no times.*device\.timing"):
        recording.launch_seconds()
    recording.run()
    spans, seconds = recording.launch_spans(), recording.launch_seconds()
    assert recording.barriers == 2 and spans[0][0] == 0 and spans[-1][1] == recording.seconds == timing.seconds
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans)), "in order, with barriers between them"
    assert sum(seconds) <= recording.seconds and min(seconds[:2]) > seconds[2] > 0, "a long launch takes longer"
    first = recording.seconds
    recording.run()
    assert timing.seconds == pytest.approx(first + recording.seconds)


def test_only_what_is_recorded_meanwhile_is_timed(device, shaders):
    x = device.allocate(64, host=True)
    with device.timing() as timing:
        pass
    recording = device.record([step(shaders, x, device.allocate(64, host=True))])
    recording.run()
    assert timing.seconds == 0
    with pytest.raises(DeviceError, match="has no times"):
        recording.launch_spans()


def test_a_device_without_timestamps_says_so(device):
    blind = KomputeDevice(replace(device.info, limits=replace(device.info.limits, timestamp_ns=0.0)))
    with pytest.raises(DeviceError, match="has no timestamps"), blind.timing():
        pass


def test_the_device_keeps_the_interface(device):
    assert isinstance(device, Device)


def test_write_and_read(device):
    buffer = device.allocate(1000, host=True)
    device.write(buffer, words(1000))
    assert np.array_equal(device.read(buffer), words(1000))
    assert np.array_equal(device.read(buffer, 10, 5), words(1000)[10:15])
    assert device.read(buffer, 1000).size == 0


def test_a_partial_write_keeps_what_a_shader_wrote_elsewhere(device, shaders):
    x, y = device.allocate(100, host=True), device.allocate(100, host=True)
    device.write(x, words(100))
    device.record([step(shaders, x, y)]).run()
    device.write(y, np.array([1, 2], np.uint32), offset=50)
    expected = after(words(100), 1)
    expected[50:52] = [1, 2]
    assert np.array_equal(device.read(y), expected)


def test_results_are_copies(device):
    buffer = device.allocate(10, host=True)
    device.write(buffer, words(10))
    first = device.read(buffer)
    device.write(buffer, words(10, 1))
    del buffer
    gc.collect()
    assert np.array_equal(first, words(10))
    assert first.flags.owndata


@pytest.mark.parametrize("count", [1, 100_003])
def test_a_dependent_chain_gives_the_right_values(device, shaders, count):
    x, y = device.allocate(count, host=True), device.allocate(count, host=True)
    middle = [device.allocate(count, host=False) for _ in range(2)]
    buffers = [x, *[middle[i % 2] for i in range(20)], y]
    launches = [step(shaders, a, b) for a, b in pairwise(buffers)]
    recording = device.record(launches, uploads=[x], downloads=[y])
    assert recording.barriers == len(launches) - 1
    recording.stage(x, words(count))
    for _ in range(5):
        recording.run()
        assert np.array_equal(recording.fetch(y), after(words(count), len(launches)))


def test_independent_launches_have_no_barrier(device, shaders):
    slab, result = device.allocate(4000, host=True), device.allocate(4000, host=True)
    parts = [
        step(shaders, slab, result, factor=part + 2, count=1000, source_at=1000 * part, result_at=1000 * part)
        for part in range(4)
    ]
    recording = device.record(parts, uploads=[slab], downloads=[result])
    assert recording.barriers == 0
    recording.stage(slab, words(4000))
    recording.run()
    expected = [after(words(4000)[1000 * part : 1000 * part + 1000], 1, part + 2) for part in range(4)]
    assert np.array_equal(recording.fetch(result), np.concatenate(expected))


def test_push_constants_differ_within_one_recording(device, shaders):
    x, y = device.allocate(64, host=True), device.allocate(64 * 5, host=True)
    launches = [step(shaders, x, y, factor=factor, result_at=64 * factor) for factor in range(5)]
    recording = device.record([replace(one, push=(64, *one.push[1:])) for one in launches], [x], [y])
    recording.stage(x, words(64))
    recording.run()
    assert np.array_equal(recording.fetch(y), np.concatenate([after(words(64), 1, f) for f in range(5)]))


def test_a_shader_without_push_constants(device, shaders):
    result = device.allocate(5, host=True)
    launch = Launch(shaders[1], "fill", (result,), (), (5, 1, 1), (), (Region.whole(result),))
    recording = device.record([launch], downloads=[result])
    recording.run()
    assert recording.fetch(result).tolist() == [7] * 5


def test_a_long_sequence_is_one_submission(device, shaders):
    x, y = device.allocate(64, host=True), device.allocate(64, host=True)
    launches = [step(shaders, *pair) for _ in range(1000) for pair in ((x, y), (y, x))]
    recording = device.record(launches, uploads=[x], downloads=[x])
    recording.stage(x, words(64))
    before = device.submissions
    recording.run()
    assert device.submissions == before + 1
    assert np.array_equal(recording.fetch(x), after(words(64), 2000))


def test_submissions_are_counted(device):
    buffer = device.allocate(10, host=True)
    before = device.submissions
    device.write(buffer, words(10))
    assert device.submissions == before + 1
    device.read(buffer)
    assert device.submissions == before + 2
    device.write(buffer, words(3), 2)  # reads the rest back first
    assert device.submissions == before + 4
    device.record([], downloads=[buffer])
    assert device.submissions == before + 4


def test_memory_is_accounted_for_and_freed(device, shaders):
    gc.collect()
    before = device.allocated_bytes
    x, y = device.allocate(1000, host=True), device.allocate(500, host=False)
    assert device.allocated_bytes == before + 6000
    assert device.peak_bytes >= before + 6000
    recording = device.record([step(shaders, x, y)], uploads=[x])
    del x, y
    gc.collect()
    assert device.allocated_bytes == before + 6000, "a recording keeps its buffers"
    recording.run()
    del recording
    gc.collect()
    assert device.allocated_bytes == before


def test_released_memory_can_be_used_again():
    device = KomputeDevice(open_device().info)
    device.info = replace(device.info, limits=replace(device.info.limits, memory_bytes=4096))
    for _ in range(5):
        device.allocate(1024, host=False)
    assert device.peak_bytes == 4096
    kept = device.allocate(512, host=False)
    with pytest.raises(MemoryLimitError, match=r"words is 513 \(2052 bytes\) with 2048 bytes allocated"):
        device.allocate(513, host=False)
    assert kept.words == 512


def test_remote_buffers_lie_in_the_host_s_memory(device, shaders):
    """Shaders write and read them like others, in one recording and in the next; they count apart."""
    before, there = device.allocated_bytes, device.remote_bytes
    x, y = device.allocate(1000, host=True), device.allocate(1000, host=True)
    far = [device.allocate(1000, host=False, remote=True) for _ in range(2)]
    assert device.remote_bytes == there + 8000 and device.allocated_bytes == before + 8000
    assert all(buffer.remote for buffer in far) and not x.remote
    write = device.record([step(shaders, x, far[0]), step(shaders, far[0], far[1])], uploads=[x])
    read = device.record([step(shaders, far[1], y)], downloads=[y])
    for seed in range(3):
        write.stage(x, words(1000, seed))
        write.run()
        read.run()
        assert np.array_equal(read.fetch(y), after(words(1000, seed), 3))
    with pytest.raises(ArgumentError, match="has no staging copy"):
        device.read(far[0])
    del write, read, far
    gc.collect()
    assert device.remote_bytes == there


def test_remote_buffers_beyond_the_host_are_refused(device, monkeypatch):
    monkeypatch.setattr(kompute, "_host_bytes", lambda: device.remote_bytes + 4000)
    with pytest.raises(MemoryLimitError, match=r"words is 1001 .* in all in the host's memory"):
        device.allocate(1001, host=False, remote=True)
    with pytest.raises(ArgumentError, match="host and remote are both true"):
        device.allocate(1, host=True, remote=True)


@pytest.mark.parametrize("host", [True, False])
def test_sizes_that_no_buffer_can_have(device, host):
    for count in (0, -1):
        with pytest.raises(ArgumentError, match=f"words is {count}, expected at least 1"):
            device.allocate(count, host)
    largest = device.info.limits.max_buffer_bytes // 4
    with pytest.raises(MemoryLimitError, match=f"expected at most {4 * largest} bytes in one buffer"):
        device.allocate(largest + 1, host)


def test_storage_buffers_cannot_be_transferred(device):
    storage = device.allocate(10, host=False)
    no_staging = "has no staging copy, expected a host buffer; allocate it with host=True"
    with pytest.raises(ArgumentError, match=no_staging):
        device.write(storage, words(10))
    with pytest.raises(ArgumentError, match=no_staging):
        device.read(storage)
    with pytest.raises(ArgumentError, match=f"uploads: .*{no_staging}"):
        device.record([], uploads=[storage])
    with pytest.raises(ArgumentError, match=f"downloads: .*{no_staging}"):
        device.record([], downloads=[storage])


def test_staging_and_fetching_only_what_was_named(device):
    x, y = device.allocate(10, host=True), device.allocate(10, host=True)
    recording = device.record([], uploads=[x], downloads=[y])
    with pytest.raises(ArgumentError, match="is not uploaded by this recording"):
        recording.stage(y, words(10))
    with pytest.raises(ArgumentError, match="nothing to fetch before the first run"):
        recording.fetch(y)
    recording.run()
    with pytest.raises(ArgumentError, match="is not downloaded by this recording"):
        recording.fetch(x)
    with pytest.raises(ArgumentError, match="offset is 5 with 6 words"):
        recording.stage(x, words(6), 5)
    with pytest.raises(ArgumentError, match="offset is -1 with 2 words"):
        recording.fetch(y, -1, 2)


@pytest.mark.parametrize("bad", [np.zeros(3, np.float32), np.zeros((1, 3), np.uint32), [1, 2, 3]])
def test_words_must_be_a_uint32_vector(device, bad):
    buffer = device.allocate(3, host=True)
    with pytest.raises(ArgumentError, match="expected a uint32 vector"):
        device.write(buffer, bad)


def test_strided_words_are_taken_as_they_read(device):
    buffer = device.allocate(5, host=True)
    device.write(buffer, np.arange(10, dtype=np.uint32)[::-2])
    assert device.read(buffer).tolist() == [9, 7, 5, 3, 1]


def test_launches_beyond_the_limits(device, shaders):
    x, y = device.allocate(64, host=True), device.allocate(64, host=True)
    good = step(shaders, x, y)
    limits = device.info.limits
    for groups in ((0, 1, 1), (1, limits.max_workgroup_count[1] + 1, 1)):
        with pytest.raises(ArgumentError, match=r"shader step: groups is .* loop over the rest"):
            device.record([replace(good, groups=groups)])
    with pytest.raises(ArgumentError, match=f"expected at most {limits.push_constant_bytes // 4}"):
        device.record([replace(good, push=(0,) * (limits.push_constant_bytes // 4 + 1))])
    with pytest.raises(ArgumentError, match="pass floats and negative integers by their bits"):
        device.record([replace(good, push=(64, -1, 0, 0))])
    with pytest.raises(ArgumentError, match="has 0 buffers"):
        device.record([replace(good, buffers=(), reads=(), writes=())])
    with pytest.raises(ArgumentError, match="region from 0 to 65"):
        device.record([replace(good, reads=(Region(x, 0, 65),))])
    with pytest.raises(ArgumentError, match="expected one of its buffers"):
        device.record([replace(good, writes=(Region.whole(device.allocate(1, host=False)),))])


def test_buffers_of_another_device_are_refused(device, shaders):
    other = KomputeDevice(device.info)
    foreign = other.allocate(64, host=True)
    with pytest.raises(ArgumentError, match="is no buffer of"):
        device.read(foreign)
    with pytest.raises(ArgumentError, match="is no buffer of"):
        device.record([step(shaders, foreign, device.allocate(64, host=True))])


def test_a_submission_that_does_not_run_is_noticed(device):
    """An empty sequence stands in for a lost device, which Kompute reports as success."""
    with pytest.raises(DeviceError, match="lost, a submission did not run to its end"):
        device.submit(device._manager.sequence())


def test_threads_may_share_a_device(device, shaders):
    failures = []

    def work(seed):
        for _ in range(10):
            x, y = device.allocate(256, host=True), device.allocate(256, host=True)
            recording = device.record([step(shaders, x, y)], uploads=[x], downloads=[y])
            recording.stage(x, words(256, seed))
            recording.run()
            if not np.array_equal(recording.fetch(y), after(words(256, seed), 1)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_opening_leaves_the_root_logger_and_the_float_mode_alone(device):
    assert not any(type(handler) is logging.StreamHandler for handler in logging.getLogger().handlers)
    smallest = np.full(64, 2.0**-126, np.float32)
    assert (smallest * np.float32(0.5) > 0).all()
