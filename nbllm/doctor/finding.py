"""One finding: what is wrong, the numbers that show it, and what to type. Knows nothing of models."""

from __future__ import annotations

from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise UsageError(f"severity is one of {', '.join(SEVERITIES)}", received=self.severity)
