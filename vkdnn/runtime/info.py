"""What can be known of a Vulkan device without opening it, and which one to take.

It must never run anything on a device, and never import Kompute: it asks the Vulkan loader alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from vkdnn.errors import ArgumentError, DeviceError

Way = Literal["native", "fma", "remainder"]
Kind = Literal["discrete", "integrated", "virtual", "software", "other"]

# The order of preference when nobody chooses. VkPhysicalDeviceType numbers them otherwise.
_PREFERENCE: tuple[Kind, ...] = ("discrete", "integrated", "virtual", "software", "other")
_KIND_OF_TYPE: dict[int, Kind] = {1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}
_REMEDY = (
    "install the driver of the graphics card, or for a software device the Debian or Ubuntu package "
    "mesa-vulkan-drivers; `vulkaninfo --summary` shows what the Vulkan loader finds"
)


@dataclass(frozen=True)
class Limits:
    """What one dispatch and one buffer may ask of a device."""

    max_workgroup_count: tuple[int, int, int]
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_invocations: int
    shared_memory_bytes: int
    max_buffer_bytes: int
    """min(maxStorageBufferRange, maxMemoryAllocationSize, 2**32 - 4): sizes are 32-bit bytes in Kompute."""
    push_constant_bytes: int
    max_bindings: int
    memory_bytes: int
    """Size of the largest device-local heap."""
    subgroup_size: int = 1
    """Invocations that run in step: the width of the vector unit on software devices."""
    timestamp_ns: float = 0.0
    """Nanoseconds in a tick of timestamps; 0 where the device has none for computing."""


@dataclass(frozen=True)
class DeviceInfo:
    """A Vulkan device; `index` is its place in the loader's list, which is Kompute's too."""

    index: int
    name: str
    kind: Kind
    vendor_id: int
    device_id: int
    driver: str
    driver_version: str
    api_version: str
    uuid: str
    limits: Limits

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.kind}, {self.driver} {self.driver_version})"


@dataclass(frozen=True)
class Strategies:
    """How shaders get the contract's `+ - × ÷ sqrt` on a device: by its own instructions or in software.

    Quotients and roots in software are settled by exact remainders, of fma() where it is fused, else of integers. The
    defaults hold on every device that adds and multiplies right.
    """

    subnormals: Literal["native", "software"] = "software"
    division: Way = "remainder"
    square_root: Way = "remainder"

    @property
    def text(self) -> str:
        """Canonical form, for cache keys and messages."""
        return f"subnormals={self.subnormals},division={self.division},square_root={self.square_root}"

    @property
    def defines(self) -> tuple[str, ...]:
        """What GLSL defines to get the forms in software."""
        forms = {
            "VKDNN_SUBNORMALS_SOFTWARE": self.subnormals == "software",
            "VKDNN_DIVIDE_FMA": self.division == "fma",
            "VKDNN_DIVIDE_REMAINDER": self.division == "remainder",
            "VKDNN_SQRT_FMA": self.square_root == "fma",
            "VKDNN_SQRT_REMAINDER": self.square_root == "remainder",
        }
        return tuple(name for name, on in forms.items() if on)


SOFTWARE = Strategies()


def forced_strategies(text: str | None = None) -> frozenset[str]:
    """Names of the rules that VKDNN_STRATEGIES (or `text`) takes away from the hardware.

    The text reads like `subnormals=software,division=remainder`; `name=native` leaves the rule to the probe.
    Raises ArgumentError for a name or value that does not exist.
    """
    if text is None:
        text = os.environ.get("VKDNN_STRATEGIES", "")
    software = {"subnormals": "software", "division": "remainder", "square_root": "remainder"}
    forced: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in software or value not in ("native", software[name]):
            known = ", ".join(f"{name}={value}" for name, value in software.items())
            raise ArgumentError(
                f"VKDNN_STRATEGIES has {part!r}, expected a comma-separated choice of: {known}; correct it or unset it"
            )
        if value != "native":
            forced.add(name)
    return frozenset(forced)


def list_devices() -> tuple[DeviceInfo, ...]:
    """All Vulkan devices, in the loader's order; empty if no driver offers one.

    Raises DeviceError if there is no Vulkan loader or it cannot be asked.
    """
    vk = _vulkan()
    try:
        instance = _make_instance(vk)
    except vk.VkErrorIncompatibleDriver:
        return ()  # the loader's word for 'no driver at all'
    except vk.VkError as error:
        raise DeviceError(f"the Vulkan loader cannot make an instance ({error!r}); {_REMEDY}") from error
    try:
        handles = vk.vkEnumeratePhysicalDevices(instance)
        return tuple(_describe(vk, handle, index) for index, handle in enumerate(handles))
    except vk.VkErrorInitializationFailed:
        return ()  # drivers are listed, none of them finds a device
    except vk.VkError as error:
        raise DeviceError(f"the Vulkan loader cannot list devices ({error!r}); {_REMEDY}") from error
    finally:
        vk.vkDestroyInstance(instance, None)


def choose(selector: str | None = None, devices: tuple[DeviceInfo, ...] | None = None) -> DeviceInfo:
    """The device that `selector`, else VKDNN_DEVICE, names: by index, kind, or part of its name in any case.

    Without either: discrete before integrated, virtual, software. `devices` stands in for `list_devices()`.
    Raises DeviceError listing what there is.
    """
    found = list_devices() if devices is None else devices
    if not found:
        raise DeviceError(f"no Vulkan device found; {_REMEDY}; VKDNN_DEVICE=cpu chooses the NumPy reference")
    source = "selector" if selector is not None else "VKDNN_DEVICE"
    wanted = (selector if selector is not None else os.environ.get("VKDNN_DEVICE", "")).strip()
    candidates = list(found) if not wanted else [info for info in found if _matches(info, wanted)]
    if not candidates:
        listed = "; ".join(map(str, found))
        raise DeviceError(
            f"{source} {wanted!r} names no Vulkan device, expected an index, a kind or part of a name; "
            f"choose one of: {listed}; or cpu (the NumPy reference)"
        )
    return min(candidates, key=lambda info: _PREFERENCE.index(info.kind))


def _matches(info: DeviceInfo, wanted: str) -> bool:
    if wanted.isdecimal():
        return info.index == int(wanted)
    return wanted.lower() == info.kind or wanted.lower() in info.name.lower()


def _vulkan() -> Any:
    try:
        import vulkan
    except (ImportError, OSError) as error:
        raise DeviceError(
            f"no Vulkan loader ({error}); install the Debian or Ubuntu package libvulkan1 and the PyPI "
            f"package vulkan, then {_REMEDY}"
        ) from error
    return vulkan


def _make_instance(vk: Any) -> Any:
    application = vk.VkApplicationInfo(
        pApplicationName="vkdnn", applicationVersion=1, pEngineName="vkdnn", engineVersion=1,
        apiVersion=vk.VK_MAKE_VERSION(1, 2, 0),
    )  # fmt: skip
    # Instances of Vulkan 1.0 refuse a newer version; those of 1.1 and later take any.
    return vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=application), None)


def _describe(vk: Any, handle: Any, index: int) -> DeviceInfo:
    # Structures of newer versions that a driver does not know stay zero.
    subgroup = vk.VkPhysicalDeviceSubgroupProperties()
    driver = vk.VkPhysicalDeviceDriverProperties(pNext=subgroup)
    sizes = vk.VkPhysicalDeviceMaintenance3Properties(pNext=driver)
    identity = vk.VkPhysicalDeviceIDProperties(pNext=sizes)
    every = vk.VkPhysicalDeviceProperties2(pNext=identity)
    vk.vkGetPhysicalDeviceProperties2(handle, every)
    properties = every.properties
    return DeviceInfo(
        index=index,
        name=_text(vk, properties.deviceName),
        kind=_KIND_OF_TYPE.get(int(properties.deviceType), "other"),
        vendor_id=int(properties.vendorID),
        device_id=int(properties.deviceID),
        driver=_text(vk, driver.driverName) or "driver",
        driver_version=_text(vk, driver.driverInfo) or f"{int(properties.driverVersion):#x}",
        api_version=_version(int(properties.apiVersion)),
        uuid=bytes(identity.deviceUUID).hex(),
        limits=_limits(
            properties.limits,
            int(sizes.maxMemoryAllocationSize),
            _largest_heap(vk, handle),
            int(subgroup.subgroupSize),
        ),
    )


def _limits(limits: Any, max_allocation: int, heap_bytes: int, subgroup_size: int) -> Limits:
    def three(values: Any) -> tuple[int, int, int]:
        return int(values[0]), int(values[1]), int(values[2])

    largest = min(int(limits.maxStorageBufferRange), 2**32 - 4, max_allocation or 2**32 - 4)
    return Limits(
        max_workgroup_count=three(limits.maxComputeWorkGroupCount),
        max_workgroup_size=three(limits.maxComputeWorkGroupSize),
        max_workgroup_invocations=int(limits.maxComputeWorkGroupInvocations),
        shared_memory_bytes=int(limits.maxComputeSharedMemorySize),
        max_buffer_bytes=largest // 4 * 4,
        push_constant_bytes=int(limits.maxPushConstantsSize),
        max_bindings=min(int(limits.maxPerStageDescriptorStorageBuffers), int(limits.maxDescriptorSetStorageBuffers)),
        memory_bytes=heap_bytes,
        subgroup_size=max(1, subgroup_size),
        timestamp_ns=float(limits.timestampPeriod) if limits.timestampComputeAndGraphics else 0.0,
    )


def _largest_heap(vk: Any, handle: Any) -> int:
    memory = vk.vkGetPhysicalDeviceMemoryProperties(handle)
    heaps = [memory.memoryHeaps[index] for index in range(memory.memoryHeapCount)]
    return max(int(heap.size) for heap in heaps if heap.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)


def _text(vk: Any, value: Any) -> str:
    """A C string field, which the binding hands over as str or as a character array."""
    if isinstance(value, str):
        return value
    raw: bytes = vk.ffi.string(value)
    return raw.decode(errors="replace")


def _version(number: int) -> str:
    return f"{number >> 22 & 0x7F}.{number >> 12 & 0x3FF}.{number & 0xFFF}"
