"""A reproducer: a script and an .npz that run a kernel which differs once more, with vkdnn alone, on any machine.

The script must say everything in plain Python: nothing in it is pickled, and it reads nothing but the .npz beside it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkdnn import dtypes
from vkdnn.check.bisect import Evidence, Finger
from vkdnn.check.bits import difference
from vkdnn.check.steps import taking
from vkdnn.check.work import quiet
from vkdnn.device import Device, Task, VulkanDevice
from vkdnn.device import device as find_device
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.schedules import scheduled
from vkdnn.shader.store import replaced

SCRIPT, DATA = "reproduce.py", "inputs.npz"
_TEMPLATE = '''\
#!/usr/bin/env python3
"""{about}

Runs {what} again on the words in {data}. The exit status is 1 while a bit differs.

usage: python {script} [DEVICE]    DEVICE as in vkdnn: an index, a kind, part of a name; default: the best one
"""

import sys
from pathlib import Path

{imports}

# Handles of places are numbers of buffers; their sizes are in words.
TASKS = (
{tasks}
)
SCHEDULES = ({schedules},)
SIZES = {sizes}
DTYPES = {dtypes}
SHAPES = {shapes}
TIMES = {times}

if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else None
    sys.exit(rerun(TASKS, SCHEDULES, SIZES, DTYPES, SHAPES, Path(__file__).with_name("{data}"), device, TIMES))
'''


def save(folder: str | os.PathLike[str], target: str, finger: Finger, evidence: Evidence, times: int = 1) -> Path:
    """Write the reproducer of a finger into a folder of its own in ``folder``; gives the path of the script.

    Raises ArgumentError where it cannot be written.
    """
    place = Path(folder, re.sub(r"[^\w.-]+", "-", target).strip("-")[:60] or "kernel")
    imports = {("vkdnn.check.reproducer", "rerun")}
    tasks = "\n".join(f"    {source(t, imports)}," for t in evidence.tasks)
    schedules = ", ".join(source(s, imports) for s in evidence.schedules)
    by_module: dict[str, list[str]] = {}
    for module, name in sorted(imports):
        by_module.setdefault(module, []).append(name)
    about = f"{target}: {finger.verdict}\n\n{finger.label}\nschedule {finger.schedule}"
    if finger.place is not None:
        about += f"\nresult {finger.result}: {finger.place}"
    if finger.expression:
        about += f"\n\n{finger.expression}"
    text = _TEMPLATE.format(
        about=about.replace("\\", "/").replace('"""', "'''"),
        what="a kernel" if len(evidence.tasks) == 1 else f"{len(evidence.tasks)} kernels",
        data=DATA,
        script=SCRIPT,
        imports="\n".join(f"from {module} import {', '.join(names)}" for module, names in by_module.items()),
        tasks=tasks,
        schedules=schedules,
        sizes=evidence.sizes,
        dtypes=evidence.dtypes,
        shapes=evidence.shapes,
        times=times,
    )
    arrays = {f"before {k}": w for k, w in evidence.before.items()}
    arrays |= {f"expected {k}": w for k, w in enumerate(evidence.expected)}
    try:
        place.mkdir(parents=True, exist_ok=True)
        with replaced(place / DATA) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        with replaced(place / SCRIPT) as file:
            file.write(text.encode())
    except OSError as error:
        raise ArgumentError(f"save: cannot write to {place} ({error.strerror}); name another folder") from None
    return place / SCRIPT


def source(value: Any, imports: set[tuple[str, str]]) -> str:
    """Python that gives a value back: plain data, dtypes and dataclasses of these. ``imports`` gets what it needs."""
    if isinstance(value, dtypes.DType):
        imports.add(("vkdnn.dtypes", "as_dtype"))
        return f'as_dtype("{value.name}")'
    if isinstance(value, np.generic):
        return source(value.item(), imports)
    if value is None or isinstance(value, (bool, str, bytes)):
        return repr(value)
    if isinstance(value, int):
        return repr(int(value))
    if isinstance(value, float):
        return repr(value) if np.isfinite(value) else f'float("{value}")'
    if isinstance(value, (tuple, list)):
        parts = [source(x, imports) for x in value]
        if hasattr(value, "_fields"):
            imports.add((type(value).__module__, type(value).__qualname__))
            return f"{type(value).__qualname__}({', '.join(parts)})"
        inner = ", ".join(parts) + ("," if len(parts) == 1 and isinstance(value, tuple) else "")
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{source(k, imports)}: {source(v, imports)}" for k, v in value.items()) + "}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        imports.add((type(value).__module__, type(value).__qualname__))
        fields = (f"{f.name}={source(getattr(value, f.name), imports)}" for f in dataclasses.fields(value) if f.init)
        return f"{type(value).__qualname__}({', '.join(fields)})"
    raise ArgumentError(f"reproducer: {type(value).__name__} cannot be written down as Python")


def rerun(
    tasks: Sequence[Task],
    schedules: Sequence[Any],
    sizes: dict[int, int],
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    data: str | os.PathLike[str],
    selector: str | None = None,
    times: int = 1,
) -> int:
    """Run the tasks on a device, print what differs from the outputs expected of the last; 1 if any bit does, else 0.

    An error of vkdnn is printed; the status is then 2.
    """
    try:
        device = find_device(selector)
        with np.load(data, allow_pickle=False) as found:
            arrays = dict(found)
        wrong = [line for _ in range(times) for line in _once(device, tasks, schedules, sizes, names, shapes, arrays)]
    except (VkdnnError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}")
        return 2
    print(f"{tasks[-1].spec.text().splitlines()[0]}\non {device.name}")
    for line in dict.fromkeys(wrong):
        print(line)
    print("different" if wrong else "no bit differs")
    return 1 if wrong else 0


def _once(
    device: Device,
    tasks: Sequence[Task],
    schedules: Sequence[Any],
    sizes: dict[int, int],
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    arrays: dict[str, Any],
) -> list[str]:
    storages = {k: device.storage(words) for k, words in sizes.items()}
    for k, storage in storages.items():
        if (words := arrays.get(f"before {k}")) is not None and words.size:
            device.write(storage.handle(), words)
    handles = {k: storage.handle() for k, storage in storages.items()}
    placed = [
        Task(
            t.spec,
            t.sizes,
            tuple(dataclasses.replace(p, handle=handles[p.handle]) for p in t.inputs),
            tuple(dataclasses.replace(p, handle=handles[p.handle]) for p in t.outputs),
        )
        for t in tasks
    ]
    outputs = placed[-1].outputs
    with quiet():
        run = _prepared(device, placed, schedules, [p.handle for p in outputs])
        run()
    found = []
    for k, (p, name, shape) in enumerate(zip(outputs, names, shapes, strict=True)):
        dtype = dtypes.as_dtype(name)
        got = dtypes.from_words(run.fetch(p.handle)[p.start : p.start + p.words], dtype, shape)
        place = difference(dtypes.from_words(arrays[f"expected {k}"], dtype, shape), got)
        if place is not None:
            found.append(f"result {k}: {place}")
    return found


def _prepared(device: Device, tasks: list[Task], schedules: Sequence[Any], downloads: list[Any]) -> Any:
    downloads = list({id(h): h for h in downloads}.values())
    if not isinstance(device, VulkanDevice) or len(tasks) == 1:
        with taking(schedules[-1]):
            return device.prepare(tasks, [], downloads)
    # Each kernel with the schedule that it had: kernels with equal specs may have had different ones.
    rest = iter(schedules)

    def choice(_: Any, legal: Sequence[Any]) -> Any:
        wanted = next(rest)
        return wanted if wanted in legal else legal[0]

    with scheduled(choice):
        return device.prepare(tasks, [], downloads)
