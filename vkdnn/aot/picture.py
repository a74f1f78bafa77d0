"""The memory plan of a bundle as a picture: buffers over time.

It must never need a display or touch matplotlib's global state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vkdnn.aot.inspect import Arena, Held, Inspection, Memory, groups
from vkdnn.errors import ArgumentError

SUFFIXES = (".png", ".svg")
_WIDTH, _STRIP, _ROW, _DPI = 12.0, 1.0, 0.26, 130  # inches: of the picture, of the strip above, of a row; dots an inch
_LOWEST, _HIGHEST, _VALUE = 1.8, 7.0, 0.05  # inches: of an arena's panel, and what each value adds to it
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_KINDS = {"input": "#5f83ad", "constant": "#8a8a8a", "output": "#b9803a"}
# Of the families that write values; what no dispatch writes is grey.
_FAMILIES = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#b59a1f", "#9d755d", "#ff9da6")
_UNWRITTEN = "#bab0ac"
_CHARACTER = 0.6  # width of a character of a label, in its size


def plot_memory(path: str | os.PathLike[str], inspection: Inspection) -> None:
    """Draws the memory plan to a .png or .svg, with dispatches to the right. At the top, the bytes alive in the arenas;
    a panel for each arena with a rectangle for each value, from its offset up and from its first to its last dispatch;
    at the bottom, a row for each kind of buffer that is there throughout.

    Raises ArgumentError for another suffix, and for a bundle that is a set of kernels and has no plan.
    """
    place = check_plot(path)
    memory = inspection.memory
    if memory is None or not inspection.dispatches:
        raise ArgumentError(f"plot: bundle {inspection.path} runs no kernels, so there is no plan of memory to draw")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its first start reports on its fonts
    from matplotlib.figure import Figure

    arenas = [a for a in memory.arenas if a.values]
    rows = [(kind, where) for kind in _KINDS for where in ("device", "host") if memory.of(kind, where)]
    heights = [min(_HIGHEST, _LOWEST + _VALUE * len(a.values)) for a in arenas]
    sizes = [*([_STRIP] if arenas else []), *heights, *([_ROW * len(rows) + 0.2] if rows else [])]
    figure = Figure(figsize=(_WIDTH, sum(sizes) + 0.35 * len(sizes) + 1.0), dpi=_DPI, layout="constrained")
    panels: Any = figure.subplots(len(sizes), 1, sharex=True, squeeze=False, height_ratios=sizes)[:, 0]
    colours = _family_colours(inspection, arenas)
    if arenas:
        _draw_alive(panels[0], memory)
    for axes, arena, height in zip(panels[1:], arenas, heights, strict=False):
        _draw_arena(axes, arena, inspection, colours, height)
    if rows:
        _draw_throughout(panels[-1], inspection, memory, rows)
    for axes in panels[: len(panels) - bool(rows)]:
        _draw_submissions(axes, inspection)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_xlim(-0.5, inspection.dispatches - 0.5)
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    panels[-1].set_xlabel("dispatch")
    figure.suptitle(_title(inspection, memory), fontsize=11)
    _legend(figure, colours)
    figure.savefig(place, metadata={"Software": None} if place.suffix == ".png" else {"Date": None})


def check_plot(path: str | os.PathLike[str]) -> Path:
    """The path of a picture. Raises ArgumentError for a suffix other than .png and .svg."""
    place = Path(path)
    if place.suffix not in SUFFIXES:
        raise ArgumentError(f"plot: got {str(path)!r}, expected a name that ends in {' or '.join(SUFFIXES)}")
    return place


def sized(count: int) -> str:
    """Bytes as people read them.

    >>> sized(1536), sized(12), sized(3 << 20)
    ('1.50 KiB', '12 bytes', '3.00 MiB')
    """
    unit, name = _unit(count)
    return f"{count} {name}" if unit == 1 else f"{count / unit:.2f} {name}"


def _unit(count: int) -> tuple[int, str]:
    return next((u, n) for u, n in _UNITS if count >= u or u == 1)


def _title(inspection: Inspection, memory: Memory) -> str:
    parts = [f"{inspection.manifest.name}: {inspection.dispatches:,} dispatches"]
    parts += [f"{inspection.submissions} submissions (dotted)"] if inspection.submissions > 1 else []
    parts += [f"{name} {value}" for name, value in inspection.symbols.items()]
    parts.append(f"{sized(memory.total)} in all, arenas {sized(memory.of('arena'))}")
    return "; ".join(parts)


def _family_colours(inspection: Inspection, arenas: Sequence[Arena]) -> dict[str, str]:
    """Family of kernels -> colour, the families that write most bytes first."""
    written: dict[str, int] = {}
    for arena in arenas:
        for v in arena.values:
            name = _family(inspection, v)
            written[name] = written.get(name, 0) + v.bytes
    order = sorted(filter(None, written), key=lambda name: -written[name])
    colours = {name: _FAMILIES[i % len(_FAMILIES)] for i, name in enumerate(order)}
    return colours | ({"": _UNWRITTEN} if "" in written else {})


def _family(inspection: Inspection, value: Held) -> str:
    return "" if value.writer is None else inspection.kernels[value.writer].family


def _draw_alive(axes: Any, memory: Memory) -> None:
    unit, name = _unit(memory.of("arena"))
    base, said = [0.0] * len(memory.arenas[0].alive), []
    for where, colour in (("device", "0.55"), ("host", "0.8")):
        alive = memory.alive(where)
        if not any(alive):
            continue
        top = [b + a / unit for a, b in zip(alive, base, strict=True)]
        axes.stairs(top, [i - 0.5 for i in range(len(top) + 1)], baseline=base, fill=True, color=colour)
        fullest = alive.index(max(alive))
        said.append(f"{where} {sized(alive[fullest])} at dispatch {fullest}, of {sized(memory.of('arena', where))}")
        base = top
    axes.set_ylim(0, max(base) * 1.05)
    axes.set_ylabel(name)
    axes.set_title("alive in the arenas, at most: " + "; ".join(said), fontsize=9, loc="left")


def _draw_arena(axes: Any, arena: Arena, inspection: Inspection, colours: dict[str, str], height: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    unit, name = _unit(arena.bytes)
    boxes = [
        Rectangle((v.first - 0.5, v.offset / unit), v.last - v.first + 1, v.bytes / unit) for v in arena.values
    ]  # fmt: skip
    faces = [colours[_family(inspection, v)] for v in arena.values]
    # Edges of many small rectangles would hide what they surround.
    width = 0.6 if len(boxes) < 400 else 0.25
    axes.add_collection(PatchCollection(boxes, facecolors=faces, edgecolors="white", linewidths=width))
    axes.set_ylim(0, arena.bytes / unit)
    axes.set_ylabel(f"offset ({name})")
    said = f"arena: buffer {arena.buffer} in {arena.memory} memory, {sized(arena.bytes)}, {len(arena.values)} values"
    axes.set_title(said, fontsize=9, loc="left")
    for v in arena.values:
        _label(axes, v, unit, (_WIDTH - 1) / len(arena.alive), height / arena.bytes)


def _label(axes: Any, value: Held, unit: int, dispatch_width: float, byte_height: float) -> None:
    """The shape of a value, if its rectangle has room for it; sizes are in inches."""
    wide, high = 72 * dispatch_width * (value.last - value.first + 1), 72 * byte_height * value.bytes  # points
    shape = "x".join(map(str, value.shape)) or "scalar"
    text = shape if value.dtype == "float32" else f"{shape} {value.dtype}"
    for size in (8, 7, 6, 5):
        along, across = len(text) * size * _CHARACTER + 3, size * 1.3
        turned = not (along <= wide and across <= high)
        if not turned or (along <= high and across <= wide):
            middle = (value.first + value.last) / 2, (value.offset + value.bytes / 2) / unit
            axes.text(*middle, text, fontsize=size, ha="center", va="center", color="white", rotation=90 * turned)
            return


def _draw_throughout(
    axes: Any, inspection: Inspection, memory: Memory, rows: Sequence[tuple[str, str]]
) -> None:  # fmt: skip
    arrays = {"input": inspection.inputs, "constant": inspection.constants, "output": inspection.outputs}
    for i, (kind, where) in enumerate(rows):
        count = sum((b.kind, b.memory) == (kind, where) for b in memory.throughout)
        text = f"{kind}s, {sized(memory.of(kind, where))} in {count} buffer" + ("s" if count > 1 else "")
        text += " in host memory" if where == "host" else ""
        parts = groups([a for a in arrays[kind] if not a.replaces])
        if 1 < len(parts) <= 6:
            text += ": " + ", ".join(f"{g.name} {sized(g.bytes)}" for g in parts)
        axes.barh(-i, inspection.dispatches, left=-0.5, height=0.85, color=_KINDS[kind])
        axes.text((inspection.dispatches - 1) / 2, -i, text, ha="center", va="center", fontsize=8, color="white")
    axes.set_yticks([])
    axes.set_ylim(-len(rows) + 0.5, 0.5)
    axes.set_title("throughout the run", fontsize=9, loc="left")


def _draw_submissions(axes: Any, inspection: Inspection) -> None:
    assert inspection.manifest.program is not None
    for first, _ in inspection.manifest.program.submissions[1:]:
        axes.axvline(first - 0.5, color="black", linestyle=":", linewidth=0.8)


def _legend(figure: Any, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    if colours:
        handles = [Patch(color=c, label=f or "not written") for f, c in colours.items()]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(8, len(handles)), frameon=False, fontsize=8,
            title="written by a kernel of", title_fontsize=8,
        )  # fmt: skip
