"""Symbolic sizes: ints that also know the expression of named symbols that they are, so that one kernel serves a range.

A Dim must never pass for the plain int it has as its hint: it prints as its expression, refuses int() and float(), and
every decision that its range leaves open is a guard that must hold over the whole range.

A Dim is an int, so a graph of shapes with Dims goes through every layer as any other; what comes out (specs, sizes,
workgroups, shapes) holds formulas. Trace inside ``with guards() as found``, then call ``found.check()``. What leaks in
spite of it (range(), NumPy) stands in the result as the hint: trace with several hints (hints()) and demand the same
(alike()).

Comparisons. ``<`` and its like, truth and ``== 0`` are decided by the ranges, else by the hint with a guard. ``==`` of
other sizes, 1 included, and of what holds sizes (dataclasses) is decided inside vkdnn by the expressions alone: its
layers ask it to choose among forms that have the same bits, of which the one for different sizes is right for equal
ones too. Asked elsewhere (by the function that is traced) it is as strict as ``<``.

Supported. Any axis of elementwise kernels, views, gathers, products (rows, columns, k, batches), folds and cumulations;
rows of scatters into one table; sequences and batches of attention and of scans in both orders; and their gradients.
Not supported, and refused: axes that are sorted, indices along an axis of several tables (put_along_axis), widths and
numbers of heads in attention and scans, and what a guard of a decision on the host excludes.
"""

from __future__ import annotations

import operator
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from vkdnn.errors import ArgumentError
from vkdnn.ir.forms import APPLY, Call, Form, Symbol, added, constant_form, divided, multiplied, of_atom
from vkdnn.ir.guards import Guards as Guards
from vkdnn.ir.guards import asker, decide, known
from vkdnn.ir.guards import guards as guards

Formula = int | str | list[Any]
"""An int, a symbol's name, or [op, a, b] with an op of OPERATIONS."""

OPERATIONS = ("+", "-", "*", "//", "%", "min", "max")

_TABLES = ("vkdnn", "weakref", "graphlib")  # modules that look sizes up for vkdnn
_thread = threading.local()

# ---- sizes


def _as_form(value: Any) -> Form | None:
    if isinstance(value, Dim):
        return value.form
    if isinstance(value, (int, np.integer)):
        return constant_form(int(value))
    return None


def _size(form: Form) -> int:
    """The size that a form is: a Dim, or an int if it has no symbols."""
    constant = form.constant
    return Dim._of(form) if constant is None else constant


def _binary(function: Callable[[Form, Form], Form]) -> tuple[Any, Any]:
    def left(self: Dim, other: Any) -> Any:
        form = _as_form(other)
        return NotImplemented if form is None else _size(function(self.form, form))

    def right(self: Dim, other: Any) -> Any:
        form = _as_form(other)
        return NotImplemented if form is None else _size(function(form, self.form))

    return left, right


def _compared(relation: str, swapped: bool) -> Any:
    def compare(self: Dim, other: Any) -> Any:
        form = _as_form(other)
        if form is None:
            return NotImplemented
        a, b = (form, self.form) if swapped else (self.form, form)
        return decide(added(a, b, -1), relation)

    return compare


def _refused(what: str) -> Any:
    def refuse(self: Dim, *_: Any) -> NoReturn:
        raise ArgumentError(
            f"{what} of the symbolic size {self.form.text}: its value is not known when a kernel is made, expected a "
            "plain int; keep this axis concrete"
        )

    return refuse


def _power(a: Form, b: Form) -> Form:
    exponent = b.constant
    if exponent is None or not 0 <= exponent <= 16:
        raise ArgumentError(f"{a.text} ** {b.text}: symbolic sizes have powers of small constants alone")
    result = constant_form(1)
    for _ in range(exponent):
        result = multiplied(result, a)
    return result


def _shift(a: Form, b: Form) -> Form:
    """2 ** b as a form."""
    if b.constant is None or not 0 <= b.constant < 64:
        raise ArgumentError(f"{a.text} shifted by {b.text}: symbolic sizes are shifted by constants alone")
    return constant_form(1 << b.constant)


def _masked(a: Form, b: Form) -> Form:
    mask = b.constant
    if mask is None or mask < 0 or mask & (mask + 1):
        raise ArgumentError(f"{a.text} & {b.text}: symbolic sizes are masked by low bits alone")
    return _rest(a, constant_form(mask + 1))


def _rest(a: Form, b: Form) -> Form:
    return added(a, multiplied(divided(a, b), b), -1)


def _equal(a: Dim, b: Any) -> bool:
    other = _as_form(b)
    if other is None:
        return False
    difference = added(a.form, other, -1)
    if not difference.terms:
        return True
    asked = asker()
    if asked.startswith("vkdnn.") and (other.terms or asked.endswith(".__eq__")):
        return False
    return decide(difference, "==")


class Dim(int):
    """A size that is an expression of symbols; as an int, its value at the hints. Made by symbol() and arithmetic."""

    form: Form
    __array_ufunc__ = None  # NumPy's integers on the left let these operators act

    @staticmethod
    def _of(form: Form) -> Dim:
        dim = int.__new__(Dim, form.hint)
        dim.form = form
        return dim

    __add__, __radd__ = _binary(added)
    __sub__, __rsub__ = _binary(lambda a, b: added(a, b, -1))
    __mul__, __rmul__ = _binary(multiplied)
    __floordiv__, __rfloordiv__ = _binary(divided)
    __mod__, __rmod__ = _binary(_rest)
    __pow__, __rpow__ = _binary(_power)
    __lshift__, __rlshift__ = _binary(lambda a, b: multiplied(a, _shift(a, b)))
    __rshift__, __rrshift__ = _binary(lambda a, b: divided(a, _shift(a, b)))
    __and__, __rand__ = _binary(lambda a, b: _masked(a, b) if a.constant is None else _masked(b, a))
    __lt__, __le__ = _compared("<", False), _compared("<=", False)
    __gt__, __ge__ = _compared("<", True), _compared("<=", True)
    __truediv__ = __rtruediv__ = _refused("/")
    __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refused("bitwise operation")
    __float__, __int__, __complex__ = _refused("float()"), _refused("int()"), _refused("complex()")
    bit_length, bit_count, to_bytes = _refused("bit_length()"), _refused("bit_count()"), _refused("to_bytes()")

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    def __ne__(self, other: object) -> bool:
        return not _equal(self, other)

    def __hash__(self) -> int:
        # In tables of vkdnn equal expressions are one; another's table has ints, some of which this size may be.
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] not in _TABLES:
            raise ArgumentError(
                f"the symbolic size {self.form.text}: looked up in a dict or set, which no range can decide; compare "
                "it, or keep this axis concrete"
            )
        return hash(self.form)

    def __bool__(self) -> bool:
        return not decide(self.form, "==")

    def __neg__(self) -> Any:
        return _size(added(constant_form(0), self.form, -1))

    def __pos__(self) -> Dim:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __round__(self, digits: Any = None) -> Dim:
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: Any) -> Dim:
        return self

    def __reduce__(self) -> Any:
        return _of_symbols, (formula(self), self.form.symbols)

    def __str__(self) -> str:
        naming: dict[Form, int] | None = getattr(_thread, "names", None)
        if naming is not None:
            return f"size{naming.setdefault(self.form, len(naming))}"
        return self.form.text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        if spec:
            raise ArgumentError(f"the symbolic size {self}: got the format {spec!r}, expected none")
        return str(self)


def _of_symbols(written: Formula, symbols: tuple[Symbol, ...]) -> int:
    return evaluate(written, {s.name: _size(of_atom(s)) for s in symbols})


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")


def symbol(name: str, hint: int, low: int, high: int) -> int:
    """A size called ``name`` of any value from ``low`` to ``high``; ``hint`` is one of them, with which code is traced.

    Raises ArgumentError for a name that is no identifier of GLSL, bounds that hold nothing or are not positive, and a
    hint outside of them. A range of one value gives that plain int.

    >>> tokens = symbol("tokens", 100, 1, 4096)
    >>> -(-tokens * 64 // 128)
    ((tokens[1..4096] + 1) // 2)
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ArgumentError(f"symbol: name is {name!r}, expected letters and digits, with single underscores between")
    for what, value in (("low", low), ("hint", hint), ("high", high)):
        if isinstance(value, (bool, Dim)) or not isinstance(value, (int, np.integer)):
            raise ArgumentError(f"symbol {name}: {what} is {value!r}, expected an int")
    if not 1 <= low <= high < 2**31:
        raise ArgumentError(f"symbol {name}: got the range from {low} to {high}, expected 1 <= low <= high < 2**31")
    if not low <= hint <= high:
        raise ArgumentError(f"symbol {name}: the hint is {hint}, expected a value from {low} to {high}")
    return _size(of_atom(Symbol(name, int(hint), int(low), int(high)))) if low < high else int(low)


def hints(low: int, high: int) -> tuple[int, int, int, int, int]:
    """Values of a range with which to trace, its ends among them (fewer different ones if it is short): what leaks of
    them shows as a difference."""
    span = high - low
    return low + span // 2, low + span // 3, low + span * 4 // 5, low, high


def minimum(a: int, b: int) -> int:
    """The smaller of two sizes, without a guard."""
    return _extreme("min", a, b)


def maximum(a: int, b: int) -> int:
    """The greater of two sizes, without a guard."""
    return _extreme("max", a, b)


def _extreme(op: str, a: int, b: int) -> int:
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return min(a, b) if op == "min" else max(a, b)
    x, y = _as_form(a), _as_form(b)
    assert x is not None and y is not None
    below = known(added(x, y, -1), "<=")
    if below is not None:
        return a if below == (op == "min") else b
    if known(added(y, x, -1), "<="):
        return b if op == "min" else a
    x, y = sorted((x, y), key=lambda f: f.text)
    return _size(of_atom(Call(op, x, y)))


def same(a: int, b: int) -> bool:
    """Whether two sizes are equal whatever the symbols are; no guard."""
    x, y = _as_form(a), _as_form(b)
    return x == y and x is not None


def never_above(a: int, b: int) -> bool:
    """Whether a <= b whatever the symbols are; no guard, so for choices that change no result."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a <= b
    x, y = _as_form(a), _as_form(b)
    assert x is not None and y is not None
    return known(added(x, y, -1), "<=") is True


def largest(x: int) -> int:
    """An upper bound of a size over the ranges."""
    return x.form.bounds[1] if isinstance(x, Dim) else x


def smallest(x: int) -> int:
    """A lower bound of a size over the ranges."""
    return x.form.bounds[0] if isinstance(x, Dim) else x


# ---- formulas


def formula(x: int) -> Formula:
    """A size as JSON: an int, a symbol's name, or [op, a, b].

    >>> formula(symbol("tokens", 100, 1, 4096) * 64 + 5)
    ['+', ['*', 64, 'tokens'], 5]
    """
    return formula_of(x.form) if isinstance(x, Dim) else operator.index(x)


def formula_of(form: Form) -> Formula:
    """formula() of a form."""
    total: Formula | None = None
    for monomial, factor in form.terms:
        atoms: list[Formula] = [
            a.name if isinstance(a, Symbol) else [a.op, formula_of(a.a), formula_of(a.b)] for a in monomial
        ]
        times = factor if total is None else abs(factor)
        part = reduce(lambda a, b: ["*", a, b], atoms if times == 1 and atoms else [times, *atoms])
        total = part if total is None else ["-" if factor < 0 else "+", total, part]
    return 0 if total is None else total


def evaluate(written: Formula, values: Mapping[str, int]) -> int:
    """A formula at these values of its symbols. Raises ArgumentError for a symbol without a value.

    >>> evaluate(["//", ["+", "tokens", 63], 64], {"tokens": 65})
    2
    """
    if isinstance(written, list):
        op, a, b = written
        found: int = APPLY[op](evaluate(a, values), evaluate(b, values))
        return found
    if isinstance(written, str):
        if written not in values:
            raise ArgumentError(f"formula: no value for {written!r}, got values for {sorted(values)}")
        return values[written]
    return written


@contextmanager
def named() -> Iterator[dict[Form, int]]:
    """Within, Dims print as size0, size1, ...; gives the numbers, for vkdnn.ir.symbolic.definitions()."""
    before = getattr(_thread, "names", None)
    names: dict[Form, int] = {}
    _thread.names = names
    try:
        yield names
    finally:
        _thread.names = before
