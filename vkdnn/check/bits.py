"""Where two arrays differ, in bits: how many places, the first of them, and what stands there.

NaN equals NaN; nothing else is ever forgiven.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkdnn.check.hard import bits_equal
from vkdnn.check.operator import Array


@dataclass(frozen=True)
class Place:
    """How many of ``values`` differ; at the first index both values as they print, and their bits."""

    values: int
    differing: int
    index: tuple[int, ...]
    want: str
    got: str
    want_bits: str
    got_bits: str

    def __str__(self) -> str:
        return (
            f"{self.differing} of {self.values} at {list(self.index)}: expected {self.want} ({self.want_bits}), "
            f"got {self.got} ({self.got_bits})"
        )


def difference(want: Array, got: Array) -> Place | None:
    """Where two arrays of one shape and dtype differ; None if nowhere."""
    if want.shape != got.shape or want.dtype != got.dtype:
        a, b = (f"{x.dtype}{list(x.shape)}" for x in (want, got))
        return Place(want.size, max(want.size, 1), (), a, b, "", "")
    wrong = ~bits_equal(want, got)
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    texts = (value_text(want[index]), value_text(got[index]), bits_text(want[index]), bits_text(got[index]))
    return Place(want.size, int(np.count_nonzero(wrong)), index, *texts)


def value_text(value: Any) -> str:
    """A scalar, with as many digits as tell it from its neighbours."""
    return str(np.asarray(value).item()) if np.asarray(value).dtype.kind in "iub" else repr(_shortest(value))


def _shortest(value: Any) -> float:
    return float(str(np.asarray(value)[()]))


def bits_text(value: Any) -> str:
    """The bits of a scalar."""
    scalar = np.asarray(value)
    if scalar.dtype == np.bool_:
        return str(int(scalar))
    half = scalar.dtype.itemsize == 2
    return f"0x{int(scalar.reshape(1).view(np.uint16 if half else np.uint32)[0]):0{4 if half else 8}x}"
