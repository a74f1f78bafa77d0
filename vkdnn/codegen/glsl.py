"""Prints bodies and defined functions as GLSL, one statement an instruction.

It must print what it is given: no simplification here may change an operation or its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from vkdnn import dtypes
from vkdnn.dtypes import DType
from vkdnn.ir.body import Affine, Body, Guard, Instr
from vkdnn.ir.define import definition
from vkdnn.ir.dims import Dim, same
from vkdnn.ir.node import Node, toposort
from vkdnn.ir.ops import OPS

FOURS = {"float": "vec4", "int": "ivec4", "uint": "uvec4"}
"""Of each type of storage, that of four elements."""


def literal(bits: int, dtype: DType) -> str:
    """A constant by its exact bits: decimal where that reads back as the same bits, else the bits."""
    value = dtypes.constant_value(bits, dtype)
    if dtype.category == "b":
        return "true" if value else "false"
    if dtype.category == "f" and value == 0:
        return "NEGATIVE_ZERO" if bits else "ZERO"
    if dtype.category == "u":
        return f"0x{bits:x}u" if bits > 0xFFFF else f"{bits}u"
    if dtype.category == "i":
        return f"{int(value)}" if value != -(2**31) else "int(0x80000000u)"
    short = 1e-5 < abs(value) < 1e7
    text = np.format_float_positional(np.float32(value), unique=True, trim="0") if short else repr(float(value))
    if np.isfinite(value) and int(np.float32(float(text)).view(np.uint32)) == bits:
        return text
    return f"uintBitsToFloat(0x{bits:08x}u)"


def affine(index: Affine, dims: list[str], base: str = "") -> str:
    """An affine index as a uint expression over the names of the dims."""
    text = base
    for stride, name in zip(index.strides, dims, strict=True):
        if not same(stride, 0):
            factor = "" if abs(stride) == 1 else f" * {abs(stride)}u"
            text += (" - " if stride < 0 else " + " if text else "") + name + factor
            if stride < 0 and text.startswith(" - "):
                text = f"0u{text}"
    if isinstance(index.offset, Dim):  # of either sign: uints wrap
        text += f"{' + ' if text else ''}{index.offset}u"
    elif index.offset or not text:
        text += f" {'-' if index.offset < 0 else '+'} {abs(index.offset)}u" if text else f"{index.offset & 0xFFFFFFFF}u"
    return text


def guard(g: Guard, dims: list[str]) -> str:
    at = f"int({affine(g.index, dims)})"
    return f"({at} >= {g.low} && {at} < {g.high})"


def expression(instr: Instr, args: list[str], dims: list[str], index_dtype: DType | None = None) -> str:
    """The right-hand side of one instruction; ``index_dtype`` is that of a load's index array."""
    if instr.kind == "const":
        return literal(instr.attrs[0], instr.dtype)
    if instr.kind == "index":
        index: Affine = instr.attrs[0]
        fixed = all(same(s, 0) for s in index.strides)
        known = " | ZERO_BITS" if fixed else ""  # a constant 0 may become a float zero
        return f"int({affine(index, dims)}{known})"
    if instr.kind == "guard":
        return guard(instr.attrs[0], dims)
    if instr.kind == "load":
        slot, index, guards, stride, extent = instr.attrs
        at = affine(index, dims, "" if instr.dtype.half else f"base_in{slot}")
        if args:
            chosen = clamped(args[0], index_dtype, extent)
            at += f" + {chosen}" + (f" * {stride}u" if stride != 1 else "")
        value = f"in{slot}[{at}]"
        if instr.dtype.half:
            value = f"{instr.dtype}_to_float(half_of(in{slot}[base_in{slot} + ({at}) / 2u], {at}))"
        if instr.dtype.category == "b":
            value = f"({value} != 0u)"
        if guards:
            zero = {"f": "ZERO", "i": "0", "u": "0u", "b": "false"}[instr.dtype.category]
            value = f"{' && '.join(guard(g, dims) for g in guards)} ? {value} : {zero}"
        return value
    raise AssertionError(instr.kind)


def statements(body: Body, positions: Iterable[int], names: dict[int, str], dims: list[str]) -> list[str]:
    """Statements that compute ``positions``; ``names`` tells and learns what each value is called."""
    lines = []
    for i in positions:
        if i in names:
            continue
        instr = body.instrs[i]
        args = [names[a] for a in instr.args]
        if instr.kind == "op":
            source = _type_letter(instr.attrs[0], [body.instrs[a].dtype for a in instr.args])
            consts = [a.attrs[0] if a.kind == "const" else None for a in (body.instrs[i] for i in instr.args)]
            right = applied(instr.attrs[0], source, args, consts)
        else:
            right = expression(instr, args, dims, body.instrs[instr.args[0]].dtype if instr.args else None)
        if instr.kind == "const" and _is_plain(right):
            names[i] = right
            continue
        names[i] = f"t{i}"
        lines.append(f"{instr.dtype.glsl} t{i} = {right};")
    return lines


def applied(op: str, letter: str, args: Sequence[str], consts: Sequence[int | None]) -> str:
    """A row of the op table applied; ``consts`` are the bits of constant arguments.

    A float is compared with a constant by ranges of its bits, which takes fewer instructions and says the same.
    """
    if letter != "f" or op not in _COMPARED or len(consts) - list(consts).count(None) != 1:
        return OPS[op].glsl_for(letter).format(*args)
    at = consts.index(None)
    found = [_within(args[at], *bounds) for bounds in _ranges(op, consts[1 - at] or 0, swapped=at == 1)]
    text = "false" if not found else found[0] if len(found) == 1 else f"either({found[0]}, {found[1]})"
    return f"!{text}" if op == "not_equal" else text


def _within(x: str, low: int, high: int) -> str:
    return f"(bits_to_uint({x}) == {low}u)" if low == high else f"is_within({x}, {low}u, {high}u)"


_COMPARED = ("less", "less_equal", "equal", "not_equal")
_SIGN, _INFINITY = 0x80000000, 0x7F800000


def _ranges(op: str, constant: int, swapped: bool) -> list[tuple[int, int]]:
    """Ranges of the bits of the floats x for which "x op constant" holds, or "constant op x" if ``swapped``."""
    magnitude = constant & ~_SIGN
    if magnitude > _INFINITY:
        return []
    order = -magnitude if constant & _SIGN else magnitude  # ascends with the constant, the same for both zeros
    strict = op == "less"
    if op in ("equal", "not_equal"):
        low, high = order, order
    elif swapped:
        low, high = order + strict, _INFINITY
    else:
        low, high = -_INFINITY, order - strict
    found = [(max(low, 0), high)] if high >= 0 and max(low, 0) <= high else []
    return found + ([(_SIGN | max(-high, 0), _SIGN | -low)] if low <= 0 and max(-high, 0) <= -low else [])


def clamped(index: str, dtype: DType | None, extent: int) -> str:
    """An index array's element as a uint below ``extent``."""
    if dtype is not None and dtype.category == "u":
        return f"min({index}, {extent - 1}u)"
    return f"uint(clamp({index}, 0, {extent - 1}))"


def _is_plain(text: str) -> bool:
    """Whether a literal can stand in a choice without making it a branch."""
    return "(" not in text


def stored(name: str, dtype: DType) -> str:
    """A value as it is put into a buffer; of a storage type, its 16 bits."""
    if dtype.half:
        return f"float_to_{dtype}({name})"
    return f"uint({name})" if dtype.category == "b" else name


def _type_letter(op: str, dtypes_: list[DType]) -> str:
    """The dtype category that picks among the forms of a row: that of its last argument (a condition comes first)."""
    return dtypes_[-1].category


# ---- defined functions


@cache
def function(name: str) -> str:
    """A defined op as a GLSL function, after the formula in its docstring."""
    op = OPS[name]
    parameters, result = definition(name)
    names: dict[Node, str] = {p: p.attrs[0].note for p in parameters}
    lines = scalar_statements([result], names)
    head = ", ".join(f"{p.dtype.glsl} {names[p]}" for p in parameters)
    doc = (op.define.__doc__ or op.doc).strip().splitlines()[0]
    head = f"{result.dtype.glsl} {op.function}({head}) {{"
    return "\n".join([f"// {doc}", head, *lines, f"    return {names[result]};", "}"])


def scalar_statements(results: Iterable[Node], names: dict[Node, str]) -> list[str]:
    """Statements that compute a DAG of scalars; ``names`` tells and learns what each value is called."""
    lines: list[str] = []
    for node in toposort(results):
        if node in names:
            continue
        if node.kind == "const":
            text = literal(node.attrs[0], node.dtype)
            names[node] = text if _is_plain(text) else f"t{len(lines)}"
            if not _is_plain(text):
                lines.append(f"    {node.dtype.glsl} {names[node]} = {text};")
            continue
        letter = _type_letter(node.op, [a.dtype for a in node.args])
        names[node] = f"t{len(lines)}"
        consts = [a.attrs[0] if a.kind == "const" else None for a in node.args]
        right = applied(node.op, letter, [names[a] for a in node.args], consts)
        lines.append(f"    {node.dtype.glsl} {names[node]} = {right};")
    return lines


def functions(ops: Iterable[str]) -> list[str]:
    """The GLSL functions that these op-table rows need, each after those it calls."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if OPS[name].define is None or name in order:
            return
        for node in toposort([definition(name)[1]]):
            if node.kind == "map":
                visit(node.op)
        order[name] = None

    for name in ops:
        visit(name)
    return [function(name) for name in order]


def ops_of(body: Body) -> list[str]:
    return sorted({str(i.attrs[0]) for i in body.instrs if i.kind == "op"})
