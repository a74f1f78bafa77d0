"""Accuracy of operators against float64, driven by case files; the command is `vkdnn accuracy`.

Cases come from TOML (cases), golden results from float64 twins (golden), results from backends, verdicts from rules.
"""

from __future__ import annotations
