"""Symbolic sizes: canonical expressions, decisions by range, guards, and what they refuse."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

from vkdnn.errors import ArgumentError
from vkdnn.ir import dims
from vkdnn.ir.dims import evaluate, formula, guards, largest, smallest, symbol
from vkdnn.ir.symbolic import alike, concrete, definitions, symbols


@pytest.fixture
def tokens() -> int:
    return symbol("tokens", 100, 1, 4096)


@pytest.fixture
def batch() -> int:
    return symbol("batch", 3, 1, 8)


def test_a_size_is_an_int_with_an_expression(tokens: int) -> None:
    blocks = -(-tokens * 64 // 128)
    assert isinstance(blocks, int)
    assert str(blocks) == "((tokens[1..4096] + 1) // 2)"
    assert formula(blocks) == ["//", ["+", "tokens", 1], 2]
    assert [evaluate(formula(blocks), {"tokens": n}) for n in (1, 2, 99, 4096)] == [1, 1, 50, 2048]
    assert (smallest(blocks), largest(blocks)) == (1, 2048)


def test_equal_expressions_are_one(tokens: int, batch: int) -> None:
    for a, b in [
        (tokens * 64 // 64, tokens),
        (batch * tokens * 64 // (tokens * 64), batch),
        (tokens // 64 * 64 + tokens % 64, tokens),
        (tokens + -tokens % 64, (tokens + 63) // 64 * 64),
        (-(-tokens // 128), (tokens + 127) // 128),
        ((tokens + 1) * (tokens + 2) // (tokens + 1), tokens + 2),
        (tokens**2, tokens * tokens),
        (tokens << 3, 8 * tokens),
        (tokens & 63, tokens % 64),
        (tokens * 100 // 64, tokens * 25 // 16),
        (sum([tokens, 1, batch]), 1 + batch + tokens),
        (math.prod((batch, tokens, 4)), 4 * tokens * batch),
    ]:
        assert dims.same(a, b), (a, b)
        assert a == b and hash(a.form) == hash(b.form) and str(a) == str(b)
    assert type(tokens - tokens) is int and tokens * 0 == 0
    assert {(tokens.form, 64): 1}[((tokens * 1).form, 64)] == 1


def test_expressions_have_the_values_of_python() -> None:
    values = list(itertools.product(range(1, 12), range(1, 5)))
    t, b = symbol("t", 7, 1, 11), symbol("b", 2, 1, 4)
    cases: list[Any] = [
        lambda t, b: (t * b + 5) // 3 - t % 4,
        lambda t, b: -(-(t - 3) // 4) * 4 + (b * t) % 5,
        lambda t, b: (t * t * b - t) // (b + 1),
        lambda t, b: divmod(7 * t - 2 * b, 6)[0] * 10 + divmod(7 * t - 2 * b, 6)[1],
        lambda t, b: (100 * t + 31) // 64 + (t >> 1) + (t & 7),
        lambda t, b: (b * t) // (t + 1) + 100 % t + 50 // b,
        lambda t, b: dims.minimum(t, 3 * b) - dims.maximum(t * b, 9),
        lambda t, b: -t // 4 + (-t) % 4 + (3 - t) // 2,
    ]
    for case in cases:
        found = case(t, b)
        low, high = smallest(found), largest(found)
        for x, y in values:
            want = case(x, y)
            assert evaluate(formula(found), {"t": x, "b": y}) == want
            assert concrete(found, {"t": x, "b": y}) == want
            assert low <= want <= high


def test_shaders_compute_the_same_in_32_bits() -> None:
    t, b = symbol("t", 90, 1, 300), symbol("b", 2, 1, 4)
    forms = [t * b - 5, -(-t // 128) * 128 - t, dims.maximum((t + 127) // 128 - 2, 0) * b, t % 64 + (t - b) * -3]
    with dims.named() as names:
        printed = [f"{x}u" for x in forms]
    macros = [line.split(" ", 2)[1:] for line in definitions(names)]
    assert printed == [name for name, _ in macros[::2]] == [f"size{k}u" for k in range(4)]
    for x, (_, text) in zip(forms, macros[::2], strict=True):
        code = re.sub(r"(\d+)u", r"U(\1)", text).replace("/", "//")
        for values in ({"t": 1, "b": 1}, {"t": 128, "b": 4}, {"t": 129, "b": 3}, {"t": 300, "b": 4}):
            known = {f"symbol_{name}": np.uint32(n) for name, n in values.items()}
            with np.errstate(over="ignore"):
                found = eval(code, {"U": np.uint32, "uint": np.uint32, "int": np.int32, "max": max, **known})
            assert np.uint32(found).view(np.int32) == evaluate(formula(x), values)
    for wrong in (t * 2**30, (t - 5) // b):
        with dims.named() as names:
            str(wrong)
        with pytest.raises(ArgumentError, match="narrow the ranges"):
            definitions(names)


def test_ranges_decide(tokens: int, batch: int) -> None:
    assert tokens > 0 and tokens <= 4096 and not tokens > 4096 and tokens < 5000
    assert batch * tokens >= batch and tokens != 0 and bool(tokens) and tokens * 2 != 5
    assert 0 <= -tokens % 64 < 64 and (tokens + 63) // 64 * 64 >= tokens
    assert abs(-tokens) == tokens
    assert dims.same(dims.minimum(tokens, 65_535), tokens) and dims.same(dims.maximum(1, tokens), tokens)
    assert dims.never_above(tokens, tokens * batch) and not dims.never_above(tokens, 128)


def test_the_hint_decides_with_a_guard(tokens: int) -> None:
    with guards() as found:
        assert tokens < 128
    with pytest.raises(ArgumentError, match=r"tokens from 1 to 4096: .* tokens from 1 to 127 .*tokens.* < 128"):
        found.check()
    with guards() as found:
        assert tokens != 128
        assert tokens > 64
    with pytest.raises(ArgumentError, match="tokens from 65 to 127"):
        found.check()
    with guards() as found:
        assert tokens % 64
    with pytest.raises(ArgumentError, match="tokens from 65 to 127"):
        found.check()


def test_guards_that_hold_pass() -> None:
    t = symbol("t", 130, 129, 1 << 20)
    with guards() as found:
        assert t * t > t * 128  # more than is decided at once, but it holds
    found.check()
    wide, other = symbol("a", 5, 1, 1 << 20), symbol("b", 5, 1, 1 << 20)
    with guards() as found:
        assert wide * other < 100
    with pytest.raises(ArgumentError, match="cannot be checked"):
        found.check()


def test_guards_of_two_symbols_name_a_box(tokens: int, batch: int) -> None:
    with guards() as found:
        assert batch * tokens < 1000
    with pytest.raises(ArgumentError, match=r"expected tokens from 1 to 124"):
        found.check()


def test_outside_of_guards_nothing_is_guessed(tokens: int) -> None:
    with pytest.raises(ArgumentError, match="inside"):
        assert tokens < 128


def test_the_hint_never_leaks(tokens: int) -> None:
    assert "100" not in f"{tokens} {tokens!r} {[tokens * 2]}"
    for leak in (int, float, math.sqrt, lambda x: x / 2, lambda x: 2 / x, lambda x: x | 1, lambda x: f"{x:5}"):
        with pytest.raises(ArgumentError, match="tokens"):
            leak(tokens)
    with pytest.raises(ArgumentError, match="bit_length"):
        tokens.bit_length()
    with pytest.raises(ArgumentError, match="divisor may be"):
        5 // (tokens - 1)


def test_traces_with_several_hints_show_what_leaks() -> None:
    traced = [
        [(t, 64), t * 64, len(range(t)) if leaks else 0]
        for leaks in (False, True)
        for t in (symbol("t", hint, 1, 300) for hint in dims.hints(1, 300))
    ]
    alike(traced[:5])
    with pytest.raises(ArgumentError, match="keep that axis concrete"):
        alike(traced[5:])
    assert {1, 300} < set(dims.hints(1, 300)) and dims.hints(5, 5) == (5,) * 5


def test_structures(tokens: int, batch: int) -> None:
    held = {"shape": (batch, tokens, 64), "rest": [tokens % 64, "name"]}
    assert [s.name for s in symbols(held)] == ["batch", "tokens"]
    assert concrete(held, {"batch": 2, "tokens": 65}) == {"shape": (2, 65, 64), "rest": [1, "name"]}


def test_copies_are_equal(tokens: int) -> None:
    size = -(-tokens * 3 // 64)
    assert copy.copy(size) is size and copy.deepcopy((size,))[0] is size
    assert dims.same(pickle.loads(pickle.dumps(size)), size)


def test_symbols_are_checked() -> None:
    assert symbol("t", 5, 5, 5) == 5 and type(symbol("t", 5, 5, 5)) is int
    for arguments, message in [
        (("a b", 1, 1, 2), "name"),
        (("a__b", 1, 1, 2), "name"),
        (("t", 9, 1, 8), "hint is 9"),
        (("t", 1, 0, 8), "range from 0 to 8"),
        (("t", 1, 4, 2), "range from 4 to 2"),
        (("t", 1.5, 1, 2), "hint is 1.5"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            symbol(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no value for 'tokens'"):
        evaluate(["*", 2, "tokens"], {"batch": 1})


def test_numpy_integers_meet_sizes(tokens: int) -> None:
    assert dims.same(tokens + np.int64(1), tokens + 1) and dims.same(np.int64(1) + tokens, tokens + 1)
