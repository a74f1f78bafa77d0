"""Golden results: float64 from an operator's twin, with the plain float32 baseline beside it; made here or read back.

A file of another case, of other inputs or with a flipped bit must be refused by name, never compared with.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

import vkdnn as vk
from vkdnn import tree
from vkdnn.check import library, wide
from vkdnn.check.accuracy.cases import Spec, file_name
from vkdnn.check.accuracy.plain import plainly, plainly_graph
from vkdnn.check.accuracy.subjects import Array, backward, leaf_names
from vkdnn.check.operator import Case
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.shader.entry import digest
from vkdnn.shader.store import replaced

VERSION = 1
"""Of how golden results are made and kept; raised whenever either changes."""


class GoldenError(VkdnnError):
    """A golden file is missing, damaged or of something else."""


@dataclass(frozen=True)
class Golden:
    """For each draw of a case: names and true values of its results, and the plain ones where the case's rule asks."""

    names: list[str]
    true: list[list[Array]]
    plain: list[list[Array]] | None


def compute(spec: Spec, draws: Sequence[Case], inputs: Sequence[list[Array]]) -> Golden:
    """The golden of all draws. Raises ArgumentError for an operator without a twin."""
    wanted = spec.rule == "twice-plain"
    if spec.gradient:
        return _gradients(draws, inputs, wanted)
    names: list[str] = []
    true, plain = [], []
    for case, arrays in zip(draws, inputs, strict=True):
        with np.errstate(all="ignore"):
            results = case.golden(*arrays)
        names = leaf_names(results)
        true.append([_wide(x) for x in tree.flatten(results)[0]])
        if not names or any(x.dtype == object for x in true[-1]):
            raise ArgumentError(
                f"{spec.operator}: its golden gives no arrays of numbers; it has to return one, or a tree"
            )
        if wanted:
            plain.append(plainly(case, arrays))
    return Golden(names, true, plain if wanted else None)


def _wide(value: Any) -> Array:
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def _gradients(draws: Sequence[Case], inputs: Sequence[list[Array]], wanted: bool) -> Golden:
    """Gradients by float64 evaluation of the graph that differentiation builds."""
    names: list[str] = []
    true, plain = [], []
    with vk.device("cpu"):
        for case, arrays in zip(draws, inputs, strict=True):
            names, gradients = backward(case, [vk.array(a) for a in arrays])
            with np.errstate(all="ignore"):
                true.append([_wide(x) for x in wide.evaluate([g.node for g in gradients], {})])
            if wanted:
                plain.append(plainly_graph([g.node for g in gradients]))
    return Golden(names, true, plain if wanted else None)


# ---- files


def path_of(folder: Path, spec: Spec) -> Path:
    """The file of a case: by what its golden depends on, so that cases of one name never meet."""
    return folder / f"{file_name(spec.name)}-{spec.key[:16]}.safetensors"


def source(case: Case) -> str:
    """A digest of the source of the twin, with all of the library where it is from there: an edit there makes golden
    files of before foreign."""
    module = inspect.getmodule(case.operator.golden)
    try:
        texts = [inspect.getsource(module)] if module is not None else []
    except (OSError, TypeError):
        texts = []
    if module is not None and module.__name__.startswith(library.__name__):
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(library.__file__).parent.glob("*.py"))]
    return digest("\0".join(texts))


def _about(spec: Spec, draws: Sequence[Case], inputs: Sequence[list[Array]]) -> dict[str, Any]:
    """What a golden belongs to."""
    content = hashlib.sha256()
    for arrays in inputs:
        for array in arrays:
            content.update(json.dumps([array.dtype.name, list(array.shape)]).encode())
            content.update(np.ascontiguousarray(array).tobytes())
    return {
        "version": VERSION, "operator": spec.operator, "key": spec.key, "inputs": content.hexdigest(),
        "twin": source(draws[0]),
    }  # fmt: skip


def save(folder: Path, spec: Spec, draws: Sequence[Case], inputs: Sequence[list[Array]], golden: Golden) -> Path:
    """Write a golden to its file in ``folder``, whole or not at all."""
    tensors: dict[str, Array] = {}
    for kind, parts in (("true", golden.true), ("plain", golden.plain or [])):
        for k, leaves in enumerate(parts):
            for name, leaf in zip(golden.names, leaves, strict=True):
                tensors[f"{kind}.{k}.{name}"] = np.ascontiguousarray(leaf).reshape(leaf.shape)
    about = _about(spec, draws, inputs) | {"names": golden.names, "plain": golden.plain is not None}
    about["content"] = _content(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, spec)
    with replaced(path) as file:
        file.write(safetensors.numpy.save(tensors, {"vkdnn-golden": json.dumps(about)}))
    return path


def load(folder: Path, spec: Spec, draws: Sequence[Case], inputs: Sequence[list[Array]]) -> Golden:
    """The golden of a case from ``folder``. Raises GoldenError that names the file and what is wrong with it."""
    path = path_of(folder, spec)
    again = "make it again with --save-golden"
    if not path.is_file():
        raise GoldenError(f"golden: {path} is missing; {again}")
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get("vkdnn-golden", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise GoldenError(f"golden: {path} is damaged ({error}); {again}") from None
    if not isinstance(about, dict):
        raise GoldenError(f"golden: {path} is no golden file of vkdnn; {again}")
    if about.get("content") != _content(tensors):
        raise GoldenError(f"golden: {path} is damaged (its checksum is another); {again}")
    for field, expected in _about(spec, draws, inputs).items():
        if about.get(field) != expected:
            raise GoldenError(
                f"golden: {path} is foreign: its {field} is {_brief(about.get(field))}, expected {_brief(expected)}; "
                f"{again}"
            )
    if spec.rule == "twice-plain" and not about.get("plain"):
        raise GoldenError(f"golden: {path} has no plain results, which the rule twice-plain needs; {again}")

    def part(kind: str) -> list[list[Array]]:
        return [[tensors[f"{kind}.{k}.{name}"] for name in about["names"]] for k in range(len(draws))]

    try:
        return Golden(about["names"], part("true"), part("plain") if about["plain"] else None)
    except (KeyError, TypeError) as error:
        raise GoldenError(f"golden: {path} is damaged (it has no {error}); {again}") from None


def _brief(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 40 else repr(value)


def _content(tensors: dict[str, Array]) -> str:
    total = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        total.update(json.dumps([name, array.dtype.name, list(array.shape)]).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def provided(
    spec: Spec, draws: Sequence[Case], inputs: Sequence[list[Array]], load_from: Path | None, save_to: Path | None
) -> Golden:
    """The golden of a case: read from ``load_from``, else made, unless ``save_to`` has it already, and kept there."""
    if load_from is not None:
        return load(load_from, spec, draws, inputs)
    if save_to is None:
        return compute(spec, draws, inputs)
    try:
        return load(save_to, spec, draws, inputs)
    except GoldenError:
        golden = compute(spec, draws, inputs)
        save(save_to, spec, draws, inputs, golden)
        return golden
