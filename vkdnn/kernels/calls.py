"""Families whose kernels have several results of their own shapes: what each makes of a call node's operands.

CALLS is the one list of them; a family is a spec module and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkdnn.kernels.base import KernelSpec, Operand, Results
from vkdnn.kernels.cumulate import build_cumulate
from vkdnn.kernels.scan import build_scan
from vkdnn.kernels.scan_chunk import build_product, build_states
from vkdnn.kernels.scan_dot import build_dot
from vkdnn.kernels.scan_readout import build_readout
from vkdnn.kernels.scatter import build_scatter
from vkdnn.kernels.sort import build_sort

Builder = Callable[[Any, Sequence[Operand], Results, tuple[int, ...]], tuple[KernelSpec, tuple[int, ...]]]
"""(parameters of the call, operands, all results, numbers of the results that are wanted) -> spec and sizes."""

CALLS: dict[str, Builder] = {
    "scatter": build_scatter,
    "sort": build_sort,
    "cumulate": build_cumulate,
    "scan": build_scan,
    "scan_product": build_product,
    "scan_states": build_states,
    "scan_readout": build_readout,
    "row_dot": build_dot,
}
