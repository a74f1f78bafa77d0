"""Tests under the Khronos validation layer, with synchronisation validation: `tools/test --validate`.

A test fails on every finding that KNOWN does not explain. The layer sees whole buffers, and barriers between shaders
only where they name a buffer; so here, and here alone, each array has a buffer of its own, and a barrier also copies
the buffers touched since the last to their staging memory, which is the one way in which Kompute names them. The plan
of where barriers go is the one under test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vkdnn import program
from vkdnn.plan import ArenaPlan
from vkdnn.runtime import Launch, Region, kompute, list_devices, recording
from vkdnn.runtime.kompute import KomputeDevice
from vkdnn.shader import ShaderRequest, compile_many

ROOT = Path(__file__).resolve().parents[1]
LAYER = "VkLayer_khronos_validation.json"
FOLDERS = (ROOT / ".devices/validation/usr/share/vulkan/explicit_layer.d", Path("/usr/share/vulkan/explicit_layer.d"))
SETTINGS = """khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = {}
khronos_validation.report_flags = error,warn,perf
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
"""
_NAME = re.compile(r"\[ ([A-Za-z0-9_-]+) \]")

KNOWN: dict[str, tuple[str, str]] = {
    "Kompute puts no barrier between two copies of one tensor to its staging memory; only the last is ever read": (
        "SYNC-HAZARD-WRITE-AFTER-WRITE",
        r"vkCmdCopyBuffer: Hazard WRITE_AFTER_WRITE for dstBuffer .*prior_usage: SYNC_COPY_TRANSFER_WRITE",
    ),
}
"""Why a finding is none of vkdnn's -> its name, and a pattern of its text."""

LEFT_OUT = {
    "test_a_submission_that_does_not_run_is_noticed": "it submits an empty sequence, as a lost device would leave it",
    "test_intermediates_share_memory": "here no two arrays do",
    "test_arrays_beyond_one_buffer_are_refused": "here every array has a buffer of its own",
    "test_every_lever_keeps_the_bits_and_gives_what_it_is_for": "it measures memory that arrays share",
    "test_memory_grows_with_the_root_of_the_depth": "it measures memory that arrays share",
}
"""Tests that do not run here, with the reason."""


def findings(text: str) -> list[str]:
    """The findings of a log, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n(?=\S)", text) if part.strip()]


def unknown(found: list[str]) -> list[str]:
    """Those that KNOWN does not explain."""

    def explained(finding: str) -> bool:
        name = _NAME.search(finding)
        return any(name and name[1] == known and re.search(p, finding) for known, p in KNOWN.values())

    return [finding for finding in found if not explained(finding)]


class Log:
    """What the layer says, through a pipe: every instance of Vulkan would begin a file anew."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vkdnn-validation-"))
        self.pipe, self.file = self.folder / "pipe", self.folder / "findings.log"
        os.mkfifo(self.pipe)
        self.end = os.open(self.pipe, os.O_RDWR)  # the reader never comes to an end while this is open
        # A process of its own, since the layer speaks while this one waits for it.
        with open(self.file, "wb") as file:
            self.reader = subprocess.Popen(["cat", self.pipe], stdout=file)
        self.read_to = self.count = 0
        (self.folder / "vk_layer_settings.txt").write_text(SETTINGS.format(self.pipe))

    def new(self) -> list[str]:
        """Findings since the last time."""
        self.count += 1
        mark = f"\nread to here {self.count}\n".encode()
        os.write(self.end, mark)
        for _ in range(1000):
            data = self.file.read_bytes()
            if data.endswith(mark):
                break
            time.sleep(0.01)
        text, self.read_to = data[self.read_to : -len(mark)].decode(errors="replace"), len(data)
        return findings(text)

    def close(self) -> None:
        os.close(self.end)
        self.reader.terminate()
        self.reader.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_log = pytest.StashKey[Log]()


def find_layer() -> Path | None:
    """The folder of the layer's manifest."""
    return next((folder for folder in FOLDERS if (folder / LAYER).exists()), None)


def pytest_configure(config: pytest.Config) -> None:
    """Before anything asks the Vulkan loader."""
    folder = find_layer()
    if folder is None:
        raise pytest.UsageError("there is no validation layer: run tools/test --validate, which fetches it")
    log = config.stash[_log] = Log()
    os.environ["VK_LAYER_PATH"], os.environ["VK_INSTANCE_LAYERS"] = str(folder), "VK_LAYER_KHRONOS_validation"
    os.environ["VK_LAYER_SETTINGS_PATH"] = str(log.folder / "vk_layer_settings.txt")
    # Before any test module opens a device.
    program.plan_arenas, KomputeDevice.record_sequence, kompute.import_kp = own_buffers, record_named, Staged


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.name.split("[")[0] in LEFT_OUT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_log].close()


TWICE = """#version 450
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer From { uint from[]; };
layout(binding = 1) writeonly buffer To { uint to[]; };
void main() { to[gl_GlobalInvocationID.x] = 2u * from[gl_GlobalInvocationID.x]; }
"""


def doubled_twice() -> np.ndarray:
    """A kernel that reads what another has written, as the runtime records it."""
    device = KomputeDevice(list_devices()[0])
    (spirv,) = compile_many([ShaderRequest.of_glsl(TWICE, TWICE, "validation", "doubled", "test")])
    a, b, c = (device.allocate(64, host=True) for _ in range(3))

    def launch(source, target):
        return Launch(spirv, "doubled", (source, target), (0,), (1, 1, 1),
                      (Region.whole(source),), (Region.whole(target),))  # fmt: skip

    recording = device.record([launch(a, b), launch(b, c)], uploads=[a], downloads=[c])
    recording.stage(a, np.arange(64, dtype=np.uint32))
    recording.run()
    return recording.fetch(c)


# ---- what the layer can see


def own_buffers(lives, max_words):
    """As plan_arenas(), an arena for each array."""
    places = {life.node: (k, 0) for k, life in enumerate(lives)}
    return ArenaPlan(tuple(life.words for life in lives), places, sum(life.words for life in lives))


def record_named(self, launches, plan, uploads, downloads, stamps=0):
    """As KomputeDevice.record_sequence(), with barriers that name the buffers."""
    kp, touched = self._kp, {}
    sequence = self._manager.sequence(0, stamps) if stamps else self._manager.sequence()
    if uploads:
        sequence.record(kp.OpTensorSyncDevice(self._tensors(uploads)))
    for launch, barrier in zip(launches, plan, strict=True):
        if barrier:
            sequence.record(kp.OpTensorSyncLocal([self._fence, *touched.values()]))
            touched = {}
        touched |= {b.serial: b.tensor for b in launch.buffers}
        sequence.record(kp.OpAlgoDispatch(self._algorithm(launch), np.array(launch.push, np.uint32)))
    if downloads:
        sequence.record(kp.OpTensorSyncLocal(self._tensors(downloads)))
    sequence.record(kp.OpTensorSyncLocal([self._ticket]))
    return sequence, list(plan)


class Staged:
    """Kompute, with staging memory for every tensor: the others cannot be copied, so that no barrier names them."""

    import_kp = staticmethod(kompute.import_kp)

    def __init__(self):
        self._module = Staged.import_kp()
        kind = self._module.TensorTypes.device
        self.TensorTypes = SimpleNamespace(host=kind, device=kind, storage=kind)

    def __getattr__(self, name):
        return getattr(self._module, name)


@pytest.fixture(scope="session", autouse=True)
def layer(pytestconfig):
    """The layer is there, and sees what it is to see."""
    log = pytestconfig.stash[_log]
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(recording, "plan_barriers", lambda launches: [False] * len(launches))
        doubled_twice()
    assert any("SYNC-HAZARD-READ-AFTER-WRITE" in f for f in log.new()), (
        "the validation layer is not active: a missing barrier was not reported"
    )
    assert doubled_twice().tolist() == list(range(0, 256, 4))
    assert unknown(log.new()) == []
    return log


@pytest.fixture(autouse=True)
def validated(layer):
    """Fails a test for what the layer finds in it."""
    yield
    found = unknown(layer.new())
    assert not found, "the validation layer found:\n" + "\n".join(dict.fromkeys(found))
