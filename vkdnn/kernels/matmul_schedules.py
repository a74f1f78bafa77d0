"""How a matrix product is shared out over invocations: the forms of its kernel, and which of them suit a device.

No schedule may change a bit: the order along k is MatmulSpec's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vkdnn.kernels.base import Target

BLOCK_K = 128  # steps of k in a block: the contract's


@dataclass(frozen=True)
class TileSchedule:
    """Tiles of the result: ``rows`` and ``columns`` of an invocation, (columns, rows) of invocations in a tile.

    ``stage_k`` 0 reads operands straight from the buffers: best where shared memory is no faster (software devices).
    Else that many steps of k lie in shared memory, ``unroll`` of them unrolled; rows and columns are multiples of 4,
    and ``local`` has multiples of 8 columns and of 4 rows. Slices are groups of ``local`` that share the blocks of k of
    one tile; ``meeting`` fours of sums of each meet in shared memory at a time.
    """

    rows: int
    columns: int
    local: tuple[int, int]
    stage_k: int = 0
    unroll: int = 1
    slices: int = 1
    meeting: int = 1

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the result of a workgroup."""
        return self.rows * self.local[1], self.columns * self.local[0]

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return math.prod(self.local) * self.slices

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup."""
        stage = self.stage_k * (sum(self.tile) // 4 + 2)
        meet = self.meeting * math.prod(self.local) if self.slices > 1 else 0
        return 16 * self.slices * max(stage, meet)


@dataclass(frozen=True)
class ThinSchedule:
    """For a result of few rows (or, ``mirrored``, few columns): an invocation computes ``few`` of them by ``columns``
    (1, 2 or 4) of the many others, of which a workgroup has ``lanes`` times as many; its ``slices`` share the blocks
    of k. ``stage_k`` steps of the thin operand lie in shared memory; of the other, ``ahead`` steps are loaded ahead.
    """

    few: int
    columns: int
    lanes: int
    slices: int
    stage_k: int
    ahead: int
    mirrored: bool = False

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the result of a workgroup."""
        many = self.columns * self.lanes
        return (many, self.few) if self.mirrored else (self.few, many)

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return self.lanes * self.slices

    @property
    def stride(self) -> int:
        """Vectors of four of a slice's part of the thin operand: one to spare, so that slices lie in other banks."""
        return self.few * self.stage_k // 4 + 1

    @property
    def meeting(self) -> int:
        """How many fours of an invocation's sums meet at a time: as many as there is room for."""
        return max(1, min(-(-self.few * self.columns // 4), self.slices, self.stride // self.lanes))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup."""
        return 16 * self.slices * max(self.stride, self.meeting * self.lanes)


MatmulSchedule = TileSchedule | ThinSchedule


# ---- which of them suit a device

THIN = 16  # rows or columns of a result up to which it is a thin one
PLENTY = 512  # steps of k below which a product is expected to be one of many, or to be over at once
_PROCESSORS = 128  # of a large graphics card
_WARPS = 8  # of 32 invocations, that keep one processor busy

# Staged tiles for graphics cards; 10^12 operations a second of each where it keeps all processors busy, as measured on
# an NVIDIA H200. Its driver gives 64 KiB of shared memory to all workgroups of a processor, and loops of more than some
# 2000 instructions are slow to fetch: small stages, unrolled whole, are the best.
_TILES = (
    (TileSchedule(8, 8, (16, 8), 8, 8), 25.8),
    (TileSchedule(4, 8, (8, 16), 8, 8), 25.7),
    (TileSchedule(8, 8, (8, 8), 8, 8), 24.6),
    (TileSchedule(4, 4, (16, 16), 16, 16), 20.6),
    (TileSchedule(4, 8, (8, 16), 8, 8, slices=2, meeting=2), 22.5),
    (TileSchedule(4, 8, (8, 8), 8, 8, slices=4, meeting=4), 21.0),
    (TileSchedule(4, 8, (8, 8), 8, 8, slices=8, meeting=4), 22.5),
    (TileSchedule(4, 8, (8, 4), 8, 8, slices=8, meeting=4), 20.0),
)


def product_schedules(m: int, n: int, k: int, along_k: bool, target: Target) -> tuple[MatmulSchedule, ...]:
    """The legal schedules of a product [m, k] by [k, n] on a device, best first; sizes at their largest. ``along_k``:
    whether the elements of the larger operand that are neighbours in memory lie along k."""
    # Wide vector units pay for loads lane by lane, so they want many products a load; compilers of narrow ones cannot
    # hold so many values.
    direct = TileSchedule(16, 8, (8, 4)) if target.subgroup_size >= 8 else TileSchedule(4, 4, (8, 8))
    narrow, squares = TileSchedule(1, 1, (64, 1)), TileSchedule(4, 4, (16, 16))
    found: tuple[MatmulSchedule, ...]
    if target.software:
        found = (narrow, direct) if min(m, n) < 4 else (direct, narrow, TileSchedule(4, 4, (16, 16), 16))
    elif k < 8:  # little to multiply: writing the result is the work
        found = (squares, TileSchedule(16, 1, (64, 4)), narrow, direct)
    elif min(m, n) <= THIN:
        found = (*_thin(m, n, k, along_k), *_tiles(m, n, k)[:2], narrow)
    else:
        found = (*_tiles(m, n, k)[:5], direct, narrow)
    return tuple(s for s in found if s.invocations <= target.max_invocations and s.shared_bytes <= target.shared_bytes)


def _tiles(m: int, n: int, k: int) -> list[TileSchedule]:
    """Staged tiles, the shortest time first by a model: tiles take turns on the processors, and turns count whole
    unless there are many products of the size."""

    def time(schedule: TileSchedule, rate: float) -> float:
        rows, columns = schedule.tile
        tiles = -(-m // rows) * -(-n // columns)
        if k < PLENTY:
            return tiles * rows * columns / rate
        turns = -(-tiles // _PROCESSORS)
        busy = min(1.0, min(turns, 3) * schedule.invocations / 32 / _WARPS)
        return turns * rows * columns / (rate * busy)

    fitting = [(s, rate) for s, rate in _TILES if (s.slices - 1) * BLOCK_K < k]
    return [s for s, rate in sorted(fitting, key=lambda one: time(*one))]


def _thin(m: int, n: int, k: int, along_k: bool) -> list[ThinSchedule]:
    """Schedules of a thin product, with about as many steps of the thin operand in shared memory as fit half of it."""
    few, mirrored, blocks = min(m, n), n < m, -(-k // BLOCK_K)
    slices = min(32, 1 << (blocks - 1).bit_length())
    steps = min(max(8, 256 >> (few - 1).bit_length()), BLOCK_K, max(8, 1 << (k - 1).bit_length()))
    forms = [(1, 32, 8), (2, 16, 8), (4, 8, 8)]
    if few > 8:  # reading the few from shared memory is the work: the more columns at a time the better
        forms.reverse()
    elif along_k:
        forms = [(1, 16, 16), (4, 8, 8)] if few <= 4 else [(4, 8, 8), (1, 16, 16)]
    return [
        ThinSchedule(few, columns, max(lanes, min(64, 256 // slices)), slices, steps, min(steps, ahead), mirrored)
        for columns, lanes, ahead in forms
    ]
