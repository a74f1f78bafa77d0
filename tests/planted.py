"""Faults planted on the side of devices: templates, rows, barriers, decorations. The reference stays as it is."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import jinja2

from vkdnn.codegen import glsl, merges, render
from vkdnn.ir.ops import OPS
from vkdnn.runtime import kompute


@contextlib.contextmanager
def template(name, *changes):
    """Within, a template has other text: pairs of what stands in it, once or more, and what stands there instead."""
    environment = render._environment()
    text = environment.loader.get_source(environment, name)[0]
    for old, new in changes:
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    loader = jinja2.ChoiceLoader([jinja2.DictLoader({name: text}), environment.loader])
    other = environment.overlay(loader=loader)
    before = render._environment
    render._environment = lambda: other
    render.template_hashes.cache_clear()
    try:
        yield
    finally:
        render._environment = before
        render.template_hashes.cache_clear()


@contextlib.contextmanager
def row(name, form):
    """Within, a row of the op table has another form in GLSL, such as "({0} + {1})"."""
    before = OPS[name]
    OPS[name] = replace(before, glsl=form)
    _forget()
    try:
        yield
    finally:
        OPS[name] = before
        _forget()


def _forget():
    for module in (glsl, merges):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@contextlib.contextmanager
def no_barriers():
    """Within, recordings have no barrier between launches."""
    before = kompute.plan_barriers
    kompute.plan_barriers = lambda launches: [False] * len(launches)
    try:
        yield
    finally:
        kompute.plan_barriers = before
