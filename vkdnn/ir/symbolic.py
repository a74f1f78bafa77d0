"""Structures that hold symbolic sizes (specs, shapes, groups): their symbols, their values, and how shaders name them.

It must never decide anything: it walks over tuples, lists, dicts and dataclasses, and replaces or prints what it finds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vkdnn.errors import ArgumentError
from vkdnn.ir.dims import Dim, Formula, evaluate, formula, formula_of
from vkdnn.ir.forms import Call, Form, Symbol


def concrete(x: Any, values: Mapping[str, int]) -> Any:
    """x with these values for its symbols: a size, or a structure of tuples, lists, dicts and dataclasses (a spec)."""
    if isinstance(x, Dim):
        return evaluate(formula(x), values)
    if isinstance(x, (tuple, list)):
        parts = [concrete(y, values) for y in x]
        return type(x)(parts) if any(a is not b for a, b in zip(parts, x, strict=True)) else x
    if isinstance(x, dict):
        return {k: concrete(v, values) for k, v in x.items()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = {f.name: getattr(x, f.name) for f in dataclasses.fields(x) if f.init}
        changed = {name: new for name, old in fields.items() if (new := concrete(old, values)) is not old}
        return dataclasses.replace(x, **changed) if changed else x
    return x


def symbols(*structures: Any) -> tuple[Symbol, ...]:
    """The symbols in sizes and structures of them, by name: what a kernel of a spec needs as further constants."""
    found: dict[Symbol, None] = {}

    def visit(x: Any) -> None:
        if isinstance(x, Dim):
            found.update(dict.fromkeys(x.form.symbols))
        elif isinstance(x, (tuple, list)):
            for y in x:
                visit(y)
        elif isinstance(x, dict):
            visit(list(x.values()))
        elif dataclasses.is_dataclass(x) and not isinstance(x, type):
            for f in dataclasses.fields(x):
                visit(getattr(x, f.name))

    visit(structures)
    return tuple(sorted(found, key=lambda s: s.name))


def alike(traces: Sequence[Sequence[Any]]) -> None:
    """Raises ArgumentError unless traces with different hints gave the same: sequences of specs, sizes, formulas.

    Each entry is compared by its text, which has expressions where Dims are, and hints where they leaked.
    """
    first = [_described(x) for x in traces[0]]
    for other in traces[1:]:
        if len(other) != len(first):
            raise ArgumentError(
                f"symbolic sizes: traced with other values there are {len(other)} kernels or results instead of "
                f"{len(first)}; the function decides by a size (range(), NumPy), so keep that axis concrete"
            )
        for a, b in zip(first, map(_described, other), strict=True):
            if a != b:
                lines = next((p for p in zip(a.split("\n"), b.split("\n"), strict=False) if p[0] != p[1]), (a, b))
                raise ArgumentError(
                    f"symbolic sizes: traced with other values, {lines[0].strip()!r} becomes {lines[1].strip()!r}; the "
                    "function uses a size as a plain number (range(), NumPy), so keep that axis concrete"
                )


def _described(x: Any) -> str:
    return str(x.text()) if hasattr(x, "text") and callable(x.text) else str(x)


# ---- in shaders


def definitions(names: Mapping[Form, int]) -> list[str]:
    """Macros for what was printed: ``size0`` an int, ``size0u`` a uint, over push constants symbol_NAME.

    Raises ArgumentError where a size, or what is divided in it, may leave 32 bits.
    """
    lines = []
    for form, k in names.items():
        lines += [f"#define size{k}u {_glsl(form)}", f"#define size{k} int(size{k}u)"]
    return lines


def _glsl(form: Form) -> str:
    _fits(form, -(2**31))

    def write(part: Formula) -> str:
        if isinstance(part, list):
            op, a, b = part[0], write(part[1]), write(part[2])
            return (
                f"uint({op}(int({a}), int({b})))" if op in ("min", "max") else f"({a} {'/' if op == '//' else op} {b})"
            )
        return f"symbol_{part}" if isinstance(part, str) else f"{part & 0xFFFFFFFF}u"

    return write(formula_of(form))


def _fits(form: Form, low: int = 0) -> None:
    for monomial, _ in form.terms:
        for atom in monomial:
            if isinstance(atom, Call):  # uints wrap, but what is divided must be a number of its own
                least = 0 if atom.op == "//" else -(2**31)
                _fits(atom.a, least)
                _fits(atom.b, least)
    if form.bounds[0] < low or form.bounds[1] >= 2**31:
        raise ArgumentError(
            f"size {form.text}: between {form.bounds[0]} and {form.bounds[1]}, expected {low} to {2**31 - 1}; "
            "narrow the ranges"
        )
