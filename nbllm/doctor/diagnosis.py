"""A list of findings, the worst first, as text and as HTML; a severity is a word, not a colour, and all is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from nbllm.doctor.finding import SEVERITIES, Finding

_BOX = "font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);font-variant-numeric:tabular-nums"


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """What was found, and what was looked at."""

    findings: tuple[Finding, ...]
    """The worst first."""
    checked: tuple[str, ...]
    """What was looked at, found or not."""

    def __post_init__(self) -> None:
        ordered = sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))
        object.__setattr__(self, "findings", tuple(ordered))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def heading(self) -> str:
        """One line: how many findings, and what was checked."""
        count = len(self.findings)
        found = f"{count} finding{'' if count == 1 else 's'}" if count else "Nothing found"
        return f"{found} · checked: {', '.join(self.checked)}"

    def __str__(self) -> str:
        lines = [self.heading]
        for one in self.findings:
            lines.append(f"[{one.severity}] {one.name}: {one.evidence}. {one.remedy}: {one.command}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        items = "".join(
            f"<li><b>[{escape(one.severity)}] {escape(one.name)}</b>: {escape(one.evidence)}. "
            f"{escape(one.remedy)}: <code>{escape(one.command)}</code></li>"
            for one in self.findings
        )
        return f'<div class="nbllm-doctor" style="{_BOX}">{escape(self.heading)}<ul>{items}</ul></div>'
