"""AOT bundles: traced functions as folders that any runtime can run, and that load without a compiler."""

from __future__ import annotations

from vkdnn.shader.bundle import BundleError

__all__ = ["BundleError"]
