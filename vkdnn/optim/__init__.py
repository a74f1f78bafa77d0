"""Optimizers, gradient accumulation and averaged weights, as pure functions of trees of arrays.

Nothing here may read a value on the host: a training step made of them stays one submission.
"""

from vkdnn.optim.accumulate import Accumulation, accumulated
from vkdnn.optim.adamw import AdamW, adamw_update
from vkdnn.optim.average import Average
from vkdnn.optim.base import Optimizer, global_norm
from vkdnn.optim.lion import Lion, lion_update
from vkdnn.optim.sgd import SGD, sgd_update

__all__ = [
    "SGD",
    "Accumulation",
    "AdamW",
    "Average",
    "Lion",
    "Optimizer",
    "accumulated",
    "adamw_update",
    "global_norm",
    "lion_update",
    "sgd_update",
]
