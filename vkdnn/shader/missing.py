"""What VKDNN_AOT_ONLY=1 says of shaders that are nowhere: which, how the nearest differs, and what to do.

It must never fail itself, nor name a difference that is not there.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from vkdnn.errors import CompileError
from vkdnn.shader import bundle
from vkdnn.shader.entry import DamagedEntryError, Entry, decode, short
from vkdnn.shader.explain import Index, changes, spec_differences
from vkdnn.shader.request import ShaderRequest
from vkdnn.shader.store import Store
from vkdnn.shader.upkeep import items

_NAMED = 3  # shaders that a message names
_COMPARED = 16  # shaders whose nearest is looked for
_READ = 500  # entries of the store that are looked at, those used last
_REASONS = 2  # differences that a message names
_LONGEST = 160  # characters of one
_NUMBER = re.compile(r"spec: -?(\d\S*|inf|nan) → -?(\d\S*|inf|nan)")
_BUNDLE = "`vkdnn aot build --device`"


def forbidden(
    missing: Sequence[ShaderRequest], store: Store | None, components: Sequence[Mapping[str, str]] | None
) -> CompileError:
    """The error for shaders that would have to be compiled.

    ``components`` are theirs, in their order; None where there is no compiler, without which nothing is in the store.
    """
    named = [f"{request.label} ({request.identity[:12]})" for request in missing[:_NAMED]]
    count = "1 shader is" if len(missing) == 1 else f"{len(missing)} shaders are"
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    lines = [
        f"{count} neither in VKDNN_AOT's bundles nor stored, and VKDNN_AOT_ONLY=1 forbids compiling: "
        f"{', '.join(named)}{more}"
    ]
    lines += _near_in_bundles(missing)
    if len(lines) == 1 and store is not None and components is not None:
        lines += _near_in_store(store, missing, components)
    if components is None:
        lines.append(
            "there is no GLSL compiler here, whose version is part of the store's keys: without one, use a bundle of "
            f"{_BUNDLE}, or unset VKDNN_AOT_ONLY and install one"
        )
    else:
        lines.append(f"build the bundle again with {_BUNDLE}, fill the store with `vkdnn cache warm`, or unset it")
    return CompileError(";\n  ".join(lines))


# ---- bundles


def _near_in_bundles(missing: Sequence[ShaderRequest]) -> list[str]:
    """How shaders differ from the nearest in VKDNN_AOT's bundles; a portable one is the reason by itself."""
    kernels = {entry.key: entry for table in bundle.tables() for entry in _entries(table)}
    index = Index(kernels.values())
    found: Counter[str] = Counter()
    portable: dict[str, None] = {}
    for request in missing[:_COMPARED]:
        wanted = _entry(request, {"spec": request.spec, "strategies": request.strategies})
        near = index.nearest(wanted, lambda header: header)
        if near is None:
            continue
        texts = [] if near.text("spec") == request.spec else spec_differences(near.text("spec"), request.spec)
        other_form = near.components["strategies"] != request.strategies or any(map(_of_schedule, texts))
        if near.record["portable"] and other_form:
            portable[near.record["bundle"]] = None
            texts = [text for text in texts if not _of_schedule(text)]
        elif near.components["strategies"] != request.strategies:
            texts += [c.text for c in changes(near, wanted) if c.component == "strategies"]
        if texts:
            found["; ".join(texts)] += 1
    lines = [f"{path} is portable, with other arithmetic or schedules: build it with --device" for path in portable]
    return _told(found, "in the bundle") + lines


def _of_schedule(text: str) -> bool:
    return text.startswith("schedule")


def _entries(table: bundle.KernelTable) -> list[Entry]:
    found = []
    for kernel in table.kernels:
        path = str(table.archive.path)
        record = {"label": kernel.label, "family": kernel.family, "portable": table.portable, "bundle": path}
        parts = {"spec": kernel.spec, "strategies": table.strategies, "bundle": path}
        found.append(Entry("kernels", short(parts), record, {"spec": kernel.spec.encode()}))
    return found


# ---- the store


def _near_in_store(
    store: Store, missing: Sequence[ShaderRequest], components: Sequence[Mapping[str, str]]
) -> list[str]:
    """How shaders differ from the nearest of those in the store that were used last."""
    entries: dict[str, Entry] = {}
    for item in heapq.nlargest(_READ, items(store), key=lambda i: i.used):
        with contextlib.suppress(OSError, DamagedEntryError):
            entry = decode(item.path.read_bytes())
            entries[entry.key] = entry
    index = Index(entries.values())
    found: Counter[str] = Counter()
    for request, parts in zip(missing[:_COMPARED], components, strict=False):
        wanted = _entry(request, parts)
        near = index.nearest(wanted, lambda header: header)
        if near is not None:
            found["; ".join(c.text for c in changes(near, wanted))] += 1
    return _told(found, "in the store")


def _entry(request: ShaderRequest, components: Mapping[str, str]) -> Entry:
    """A shader as the newest entry of a store."""
    record = {"label": request.label, "family": request.family, "compiled": time.time(), "process": f"{os.getpid()}"}
    return Entry("shaders", short(components), record, {"spec": request.spec.encode()})


def _told(found: Counter[str], where: str) -> list[str]:
    """The commonest differences, and the hint that belongs to numbers."""
    lines = []
    common = found.most_common(_REASONS)
    if common:
        texts = [text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…" for text, _ in common]
        more = f"; and {len(found) - _REASONS} other differences" if len(found) > _REASONS else ""
        lines.append(f"the nearest {where} differs by: {' | '.join(texts)}{more}")
    if any(_NUMBER.search(text) for text in found):
        lines.append("numbers such as --steps and --learning-rate are part of kernels: give those of the run")
    return lines
