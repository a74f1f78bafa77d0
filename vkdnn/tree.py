"""Nested dicts, lists and tuples as a flat list of leaves and a structure to rebuild them from.

Dict keys are visited in sorted order, so that equal structures flatten alike whoever built them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from vkdnn.errors import ArgumentError

Structure = Any  # hashable; None for a leaf, else (type, keys or length, children)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Leaves in order, and the structure: ``unflatten(structure, leaves)`` gives the tree back.

    >>> flatten({"b": 2, "a": [1, 0]})[0]
    [1, 0, 2]
    """
    leaves: list[Any] = []
    return leaves, _visit(tree, leaves)


def _visit(node: Any, leaves: list[Any]) -> Structure:
    # A function inside flatten() that calls itself would be a cycle, and keep the leaves until the collector comes.
    if isinstance(node, dict):
        keys = sorted_keys(node)
        return ("dict", keys, tuple(_visit(node[k], leaves) for k in keys))
    if isinstance(node, (list, tuple)):
        kind: Any = type(node) if isinstance(node, tuple) else list
        return (kind, len(node), tuple(_visit(child, leaves) for child in node))
    if node is None:
        return ("none", 0, ())
    leaves.append(node)
    return None


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    """The tree of this structure with these leaves."""
    return _build(structure, iter(leaves))


def _build(part: Structure, rest: Iterator[Any]) -> Any:
    if part is None:
        return next(rest)
    kind, keys, children = part
    values = [_build(child, rest) for child in children]
    if kind == "none":
        return None
    if kind == "dict":
        return dict(zip(keys, values, strict=True))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def sorted_keys(tree: dict[Any, Any]) -> tuple[Any, ...]:
    """The keys in order. Raises ArgumentError for keys that have none, such as ints beside strings."""
    try:
        return tuple(sorted(tree))
    except TypeError:
        raise ArgumentError(f"tree: keys {list(tree)} of a dict have no order, expected keys of one type") from None


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """``function`` over the leaves of trees of one structure."""
    leaves, structure = flatten(tree)
    columns = [leaves, *(flatten(other)[0] for other in others)]
    return unflatten(structure, [function(*row) for row in zip(*columns, strict=True)])


def paths(tree: Any, prefix: str = "") -> list[str]:
    """A dotted name for each leaf, in the order of flatten().

    >>> paths({"layer": [{"w": 1}, {"w": 2}]})
    ['layer.0.w', 'layer.1.w']
    """
    if isinstance(tree, dict):
        items: Any = ((str(k), tree[k]) for k in sorted_keys(tree))
    elif isinstance(tree, (list, tuple)):
        items = ((str(i), child) for i, child in enumerate(tree))
    elif tree is None:
        return []
    else:
        return [prefix.rstrip(".")]
    return [path for key, child in items for path in paths(child, f"{prefix}{key}.")]
