"""How a tokenizer fits some texts: how well it compresses, what it never uses, whether everything comes back.

Knows a Tokenizer and an iterable of texts, not where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from nbllm.tokenizer.curve import VocabularyCurve, curve
from nbllm.tokenizer.tokenizer import Tokenizer
from nbllm.tokenizer.visible import visible

_CHUNK_CHARACTERS = 1_000_000
_KEPT_FAILURES = 20
_SHOWN = 12
_RARE = 5
_CELL = "text-align:left;font-variant-numeric:tabular-nums"


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenizerReport:
    """What `tokenizer.report(texts)` found; shows itself in a notebook and by `print`."""

    tokenizer_name: str
    """Which tokenizer."""
    counts: NDArray[np.int64]
    """How often each id was used. int64 [V]"""
    specials: tuple[int, ...]
    """Ids of special tokens, which text never uses."""
    texts: int
    """Texts encoded."""
    characters: int
    """Their characters."""
    text_bytes: int
    """Their size in UTF-8."""
    words: int
    """Their pieces between white space."""
    unused: tuple[tuple[int, str], ...]
    """Tokens, with their visible texts, that these texts never use, longest first: a model trained on them doesn't
    learn these. Single bytes come last, since a byte-level vocabulary has all 256 whatever the text."""
    longest: tuple[tuple[int, str], ...]
    """The longest tokens that are used."""
    failures: tuple[tuple[int, str, str], ...]
    """The first texts that didn't come back: their place, the text around the difference, and what came back."""
    failure_count: int
    """How many didn't."""
    lossless: bool
    """Whether this kind of tokenizer brings back any text."""
    rare: tuple[tuple[int, str], ...]
    """Tokens used, but fewer than six times: a model trained on these texts hardly learns them."""
    unreachable: tuple[tuple[int, str], ...]
    """Tokens that no text gives: encoding a token's own letters ends in others."""
    curve: VocabularyCurve | None
    """Tokens at smaller sizes of the vocabulary; None where it isn't byte-pair."""
    undertrained: tuple[tuple[int, str, float], ...] | None = None
    """Tokens whose rows of a model's embedding look hardly trained: id, visible text, indicator (the smaller, the more
    so; `nbllm.inspect.undertrained`); None where no model was looked at."""

    @property
    def tokens(self) -> int:
        """Tokens that the texts became."""
        return int(self.counts.sum())

    @property
    def vocab_size(self) -> int:
        """Ids in the vocabulary."""
        return len(self.counts)

    @property
    def used(self) -> int:
        """Distinct ids that the texts use."""
        return int(np.count_nonzero(self.counts))

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes a token; 0 where there are no tokens."""
        return self.text_bytes / self.tokens if self.tokens else 0.0

    @property
    def characters_per_token(self) -> float:
        """Characters a token; 0 where there are no tokens."""
        return self.characters / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_word(self) -> float:
        """Tokens a word (a piece between white space); 0 where there are no words."""
        return self.tokens / self.words if self.words else 0.0

    def rows(self) -> list[tuple[str, str]]:
        """The report as label and value."""
        usable = self.vocab_size - len(self.specials)
        if not self.failure_count:
            trips = f"none in {self.texts:,} texts" + ("" if self.lossless else " (other texts may fail)")
        else:
            trips = f"{self.failure_count:,} of {self.texts:,} texts"
        rows = [
            ("Texts", f"{self.texts:,} ({self.text_bytes:,} bytes)"),
            ("Tokens", f"{self.tokens:,}"),
            ("Bytes a token", f"{self.bytes_per_token:.2f}"),
            ("Characters a token", f"{self.characters_per_token:.2f}"),
            ("Tokens a word", f"{self.tokens_per_word:.2f}"),
            ("Vocabulary", f"{self.vocab_size:,}, {len(self.specials)} of it special"),
            ("Used", f"{self.used:,} of {usable:,} ({self.used / usable if usable else 0:.1%})"),
            ("Round-trip failures", trips),
        ]
        if self.unused:
            rows.append(("Unused tokens", self._list(self.unused, len(self.unused))))
        if self.rare:
            rows.append((f"Used 1 to {_RARE} times", self._list(self.rare, len(self.rare))))
        if self.unreachable:
            rows.append(("Unreachable tokens", self._list(self.unreachable, len(self.unreachable))))
        if self.undertrained:
            told = [(id, f"{text} ({count:,}×)") for id, text, count in self._undertrained()]
            rows.append(("Hardly learnt, by the model's embedding", self._list(told, len(told))))
        if self.curve is None:
            rows.append(("Other sizes", "one training gives one size; only a byte-pair vocabulary can be cut off"))
        if self.longest:
            rows.append(("Longest tokens", self._list(self.longest, len(self.longest))))
        rows.extend(
            (f"Text {place}", f"{visible(was)} came back as {visible(came)}")
            for place, was, came in self.failures[:_SHOWN]
        )
        return rows

    def _undertrained(self) -> list[tuple[int, str, int]]:
        """Those tokens with how often these texts use them."""
        counts = self.counts
        return [(id, text, int(counts[id]) if id < len(counts) else 0) for id, text, _ in self.undertrained or ()]

    @staticmethod
    def _list(tokens: Sequence[tuple[int, str]], count: int) -> str:
        shown = "  ".join(text for _, text in tokens[:_SHOWN])
        return shown + (f"  … {count - _SHOWN:,} more" if count > _SHOWN else "")

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        table = [] if self.curve is None else ["At smaller vocabularies:", str(self.curve)]
        return "\n".join(
            [f"Tokenizer {self.tokenizer_name}", *(f"{label:<{width}}  {value}" for label, value in rows), *table]
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        body = "".join(
            f'<tr><th scope="row" style="{_CELL};font-weight:normal;opacity:.8;white-space:nowrap">{escape(label)}</th>'
            f'<td style="{_CELL};overflow-wrap:anywhere">{escape(value)}</td></tr>'
            for label, value in self.rows()
        )
        below = "" if self.curve is None else f"<div>At smaller vocabularies</div>{self.curve._repr_html_()}"
        caption = f"<caption>Tokenizer <b>{escape(self.tokenizer_name)}</b></caption>"
        return f"<table>{caption}<tbody>{body}</tbody></table>{below}"


def report(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encodes every text, decodes it again and counts.

    Args:
        tokenizer: what is looked at.
        texts: the texts; read once, about a megabyte in memory at a time.
    """
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    text_count = characters = text_bytes = words = failure_count = 0
    failures: list[tuple[int, str, str]] = []
    for chunk in _chunks(texts):
        for text, ids in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            counts += np.bincount(np.asarray(ids, dtype=np.int64), minlength=len(counts))
            decoded = tokenizer.decode(ids, skip_special=False)
            if decoded != text:
                failure_count += 1
                if len(failures) < _KEPT_FAILURES:
                    failures.append((text_count, *_around_difference(text, decoded)))
            text_count += 1
            characters += len(text)
            text_bytes += len(text.encode())
            words += len(text.split())
    specials = set(tokenizer.special_tokens.values())

    def by_length(ids: NDArray[np.int64]) -> list[int]:
        kept = [id for id in ids.tolist() if id not in specials and tokenizer.token_bytes(id)]
        return sorted(kept, key=lambda id: -len(tokenizer.token_bytes(id)))

    rare = np.flatnonzero((counts > 0) & (counts <= _RARE))
    return TokenizerReport(
        tokenizer_name=tokenizer.name,
        counts=counts,
        specials=tuple(sorted(specials)),
        texts=text_count,
        characters=characters,
        text_bytes=text_bytes,
        words=words,
        unused=tuple((id, tokenizer.token_text(id)) for id in by_length(np.flatnonzero(counts == 0))),
        longest=tuple((id, tokenizer.token_text(id)) for id in by_length(np.flatnonzero(counts))[:_SHOWN]),
        failures=tuple(failures),
        failure_count=failure_count,
        lossless=tokenizer.lossless,
        rare=tuple((id, tokenizer.token_text(id)) for id in by_length(rare)),
        unreachable=tuple((id, tokenizer.token_text(id)) for id in tokenizer.unreachable_ids),
        curve=curve(tokenizer, counts.tolist(), text_bytes) if len(tokenizer.merges) else None,
    )


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _around_difference(text: str, decoded: str) -> tuple[str, str]:
    pairs = zip(text, decoded, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(decoded)))
    start = max(at - 5, 0)
    return text[start : at + 10], decoded[start : at + 10]
