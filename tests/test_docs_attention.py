"""docs/attention.md: its examples run, and say what comes out."""

import doctest
from pathlib import Path

import vkdnn as vk

PAGE = Path(__file__).parent.parent / "docs" / "attention.md"


def test_examples():
    with vk.device("cpu"):
        found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 20 and not found.failed
