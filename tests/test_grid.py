"""Hard values x operations x lengths: the device's bits are the reference's. The table is tests/grid.py."""

import os
import subprocess
import sys
from pathlib import Path

import grid
import numpy as np
import pytest

import vkdnn as vk
from vkdnn.errors import ShapeError
from vkdnn.ir.ops import OPS

ICD = os.environ.get("VKDNN_SWIFTSHADER_ICD", "")
ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("family", grid.FAMILIES)
def test_the_device_has_the_bits_of_the_reference(family):
    outcomes = [o for group in grid.FAMILIES[family](grid.CI) for o in grid.compare(group, vk.device())]
    wrong = [o for o in outcomes if o.differing]
    assert not wrong, f"{len(wrong)} of {len(outcomes)} cases differ: {wrong[:3]}"
    assert sum(o.values for o in outcomes) > 500


def test_every_row_of_the_table_is_in_the_grid():
    assert set().union(*map(grid.takes, grid.DTYPES)) == set(OPS)
    assert {n for n in grid.takes("f") if OPS[n].cost <= grid.CI.cost} == set(grid.takes("f"))


def test_a_difference_is_found_and_counted():
    seen = []

    def run(*arrays):
        seen.append(arrays[0])
        return [arrays[0] + float(len(seen))]  # another value on the second device

    (outcome,) = grid.compare(grid.Group("none", 3, ("it",), (np.array([1, 2, np.nan], np.float32),), run), vk.device())
    assert (outcome.values, outcome.differing) == (3, 2) and outcome.first.startswith("result 0 at (0,)")


@pytest.mark.parametrize("name", sorted(set(grid.FOLDS) - set(grid.OF_NONE)))
def test_folds_without_a_value_for_no_elements_say_so(name):
    with pytest.raises(ShapeError, match="no elements"):
        grid.FOLDS[name](vk.zeros((2, 0)))


@pytest.mark.skipif(not Path(ICD).is_file(), reason="VKDNN_SWIFTSHADER_ICD names no driver")
def test_a_small_grid_holds_on_swiftshader():
    environment = os.environ | {"VK_DRIVER_FILES": ICD}
    command = [sys.executable, str(ROOT / "tools" / "grid"), "--small", "--device", "SwiftShader"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "SwiftShader" in done.stdout
