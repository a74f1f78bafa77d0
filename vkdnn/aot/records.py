"""Frozen dataclasses to JSON and back, strictly, and the JSON Schema that says what is accepted.

Reading and schema follow from the same type hints, so that they cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

from vkdnn.aot.formulas import OPERATIONS, Formula

Tree = int | list[Any] | dict[str, Any] | None
"""A tree of arguments or results; its leaves are numbers of inputs or outputs."""

_Record = TypeVar("_Record")
_SIMPLE = {int: "integer", str: "string", bool: "boolean"}


class RecordError(Exception):
    """JSON that is not as the dataclass says: where, and what was expected."""


def about(text: str, **schema: Any) -> dict[str, Any]:
    """What to annotate a field with: its description, and further keywords of JSON Schema (minimum, enum)."""
    return {"description": text, **schema}


def _fields(kind: type[Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Name of each field -> its type and what is said about it."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        f.name: (hints[f.name].__origin__, hints[f.name].__metadata__[0])
        if hasattr(hints[f.name], "__metadata__")
        else (hints[f.name], {})
        for f in dataclasses.fields(kind)
    }


def to_json(value: Any) -> Any:
    """A record as JSON holds it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    return value


def from_json(kind: type[_Record], data: Any, where: str) -> _Record:
    """The record of this class that ``data`` describes. Raises RecordError."""
    if not isinstance(data, dict):
        raise RecordError(f"{where} is {_short(data)}, expected an object")
    known = _fields(kind)
    for name in known:
        if name not in data:
            raise RecordError(f"{where or 'it'} has no {name!r}")
    for name in data:
        if name not in known:
            raise RecordError(f"{where or 'it'} has {name!r}, which this version of the format does not know")
    values = {}
    for name, (hint, rules) in known.items():
        place = f"{where}.{name}" if where else name
        values[name] = _value(hint, data[name], place)
        _keywords(rules, values[name], place)
    return kind(**values)


def _value(hint: Any, data: Any, where: str) -> Any:
    if hint == Formula:
        if isinstance(data, (str, list)) or _is(int, data):
            return data
        raise RecordError(f"{where} is {_short(data)}, expected a formula: an int, a name, or [operator, a, b]")
    if hint == Tree:
        if data is None or isinstance(data, (list, dict)) or _is(int, data):
            return data
        raise RecordError(f"{where} is {_short(data)}, expected a tree")
    if hint in _SIMPLE:
        if not _is(hint, data):
            raise RecordError(f"{where} is {_short(data)}, expected {_SIMPLE[hint]}")
        return data
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # X | None
        return None if data is None else _value(inner[0], data, where)
    if origin is tuple:
        if not isinstance(data, list) or (inner[-1] is not ... and len(data) != len(inner)):
            expected = "an array" if inner[-1] is ... else f"an array of {len(inner)}"
            raise RecordError(f"{where} is {_short(data)}, expected {expected}")
        kinds = [inner[0]] * len(data) if inner[-1] is ... else inner
        return tuple(_value(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, data, strict=True)))
    if origin is dict:
        if not isinstance(data, dict):
            raise RecordError(f"{where} is {_short(data)}, expected an object")
        return {k: _value(inner[1], v, f"{where}.{k}") for k, v in data.items()}
    return from_json(hint, data, where)


def _is(kind: Any, data: Any) -> bool:
    return isinstance(data, kind) and (kind is bool or not isinstance(data, bool))


def _keywords(rules: Any, value: Any, where: str) -> None:
    if "enum" in rules and value not in rules["enum"]:
        raise RecordError(f"{where} is {_short(value)}, expected one of {', '.join(map(repr, rules['enum']))}")
    if "minimum" in rules and isinstance(value, int) and value < rules["minimum"]:
        raise RecordError(f"{where} is {value}, expected {rules['minimum']} or more")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


# ---- JSON Schema


def schema(kind: type[Any], title: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what from_json() accepts for a class."""
    found: dict[str, Any] = {}
    body = _object(kind, found)
    formula = {
        "description": "An integer, the name of a symbol, or [operator, a, b]; // and % round down.",
        "oneOf": [
            {"type": "integer"},
            {"type": "string"},
            {
                "type": "array",
                "prefixItems": [{"enum": list(OPERATIONS)}, {"$ref": "#/$defs/Formula"}, {"$ref": "#/$defs/Formula"}],
                "minItems": 3,
                "maxItems": 3,
            },
        ],
    }
    tree = {
        "description": "A number of an input or output; null for None; or an object with one of list, tuple, dict.",
        "type": ["integer", "null", "object"],
    }
    definitions = {"Formula": formula, "Tree": tree, **dict(sorted(found.items()))}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **body,
        "$defs": definitions,
    }


def _object(kind: type[Any], found: dict[str, Any]) -> dict[str, Any]:
    known = _fields(kind)
    return {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "properties": {name: {**_schema_of(hint, found), **rules} for name, (hint, rules) in known.items()},
        "required": list(known),
        "additionalProperties": False,
    }


def _schema_of(hint: Any, found: dict[str, Any]) -> dict[str, Any]:
    if hint == Formula:
        return {"$ref": "#/$defs/Formula"}
    if hint == Tree:
        return {"$ref": "#/$defs/Tree"}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return {"oneOf": [_schema_of(inner[0], found), {"type": "null"}]}
    if origin is tuple:
        if inner[-1] is ...:
            return {"type": "array", "items": _schema_of(inner[0], found)}
        parts = [_schema_of(k, found) for k in inner]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(inner[1], found)}
    if hint.__name__ not in found:
        found[hint.__name__] = {}  # its place, before what it holds
        found[hint.__name__] = _object(hint, found)
    return {"$ref": f"#/$defs/{hint.__name__}"}
