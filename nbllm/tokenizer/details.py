"""All about one token: id, bytes, rank, the merges that made it, its score or its pieces, how often a corpus has it.

Knows a Tokenizer and counts by id, not where the counts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbllm.tokenizer.merges import MergeTree
from nbllm.tokenizer.tokenizer import Tokenizer
from nbllm.tokenizer.visible import visible


@dataclass(frozen=True, kw_only=True)
class TokenDetails:
    """What `tokenizer.details(id)` gives; prints itself."""

    id: int
    """Its id."""
    token: str
    """As the vocabulary writes it (`Ġthe`, `▁the`, `##ing`)."""
    bytes: bytes
    """What it stands for."""
    special: bool
    """Whether it is a special token."""
    algorithm: str
    """The vocabulary's kind: `bpe`, `unigram`, `wordpiece` or `wordlevel`."""
    rank: int | None
    """The place of its merge, 0 was learned first; None outside byte-pair vocabularies and for what no merge makes."""
    tree: MergeTree | None
    """Its merges; None outside byte-pair vocabularies and for added tokens."""
    score: float | None
    """In a Unigram vocabulary the logarithm of its probability."""
    pieces: tuple[str, ...]
    """In a WordPiece vocabulary, what it would be cut into if it weren't there; else nothing."""
    count: int | None
    """How often the counted texts have it; None where nothing was counted."""

    @property
    def text(self) -> str:
        """Its bytes made visible."""
        return visible(self.bytes)

    def rows(self) -> list[tuple[str, str]]:
        """The details as label and value."""
        rows = [("Token", self.text), ("Id", f"{self.id:,}"), ("Bytes", self.bytes.hex(" ").upper())]
        if self.token != self.text:
            rows.append(("In the vocabulary", visible(self.token)))
        if self.special:
            rows.append(("Kind", "special: text never becomes it"))
        if self.rank is not None:
            rows.append(("Merge", f"{self.rank:,}"))
        if self.score is not None:
            rows.append(("Score", f"{self.score:.3f}"))
        if self.pieces:
            rows.append(("Without it", " + ".join(map(visible, self.pieces))))
        if self.count is not None:
            rows.append(("In the corpus", f"{self.count:,} times"))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        lines = [f"{label:<{width}}  {value}" for label, value in rows]
        return "\n".join([*lines, *([str(self.tree)] if self.tree is not None and self.tree.parts else [])])


def details(tokenizer: Tokenizer, id: int, counts: Sequence[int] | None = None) -> TokenDetails:
    """All about one token.

    Args:
        tokenizer: whose it is.
        id: which one.
        counts: how often each id stands in some texts, as `TokenizerReport.counts`. int64 [V]

    Raises:
        UsageError: no token has that id.
    """
    tree = tokenizer.merges_of(id)
    return TokenDetails(
        id=id,
        token=tokenizer.token(id),
        bytes=tokenizer.token_bytes(id),
        special=id in tokenizer.special_tokens.values(),
        algorithm=tokenizer.algorithm,
        rank=tree.rank if tree is not None else None,
        tree=tree,
        score=tokenizer.score(id),
        pieces=tokenizer.pieces(id),
        count=int(counts[id]) if counts is not None and id < len(counts) else None,
    )
