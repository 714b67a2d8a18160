"""Tokenizers side by side over the same texts: who needs fewer tokens, and for which part of them.

Between languages the cost of a character is told (Petrov et al. 2023 compare translations of the same sentences; texts
that aren't translations show only roughly the same). Knows Tokenizers and texts by part (languages, sources), not where
they come from.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nbllm.errors import UsageError
from nbllm.tokenizer.align import numbered
from nbllm.tokenizer.report import TokenizerReport, report
from nbllm.tokenizer.tokenizer import Tokenizer

_LEFT, _RIGHT = "text-align:left", "text-align:right;font-variant-numeric:tabular-nums"


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What `compare` found; shows itself in a notebook and by `print`."""

    reports: Mapping[tuple[str, str], TokenizerReport]
    """A report for each tokenizer's name and each part of the texts."""
    shared: Mapping[tuple[str, str], tuple[int, int]]
    """For two tokenizers' names the tokens, told apart by their bytes, that both and that either has."""

    @property
    def tokenizers(self) -> list[str]:
        """Names of the tokenizers, in the order they were given."""
        return list(dict.fromkeys(name for name, _ in self.reports))

    @property
    def parts(self) -> list[str]:
        """Names of the parts of the texts."""
        return list(dict.fromkeys(part for _, part in self.reports))

    def rows(self) -> list[tuple[str, ...]]:
        """One row a part and tokenizer: part, tokenizer, then the columns of `HEADER` as text."""
        rows: list[tuple[str, ...]] = []
        for part in self.parts:
            found = [(name, self.reports[name, part]) for name in self.tokenizers]
            fewest = min(each.tokens for _, each in found)
            for name, each in found:
                more = f"+{each.tokens / fewest - 1:.0%}" if fewest and each.tokens > fewest else "fewest"
                rows.append(
                    (
                        part,
                        name,
                        f"{each.vocab_size:,}",
                        f"{each.tokens:,}",
                        more,
                        f"{each.bytes_per_token:.2f}",
                        f"{each.characters_per_token:.2f}",
                        f"{each.tokens_per_word:.2f}",
                        f"{len(each.unused):,}",
                        f"{each.failure_count:,}",
                    )
                )
        return rows

    def __str__(self) -> str:
        table = [HEADER, *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
        lines = [
            "  ".join(
                cell.ljust(width) if i < _TEXT_COLUMNS else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in table
        ]
        return "\n".join([*(line.rstrip() for line in lines), *self.notes()])

    def notes(self) -> list[str]:
        """Vocabulary overlap, a line a pair; and between parts, how many tokens a character each takes."""
        lines = [
            f"{one} and {other} share {both:,} tokens, {both / either if either else 0:.0%} of all that either has"
            for (one, other), (both, either) in self.shared.items()
        ]
        for name in self.tokenizers if len(self.parts) > 1 else []:
            rates = {
                part: 1 / self.reports[name, part].characters_per_token
                for part in self.parts
                if self.reports[name, part].tokens
            }
            if len(rates) > 1:
                least = "en" if "en" in rates else min(rates, key=lambda part: rates[part])
                told = ", ".join(f"{part} {rate / rates[least]:.2f}×" for part, rate in rates.items() if part != least)
                lines.append(f"{name}, tokens a character against {least}: {told}")
        return lines

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        styles = [_LEFT] * _TEXT_COLUMNS + [_RIGHT] * (len(HEADER) - _TEXT_COLUMNS)
        head = "".join(
            f'<th scope="col" style="{style}">{escape(cell)}</th>' for cell, style in zip(HEADER, styles, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(f'<td style="{style}">{escape(cell)}</td>' for cell, style in zip(row, styles, strict=True))
            + "</tr>"
            for row in self.rows()
        )
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


HEADER = (
    "texts",
    "tokenizer",
    "vocabulary",
    "tokens",
    "more",
    "bytes a token",
    "characters a token",
    "tokens a word",
    "unused",
    "failures",
)
"""Columns of a comparison: `more` is against the tokenizer with the fewest tokens, `unused` counts tokens of the
vocabulary that the texts never use, `failures` texts that don't come back exactly."""
_TEXT_COLUMNS = 2


def compare(tokenizers: Sequence[Tokenizer], texts: Mapping[str, Iterable[str]] | Iterable[str] | str) -> Comparison:
    """Encodes the same texts with each tokenizer.

    Args:
        tokenizers: two or more; of two with the same name the later one is numbered.
        texts: texts by part, such as language or source; or texts; or one text.

    Raises:
        UsageError: no tokenizer.
    """
    if not tokenizers:
        raise UsageError("There is no tokenizer to compare", next="Name two, as in %llm_tokenizer compare A B")
    if isinstance(texts, str):
        texts = [texts]
    parts = {
        name: list(some) if isinstance(some, Iterator) else some
        for name, some in (texts.items() if isinstance(texts, Mapping) else [("all", texts)])
    }
    reports: dict[tuple[str, str], TokenizerReport] = {}
    for name, tokenizer in zip(numbered([tokenizer.name for tokenizer in tokenizers]), tokenizers, strict=True):
        for part, some in parts.items():
            reports[name, part] = report(tokenizer, some)
    contents = {
        name: {tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)}
        - {token.encode() for token in tokenizer.special_tokens}
        for name, tokenizer in zip(numbered([tokenizer.name for tokenizer in tokenizers]), tokenizers, strict=True)
    }
    shared = {
        (one, other): (len(contents[one] & contents[other]), len(contents[one] | contents[other]))
        for one, other in itertools.combinations(contents, 2)
    }
    return Comparison(reports=reports, shared=shared)
