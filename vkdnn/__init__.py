"""vkdnn: neural-network operations compiled to Vulkan compute shaders, with the same bits on every device.

>>> import vkdnn as vk
>>> x = vk.array([0.0, 0.0])
>>> vk.softmax(x).numpy().tolist()
[0.5, 0.5]
"""

from vkdnn.array import Array, array, asarray, full, realize, zeros
from vkdnn.device import Device, current_device, device, devices
from vkdnn.dtypes import DType, bfloat16, bool_, float16, float32, int32, uint32
from vkdnn.errors import VkdnnError
from vkdnn.ops import masks
from vkdnn.ops.attention import attention
from vkdnn.ops.attention_merge import merge_attention
from vkdnn.ops.create import *  # noqa: F403
from vkdnn.ops.diagonal import *  # noqa: F403
from vkdnn.ops.einsum import einsum
from vkdnn.ops.elementwise import *  # noqa: F403
from vkdnn.ops.index import gather, take, take_along_axis
from vkdnn.ops.join import *  # noqa: F403
from vkdnn.ops.linear import *  # noqa: F403
from vkdnn.ops.normalize import *  # noqa: F403
from vkdnn.ops.order import *  # noqa: F403
from vkdnn.ops.reduce import *  # noqa: F403
from vkdnn.ops.scan import outer_col, scan_prefix_outer, scan_suffix_outer
from vkdnn.ops.shape import *  # noqa: F403
from vkdnn.profile import profile
from vkdnn.remat import flush, remat
from vkdnn.transform import grad, jit, value_and_grad, vjp
from vkdnn.tune import autotune

from vkdnn import nn, optim, random  # isort: skip  (they use the functions above)
from vkdnn import aot  # isort: skip

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "check":  # tools that few programs need
        from importlib import import_module

        return import_module("vkdnn.check")
    raise AttributeError(f"module 'vkdnn' has no attribute {name!r}")
