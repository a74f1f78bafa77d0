"""The grid: hard values through every operation at every critical length.

A group is one Program: several operations of the same arrays, so that few shaders are compiled; elementwise groups
share theirs over all lengths. Nothing is computed here; vkdnn.check.parity compares the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import vkdnn as vk
from vkdnn.check.attention_cases import DEEP, SCORED, SEEN, Case, pairwise
from vkdnn.check.hard import HARD_FLOATS, HARD_INTS, random_bits
from vkdnn.ir.ops import OPS
from vkdnn.ops.elementwise import isnan, stop_gradient, where

LENGTHS = (0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 257, 32767, 32768, 32769)
SHORT = tuple(n for n in LENGTHS if n < 300)
DTYPES = {"f": "float32", "h": "float16", "e": "bfloat16", "i": "int32", "u": "uint32", "b": "bool"}
_TAKES = {"f": "fhe", "i": "iu", "u": "u", "n": "fheiu", "x": "iub", "b": "b", "a": "fheiub"}
_HALVES = np.arange(1 << 16, dtype=np.uint16)

Arrays = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True)
class Group:
    """Operations of one Program: ``function(*arrays)`` gives a tree of results for each name."""

    family: str
    length: int
    names: tuple[str, ...]
    arrays: Arrays
    function: Callable[..., list[Any]]


@dataclass(frozen=True)
class Size:
    """What of the grid to run. ``cost`` bounds op-table rows; ``wide`` adds axes, dtypes and sizes of products."""

    elementwise: tuple[int, ...] = LENGTHS
    rows: tuple[int, ...] = LENGTHS
    scans: tuple[int, ...] = SHORT[1:]
    seeds: int = 1
    cost: int = 1000
    storage_cost: int = 1000  # the same for storage types, which the rows compute as float32
    together: int = 8  # rows of the op table in one kernel
    wide: bool = False


SMALL = Size(elementwise=(0, 1, 65, 32769), rows=(65,), scans=(2,), cost=9, storage_cost=1, together=6)
# Where each length needs shaders of its own: those on both sides of every border.
CI = Size(rows=(0, 1, 2, 65, 127, 129, 257, 32768, 32769), scans=(1, 63, 65, 129), storage_cost=9)
FULL = Size(rows=(*LENGTHS, 4096, 65537), scans=(*SHORT[1:], 1000), seeds=3, wide=True)


SIZES = {"small": SMALL, "ci": CI, "full": FULL}


def groups(size: Size = CI, families: Iterable[str] | None = None) -> Iterator[Group]:
    """The groups of the grid, of some families (names in FAMILIES) or of all."""
    for name in FAMILIES if families is None else families:
        yield from FAMILIES[name](size)


# ---- values


def operands(kind: str, n: int, seed: int = 0) -> Arrays:
    """Four arrays of n values: pairs of hard values as far as there is room, every third pair of random bits, and
    both of them backwards."""
    rng = np.random.default_rng([n, seed])
    if kind in "he":
        halves = [rng.permutation(_HALVES)[:n] for _ in range(2)]
        a, b = (x.view(np.float16 if kind == "h" else ml_dtypes.bfloat16) for x in halves)
    else:
        hard = {"f": HARD_FLOATS, "i": HARD_INTS, "u": HARD_INTS.view(np.uint32), "b": np.array([False, True])}[kind]
        chosen = np.resize(rng.permutation(hard.size**2), n)
        a, b = hard[chosen % hard.size], hard[chosen // hard.size]
        if kind == "f":
            a[::3], b[::3] = random_bits(a[::3].size, n + seed), random_bits(a[::3].size, n + seed + 1000)
    return a, b, a[::-1].copy(), b[::-1].copy()


def hard_rows(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """[7, n]: ordinary, wide, vanishing, negative-zero and hard finite rows; one with a NaN, one with an infinity."""
    rng = np.random.default_rng([n, seed])
    normal = rng.standard_normal(n)
    finite = HARD_FLOATS[np.isfinite(HARD_FLOATS)]
    with_nan, with_inf = normal.copy(), normal.copy()
    with_nan[n // 2 : n // 2 + 1], with_inf[-1:] = np.nan, -np.inf
    rows = [
        normal,
        rng.standard_normal(n) * 2.0 ** rng.integers(-60, 60, n),
        rng.standard_normal(n) * 2.0**-125,
        np.full(n, -0.0),
        rng.permutation(np.resize(finite, n)),
        with_nan,
        with_inf,
    ]
    return np.stack(rows).astype(np.float32)


def hard_integers(rows: int, n: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).choice(HARD_INTS, (rows, n))


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


# ---- rows of the op table


def takes(kind: str) -> list[str]:
    """Rows that take arguments of this kind (a key of DTYPES)."""
    leading = {name: next((t for t in op.types[: op.arity] if t != "b"), "b") for name, op in OPS.items()}
    return [name for name, letter in leading.items() if kind in _TAKES[letter]]


def apply_row(name: str, given: list[Any]) -> Any:
    """A row on as many of four arrays as it takes, from the first again after the last; a condition is a comparison of
    two of them.
    """
    op, given = OPS[name], [*given, *given]
    letters = op.types[: op.arity]
    if letters[0] == "b" and letters.strip("b"):
        chosen = [given[0] == given[2], *given[: op.arity - 1]]
    else:
        chosen = given[: op.arity]
    if name.startswith("bits_") and chosen[0].dtype.category == "f":
        chosen = [where(isnan(chosen[0]), 1.0, chosen[0])]  # which NaN it is, is nobody's promise
    return chosen[0]._map(name, *chosen)


def _rows_of_the_table(kinds: str, size: Size) -> Iterator[Group]:
    for kind in kinds:
        dtype = DTYPES[kind]
        names = [n for n in takes(kind) if OPS[n].cost <= (size.storage_cost if kind in "he" else size.cost)]
        for start in range(0, len(names), size.together):
            few = tuple(names[start : start + size.together])

            def run(*arrays: Any, few: tuple[str, ...] = few) -> list[Any]:
                given = [stop_gradient(x) for x in arrays]  # a row of its own, so that the group shares a kernel
                return [apply_row(name, given) for name in few]

            for n in size.elementwise:
                for seed in range(size.seeds):
                    yield Group(f"rows of {dtype}", n, few, operands(kind, n, seed), run)


def _casts(size: Size) -> Iterator[Group]:
    for kind, dtype in DTYPES.items():

        def run(x: Any, *_: Any) -> list[Any]:
            x = stop_gradient(x)
            return [x.astype(to) for to in DTYPES.values()]

        for n in size.elementwise:
            yield Group(f"casts of {dtype}", n, tuple(DTYPES.values()), operands(kind, n, 5), run)


# ---- along rows

FOLDS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: vk.sum(x, -1),
    "prod": lambda x: vk.prod(x, -1),
    "mean": lambda x: vk.mean(x, -1),
    "var": lambda x: vk.var(x, -1, correction=1),
    "std": lambda x: vk.std(x, -1),
    "max": lambda x: vk.max(x, -1),
    "min": lambda x: vk.min(x, -1),
    "argmax": lambda x: vk.argmax(x, -1),
    "argmin": lambda x: vk.argmin(x, -1),
    "any": lambda x: vk.any(x, -1),
    "all": lambda x: vk.all(x, -1),
    "norm": lambda x: [vk.norm(x, ord, -1) for ord in (2, 1, float("inf"))],
    "logsumexp": vk.logsumexp,
    "logsumexp one_pass": lambda x: vk.logsumexp(x, one_pass=True),
    "moments": lambda x: vk.moments(x, -1),
}
OF_NONE = {n: f for n, f in FOLDS.items() if n not in ("max", "min", "argmax", "argmin", "norm")}
INTEGER_FOLDS = {n: FOLDS[n] for n in ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all")}
NORMS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w, b: vk.softmax(x),
    "log_softmax": lambda x, w, b: vk.log_softmax(x),
    "rms_norm": lambda x, w, b: vk.rms_norm(x, w),
    "layer_norm": lambda x, w, b: vk.layer_norm(x, w, b),
    "l2_norm": lambda x, w, b: vk.l2_norm(x),
    "group_norm": lambda x, w, b: vk.group_norm(x.reshape(x.shape[0], 1, -1), 1),
    "batch_norm": lambda x, w, b: vk.batch_norm(x.T, training=True)[0],
}


def _group(family: str, functions: dict[str, Callable[..., Any]], n: int, *arrays: np.ndarray[Any, Any]) -> Group:
    def run(*xs: Any) -> list[Any]:
        return [f(*xs) for f in functions.values()]

    return Group(family, n, tuple(functions), arrays, run)


def _folds(size: Size) -> Iterator[Group]:
    for n in size.rows:
        integers = {k: f for k, f in INTEGER_FOLDS.items() if n or k in OF_NONE}
        for seed in range(size.seeds):
            yield _group("folds", FOLDS if n else OF_NONE, n, hard_rows(n, seed))
        if size.wide or n in (0, 3, 129, 32769):
            yield _group("folds of int32", integers, n, hard_integers(2, n))
            half = {k: FOLDS[k] for k in ("sum", "mean", "logsumexp", "moments")}
            yield _group("folds of bfloat16", half, n, hard_rows(n).astype(ml_dtypes.bfloat16))
        if size.wide:
            yield _group("folds of uint32", integers, n, hard_integers(2, n).view(np.uint32))
            yield _group("folds of bool", integers, n, hard_integers(2, n) % 3 != 0)
            yield _group("folds of float16", half, n, _half(hard_rows(n)))
            first = {k: (lambda x, f=f: f(x.T)) for k, f in (FOLDS if n else OF_NONE).items()}
            yield _group("folds of the first axis", first, n, np.ascontiguousarray(hard_rows(n).T))


def _half(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def _norms(size: Size) -> Iterator[Group]:
    for n in size.rows:
        rng = np.random.default_rng(n)
        norms = {k: f for k, f in NORMS.items() if n > 1 or k != "batch_norm"}
        yield _group("norms", norms, n, hard_rows(n, 1), _normal(rng, n), _normal(rng, n))
        if size.wide:
            yield _group("norms of float16", norms, n, _half(hard_rows(n, 1)), _normal(rng, n), _normal(rng, n))


def _cumulations(size: Size) -> Iterator[Group]:
    functions: dict[str, Callable[..., Any]] = {
        "cumsum": lambda x, a: vk.cumsum(x, -1),
        "cumprod": lambda x, a: vk.cumprod(x, -1),
        "cummax": lambda x, a: vk.cummax(x, -1),
        "cummin reversed": lambda x, a: vk.cummin(x, -1, reverse=True),
        "linear_recurrence": lambda x, a: vk.linear_recurrence(a, x),
    }
    integers = {k: (lambda x, f=f: f(x, None)) for k, f in functions.items() if k != "linear_recurrence"}
    for n in size.rows:
        a = np.random.default_rng(n).uniform(0.5, 1.1, n).astype(np.float32)
        yield _group("cumulations", functions, n, hard_rows(n, 2), a)
        if size.wide or n in (0, 65, 257):
            yield _group("cumulations of int32", integers, n, hard_integers(2, n))


def _sorts(size: Size) -> Iterator[Group]:
    functions: dict[str, Callable[..., Any]] = {
        "sort": vk.sort,
        "argsort": lambda x: vk.argsort(x, descending=True),
        "top_k": lambda x: list(vk.top_k(x, min(3, x.shape[-1]))),
    }
    for n in size.rows:
        yield _group("sorts", functions, n, hard_rows(n, 3))
        if size.wide or n in (0, 65, 257):
            yield _group("sorts of int32", functions, n, hard_integers(2, n))
        if size.wide:
            yield _group("sorts of float16", functions, n, _half(hard_rows(n, 3)))


# ---- products, indices, shapes, scans


def _products(size: Size) -> Iterator[Group]:
    functions: dict[str, Callable[..., Any]] = {
        "3 rows": lambda a, b: a[:3] @ b[:, :5],
        "7 rows": lambda a, b: a @ b + 1.0,
    }
    if size.wide:
        functions |= {
            "transposed": lambda a, b: b.T @ a.T,
            "of a batch": lambda a, b: vk.stack([a, a * 2.0]) @ vk.stack([b, -b]),
            "of bfloat16": lambda a, b: a.astype("bfloat16") @ b.astype("bfloat16"),
            "dot": lambda a, b: vk.dot(a[0], b[:, 0]),
        }
    for n in size.rows:
        yield _group("products", functions, n, hard_rows(n, 4), _normal(np.random.default_rng(n), n, 9))


def _indices(size: Size) -> Iterator[Group]:
    functions: dict[str, Callable[..., Any]] = {
        "take": lambda x, at, u: vk.take(x, at),
        "take_along_axis": lambda x, at, u: vk.take_along_axis(x, at.reshape(-1, 1), 0),
        "scatter_add": lambda x, at, u: vk.scatter_add(x, at, u),
        "scatter": lambda x, at, u: vk.scatter(x, at, u),
        "gradient of take": lambda x, at, u: vk.grad(lambda x: vk.sum(vk.take(x, at) * u))(x),
    }
    for n in size.rows:
        if n:
            rng = np.random.default_rng(n)
            at = np.minimum(rng.integers(0, n, n), rng.integers(0, n, n)).astype(np.int32)
            at[n // 2 :: 7], at[n // 3 :: 11] = n + 1, -n - 1  # out of range: the last and the first
            yield _group("indices", functions, n, operands("f", 3 * n)[0].reshape(n, 3), at, _normal(rng, n, 3))


def _shapes(size: Size) -> Iterator[Group]:
    functions: dict[str, Callable[..., Any]] = {
        "transpose": lambda x: x.T + 0.0,
        "reshape": lambda x: x.T.reshape(-1) * 1.0,
        "flip": lambda x: vk.flip(x, -1),
        "slice": lambda x: x[:, 1::2],
        "pad": lambda x: vk.pad(x, [(1, 0), (2, 3)]),
        "concatenate": lambda x: vk.concatenate([x, -x], 1),
        "stack": lambda x: vk.stack([x, x[::-1]], 2),
        "tile": lambda x: vk.tile(x, (2, 2)),
        "repeat": lambda x: vk.repeat(x, 3, 1),
        "roll": lambda x: vk.roll(x, 1, 1),
        "tril": vk.tril,
    }
    for n in size.rows:
        yield _group("shapes", functions, n, operands("f", 3 * n, 6)[0].reshape(3, n))
        if size.wide:
            halves = operands("h", min(3 * n, 65536), 6)[0]
            yield _group("shapes of float16", functions, n, np.resize(halves, (3, n)))


def _scans(size: Size) -> Iterator[Group]:
    def scan(order: str) -> Callable[..., Any]:
        def run(k: Any, v: Any, p: Any, r: Any, a0: Any, b0: Any, starts: Any) -> list[Any]:
            prefix = vk.scan_prefix_outer(k, v, p, r, a0, b0, boundary=starts, order=order)
            suffix = vk.scan_suffix_outer(vk.outer_col(v, k), p, r, boundary=starts, order=order)
            return [x for x in (*prefix, *suffix) if x is not None]

        return run

    functions = {order: scan(order) for order in ("sequential", "chunked")}
    for tokens in size.scans:
        for heads, key, value in ((1, 3, 2), (2, 33, 64)) if size.wide else ((1, 3, 2),):
            rng = np.random.default_rng(tokens)
            per_token = [_normal(rng, 2, tokens, heads, m) for m in (key, value, key, value)]
            states = _normal(rng, heads, key, key), _normal(rng, heads, value, key)
            starts = (rng.random((2, tokens)) < 0.05).astype(np.int32)
            yield _group("scans", functions, tokens, *per_token, *states, starts)


def _attention(size: Size) -> Iterator[Group]:
    """A call in the CI; in full every mask and score alone, every pair of what can be combined, and deep widths."""
    few = [Case("causal", "all", documents=True, sinks=True, dropout=0.3, lengths=(size.scans[-1], 129))]
    for case in [*SEEN, *SCORED, *pairwise(), *DEEP] if size.wide else few:
        values = case.values()
        run = case.run()
        yield Group("attention", case.lengths[1], (repr(case),), tuple(values.values()), lambda *x, run=run: [run(*x)])


FAMILIES: dict[str, Callable[[Size], Iterator[Group]]] = {
    "rows of float32": partial(_rows_of_the_table, "f"),
    "rows of float16 and bfloat16": partial(_rows_of_the_table, "he"),
    "rows of integers and bools": partial(_rows_of_the_table, "iub"),
    "casts": _casts,
    "folds": _folds,
    "norms": _norms,
    "cumulations": _cumulations,
    "sorts": _sorts,
    "products": _products,
    "indices": _indices,
    "shapes": _shapes,
    "scans": _scans,
    "attention": _attention,
}
