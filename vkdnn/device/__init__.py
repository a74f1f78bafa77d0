"""Devices as programs see them: the NumPy reference ("cpu") and Vulkan devices, behind one small interface."""

from __future__ import annotations

import os
import threading

from vkdnn import runtime
from vkdnn.device.base import Device, Place, Progress, Run, Storage, Task, Words, entered
from vkdnn.device.reference import ReferenceDevice
from vkdnn.device.vulkan import Prepared, VulkanDevice, Work, prepared, stand_by, tuned_by
from vkdnn.ir.arguments import integer

__all__ = [
    "Device", "Place", "Prepared", "Progress", "ReferenceDevice", "Run", "Storage", "Task", "VulkanDevice", "Words",
    "Work", "current_device", "device", "devices", "prepared", "stand_by", "tuned_by",
]  # fmt: skip

_lock = threading.Lock()
_opened: dict[int, VulkanDevice] = {}  # by the identity of what the runtime opened: it keeps one for each strategy
_reference = ReferenceDevice()


def device(selector: str | int | None = None) -> Device:
    """The device a selector names: "cpu" (the NumPy reference), an index, a kind ("discrete", "integrated",
    "virtual", "software") or part of a name; None takes ``VKDNN_DEVICE``, else the best Vulkan device.

    Usable as a context: arrays made inside live on it. Raises DeviceError when there is no such device and
    ArgumentError when the selector is neither text nor an int.

    >>> import vkdnn as vk
    >>> with vk.device("cpu"):
    ...     print(vk.array([1.0, 2.0]) + 1)
    [2. 3.]
    """
    if not isinstance(selector, (str, type(None))):
        selector = str(integer("device: selector", selector, "an index, a kind, part of a name or 'cpu'"))
    selector = selector if selector is not None else os.environ.get("VKDNN_DEVICE") or None
    if selector is not None and selector.lower() in ("cpu", "reference"):
        return _reference
    opened = runtime.open_device(selector)
    with _lock:
        if id(opened) not in _opened:
            _opened[id(opened)] = VulkanDevice(opened)
        return _opened[id(opened)]


def current_device() -> Device:
    """The innermost ``with vk.device(...)`` of this thread, else the default device."""
    stack = entered()
    return stack[-1] if stack else device()


def devices() -> tuple[runtime.DeviceInfo, ...]:
    """Every Vulkan device of this machine, in the order of their indices; "cpu" always exists besides."""
    return runtime.list_devices()
