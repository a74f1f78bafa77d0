"""What a bundle is built for: every device within Vulkan's guarantees (portable), or one device.

A pure description: with a portable target no device is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vkdnn.device import Device, VulkanDevice
from vkdnn.device import device as find_device
from vkdnn.errors import ArgumentError
from vkdnn.kernels.base import KernelSpec, Target
from vkdnn.numerics.flush import HARDWARE_FLUSH
from vkdnn.runtime.info import SOFTWARE, Strategies
from vkdnn.schedules import Winners, asked
from vkdnn.shader.request import ShaderRequest, kernel_request

# Words of a buffer: 128 MiB, the least maxStorageBufferRange that Vulkan allows, then what most devices have.
_PORTABLE_WORDS = (2**25, 2**27, 2**29, 2**30 - 1)


@dataclass(frozen=True)
class BuildTarget:
    """How kernels are scheduled and which strategies they use; ``name`` is empty for a portable target."""

    name: str
    target: Target
    strategies: Strategies
    max_words: tuple[int, ...]  # of a buffer: the first that will do
    host_flush: bool
    winners: Winners | None = None

    def request(self, spec: KernelSpec, schedule: Any) -> ShaderRequest:
        """The request from which a kernel is compiled."""
        return kernel_request(spec, schedule, self.strategies)

    def schedule(self, spec: KernelSpec, sizes: Sequence[Any]) -> Any:
        """The schedule of a kernel: for a device the tuned one, if there is one for sizes that are numbers."""
        legal = spec.schedules(self.target)
        use = self.winners is not None and asked() is not False and self.winners.any()
        tuned = self.winners.find(spec, sizes, legal) if self.winners is not None and use else None
        return legal[0] if tuned is None else tuned


PORTABLE = BuildTarget("", Target(software=False), SOFTWARE, _PORTABLE_WORDS, False)
"""Subnormals, division and roots in software, 256 invocations and 32 KiB: what runs on any device."""


def target_of(device: Device | str | int | None) -> BuildTarget:
    """The target of a Vulkan device, or the portable one for None. Raises ArgumentError for the reference."""
    if device is None:
        return PORTABLE
    place = device if isinstance(device, Device) else find_device(device)
    if not isinstance(place, VulkanDevice):
        raise ArgumentError(
            f"device: {place.name} runs no shaders; name a Vulkan device, or none for a portable bundle"
        )
    info, strategies = place.opened.info, place.opened.strategies
    # Threads of a software device flush only because the thread that opened it did.
    host_flush = info.kind == "software" and HARDWARE_FLUSH and strategies.subnormals == "native"
    name = str(info).split(": ", 1)[1]
    return BuildTarget(name, place.target, strategies, (place.max_words,), host_flush, place.winners)
