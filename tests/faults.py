"""Faults that take more than a line: rules of differentiation, merges, passes, plans, draws. See tests/mutations.py.

Each is a function that gives a context manager; after it everything is as it was.
"""

from __future__ import annotations

import itertools
import tempfile
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import planted

import vkdnn as vk
from vkdnn import program, shader
from vkdnn.autodiff import scans, vjp
from vkdnn.codegen import glsl, merges
from vkdnn.ir import build, monoids
from vkdnn.ir.elementary import exponential
from vkdnn.ir.monoids import MONOIDS
from vkdnn.kernels import scan
from vkdnn.runtime.info import Strategies
from vkdnn.shader import compiler

Within = AbstractContextManager[Any]

LANES = "bitfieldReverse(step) >> {{ 32 - lane_bits }}u"
"""Of templates/fold.comp.j2: the lane that an invocation visits in a step."""

# ---- differentiation


def slices_one_off() -> Within:
    """The gradient of a slice is moved by one along each axis of which something is cut off."""
    rule = vjp.RULES["slice"]

    def wrong(node: Any, g: Any) -> Any:
        (found,) = rule(node, g)
        for axis, (m, n) in enumerate(zip(node.shape, node.args[0].shape, strict=True)):
            if m < n:
                found = vk.roll(vk.Array(found), 1, axis).node
        return (found,)

    return planted.entry(vjp.RULES, "slice", wrong)


def take_sets() -> Within:
    """The gradient of take puts where it should add: of several the last stays."""

    def wrong(node: Any, g: Any) -> Any:
        table, index = node.args
        return (vk.scatter(vk.zeros(table.shape), vk.Array(index), vk.Array(g)).node, None)

    return planted.entry(vjp.RULES, "take", wrong)


def third_input_over_rows() -> Within:
    """Of the third input [n] beside a square, the gradient is made of sums of rows in place of those of columns."""
    rule = vjp.RULES["broadcast"]

    def wrong(node: Any, g: Any) -> Any:
        source = node.args[0]
        if source.kind == "reshape" and source.args[0].kind == "leaf" and str(source.args[0].attrs[0]) == "input 2":
            return (build.permute(build.fold("add", g, (1,)), (1, 0)),)
        return rule(node, g)

    return planted.entry(vjp.RULES, "broadcast", wrong)


def keys_unscaled() -> Within:
    """Of attention with heads of 4, the gradient of the keys without the factor 1/2."""
    rule = vjp.attention_rule

    def wrong(*given: Any) -> Any:
        dq, dk, *others = rule(*given)
        return [dq, dk * 2.0, *others]

    return planted.attribute(vjp, "attention_rule", wrong)


def scan_late() -> Within:
    """The first gradient of a scan comes a token too late."""

    def wrong(*given: Any) -> Any:
        first, *others = scans.scan_rule(*given)
        return [vk.roll(vk.Array(first), 1, 1).node, *others]

    return planted.entry(vjp.CALL_RULES, scan.FAMILY, wrong)


# ---- monoids and constants


def argmax_to_the_right() -> Within:
    """The device's argmax takes the later of equal values, while the reference takes the first."""

    def traced(name: str, dtypes: Any) -> Any:
        parameters, results = monoids.traced(name, dtypes)
        if name == "argmax":
            a, i, b, j = parameters
            value, index = monoids._position(a, -i, b, -j, a < b)
            results = (value, -index)
        return parameters, results

    return planted.attribute(merges, "traced", traced)


def positive_identity() -> Within:
    """Spare lanes of a sum hold +0: a sum of -0 alone is lost."""
    add = MONOIDS["add"]
    field = replace(add.fields[0], identity={"f": 0.0, "i": 0, "u": 0})
    return planted.entry(MONOIDS, "add", replace(add, fields=(field,)))


def other_literal(value: float) -> Within:
    """A constant of float32 in GLSL has its last bit changed."""
    literal, bits = glsl.literal, int(np.float32(value).view(np.uint32))
    return planted.attribute(glsl, "literal", lambda b, dtype: literal(b ^ (b == bits), dtype))


def other_coefficient(factor: float) -> Within:
    """The coefficient of r**3 in exp, on both sides."""
    found = list(exponential._EXP)
    found[1] = float(np.float32(found[1] * factor))
    return planted.attribute(exponential, "_EXP", tuple(found))


# ---- kernels


def guard_short() -> Within:
    """A pad's array ends one early."""
    guard = glsl.guard
    return planted.attribute(glsl, "guard", lambda g, dims: guard(replace(g, high=g.high - 1), dims))


def indices_not_clamped() -> Within:
    return planted.attribute(glsl, "clamped", lambda index, dtype, extent: f"uint({index})")


@contextmanager
def quotients_one_low() -> Any:
    """A device without exact division of its own, whose quotients are cut off where they should be rounded."""
    with (
        planted.attribute(Strategies, "defines", property(lambda _: ("VKDNN_DIVIDE_REMAINDER",))),
        planted.template(
            "numerics.glsl", ("int r = ((e - 1) << 23) + int((q + 1u) >> 1);", "int r = ((e - 1) << 23) + int(q >> 1);")
        ),
    ):
        yield


def sums_by_chance() -> Within:
    """The order of the lanes is drawn anew for every recording, as by a seed of the host."""
    draws = itertools.count(1)
    change = (LANES, '{{ drawn("bitfieldReverse(step) >> %du" % (32 - lane_bits)) }}')
    return planted.template("fold.comp.j2", change, drawn=lambda usual: usual if next(draws) % 2 else "step")


@contextmanager
def one_decoration_dropped() -> Any:
    """The pass over the SPIR-V leaves the last float operation as it is; in a store of its own."""
    decorate = compiler.decorate_no_contraction

    def careless(words: list[int]) -> list[int]:
        found = decorate(words)
        last = max(k for k in range(5, len(found) - 2) if found[k] == 3 << 16 | 71 and found[k + 2] == 42)
        return [*found[:last], *found[last + 3 :]]

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(patch.dict("os.environ", VKDNN_CACHE_DIR=folder))
        stack.enter_context(patch.object(compiler, "decorate_no_contraction", careless))
        stack.enter_context(patch.object(shader, "_memo", {}))
        yield


def memory_shared() -> Within:
    """All intermediates lie at the start of their arena, whether others live there or not."""
    plan_arenas = program.plan_arenas

    def wrong(lives: Any, max_words: int) -> Any:
        plan = plan_arenas(lives, max_words)
        return replace(plan, places={node: (arena, 0) for node, (arena, _) in plan.places.items()})

    return planted.attribute(program, "plan_arenas", wrong)
