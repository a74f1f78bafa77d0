"""What a doctor finds: one line each, with its remedy where something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "warning", "failure"]
STATES: tuple[State, ...] = ("failure", "warning", "note", "ok")


@dataclass(frozen=True)
class Finding:
    """A fact or a problem. ``details`` are for programs."""

    topic: str
    state: State
    text: str
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All findings, in the order in which things depend on each other."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing failed; warnings do not count."""
        return not self.of("failure")

    def of(self, state: State) -> list[Finding]:
        return [f for f in self.findings if f.state == state]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        counts = {state: len(self.of(state)) for state in STATES}
        return {"healthy": self.healthy, "counts": counts, "findings": [asdict(f) for f in self.findings]}
