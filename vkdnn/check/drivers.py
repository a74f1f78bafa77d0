"""What stands between a program and a Vulkan device: the loader, the manifests of drivers, the drivers' libraries.

It must never load a driver into this process: one that crashes must not take the asker along.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

LOADER = "libvulkan.so.1"
CHOSEN = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""Variables that replace the standard folders; the first that is set counts."""
ADDED = "VK_ADD_DRIVER_FILES"
SECONDS = 11.0  # that a driver may take to answer, or for each of its answers
LONGEST = 5  # times as long, for all its answers
_FOLDER = "vulkan/icd.d"
_CRASHED, _SILENT = "it crashed the process", "no answer"
_PACKAGE = Path(__file__).resolve().parents[2]

# A driver alone: does its library load, and which devices does it offer?
_ONE_DRIVER = """
import ctypes, json, sys
try:
    ctypes.CDLL(sys.argv[1])
except OSError as error:
    sys.exit(str(error))
from vkdnn.runtime.info import list_devices
print(json.dumps([info.name for info in list_devices()]))
"""
# Every device opened and used, each step announced before.
_EVERY_DEVICE = """
from vkdnn.runtime.info import list_devices
from vkdnn.runtime.kompute import KomputeDevice
from vkdnn.runtime.probe import answers
print("listing the devices", flush=True)
for info in list_devices():
    print(f"opening device {info}", flush=True)
    device = KomputeDevice(info)
    print(f"running a shader on device {info}", flush=True)
    answers(device)
"""


@dataclass(frozen=True)
class Loader:
    """The Vulkan loader: its file and version; ``trouble`` says why there is none."""

    path: str | None
    version: str | None
    trouble: str | None = None


@dataclass(frozen=True)
class Driver:
    """A manifest that the loader reads, with what its driver offers when it is alone."""

    manifest: str
    library: str | None = None
    devices: tuple[str, ...] = ()
    trouble: str | None = None


def find_loader() -> Loader:
    """The loader that programs here get."""
    try:
        library = ctypes.CDLL(LOADER)
    except OSError as error:
        return Loader(None, None, str(error))
    number = ctypes.c_uint32(1 << 22)  # 1.0, whose loaders lack the function
    ask = getattr(library, "vkEnumerateInstanceVersion", None)
    if ask is not None:
        ask(ctypes.byref(number))
    return Loader(_mapped(LOADER), f"{number.value >> 22 & 0x7F}.{number.value >> 12 & 0x3FF}.{number.value & 0xFFF}")


def _mapped(name: str) -> str:
    """The file of a library of this process; its name where the system does not tell."""
    try:
        with open("/proc/self/maps") as maps:
            found = [line.split(maxsplit=5)[-1].strip() for line in maps if name.split(".so")[0] in line]
    except OSError:
        found = []
    return found[0] if found else name


def manifests(environment: Mapping[str, str] = os.environ) -> tuple[list[Path], str]:
    """The manifests that the loader reads, in its order, and where it was told to look."""
    for name in CHOSEN:
        if environment.get(name):
            found, source = _listed(environment[name]), name
            break
    else:
        found, source = [path for folder in folders(environment) for path in _inside(folder)], "the standard folders"
        if environment.get(ADDED):
            found, source = _listed(environment[ADDED]) + found, f"{ADDED} and {source}"
    return list(dict.fromkeys(found)), source


def folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The standard folders, in the loader's order."""
    home = environment.get("HOME", "")
    config = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    data = environment.get("XDG_DATA_HOME") or (f"{home}/.local/share" if home else "")
    roots = [
        config, *(environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep), "/usr/local/etc", "/etc",
        data, *(environment.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(os.pathsep),
    ]  # fmt: skip
    return list(dict.fromkeys(Path(root, _FOLDER) for root in roots if root))


def _listed(text: str) -> list[Path]:
    """Files and folders of a variable."""
    paths = [Path(part) for part in text.split(os.pathsep) if part]
    return [path for part in paths for path in (_inside(part) if part.is_dir() else [part])]


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError:
        return []


def look_at(paths: Sequence[Path]) -> list[Driver]:
    """Each driver alone, in a process of its own."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_alone, paths))


def library_of(manifest: Path) -> str:
    """The library that a manifest names, as it is loaded. Raises ValueError that says what is wrong with it."""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise ValueError(f"is no JSON ({error})") from None
    entry = content.get("ICD") if isinstance(content, dict) else None
    library = entry.get("library_path") if isinstance(entry, dict) else None
    if not isinstance(library, str) or not library:
        raise ValueError("names no library (ICD.library_path)")
    # A bare name is looked for as any library; a path may be relative to the manifest.
    return library if os.sep not in library else os.path.normpath(manifest.parent / library)


def _alone(manifest: Path) -> Driver:
    try:
        library = library_of(manifest)
    except ValueError as error:
        return Driver(str(manifest), trouble=str(error))
    said, trouble = ask(_ONE_DRIVER, [library], {CHOSEN[0]: str(manifest)})
    if trouble is not None:
        return Driver(str(manifest), library, trouble=trouble)
    return Driver(str(manifest), library, tuple(json.loads(said)))


def opening_trouble() -> str | None:
    """How a process ends that opens every device and runs a shader there: None unless it crashes or hangs."""
    said, trouble = ask(_EVERY_DEVICE, [])
    if trouble is None or not trouble.startswith((_CRASHED, _SILENT)):
        return None  # whoever opens the devices here hears of the error
    at = said.strip().splitlines()[-1:] or ["starting"]
    return f"{at[0]}: {trouble}"


def ask(script: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """What a Python process says on stdout, and how it failed: None if it did not."""
    whole = dict(os.environ)
    if environment:
        for name in (*CHOSEN, ADDED):
            whole.pop(name, None)
        whole |= environment
    whole["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGE), whole.get("PYTHONPATH"))))
    try:
        said, words, code = bounded([sys.executable, "-c", script, *arguments], SECONDS, whole)
    except OSError as error:
        return "", f"cannot start {sys.executable} ({error})"
    if code is None:
        return said, f"{_SILENT} within {SECONDS:g} s"
    if code < 0:
        return said, f"{_CRASHED} ({signal.Signals(-code).name})"
    if code:
        return said, " ".join((words.strip().splitlines() or ["it failed and said nothing"])[-1].split())
    return said, None


def bounded(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[str, str, int | None]:
    """What a program says on stdout and on stderr, and its exit status.

    The status is None where it says nothing more for ``seconds``, or says something for LONGEST times as long: then it
    was killed, with all that it started, which might hold its output open. Raises OSError where it cannot be started.
    """
    stop, said, code = time.monotonic() + LONGEST * seconds, b"", None
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words, env=environment,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            poll = select.poll()
            poll.register(process.stdout, select.POLLIN)
            while time.monotonic() < stop and poll.poll(1e3 * seconds):
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(seconds)
                    break
                said += data
            code = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it in the kernel
                process.wait(1)
            process.stdout.close()
        words.seek(0)
        return said.decode(errors="replace"), words.read().decode(errors="replace"), code
