"""Faults planted for a while: in templates, rows of the op table, lines of Python, barriers, decorations."""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from dataclasses import replace

import jinja2

from vkdnn.codegen import glsl, merges, render
from vkdnn.ir import define, monoids
from vkdnn.ir.ops import OPS
from vkdnn.runtime import recording

# ---- on the side of devices: the reference stays as it is


@contextlib.contextmanager
def template(name, *changes, **names):
    """Within, a template has other text: pairs of what stands in it, once or more, and what stands there instead.

    ``names`` are values that the new text may use.
    """
    environment = render._environment()
    text = environment.loader.get_source(environment, name)[0]
    for old, new in changes:
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    loader = jinja2.ChoiceLoader([jinja2.DictLoader({name: text}), environment.loader])
    other = environment.overlay(loader=loader)
    other.globals = environment.globals | names
    before = render._environment
    render._environment = lambda: other
    render.template_hashes.cache_clear()
    try:
        yield
    finally:
        render._environment = before
        render.template_hashes.cache_clear()


def row(name, form):
    """Within, a row of the op table has another form in GLSL, such as "({0} + {1})"."""
    return other_row(name, glsl=form)


@contextlib.contextmanager
def no_barriers():
    """Within, recordings have no barrier between launches."""
    before = recording.plan_barriers
    recording.plan_barriers = lambda launches: [False] * len(launches)
    try:
        yield
    finally:
        recording.plan_barriers = before


# ---- on both sides


def other_row(name, **fields):
    """Within, a row of the op table has other fields."""
    return entry(OPS, name, replace(OPS[name], **fields))


@contextlib.contextmanager
def entry(table, key, value):
    """Within, a dictionary has another value for a key."""
    before = table[key]
    table[key] = value
    forget()
    try:
        yield
    finally:
        table[key] = before
        forget()


@contextlib.contextmanager
def attribute(owner, name, value):
    """Within, an attribute of a module or class is another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    forget()
    try:
        yield
    finally:
        setattr(owner, name, before)
        forget()


@contextlib.contextmanager
def line(function, old, new):
    """Within, a Python function has other text: all who hold it run the new one."""
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1, f"{function.__qualname__} has {text.count(old)} times {old!r}"
    text = "from __future__ import annotations\n" + text.replace(old, new)
    scope: dict = {}
    exec(compile(text, f"<{function.__qualname__}, planted>", "exec"), function.__globals__, scope)
    before = function.__code__
    function.__code__ = scope[function.__name__].__code__
    forget()
    try:
        yield
    finally:
        function.__code__ = before
        forget()


def forget():
    """Clear what has been traced and printed of rows, monoids and definitions."""
    for module in (glsl, merges, define, monoids):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
