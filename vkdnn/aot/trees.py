"""Trees of arguments and results as JSON: nested objects with one of list, tuple and dict, numbers at the leaves.

Named tuples keep their class's name and fields, not their class: a bundle must never make Python import anything.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vkdnn import tree
from vkdnn.aot.records import Tree
from vkdnn.errors import ArgumentError


def to_tree(structure: tree.Structure, numbers: Iterator[int]) -> Tree:
    """A structure of vkdnn.tree as JSON; each leaf takes the next number."""
    if structure is None:
        return next(numbers)
    kind, keys, children = structure
    if kind == "none":
        return None
    parts = [to_tree(child, numbers) for child in children]
    if kind == "dict":
        if not all(isinstance(k, str) for k in keys):
            raise ArgumentError(f"tree: keys {list(keys)} of a dict, expected strings in a bundle")
        return {"dict": dict(zip(keys, parts, strict=True))}
    if kind is list:
        return {"list": parts}
    if hasattr(kind, "_fields"):
        return {"tuple": parts, "name": kind.__name__, "fields": list(kind._fields)}
    return {"tuple": parts}


def build(found: Tree, values: Sequence[Any]) -> Any:
    """The tree with ``values`` in place of their numbers."""
    if found is None:
        return None
    if isinstance(found, int):
        return values[found]
    assert isinstance(found, dict)
    if "dict" in found:
        return {k: build(v, values) for k, v in found["dict"].items()}
    if "list" in found:
        return [build(v, values) for v in found["list"]]
    parts = [build(v, values) for v in found["tuple"]]
    if "name" in found:
        return namedtuple(found["name"], found["fields"])(*parts)
    return tuple(parts)


def alike(a: Tree, b: Tree) -> bool:
    """Whether two trees have one structure; a tuple may stand for a named one."""
    if isinstance(a, int) or isinstance(b, int) or a is None or b is None:
        return (a is None) == (b is None) and isinstance(a, int) == isinstance(b, int)
    assert isinstance(a, dict) and isinstance(b, dict)
    for kind in ("dict", "list", "tuple"):
        if (kind in a) != (kind in b):
            return False
        if kind in a:
            if kind == "dict" and set(a[kind]) != set(b[kind]):
                return False
            keys = sorted(a[kind]) if kind == "dict" else range(len(a[kind]))
            return len(a[kind]) == len(b[kind]) and all(alike(a[kind][k], b[kind][k]) for k in keys)
    return False


def difference(given: Tree, wanted: Tree, name: str, array: Callable[[int], str]) -> str | None:
    """The first difference between two trees in words, None if they are alike; ``array`` says what a leaf is.

    >>> difference({"list": [0]}, 0, "x", lambda number: "float32[3]")
    'x is a list of 1, expected an array float32[3]'
    """
    if alike(given, wanted):
        return None
    if isinstance(wanted, int):
        return f"{name} is {_kind(given)}, expected an array {array(wanted)}"
    here, there = _children(given), _children(wanted)
    if here is None or there is None or _kind(given).split(" of ")[0] != _kind(wanted).split(" of ")[0]:
        return f"{name} is {_kind(given)}, expected {_kind(wanted)}"
    lacks = [f"has no {name}.{key}" for key in there if key not in here]
    holds = [f"has {name}.{key}, which is not expected" for key in here if key not in there]
    if lacks or holds:
        return f"{name} {' and '.join(lacks[:1] + holds[:1])}"
    parts = (difference(here[key], there[key], f"{name}.{key}", array) for key in there)
    return next(part for part in parts if part is not None)


def _children(found: Tree) -> dict[Any, Tree] | None:
    """What a dict, list or tuple holds, by key; None for a leaf and for None."""
    if not isinstance(found, dict):
        return None
    return found["dict"] if "dict" in found else dict(enumerate(found["list"] if "list" in found else found["tuple"]))


def _kind(found: Tree) -> str:
    if not isinstance(found, dict):
        return "None" if found is None else "an array or a number"
    (kind,) = found.keys() & {"dict", "list", "tuple"}
    return f"a {kind} of {len(found[kind])}"
