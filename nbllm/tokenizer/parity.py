"""What the same sentences cost in tokens in each language, tokenizer by tokenizer.

On translations of the same sentences the ratio of tokens is what a language pays more for the same meaning: Petrov et
al. 2023, "Language model tokenizers introduce unfairness between languages" (https://arxiv.org/abs/2305.15425), section
3, here over the sums of all sentences. Knows Tokenizers and sentences, and how a table of translations is read.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.tokenizer.align import numbered
from nbllm.tokenizer.tokenizer import Tokenizer

_LEFT, _RIGHT = "text-align:left", "text-align:right;font-variant-numeric:tabular-nums"


@dataclass(frozen=True, kw_only=True, eq=False)
class Parity:
    """What `parity` found; shows itself in a notebook and by `print`."""

    sentences: int
    """How many, each in every language."""
    reference: str
    """The language that the others are compared with."""
    tokens: Mapping[tuple[str, str], int]
    """Tokens of all sentences, for each tokenizer's name and each language."""

    @property
    def tokenizers(self) -> list[str]:
        """Names of the tokenizers, in the order they were given."""
        return list(dict.fromkeys(name for name, _ in self.tokens))

    @property
    def languages(self) -> list[str]:
        """Names of the languages, in the order they were given."""
        return list(dict.fromkeys(language for _, language in self.tokens))

    def premium(self, tokenizer: str, language: str) -> float:
        """Tokens in a language for each token in the reference: 1.5 means half as many again for the same meaning."""
        return self.tokens[tokenizer, language] / self.tokens[tokenizer, self.reference]

    def rows(self) -> list[tuple[str, ...]]:
        """One row a language: its name, then tokens and premium of each tokenizer, as text."""
        return [
            (
                language,
                *(f"{self.tokens[name, language]:,} ({self.premium(name, language):.2f}×)" for name in self.tokenizers),
            )
            for language in self.languages
        ]

    @property
    def _caption(self) -> str:
        return f"Tokens for the same {self.sentences:,} sentences, against {self.reference}"

    def __str__(self) -> str:
        table = [("language", *self.tokenizers), *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(cells))
            for cells in (list(zip(row, widths, strict=True)) for row in table)
        ]
        return "\n".join([self._caption, *(line.rstrip() for line in lines)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th scope="col" style="{_RIGHT if at else _LEFT}">{escape(cell)}</th>'
            for at, cell in enumerate(("language", *self.tokenizers))
        )
        body = "".join(
            "<tr>"
            + "".join(f'<td style="{_RIGHT if at else _LEFT}">{escape(cell)}</td>' for at, cell in enumerate(row))
            + "</tr>"
            for row in self.rows()
        )
        caption = f"<caption>{escape(self._caption)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def parity(
    tokenizers: Sequence[Tokenizer], parallel: Mapping[str, Sequence[str]], *, reference: str | None = None
) -> Parity:
    """Counts the tokens of translations.

    Args:
        tokenizers: one or more; of two with the same name the later one is numbered.
        parallel: the same sentences in the same order by language.
        reference: the language to compare with; `en` by default where there is one, else the first.

    Raises:
        UsageError: fewer than two languages, different numbers of sentences, an unknown reference, or no text.
    """
    counts = {language: len(sentences) for language, sentences in parallel.items()}
    if len(counts) < 2 or len(set(counts.values())) > 1:
        raise UsageError(
            "Parity needs the same sentences in two languages or more", received=counts, next="Give a column a language"
        )
    chosen = reference if reference is not None else "en" if "en" in counts else next(iter(counts))
    if chosen not in counts:
        raise UsageError("There is no such language", received=chosen, next=f"Choose from {', '.join(counts)}")
    names = numbered([tokenizer.name for tokenizer in tokenizers])
    tokens = {
        (name, language): sum(map(len, tokenizer.encode_batch(list(sentences))))
        for name, tokenizer in zip(names, tokenizers, strict=True)
        for language, sentences in parallel.items()
    }
    if not all(tokens[name, chosen] for name in names):
        raise UsageError("The language to compare with has no tokens", received=chosen)
    return Parity(sentences=counts[chosen], reference=chosen, tokens=tokens)


def read_parallel(source: Any) -> dict[str, list[str]]:
    """Translations by language, from a mapping, a DataFrame, or a .tsv, .csv or .jsonl file with a column a language.

    Raises:
        NotFoundError: there is no such file.
        DataError: a cell is missing, or isn't text; the row is named.
    """
    if isinstance(source, str | Path):
        rows = _rows(Path(source))
        columns: dict[Any, Any] = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else {})}
    else:
        columns = dict(source.to_dict("list") if hasattr(source, "to_dict") else source)
    for name, cells in columns.items():
        wrong = next((at for at, cell in enumerate(cells) if not isinstance(cell, str)), None)
        if wrong is not None:
            raise DataError(f"Row {wrong + 1} has no text in the column {name!r}", received=cells[wrong])
    return {str(name): list(cells) for name, cells in columns.items()}


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise NotFoundError("There is no such file", received=str(path), next="Give a .tsv, .csv or .jsonl file")
    with path.open(encoding="utf-8", newline="") as lines:
        if path.suffix != ".jsonl":
            return list(csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ","))
        try:
            return [dict(json.loads(line)) for line in lines if line.strip()]
        except ValueError as error:
            raise DataError("A line isn't a JSON object", received=str(path)) from error
