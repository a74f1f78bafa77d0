"""vkdnn: neural-network operations compiled to Vulkan compute shaders, with the same bits on every device.

>>> import vkdnn as vk
>>> x = vk.array([0.0, 0.0])
>>> vk.softmax(x).numpy().tolist()
[0.5, 0.5]
"""

from vkdnn.array import Array, arange, array, asarray, full, realize, zeros
from vkdnn.device import Device, current_device, device, devices
from vkdnn.dtypes import DType, bool_, float32, int32, uint32
from vkdnn.errors import VkdnnError
from vkdnn.ops.elementwise import *  # noqa: F403
from vkdnn.ops.linear import matmul
from vkdnn.ops.reduce import (
    layer_norm,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    rms_norm,
    softmax,
    sum,
)
from vkdnn.ops.scan import outer_col, scan_prefix_outer, scan_suffix_outer
from vkdnn.ops.shape import (
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    pad,
    reshape,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    take_along_axis,
    transpose,
)
from vkdnn.transform import grad, jit, value_and_grad, vjp

from vkdnn import nn, optim, random  # isort: skip  (they use the functions above)

__version__ = "0.1.0"
