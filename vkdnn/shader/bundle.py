"""Kernels of AOT bundles: their files, and the look-up by identity before anything is rendered or compiled.

It must never hand out SPIR-V other than what a bundle's manifest vouches for, nor read outside the bundle.
"""

from __future__ import annotations

import json
import os
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vkdnn.errors import ArgumentError, VkdnnError
from vkdnn.shader.entry import digest
from vkdnn.shader.request import generator_fingerprint

FORMAT = "vkdnn-bundle"
VERSION = 1
MANIFEST = "manifest.json"
WEIGHTS_SUFFIX = ".safetensors"
_LARGEST = 1 << 28  # bytes of a file of a bundle, weights aside
_MAGIC = b"\x03\x02\x23\x07"
_AGAIN = "write the bundle again with `vkdnn aot build` or vk.aot.export"


class BundleError(VkdnnError):
    """A bundle is none, is damaged or of another version, or does not fit."""


class Archive:
    """The files of a bundle: a folder, or one .zip with the same content."""

    def __init__(self, path: str | os.PathLike[str]):
        """Raises BundleError when there is neither."""
        try:
            self.path = Path(path)
        except TypeError:
            raise ArgumentError(f"bundle: got {type(path).__name__}, expected the path of a folder or .zip") from None
        if not self.path.exists():
            raise BundleError(f"bundle {path}: does not exist; name a folder or .zip that `vkdnn aot build` wrote")
        self._zip: zipfile.ZipFile | None = None
        if not self.path.is_dir():
            try:
                self._zip = zipfile.ZipFile(self.path)
            except (zipfile.BadZipFile, OSError) as error:
                raise BundleError(f"bundle {path}: is no folder and no .zip ({error}); {_AGAIN}") from None

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises BundleError for one that is missing, unreadable or outside the bundle."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in name or "\0" in name:
            raise BundleError(f"bundle {self.path}: file {name!r} lies outside of it, expected a name inside; {_AGAIN}")
        try:
            if self._zip is not None:
                if self._zip.getinfo(name).file_size > _LARGEST and not name.endswith(WEIGHTS_SUFFIX):
                    raise BundleError(f"bundle {self.path}: file {name} has more than {_LARGEST} bytes; {_AGAIN}")
                return self._zip.read(name)
            place = self.path / name
            if not place.resolve().is_relative_to(self.path.resolve()):
                raise BundleError(f"bundle {self.path}: file {name!r} leads outside of it; {_AGAIN}")
            return place.read_bytes()
        except (OSError, KeyError, zipfile.BadZipFile, zipfile.zlib.error, NotImplementedError, RuntimeError) as error:  # type: ignore[attr-defined]
            missing = isinstance(error, (KeyError, FileNotFoundError))
            what = "is missing" if missing else f"cannot be read ({error})"
            raise BundleError(f"bundle {self.path}: file {name} {what}; {_AGAIN}") from None

    def checked(self, name: str, sha256: str) -> bytes:
        """The bytes of a file whose SHA-256 is known. Raises BundleError for other bytes."""
        data = self.read(name)
        found = digest(data)
        if found != sha256:
            raise BundleError(
                f"bundle {self.path}: file {name} has SHA-256 {found[:16]}..., expected {sha256[:16]}...: it is "
                f"damaged; copy it again, or {_AGAIN}"
            )
        return data

    def spirv(self, name: str, sha256: str) -> bytes:
        """A kernel. Raises BundleError for a file that is no SPIR-V, or another than the manifest says."""
        data = self.checked(name, sha256)
        if len(data) % 4 or not data.startswith(_MAGIC):
            raise BundleError(f"bundle {self.path}: file {name} is no SPIR-V module; {_AGAIN}")
        return data

    def manifest(self) -> dict[str, Any]:
        """The manifest as JSON of this format and version. Raises BundleError for anything else."""
        try:
            found = json.loads(self.read(MANIFEST).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise BundleError(f"bundle {self.path}: {MANIFEST} is damaged ({error}); {_AGAIN}") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            got = found.get("format") if isinstance(found, dict) else type(found).__name__
            raise BundleError(f"bundle {self.path}: {MANIFEST} has format {got!r}, expected {FORMAT!r}; {_AGAIN}")
        if found.get("version") != VERSION:
            raise BundleError(
                f"bundle {self.path}: version {found.get('version')!r} of the format, expected {VERSION}; {_AGAIN}, "
                "or read it with the vkdnn that wrote it"
            )
        return found


class Kernel(NamedTuple):
    """What a bundle says of a kernel, for messages about one that is not there."""

    label: str
    family: str
    spec: str


@dataclass(frozen=True)
class KernelTable:
    """The kernels of a bundle by identity: (file, SHA-256)."""

    archive: Archive
    generator: str
    files: dict[str, tuple[str, str]]
    kernels: tuple[Kernel, ...] = ()
    strategies: str = ""
    portable: bool = False
    loaded: dict[str, bytes] = field(default_factory=dict)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> KernelTable:
        """Raises BundleError for what is no bundle of this version."""
        archive = Archive(path)
        manifest = archive.manifest()
        try:
            generator = str(manifest["producer"]["generator"])
            files = {str(k["identity"]): (str(k["file"]), str(k["sha256"])) for k in manifest["kernels"]}
            kernels = [Kernel(*(str(k.get(name, "")) for name in Kernel._fields)) for k in manifest["kernels"]]
            numerics = manifest["numerics"]
            strategies = ",".join(f"{name}={numerics[name]}" for name in ("subnormals", "division", "square_root"))
            portable = manifest["producer"].get("target") == ""
        except (KeyError, TypeError, AttributeError) as error:
            raise BundleError(
                f"bundle {archive.path}: the table of kernels in {MANIFEST} is damaged ({error!r}); {_AGAIN}"
            ) from None
        return KernelTable(archive, generator, files, tuple(kernels), strategies, portable)

    def find(self, identity: str) -> bytes | None:
        """The SPIR-V of a kernel, None if it is not here. Raises BundleError for a damaged file."""
        if identity not in self.files:
            return None
        if identity not in self.loaded:
            self.loaded[identity] = self.archive.spirv(*self.files[identity])
        return self.loaded[identity]


_lock = threading.Lock()
_tables: dict[str, KernelTable] = {}
_provided: dict[str, bytes] = {}


def provide(identity: str, spirv: bytes) -> None:
    """Makes a kernel known to this process, as if a bundle of VKDNN_AOT held it."""
    with _lock:
        _provided[identity] = spirv


def find(identity: str) -> bytes | None:
    """The SPIR-V of a kernel (ShaderRequest.identity) from the bundles that VKDNN_AOT names, the first that has it.

    VKDNN_AOT is a list of paths as PATH is. Raises BundleError for a path that is no bundle, for a bundle whose kernels
    were made by other sources than this vkdnn's, and for a damaged kernel.
    """
    with _lock:
        if identity in _provided:
            return _provided[identity]
    for table in tables():
        found = table.find(identity)
        if found is not None:
            return found
    return None


def in_use() -> bool:
    """Whether VKDNN_AOT names any bundle."""
    return bool(os.environ.get("VKDNN_AOT"))


def tables() -> Iterator[KernelTable]:
    """Those of the bundles that VKDNN_AOT names, in their order. Raises BundleError as find() does."""
    for path in filter(None, os.environ.get("VKDNN_AOT", "").split(os.pathsep)):
        yield _table(path)


def _table(path: str) -> KernelTable:
    with _lock:
        if path not in _tables:
            table = KernelTable.read(path)
            own = generator_fingerprint()
            if table.generator != own:
                raise BundleError(
                    f"VKDNN_AOT: the kernels of {path} were made by sources with fingerprint {table.generator[:16]}, "
                    f"expected those of this vkdnn, {own[:16]}; build the bundle with this vkdnn, or unset VKDNN_AOT"
                )
            _tables[path] = table
        return _tables[path]
