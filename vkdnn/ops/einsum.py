"""Einstein summation over array expressions, by NumPy's subscripts.

The order of every sum follows from the subscripts alone: operands are contracted from left to right, two at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vkdnn.array import Array, asarray, common_device
from vkdnn.errors import ArgumentError, ShapeError
from vkdnn.ir import build
from vkdnn.ir.arguments import short
from vkdnn.ir.node import Node
from vkdnn.ops.diagonal import diagonal
from vkdnn.ops.reduce import sum as sum_

Labels = tuple[str, ...]  # one for each axis: a letter, or "...3" for the third axis from the end of an ellipsis


@dataclass(frozen=True)
class _Term:
    """An operand with the label of each of its axes, no label twice."""

    node: Node
    labels: Labels


def einsum(subscripts: str, *operands: Any) -> Array:
    """Sums of products over the axes that ``subscripts`` names, such as "bij,bjk->bik"; sums are made in float32.

    A letter names an axis; letters that are not in the result are summed over. Without "->" the result has the letters
    that occur once, in alphabetical order. "..." stands for further axes, which broadcast. A letter twice in one
    operand takes the diagonal. Axes of length 1 broadcast.

    Order: axes of an operand that no other operand and not the result has are summed first, as by vk.sum. Then the
    operands are contracted from left to right, each with the product of those before it. Letters that no later operand
    and not the result has are summed in that step, by the rule of matrix products: k is their row-major order, in the
    order in which the left factor has them.

    Raises ArgumentError for malformed subscripts and ShapeError for lengths that do not fit.

    >>> import vkdnn as vk
    >>> x = vk.array([[1.0, 2.0], [3.0, 4.0]])
    >>> vk.einsum("ij,jk->ik", x, x).numpy().tolist(), vk.einsum("ii", x).item()
    ([[7.0, 10.0], [15.0, 22.0]], 5.0)
    """
    if not isinstance(subscripts, str):
        raise ArgumentError(f"einsum: subscripts is {short(subscripts)}, expected a string such as 'ij,jk->ik'")
    arrays = [asarray(o, operands, f"einsum: operand {i}") for i, o in enumerate(operands)]
    inputs, output = _parsed(subscripts, [a.ndim for a in arrays])
    terms = [_diagonal(a, labels) for a, labels in zip(arrays, inputs, strict=True)]
    sizes = _sizes(terms)
    for label in output:
        if label not in sizes:
            raise ArgumentError(f"einsum: {label!r} of the result is in no operand of {subscripts!r}")
    result = _summed(terms[0], _elsewhere(terms[1:], output))
    for i, term in enumerate(terms[1:], 1):
        kept = _elsewhere(terms[i + 1 :], output)
        result = _contracted(result, _summed(term, kept | set(result.labels)), kept, sizes)
    result = _summed(result, set(output))
    node = build.permute(result.node, tuple(result.labels.index(label) for label in output))
    return Array(build.broadcast_to(node, tuple(sizes[label] for label in output)), common_device("einsum", arrays))


# ---- subscripts


def _parsed(subscripts: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of each operand's axes and of the result's."""
    text = subscripts.replace(" ", "")
    given, arrow, result = text.partition("->")
    parts = given.split(",")
    if len(parts) != len(ranks):
        raise ArgumentError(f"einsum: {subscripts!r} names {len(parts)} operands, but {len(ranks)} are given")
    inputs = []
    for number, (part, rank) in enumerate(zip(parts, ranks, strict=True)):
        letters = _letters(subscripts, part)
        named = len(letters) - ("..." in letters)
        rest = rank - named
        if rest < 0 or (rest and "..." not in letters):
            raise ShapeError(f"einsum: {part!r} of {subscripts!r} names {named} axes, but operand {number} has {rank}")
        inputs.append(_with_ellipsis(letters, rest))
    dots = max((sum(label.startswith("...") for label in labels) for labels in inputs), default=0)
    if arrow:
        letters = _letters(subscripts, result)
        if len(set(letters)) < len(letters):
            raise ArgumentError(f"einsum: {result!r} of {subscripts!r} names an axis of the result twice")
        if dots and "..." not in letters:
            raise ArgumentError(f"einsum: in {subscripts!r} the result lacks '...'; write it, or sum over letters")
        return inputs, _with_ellipsis(letters, dots)
    every = [label for labels in inputs for label in labels]
    once = sorted(label for label in set(every) if every.count(label) == 1 and not label.startswith("..."))
    return inputs, _with_ellipsis(["...", *once], dots)


def _letters(subscripts: str, part: str) -> list[str]:
    """The letters of a part, with "..." as one of them."""
    before, dots, after = part.partition("...")
    letters = [*before, *([dots] if dots else []), *after]
    for letter in letters:
        if letter != "..." and not (letter.isascii() and letter.isalpha()):
            raise ArgumentError(
                f"einsum: {letter!r} in {subscripts!r}, expected letters, ',', one '...' an operand and one '->'"
            )
    return letters


def _with_ellipsis(letters: Sequence[str], count: int) -> Labels:
    """The letters, "..." replaced by one label for each axis it stands for, numbered from the last."""
    labels: list[str] = []
    for letter in letters:
        labels += [f"...{i}" for i in range(count, 0, -1)] if letter == "..." else [letter]
    return tuple(labels)


# ---- terms


def _diagonal(x: Array, labels: Labels) -> _Term:
    """The operand with every repeated label taken as a diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(
                    f"einsum: {label!r} names axes {first} and {second} of an operand of shape {x.shape}, "
                    "expected equal lengths"
                )
            x = diagonal(x, 0, first, second)
            labels = (*(a for i, a in enumerate(labels) if i not in (first, second)), label)
    return _Term(x.node, labels)


def _sizes(terms: Sequence[_Term]) -> dict[str, int]:
    """The length of each label: what all operands agree on, 1 aside."""
    sizes: dict[str, int] = {}
    for term in terms:
        for label, n in zip(term.labels, term.node.shape, strict=True):
            known = sizes.get(label, 1)
            if known != n and 1 not in (known, n):
                named = f"axis {label[3:]} from the end of '...'" if label.startswith("...") else repr(label)
                raise ShapeError(f"einsum: {named} has lengths {known} and {n}, expected one length (or 1)")
            sizes[label] = n if known == 1 else known
    return sizes


def _elsewhere(terms: Sequence[_Term], output: Labels) -> set[str]:
    """Labels that are still needed: those of later operands and of the result."""
    return set(output).union(*(t.labels for t in terms))


def _summed(term: _Term, needed: set[str]) -> _Term:
    """The term summed over every label that is not needed."""
    gone = tuple(i for i, label in enumerate(term.labels) if label not in needed)
    if not gone:
        return term
    return _Term(sum_(Array(term.node), gone).node, tuple(label for label in term.labels if label in needed))


def _contracted(a: _Term, b: _Term, kept: set[str], sizes: dict[str, int]) -> _Term:
    """The product of two terms, summed over the labels of both that are not kept."""
    summed = [label for label in a.labels if label in b.labels and label not in kept]
    batch = [label for label in a.labels if label in b.labels and label in kept]
    rows = [label for label in a.labels if label not in b.labels]
    columns = [label for label in b.labels if label not in a.labels]
    labels = (*batch, *rows, *columns)
    if not summed:
        left, right = _arranged(a, labels, sizes), _arranged(b, labels, sizes)
        return _Term(build.apply("mul", left, right), labels)

    def length(names: list[str]) -> int:
        return math.prod(sizes[n] for n in names)

    def matrices(term: _Term, first: list[str], second: list[str]) -> Node:
        whole = tuple(sizes[n] for n in (*batch, *first, *second))
        node = build.broadcast_to(_arranged(term, (*batch, *first, *second), sizes), whole)
        return build.reshape(node, (length(batch), length(first), length(second)))

    left, right = matrices(a, rows, summed), matrices(b, summed, columns)
    if not batch:
        left, right = build.reshape(left, left.shape[1:]), build.reshape(right, right.shape[1:])
    product = build.matmul(left, right)
    return _Term(build.reshape(product, tuple(sizes[n] for n in labels)), labels)


def _arranged(term: _Term, labels: Sequence[str], sizes: dict[str, int]) -> Node:
    """The term's axes in the order of ``labels``, length 1 where it lacks one."""
    present = [label for label in labels if label in term.labels]
    node = build.permute(term.node, tuple(term.labels.index(label) for label in present))
    lengths = iter(node.shape)
    return build.reshape(node, tuple(next(lengths) if label in term.labels else 1 for label in labels))
