"""What every kernel family offers: a frozen spec with four faces (text, template context, reference, cost).

A spec must say everything that can change a result or a shader and nothing about a device; schedules say how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vkdnn.dtypes import DType
from vkdnn.ir.body import Affine
from vkdnn.ir.dims import maximum, minimum
from vkdnn.ir.node import Shape

Array = np.ndarray[Any, Any]
Groups = tuple[int, int, int]
MAX_GROUPS = 65_535  # per axis on llvmpipe, and in y and z everywhere: kernels stride over what is left


@dataclass(frozen=True)
class Target:
    """What a schedule may know of a device."""

    software: bool
    max_invocations: int = 256
    shared_bytes: int = 32_768
    subgroup_size: int = 1


@dataclass(frozen=True)
class Cost:
    """Float operations and the bytes that must move, for rooflines."""

    flops: int
    bytes: int


class KernelSpec(ABC):
    """Base of the specs. Subclasses are frozen dataclasses; ``sizes`` are the extents kept out of the spec."""

    template: ClassVar[str]
    size_names: ClassVar[tuple[str, ...]]
    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that a shader needs as constants (array sizes, unrolled loops): no symbolic sizes there."""

    input_dtypes: tuple[DType, ...]

    @property
    def inputs(self) -> tuple[DType, ...]:
        """Dtypes of the bindings read, in order."""
        return self.input_dtypes

    @property
    @abstractmethod
    def outputs(self) -> tuple[DType, ...]:
        """Dtypes of the bindings written, after the inputs."""

    @abstractmethod
    def text(self) -> str:
        """Canonical text: equal exactly when the kernels are equal; the ground of the cache key."""

    @abstractmethod
    def schedules(self, target: Target) -> tuple[Any, ...]:
        """The legal schedules on a device, the default first. None of them changes a bit."""

    @abstractmethod
    def context(self, schedule: Any) -> dict[str, Any]:
        """What the template gets."""

    @abstractmethod
    def groups(self, sizes: tuple[int, ...], schedule: Any) -> Groups:
        """Workgroups to launch."""

    @abstractmethod
    def reference(self, sizes: tuple[int, ...], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The kernel in NumPy, in the same order: fills flat ``outputs``; called inside numerics.exact()."""

    @abstractmethod
    def cost(self, sizes: tuple[int, ...]) -> Cost:
        """Work of one launch."""

    def ops(self) -> Sequence[str]:
        """Op-table rows whose GLSL functions the template calls."""
        return ()


@dataclass(frozen=True)
class Operand:
    """An argument of a call: its shape, and where its elements lie in its buffer, over its own axes."""

    shape: Shape
    dtype: DType
    index: Affine


Results = Sequence[tuple[Shape, DType]]
"""Shape and dtype of each result of a call."""


def group_count(items: int, per_group: int) -> int:
    """Workgroups for ``items``, capped: kernels loop with a grid stride."""
    return maximum(1, minimum(MAX_GROUPS, -(-items // per_group)))
