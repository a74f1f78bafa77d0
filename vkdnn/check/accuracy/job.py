"""A run over many cases: where each runs, what is written as they end, what was found if it is broken off.

Rows must reach the table before anybody hears of them, so that an end at any moment loses nothing that was told.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkdnn.check.accuracy import backends
from vkdnn.check.accuracy.cases import Spec
from vkdnn.check.accuracy.here import run_here
from vkdnn.check.accuracy.isolate import run_isolated
from vkdnn.check.accuracy.report import Table, document, row_of, with_elements, write_json
from vkdnn.check.accuracy.run import Row, Settings
from vkdnn.check.accuracy.spread import run_spread
from vkdnn.errors import VkdnnError

TABLE, DOCUMENT, IMAGES = "results.csv", "results.json", "images"


@dataclass(frozen=True)
class Mode:
    """Where cases run: in ``jobs`` processes, a ``fresh`` one for each case, in this one (``here``), or by Dask."""

    jobs: int = 1
    fresh: bool = False
    here: bool = False
    scheduler: str | None = None


@dataclass
class Job:
    """Cases, how they run, and what came of them; ``run`` may be broken off and still leaves whole files."""

    specs: Sequence[Spec]
    settings: Settings
    mode: Mode = Mode()
    out: Path | None = None
    resume: bool = False
    every: int = 20
    rows: list[Row] = field(default_factory=list)
    finished: bool = False
    taken: int = 0
    """Rows that stood in the table to resume, and were not run."""
    refused: int = 0
    """Lines there that could not be taken."""

    def run(self, tell: Callable[[list[Row]], None] = lambda rows: None) -> list[Row]:
        """Run what is left; ``tell`` hears the rows of each case as it ends, of those that stood in the table first."""
        left, table = list(self.specs), None
        if self.out is not None:
            table = Table(self.out / TABLE, self.specs, self.resume, self._place)
            left = table.left(self.specs, self.settings.backends)
            kept = with_elements([row_of(cells) for cells in table.kept], self.out / DOCUMENT)
            self.taken, self.refused = len(kept), table.refused
            self.rows += kept
            if kept:
                tell(kept)
        try:
            with closing(self._answers(left)) as answers:
                for number, rows in enumerate(answers, 1):
                    if table is not None:
                        table.add(rows)
                    self.rows += rows
                    tell(rows)
                    if number % self.every == 0:
                        self._write()
            self.finished = True
        finally:
            if table is not None:
                table.close()
            self._write()
        return self.rows

    def _place(self, backend: str) -> str:
        """What a backend runs on here; of none, a word that no row has: it is run, which says what is wrong."""
        try:
            return backends.place(backend, self.settings.device)
        except (VkdnnError, ImportError):
            return "nowhere"

    def _answers(self, specs: Sequence[Spec]) -> Generator[list[Row], None, None]:
        mode = self.mode
        if mode.scheduler is not None:
            yield from run_spread(specs, self.settings, mode.scheduler)
        elif mode.here:
            yield from run_here(specs, self.settings)
        else:
            yield from run_isolated(specs, self.settings, mode.jobs, mode.fresh)

    def record(self) -> dict[str, Any]:
        """Everything as plain data for JSON."""
        about = {"cases": len(self.specs), "settings": self.settings.record(), "taken": self.taken}
        return document(self.rows, self.finished, about)

    def _write(self) -> None:
        if self.out is not None:
            write_json(self.out / DOCUMENT, self.record())
