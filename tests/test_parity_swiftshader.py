"""A reduced set of the parity tests on SwiftShader: another vendor's compiler, other limits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ICD = os.environ.get("VKDNN_SWIFTSHADER_ICD", "")
FOLDER = Path(__file__).parent
# Its compiler is slow: one small case of each kind. Elementary functions: test_numerics_glsl.py.
CASES = (
    "test_ops_elementwise.py::test_constants_are_no_ground_for_simplification",
    "test_ops_elementwise.py::test_comparisons_and_logic",
    "test_ops_elementwise.py::test_integers_wrap_and_conversions_saturate",
    "test_kernels_expr.py::test_an_expression_over_broadcasts",
    "test_kernels_fold.py::test_folds_of_every_length[invocation-129]",
    "test_kernels_fold.py::test_folds_of_every_length[workgroup-65]",
    "test_kernels_fold.py::test_stated_values",
    "test_kernels_matmul.py::test_a_product_has_the_written_order",
    "test_kernels_matmul.py::test_hard_values",
    "test_kernels_matmul.py::test_shapes_around_tiles_and_blocks[thin]",
    "test_kernels_matmul.py::test_sums_start_from_plus_zero",
    "test_kernels_scatter.py::test_contributions_are_added_in_ascending_order",
    "test_kernels_scatter.py::test_indices_outside_are_clamped_on_the_device",
    "test_kernels_scatter.py::test_both_ways_give_the_written_sums",
    "test_kernels_cumulate.py::test_a_running_sum_has_the_written_order",
    "test_kernels_cumulate.py::test_cumulations_of_every_length[64-129]",
    "test_kernels_sort.py::test_sorting_is_stable",
    "test_kernels_sort.py::test_sorts_of_every_length[64-129]",
    "test_kernels_attention.py::test_every_schedule[packed-single]",
    "test_kernels_attention.py::test_tiles",
    "test_kernels_attention.py::test_all_that_can_be_combined",
    "test_kernels_attention.py::test_attention_spread_over_blocks_has_the_same_bits[long]",
    "test_fusion_patterns.py::test_many_inputs_and_many_outputs[31]",
)


@pytest.mark.skipif(not Path(ICD).is_file(), reason="VKDNN_SWIFTSHADER_ICD names no driver")
def test_core_parity_holds_on_swiftshader():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"VK_DRIVER_FILES": ICD, "VKDNN_DEVICE": "SwiftShader"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(str(FOLDER / case) for case in CASES)],
        cwd=FOLDER.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
