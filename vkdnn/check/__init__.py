"""Proofs that people can run: gradients against differences, bits against the reference, errors against float64.

Nothing here may change a result, nor be needed to compute one.
"""

from __future__ import annotations

from vkdnn.check.gradcheck_run import gradcheck

__all__ = ["gradcheck"]
