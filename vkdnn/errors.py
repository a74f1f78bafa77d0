"""Every exception vkdnn raises on purpose, in one family.

A message names the argument, what came, what was expected and what to do; it must never leave out the remedy.
"""

from __future__ import annotations


class VkdnnError(Exception):
    """Base of all errors raised by vkdnn."""


class ArgumentError(VkdnnError, ValueError):
    """An argument has a value that the operation does not take."""


class ShapeError(ArgumentError):
    """Shapes do not fit together or an axis does not exist."""


class DtypeError(ArgumentError, TypeError):
    """A dtype is not one of vkdnn's, or the operation does not take it."""


class CompileError(VkdnnError):
    """A shader could not be compiled, or there is no compiler."""


class StoreError(VkdnnError):
    """The on-disk shader store cannot be used."""


class DeviceError(VkdnnError):
    """No Vulkan device, a device that fails the numerics contract, or one that was lost."""


class MemoryLimitError(DeviceError):
    """An array or a Program needs more memory than one buffer of the device can hold."""
