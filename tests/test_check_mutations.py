"""Every planted fault of tests/mutations.py is seen by its tool, which names the right finger; none survives."""

from functools import cache

import pytest
from mutations import MUTATIONS, TOOLS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@cache
def healthy(tool, target):
    """What a tool reports of a target in which nothing is planted."""
    return TOOLS[tool](target)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.tool}-{m.name}")
def test_a_planted_fault_is_seen_and_named(mutation):
    assert healthy(mutation.tool, mutation.target) == ""
    with mutation.plant():
        found = TOOLS[mutation.tool](mutation.target)
    assert found, "it survives"
    missing = [part for part in mutation.says if part not in found]
    assert not missing, f"{missing} in {found}"


@pytest.mark.parametrize("tool", TOOLS)
def test_afterwards_nothing_is_left_of_them(tool):
    targets = dict.fromkeys(m.target for m in MUTATIONS if m.tool == tool)
    assert targets
    assert {t: found for t in targets if (found := TOOLS[tool](t))} == {}


def test_every_tool_has_its_faults():
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS) > 40
    assert {tool: sum(m.tool == tool for m in MUTATIONS) > 9 for tool in TOOLS if tool != "sweep"} == dict.fromkeys(
        ("gradcheck", "parity", "accuracy"), True
    )
    assert all(m.says for m in MUTATIONS)
