"""Prints monoids as GLSL: a row of the op table as it is, all else as a struct of the fields and a function of two.

It must print the traced merge (vkdnn.ir.monoids) and no other order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from vkdnn.codegen import glsl
from vkdnn.dtypes import DType, constant_bits
from vkdnn.ir.monoids import MONOIDS, traced
from vkdnn.ir.node import Node, toposort
from vkdnn.ir.ops import OPS


@dataclass(frozen=True)
class Merge:
    """How elements of a monoid are written: their type, its identity, and the format of a merge of two texts.

    ``maker`` makes an element of the fields' values; ``fields`` names them with the format that takes each out of an
    element, and is empty where an element is a plain value. ``text`` declares the type and the function.
    """

    type: str
    identity: str
    format: str
    maker: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    text: str = ""

    def element(self, values: Sequence[str]) -> str:
        """An element of these fields."""
        return f"{self.maker}({', '.join(values)})" if self.maker else values[0]


# Extremes of floats, by keys that ascend: fewer instructions than a maximum that minds NaN and the signs of zeros.
_BY_KEY = {
    "maximum": Merge("uint", "0u", "max({0}, {1})", "order_of", (("value", "of_order({0})"),)),
    "minimum": Merge("uint", "0u", "max({0}, {1})", "order_of_negative", (("value", "negate(of_order({0}))"),)),
}


@cache
def printed(name: str, dtypes: tuple[DType, ...]) -> Merge:
    """The GLSL of a monoid whose fields have these dtypes."""
    if name in _BY_KEY and dtypes[0].category == "f":
        return _BY_KEY[name]
    parameters, results = traced(name, dtypes)
    fields = MONOIDS[name].fields
    identities = [
        glsl.literal(constant_bits(f.identity[d.category], d), d) for f, d in zip(fields, dtypes, strict=True)
    ]
    if len(results) == 1 and results[0].args == parameters:
        return Merge(dtypes[0].glsl, identities[0], OPS[results[0].op].glsl_for(dtypes[0].category))
    kind = f"{name}_{''.join(d.category for d in dtypes)}"
    names: dict[Node, str] = {p: p.attrs[0].note for p in parameters}
    lines = [
        f"    {p.dtype.glsl} {names[p]} = {side}.{f.name};"  # choices must be between plain names
        for p, (side, f) in zip(parameters, [(side, f) for side in "ab" for f in fields], strict=True)
    ]
    lines += glsl.scalar_statements(results, names)
    members = " ".join(f"{d.glsl} {f.name};" for f, d in zip(fields, dtypes, strict=True))
    doc = (MONOIDS[name].merge.__doc__ or MONOIDS[name].doc).strip().splitlines()[0]
    text = [
        f"struct {kind} {{ {members} }};",
        f"// {doc}",
        f"{kind} merge_{kind}({kind} a, {kind} b) {{",
        *lines,
        f"    return {kind}({', '.join(names[r] for r in results)});",
        "}",
    ]
    identity = f"{kind}({', '.join(identities)})"
    parts = tuple((f.name, f"{{0}}.{f.name}") for f in fields)
    return Merge(kind, identity, f"merge_{kind}({{0}}, {{1}})", kind, parts, "\n".join(text))


def ops_of(name: str, dtypes: tuple[DType, ...]) -> list[str]:
    """Rows of the op table that a merge uses."""
    return sorted({n.op for n in toposort(traced(name, dtypes)[1]) if n.kind == "map"})


def flops(name: str, dtypes: tuple[DType, ...]) -> int:
    """Float operations of one merge, a defined function counted by its cost; a row of integers counts as one."""
    nodes = toposort(traced(name, dtypes)[1])
    return max(1, sum(OPS[n.op].cost for n in nodes if n.kind == "map" and n.dtype.category == "f"))
