"""Cases in this process, one after the other: for a quick look, and for operators that no other process knows.

Nothing here can end a case that hangs, nor outlive a crash: that is what vkdnn.check.accuracy.isolate is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vkdnn.check.accuracy.cases import Spec
from vkdnn.check.accuracy.run import Row, Settings, run_case
from vkdnn.check.accuracy.subjects import Operators
from vkdnn.check.library import OPERATORS


def run_here(specs: Sequence[Spec], settings: Settings, operators: Operators = OPERATORS) -> Iterator[list[Row]]:
    """The rows of each case, in order."""
    for spec in specs:
        yield run_case(spec, settings, operators)
