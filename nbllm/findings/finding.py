"""One finding: what is wrong, the numbers that show it, and what to type. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nbllm.errors import UsageError

SEVERITIES = ("serious", "warning", "hint")
"""The worst first."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is worth mending."""

    name: str
    """What is wrong, in a few words."""
    severity: str
    """`serious`, `warning` or `hint`."""
    evidence: str
    """The numbers that show it."""
    remedy: str
    """What to do, as a sentence without a full stop."""
    command: str
    """The line to type."""
    step: int | None = None
    """Where on a run's curve it belongs; None for what isn't about a moment."""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise UsageError(f"severity is one of {', '.join(SEVERITIES)}", received=self.severity)

    def as_event(self) -> dict[str, Any]:
        """The fields of the `finding` event that a run's log keeps of it; the name is its `title`."""
        fields = asdict(self)
        return {"title": fields.pop("name"), **fields, "step": self.step or 0}

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Finding:
        """The finding that an event was made from; raises KeyError for another kind of event."""
        fields = ("severity", "evidence", "remedy", "command")
        return cls(name=str(event["title"]), step=int(event["step"]), **{field: str(event[field]) for field in fields})
