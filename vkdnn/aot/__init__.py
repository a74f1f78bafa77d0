"""AOT bundles: traced functions as folders that any runtime can run, and that load without a compiler."""

from __future__ import annotations

from vkdnn.aot.bundle import Bundle, load
from vkdnn.aot.export import Spec, export
from vkdnn.aot.manifest import Manifest
from vkdnn.aot.reading import read_manifest
from vkdnn.shader.bundle import BundleError

__all__ = ["Bundle", "BundleError", "Manifest", "Spec", "export", "load", "read_manifest"]
