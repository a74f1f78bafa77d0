"""Barriers between launches: one at each real hazard, none elsewhere."""

from dataclasses import dataclass

import numpy as np

from vkdnn.runtime.hazards import plan_barriers
from vkdnn.runtime.interface import Launch, Region


@dataclass(eq=False)
class FakeBuffer:
    words: int
    host: bool = False


def launch(reads=(), writes=()):
    regions = [Region(*region) for region in (*reads, *writes)]
    buffers = tuple({id(region.buffer): region.buffer for region in regions}.values())
    reads, writes = regions[: len(reads)], regions[len(reads) :]
    return Launch(b"", "test", buffers, (), (1, 1, 1), tuple(reads), tuple(writes))


A, B, C = FakeBuffer(1000), FakeBuffer(1000), FakeBuffer(1000)


def test_a_chain_needs_a_barrier_before_each_link():
    links = ((A, B), (B, C), (C, A))
    chain = [launch([(source, 0, 9)], [(result, 0, 9)]) for source, result in links]
    assert plan_barriers(chain) == [False, True, True]


def test_read_after_read_needs_none():
    launches = [launch([(A, 0, 9)], [(B, 0, 9)]), launch([(A, 0, 9)], [(C, 0, 9)])]
    assert plan_barriers(launches) == [False, False]


def test_write_after_read_and_write_after_write():
    assert plan_barriers([launch([(A, 0, 9)], [(B, 0, 9)]), launch([], [(A, 8, 12)])]) == [False, True]
    assert plan_barriers([launch([], [(A, 0, 9)]), launch([], [(A, 8, 12)])]) == [False, True]


def test_disjoint_regions_of_one_buffer_need_none():
    launches = [launch([(A, 0, 10)], [(A, 10, 20)]), launch([(A, 30, 40)], [(A, 20, 30)])]
    assert plan_barriers(launches) == [False, False]


def test_equal_places_of_different_buffers_need_none():
    assert plan_barriers([launch([], [(A, 0, 9)]), launch([(B, 0, 9)], [(C, 0, 9)])]) == [False, False]


def test_empty_regions_touch_nothing():
    assert plan_barriers([launch([], [(A, 5, 5)]), launch([(A, 0, 9)], [(A, 5, 5)])]) == [False, False]


def test_one_barrier_orders_everything_before_it():
    launches = [
        launch([], [(A, 0, 9)]),
        launch([], [(B, 0, 9)]),
        launch([(A, 0, 9)], [(C, 0, 9)]),
        launch([(B, 0, 9)], [(C, 10, 19)]),
    ]
    assert plan_barriers(launches) == [False, False, True, False]


def test_a_hazard_with_something_older_than_the_last_launch():
    launches = [launch([], [(A, 0, 9)]), launch([], [(B, 0, 9)]), launch([(A, 3, 4)], [(C, 0, 9)])]
    assert plan_barriers(launches) == [False, False, True]


def test_random_plans_leave_no_hazard_and_have_no_idle_barrier():
    rng = np.random.default_rng(1)
    buffers = (A, B, C)
    for _ in range(60):

        def region():
            start = int(rng.integers(0, 40))
            return (buffers[rng.integers(3)], start, start + int(rng.integers(0, 6)))

        launches = [
            launch([region() for _ in range(rng.integers(3))], [region() for _ in range(rng.integers(1, 3))])
            for _ in range(30)
        ]
        since = []
        for current, barrier in zip(launches, plan_barriers(launches), strict=True):
            assert barrier == any(conflict(earlier, current) for earlier in since)
            since = [current] if barrier else [*since, current]


def conflict(first, second):
    """By sets of words, without any of the module's interval arithmetic."""

    def words(regions):
        return {(id(region.buffer), word) for region in regions for word in range(region.start, region.stop)}

    touched = words(second.reads) | words(second.writes)
    return bool(words(first.writes) & touched or words(first.reads) & words(second.writes))
