"""Matrix products and what is made of them."""

from __future__ import annotations

import numpy as np

import vkdnn as vk
from vkdnn.check.operator import Input, Operator

ROWS = (
    Operator(
        "matmul", "products", (Input("a", "batch m k"), Input("b", "batch k n")), vk.matmul, np.matmul,
        {"batch": 2, "m": 3, "k": 4, "n": 5},
    ),
)  # fmt: skip
