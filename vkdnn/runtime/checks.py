"""What may be asked of a device, checked before it is asked, with one message per check.

It must never touch a device: everything follows from the launch, the buffer and the device's limits.
"""

from __future__ import annotations

import numpy as np

from vkdnn.errors import ArgumentError
from vkdnn.runtime.info import DeviceInfo
from vkdnn.runtime.interface import Buffer, Launch, Region, Words


def check_words(words: Words) -> Words:
    """The words if they are a uint32 vector; raises ArgumentError otherwise."""
    if not isinstance(words, np.ndarray) or words.dtype != np.uint32 or words.ndim != 1:
        is_array = isinstance(words, np.ndarray)
        got = f"{words.dtype} of shape {words.shape}" if is_array else type(words).__name__
        raise ArgumentError(f"words is {got}, expected a uint32 vector; pass array.reshape(-1).view(numpy.uint32)")
    return words


def check_span(buffer: Buffer, offset: int, count: int) -> None:
    """Raises ArgumentError unless `count` words from `offset` on lie inside the buffer."""
    if offset < 0 or count < 0 or offset + count > buffer.words:
        raise ArgumentError(
            f"offset is {offset} with {count} words, expected a span inside the {buffer.words} words of "
            f"{buffer!r}; make the span smaller or the buffer larger"
        )


def check_launch(launch: Launch, info: DeviceInfo) -> None:
    """Raises ArgumentError if a launch exceeds the device's limits or names words that it does not bind."""
    limits = info.limits
    for axis, count, limit in zip("xyz", launch.groups, limits.max_workgroup_count, strict=True):
        if not 1 <= count <= limit:
            raise ArgumentError(
                f"shader {launch.label}: groups is {launch.groups}, expected 1 to {limit} in {axis} on "
                f"{info.name}; launch fewer workgroups and loop over the rest with a grid stride"
            )
    if not 1 <= len(launch.buffers) <= limits.max_bindings:
        raise ArgumentError(
            f"shader {launch.label}: has {len(launch.buffers)} buffers, expected 1 to {limits.max_bindings} "
            f"on {info.name}; split the kernel"
        )
    if 4 * len(launch.push) > limits.push_constant_bytes:
        raise ArgumentError(
            f"shader {launch.label}: push has {len(launch.push)} words, expected at most "
            f"{limits.push_constant_bytes // 4} on {info.name}; put sizes into the shader"
        )
    if not all(0 <= word < 2**32 for word in launch.push):
        raise ArgumentError(
            f"shader {launch.label}: push is {launch.push}, expected words from 0 to 2**32 - 1; "
            "pass floats and negative integers by their bits"
        )
    for region in (*launch.reads, *launch.writes):
        _check_region(launch, region)


def _check_region(launch: Launch, region: Region) -> None:
    if not any(region.buffer is buffer for buffer in launch.buffers):
        raise ArgumentError(
            f"shader {launch.label}: region of {region.buffer!r} in reads or writes, expected one of its "
            f"buffers {launch.buffers}; name the buffer that is bound"
        )
    if not 0 <= region.start <= region.stop <= region.buffer.words:
        raise ArgumentError(
            f"shader {launch.label}: region from {region.start} to {region.stop}, expected words inside the "
            f"{region.buffer.words} of {region.buffer!r}; correct the region"
        )
