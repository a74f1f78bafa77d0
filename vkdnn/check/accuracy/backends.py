"""Who computes a case's results: a Vulkan device, the reference, plain float32 NumPy, PyTorch, or a recorded dump.

All of them get the same inputs; a backend that cannot do a case must say so (NotHere) instead of giving another result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

import vkdnn as vk
from vkdnn.check.accuracy.cases import Spec, file_name
from vkdnn.check.accuracy.golden import Golden
from vkdnn.check.accuracy.subjects import Array, subject
from vkdnn.check.operator import Case
from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.shader.entry import digest
from vkdnn.shader.store import replaced

Draws = Sequence[Case]
Inputs = Sequence[list[Array]]
Results = list[list[Array]]
"""For each draw, the leaves."""
KINDS = ("device", "reference", "plain", "torch", "torch:cuda", "dump:PATH")


class NotHere(VkdnnError):
    """This backend has no such operation."""


def check(name: str) -> str:
    """A backend's name as it is. Raises ArgumentError for one that does not exist, or whose dump does not."""
    kind, colon, rest = name.partition(":")
    if kind == "dump" and rest:
        if not Path(rest).exists():
            raise ArgumentError(f"backend: there is no dump {rest!r}; record one with --dump")
        return name
    if kind == "torch" and (not colon or rest):
        try:
            import torch
        except ImportError as error:
            raise ArgumentError(f"backend: torch is not installed ({error}); pip install 'vkdnn[torch]'") from None
        try:
            torch.empty(1, device=rest or "cpu")
        except (RuntimeError, AssertionError) as error:
            raise ArgumentError(f"backend: torch has no device {rest!r} ({str(error).splitlines()[0]})") from None
        return name
    if name not in KINDS[:3]:
        raise ArgumentError(f"backend: got {name!r}, expected one of {', '.join(KINDS)}")
    return name


def place(name: str, device: str | None) -> str:
    """What a backend runs on, with its version: rows of two such places are never taken for each other.

    Raises DeviceError where there is no such device, ImportError without the library.
    """
    kind, _, rest = name.partition(":")
    if kind == "dump":
        return f"recorded in {rest}, {_version(Path(rest))}"
    if kind == "plain":
        return f"NumPy {np.__version__}"
    if kind == "torch":
        import torch

        return f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(rest) if rest.startswith('cuda') else 'cpu'}"
    from vkdnn.check.sweep import device_name

    return device_name(vk.device("cpu" if kind == "reference" else device))


def _version(dump: Path) -> str:
    """A word that changes with the files of a dump."""
    files = sorted(dump.iterdir()) if dump.is_dir() else [dump]
    stats = [(path.name, path.stat()) for path in files]
    return digest(json.dumps([(name, s.st_size, s.st_mtime_ns) for name, s in stats]))[:8]


def results(name: str, spec: Spec, draws: Draws, inputs: Inputs, golden: Golden, device: str | None) -> Results:
    """What the backend ``name`` gives; ``device`` is a selector of vk.device for `device`. Raises NotHere."""
    kind, _, rest = name.partition(":")
    if kind == "plain":
        return _plain(golden)
    if kind == "torch":
        from vkdnn.check.accuracy.torch_forms import run

        return [run(case, arrays, spec.gradient, rest or "cpu") for case, arrays in zip(draws, inputs, strict=True)]
    if kind == "dump":
        return read_dump(Path(rest), spec, golden.names)
    return on_device(vk.device("cpu" if kind == "reference" else device), spec, draws, inputs)


def on_device(place: vk.Device, spec: Spec, draws: Draws, inputs: Inputs) -> Results:
    """Results of vkdnn on a device: those of all draws come out of one Program."""
    run = subject(spec.gradient)
    with place:
        found = [run(case, [vk.array(a) for a in arrays])[1] for case, arrays in zip(draws, inputs, strict=True)]
        for leaves in found:
            if not leaves or any(np.asarray(leaf).dtype == object for leaf in leaves if not isinstance(leaf, vk.Array)):
                raise ArgumentError(
                    f"{spec.operator} gives no arrays; its function has to return one, or a tree of them"
                )
        vk.realize([leaf for leaves in found for leaf in leaves if isinstance(leaf, vk.Array)])
        return [[np.asarray(leaf) for leaf in leaves] for leaves in found]


def names_of(spec: Spec, draws: Draws, inputs: Inputs) -> list[str]:
    """Names of the results, where no golden says them."""
    with vk.device("cpu"):
        return subject(spec.gradient)(draws[0], [vk.array(a) for a in inputs[0]])[0]


def _plain(golden: Golden) -> Results:
    if golden.plain is None:
        raise NotHere("the plain float32 results are made for the rule twice-plain alone")
    return golden.plain


# ---- dumps


def dump(folder: Path, spec: Spec, names: list[str], found: Results) -> Path:
    """Keep results as a safetensors file of ``folder``, whole or not at all, for `dump:FOLDER` elsewhere."""
    tensors = {
        _tensor(spec, k, name): np.ascontiguousarray(leaf).reshape(leaf.shape)
        for k, leaves in enumerate(found)
        for name, leaf in zip(names, leaves, strict=True)
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = _file(folder, spec)
    with replaced(path) as file:
        file.write(safetensors.numpy.save(tensors, {"vkdnn-results": json.dumps({spec.name: spec.key})}))
    return path


def read_dump(path: Path, spec: Spec, names: list[str]) -> Results:
    """The results of a case from a folder that dump() filled, or from one .safetensors or .npz file.

    Tensors are named CASE/DRAW/RESULT, such as ``attention/CAUSAL/0/result``. Raises ArgumentError for a case that the
    dump does not hold, and for a file that is damaged or was made with other fields of the case.
    """
    file = _file(path, spec) if path.is_dir() else path
    if not file.is_file():
        raise ArgumentError(
            f"dump: {path} holds no results of {spec.name}; record it with --dump, or leave the case out"
        )
    wanted = [[_tensor(spec, k, name) for name in names] for k in range(spec.seeds)]
    read = _read_npz if file.suffix == ".npz" else _read_safetensors
    try:
        tensors, keys = read(file, [name for row in wanted for name in row])
    except Exception as error:  # zipfile, zlib, numpy and safetensors each have errors of their own
        raise ArgumentError(f"dump: {file} is damaged ({error}); record it again") from None
    if keys.get(spec.name, spec.key) != spec.key:
        raise ArgumentError(f"dump: {file} has {spec.name} with other fields; record it again from the same case file")
    missing = [name for row in wanted for name in row if name not in tensors]
    if missing:
        raise ArgumentError(
            f"dump: {file} has no tensor {missing[0]}; give it one for each draw and result of the case"
        )
    return [[tensors[name] for name in row] for row in wanted]


def _read_safetensors(file: Path, names: Sequence[str]) -> tuple[dict[str, Array], dict[str, str]]:
    with safetensors.safe_open(str(file), framework="numpy") as opened:
        held = set(opened.keys())
        keys = dict(json.loads((opened.metadata() or {}).get("vkdnn-results", "{}")))
        return {name: opened.get_tensor(name) for name in names if name in held}, keys


def _read_npz(file: Path, names: Sequence[str]) -> tuple[dict[str, Array], dict[str, str]]:
    opened = np.load(file, allow_pickle=False)
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise ValueError("one array without a name, expected an archive of several")
    with opened:
        return {name: opened[name] for name in names if name in opened.files}, {}


def _tensor(spec: Spec, draw: int, name: str) -> str:
    return f"{spec.name}/{draw}/{name}"


def _file(folder: Path, spec: Spec) -> Path:
    return folder / f"{file_name(spec.name)}.safetensors"
