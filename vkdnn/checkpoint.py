"""Checkpoints: parameters, optimizer state and metadata in one safetensors file, and digests of trees.

A file at the final name must never be incomplete: it is written beside it, flushed to disk and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from vkdnn import tree
from vkdnn.array import Array, array, host_array, realize
from vkdnn.device import Device
from vkdnn.errors import ArgumentError, VkdnnError

_FORMAT = "vkdnn-checkpoint-1"


class CheckpointError(VkdnnError):
    """A file is no checkpoint of vkdnn, or is damaged."""


class Checkpoint(NamedTuple):
    """What load() gives: two trees of Arrays and the metadata."""

    params: Any
    state: Any
    metadata: dict[str, Any]


def save(
    path: str | os.PathLike[str], params: Any, state: Any = None, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write trees of arrays and JSON-able ``metadata`` to ``path``, all or nothing.

    Trees are dicts (string keys without dots) and lists. Tensors are named params.<path> and state.<path> by
    vkdnn.tree.paths. Raises ArgumentError for trees that such names cannot describe.
    """
    whole = {"params": params} if state is None else {"params": params, "state": state}
    tensors = _host(whole)
    if tree.flatten(_nested(dict.fromkeys(tensors, 0)))[1] != tree.flatten(whole)[1]:
        raise ArgumentError(
            "params, state: got a tree whose names do not give it back; expected lists and non-empty dicts "
            "with keys that hold no dots and are no numbers"
        )
    try:
        text = json.dumps(dict(metadata or {}), sort_keys=True)
    except TypeError as error:
        raise ArgumentError(f"metadata: {error}; expected what JSON can hold") from None
    data = safetensors.numpy.save(tensors, {"format": _FORMAT, "metadata": text})
    _write(Path(path), data)


def load(path: str | os.PathLike[str], device: Device | None = None) -> Checkpoint:
    """The trees (Arrays on ``device``, default the current one) and metadata of a file that save() wrote.

    Raises CheckpointError when the file is no such file, and FileNotFoundError when there is none.
    """
    try:
        place = Path(path)
    except TypeError:
        raise ArgumentError(f"path: got {type(path).__name__}, expected a path") from None
    if not place.exists():
        raise FileNotFoundError(f"checkpoint: no file at {path}")
    if not place.is_file():
        raise CheckpointError(f"checkpoint: {path} is no regular file; name the .safetensors file")
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(
            f"checkpoint: {path} is damaged or no safetensors file ({error}); save it again"
        ) from None
    if header.get("format") != _FORMAT:
        raise CheckpointError(
            f"checkpoint: {path} has format {header.get('format')!r}, expected {_FORMAT!r}; write it with vkdnn"
        )
    try:
        metadata = json.loads(header["metadata"])
    except (KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"checkpoint: {path} is damaged (its metadata: {error}); save it again") from None
    arrays = {name: array(values, dtype=values.dtype.name, device=device) for name, values in tensors.items()}
    whole = _nested(arrays)
    return Checkpoint(whole.get("params", {}), whole.get("state"), metadata)


def digest(values: Any) -> str:
    """SHA-256 (hex) over name, dtype, shape and bytes of every leaf of a tree of arrays, in order of the
    names.

    NaN counts as one value: its payload is no part of vkdnn's contract.
    """
    total = hashlib.sha256()
    for name, host in sorted(_host(values).items()):
        if host.dtype.name in ("float32", "float16", "bfloat16"):
            host = np.where(np.isnan(host), host.dtype.type(np.nan), host)
        total.update(json.dumps([name, host.dtype.name, list(host.shape)]).encode() + b"\0")
        total.update(host.astype(host.dtype.newbyteorder("<")).tobytes())
    return total.hexdigest()


def _host(values: Any) -> dict[str, np.ndarray[Any, Any]]:
    leaves, _ = tree.flatten(values)
    realize([leaf for leaf in leaves if isinstance(leaf, Array)])
    names = tree.paths(values)
    hosts = [host_array(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    return {name: np.ascontiguousarray(host).reshape(host.shape) for name, host in zip(names, hosts, strict=True)}


def _nested(leaves: Mapping[str, Any]) -> Any:
    """The tree that dotted names describe; a level whose keys are 0 to n - 1 is a list."""
    root: dict[str, Any] = {}
    for name, value in leaves.items():
        *parents, last = name.split(".")
        level = root
        for part in parents:
            level = level.setdefault(part, {})
        level[last] = value

    def lists(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        children = {key: lists(child) for key, child in node.items()}
        if children and set(children) == {str(i) for i in range(len(children))}:
            return [children[str(i)] for i in range(len(children))]
        return children

    return lists(root)


def reserve(path: str | os.PathLike[str], size: int) -> None:
    """Make sure that ``size`` bytes can be written beside ``path`` now, and leave nothing there.

    Also clears away what interrupted saves of that file have left. Raises CheckpointError when the folder
    cannot be written to, or has no room.
    """
    path = Path(path)
    partial = _partial(path)
    try:
        for left in path.parent.glob(f".{path.name}.*.partial"):
            left.unlink()
        with open(partial, "wb") as file:
            if shutil.disk_usage(path.parent).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if hasattr(os, "posix_fallocate"):  # sees quotas and limits on file sizes, too
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve
            raise CheckpointError(
                f"checkpoint: cannot write {size:,} bytes to {path.parent} ({error.strerror}); "
                "free some space there, or name another folder"
            ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _write(path: Path, data: bytes) -> None:
    if path.is_dir():
        raise ArgumentError(f"path: {path} is a folder; name a file in it, as checkpoint.safetensors")
    if not path.parent.is_dir():
        raise ArgumentError(f"path: there is no folder {path.parent}; make it first")
    partial = _partial(path)
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)
