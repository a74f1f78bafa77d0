"""Where failures sit: by axis in words, the first failing elements, and a picture.

It must say only what holds for every failing element, and give the share where a region does not fail as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vkdnn.check.accuracy.subjects import Array
from vkdnn.check.operator import Case
from vkdnn.errors import VkdnnError

FIRST = 10  # failing elements that are listed
LISTED = 4  # indices of an axis that are named one by one


@dataclass(frozen=True)
class Element:
    """A failing element: its index, what came, what was expected, the error."""

    index: tuple[int, ...]
    got: float
    golden: float
    error: float

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        at = ", ".join(map(str, self.index))
        return f"[{at}] got {self.got:.9g}, expected {self.golden:.9g}, error {self.error:.3g}"


def first_elements(wrong: Array, got: Array, golden: Array, error: Array, count: int = FIRST) -> list[Element]:
    """The first failing elements, in the order of their indices."""
    if wrong.shape != got.shape:
        return []
    return [
        Element(tuple(map(int, at)), float(got[tuple(at)]), float(golden[tuple(at)]), float(error[tuple(at)]))
        for at in np.argwhere(wrong)[:count]
    ]


def where(wrong: Array, names: Sequence[str] | None = None) -> str:
    """One sentence on where the true elements of ``wrong`` sit.

    >>> wrong = np.zeros((4, 8), bool)
    >>> wrong[3, 5:] = True
    >>> where(wrong, ["heads", "keys"])
    'all failures in heads = 3, keys >= 5; there everything fails'
    """
    count = int(wrong.sum())
    if not count or not wrong.ndim:
        return "the only element fails" if count else "nothing fails"
    names = list(names) if names is not None else [f"axis {k}" for k in range(wrong.ndim)]
    if count == wrong.size:
        return "every element fails"
    parts, region = [], np.ones(wrong.shape, bool)
    for axis, (name, length) in enumerate(zip(names, wrong.shape, strict=True)):
        others = tuple(a for a in range(wrong.ndim) if a != axis)
        hit = np.asarray(wrong.any(axis=others))
        if hit.all():
            continue
        text, inside = _indices(name, np.flatnonzero(hit), length)
        parts.append(text)
        region &= inside.reshape([-1 if a == axis else 1 for a in range(wrong.ndim)])
    for first, second in itertools.combinations(range(wrong.ndim), 2):
        found = _diagonal(wrong, region, first, second, names)
        if found is not None:
            parts.append(found[0])
            region &= found[1]
    if not parts:
        return f"failures ({count / wrong.size:.1%} of the elements) lie all over"
    size = int(region.sum())
    share = "everything fails" if count == size else f"{count / size:.1%} of the elements fail"
    return f"all failures in {', '.join(parts)}; there {share}"


def _indices(name: str, at: Array, length: int) -> tuple[str, Array]:
    """Words for some of the indices of an axis, and which these words hold for."""
    inside = np.zeros(length, bool)
    low, high = int(at[0]), int(at[-1])
    if low == high:
        inside[low] = True
        return f"{name} = {low}", inside
    gaps = np.diff(at)
    if len(at) > 2 and (gaps == gaps[0]).all() and gaps[0] > 1 and low < gaps[0] and high + gaps[0] >= length:
        inside[low :: int(gaps[0])] = True
        return f"{name} = {low} modulo {int(gaps[0])}", inside
    if len(at) <= LISTED and (gaps > 1).any():
        inside[at] = True
        return f"{name} in {', '.join(map(str, at))}", inside
    inside[low : high + 1] = True
    if high == length - 1:
        return f"{name} >= {low}", inside
    if low == 0:
        return f"{name} <= {high}", inside
    return f"{low} <= {name} <= {high}", inside


def _diagonal(wrong: Array, region: Array, first: int, second: int, names: Sequence[str]) -> tuple[str, Array] | None:
    """Words for failures on one diagonal of two axes, or on one side of one; None if they do not lie so."""
    m, n = wrong.shape[first], wrong.shape[second]
    if min(m, n) < 3:
        return None
    away = np.arange(n) - np.arange(m)[:, None]
    others = tuple(a for a in range(wrong.ndim) if a not in (first, second))
    hit, possible = np.asarray(wrong.any(axis=others)), np.asarray(region.any(axis=others))
    rows = np.flatnonzero(hit.any(axis=1))
    if len(rows) < 3:
        return None
    low, high = int(away[hit].min()), int(away[hit].max())
    title = f"{names[second]} - {names[first]}"
    choices = [
        (f"{title} = {low}", away == low) if low == high else None,
        (f"{title} >= {low}", away >= low),
        (f"{title} <= {high}", away <= high),
    ]
    for choice in choices:
        if choice is None:
            continue
        text, side = choice
        inside = possible & side
        if inside.sum() < possible.sum() and hit.sum() >= 0.95 * inside.sum():
            shape = [m if a == first else n if a == second else 1 for a in range(wrong.ndim)]
            return text, side.reshape(shape)
    return None


# ---- names of axes


def axis_names(case: Case, results: Sequence[tuple[int, ...]]) -> list[list[str]]:
    """Names for the axes of each result: of the sizes that make the axis longer when they grow.

    Only shapes are asked for, of the case with one size after the other made larger. Where that is no case, an axis has
    the name of the one axis of the inputs of its length; without one, its number.
    """
    found: list[list[list[str]]] = [[[] for _ in shape] for shape in results]
    for size in case.operator.sizes:
        for larger in (case.fields[size] + 1, 2 * case.fields[size]):
            grown = _shapes(case, {size: larger})
            if grown is not None and [len(s) for s in grown] == [len(s) for s in results]:
                for axes, before, after in zip(found, results, grown, strict=True):
                    for axis, (m, n) in enumerate(zip(before, after, strict=True)):
                        if m != n:
                            axes[axis].append(size)
                break
    return [
        [
            "*".join(n) or _by_length(case, length) or f"axis {axis}"
            for axis, (n, length) in enumerate(zip(*of, strict=True))
        ]
        for of in zip(found, results, strict=True)
    ]


def _by_length(case: Case, length: int) -> str:
    """The one length of the inputs' axes that has this value, by its name there; none if several have."""
    dims = {
        name: n
        for given in case.operator.inputs
        for name, n in zip(given.dims.split(), given.shape(case.fields), strict=True)
        if not name.isdigit()
    }
    fitting = [name for name, n in dims.items() if n == length]
    return fitting[0] if len(fitting) == 1 else ""


def _shapes(case: Case, changed: dict[str, int]) -> list[tuple[int, ...]] | None:
    """Shapes of the results of a case with other sizes; None where it is none."""
    import vkdnn as vk
    from vkdnn import tree

    try:
        other = case.operator.case(**(dict(case.fields) | changed))
        with vk.device("cpu"):
            return [tuple(np.shape(x)) if not hasattr(x, "shape") else tuple(x.shape) for x in
                    tree.flatten(other.run(*map(vk.array, other.arrays())))[0]]  # fmt: skip
    except (VkdnnError, KeyError, ValueError, IndexError, TypeError):
        return None


# ---- a picture


def heatmap(path: Path, wrong: Array, error: Array, title: str, names: Sequence[str]) -> Path:
    """Errors and failures over the last two axes as a PNG, other axes folded by their maximum."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = np.where(np.isfinite(error), error, np.nan)
    finite = shown[shown > 0]
    shown = np.where(np.isnan(shown), np.nanmax(shown, initial=0.0) or 1.0, shown)
    flat = shown.reshape(-1, shown.shape[-1]) if shown.ndim == 1 else shown
    marks = wrong.reshape(flat.shape)
    fold = tuple(range(flat.ndim - 2))
    if fold:
        flat, marks = flat.max(axis=fold), np.asarray(marks.any(axis=fold))
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    scale = LogNorm(finite.min(), finite.max()) if finite.size and finite.min() < finite.max() else None
    image = left.imshow(flat, aspect="auto", interpolation="nearest", norm=scale, cmap="viridis")
    figure.colorbar(image, ax=left)
    left.set_title("|got - golden|" + (f", largest over {', '.join(names[:-2])}" if fold else ""))
    right.imshow(marks, aspect="auto", interpolation="nearest", cmap="Reds", vmin=0, vmax=1)
    right.set_title("failing")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(names[-1])
        axes.set_ylabel(names[-2] if len(names) > 1 else "")
        if wrong.ndim == 1:  # one row: it has no index
            axes.set_yticks([])
    figure.suptitle(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path
