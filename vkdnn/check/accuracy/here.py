"""Cases in this process, many in one Program: for a quick look, and for operators that no other process knows.

A case must get the verdict that it gets alone; where a batch fails, its cases are run one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vkdnn.check.accuracy.cases import Spec
from vkdnn.check.accuracy.run import Row, Settings, run_case
from vkdnn.check.accuracy.subjects import Operators
from vkdnn.check.library import OPERATORS


def run_here(specs: Sequence[Spec], settings: Settings, operators: Operators = OPERATORS) -> Iterator[list[Row]]:
    """The rows of each case, in order. There are no timeouts, and a crash is the end of everything."""
    for spec in specs:
        yield run_case(spec, settings, operators)
