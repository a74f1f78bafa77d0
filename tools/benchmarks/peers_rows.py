"""The rows of tools/bench --peers: what is computed, on which sizes, and which figure is aimed at.

Both processes read it: it must import neither vkdnn nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A figure and its bound: ``copy`` is the share of the copy bandwidth by the bytes of arguments and results,
    ``flops`` float operations a second, ``busy`` the device's share of the wall time, each at least; ``seconds`` at
    most."""

    figure: str
    value: float

    def met(self, found: float) -> bool:
        return found <= self.value if self.figure == "seconds" else found >= self.value

    def share(self, found: float) -> float:
        """How much of the goal is reached: 1 or more where it is met."""
        return self.value / found if self.figure == "seconds" else found / self.value

    def __str__(self) -> str:
        if self.figure == "seconds":
            return f"{1e3 * self.value:g} ms"
        if self.figure == "flops":
            return f"{self.value / 1e12:g} TFLOP/s"
        return f"{self.value:.0%} {'of copy' if self.figure == 'copy' else 'busy'}"


@dataclass(frozen=True)
class Row:
    """``kind`` names what builds it, here and there; ``quick`` sizes show that it runs, and no more."""

    name: str
    kind: str
    goal: Goal | None
    sizes: Sizes
    quick: Sizes
    options: Sizes = field(default_factory=dict)

    def arguments(self, quick: bool) -> Sizes:
        return {**(self.quick if quick else self.sizes), **self.options}


_ROWS, _QUICK_ROWS = {"rows": 16_384, "columns": 4096}, {"rows": 8, "columns": 64}
_SCAN = {"batch": 4, "tokens": 4096, "heads": 16, "width": 64}
_QUICK_SCAN = {"batch": 1, "tokens": 128, "heads": 2, "width": 8}
_DECODE = {"batch": 64, "keys": 8192, "heads": 32, "key_heads": 8, "width": 128}
_QUICK_DECODE = {"batch": 2, "keys": 130, "heads": 4, "key_heads": 2, "width": 8}
_MODEL = {
    "layers": 8, "width": 512, "heads": 8, "hidden": 1024, "vocab": 256, "batch": 16, "tokens": 1024,
    "order": "chunked",
}  # fmt: skip
_QUICK_MODEL = {**_MODEL, "layers": 1, "width": 16, "heads": 2, "hidden": 32, "batch": 1, "tokens": 64}


def _rows() -> list[Row]:
    rows = [Row(name, name, Goal("copy", 0.9), _ROWS, _QUICK_ROWS) for name in ("rms_norm", "layer_norm", "softmax")]
    rows.append(Row("chain of 10", "chain", Goal("copy", 0.9), {"elements": 2**26}, {"elements": 2**12}))
    whole, small = {"m": 4096, "k": 4096, "n": 4096}, {"m": 16, "k": 16, "n": 16}
    rows.append(Row("product", "product", Goal("flops", 28e12), whole, small))
    for m in (1, 2, 4, 8, 16):
        rows.append(Row(f"product, {m} of 4096 rows", "product", Goal("copy", 0.75), whole, small, {"m": m}))
    for name, kind, goal, options in (
        ("RLA-2 chunked", "chunked", 0.44e-3, {}),
        ("RLA-2 chunked, backward", "chunked", 1.3e-3, {"backward": True}),
        ("RLA-2 chunked, normalised", "normalised", None, {}),
        ("RLA-2 sequential", "sequential", 5e-3, {}),
    ):
        rows.append(Row(name, kind, Goal("seconds", goal) if goal else None, _SCAN, _QUICK_SCAN, options))
    for name, goal, backward in (("attention, causal", 5e-3, False), ("attention, causal, backward", 18e-3, True)):
        rows.append(Row(name, "attention", Goal("seconds", goal), _SCAN, _QUICK_SCAN, {"backward": backward}))
    rows.append(Row("attention, decoding", "decoding", Goal("copy", 0.75), _DECODE, _QUICK_DECODE))
    rows.append(Row("training step", "training", Goal("busy", 0.9), _MODEL, _QUICK_MODEL))
    return rows


ROWS = {row.name: row for row in _rows()}


def described(kind: str, s: Sizes) -> str:
    """The sizes in words."""
    if kind == "product":
        return f"{s['m']} x {s['k']} by {s['k']} x {s['n']}"
    if kind == "chain":
        return f"{s['elements']:,} elements"
    if kind == "training":
        return f"{s['layers']} layers of width {s['width']}, {s['batch']} x {s['tokens']} tokens"
    if kind == "decoding":
        return f"B{s['batch']} T1 of {s['keys']} H{s['heads']} of {s['key_heads']} D{s['width']}"
    if "tokens" in s:
        what = f"B{s['batch']} T{s['tokens']} H{s['heads']} D{s['width']}"
        return what + ", forward and backward" * s.get("backward", False)
    return f"{s['rows']} x {s['columns']}"
