"""Small tables of results, as text and as HTML, and the one that puts several models side by side.

Knows neither models nor what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

_CELL = "text-align:left;font-variant-numeric:tabular-nums"


class Rows(Protocol):
    """A result that shows as label and value."""

    def rows(self) -> list[tuple[str, str]]:
        """Its labels and values."""
        ...


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """The same measurement of several models."""

    models: tuple[str, ...]
    """What they are called, in the order in which they were asked for."""
    results: tuple[Any, ...]
    """What each has: an `EvalResult` or `TaskScores`."""

    def __getitem__(self, model: str) -> Any:
        return self.results[self.models.index(model)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def rows(self) -> list[tuple[str, ...]]:
        """A row for the models' names, then one a label with each one's value; what one hasn't measured is empty."""
        columns = [dict(result.rows()) for result in self.results]
        labels = list(dict.fromkeys(label for column in columns for label in column))
        return [("", *self.models), *((label, *(column.get(label, "") for column in columns)) for label in labels)]

    def __str__(self) -> str:
        return text_table(self.rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest value."""
    widths = [max(len(value) for value in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{value:<{width}}" for value, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """The first value of each row is its header; a first row without one holds the headers of columns."""
    body = ""
    for row in rows:
        heads = len(row) if not row[0] else 1
        cells = [
            f'<th scope="{"col" if heads > 1 else "row"}" style="{_CELL};font-weight:normal;opacity:.8">'
            f"{escape(value)}</th>"
            if place < heads
            else f'<td style="{_CELL}">{escape(value)}</td>'
            for place, value in enumerate(row)
        ]
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<table class="nbllm-eval">{body}</table>'
