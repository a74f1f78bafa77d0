"""Case files: TOML tables whose lists of values are multiplied out into named cases of operators.

A file must never be half believed: what is unknown, of another type or empty is an error naming file, case and field.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import json
import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vkdnn.check.accuracy.subjects import Operators, find_operator
from vkdnn.check.library import OPERATORS
from vkdnn.check.operator import Case, Operator
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.ir.arguments import short
from vkdnn.shader.entry import digest

SETS = Path(__file__).parent.parent / "cases"
RULES = ("twice-plain", "element", "bits")
DEFAULTS: dict[str, Any] = {"rule": "twice-plain", "timeout": 300.0, "seeds": 1, "gradient": False, "factor": 2.0}
"""Fields of every case that say how it is judged."""
_SHARED = {"rule": str, "timeout": float, "seeds": int, "gradient": bool, "factor": float}
_DTYPES = ("float32", "float16", "bfloat16")
_APART = ("operator", "base", "without")
MOST = 100_000
"""Cases of one file: more of them are a slip in a list of values."""
LONGEST = 1e6  # seconds, of a timeout


@dataclass(frozen=True)
class Spec:
    """A case as data, the same in every process: its name, the operator's, the fields given, and how it is judged."""

    name: str
    operator: str
    fields: Mapping[str, Any]
    rule: str = "twice-plain"
    timeout: float = 300.0
    seeds: int = 1
    gradient: bool = False
    factor: float = 2.0
    """Of the rule twice-plain, for cases in which the plain evaluation has fewer roundings."""

    def record(self) -> dict[str, Any]:
        """Plain data for JSON; from_record() is the way back."""
        return asdict(self) | {"fields": dict(self.fields)}

    @property
    def key(self) -> str:
        """SHA-256 of what its golden depends on: not of its name, rule or timeout."""
        what = [self.operator, dict(self.fields), self.seeds, self.gradient]
        return digest(json.dumps(what, sort_keys=True, default=str))

    def draws(self, operators: Operators = OPERATORS) -> list[Case]:
        """The cases of its seeds: ``seeds`` of them, from the field ``seed`` on."""
        operator = find_operator(self.operator, operators)
        first = int(self.fields.get("seed", 0))
        fields = {name: _tuples(value) for name, value in self.fields.items()}
        return [operator.case(self.name, **(fields | {"seed": first + k})) for k in range(self.seeds)]


def from_record(record: Mapping[str, Any]) -> Spec:
    return Spec(**record)


def sets() -> list[str]:
    """Names of the case sets that come with vkdnn."""
    return sorted(path.stem for path in SETS.glob("*.toml"))


def load(names: Sequence[str], prefixes: Sequence[str] = (), operators: Operators = OPERATORS) -> list[Spec]:
    """The cases of files or of shipped sets, those alone whose name begins with one of ``prefixes`` if there are any.

    A prefix fits the whole name (``attention/CAUSAL``) or what comes after the file's (``CAUSAL``). Raises
    ArgumentError for a set or file that does not exist or is wrong, for two cases of one name, and for a prefix that
    fits nothing.
    """
    found: dict[str, Spec] = {}
    for name in names:
        for spec in read(_path(name), operators):
            if spec.name in found:
                raise ArgumentError(f"{name}: case {spec.name} stands in two of the files; rename one of the files")
            found[spec.name] = spec
    if not prefixes:
        return list(found.values())
    chosen = []
    for prefix in prefixes:
        fits = [s for s in found.values() if s.name.startswith(prefix) or s.name.split("/", 1)[1].startswith(prefix)]
        if not fits:
            close = difflib.get_close_matches(prefix, [*found, *(n.split("/", 1)[1] for n in found)], n=3)
            hint = f"is it {' or '.join(close)}? " if close else ""
            raise ArgumentError(f"case: none of {len(found)} begins with {prefix!r}; {hint}--list shows their names")
        chosen += fits
    return list({s.name: s for s in chosen}.values())


def _path(name: str) -> Path:
    if name in sets():
        return SETS / f"{name}.toml"
    if not name.endswith(".toml") and not Path(name).is_file():
        raise ArgumentError(f"cases: no set {name!r}, expected a .toml file or one of {', '.join(sets())}")
    return Path(name)


def read(path: Path, operators: Operators = OPERATORS) -> list[Spec]:
    """The cases of one file, in its order."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: no TOML ({error})") from None
    except (RecursionError, ValueError):  # such as a number of a million digits
        raise ArgumentError(f"{path}: no TOML (nested too deeply, or with too long a number)") from None
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read ({error.strerror}); name a case file or one of {sets()}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ArgumentError(f"{path}: {name}: got {short(table)} outside of a case, expected a table as [{name}]")
    bases = {table.get("base") for table in tables.values() if isinstance(table.get("base"), str)}
    found: list[Spec] = []
    origin: dict[str, str] = {}
    for name in tables:
        where = f"{path}: case {name}"
        table = _inherited(where, name, tables)
        if "operator" not in table:
            if name in bases:
                continue  # only there for others
            raise ArgumentError(f'{where}: field operator: missing, expected the name of one, as operator = "softmax"')
        for spec in _expanded(where, f"{path.stem}/{name}", table, operators):
            if origin.setdefault(spec.name, name) != name:
                both = f"tables [{origin[spec.name]}] and [{name}] both give a case {spec.name}"
                raise ArgumentError(f"{path}: {both}; rename one of them")
            found.append(spec)
        _check_count(str(path), len(found))
    if not found:
        raise ArgumentError(f'{path}: it has no case, expected a table such as [MINE] with operator = "softmax"')
    return found


def _inherited(where: str, name: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """A table with the fields of its bases below its own."""
    chain, at = [name], tables[name]
    while "base" in at:
        base = at["base"]
        if not isinstance(base, str):
            raise ArgumentError(f"{where}: field base: got {short(base)}, expected the name of a case of this file")
        if base not in tables:
            close = difflib.get_close_matches(base, tables, n=1)
            hint = f"; is it {close[0]}?" if close else ""
            raise ArgumentError(f"{where}: field base: this file has no case {base!r}{hint}")
        if base in chain:
            raise ArgumentError(f"{where}: field base: a cycle, {' -> '.join([*chain, base])}; break it")
        chain.append(base)
        at = tables[base]
    whole: dict[str, Any] = {}
    for link in reversed(chain):
        whole |= tables[link]
    whole.pop("base", None)
    return whole


def _expanded(where: str, name: str, table: Mapping[str, Any], operators: Operators) -> list[Spec]:
    chosen, several = _subjects(where, table, operators)
    lists = {}
    for field, value in table.items():
        if field in _APART:
            continue
        values = value if isinstance(value, list) and not _one_range(field, value) else [value]
        if not values:
            raise ArgumentError(f"{where}: field {field}: an empty list gives no case; give a value, or leave it out")
        lists[field] = values
    _check_count(where, len(chosen) * math.prod(map(len, lists.values())))
    found: list[Spec] = []
    for known, (of, operator, form) in chosen.items():
        for field, values in lists.items():
            for value in values:
                _check(f"{where}: field {field}", operator, field, value)
        title = f"{name}.{known}" if several else name
        combined = [dict(zip(lists, row, strict=True)) for row in itertools.product(*lists.values())]
        kept = [fields for fields in combined if not several or _fits(operator, fields)]
        for k, fields in enumerate(kept):
            spec = _spec(f"{title}_{k}" if len(kept) > 1 else title, of, form | fields)
            _try(where, spec, operator)
            found.append(spec)
    if not found:
        raise ArgumentError(f"{where}: it gives no case: no operator of those named has this dtype, gradient or twin")
    return found


def _check_count(where: str, count: int) -> None:
    if count > MOST:
        raise ArgumentError(
            f"{where}: expands to {count:,} cases; at most {MOST:,} may stand in a file, name fewer values"
        )


Subject = tuple[str, Operator, dict[str, Any]]
"""The name by which an operator is found, the operator, and the fields of one of its forms."""


def _subjects(where: str, table: Mapping[str, Any], operators: Operators) -> tuple[dict[str, Subject], bool]:
    """What a table checks, by name, and whether these names belong into the names of cases."""
    given = table["operator"]
    names = given if isinstance(given, list) else [given]
    without = table.get("without", [])
    if not names:
        raise ArgumentError(f"{where}: field operator: an empty list gives no case; name an operator")
    for field, values in (("operator", names), ("without", without)):
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise ArgumentError(f"{where}: field {field}: got {short(table[field])}, expected names of operators")
    found: dict[str, Subject] = {}
    for name in names:
        try:
            found |= _matching(name, operators)
        except VkdnnError as error:
            raise ArgumentError(f"{where}: field operator: {error}") from None
    for name in without:
        fits = [
            known
            for known, (of, operator, _) in found.items()
            if fnmatch.fnmatchcase(known, name) or name in (of, "@" + operator.group)
        ]
        if not fits:
            raise ArgumentError(f"{where}: field without: {name!r} is none of those chosen; leave it out")
        found = {known: subject for known, subject in found.items() if known not in fits}
    return found, isinstance(given, list) or given.startswith("@") or "*" in given


def _matching(name: str, operators: Operators) -> dict[str, Subject]:
    """Of a name one operator (or NAME.FORM); of ``@norms`` a group with all forms, of a pattern with * what fits.

    Of a group and a pattern, those that have a golden.
    """
    whole: dict[str, Subject] = {}
    for of, operator in operators.items():
        whole[of] = (of, operator, {})
        whole |= {f"{of}.{form}": (of, operator, dict(fields)) for form, fields in operator.forms.items()}
    if name.startswith("@"):
        found = {known: subject for known, subject in whole.items() if subject[1].group == name[1:]}
    elif "*" in name:
        found = {known: subject for known, subject in whole.items() if fnmatch.fnmatchcase(known, name)}
    elif name in whole:
        return {name: whole[name]}
    else:
        return {name: (name, find_operator(name, operators), {})}
    if not found:
        groups = ", ".join(dict.fromkeys("@" + o.group for o in operators.values()))
        raise ArgumentError(f"nothing fits {name!r}; groups are {groups}")
    return {known: subject for known, subject in found.items() if subject[1].golden is not None}


def _fits(operator: Operator, fields: Mapping[str, Any]) -> bool:
    """Whether a combination says something of one operator of many: its floats' dtype, its gradient."""
    floats = operator.halves and any(i.is_float for i in operator.inputs)
    if fields.get("dtype", "float32") != "float32" and not floats:
        return False
    return not fields.get("gradient", False) or bool(operator.case().differentiable)


def _spec(name: str, operator: str, fields: Mapping[str, Any]) -> Spec:
    own = {k: v for k, v in fields.items() if k not in DEFAULTS}
    shared = DEFAULTS | {k: v for k, v in fields.items() if k in DEFAULTS}
    return Spec(name, operator, own, **(shared | {k: float(shared[k]) for k in ("timeout", "factor")}))


def _try(where: str, spec: Spec, operator: Operator) -> None:
    """What only the whole case can say."""
    try:
        (case,) = replace(spec, seeds=1).draws({spec.operator: operator})
    except VkdnnError as error:
        raise ArgumentError(f"{where}: {error}") from None
    if spec.gradient and not case.differentiable:
        raise ArgumentError(f"{where}: field gradient: {spec.operator} has none; set it to false")
    if operator.golden is None and spec.rule != "bits":
        raise ArgumentError(f'{where}: field rule: {spec.operator} has no float64 twin; take rule = "bits"')


# ---- types of fields


def _check(where: str, operator: Operator, field: str, value: Any) -> None:
    """Raise ArgumentError for a field the operator does not have, or a value of another type."""
    ranges = {f"{i.name}_range" for i in operator.inputs if i.is_float}
    if field in _SHARED:
        _check_type(where, value, _SHARED[field])
        if field == "rule" and value not in RULES:
            raise ArgumentError(f"{where}: got {value!r}, expected one of {', '.join(RULES)}")
        if field in ("seeds", "timeout", "factor") and not value > 0:
            raise ArgumentError(f"{where}: got {value!r}, expected more than 0")
        if field == "timeout":
            check_timeout(where, value)
    elif field in ranges:
        _check_range(where, value)
    elif field == "dtype":
        if value not in _DTYPES:
            raise ArgumentError(f"{where}: got {short(value)}, expected one of {', '.join(_DTYPES)}")
    elif field == "seed" or field in operator.sizes:
        _check_type(where, value, int)
        if value < 0:
            raise ArgumentError(f"{where}: got {value}, expected 0 or more")
    elif field in operator.fields:
        _check_option(where, value, operator.fields[field])
    else:
        known = [*operator.fields, "dtype", "seed", *sorted(ranges), *DEFAULTS, *_APART]
        close = difflib.get_close_matches(field, known, n=1)
        hint = f"is it {close[0]}? " if close else ""
        raise ArgumentError(f"{where}: {operator.name} has no such field; {hint}it has {', '.join(known)}")


def _check_type(where: str, value: Any, kind: type) -> None:
    kinds = (int, float) if kind is float else (kind,)
    good = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
    if not good:
        raise ArgumentError(f"{where}: got {short(value)}, expected {kind.__name__}")
    if kind is float and not abs(value) <= sys.float_info.max:
        raise ArgumentError(f"{where}: got {short(value)}, expected a finite number")


def check_timeout(where: str, seconds: float) -> None:
    """Raise ArgumentError for a time that nobody waits for, or that is none."""
    if not 0 < seconds <= LONGEST:
        raise ArgumentError(f"{where}: got {seconds}, expected more than 0, and at most {LONGEST:,.0f} seconds")


def file_name(name: str) -> str:
    """A file name of its own for a name of any characters and length.

    >>> file_name("attention/CAUSAL")
    'attention-CAUSAL-a7c2edc5'
    """
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return f"{plain[:80]}-{digest(name)[:8]}"


def _one_range(field: str, value: list[Any]) -> bool:
    """Whether a list is no list of ranges, but one range written plainly: x_range = [-5.0, 5.0]."""
    return field.endswith("_range") and len(value) == 2 and all(_is_number(v) for v in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_range(where: str, value: Any) -> None:
    if not isinstance(value, list) or len(value) != 2 or not all(_is_number(v) for v in value):
        raise ArgumentError(f"{where}: got {short(value)}, expected [low, high], or a list of several such ranges")
    low, high = value
    if not -sys.float_info.max <= low <= high <= sys.float_info.max:
        raise ArgumentError(f"{where}: got {value}, expected two finite numbers, the lower one first")


def _check_option(where: str, value: Any, default: Any) -> None:
    """An option is of the type of its default; "None" is Python's."""
    if default is None or value == "None" or isinstance(default, type(value)):
        if isinstance(value, bool) == isinstance(default, bool) or default is None:
            return
    elif isinstance(default, tuple) and isinstance(value, (list, int)) and not isinstance(value, bool):
        return  # an axis or several
    elif (isinstance(default, int) and isinstance(value, list) and not isinstance(default, bool)) or (
        isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool)
    ):
        return
    kind = "list" if isinstance(default, (tuple, list)) else type(default).__name__
    raise ArgumentError(f"{where}: got {short(value)}, expected {kind}, such as its default {default!r}")


def _tuples(value: Any) -> Any:
    if value == "None":
        return None
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value
