"""Documents with the reason beside each, as a list that shows itself."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

_SHOWN_CHARACTERS = 600
_SHOWN_PLAIN = 160


@dataclass(frozen=True, kw_only=True)
class Example:
    """A document and what became of it."""

    text: str
    """As it came into the stage."""
    id: str
    source: str
    stage: str
    """The stage that dropped it; empty for a kept one."""
    reason: str
    scores: Mapping[str, Any] = field(default_factory=dict)
    """What the stage measured."""

    @property
    def why(self) -> str:
        """Stage, reason and scores in one phrase."""
        measured = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in self.scores.items())
        return " · ".join(part for part in (self.stage, self.reason, measured) if part)


class Examples(Sequence[Example]):
    """A few documents.

    Args:
        items: the documents.
        of: the stage they were asked for.
    """

    def __init__(self, items: Sequence[Example], of: str | None = None) -> None:
        self._items = list(items)
        self._of = of

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return Examples(self._items[index], self._of)
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __str__(self) -> str:
        if not self._items:
            return self._nothing()
        lines = []
        for item in self._items:
            text = " ".join(item.text.split())
            lines += [f"{item.id}: {item.why}", f"    {text[:_SHOWN_PLAIN]}{'…' if len(text) > _SHOWN_PLAIN else ''}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from nbllm.corpus.report_html import STYLE

        if not self._items:
            return f"{STYLE}<div class='nbllm-corpus'>{html.escape(self._nothing())}</div>"
        rows = []
        for item in self._items:
            cut = item.text[:_SHOWN_CHARACTERS] + ("…" if len(item.text) > _SHOWN_CHARACTERS else "")
            tone = "drop" if item.stage else "keep"
            rows.append(
                f"<tr><td><span class='{tone}'>{html.escape(item.why)}</span><br><span class='quiet'>"
                f"{html.escape(item.id)}</span></td><td><pre>{html.escape(cut)}</pre></td></tr>"
            )
        return (
            f"{STYLE}<div class='nbllm-corpus'><table class='examples'><thead><tr><th scope='col'>reason</th>"
            f"<th scope='col'>text</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        )

    def _nothing(self) -> str:
        return f"{self._of} dropped nothing" if self._of else "Nothing was dropped"


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
