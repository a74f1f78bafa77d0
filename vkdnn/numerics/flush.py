"""Subnormals as zero, on float32 bits and as a mode of the processor for plain NumPy arithmetic.

It must never leave the mode of a thread changed behind it, and never trust the mode without having probed it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

_EXPONENT = np.uint32(0x7F800000)
_SIGN = np.uint32(0x80000000)

# Flush-to-zero and denormals-are-zero of the x86 control register MXCSR. x86 detects tininess after rounding
# when it flushes, which is the rule of the contract.
_FTZ_DAZ = 0x8040
# glibc's fenv_t on x86-64: seven 32-bit words of x87 state, then MXCSR.
_FenvT = ctypes.c_uint32 * 8
_MXCSR = 7

_thread = threading.local()


def flush(x: Float32) -> Float32:
    """Replace every subnormal by the zero of its sign; all other bits stay, NaN payloads included.

    `x` is a float32 array of any shape; the result is a new array of that shape.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    kept = np.where((bits & _EXPONENT) == 0, bits & _SIGN, bits)
    return kept.view(np.float32).reshape(np.shape(x))


def _load_fenv() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """`fegetenv` and `fesetenv` where the layout of fenv_t is known (x86-64 with glibc), else None."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        return None
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None
        library = ctypes.CDLL("libm.so.6")
    except (ValueError, OSError):
        return None
    get, put = library.fegetenv, library.fesetenv
    for function in (get, put):
        function.argtypes = [ctypes.POINTER(_FenvT)]
        function.restype = ctypes.c_int
    return get, put


_FENV = _load_fenv()


@contextmanager
def _flush_mode() -> Iterator[None]:
    """Set FTZ and DAZ on this thread and restore the whole former environment on the way out."""
    assert _FENV is not None
    get, put = _FENV
    saved, changed = _FenvT(), _FenvT()
    get(saved)
    get(changed)
    changed[_MXCSR] |= _FTZ_DAZ
    put(changed)
    depth = getattr(_thread, "depth", 0)
    _thread.depth = depth + 1
    try:
        yield
    finally:
        _thread.depth = depth
        put(saved)


def _probe() -> bool:
    """Whether NumPy's float32 arithmetic obeys the contract in flush mode: boundary inputs, vectors of 32."""
    if _FENV is None:
        return False

    def bits(*words: int) -> Float32:
        return np.tile(np.array(words, np.uint32), 8).view(np.float32)

    # Products a * b: (1 - 2**-24) * 2**-126 is flushed, (1 - 2**-26) * 2**-126 rounds up to 2**-126 and stays,
    # then a plain one, then a subnormal operand that reads as zero of its sign.
    a = bits(0x3F7FFFFF, 0x3F7FF800, 0xBF800001, 0x007FFFFF)
    b = bits(0x00800000, 0x00800400, 0x00800000, 0xCB000000)
    product = bits(0x00000000, 0x00800000, 0x80800001, 0x80000000)
    # Sums c + d: a subnormal difference, a subnormal operand beside zero and beside a normal number.
    c = bits(0x00800001, 0x80000001, 0x807FFFFF, 0x3F800000)
    d = bits(0x80800000, 0x80000000, 0x00800000, 0x33800000)
    total = bits(0x00000000, 0x80000000, 0x00800000, 0x3F800000)
    with np.errstate(all="ignore"), _flush_mode():
        seen_product, seen_total = a * b, c + d
        seen_quotient = a / bits(0x7E800000, 0x7F000000, 0x7E800000, 0xBF800000)
    quotient = bits(0x00000000, 0x00000000, 0x80800001, 0x80000000)
    return all(
        np.array_equal(seen.view(np.uint32), expected.view(np.uint32))
        for seen, expected in ((seen_product, product), (seen_total, total), (seen_quotient, quotient))
    )


#: True where `hardware_flush` makes plain NumPy arithmetic obey the contract. Decided once, at import;
#: the environment variable VKDNN_REFERENCE_FLUSH=software makes it False.
HARDWARE_FLUSH: bool = os.environ.get("VKDNN_REFERENCE_FLUSH", "") != "software" and _probe()


def hardware_flush_active() -> bool:
    """Whether this thread is inside `hardware_flush` and the processor does the flushing."""
    return getattr(_thread, "depth", 0) > 0


@contextmanager
def hardware_flush() -> Iterator[None]:
    """Inside, float32 arithmetic of this thread reads and writes subnormals as zero, done by the processor.

    Re-entrant, per thread, restored on exit and on exceptions; float64 work inside is flushed as well, so keep
    the block tight. Does nothing where HARDWARE_FLUSH is False.
    """
    if HARDWARE_FLUSH:
        with _flush_mode():
            yield
    else:
        yield


@contextmanager
def exact() -> Iterator[None]:
    """Run `vkdnn.numerics.basic` at full speed and in silence: hardware flush where there is one, no warnings.

    Results are the same bits outside of it; the evaluator enters it once around a kernel.
    """
    with np.errstate(all="ignore"), hardware_flush():
        yield
