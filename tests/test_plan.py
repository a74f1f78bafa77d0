"""Memory plans: no two arrays that are alive at once overlap, whatever the lifetimes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vkdnn as vk
from vkdnn.errors import MemoryLimitError
from vkdnn.fusion.schedule import schedule
from vkdnn.ir.node import leaf
from vkdnn.plan import ALIGNMENT, Lifetime, in_place, lifetimes, plan_arenas


def life(words, first, last):
    return Lifetime(leaf((words,), vk.float32), words, first, last)


def test_an_array_takes_the_place_of_one_that_is_done():
    first, second, third = life(10, 0, 1), life(4, 1, 2), life(10, 2, 3)
    plan = plan_arenas([first, second, third], 1000)
    assert plan.arenas == (14,) == (plan.lower_bound,)
    assert plan.places[first.node] == plan.places[third.node]


lives = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 12), st.integers(0, 5)).map(lambda t: life(t[0], t[1], t[1] + t[2])),
    max_size=25,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lives, st.sampled_from([50, 64, 1000]))
def test_what_is_alive_together_does_not_overlap(lives, limit):
    plan = plan_arenas(lives, limit)
    for k, one in enumerate(lives):
        arena, start = plan.places[one.node]
        assert start >= 0 and start + one.words <= plan.arenas[arena] <= limit
        for other in lives[:k]:
            if other.first <= one.last and one.first <= other.last:
                where, offset = plan.places[other.node]
                assert where != arena or offset + other.words <= start or start + one.words <= offset
    alive = [sum(x.words for x in lives if x.first <= step <= x.last) for step in range(20)]
    assert plan.lower_bound == max(alive) <= sum(plan.arenas)


def test_an_array_larger_than_a_buffer_is_refused():
    with pytest.raises(MemoryLimitError, match=r"takes 404 bytes, but one buffer of this device holds 400"):
        plan_arenas([life(101, 0, 1)], 100)


# ---- in place


def planned(function, *arrays, donated=(0,)):
    """Number of results that take a donated argument's place, by result."""
    arguments = [vk.Array(leaf(shape, vk.float32)) for shape in arrays]
    results = [r.node for r in function(*arguments)]
    steps = schedule(results)
    pairs = in_place(steps, [arguments[i].node for i in donated], results)
    number = {a.node: i for i, a in enumerate(arguments)}
    return {k: number[pairs[r]] for k, r in enumerate(results) if r in pairs}


def test_elementwise_results_take_their_arguments_place():
    assert planned(lambda p, m, g: [p - g, m * 0.9 + g], (4,), (4,), (4,), donated=(0, 1)) == {0: 0, 1: 1}
    assert planned(lambda x: [vk.softmax(x)], (3, 5)) == {0: 0}
    assert planned(lambda x, y, w: [x + y @ w], (3, 3), (3, 3), (3, 3)) == {0: 0}  # an epilogue reads its own element


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x[::-1] + 1],
        lambda x: [vk.transpose(x) + x],
        lambda x: [x @ x],
        lambda x: [vk.take(x, vk.arange(3)) + x],
        lambda x: [vk.sum(x, axis=1)],
        lambda x: [(x > 0) * 1],
        lambda x: [vk.pad(x[1:], [(1, 0), (0, 0)]) + x],
    ],
)
def test_what_is_read_otherwise_is_not_overwritten(function):
    assert planned(function, (3, 3)) == {}


def test_lifetimes_end_with_the_last_reader():
    x = vk.Array(leaf((4, 4), vk.float32))
    y = vk.softmax(x) @ x
    z = vk.softmax(y) @ y
    steps = schedule([z.node])
    found = lifetimes(steps, [z.node])
    assert all(a.first < a.last <= len(steps) - 1 for a in found)
    assert all(a.words % ALIGNMENT == 0 for a in found)
    assert not {z.node} & {a.node for a in found} and len(found) == len(steps) - 1
