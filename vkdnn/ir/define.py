"""Defined ops: an elementary function is traced once into a DAG of op-table rows, which is all that exists of it.

The DAG is interpreted here and printed as a GLSL function by vkdnn.codegen; neither may change the order of operations.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from vkdnn.dtypes import float32, uint32
from vkdnn.ir.node import Node, const_value, leaf, toposort
from vkdnn.ir.ops import OPS, Op

CHUNK = 1 << 14  # elements interpreted at a time: the temporaries of a definition stay in cache


@cache
def definition(name: str) -> tuple[tuple[Node, ...], Node]:
    """Parameters (float32 or uint32, by the row's types) and result of a defined op; all scalars."""
    op = OPS[name]
    assert op.define is not None, name
    kinds = [uint32 if letter == "u" else float32 for letter in op.types[: op.arity]]
    parameters = tuple(leaf((), kind, f"x{i}" if op.arity > 1 else "x") for i, kind in enumerate(kinds))
    return parameters, op.define(*parameters)


Plan = tuple[list[tuple[Any, tuple[int, ...], tuple[int, ...]]], tuple[int, ...]]


def plan(parameters: tuple[Node, ...], results: tuple[Node, ...]) -> Plan:
    """A DAG of scalars as a list of (function or constant, argument positions, positions not needed afterwards), and
    the positions of its results.
    """
    order = list(parameters) + [n for n in toposort(results) if n.kind != "leaf"]
    position = {n: i for i, n in enumerate(order)}
    last = {position[a]: position[n] for n in order for a in n.args}
    last |= {position[r]: len(order) for r in results}
    steps: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = []
    for i, node in enumerate(order[len(parameters) :], len(parameters)):
        if node.kind == "const":
            steps.append((const_value(node), (), ()))
        else:
            args = tuple(position[a] for a in node.args)
            row = OPS[node.op]
            steps.append((_function(row), args, tuple({a for a in args if last[a] == i})))
    return steps, tuple(position[r] for r in results)


@cache
def _plan(name: str) -> Plan:
    parameters, result = definition(name)
    return plan(parameters, (result,))


def _function(row: Op) -> Any:
    if row.numpy is not None:
        return row.numpy
    return lambda *arrays: interpret(_plan(row.name), arrays)[0]


def interpret(plan: Plan, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a plan for values of its parameters."""
    steps, results = plan
    values: list[Any] = list(arrays)
    for function, args, done in steps:
        values.append(function(*(values[a] for a in args)) if args else function)
        for a in done:
            values[a] = None
    return tuple(values[r] for r in results)


def evaluate(name: str, *arrays: Any) -> Any:
    """One op on NumPy arrays of flushed values; call inside ``numerics.basic.exact()``."""
    op = OPS[name]
    if op.numpy is not None:
        return op.numpy(*arrays)
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    flat = [np.broadcast_to(a, shape).ravel() for a in arrays]
    out = np.empty(flat[0].shape, definition(name)[1].dtype.numpy)
    for start in range(0, out.size, CHUNK):
        piece = slice(start, start + CHUNK)
        (out[piece],) = interpret(_plan(name), tuple(a[piece] for a in flat))
    return out.reshape(shape)
