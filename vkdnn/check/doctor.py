"""What this machine can do for vkdnn, examined from Python up to a kernel's bits; each problem with its remedy.

It must never raise, whatever is broken, and change nothing: only its kernels may stay in the store.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from vkdnn.check import drivers
from vkdnn.check.device_health import device_findings
from vkdnn.check.environment import variable_findings
from vkdnn.check.finding import Finding, Report, State
from vkdnn.errors import CompileError, DeviceError, VkdnnError
from vkdnn.numerics.flush import HARDWARE_FLUSH
from vkdnn.runtime import info as infos
from vkdnn.runtime import kompute
from vkdnn.shader import compiler as compilers
from vkdnn.shader import store as stores
from vkdnn.shader import upkeep
from vkdnn.shader.verify import spirv_trouble

Progress = Callable[[str], None]
PACKAGES = ("numpy", "scipy", "vulkan", "kp", "jinja2", "ml-dtypes", "safetensors", "rich", "typer", "filelock")
LITTLE_DISK, NO_DISK = 1 << 30, 64 << 20
TOOL_SECONDS = 3.0  # for its version
LOOK_SECONDS = 1.0  # for entries of the store
ANY_DRIVER = (
    "install the driver of the graphics card, or for a software device the Debian or Ubuntu package "
    "mesa-vulkan-drivers; VKDNN_DEVICE=cpu chooses the NumPy reference, which needs none"
)
TINY = """#version 450
layout(local_size_x = 1) in;
layout(binding = 0) buffer Data { float data[]; };
void main() { data[0] = data[1] * data[2] + data[3]; }
"""


def examine(progress: Progress | None = None) -> Report:
    """Looks at everything. ``progress`` hears what comes next.

    >>> from vkdnn.check.doctor import examine
    >>> examine().of("ok")[0].topic
    'python'
    """
    # Who has chosen the reference needs none of what only Vulkan does.
    cpu = os.environ.get("VKDNN_DEVICE", "").lower() in ("cpu", "reference")
    bad: State = "warning" if cpu else "failure"
    findings: list[Finding] = []

    def cause(*topics: str) -> str:
        """The first of these topics that has failed: what comes of it is no failure of its own."""
        return next((f.topic for f in findings if f.topic in topics and f.state == bad), "")

    parts: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("variables", variable_findings),
        ("loader", lambda: _loader(bad)),
        ("drivers", lambda: _drivers(bad, cause("loader"))),
        ("kompute", lambda: _kompute(bad)),
        ("compiler", lambda: _compiler(bad)),
        ("tools", _tools),
        ("store", _store),
        ("disk", _disk),
        ("devices", lambda: _devices(bad, cause("loader", "drivers"), cause("kompute", "compiler"))),
    ]
    # What is wrong with the environment is said once; all else is examined without it.
    aside: dict[str, str | None] = {}
    closed: dict[str, str | None] = {"VKDNN_CACHE_DISABLE": "1"} if _store_trouble() else {}
    for topic, look in parts:
        if progress is not None:
            progress(topic)
        try:
            with _environment(aside if topic in ("variables", "store", "disk") else aside | closed):
                findings.extend(look())
            if topic == "variables":
                aside = {f.details["name"]: None for f in findings if f.topic == topic and f.state == "failure"}
        except Exception as error:  # a doctor that falls ill helps nobody
            text = f"unexpected {type(error).__name__}: {error}"
            findings.append(Finding(topic, "failure", text, "please report it with the output of `vkdnn doctor`"))
    return Report(tuple(findings))


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Variables changed, or with None unset, and put back."""
    before = {name: os.environ.get(name) for name in changes}

    def put(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(changes)
    try:
        yield
    finally:
        put(before)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Iterator[Finding]:
    found = {package: _version(package) for package in PACKAGES}
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, vkdnn {_version('vkdnn')}"
    yield Finding("python", "ok", text, details=found)
    yield Finding("python", "ok", ", ".join(f"{name} {version}" for name, version in found.items() if version))
    if missing := [name for name, version in found.items() if version is None and name not in ("kp", "vulkan")]:
        yield Finding("python", "failure", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    if HARDWARE_FLUSH:
        yield Finding("python", "ok", "the reference flushes subnormals by the processor")
    else:
        yield Finding("python", "note", "the reference flushes subnormals by formulas: same bits, about half the speed")


def _loader(bad: State) -> Iterator[Finding]:
    loader = drivers.find_loader()
    if loader.trouble is None:
        yield Finding("loader", "ok", f"{loader.path}, Vulkan {loader.version}", details=asdict(loader))
    else:
        yield Finding("loader", bad, f"no Vulkan loader ({loader.trouble})",
                      "install the Debian or Ubuntu package libvulkan1", asdict(loader))  # fmt: skip
    version = _version("vulkan")
    if version is None:
        yield Finding("loader", bad, "the PyPI package vulkan, which asks the loader, is missing", "pip install vulkan")


def _drivers(bad: State, cause: str = "") -> Iterator[Finding]:
    if cause:
        yield Finding("drivers", "note", f"not looked at: mend what the part about {cause} says first")
        return
    paths, source = drivers.manifests()
    if not paths:
        where = ", ".join(map(str, drivers.folders())) if source == "the standard folders" else "what it names"
        yield Finding("drivers", bad, f"no manifest of a driver in {source} ({where})", ANY_DRIVER)
        return
    found = drivers.look_at(paths)
    offered, standard = any(driver.devices for driver in found), source == "the standard folders"
    for driver in found:
        details = asdict(driver)
        if driver.trouble is None:
            # A driver whose hardware is not there is the ordinary state of a distribution's package.
            text = f"{driver.manifest}: {', '.join(driver.devices) or 'its library loads and finds no device'}"
            yield Finding("drivers", "ok" if driver.devices else "note", text, details=details)
            continue
        remedy = "install its package again, or remove the manifest"
        if not standard:
            remedy = f"correct or unset {source.split()[0]}, which names it"
        text = f"{driver.manifest}: {driver.trouble}"
        yield Finding("drivers", "warning" if offered or standard else bad, text, remedy, details)
    if not offered and (standard or all(driver.trouble is None for driver in found)):
        yield Finding("drivers", bad, f"none of the drivers in {source} offers a device", ANY_DRIVER)


def _kompute(bad: State) -> Iterator[Finding]:
    try:
        module = kompute.import_kp()
    except DeviceError as error:
        yield Finding("kompute", bad, str(error), "run tools/setup of a checkout, which builds kp")
        return
    version = _version("kp") or "of unknown version"
    yield Finding("kompute", "ok", f"kp {version}, {getattr(module, '__file__', None)}")
    if version != "0.9.0":
        yield Finding("kompute", "warning", f"kp is {version}, vkdnn is written for 0.9.0", "install kp==0.9.0")


def _compiler(bad: State) -> Iterator[Finding]:
    if os.environ.get("VKDNN_AOT_ONLY") == "1":
        bad = "warning"
    remedy = compilers.REMEDY
    if os.environ.get("VKDNN_GLSLANG"):
        remedy = f"correct or unset VKDNN_GLSLANG; without it, {remedy.split(', or set VKDNN_GLSLANG')[0]}"
    try:
        compiler = compilers.Compiler.find()
        yield Finding("compiler", "ok", f"{compiler.path}, {compiler.version}", details=asdict(compiler))
        begun = time.perf_counter()
        trouble = spirv_trouble(compiler.compile_glsl(TINY, "doctor's shader"))
    except CompileError as error:
        yield Finding("compiler", bad, str(error).removesuffix(f"; {compilers.REMEDY}"), remedy)
        return
    if trouble is not None:
        yield Finding("compiler", bad, f"what it compiles is wrong: {trouble}", remedy)
    else:
        milliseconds = 1e3 * (time.perf_counter() - begun)
        yield Finding("compiler", "ok", f"a shader compiled in {milliseconds:.0f} ms, NoContraction on its operations")


def _tools() -> Iterator[Finding]:
    with ThreadPoolExecutor() as pool:
        yield from pool.map(_tool, ("spirv-val", "spirv-dis"))


def _tool(program: str) -> Finding:
    path = shutil.which(program)
    if path is None:
        return Finding("tools", "note", f"{program} is not installed (optional, in the package spirv-tools)")
    try:
        said, words, code = drivers.bounded([path, "--version"], TOOL_SECONDS)
    except OSError as error:
        trouble = f"cannot be started ({error.strerror})"
    else:
        if code == 0:
            return Finding("tools", "ok", f"{path}, {' '.join((said + words).split()[:3])}")
        trouble = f"--version exits with {code}"
        if code is None:
            trouble = f"--version does not end within {TOOL_SECONDS:g} s"
    remedy = "install the package spirv-tools again, or take the program out of PATH: it is optional"
    return Finding("tools", "warning", f"{path} {trouble}", remedy)


def _store() -> Iterator[Finding]:
    remedy = "set VKDNN_CACHE_DIR to a folder that can be written, or VKDNN_CACHE_DISABLE=1"
    try:
        folder = stores.cache_folder()
        limit = stores.max_bytes()
    except VkdnnError as error:
        yield Finding("store", "failure", str(error), remedy)
        return
    if folder is None:
        yield Finding("store", "note", "switched off: every process compiles its kernels anew")
        return
    found = [item for kind in upkeep.KINDS for item in upkeep.items(stores.Store(folder, kind))]
    size = sum(item.bytes for item in found)
    details = {"folder": str(folder), "entries": len(found), "bytes": size, "max_bytes": limit}
    text = f"{folder}: {len(found):,} entries, {stores.bytes_text(size)} of {stores.bytes_text(limit)}"
    yield Finding("store", "ok", text, details=details)
    trouble = _write_trouble(folder)
    if trouble is not None:
        yield Finding("store", "warning", f"cannot be written ({trouble}): every process compiles anew", remedy)
    aside = len(upkeep.quarantined(folder))
    if aside:
        yield Finding("store", "warning", f"{aside} damaged entries were set aside",
                      "`vkdnn cache prune` removes them; if more come, check the disk")  # fmt: skip
    looked, damaged = _damaged(folder)
    if damaged:
        yield Finding("store", "warning", f"{damaged} of {looked} entries looked at are damaged",
                      "`vkdnn cache repair` sets them aside; they are made again")  # fmt: skip
    elif looked:
        yield Finding("store", "ok", f"{looked:,} entries looked at, none damaged")


def _store_trouble() -> bool:
    """Whether the store cannot be used: the part about it says why."""
    try:
        folder = stores.cache_folder()
    except VkdnnError:
        return True
    return folder is not None and _write_trouble(folder) is not None


def _write_trouble(folder: Path) -> str | None:
    """Why a file of a kernel's size cannot be written there; None if it can. Makes no folder that is not there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=stores.NEW) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _damaged(folder: Path) -> tuple[int, int]:
    """How many entries a second is enough to look at, and how many of them are damaged."""
    looked = damaged = 0
    stop = time.monotonic() + LOOK_SECONDS
    for kind in upkeep.KINDS:
        store = stores.Store(folder, kind)
        for item in upkeep.items(store):
            if time.monotonic() > stop:
                return looked, damaged
            try:
                damaged += upkeep.entry_trouble(store, item) is not None
            except FileNotFoundError:
                continue  # removed since
            looked += 1
    return looked, damaged


def _disk() -> Iterator[Finding]:
    places = {"temporary files": tempfile.gettempdir()}
    try:
        folder = stores.cache_folder()
    except VkdnnError:
        folder = None  # said already
    if folder is not None:
        trouble = _write_trouble(folder)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if trouble is None or os.strerror(errno.ENOSPC) in trouble:  # of any other, room is not the cause
            places["the store"] = str(folder)
    for purpose, place in places.items():
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            yield Finding("disk", "warning", f"{place} ({purpose}) cannot be asked for its size: {error}")
            continue
        state: State = "failure" if free < NO_DISK else "warning" if free < LITTLE_DISK else "ok"
        name = "TMPDIR" if purpose == "temporary files" else "VKDNN_CACHE_DIR"
        yield Finding("disk", state, f"{stores.bytes_text(free)} free for {purpose} in {place}",
                      "" if state == "ok" else f"make room, or set {name} to another folder")  # fmt: skip


def _devices(bad: State, cause: str = "", untested: str = "") -> Iterator[Finding]:
    """``cause`` is the topic that explains why there is no device, ``untested`` why none can be tested."""
    yield Finding("devices", "ok", "cpu: the NumPy reference, which is always there")
    trouble = drivers.opening_trouble()
    if trouble is not None:
        yield Finding("devices", bad, f"a driver fails, so that no device was looked at closer: {trouble}",
                      "choose a driver that works with VK_DRIVER_FILES, a manifest of those above")  # fmt: skip
        return
    try:
        found = infos.list_devices()
    except VkdnnError as error:
        if cause:
            yield Finding("devices", "note", f"none was looked at: mend what the part about {cause} says first")
        else:
            yield Finding("devices", bad, str(error), ANY_DRIVER)
        return
    if not found and cause:
        yield Finding("devices", "note", f"no Vulkan device, as the part about {cause} says")
        return
    default: int | None = None
    if bad == "failure":
        try:
            default = infos.choose(devices=found).index
            yield Finding("devices", "ok", f"the default is device {default}", details={"default": default})
        except VkdnnError as error:
            remedy = "set VKDNN_DEVICE to one of those, or unset it" if found else ANY_DRIVER
            yield Finding("devices", bad, str(error), remedy)
    for info in found:
        yield from device_findings(info, bad if info.index == default else "warning", untested)
