"""One prompt continued by a model and by its adapters, side by side, with what differs from the first column marked.

Plain values that show themselves as text and as HTML; all text from data is escaped. Marks are underlined besides being
tinted (text: between ⟦ and ⟧), so that colour isn't needed. Knows neither models nor sessions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from html import escape
from typing import Any

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
STYLE = (
    ".nbllm-compared{display:grid;gap:8px 18px;grid-template-columns:repeat(auto-fit,minmax(min(150px,100%),1fr))}"
    ".nbllm-compared>div{min-width:0}"
    ".nbllm-compared>div>pre{white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;margin:2px 0 0;"
    "background:none;color:inherit;font:12.5px/1.6 var(--jp-code-font-family,ui-monospace,monospace)}"
    ".nbllm-compared ins{text-decoration:none;border-bottom:2px solid var(--nb-s2,#d55e00);"
    "background:color-mix(in srgb,var(--nb-s2,#d55e00) 18%,transparent)}"
    ".nbllm-compared .p{opacity:.7}.nbllm-compared .h{font-size:12px;opacity:.8}"
)
"""Rules that the columns need, here and in the panel."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One continuation."""

    adapter: str | None
    """The adapter's name; None for the base."""
    scale: float = 1.0
    """How strongly it acts."""
    text: str
    """What was said."""
    tokens: tuple[int, ...]
    """As ids."""
    logprob: float
    """Mean natural logarithm of the tokens' probabilities, whose negative is the surprise; 0 where there is none."""
    stop_reason: str
    """As of a sample."""
    runs: tuple[tuple[str, bool], ...] = ()
    """The text in pieces, and whether a piece differs from the first column's."""

    @property
    def title(self) -> str:
        """`base`, or the adapter with its scale where that isn't 1."""
        if self.adapter is None:
            return "base"
        return self.adapter if self.scale == 1 else f"{self.adapter} × {self.scale:g}"

    @property
    def facts(self) -> str:
        """One line of numbers."""
        count = len(self.tokens)
        said = f"{count} token{'' if count == 1 else 's'} · ended by {self.stop_reason}"
        return f"{said} · surprise {-self.logprob:.2f} nats a token"


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """A prompt and its columns."""

    model: str
    """What the base is called."""
    prompt: str
    """What was continued, as it was typed."""
    settings: str
    """The sampling settings, in one line."""
    columns: tuple[Column, ...]
    """The base first."""

    def __post_init__(self) -> None:
        first = self.columns[0].text
        marked = [replace(column, runs=differences(first, column.text)) for column in self.columns]
        object.__setattr__(self, "columns", tuple(marked))

    @property
    def summary(self) -> str:
        """How many say something else than the base."""
        others = self.columns[1:]
        count = sum(column.text != self.columns[0].text for column in others)
        return f"{count} of {len(others)} say something else than {self.columns[0].title}; the same random numbers"

    def __repr__(self) -> str:
        return f"Comparison({', '.join(column.title for column in self.columns)}: {self.summary})"

    def __str__(self) -> str:
        parts = [f"{self.model} · {self.settings}", f"prompt: {self.prompt}"]
        for column in self.columns:
            said = "".join(f"⟦{text}⟧" if differs else text for text, differs in column.runs)
            parts.append(f"— {column.title} ({column.facts})\n{said}")
        return "\n\n".join([*parts, f"{self.summary} (what differs is between ⟦ and ⟧)"])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        head = f"<p><b>{escape(self.model)}</b> <small>{escape(self.settings)} · {escape(self.summary)}</small></p>"
        return f"<style>{STYLE}</style>{head}{self.columns_html()}"

    def columns_html(self) -> str:
        """The columns alone."""
        return f'<div class="nbllm-compared">{"".join(self._column(column) for column in self.columns)}</div>'

    def _column(self, column: Column) -> str:
        said = "".join(f"<ins>{escape(text)}</ins>" if differs else escape(text) for text, differs in column.runs)
        return (
            f'<div><b>{escape(column.title)}</b> <span class="h">{escape(column.facts)}</span>'
            f'<pre><span class="p">{escape(self.prompt)}</span> {said}</pre></div>'
        )


def differences(first: str, other: str) -> tuple[tuple[str, bool], ...]:
    """The other text in pieces, word by word, and whether each isn't in the first text at its place."""
    left, right = _WORD.findall(first), _WORD.findall(other)
    found: list[tuple[str, bool]] = []
    for kind, _, _, start, end in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if start != end:
            found.append(("".join(right[start:end]), kind != "equal"))
    return tuple(found)


def settings_line(settings: Sequence[tuple[str, object]]) -> str:
    """Names and values in one line."""
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings)
