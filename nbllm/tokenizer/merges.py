"""How a byte-pair vocabulary makes its tokens: for each the merge that ends in it, and all merges below as a tree.

A token's tree is the one that encoding builds from the token's own characters: the pair of the lowest rank first, the
leftmost of equals (Sennrich et al. 2016). In a longer text it is the same, since as long as no merge crosses a token's
two ends, what stands around it can't change what happens inside. Knows the `model` part of a tokenizer.json, nothing
of ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbllm.tokenizer.visible import visible


@dataclass(frozen=True, kw_only=True)
class MergeTree:
    """A token with the two parts that it was merged from, and theirs; prints itself as a tree."""

    id: int | None
    """Its id; None for a part that is no token by itself."""
    token: str
    """As the vocabulary writes it (`Ġthe`)."""
    bytes: bytes
    """What it stands for."""
    rank: int | None = None
    """The place of its merge among all merges, 0 was learned first; None where no merge makes it."""
    left: MergeTree | None = None
    """The left part; None where no merge makes it."""
    right: MergeTree | None = None
    """The right part; None where no merge makes it."""

    @property
    def text(self) -> str:
        """Its bytes made visible."""
        return visible(self.bytes)

    @property
    def parts(self) -> tuple[MergeTree, ...]:
        """The left and the right part, or nothing."""
        return (self.left, self.right) if self.left is not None and self.right is not None else ()

    @property
    def depth(self) -> int:
        """Merges on the longest way down; 0 where no merge makes it."""
        return 1 + max(part.depth for part in self.parts) if self.parts else 0

    @property
    def leaves(self) -> tuple[MergeTree, ...]:
        """What it was before any merge, in the text's order."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) if self.parts else (self,)

    @property
    def steps(self) -> list[MergeTree]:
        """Every merge below and at this token, in the order in which encoding does them."""
        own = [self] if self.rank is not None else []
        below = [step for part in self.parts for step in part.steps]
        return sorted([*below, *own], key=lambda step: step.rank or 0)

    def __str__(self) -> str:
        return "\n".join(self._lines("", ""))

    def _lines(self, first: str, rest: str) -> Iterator[str]:
        rank = "" if self.rank is None else f"  merge {self.rank:,}"
        number = "" if self.id is None else f"  id {self.id}"
        yield f"{first}{self.text}{number}{rank}"
        for index, part in enumerate(self.parts):
            last = index == len(self.parts) - 1
            yield from part._lines(rest + ("└ " if last else "├ "), rest + ("  " if last else "│ "))


class Merges:
    """The merges of a byte-pair vocabulary.

    Args:
        model: the `model` part of a tokenizer.json; one that isn't byte-pair has no merges.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        pairs = model.get("merges") or ()
        prefix = str(model.get("continuing_subword_prefix") or "")
        self.pairs: list[tuple[str, str]] = [
            (left, right)
            for left, right in (pair.split(" ", 1) if isinstance(pair, str) else tuple(pair) for pair in pairs)
        ]
        """Left and right part by rank."""
        self._prefix = prefix
        self._suffix = str(model.get("end_of_word_suffix") or "")
        self._ranks: dict[tuple[str, str], int] = {}
        self._made: dict[str, tuple[int, str, str]] = {}
        self._several: set[str] = set()
        for rank, pair in enumerate(self.pairs):
            self._ranks.setdefault(pair, rank)
            token = self.joined(*pair)
            if token in self._made:
                self._several.add(token)
            else:
                self._made[token] = (rank, *pair)

    def __len__(self) -> int:
        return len(self.pairs)

    def joined(self, left: str, right: str) -> str:
        """The token that two parts become."""
        return left + right.removeprefix(self._prefix)

    def of(self, token: str) -> tuple[int, str, str] | None:
        """The merge that makes a token: rank, left and right part; None where none does.

        Where several merges give the same token (files converted from SentencePiece list them all), the one that
        encoding the token by itself ends in; the first one where encoding never gets there.
        """
        found = self._made.get(token)
        if found is not None and token in self._several:
            self._several.discard(token)
            if not self._prefix and not self._suffix:
                found = self._made[token] = last_merge(token, self._ranks) or found
        return found


def last_merge(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> tuple[int, str, str] | None:
    """The merge that makes one token of all symbols; None where merging stops before."""
    parts = list(symbols)
    found = None
    while len(parts) > 1:
        best = min(
            ((ranks[pair], i) for i, pair in enumerate(itertools.pairwise(parts)) if pair in ranks),
            default=None,
        )
        if best is None:
            return None
        rank, i = best
        found = (rank, parts[i], parts[i + 1])
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return found
