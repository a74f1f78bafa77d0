"""The flush mode of the processor: what it does, and that it never outlives its block."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from vkdnn.check.hard import HARD_FLOATS, bits_equal, random_bits
from vkdnn.numerics.flush import HARDWARE_FLUSH, exact, flush, hardware_flush, hardware_flush_active

needs_hardware = pytest.mark.skipif(not HARDWARE_FLUSH, reason="this processor or C library has no known flush mode")
SMALL = np.full(32, 2.0**-130, np.float32)


def flushes():
    """Whether this thread's arithmetic flushes right now."""
    return not (SMALL * np.float32(1)).any()


def test_flush_clears_subnormals_and_nothing_else():
    x = np.concatenate([HARD_FLOATS, random_bits(1 << 16, 1)])
    truth = np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)
    flushed = flush(x)
    assert bits_equal(flushed, truth).all()
    assert flush(x.reshape(-1, 2)).shape == (x.size // 2, 2)
    nan = np.isnan(x)
    assert np.array_equal(flushed[nan].view(np.uint32), x[nan].view(np.uint32))


def test_flush_takes_scalars_and_strided_arrays():
    assert flush(np.float32(1e-40)).shape == ()
    assert flush(np.arange(6, dtype=np.float32)[::2]).tolist() == [0, 2, 4]


@needs_hardware
def test_the_mode_nests_and_ends():
    assert not flushes()
    with hardware_flush():
        assert flushes() and hardware_flush_active()
        with hardware_flush():
            assert flushes()
        assert flushes() and hardware_flush_active()
    assert not flushes() and not hardware_flush_active()


@needs_hardware
def test_the_mode_ends_on_exceptions():
    with pytest.raises(ValueError, match="out"), hardware_flush():
        raise ValueError("out")
    assert not flushes() and not hardware_flush_active()


@needs_hardware
def test_the_mode_belongs_to_one_thread():
    seen = []
    with hardware_flush():
        thread = threading.Thread(target=lambda: seen.append(hardware_flush_active()))
        thread.start()
        thread.join()
        assert flushes()
    assert seen == [False]


def test_exact_is_silent():
    with np.errstate(all="raise"), exact():
        assert np.isinf(np.float32([3e38]) * np.float32(10)).all()
        assert np.isnan(np.float32([0]) / np.float32(0)).all()


def test_the_environment_forces_software():
    code = "from vkdnn.numerics.flush import *; print(HARDWARE_FLUSH)"
    environment = {**os.environ, "VKDNN_REFERENCE_FLUSH": "software"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
