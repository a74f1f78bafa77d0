"""Devices, memory and recorded work behind a small interface; Kompute is the backend that stands there today.

It must never know what a kernel computes: it sees SPIR-V, words and regions.
"""

from __future__ import annotations

from vkdnn.runtime.info import DeviceInfo, Limits, Strategies, choose, list_devices
from vkdnn.runtime.interface import Buffer, Device, Launch, Recording, Region, Timing
from vkdnn.runtime.probe import open_device

__all__ = [
    "Buffer",
    "Device",
    "DeviceInfo",
    "Launch",
    "Limits",
    "Recording",
    "Region",
    "Strategies",
    "Timing",
    "choose",
    "list_devices",
    "open_device",
]
