"""Expressions of symbolic sizes in a canonical form: polynomials over symbols and what is no polynomial (//, min, max).

Two forms must be equal exactly when they are the same polynomial; what is known of their values comes from the ranges
of the symbols alone, never from the hints.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from vkdnn.errors import ArgumentError

MAX_CORNERS = 8  # symbols of a form whose value at all corners of the ranges is computed


@dataclass(frozen=True)
class Symbol:
    """A named size in [low, high]; ``hint`` is the value with which it is traced."""

    name: str
    hint: int
    low: int
    high: int

    @cached_property
    def text(self) -> str:
        return f"{self.name}[{self.low}..{self.high}]"


@dataclass(frozen=True)
class Call:
    """What is no polynomial: ``a // b``, or the smaller or greater of two."""

    op: str
    a: Form
    b: Form

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.a, self.b))

    def value(self, values: Mapping[str, Any]) -> Any:
        return APPLY[self.op](self.a.value(values), self.b.value(values))

    @cached_property
    def text(self) -> str:
        a, b = self.a.text, self.b.text
        return f"({a} // {b})" if self.op == "//" else f"{self.op}({a}, {b})"


Atom = Symbol | Call
Monomial = tuple[Atom, ...]  # sorted by text; powers are repeated


@dataclass(frozen=True)
class Form:
    """A sum of monomials times their coefficients, none of which is 0."""

    terms: tuple[tuple[Monomial, int], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(("size", self.terms))

    @property
    def constant(self) -> int | None:
        """The int that the form is, if it is one."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @cached_property
    def text(self) -> str:
        text = ""
        for monomial, factor in self.terms:
            atoms = [a.text for a in monomial]
            part = "*".join(atoms if abs(factor) == 1 and atoms else [str(abs(factor)), *atoms])
            sign = ("-" if factor < 0 else "") if not text else " - " if factor < 0 else " + "
            text += sign + part
        plain = len(self.terms) < 2 and (self.constant is not None or self.terms[0][1] == 1)
        return text or "0" if plain else f"({text})"

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        found: dict[Symbol, None] = {}
        for monomial, _ in self.terms:
            for atom in monomial:
                found.update(dict.fromkeys((atom,) if isinstance(atom, Symbol) else atom.a.symbols + atom.b.symbols))
        return tuple(sorted(found, key=lambda s: s.name))

    @cached_property
    def hint(self) -> int:
        return int(self.value({s.name: s.hint for s in self.symbols}))

    def value(self, values: Mapping[str, Any]) -> Any:
        """The form at these values of the symbols: ints or arrays of them."""
        total: Any = 0
        for monomial, factor in self.terms:
            part: Any = factor
            for atom in monomial:
                part = part * (
                    values[atom.name]
                    if isinstance(atom, Symbol)
                    else APPLY[atom.op](*(x.value(values) for x in (atom.a, atom.b)))
                )
            total = total + part
        return total

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Bounds of the form over the ranges; exact where it has degree 1 in each of a few symbols and no calls."""
        atoms = {a for monomial, _ in self.terms for a in monomial}
        linear = all(isinstance(a, Symbol) for a in atoms) and all(len(set(m)) == len(m) for m, _ in self.terms)
        if linear and len(self.symbols) <= MAX_CORNERS:
            corners = [
                int(self.value({s.name: v for s, v in zip(self.symbols, at, strict=True)}))
                for at in itertools.product(*((s.low, s.high) for s in self.symbols))
            ]
            return min(corners), max(corners)
        low, high = _interval(self.terms)
        relaxed = _relaxed(self)
        if relaxed is not None:
            low, high = max(low, relaxed[0]), min(high, relaxed[1])
        return low, high


def _interval(terms: Iterable[tuple[Monomial, int]]) -> tuple[int, int]:
    low = high = 0
    for monomial, factor in terms:
        a = b = factor
        for atom in monomial:
            ends = [x * y for x in (a, b) for y in _range(atom)]
            a, b = min(ends), max(ends)
        low, high = low + min(a, b), high + max(a, b)
    return low, high


@cache
def _range(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    (a_low, a_high), (b_low, b_high) = atom.a.bounds, atom.b.bounds
    ends = [APPLY[atom.op](x, y) for x in (a_low, a_high) for y in (b_low, b_high)]
    return int(min(ends)), int(max(ends))


def _relaxed(form: Form) -> tuple[int, int] | None:
    """Bounds from a // n = (a - r) / n with r in [0, n): close where a itself appears too, as in the rest of a."""
    total: dict[Monomial, Fraction] = {}
    low = high = Fraction(0)
    for monomial, factor in form.terms:
        calls = [a for a in monomial if isinstance(a, Call)]
        if not calls:
            total[monomial] = total.get(monomial, Fraction(0)) + factor
            continue
        if len(calls) > 1 or calls[0].op != "//" or (n := calls[0].b.constant) is None:
            return None
        rest = tuple(a for a in monomial if a is not calls[0])
        for inner, k in calls[0].a.terms:
            joined = tuple(sorted(rest + inner, key=_text))
            total[joined] = total.get(joined, Fraction(0)) + Fraction(factor * k, n)
        ends = [Fraction(-factor * r, n) * x for r in (0, n - 1) for x in _interval([(rest, 1)])]
        low, high = low + min(ends), high + max(ends)
    scale = math.lcm(*(f.denominator for f in total.values())) if total else 1
    merged = collected({m: int(f * scale) for m, f in total.items()})
    if merged == form:
        return None
    a, b = merged.bounds
    return math.ceil(Fraction(a, scale) + low), math.floor(Fraction(b, scale) + high)


def _text(atom: Atom) -> str:
    return atom.text


def collected(terms: Mapping[Monomial, int]) -> Form:
    kept = [(m, f) for m, f in terms.items() if f]
    return Form(tuple(sorted(kept, key=lambda t: (-len(t[0]), [a.text for a in t[0]]))))


def constant_form(value: int) -> Form:
    return Form((((), value),) if value else ())


def of_atom(atom: Atom) -> Form:
    return Form((((atom,), 1),))


@lru_cache(maxsize=1 << 16)
def added(a: Form, b: Form, factor: int = 1) -> Form:
    """a + factor b."""
    total = dict(a.terms)
    for monomial, k in b.terms:
        total[monomial] = total.get(monomial, 0) + factor * k
    return collected(total)


@lru_cache(maxsize=1 << 16)
def multiplied(a: Form, b: Form) -> Form:
    total: dict[Monomial, int] = {}
    for left, j in a.terms:
        for right, k in b.terms:
            monomial = tuple(sorted(left + right, key=_text)) if left and right else left + right
            total[monomial] = total.get(monomial, 0) + j * k
    return collected(total)


def _quotient(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """monomial / divisor, if the divisor's atoms are all in it."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


@lru_cache(maxsize=1 << 16)
def divided(a: Form, b: Form) -> Form:
    """a // b for b > 0: a polynomial as far as b divides a, and a call of what is left."""
    if b.bounds[0] <= 0:
        raise ArgumentError(f"size {a.text} // {b.text}: the divisor may be {b.bounds[0]}, expected a positive size")
    if a.bounds[0] >= 0 and added(a, b, -1).bounds[1] < 0:
        return constant_form(0)
    n = b.constant
    lead, factor = b.terms[0]
    whole: dict[Monomial, int] = {}
    rest = a
    for monomial, _ in a.terms:  # division with remainder by the leading term
        k = dict(rest.terms).get(monomial, 0)
        found = _quotient(monomial, lead)
        if found is None or not k or (n is None and k % factor):
            continue
        times = k // factor if n is None or not monomial else math.trunc(Fraction(k, factor))
        whole[found] = whole.get(found, 0) + times
        rest = added(rest, multiplied(collected({found: times}), b), -1)
    if n is None and rest.bounds[0] < 0:
        whole, rest = {}, a
    if rest.bounds[0] >= 0 and added(rest, b, -1).bounds[1] < 0:
        return collected(whole)
    if n is not None:
        if rest.terms[0][1] < 0:  # a // n = -((n - 1 - a) // n): what is divided is not below 0
            return added(collected(whole), divided(added(constant_form(n - 1), rest, -1), b), -1)
        shared = math.gcd(n, *(k for m, k in rest.terms if m))
        if shared > 1:
            fewer = collected({m: k // shared for m, k in rest.terms})
            return added(collected(whole), divided(fewer, constant_form(n // shared)))
    return added(collected(whole), of_atom(Call("//", rest, b)))


APPLY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": lambda a, b: min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b),
    "max": lambda a, b: max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b),
}
