"""What is known of tuned kernels: lists, explanations, where defaults lose.

Nothing here may open a device or time anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from vkdnn.cli.cache_common import DIGITS, ago, plain, print_table, root, table
from vkdnn.cli.console import counted, print_json
from vkdnn.errors import ArgumentError
from vkdnn.schedules.winners import KIND, Candidate, Kernel, Tuned, kernels
from vkdnn.shader.explain import parameters
from vkdnn.shader.store import Store
from vkdnn.shader.upkeep import items, remove

_WIDTH = 240  # of explanations that no terminal shows: schedules are long
LOSES = 1.1  # times the winner: a default that is to be looked at


def record(label: str, family: str, tuned: Tuned) -> dict[str, Any]:
    """A kernel at some sizes as JSON."""
    default = tuned.candidates[0].seconds or 0.0
    return {
        "label": label,
        "family": family,
        "sizes": tuned.sizes,
        "default_ms": 1e3 * default,
        "ms": 1e3 * default / tuned.gain,
        "gain": tuned.gain,
        "winner": tuned.winner,
        "clock": tuned.clock,
        "candidates": [asdict(c) for c in tuned.candidates],
    }


def gains(console: Console, found: Iterable[tuple[str, int, Tuned]]) -> None:
    """A table of kernels that gained, those that save most first."""
    rows = sorted(found, key=lambda row: -row[1] * (row[2].candidates[0].seconds or 0) * (1 - 1 / row[2].gain))
    if not rows:
        return
    made = table("label", "sizes", ">launches", ">default ms", ">ms", ">gain", "instead of the default")
    for label, launches, tuned in rows:
        made.add_row(plain(label), _sizes(tuned), f"{launches:,}", *_times(tuned), plain(_change(tuned)))
    print_table(console, made)


def list_kernels(console: Console, as_json: bool) -> None:
    """Every kernel with its winner."""
    _show(console, as_json, [(k, t) for k in _known() for t in k.tuned])


def compare(console: Console, as_json: bool) -> None:
    """Kernels whose default loses, of what this vkdnn still uses."""
    found = [(k, t) for k in _known() if k.current for t in k.tuned]
    _show(console, as_json, [(k, t) for k, t in found if t.gain >= LOSES])
    if not as_json:
        lose = sum(t.gain >= LOSES for _, t in found)
        console.print(f"the default loses {LOSES - 1:.0%} or more in {lose:,} of {counted(len(found), 'tuned kernel')}")


def explain(console: Console, text: str, as_json: bool) -> None:
    """The candidates of kernels whose key begins so, or whose label, family or spec has the text."""
    lower = text.lower()
    found = [
        k
        for k in _known()
        if (len(text) > 3 and k.key.startswith(lower)) or lower in f"{k.label}\n{k.family}\n{k.spec}".lower()
    ]
    if not found:
        raise ArgumentError(f"--explain: no tuned kernel has {text!r}; `vkdnn tune --list` lists them")
    if as_json:
        print_json([_record(k, t) | {"spec": k.spec} for k in found for t in k.tuned])
        return
    for kernel in found:
        for tuned in kernel.tuned:
            _explain(console, kernel, tuned)


def clear(console: Console, as_json: bool) -> None:
    """Forget all tunings."""
    store = Store(root(), KIND)
    removed = remove(store, list(items(store)), "cleared")
    if as_json:
        print_json({"removed": removed.entries})
    else:
        console.print(f"forgot {counted(removed.entries, 'tuned kernel')}")


def _known() -> list[Kernel]:
    return sorted(kernels(Store(root(), KIND)), key=lambda k: (k.device, k.family, k.label, k.key))


def _show(console: Console, as_json: bool, found: Sequence[tuple[Kernel, Tuned]]) -> None:
    if as_json:
        print_json([_record(k, t) for k, t in found])
        return
    if not found:
        return
    made = table("key", "device", "label", "sizes", ">default ms", ">ms", ">gain", "instead of the default")
    for kernel, tuned in found:
        device = kernel.device.split(" (")[0] + ("" if kernel.current else ", of another vkdnn")
        made.add_row(
            kernel.key[:DIGITS],
            plain(device),
            plain(kernel.label),
            _sizes(tuned),
            *_times(tuned),
            plain(_change(tuned)),
        )
    print_table(console, made)


def _explain(console: Console, kernel: Kernel, tuned: Tuned) -> None:
    console.print(f"{kernel.key[:DIGITS]}  {kernel.label}", style="bold", markup=False)
    clock = "the device's timestamps" if tuned.clock == "device" else "the wall clock, submissions included"
    stale = "" if kernel.current else "; of another version of vkdnn, not used"
    console.print(
        f"{kernel.family}, sizes {_sizes(tuned) or 'none'}, {kernel.device}, {kernel.driver}; by {clock}, "
        f"{ago(tuned.time)}{stale}",
        markup=False,
    )
    made = table("", "schedule", ">ms", ">quartiles", ">runs", "")
    for number, candidate in enumerate(tuned.candidates):
        mark = "*" if candidate.schedule == tuned.winner else ""
        made.add_row(mark, plain(candidate.schedule), *_measured(candidate), plain(_note(candidate, number)))
    print_table(console, made, _WIDTH)
    console.print()


def _note(candidate: Candidate, number: int) -> str:
    return "; ".join(filter(None, ("the default" if number == 0 else "", candidate.note)))


def _measured(candidate: Candidate) -> tuple[str, str, str]:
    if candidate.seconds is None:
        return "", "", ""
    spread = f"{1e3 * candidate.low:.4g} to {1e3 * candidate.high:.4g}" if candidate.runs > 1 else ""
    return f"{1e3 * candidate.seconds:.4g}", spread, str(candidate.runs)


def _record(kernel: Kernel, tuned: Tuned) -> dict[str, Any]:
    about = {"key": kernel.key, "device": kernel.device, "driver": kernel.driver, "current": kernel.current}
    return about | record(kernel.label, kernel.family, tuned)


def _sizes(tuned: Tuned) -> str:
    return ", ".join(map(str, tuned.sizes))


def _times(tuned: Tuned) -> tuple[str, str, str]:
    default = tuned.candidates[0].seconds or 0.0
    return f"{1e3 * default:.4g}", f"{1e3 * default / tuned.gain:.4g}", f"{tuned.gain:.2f}"


def _change(tuned: Tuned) -> str:
    """What the winner does otherwise than the default; nothing where it is the default."""
    default = tuned.candidates[0].schedule
    if tuned.winner == default:
        return ""
    return ", ".join(parameters(f"schedule {default}", f"schedule {tuned.winner}"))
