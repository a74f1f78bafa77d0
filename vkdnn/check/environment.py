"""The variables that change what vkdnn does, and what is wrong with those that are set.

A variable that vkdnn reads and that is not listed here fails a test.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping

from vkdnn.check.finding import Finding
from vkdnn.errors import VkdnnError
from vkdnn.runtime.info import forced_strategies
from vkdnn.shader import bundle, store

VARIABLES = {
    "VKDNN_DEVICE": "the default device: an index, a kind, part of a name, or cpu",
    "VKDNN_STRATEGIES": "rules of arithmetic that go to software although the device keeps them",
    "VKDNN_REFERENCE_FLUSH": "software: the reference flushes subnormals by formulas, not by the processor",
    "VKDNN_GLSLANG": "the GLSL compiler",
    "VKDNN_CACHE_DIR": "the folder of the store",
    "VKDNN_CACHE_DISABLE": "1: nothing is stored, every process compiles anew",
    "VKDNN_CACHE_MAX_BYTES": "the size that the store may have",
    "VKDNN_AOT": "bundles whose kernels are taken before anything is compiled",
    "VKDNN_AOT_ONLY": "1: a kernel that would have to be compiled is an error",
    "VKDNN_AUTOTUNE": "1: kernels are tuned when they run first; 0: tuned schedules are left aside",
    "VKDNN_SWIFTSHADER_ICD": "the driver of the second software device, for tests",
    "VKDNN_TRAIN_COMMAND": "how messages of vkdnn train name the program",
    "VKDNN_TOOLS_SOURCED": "set by the scripts of a checkout in what they start",
    "VKDNN_STORM_APART": "of tools/storm",
}
LOADER_VARIABLES = {
    "VK_DRIVER_FILES": "the drivers that the loader reads, instead of those in the standard folders",
    "VK_ICD_FILENAMES": "the older name of VK_DRIVER_FILES",
    "VK_ADD_DRIVER_FILES": "drivers beside those in the standard folders",
    "VK_INSTANCE_LAYERS": "layers between programs and drivers: validation slows everything down",
    "VK_LOADER_DRIVERS_DISABLE": "drivers that the loader leaves out",
}


def variable_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """A finding for each variable that is set, then for those whose value is wrong."""
    known = VARIABLES | LOADER_VARIABLES
    for name in sorted(environment):
        if name in known:
            value = environment[name]
            if value:
                details = {"name": name, "value": value}
                yield Finding("variables", "note", f"{name}={value}: {known[name]}", details=details)
        elif name.startswith("VKDNN_"):
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {near[0]}? Rename or unset it" if near else "unset it"
            yield Finding("variables", "warning", f"{name} is set, but vkdnn reads no such variable", hint)
    for name, examine in (
        ("VKDNN_STRATEGIES", forced_strategies),
        ("VKDNN_CACHE_MAX_BYTES", store.max_bytes),
        ("VKDNN_AOT", lambda: bundle.find("")),
    ):
        try:
            examine()
        except (VkdnnError, OSError, ValueError) as error:
            text = str(error).removesuffix("; correct it or unset it")
            yield Finding("variables", "failure", text, f"correct {name} or unset it", {"name": name})
