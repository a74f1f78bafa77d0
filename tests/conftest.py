"""Fixtures shared by all tests: a shader store of the session's own, and one function run on two devices.

Nothing here may compare with a tolerance: `both` demands the same bits.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkdnn.check.hard import bits_equal

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew from what is rendered now")


def pytest_configure(config: pytest.Config) -> None:
    # Before any test runs, in the main process and in each worker: the user's own store stays untouched.
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the store of the process that started them
        config.stash[_store] = tempfile.mkdtemp(prefix="vkdnn-test-store-")
        os.environ["VKDNN_CACHE_DIR"] = config.stash[_store]


def pytest_unconfigure(config: pytest.Config) -> None:
    if _store in config.stash:
        shutil.rmtree(config.stash[_store], ignore_errors=True)


_store = pytest.StashKey[str]()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Any:
    """``golden(name, text)`` compares with tests/golden/name; ``--update-golden`` writes it instead."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing: run pytest --update-golden and review the diff"
        assert text == path.read_text(), f"{name} changed: run pytest --update-golden and review the diff"

    return check


def run_both(function: Any, *arrays: Any) -> list[Any]:
    """``function`` of NumPy ``arrays`` on the reference and on the default Vulkan device.

    Asserts that no bit differs (NaN equals NaN); gives the reference's results, flattened, as NumPy arrays.
    """
    import vkdnn as vk
    from vkdnn import tree

    found = []
    for device in (vk.device("cpu"), vk.device()):
        with device:
            results = tree.flatten(function(*(vk.array(a) for a in arrays)))[0]
            vk.realize(results)
            found.append([r.numpy() for r in results])
    for k, (want, got) in enumerate(zip(*found, strict=True)):
        wrong = ~bits_equal(want, got)
        first = tuple(np.argwhere(wrong)[0]) if wrong.any() else ()
        assert not wrong.any(), (
            f"result {k}: {np.count_nonzero(wrong)} of {wrong.size} differ, first at {first}: "
            f"reference {want[first]!r}, device {got[first]!r}"
        )
    return found[0]


@pytest.fixture(scope="session")
def both() -> Any:
    """The function run_both() above."""
    return run_both
