"""A list of findings, the worst first, as text and as HTML; a severity is a word, not a colour, and all is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from nbllm.findings import SEVERITIES, Finding

_CHIPS = {"serious": "bad", "warning": "warn", "hint": ""}
_MARKS = {"serious": "✕", "warning": "!", "hint": "i"}
_LINE = "padding:8px 0;border-top:1px solid var(--nb-line)"
_CODE = "display:block;margin-top:4px;padding:4px 8px;background:var(--nb-bg2);border-radius:4px;user-select:all"


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
        from nbllm.panels.face import chip, wrap

        count = len(self.findings)
        status = (
            chip(f"{count} finding{'' if count == 1 else 's'}", "!", _CHIPS[self.findings[0].severity])
            if count
            else chip("nothing found", "✓", "ok")
        )
        items = "".join(
            f'<div role="listitem" style="{_LINE if place else "padding-bottom:8px"}">'
            f"{chip(one.severity, _MARKS[one.severity], _CHIPS[one.severity])} <strong>{escape(one.name)}</strong>"
            f'<div style="margin-top:3px">{escape(one.evidence)}.</div>'
            f'<div style="margin-top:3px" class="nbllm-dim">{escape(one.remedy)}:</div>'
            f'<code class="nbllm-mono" style="{_CODE}">{escape(one.command)}</code></div>'
            for place, one in enumerate(self.findings)
        )
        body = f'<div class="nbllm-body" role="list" aria-label="findings">{items}</div>' if items else ""
        return wrap(
            f'<div class="nbllm-head"><strong>Doctor</strong>{status}'
            f'<span class="nbllm-dim">checked: {escape(", ".join(self.checked))}</span></div>{body}'
        )
