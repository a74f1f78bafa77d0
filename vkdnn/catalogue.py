"""Every operation of vkdnn on one screen: dtypes, gradient, bound of the error, order. `vkdnn ops` and docs/ops.md.

Rows of the op table speak for themselves; everything else has a line in GROUPS. A public array function without an
entry, or an entry without its function, fails a test.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import vkdnn as vk
from vkdnn.ir.node import Node, leaf
from vkdnn.ir.ops import OPS, Op
from vkdnn.ops import elementwise

ORDERS = {
    "fold": (
        "fold (sum, max, mean, softmax's sums, ...) over n elements",
        "128 lanes; lane j takes elements j, j + 128, ... in sequence; then a tree over the lanes (stride 64, 32, ... "
        "1); lanes past the end hold the identity (-0.0 for a sum). More than 32,768 elements: spans of 32,768 folded "
        "so, then the results of the spans in the same way. Elements may be tuples (argmax, moments, one-pass "
        "logsumexp; `vkdnn/ir/monoids.py`): of two merged, the left one is what came before, or the lower lane",
    ),
    "product": (
        "product over k",
        "blocks of 128 along k: inside a block in sequence from +0; the first block's sum, then the others added in "
        "sequence",
    ),
    "cumulation": (
        "cumulation (cumsum, ..., linear recurrence) along an axis",
        "blocks of 128: inside a block in sequence from its first element; the totals of the blocks are cumulated by "
        "the same rule; what that gives meets each element of the next block once, and a recurrence runs on from it",
    ),
    "scatter": (
        "scatter-add (gradients of `take` and `take_along_axis`; `scatter_add`)",
        "each row: +0, or the row added to, then its contributions in ascending source index; no atomics",
    ),
    "attention": (
        "attention over keys",
        "blocks of 128 keys from key 0 of the sequence: maximum, fold of the exponentials, weighted sum of values from "
        "+0 in sequence over the keys seen; blocks merged left to right, a sink last. Gradients: blocks of 128 keys "
        "(for keys and values: of 128 queries, in each the heads of the group), in sequence from +0; the first sum, "
        "then the others added in sequence; blocks without a pair left out. In full in `vkdnn/kernels/attention.py`",
    ),
    "sequential": (
        "scan, sequential",
        "state row by row, token by token, from the initial state or +0; read out over the row in the product's order",
    ),
    "chunked": (
        "scan, chunked",
        "chunks of 64 tokens: the state before the chunk, products inside the chunk in ascending order from +0, the "
        "chunk's sum added to the state once. In full in `vkdnn/ops/scan.py`",
    ),
}
"""Short name -> reduction and its order, as in docs/design.md."""

FOLD_BOUND = "(n/128 + 7) u Σ|x|"
PRODUCT_BOUND = "(min(k, 128) + k/128) u Σ|a b|"
LEGEND = (
    "float: float32, float16 or bfloat16, the last two computed in float32 and rounded once. number: float, int32 or "
    "uint32. any: number or bool. Functions of floats take integers as float32. More than one: of the arguments, in "
    "order; after the arrow that of the result where it differs",
    "gradient: yes; kinks, where the derivative jumps at points and one value is chosen there, as the text says; "
    "zero, where it is zero (almost) everywhere; none, where there is no derivative (a result that is no float, or one "
    "that differentiation refuses)",
    "bound of the error of a float32 result: exact; a number in units of the last place, where the true value is a "
    "normal number (0.5: correctly rounded); of sums, to first order, with u = 2⁻²⁴ and barring underflow and "
    "overflow; —: none is promised, the result is a composition of operations with bounds of their own. Integers are "
    "exact and wrap around",
    "order: that of the additions, below; —: there is nothing to order",
)

NOT_OPERATIONS = frozenset(
    {
        "autotune", "current_device", "device", "devices", "flush", "grad", "jit", "nn.alibi_slopes", "nn.load_gpt2",
        "optim.accumulated", "profile", "realize", "remat", "value_and_grad", "vjp",
    }
)  # fmt: skip
"""Public functions that are about programs, devices and models, not about values."""


@dataclass(frozen=True)
class Entry:
    """An operation: its name after "vk.", the columns of the catalogue, one line of documentation."""

    name: str
    dtypes: str
    gradient: str
    bound: str
    order: str
    doc: str


@dataclass(frozen=True)
class Group:
    """Functions that share their columns."""

    names: str
    dtypes: str
    gradient: str
    bound: str = "—"
    order: str = "—"


GROUPS = (
    # elementwise, beside the rows of the op table
    Group("greater greater_equal", "number → bool", "none", "exact"),
    Group("power", "number", "yes", "1; of powers 2 to 8: 7"),
    Group("astype", "any", "yes", "0.5"),
    Group("divmod", "number", "kinks", "0.5"),
    # arrays from data and numbers
    Group("array", "any", "none", "0.5"),
    Group("asarray", "any", "yes", "0.5"),
    Group("zeros ones full zeros_like ones_like full_like eye", "any", "none", "exact"),
    Group("one_hot", "integer → any", "none", "exact"),
    Group("arange linspace", "any", "none"),
    # views and copies
    Group(
        "reshape transpose swapaxes moveaxis broadcast_to broadcast_arrays meshgrid expand_dims squeeze flip tile "
        "repeat pad concatenate concat stack split array_split unstack roll diagonal diag tril triu",
        "any", "yes", "exact",
    ),
    Group("take gather take_along_axis", "any, integer", "yes", "exact", "scatter"),
    # folds
    Group("sum", "any", "yes", FOLD_BOUND, "fold"),
    Group("trace", "any", "yes", FOLD_BOUND, "fold"),
    Group("mean", "any → float", "yes", "(n/128 + 8) u Σ|x| / n", "fold"),
    Group("prod", "any", "yes", "(n - 1) u |result|", "fold"),
    Group("max min", "any", "kinks", "exact", "fold"),
    Group("any all", "any → bool", "none", "exact", "fold"),
    Group("argmax argmin", "any → int32", "none", "exact", "fold"),
    Group("var moments logsumexp", "any → float", "yes", order="fold"),
    Group("std norm", "any → float", "kinks", order="fold"),
    Group("softmax log_softmax rms_norm layer_norm group_norm batch_norm", "float", "yes", order="fold"),
    Group("l2_norm", "float", "kinks", order="fold"),
    Group("nn.cross_entropy", "float, integer → float", "yes", order="fold"),
    Group("optim.global_norm", "float", "kinks", order="fold"),
    # products
    Group("matmul dot vdot tensordot", "float", "yes", PRODUCT_BOUND, "product"),
    Group("einsum", "float", "yes", order="product"),
    Group("outer", "number", "yes", "0.5"),
    # along an axis
    Group("cumsum", "any", "yes", "128 ⌈log₁₂₈ n⌉ u Σ|x|", "cumulation"),
    Group("cumprod linear_recurrence", "number", "yes", order="cumulation"),
    Group("cummax cummin", "number", "kinks", "exact", "cumulation"),
    Group("sort", "any", "kinks", "exact"),
    Group("top_k", "any → any, int32", "kinks", "exact"),
    Group("argsort", "any → int32", "none", "exact"),
    Group("scatter_add", "number, integer, number", "yes", order="scatter"),
    Group("scatter put_along_axis", "any, integer, any", "yes", "exact"),
    Group("bincount", "integer → int32", "none", "exact"),
    # softmax attention
    Group("attention", "float", "yes", order="attention"),
    Group("merge_attention", "float", "yes"),
    # scans of linear attention
    Group("scan_prefix_outer scan_suffix_outer", "float", "yes", order="sequential, chunked"),
    Group("outer_col", "float", "yes", "exact"),
    # random numbers, functions of a key
    Group("random.key random.split random.fold_in random.bits", "integer → uint32", "none", "exact"),
    Group("random.uniform", "uint32, float → float32", "yes"),
    Group("random.normal random.exponential random.gumbel", "uint32 → float32", "none"),
    Group("random.randint", "uint32, int32 → int32", "none", "exact"),
    Group("random.bernoulli", "uint32, float → bool", "none"),
    Group("random.categorical", "uint32, float → int32", "none"),
    Group("random.permutation", "uint32, any", "yes", "exact"),
    Group("nn.dropout", "float, uint32 → float", "yes"),
    # steps of optimizers
    Group("optim.adamw_update optim.lion_update optim.sgd_update", "float", "yes"),
)  # fmt: skip


def catalogue() -> list[Entry]:
    """Every operation, rows of the op table first, each group in its order."""
    rows = [_of_row(name, OPS[row]) for name, row in elementwise_rows().items()]
    return rows + [
        Entry(name, group.dtypes, group.gradient, group.bound, group.order, first_sentence(find(name).__doc__ or ""))
        for group in GROUPS
        for name in group.names.split()
    ]


def find(name: str) -> Callable[..., Any]:
    """The function of an entry's name. Raises AttributeError if there is none."""
    function: Callable[..., Any] = operator.attrgetter(name)(vk)
    return function


def elementwise_rows() -> dict[str, str]:
    """Public name -> row of the op table, of the functions that are one."""
    named = {name: getattr(getattr(elementwise, name), "row", name) for name in elementwise.__all__}
    return {name: row for name, row in named.items() if row in OPS}


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line, without its full stop."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<!\.)(?<!et al)\. ", paragraph)[0].removesuffix(".").replace("``", "")


# ---- what a row of the op table says

_WORDS = {"f": "float", "i": "integer", "u": "uint32", "n": "number", "x": "integer or bool", "b": "bool", "a": "any"}
_ROUNDED = frozenset({"floor_divide"})  # rows made of several rounded operations, without a bound
_RESULTS = {"f": "float32", "i": "int32", "u": "uint32", "b": "bool"}


def _of_row(name: str, op: Op) -> Entry:
    return Entry(name, row_dtypes(op.types), row_gradient(op), _row_bound(op), "—", op.doc)


def row_dtypes(types: str) -> str:
    """The type rule of a row in words."""
    letters, result = types.split(":")
    taken = _WORDS[letters[0]] if len(set(letters)) == 1 else ", ".join(_WORDS[letter] for letter in letters)
    return taken if result in ("=", *set(letters)) and len(set(letters)) == 1 else _with_result(taken, result)


def _with_result(taken: str, result: str) -> str:
    return taken if result == "=" else f"{taken} → {_RESULTS[result]}"


def row_gradient(op: Op) -> str:
    """What differentiation does with a row; one whose documentation speaks of its gradient has kinks."""
    letters, result = op.types.split(":")
    if op.derivative is None or result not in "=fhe" or set(letters) <= set("iuxb"):
        return "none"
    if not any(d is not None for d in op.derivative(_argument("f"), _argument("f"), *map(_argument, letters))):
        return "zero"
    return "kinks" if "gradient" in op.doc or "derivative" in op.doc else "yes"


def _argument(letter: str) -> Node:
    return leaf((), {"b": vk.bool_, "i": vk.int32, "u": vk.uint32}.get(letter, vk.float32))


def _row_bound(op: Op) -> str:
    if op.ulp is not None:
        return f"{op.ulp:g}"
    return "exact" if op.define is None and op.name not in _ROUNDED else "—"
